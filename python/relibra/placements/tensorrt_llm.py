"""TensorRT-LLM's load-balancer YAML (``moe_config.load_balancer``).

The format is three or four keys, so this reads and writes exactly those, without a YAML library:
comments, lists inline or one item a line; anything else is an error that names the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from relibra.placements.placement import Placement

_NUMBER_KEYS = ("num_slots", "layer_updates_per_iter", "ep_size")
_ASSIGNMENTS = "initial_global_assignments"
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_]+|[0-9]+):(?P<rest>.*)")
_ITEM = re.compile(r" *- +(?P<value>[0-9]+)")


@dataclass(frozen=True)
class LoadBalancerFile:
    """What the file says.

    Attributes:
        placement: a layer for every key of initial_global_assignments, ascending by the model's
            layer number.
        layer_updates_per_iter: layers that the engine rebalances in an iteration; 0: static.
    """

    placement: Placement
    layer_updates_per_iter: int = 0


def write_tensorrt_llm(placement: Placement, *, layer_updates_per_iter: int = 0) -> str:
    """The YAML; keys of layers are the placement's layer_ids, slots must all be filled."""
    if (placement.physical_to_logical < 0).any():
        raise ValueError("TensorRT-LLM has no empty slots, but the placement does")
    lines = [f"num_slots: {placement.num_slots}", f"{_ASSIGNMENTS}:"]
    for layer, row in sorted(
        zip(placement.layer_ids, placement.physical_to_logical.tolist(), strict=True)
    ):
        lines.append(f"  {layer}: [{', '.join(map(str, row))}]")
    lines.append(f"layer_updates_per_iter: {layer_updates_per_iter}")
    return "\n".join(lines) + "\n"


def read_tensorrt_llm(
    text: str, *, num_gpus: int | None = None, num_experts: int | None = None
) -> LoadBalancerFile:
    """Reads the YAML.

    Args:
        text: the file's content.
        num_gpus: EP size; None: the file's ep_size, an error when it has none.
        num_experts: E; None: the largest id + 1.
    """
    numbers, layers = _Reader(text).read()
    if "num_slots" not in numbers:
        raise ValueError("num_slots is missing")
    if not layers:
        raise ValueError(f"{_ASSIGNMENTS} is missing or empty: the engine makes its own placement")
    for layer, row in layers.items():
        if len(row) != numbers["num_slots"]:
            raise ValueError(
                f"{_ASSIGNMENTS}, layer {layer}: {len(row)} slots, num_slots says "
                f"{numbers['num_slots']}"
            )
    gpus = num_gpus if num_gpus is not None else numbers.get("ep_size")
    if gpus is None:
        raise ValueError("num_gpus: the file has no ep_size, so it must be given")
    ids = sorted(layers)
    table = np.array([layers[layer] for layer in ids], dtype=np.int64)
    experts = int(table.max(initial=-1)) + 1 if num_experts is None else num_experts
    placement = Placement(table, experts, gpus, tuple(ids))
    return LoadBalancerFile(placement, numbers.get("layer_updates_per_iter", 0))


class _Reader:
    """Line by line; says which line is wrong."""

    def __init__(self, text: str):
        self.lines = [
            (number, line)
            for number, raw in enumerate(text.splitlines(), 1)
            if (line := raw.split("#", 1)[0].rstrip()) and line != "---"
        ]
        self.at = 0

    def read(self) -> tuple[dict[str, int], dict[int, list[int]]]:
        numbers: dict[str, int] = {}
        layers: dict[int, list[int]] | None = None
        while self.at < len(self.lines):
            number, line = self.lines[self.at]
            match = _KEY.fullmatch(line)
            if match is None or match["indent"]:
                raise ValueError(f"line {number}: expected a key at the line's start, got {line!r}")
            self.at += 1
            key, rest = match["key"], match["rest"].strip()
            if key in numbers or (key == _ASSIGNMENTS and layers is not None):
                raise ValueError(f"line {number}: {key} stands twice")
            if key == _ASSIGNMENTS:
                if rest not in ("", "{}"):
                    raise ValueError(f"line {number}: expected a layer a line after {key}")
                layers = self.read_layers()
            elif key in _NUMBER_KEYS:
                if not re.fullmatch("[0-9]+", rest):
                    raise ValueError(f"line {number}: {key}: expected a number, got {rest!r}")
                numbers[key] = int(rest)
            else:
                known = ", ".join((*_NUMBER_KEYS, _ASSIGNMENTS))
                raise ValueError(f"line {number}: unknown key {key!r}, known are {known}")
        return numbers, layers or {}

    def read_layers(self) -> dict[int, list[int]]:
        layers: dict[int, list[int]] = {}
        indent: str | None = None
        while self.at < len(self.lines):
            number, line = self.lines[self.at]
            match = _KEY.fullmatch(line)
            if match is not None and not match["indent"]:
                break
            if match is None or not match["key"].isdigit():
                raise ValueError(f"line {number}: expected a layer's number, got {line!r}")
            if indent is None:
                indent = match["indent"]
            if match["indent"] != indent:
                raise ValueError(f"line {number}: indented otherwise than the layer above")
            self.at += 1
            layer = int(match["key"])
            if layer in layers:
                raise ValueError(f"line {number}: layer {layer} stands twice")
            layers[layer] = self.read_list(number, match["rest"].strip())
        return layers

    def read_list(self, number: int, rest: str) -> list[int]:
        if rest:
            while not rest.endswith("]") and self.at < len(self.lines):
                number, line = self.lines[self.at]
                rest += line
                self.at += 1
            if not re.fullmatch(r"\[ *[0-9]+( *, *[0-9]+)* *,? *\]", rest):
                raise ValueError(f"line {number}: expected a list of expert ids")
            return [int(expert) for expert in re.findall("[0-9]+", rest)]
        items: list[int] = []
        while self.at < len(self.lines) and (item := _ITEM.fullmatch(self.lines[self.at][1])):
            items.append(int(item["value"]))
            self.at += 1
        if not items:
            raise ValueError(f"line {number}: expected a list of expert ids")
        return items
