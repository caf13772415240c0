"""Megatron-Core: routing out of ``RouterReplay``, into it, and on to physical experts.

    from relibra.adapters import megatron

    ids = megatron.recorded_routing()                       # after a forward pass that records
    planner.add_routing("micro-batch-3", ids, step=step)
    megatron.set_replay(ids)                                # before the pass that replays

A plan changes where experts live, never which experts a token has: replay speaks logical ids, and
`physical_routing_map` turns a layer's logical ids into the columns that the token dispatcher sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relibra.arrays import Array, IntArray, is_torch, require_integers, to_numpy
from relibra.dispatch import physical_ids
from relibra.plan import LayerPlan, Plan


def _router_replay() -> Any:
    try:
        from megatron.core.transformer.moe.router_replay import (  # type: ignore[import-not-found]
            RouterReplay,
        )
    except ImportError as error:
        raise ImportError(
            "Megatron-Core with RouterReplay is needed here (megatron.core.transformer.moe."
            "router_replay)"
        ) from error
    return RouterReplay


def recorded_routing(router_replay: Any = None) -> Array:
    """What the routers of this pipeline stage recorded.

    Args:
        router_replay: the class RouterReplay; None: Megatron-Core's.

    Returns:
        Integers [tokens, layers, top_k], layers in the order in which routers were made.

    Raises:
        ValueError: a router recorded nothing: the action must be RECORD.
    """
    source = router_replay if router_replay is not None else _router_replay()
    layers = source.get_recorded_data()
    for i, layer in enumerate(layers):
        if layer is None:
            raise ValueError(f"router {i} recorded nothing: set RouterReplayAction.RECORD before")
    if not layers:
        raise ValueError("there are no routers with replay: set moe_enable_routing_replay")
    return np.stack([to_numpy(layer) for layer in layers], axis=1)


def per_layer(routed_experts: Any) -> list[npt.NDArray[np.int64]]:
    """[tokens, layers, top_k] as RouterReplay wants it: int64 [tokens, top_k] for each layer.

    Raises:
        ValueError: a token without a route: replay needs one for every token.
    """
    ids = require_integers(to_numpy(routed_experts), "routed_experts")
    missing = np.argwhere((ids < 0).any(axis=-1))
    if len(missing):
        token, layer = (int(index) for index in missing[0])
        raise ValueError(f"token {token}, layer {layer}: no route to replay")
    return [np.ascontiguousarray(ids[:, i], dtype=np.int64) for i in range(ids.shape[1])]


def set_replay(routed_experts: Any, router_replay: Any = None) -> None:
    """Hands routing to the routers of this pipeline stage, as tensors on the CPU.

    Args:
        routed_experts: [tokens, layers, top_k], layers in the order of the routers.
        router_replay: the class RouterReplay; None: Megatron-Core's.
    """
    target = router_replay if router_replay is not None else _router_replay()
    layers: Sequence[Any] = per_layer(routed_experts)
    if router_replay is None or is_torch(routed_experts):
        import torch  # type: ignore[import-not-found]  # Megatron-Core is there, so torch is

        layers = [torch.from_numpy(layer) for layer in layers]
    target.set_replay_data(layers)


def physical_routing_map(
    topk_ids: IntArray, plan: Plan, layer: LayerPlan, micro_batch: int, source_rank: int
) -> npt.NDArray[np.bool_]:
    """The routing map over physical experts, for the dispatcher's dispatch_preprocess.

    The dispatcher then sees P slots as its experts: rank r has slots r * P / ranks onwards, its
    home experts first, its replicas after them.

    Args:
        topk_ids: integers [tokens, top_k], logical.
        plan: read with get_plan(splits_of=source_rank).
        layer: one of plan.layers.
        micro_batch: index of the micro-batch.
        source_rank: this rank.

    Returns:
        bool [tokens, slots].
    """
    slots = physical_ids(topk_ids, plan, layer, micro_batch, source_rank)
    per_rank = len(layer.home_rank) // plan.num_ranks + plan.replica_slots
    routing_map = np.zeros((len(topk_ids), plan.num_ranks * per_rank), dtype=np.bool_)
    rows = np.broadcast_to(np.arange(len(topk_ids))[:, None], slots.shape)
    routing_map[rows[slots >= 0], slots[slots >= 0]] = True
    return routing_map
