"""NeMo-RL: plan a step from the envelopes of a rollout of two turns.

Usage: python nemo_rl_messages.py HOST:PORT

In NeMo-RL, `messages` are the training messages of NeMo-Gym's response.
"""

import base64

import numpy as np
import recorded

from relibra import Composition, Planner
from relibra.adapters import nemo_rl

STEP = 5


def envelope(ids: np.ndarray) -> str:
    """What NeMo-RL's workers send."""
    shape = "x".join(map(str, ids.shape))
    return f"nrlre1:int8:{shape}:{base64.b64encode(ids.astype(np.int8).tobytes()).decode()}"


def messages(rollout: int) -> list[dict[str, object]]:
    """The second turn's prompt is the first turn and the environment's answer."""
    ids = recorded.routing(rollout, 60)
    turns = []
    for prompt, generation in ((10, 20), (40, 20)):
        routed = ids[: prompt + generation].copy()
        routed[-1] = -1  # the last token has no route yet
        turns.append(
            {
                "prompt_token_ids": list(range(prompt)),
                "generation_token_ids": list(range(generation)),
                "routed_experts": envelope(routed),
            }
        )
    return turns


def main() -> None:
    with Planner(recorded.address(), recorded.job("nemo-rl-example")) as planner:
        names = [f"task-{i}" for i in range(16)]
        for rollout, name in enumerate(names):
            for message in messages(rollout):
                nemo_rl.add_message(planner, name, message, step=STEP)
        # Rank r runs one rollout in each of two micro-batches.
        composition = Composition.from_schedule([[[names[r]], [names[r + 8]]] for r in range(8)])
        recorded.show(planner, planner.plan_step(STEP, composition))
        planner.delete_job()


if __name__ == "__main__":
    main()
