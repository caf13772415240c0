"""What the examples share: a job small enough to read, and routing as engines would record it."""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from relibra import JobSpec, LayerAxis, Model, Plan, Planner, Topology

# Four MoE layers (of six hidden ones) of 16 experts, top 2, on 2 nodes of 4 GPUs.
MOE_LAYERS = (2, 3, 4, 5)
HIDDEN_LAYERS = 6
EXPERTS = 16
TOP_K = 2


def job(name: str, layer_axis: LayerAxis = LayerAxis.MOE_LAYERS) -> JobSpec:
    return JobSpec(
        job=name,
        model=Model(
            MOE_LAYERS,
            EXPERTS,
            TOP_K,
            weight_bytes=1 << 20,
            gradient_bytes=1 << 20,
            token_bytes=4096,
        ),
        topology=Topology(nodes=2, gpus_per_node=4, replica_slots=2),
        layer_axis=layer_axis,
        num_hidden_layers=HIDDEN_LAYERS,
    )


def routing(
    seed: int, rows: int, layer_axis: LayerAxis = LayerAxis.MOE_LAYERS
) -> npt.NDArray[np.int32]:
    """Skewed routing [rows, layers, top_k]; under ALL_LAYERS the dense layers' rows are zero."""
    random = np.random.default_rng(seed)
    layers = len(MOE_LAYERS)
    popularity = np.log(1.0 / np.arange(1, EXPERTS + 1))
    # Gumbel noise and the largest two: choices without repetition, popular experts more often.
    noise = random.gumbel(size=(rows, layers, EXPERTS))
    ids = np.argsort(-(popularity + noise), axis=-1)[..., :TOP_K].astype(np.int32)
    if layer_axis == LayerAxis.MOE_LAYERS:
        return ids
    wide = np.zeros((rows, HIDDEN_LAYERS, TOP_K), dtype=np.int32)
    wide[:, list(MOE_LAYERS)] = ids
    return wide


def address() -> str:
    parser = argparse.ArgumentParser()
    parser.add_argument("planner", help="HOST:PORT of relibra-planner")
    value: str = parser.parse_args().planner
    return value


def show(planner: Planner, plans: list[Plan]) -> None:
    for plan in plans:
        summary = plan.summary
        print(
            f"{planner.job.job}: step {plan.step}, pass {plan.pass_name}, {summary.tokens} pairs, "
            f"imbalance {summary.imbalance_before:.3f} -> {summary.imbalance_after:.3f}"
        )
