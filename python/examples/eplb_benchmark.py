"""relibra.eplb beside DeepSeek's eplb.py: speed and balance on 20 matrices, in one run.

Usage: python eplb_benchmark.py PATH/TO/eplb.py        (needs torch, which that file imports)

Exits 1 if any matrix is placed worse, or less than 50 times as fast.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from relibra import eplb

# (name, layers, experts, replicas, groups, nodes, GPUs)
SHAPES = [
    ("DeepSeek-V3, 4 nodes, hierarchical", 58, 256, 288, 8, 4, 32),
    ("DeepSeek-V3, 32 GPUs, global", 58, 256, 288, 1, 1, 32),
    ("Qwen3-30B, 2 nodes, hierarchical", 48, 128, 160, 8, 2, 16),
    ("Qwen3-235B, 32 GPUs, global", 94, 128, 192, 1, 4, 32),
    ("Kimi-K2, 8 nodes, hierarchical", 60, 384, 448, 8, 8, 64),
]
SKEWS = [0.3, 0.6, 1.0, 1.4]  # of a Zipf distribution


def best_of(runs: int, call: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - started)
    return min(times), result


def imbalance(weight: np.ndarray, physical: np.ndarray, count: np.ndarray, gpus: int) -> np.ndarray:
    """Max / mean over GPUs, [layers]."""
    share = np.take_along_axis(weight / count, physical, axis=1)
    loads = share.reshape(len(share), gpus, -1).sum(-1)
    ratio: np.ndarray = loads.max(1) / loads.mean(1)
    return ratio


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    import torch

    spec = importlib.util.spec_from_file_location("published_eplb", sys.argv[1])
    assert spec is not None and spec.loader is not None
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    if not eplb.is_native():
        print("eplb_benchmark: librelibra_eplb.so is missing; build it first", file=sys.stderr)
        return 1

    random = np.random.default_rng(2026)
    print(f"{'matrix':36} {'skew':>4} {'eplb.py':>10} {'relibra':>10} {'ratio':>6}   imbalance")
    ratios, worse = [], 0
    for name, layers, experts, *shape in SHAPES:
        for skew in SKEWS:
            zipf = np.tile(1e6 / np.arange(1, experts + 1) ** skew, (layers, 1))
            weight = np.floor(random.permuted(zipf, axis=1) * random.lognormal(0, 0.3, zipf.shape))
            tensor = torch.from_numpy(weight)
            theirs, their_plan = best_of(3, lambda: published.rebalance_experts(tensor, *shape))  # noqa: B023
            ours, our_plan = best_of(10, lambda: eplb.rebalance_experts(tensor, *shape))  # noqa: B023
            before = imbalance(weight, their_plan[0].numpy(), their_plan[2].numpy(), shape[3])
            after = imbalance(weight, our_plan[0].numpy(), our_plan[2].numpy(), shape[3])
            worse += bool((after > before * (1 + 1e-6)).any())
            ratios.append(theirs / ours)
            print(
                f"{name:36} {skew:4.1f} {theirs * 1e3:7.1f} ms {ours * 1e3:7.2f} ms "
                f"{ratios[-1]:5.0f}x   {before.mean():.4f} -> {after.mean():.4f}"
            )
    print(
        f"{len(ratios)} matrices: {min(ratios):.0f}x to {max(ratios):.0f}x as fast (median "
        f"{np.median(ratios):.0f}x), {worse} with a layer placed worse"
    )
    return int(worse > 0 or min(ratios) < 50)


if __name__ == "__main__":
    sys.exit(main())
