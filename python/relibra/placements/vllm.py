"""Placements for vLLM: its table in memory, and the JSON that vLLM's offline-EPLB plug-ins read
(``vllm_offline_eplb_physical_to_logical_by_model``, version 2). vLLM itself has no file.
"""

from __future__ import annotations

import json

import numpy as np

from relibra.arrays import IntArray
from relibra.placements.placement import Placement, table_of

_FORMAT = "vllm_offline_eplb_physical_to_logical_by_model"
_VERSION = 2


def read_vllm(text: str, *, num_gpus: int, model: str | None = None) -> Placement:
    """Reads one model's map.

    Args:
        text: the JSON.
        num_gpus: GPUs (EP ranks) that share the slots evenly.
        model: the key in model_maps, e.g. "DeepseekV3ForCausalLM"; None: the only one.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    if content.get("format") != _FORMAT or content.get("version") != _VERSION:
        raise ValueError(
            f"expected format {_FORMAT!r} version {_VERSION}, got {content.get('format')!r} "
            f"version {content.get('version')!r}"
        )
    maps = content.get("model_maps")
    if not isinstance(maps, dict) or not maps:
        raise ValueError("model_maps: expected an object with a map for each model")
    if model is None:
        if len(maps) > 1:
            raise ValueError(f"model_maps: several models, name one of {sorted(maps)}")
        model = next(iter(maps))
    if model not in maps:
        raise ValueError(f"model_maps: no {model!r} among {sorted(maps)}")
    entry = maps[model]
    where = f"model_maps.{model}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object")
    table = table_of(entry.get("physical_to_logical_map"), f"{where}.physical_to_logical_map")
    experts = entry.get("num_logical_experts", int(table.max(initial=-1)) + 1)
    facts = {
        "num_moe_layers": table.shape[0],
        "num_physical_experts": table.shape[1],
        "num_redundant_experts": table.shape[1] - experts,
    }
    for name, fact in facts.items():
        if name in entry and entry[name] != fact:
            raise ValueError(f"{where}.{name}: {entry[name]}, but the map has {fact}")
    return Placement(table, experts, num_gpus)


def write_vllm(placement: Placement, *, model: str, model_name: str = "") -> str:
    """The JSON of one model; `model` is its class, `model_name` what it was served as."""
    entry = {
        "record_kind": "proposal",
        "model_name": model_name or model,
        "model_class": model,
        "num_moe_layers": placement.num_layers,
        "num_logical_experts": placement.num_experts,
        "num_physical_experts": placement.num_slots,
        "num_redundant_experts": placement.num_slots - placement.num_experts,
        "physical_to_logical_map": placement.physical_to_logical.tolist(),
    }
    content = {"version": _VERSION, "format": _FORMAT, "model_maps": {model: entry}}
    return json.dumps(content) + "\n"


def preserve_slots(new: Placement, old: Placement) -> Placement:
    """`new` with the slots of each GPU reordered so that an expert that stays on its GPU stays in
    its slot, which vLLM then does not copy. Slots without such an expert take the rest in order.
    """
    if new.physical_to_logical.shape != old.physical_to_logical.shape or (
        new.num_gpus != old.num_gpus
    ):
        raise ValueError("the placements have different shapes")
    table: IntArray = np.empty_like(new.physical_to_logical)
    per_gpu = new.num_slots // new.num_gpus
    for layer in range(new.num_layers):
        for first in range(0, new.num_slots, per_gpu):
            here = slice(first, first + per_gpu)
            left = new.physical_to_logical[layer, here].tolist()
            kept: list[int | None] = []
            for expert in old.physical_to_logical[layer, here].tolist():
                stays = expert in left
                kept.append(expert if stays else None)
                if stays:
                    left.remove(expert)
            rest = iter(left)
            table[layer, here] = [next(rest) if expert is None else expert for expert in kept]
    return Placement(table, new.num_experts, new.num_gpus, new.layer_ids)
