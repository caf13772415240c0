"""A placement of experts in slots, as every system's file describes it in its own way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from relibra.arrays import IntArray, require_integers, to_numpy
from relibra.eplb import invert

EMPTY = -1


@dataclass(frozen=True, eq=False)
class Placement:
    """Which logical expert stands in which slot of which GPU, layer by layer.

    Attributes:
        physical_to_logical: int64 [layers, slots], slots in order of GPUs; -1 is an empty slot.
        num_experts: logical experts of a layer, E; each has at least one slot in every layer.
        num_gpus: GPUs; each has slots / num_gpus slots.
        layer_ids: the model's own numbers of the layers, [layers].
    """

    physical_to_logical: IntArray
    num_experts: int
    num_gpus: int
    layer_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        table = require_integers(to_numpy(self.physical_to_logical), "physical_to_logical")
        if table.ndim != 2 or 0 in table.shape:
            raise ValueError(
                f"physical_to_logical: expected [layers, slots], got shape {table.shape}"
            )
        table = table.astype(np.int64)
        table.flags.writeable = False
        object.__setattr__(self, "physical_to_logical", table)
        layers, slots = table.shape
        object.__setattr__(self, "layer_ids", tuple(self.layer_ids) or tuple(range(layers)))
        if len(self.layer_ids) != layers or len(set(self.layer_ids)) != layers:
            raise ValueError(
                f"layer_ids: expected {layers} different numbers, got {list(self.layer_ids)}"
            )
        if self.num_gpus < 1 or slots % self.num_gpus:
            raise ValueError(
                f"num_gpus: {slots} slots do not divide evenly over {self.num_gpus} GPUs"
            )
        self._check_ids(table)

    def _check_ids(self, table: IntArray) -> None:
        wrong = np.argwhere((table < EMPTY) | (table >= self.num_experts))
        if len(wrong):
            layer, slot = (int(index) for index in wrong[0])
            raise ValueError(
                f"layer {self.layer_ids[layer]}, slot {slot}: expected an expert in "
                f"0..{self.num_experts - 1} or -1, got {table[layer, slot]}"
            )
        missing = np.argwhere(self.replica_count == 0)
        if len(missing):
            layer, expert = (int(index) for index in missing[0])
            raise ValueError(f"layer {self.layer_ids[layer]}: expert {expert} is in no slot")

    @property
    def num_layers(self) -> int:
        """Layers that the placement covers."""
        return int(self.physical_to_logical.shape[0])

    @property
    def num_slots(self) -> int:
        """Slots of a layer, all GPUs together."""
        return int(self.physical_to_logical.shape[1])

    @property
    def replica_count(self) -> IntArray:
        """Slots of each expert, int64 [layers, experts]."""
        table = self.physical_to_logical
        count = np.zeros((table.shape[0], self.num_experts + 1), dtype=np.int64)
        np.add.at(count, (np.arange(table.shape[0])[:, None], table), 1)  # -1 falls in the last
        return count[:, : self.num_experts]

    @property
    def logical_to_physical(self) -> IntArray:
        """The slots of each expert, ascending, int64 [layers, experts, X] padded by -1."""
        count = self.replica_count
        empty = (self.physical_to_logical == EMPTY).sum(axis=1, keepdims=True)
        filled = np.where(
            self.physical_to_logical == EMPTY, self.num_experts, self.physical_to_logical
        )
        return invert(filled, np.concatenate([count, empty], axis=1))[
            :, : self.num_experts, : max(1, int(count.max()))
        ]

    @property
    def rank_of_slot(self) -> IntArray:
        """The GPU of each slot, int64 [slots]."""
        return np.arange(self.num_slots, dtype=np.int64) // (self.num_slots // self.num_gpus)

    def duplicates(self) -> list[tuple[int, int, int]]:
        """(layer id, GPU, expert) wherever a GPU holds an expert more than once: wasted slots."""
        found = []
        by_gpu = self.physical_to_logical.reshape(self.num_layers, self.num_gpus, -1)
        ordered = np.sort(by_gpu, axis=-1)
        repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != EMPTY)
        for layer, gpu, slot in np.argwhere(repeated):
            found.append((self.layer_ids[layer], int(gpu), int(ordered[layer, gpu, slot])))
        return sorted(set(found))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Placement)
            and self.num_experts == other.num_experts
            and self.num_gpus == other.num_gpus
            and self.layer_ids == other.layer_ids
            and np.array_equal(self.physical_to_logical, other.physical_to_logical)
        )

    def __hash__(self) -> int:
        return hash((self.num_experts, self.num_gpus, self.layer_ids))


def table_of(rows: object, where: str) -> IntArray:
    """[layers, slots] of nested lists of integers; ValueError naming `where` and the row."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{where}: expected a list of layers")
    for layer, row in enumerate(rows):
        if not isinstance(row, list):
            raise ValueError(f"{where}[{layer}]: expected a list of expert ids")
        for slot, expert in enumerate(row):
            if type(expert) is not int:
                raise ValueError(f"{where}[{layer}][{slot}]: expected an integer, got {expert!r}")
        if len(row) != len(rows[0]):
            raise ValueError(f"{where}[{layer}]: {len(row)} slots, but layer 0 has {len(rows[0])}")
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)
