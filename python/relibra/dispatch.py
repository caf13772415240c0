"""From logical expert ids to the slots that serve them, as a plan says; NumPy, for the CPU.

On GPUs the worker agent's kernels do this. Here it is for checks, for trainers that dispatch by
their own means, and to see what a plan does.
"""

from __future__ import annotations

import numpy as np

from relibra.arrays import IntArray
from relibra.plan import LayerPlan, Plan


def physical_ids(
    topk_ids: IntArray, plan: Plan, layer: LayerPlan, micro_batch: int, source_rank: int
) -> IntArray:
    """The slot that serves each (token, choice) pair of one source rank.

    Tokens of an expert go to its instances in order of ranks, as many as planned. Where the pairs
    that really come differ from the planned ones, they are dealt out in the planned proportions,
    and none is dropped.

    Args:
        topk_ids: integers [tokens, top_k], logical ids; below zero: no pair.
        plan: read with get_plan(splits_of=source_rank).
        layer: one of plan.layers.
        micro_batch: index of the micro-batch.
        source_rank: whose tokens these are.

    Returns:
        int64 [tokens, top_k]: slots of Plan.placement, rank * slots a rank + slot; -1 for no pair.
    """
    slots = _first_slots(plan, layer)
    physical = np.where(topk_ids >= 0, slots[np.maximum(topk_ids, 0)], -1).astype(np.int64)
    part = layer.micro_batches[micro_batch]
    homes = len(layer.home_rank) // plan.num_ranks
    per_rank = homes + plan.replica_slots
    flat_ids, flat = topk_ids.reshape(-1), physical.reshape(-1)
    own = part.splits.source_rank == source_rank
    for expert in np.unique(part.replicas.expert):
        rows = np.flatnonzero(own & (part.splits.expert == expert))
        pairs = np.flatnonzero(flat_ids == expert)
        if len(rows) == 0 or len(pairs) == 0:
            continue
        slot_of_rank = {int(layer.home_rank[expert]): int(slots[expert])}
        for i in np.flatnonzero(part.replicas.expert == expert):
            rank = int(part.replicas.rank[i])
            slot_of_rank[rank] = rank * per_rank + homes + int(part.replicas.slot[i])
        served = np.cumsum(part.splits.tokens[rows].astype(np.int64))
        planned_position = np.arange(len(pairs)) * served[-1] // len(pairs)
        instance = np.searchsorted(served, planned_position, side="right")
        choices = np.array([slot_of_rank[int(rank)] for rank in part.splits.rank[rows]])
        flat[pairs] = choices[instance]
    return physical


def _first_slots(plan: Plan, layer: LayerPlan) -> IntArray:
    """The home slot of every expert, int64 [experts]."""
    experts = len(layer.home_rank)
    homes = experts // plan.num_ranks
    order = np.argsort(layer.home_rank, kind="stable")
    slots = np.empty(experts, dtype=np.int64)
    position = np.arange(experts)
    slots[order] = position // homes * (homes + plan.replica_slots) + position % homes
    return slots


def computed_tokens(physical: IntArray, plan: Plan) -> IntArray:
    """Pairs that each rank computes, int64 [ranks], of slots as physical_ids gives them."""
    homes = len(plan.layers[0].home_rank) // plan.num_ranks
    ranks = physical[physical >= 0] // (homes + plan.replica_slots)
    return np.bincount(ranks, minlength=plan.num_ranks).astype(np.int64)
