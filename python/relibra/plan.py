"""Plans and compositions as Python objects over NumPy arrays. The words are those of plan.proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relibra.placements import EMPTY, Placement
from relibra.v1 import planner_pb2

Int32Array = npt.NDArray[np.int32]
Uint32Array = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class SequencePlacement:
    """Where one sequence is trained; see planner.proto."""

    sequence_id: str
    micro_batch: int
    source_rank: int
    data_parallel_index: int = 0
    padding_rows: int = 0


@dataclass(frozen=True)
class Composition:
    """Which sequences share which micro-batch, and whose rank dispatches their tokens."""

    num_micro_batches: int
    sequences: tuple[SequencePlacement, ...]

    @staticmethod
    def from_schedule(
        schedule: Sequence[Sequence[Sequence[str]]],
        source_ranks: Sequence[int] | None = None,
        *,
        data_parallel_index: int = 0,
        padding_rows: Mapping[str, int] | None = None,
    ) -> Composition:
        """A composition of what each rank runs.

        Args:
            schedule: schedule[r][m] are the ids of the sequences that the r-th rank dispatches in
                micro-batch m; every rank has equally many micro-batches.
            source_ranks: the EP rank of each r; None: r itself.
            data_parallel_index: the expert-data-parallel replica of all of them.
            padding_rows: rows that the trainer really pads a sequence with, by its id.
        """
        if not schedule:
            raise ValueError("schedule: no rank")
        counts = {len(micro_batches) for micro_batches in schedule}
        if len(counts) != 1:
            raise ValueError(f"schedule: ranks have {sorted(counts)} micro-batches; expected one")
        ranks = range(len(schedule)) if source_ranks is None else source_ranks
        padding = padding_rows or {}
        return Composition(
            counts.pop(),
            tuple(
                SequencePlacement(name, m, rank, data_parallel_index, padding.get(name, 0))
                for rank, micro_batches in zip(ranks, schedule, strict=True)
                for m, names in enumerate(micro_batches)
                for name in names
            ),
        )

    def micro_batch(self, index: int) -> list[SequencePlacement]:
        """The sequences of one micro-batch."""
        return [sequence for sequence in self.sequences if sequence.micro_batch == index]

    def to_proto(self) -> Any:
        """The message Composition."""
        message = planner_pb2.Composition(num_micro_batches=self.num_micro_batches)
        for sequence in self.sequences:
            message.sequences.add(**vars(sequence))
        return message

    @staticmethod
    def from_proto(message: Any) -> Composition:
        """The composition that a message holds."""
        names = SequencePlacement.__dataclass_fields__
        return Composition(
            message.num_micro_batches,
            tuple(
                SequencePlacement(**{name: getattr(sequence, name) for name in names})
                for sequence in message.sequences
            ),
        )


@dataclass(frozen=True)
class Packing:
    """What PackSequences proposes, and the imbalance of nodes with it and before."""

    composition: Composition
    node_imbalance: float
    node_imbalance_before: float


@dataclass(frozen=True)
class PlanSummary:
    """A plan in figures; imbalance is max / mean over ranks, averaged over layers and
    micro-batches.
    """

    imbalance_before: float
    imbalance_after: float
    lower_bound: float
    plan_seconds: float
    node_imbalance_after: float
    moves: int
    cross_node_moves: int
    replicas: int
    bridges: int
    replicas_kept: int
    tokens: int
    missing_share: float

    @property
    def balancedness(self) -> float:
        """1 / imbalance_after, as SGLang and vLLM print it."""
        return 1 / self.imbalance_after


@dataclass(frozen=True, eq=False)
class Replicas:
    """The replicas of one (layer, micro-batch) as columns [n], ascending by (expert, rank)."""

    expert: Int32Array
    rank: Int32Array
    slot: Int32Array
    tokens: Uint32Array
    cross_node: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.expert)


@dataclass(frozen=True, eq=False)
class Splits:
    """Which instance serves how many tokens of a source rank, as columns [n], ascending by (expert,
    source rank, rank); only experts that have a replica.
    """

    expert: Int32Array
    source_rank: Int32Array
    rank: Int32Array
    tokens: Uint32Array

    def __len__(self) -> int:
        return len(self.expert)


@dataclass(frozen=True, eq=False)
class MicroBatchPlan:
    """One layer in one micro-batch."""

    micro_batch: int
    replicas: Replicas
    splits: Splits


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """One layer: layer is the model's own number; home_rank [E]; moves [n, 3] are (expert, from
    rank, to rank), ascending.
    """

    layer: int
    home_rank: Int32Array
    moves: Int32Array
    micro_batches: tuple[MicroBatchPlan, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one pass of a step for one EP group. `layers` is empty where only the summary was
    asked for.
    """

    job: str
    step: int
    policy_version: int
    pass_name: str
    ep_group: str
    digest: str
    nodes: int
    gpus_per_node: int
    replica_slots: int
    summary: PlanSummary
    layers: tuple[LayerPlan, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of the EP group, P."""
        return self.nodes * self.gpus_per_node

    def placement(self, micro_batch: int) -> Placement:
        """Every layer's slots in a micro-batch: each rank's home experts, ascending, then its
        replica slots, -1 where one is empty. For other systems' files, see relibra.placements.
        """
        if not self.layers:
            raise ValueError("the plan has no layers: read it with get_plan")
        ranks = self.num_ranks
        experts = len(self.layers[0].home_rank)
        homes = experts // ranks
        table = np.full((len(self.layers), ranks, homes + self.replica_slots), EMPTY, np.int64)
        for row, layer in zip(table, self.layers, strict=True):
            row[:, :homes] = np.argsort(layer.home_rank, kind="stable").reshape(ranks, homes)
            replicas = layer.micro_batches[micro_batch].replicas
            row[replicas.rank, homes + replicas.slot] = replicas.expert
        layer_ids = tuple(layer.layer for layer in self.layers)
        return Placement(table.reshape(len(self.layers), -1), experts, ranks, layer_ids)

    @staticmethod
    def from_updates(updates: Iterable[Any]) -> Plan:
        """The plan of a stream of PlanUpdate: header, layers, complete.

        Raises:
            ValueError: the stream ended early or out of order, so that it told nothing.
        """
        header: Any = None
        layers: list[LayerPlan] = []
        complete: Any = None
        for update in updates:
            kind = update.WhichOneof("update")
            if kind == "header" and header is None:
                header = update.header
            elif kind == "layer" and header is not None and complete is None:
                layers.append(_layer(update.layer))
            elif kind == "complete" and header is not None and complete is None:
                complete = update.complete
            else:
                raise ValueError(f"plan stream: {kind} out of order")
        if complete is None or complete.num_layers != len(layers):
            raise ValueError(f"plan stream: broke off after {len(layers)} layers")
        if complete.digest != header.digest:
            raise ValueError("plan stream: the digests of its header and its end differ")
        return _plan(header, tuple(layers))

    @staticmethod
    def from_proto(message: Any) -> Plan:
        """The plan that a message holds, e.g. one that `relibra plan` wrote."""
        return _plan(message, tuple(_layer(layer) for layer in message.layers))


def _plan(message: Any, layers: tuple[LayerPlan, ...]) -> Plan:
    names = PlanSummary.__dataclass_fields__
    return Plan(
        job=message.job,
        step=message.step,
        policy_version=message.policy_version,
        pass_name=getattr(message, "pass"),
        ep_group=message.ep_group,
        digest=message.digest,
        nodes=message.topology.nodes,
        gpus_per_node=message.topology.gpus_per_node,
        replica_slots=message.topology.replica_slots,
        summary=PlanSummary(**{name: getattr(message.summary, name) for name in names}),
        layers=layers,
    )


def _layer(message: Any) -> LayerPlan:
    moves = [(move.expert, move.from_rank, move.to_rank) for move in message.moves]
    return LayerPlan(
        layer=message.layer,
        home_rank=np.array(message.home_rank, dtype=np.int32),
        moves=np.array(moves, dtype=np.int32).reshape(len(moves), 3),
        micro_batches=tuple(_micro_batch(micro_batch) for micro_batch in message.micro_batches),
    )


def _micro_batch(message: Any) -> MicroBatchPlan:
    replicas = message.replicas
    return MicroBatchPlan(
        micro_batch=message.micro_batch,
        replicas=Replicas(
            expert=np.array([r.expert for r in replicas], dtype=np.int32),
            rank=np.array([r.rank for r in replicas], dtype=np.int32),
            slot=np.array([r.slot for r in replicas], dtype=np.int32),
            tokens=np.array([r.tokens for r in replicas], dtype=np.uint32),
            cross_node=np.array([r.cross_node for r in replicas], dtype=np.bool_),
        ),
        splits=_splits(message),
    )


def _splits(message: Any) -> Splits:
    """Of single rows (files) and of columns (the wire) alike."""
    columns = message.split_columns
    expert = [s.expert for s in message.splits] + [e for c in columns for e in c.experts]
    source = [s.source_rank for s in message.splits]
    source += [c.source_rank for c in columns for _ in c.experts]
    rank = [s.rank for s in message.splits] + [r for c in columns for r in c.ranks]
    tokens = [s.tokens for s in message.splits] + [t for c in columns for t in c.tokens]
    order = np.lexsort((rank, source, expert))
    return Splits(
        expert=np.array(expert, dtype=np.int32)[order],
        source_rank=np.array(source, dtype=np.int32)[order],
        rank=np.array(rank, dtype=np.int32)[order],
        tokens=np.array(tokens, dtype=np.uint32)[order],
    )
