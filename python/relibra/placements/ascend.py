"""vLLM-Ascend's ``expert_map_path`` JSON, which verl's EPLB recipe also speaks."""

from __future__ import annotations

import json

from relibra.placements.placement import Placement, table_of


def write_ascend(placement: Placement) -> str:
    """The JSON: a list of layers, each a list of devices, each its experts in order of slots."""
    per_device = placement.num_slots // placement.num_gpus
    layers = []
    for layer, row in zip(placement.layer_ids, placement.physical_to_logical.tolist(), strict=True):
        devices = [
            {"device_id": d, "device_expert": row[d * per_device : (d + 1) * per_device]}
            for d in range(placement.num_gpus)
        ]
        layers.append(
            {"layer_id": layer, "device_count": placement.num_gpus, "device_list": devices}
        )
    return json.dumps({"moe_layer_count": placement.num_layers, "layer_list": layers}) + "\n"


def read_ascend(text: str, *, num_experts: int | None = None) -> Placement:
    """Reads the JSON; num_experts None: the largest id + 1."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    try:
        layers = content["layer_list"]
        ids = [int(layer["layer_id"]) for layer in layers]
        by_device = [
            [device["device_expert"] for device in layer["device_list"]] for layer in layers
        ]
        orders = [[device["device_id"] for device in layer["device_list"]] for layer in layers]
        counts = [layer["device_count"] for layer in layers]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"layer_list: expected layers of devices: {error!r}") from None
    if content.get("moe_layer_count") != len(layers):
        raise ValueError(
            f"moe_layer_count: {content.get('moe_layer_count')}, but layer_list has {len(layers)}"
        )
    for layer, (devices, order, count) in enumerate(zip(by_device, orders, counts, strict=True)):
        if order != list(range(len(devices))) or count != len(devices) != 0:
            raise ValueError(f"layer_list[{layer}]: expected {count} devices numbered from 0")
        if len(devices) != len(by_device[0]):
            raise ValueError(f"layer_list[{layer}]: {len(devices)} devices, unlike layer 0")
        if len({len(experts) for experts in devices}) != 1:
            raise ValueError(f"layer_list[{layer}]: devices with unequal numbers of experts")
    table = table_of(
        [[e for experts in devices for e in experts] for devices in by_device], "layer_list"
    )
    experts = int(table.max(initial=-1)) + 1 if num_experts is None else num_experts
    return Placement(table, experts, len(by_device[0]), tuple(ids))
