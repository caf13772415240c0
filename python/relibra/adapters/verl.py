"""verl: the batch's ``routed_experts`` (R2, R3) to the planner, its packing back as micro-batches.

    from relibra.adapters import verl

    ids = verl.add_batch(planner, batch, step=trainer.global_steps)      # after the rollout
    packing = planner.pack(step, num_micro_batches=8)
    rows = verl.micro_batch_rows(packing.composition, ids)               # which rows train together

A batch is a DataProto, a TensorDict or a mapping with ``routed_experts`` [batch, tokens, layers,
top_k] (or nested) and ``attention_mask`` [batch, tokens]; ``uid`` [batch] names each row's prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from relibra.client import Planner
from relibra.plan import Composition
from relibra.routing import LastRow


def _field(batch: Any, name: str) -> Any:
    """A field of a DataProto's tensors or other columns, a TensorDict or a mapping; or None."""
    for part in (getattr(batch, "batch", None), getattr(batch, "non_tensor_batch", None), batch):
        try:
            if part is not None and name in part.keys():  # noqa: SIM118  TensorDict has no `in`
                return part[name]
        except (AttributeError, TypeError):
            continue
    return None


def sequence_ids(batch: Any) -> tuple[list[str], list[str]]:
    """The id of each row, and its prompt's: "<uid>/<n>" for the n-th row of a uid.

    Without ``uid`` rows are numbered, and each is a prompt of its own.
    """
    uids = _field(batch, "uid")
    if uids is None:
        count = len(_field(batch, "routed_experts"))
        return [f"row/{i}" for i in range(count)], [""] * count
    seen: defaultdict[str, int] = defaultdict(int)
    names = []
    for uid in map(str, uids):
        names.append(f"{uid}/{seen[uid]}")
        seen[uid] += 1
    return names, [str(uid) for uid in uids]


def add_batch(
    planner: Planner,
    batch: Any,
    *,
    step: int,
    policy_version: int = 0,
    last_row: LastRow = "auto",
) -> list[str]:
    """Hands over the routing of every row, and returns the rows' sequence ids.

    Args:
        planner: the job's client; its layer_axis says whether rows have all layers (rollout, R3) or
            only MoE layers (R2).
        batch: with routed_experts; rows of padding are told by attention_mask.
        step: the training step.
        policy_version: of the rollout.
        last_row: verl fills rows that no engine recorded, as that of the last token, with zeros.
            "auto" takes such rows for missing; see relibra.routing.split_batch.

    Raises:
        ValueError: the batch has no routed_experts: set actor.router_replay.mode to R2 or R3.
    """
    routed = _field(batch, "routed_experts")
    if routed is None:
        raise ValueError(
            "the batch has no routed_experts: set router_replay.mode to R2 or R3 "
            "(R3: also rollout.enable_rollout_routing_replay)"
        )
    names, groups = sequence_ids(batch)
    mask = None if getattr(routed, "is_nested", False) else _field(batch, "attention_mask")
    planner.add_batch(
        names,
        routed,
        mask,
        step=step,
        policy_version=policy_version,
        prompt_groups=groups,
        last_row=last_row,
    )
    return names


def composition(
    rank_rows: Sequence[Sequence[Sequence[int]]],
    rank_names: Sequence[Sequence[str]],
    source_ranks: Sequence[int] | None = None,
) -> Composition:
    """The composition of verl's own micro-batches.

    Args:
        rank_rows: rank_rows[r][m]: rows of its batch that data-parallel rank r runs in micro-batch
            m: the index lists that rearrange_micro_batches returned on that rank.
        rank_names: rank_names[r]: the sequence ids of the rows of that rank's batch. Where rows are
            those of the whole batch, the same ids for every rank.
        source_ranks: the EP rank of each r; None: r itself.
    """
    schedule = [
        [[names[row] for row in rows] for rows in micro_batches]
        for micro_batches, names in zip(rank_rows, rank_names, strict=True)
    ]
    return Composition.from_schedule(schedule, source_ranks)


def micro_batch_rows(packing: Composition, names: Sequence[str]) -> list[list[list[int]]]:
    """rows[r][m]: the batch's rows that source rank r should run in micro-batch m."""
    row_of = {name: row for row, name in enumerate(names)}
    ranks = 1 + max((sequence.source_rank for sequence in packing.sequences), default=-1)
    rows: list[list[list[int]]] = [
        [[] for _ in range(packing.num_micro_batches)] for _ in range(ranks)
    ]
    for sequence in packing.sequences:
        rows[sequence.source_rank][sequence.micro_batch].append(row_of[sequence.sequence_id])
    return rows
