"""Expert placement from past loads: a drop-in for DeepSeek's ``eplb.rebalance_experts``.

    import relibra.eplb as eplb

    phy2log, log2phy, logcnt = eplb.rebalance_experts(weight, 288, 8, 4, 32)

The fullest GPU is never above that of the published algorithm, mostly below. No GPU holds an expert
twice, unless it has more slots than its node has experts, or every placement found without is worse
than the published one. The same input gives the same placement on every machine, whether the
compiled library is there (`is_native`) or the NumPy twin of it does the work, some fifty times
slower.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relibra import _static_placement
from relibra.arrays import IntArray, like, to_numpy

__all__ = ["is_native", "rebalance_experts"]

_ABI_VERSION = 1
_LIBRARY = "librelibra_eplb.so"


def rebalance_experts(
    weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> tuple[Any, Any, Any]:
    """Places the replicas of every layer's experts on GPUs.

    Args:
        weight: [layers, num_logical_experts], the load of each expert, finite and >= 0. A NumPy
            array, a torch tensor or nested lists.
        num_replicas: physical experts (slots) of a layer; a multiple of num_gpus.
        num_groups: groups of experts that stay in one node each. When num_nodes does not divide it,
            groups and nodes are ignored and the GPUs are one pool.
        num_nodes: server nodes.
        num_gpus: GPUs; a multiple of num_nodes.

    Returns:
        physical_to_logical_map [layers, num_replicas], logical_to_physical_map
        [layers, num_logical_experts, X] padded by -1 and expert_count [layers,
        num_logical_experts], all int64; torch tensors when weight is one.

    Raises:
        ValueError: the numbers do not divide, or a load is negative or not finite.
    """
    loads = np.ascontiguousarray(to_numpy(weight), dtype=np.float64)
    if loads.ndim != 2:
        raise ValueError(f"weight: expected [layers, experts], got shape {loads.shape}")
    shape = (num_replicas, num_groups, num_nodes, num_gpus)
    names = ("num_replicas", "num_groups", "num_nodes", "num_gpus")
    for name, number in zip(names, shape, strict=True):
        if not 1 <= number < 2**31:
            raise ValueError(f"{name}: expected >= 1, got {number}")
    library = _library()
    placed = _place_native(library, loads, shape) if library else _place_numpy(loads, shape)
    first, second, third = (like(weight, array) for array in placed)
    return first, second, third


def is_native() -> bool:
    """Whether the compiled library is there."""
    return _library() is not None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    named = os.environ.get("RELIBRA_EPLB_LIBRARY")
    package = Path(__file__).resolve().parent
    built = package.parent.parent / "build" / "release" / "lib" / _LIBRARY
    candidates = [Path(named)] if named is not None else [package / _LIBRARY, built]
    for path in candidates:
        if path.is_file():
            try:
                library = ctypes.CDLL(str(path))
            except OSError:  # built for another machine
                continue
            if library.relibra_eplb_abi_version() == _ABI_VERSION:
                library.relibra_eplb_place.restype = ctypes.c_int64
                library.relibra_eplb_invert.restype = None
                return library
    return None


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _place_native(
    library: ctypes.CDLL, loads: npt.NDArray[np.float64], shape: tuple[int, int, int, int]
) -> tuple[IntArray, IntArray, IntArray]:
    layers, experts = loads.shape
    physical, groups, nodes, gpus = (int(number) for number in shape)
    physical_to_logical = np.empty((layers, physical), dtype=np.int64)
    count = np.empty((layers, experts), dtype=np.int64)
    error = ctypes.create_string_buffer(512)
    most: int = library.relibra_eplb_place(
        _pointer(loads),
        *(layers, experts, physical, groups, nodes, gpus),
        _pointer(physical_to_logical),
        _pointer(count),
        error,
        ctypes.c_size_t(len(error)),
    )
    if most < 0:
        raise ValueError(error.value.decode())
    logical_to_physical = np.empty((layers, experts, most), dtype=np.int64)
    library.relibra_eplb_invert(
        _pointer(physical_to_logical),
        *(layers, experts, physical),
        ctypes.c_int64(most),
        _pointer(logical_to_physical),
    )
    return physical_to_logical, logical_to_physical, count


def _place_numpy(
    loads: npt.NDArray[np.float64], shape: tuple[int, int, int, int]
) -> tuple[IntArray, IntArray, IntArray]:
    layers, experts = loads.shape
    physical_to_logical = np.empty((layers, shape[0]), dtype=np.int64)
    count = np.empty((layers, experts), dtype=np.int64)
    placer = _static_placement.StaticPlacer(experts, *(int(number) for number in shape))
    for layer in range(layers):
        try:
            physical_to_logical[layer], count[layer] = placer.place(loads[layer].tolist())
        except ValueError as error:
            raise ValueError(f"layer {layer}, {error}") from None
    return physical_to_logical, invert(physical_to_logical, count), count


def invert(physical_to_logical: IntArray, count: IntArray) -> IntArray:
    """The slots of each expert, ascending: [layers, experts, X] padded by -1.

    Args:
        physical_to_logical: [layers, physical].
        count: [layers, experts], how often each expert occurs there.
    """
    layers, physical = physical_to_logical.shape
    most = int(count.max()) if count.size else 1
    inverse = np.full((*count.shape, most), -1, dtype=np.int64)
    slots = np.argsort(physical_to_logical, axis=1, kind="stable")
    experts = np.take_along_axis(physical_to_logical, slots, axis=1)
    first = np.cumsum(count, axis=1) - count
    replica = np.arange(physical) - np.take_along_axis(first, experts, axis=1)
    inverse[np.arange(layers)[:, None], experts, replica] = slots
    return inverse
