"""NeMo-RL: the ``routed_experts`` envelopes of a rollout's messages to the planner.

    from relibra.adapters import nemo_rl

    nemo_rl.add_message(planner, "task-3/0", message, step=step)

A message (NeMo-Gym's training message, or any mapping or object with its fields) has
``prompt_token_ids``, ``generation_token_ids`` and ``routed_experts``: an ``nrlre1:`` string or
nested lists over prompt and generation, -1 where a route is missing.
"""

from __future__ import annotations

from typing import Any

from relibra import routing
from relibra.client import Planner


def _get(message: Any, name: str) -> Any:
    return message.get(name) if hasattr(message, "get") else getattr(message, name, None)


def add_message(
    planner: Planner,
    sequence_id: str,
    message: Any,
    *,
    step: int,
    policy_version: int = 0,
    prompt_group: str = "",
) -> bool:
    """Hands over one message's routing. The prompt of a later turn repeats the turns before it, so
    every turn can be added under one sequence id: what overlaps must agree and counts once.

    Returns:
        False when the message carries no routes (NeMo-RL then routes natively).

    Raises:
        ValueError: more than one row over the tokens, of which NeMo-RL allows one.
    """
    envelope = _get(message, "routed_experts")
    if envelope is None:
        return False
    tokens = len(_get(message, "prompt_token_ids")) + len(_get(message, "generation_token_ids"))
    ids = routing.decode(envelope, planner.job).ids
    if len(ids) > tokens + 1:
        raise ValueError(
            f"sequence {sequence_id}: {len(ids)} rows of routing for {tokens} tokens; at most one "
            "surplus row is expected"
        )
    # The last token was never fed to the model: its row, where there is one, says nothing.
    planner.add_routing(
        sequence_id,
        ids[: max(0, tokens - 1)],
        step=step,
        policy_version=policy_version,
        prompt_group=prompt_group,
    )
    return True
