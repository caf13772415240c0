"""EPLB's triple of tables, which vLLM, SGLang and their kin keep in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from relibra.arrays import IntArray, to_numpy
from relibra.placements.placement import Placement


def from_eplb(
    physical_to_logical_map: Any,
    logical_to_physical_map: Any = None,
    logical_replica_count: Any = None,
    *,
    num_gpus: int,
    num_experts: int | None = None,
    layer_ids: tuple[int, ...] = (),
) -> Placement:
    """A placement of EPLB's tables; those that are given must agree.

    Args:
        physical_to_logical_map: [layers, slots].
        logical_to_physical_map: [layers, experts, X] padded by -1, slots in any order, or None.
        logical_replica_count: [layers, experts], or None.
        num_gpus: GPUs that share the slots evenly.
        num_experts: E; None: what the other tables, else the largest id, say.
        layer_ids: the model's own numbers of the layers; default 0, 1, ...
    """
    table = to_numpy(physical_to_logical_map)
    count = None if logical_replica_count is None else to_numpy(logical_replica_count)
    inverse = None if logical_to_physical_map is None else to_numpy(logical_to_physical_map)
    if num_experts is None:
        for other in (count, inverse):
            if other is not None and other.ndim > 1:
                num_experts = int(other.shape[1])
        if num_experts is None:
            num_experts = int(table.max(initial=-1)) + 1
    placement = Placement(table, num_experts, num_gpus, layer_ids)
    if count is not None and not np.array_equal(count, placement.replica_count):
        raise ValueError("logical_replica_count does not agree with physical_to_logical_map")
    if inverse is not None:
        _check_inverse(inverse, placement)
    return placement


def _check_inverse(inverse: IntArray, placement: Placement) -> None:
    expected = placement.logical_to_physical
    if inverse.ndim == 3 and inverse.shape[:2] == expected.shape[:2]:
        width = max(inverse.shape[2], expected.shape[2])
        ours, theirs = (
            np.sort(np.pad(a, ((0, 0), (0, 0), (0, width - a.shape[2])), constant_values=-1))
            for a in (expected, inverse)
        )
        if np.array_equal(ours, theirs):
            return
    raise ValueError("logical_to_physical_map does not agree with physical_to_logical_map")


def to_eplb(placement: Placement) -> tuple[IntArray, IntArray, IntArray]:
    """(physical_to_logical_map, logical_to_physical_map, logical_replica_count), int64."""
    return (
        placement.physical_to_logical.copy(),
        placement.logical_to_physical,
        placement.replica_count,
    )
