"""prime-rl: the transport's ``{"data", "shape", "start", "dtype"}`` to the planner.

from relibra.adapters import prime_rl

prime_rl.add_sample(planner, "rollout-7", sample.routed_experts, num_tokens, step=step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relibra import routing
from relibra.client import Planner


def add_sample(
    planner: Planner,
    sequence_id: str,
    routed_experts: Mapping[str, Any] | bytes,
    num_tokens: int,
    *,
    step: int,
    policy_version: int = 0,
    prompt_group: str = "",
) -> None:
    """Hands over one sample's routing.

    prime-rl pads the tail with rows of zeros up to the count of tokens. Those were never recorded,
    so they are left out here (with top_k above 1; see relibra.routing.zeros_as_unrouted).

    Args:
        planner: the job's client.
        sequence_id: unique within the step.
        routed_experts: the mapping, or raw bytes of uint8 for the job's layers and top_k.
        num_tokens: tokens of the whole sequence.
        step: the training step.
        policy_version: of the rollout.
        prompt_group: the prompt's id.
    """
    piece = routing.decode(routed_experts, planner.job)
    ids = piece.ids
    if planner.job.model.top_k > 1:
        ids = routing.zeros_as_unrouted(ids)
    planner.add_routing(
        sequence_id,
        ids,
        step=step,
        policy_version=policy_version,
        token_offset=piece.token_offset,
        sequence_tokens=num_tokens,
        prompt_group=prompt_group,
    )
