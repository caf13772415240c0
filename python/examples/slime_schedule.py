"""slime: plan every training step of a rollout from the schedule that build_dp_schedule made.

Usage: python slime_schedule.py HOST:PORT

In slime, `samples` are the rollout's Samples and `schedule` is build_dp_schedule's result.
"""

from dataclasses import dataclass
from typing import Any

import recorded

from relibra import LayerAxis, Planner
from relibra.adapters import slime

ROLLOUT = 3
DATA_PARALLEL = 8


@dataclass
class Sample:
    """The fields of slime.utils.types.Sample that matter here."""

    index: int
    group_index: int
    tokens: list[int]
    rollout_routed_experts: Any


def samples() -> list[Sample]:
    result = []
    for i in range(32):
        length = 40 + 3 * (i % 7)
        ids = recorded.routing(i, length - 1, LayerAxis.ALL_LAYERS)
        result.append(Sample(i, i // 4, list(range(length)), ids))
    return result


def schedule() -> slime.Schedule:
    """Two training steps of 16 samples, on each of 8 ranks two micro-batches of one sample."""
    partitions = [[r, r + 8, r + 16, r + 24] for r in range(DATA_PARALLEL)]
    micro_batches = [[[0], [1], [2], [3]] for _ in range(DATA_PARALLEL)]
    return partitions, micro_batches, [2, 2], [16, 16]


def main() -> None:
    job = recorded.job("slime-example", LayerAxis.ALL_LAYERS)
    with Planner(recorded.address(), job) as planner:
        rollout = samples()
        slime.add_samples(planner, rollout, step=ROLLOUT)
        for i, composition in enumerate(slime.compositions(rollout, schedule())):
            plans = planner.plan_step(ROLLOUT, composition, pass_name=f"update-{i}")
            recorded.show(planner, plans)
        planner.delete_job()


if __name__ == "__main__":
    main()
