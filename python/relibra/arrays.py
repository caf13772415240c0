"""Arrays of other frameworks as NumPy arrays, without importing the frameworks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


def is_torch(value: object) -> bool:
    """Whether value is a torch tensor (or of a subclass). Never imports torch."""
    return any(
        base.__module__.partition(".")[0] == "torch" and base.__name__ == "Tensor"
        for base in type(value).__mro__
    )


def to_numpy(value: Any) -> Array:
    """The array behind value: NumPy, torch (any device), DLPack, buffers, nested lists.

    Shares memory where the source allows it. Raises ValueError for ragged lists.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_torch(value):
        tensor = value.detach().cpu()
        if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":  # NumPy has no such type
            tensor = tensor.float()
        array: Array = tensor.numpy()
        return array
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def unbind_nested(value: Any) -> list[Any] | None:
    """The rows of a nested (jagged) torch tensor, or None when value is not one."""
    if is_torch(value) and getattr(value, "is_nested", False):
        return list(value.unbind())
    return None


def like(template: object, array: Array) -> Any:
    """`array` as what `template` is: a torch tensor for a torch tensor, else itself."""
    if not is_torch(template):
        return array
    torch = sys.modules["torch"]  # loaded, or there would be no tensor
    return torch.from_numpy(array)


def require_integers(array: Array, name: str) -> Array:
    """The array itself; TypeError naming `name` unless it holds integers."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return array
