"""slime: samples' ``rollout_routed_experts`` to the planner, ``build_dp_schedule``'s result as the
composition of each of its steps.

    from relibra.adapters import slime

    slime.add_samples(planner, samples, step=rollout_id)
    schedule = build_dp_schedule(args, config, total_lengths, ...)
    for i, composition in enumerate(slime.compositions(samples, schedule)):
        planner.plan_step(rollout_id, composition, pass_name=f"update-{i}")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relibra.client import Planner
from relibra.plan import Composition

Schedule = tuple[Sequence[Sequence[int]], Sequence[Sequence[Sequence[int]]], Sequence[int], Any]


def sequence_id(sample: Any, position: int) -> str:
    """The sample's id: its rollout's index, and its place in the batch, since one rollout can give
    several samples.
    """
    return f"{getattr(sample, 'index', None)}/{position}"


def add_samples(
    planner: Planner, samples: Sequence[Any], *, step: int, policy_version: int = 0
) -> list[str]:
    """Hands over the routing of every sample, and returns their sequence ids.

    A sample has ``tokens``, ``rollout_routed_experts`` [tokens - 1, layers, top_k] over all layers
    (so the job's layer_axis is ALL_LAYERS) and ``group_index``, its prompt's.

    Raises:
        ValueError: a sample has no routing: run with --use-rollout-routing-replay.
    """
    names = [sequence_id(sample, i) for i, sample in enumerate(samples)]
    for name, sample in zip(names, samples, strict=True):
        if sample.rollout_routed_experts is None:
            raise ValueError(
                f"sample {name} has no rollout_routed_experts: run with "
                "--use-rollout-routing-replay"
            )
        group = getattr(sample, "group_index", None)
        planner.add_routing(
            name,
            sample.rollout_routed_experts,
            step=step,
            policy_version=policy_version,
            sequence_tokens=len(sample.tokens),
            prompt_group="" if group is None else str(group),
        )
    return names


def compositions(
    samples: Sequence[Any],
    schedule: Schedule,
    source_ranks: Sequence[int] | None = None,
    *,
    padding_rows: Mapping[str, int] | None = None,
) -> list[Composition]:
    """A composition for each training step of a rollout.

    Args:
        samples: the whole rollout's.
        schedule: what build_dp_schedule returns: (partitions, micro_batch_indices,
            num_microbatches, global_batch_sizes).
        source_ranks: the EP rank of each data-parallel rank.
        padding_rows: rows by which the trainer really pads a sample, by sequence id. slime routes
            them to experts in turn, so they are load; leave it out where padding is not run.
    """
    partitions, indices, micro_batches_of_step, _ = schedule
    names = [sequence_id(sample, i) for i, sample in enumerate(samples)]
    result = []
    first = 0
    for count in micro_batches_of_step:
        ranks = [
            [[names[partition[i]] for i in local] for local in by_rank[first : first + count]]
            for partition, by_rank in zip(partitions, indices, strict=True)
        ]
        result.append(Composition.from_schedule(ranks, source_ranks, padding_rows=padding_rows))
        first += count
    return result
