"""SGLang's ``--init-expert-location`` JSON: exactly one key, ``physical_to_logical_map``, or
``logical_count`` for a placement that is yet to be planned.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from relibra.placements.placement import Placement, table_of


def _single_entry(text: str) -> tuple[str, object]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or len(content) != 1:
        raise ValueError(
            "expected an object with one key: physical_to_logical_map or logical_count"
        )
    ((key, value),) = content.items()
    return str(key), value


def read_sglang(
    text: str, *, num_gpus: int, num_experts: int | None = None, layer_ids: tuple[int, ...] = ()
) -> Placement:
    """Reads {"physical_to_logical_map": [[...], ...]}, a row for every hidden layer.

    Args:
        text: the JSON.
        num_gpus: GPUs that share the slots evenly.
        num_experts: E; None: the largest id + 1.
        layer_ids: the model's own numbers of the rows; default 0, 1, ...
    """
    key, value = _single_entry(text)
    if key == "logical_count":
        raise ValueError(
            "logical_count holds loads, not a placement: read it with read_sglang_counts and place "
            "it with relibra.eplb.rebalance_experts"
        )
    if key != "physical_to_logical_map":
        raise ValueError(f"unknown key {key!r}: expected physical_to_logical_map")
    table = table_of(value, key)
    if num_experts is None:
        num_experts = int(table.max(initial=-1)) + 1
    return Placement(table, num_experts, num_gpus, layer_ids)


def read_sglang_counts(text: str) -> npt.NDArray[np.int64]:
    """Reads {"logical_count": ...}, [layers, experts] or [steps, layers, experts].

    Returns:
        int64 [layers, experts], steps summed: the weight for relibra.eplb.rebalance_experts.
    """
    key, value = _single_entry(text)
    if key != "logical_count":
        raise ValueError(f"unknown key {key!r}: expected logical_count")
    try:
        counts = np.array(value)
    except ValueError:
        raise ValueError("logical_count: ragged lists") from None
    if counts.ndim not in (2, 3) or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(
            "logical_count: expected counts >= 0 as [layers, experts] or [steps, layers, experts]"
        )
    summed: npt.NDArray[np.int64] = counts.astype(np.int64)
    return summed.sum(axis=0) if summed.ndim == 3 else summed


def write_sglang(placement: Placement) -> str:
    """The JSON for --init-expert-location. SGLang wants a row for every hidden layer, so a
    placement of only the MoE layers must be widened first (widen_to_all_layers).
    """
    return json.dumps({"physical_to_logical_map": placement.physical_to_logical.tolist()}) + "\n"


def widen_to_all_layers(placement: Placement, num_hidden_layers: int) -> Placement:
    """Adds a row for every layer that has none: experts in turn over the slots, which dense layers
    ignore.
    """
    if max(placement.layer_ids) >= num_hidden_layers:
        raise ValueError(
            f"layer {max(placement.layer_ids)} is not among {num_hidden_layers} hidden layers"
        )
    row = np.arange(placement.num_slots, dtype=np.int64) % placement.num_experts
    table = np.tile(row, (num_hidden_layers, 1))
    table[list(placement.layer_ids)] = placement.physical_to_logical
    return Placement(table, placement.num_experts, placement.num_gpus)
