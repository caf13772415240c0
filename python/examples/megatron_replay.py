"""Megatron-Core: record routing with RouterReplay, plan it, and dispatch to physical experts.

Usage: python megatron_replay.py HOST:PORT

With Megatron-Core, leave `router_replay` out: the adapter finds the real class.
"""

import numpy as np
import recorded

from relibra import Composition, Planner
from relibra.adapters import megatron
from relibra.dispatch import computed_tokens, physical_ids

STEP = 9
TOKENS = 64


class RecordedRouters:
    """Stands for RouterReplay: what each layer's router recorded in one forward pass."""

    def __init__(self, seed: int) -> None:
        ids = recorded.routing(seed, TOKENS)
        self.layers = [ids[:, layer].astype(np.int64) for layer in range(ids.shape[1])]
        self.replayed: list[np.ndarray] = []

    def get_recorded_data(self) -> list[np.ndarray]:
        return self.layers

    def set_replay_data(self, layers: list[np.ndarray]) -> None:
        self.replayed = layers


def main() -> None:
    with Planner(recorded.address(), recorded.job("megatron-example")) as planner:
        ranks = planner.job.topology.num_ranks
        routers = [RecordedRouters(rank) for rank in range(ranks)]
        routing = [megatron.recorded_routing(router) for router in routers]
        for rank, ids in enumerate(routing):
            planner.add_routing(f"rank-{rank}", ids, step=STEP)
        composition = Composition.from_schedule([[[f"rank-{rank}"]] for rank in range(ranks)])
        recorded.show(planner, planner.plan_step(STEP, composition))

        # What each rank then does in its first micro-batch and layer.
        computed = np.zeros(ranks, np.int64)
        before = np.zeros(ranks, np.int64)
        for rank, (router, ids) in enumerate(zip(routers, routing, strict=True)):
            megatron.set_replay(ids, router)
            plan = planner.get_plan(STEP, splits_of=rank)
            layer = plan.layers[0]
            columns = megatron.physical_routing_map(router.replayed[0], plan, layer, 0, rank)
            assert columns.sum() == TOKENS * recorded.TOP_K
            computed += computed_tokens(physical_ids(ids[:, 0], plan, layer, 0, rank), plan)
            before += np.bincount(ids[:, 0].ravel() * ranks // recorded.EXPERTS, minlength=ranks)
        print(f"pairs computed by each rank: {before.tolist()} -> {computed.tolist()}")
        planner.delete_job()


if __name__ == "__main__":
    main()
