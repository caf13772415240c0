"""prime-rl: plan a step from the transport's routed_experts.

Usage: python prime_rl_samples.py HOST:PORT

In prime-rl, each sample carries the mapping that `sample` makes here.
"""

from typing import Any

import numpy as np
import recorded

from relibra import Composition, Planner
from relibra.adapters import prime_rl

STEP = 2
TOKENS = 50


def sample(seed: int) -> dict[str, Any]:
    """Raw bytes, with a row of zeros for the last token."""
    ids = np.zeros((TOKENS, len(recorded.MOE_LAYERS), recorded.TOP_K), np.uint8)
    ids[:-1] = recorded.routing(seed, TOKENS - 1)
    return {"data": ids.tobytes(), "shape": list(ids.shape), "start": 0, "dtype": "uint8"}


def main() -> None:
    with Planner(recorded.address(), recorded.job("prime-rl-example")) as planner:
        for i in range(16):
            prime_rl.add_sample(planner, f"rollout-{i}", sample(i), TOKENS, step=STEP)
        # Rank r trains two samples, one in each micro-batch.
        schedule = [[[f"rollout-{rank}"], [f"rollout-{rank + 8}"]] for rank in range(8)]
        recorded.show(planner, planner.plan_step(STEP, Composition.from_schedule(schedule)))
        planner.delete_job()


if __name__ == "__main__":
    main()
