"""Recorded routing in every form that rollout engines and trainers hand over.

`decode` takes any of them and gives ids [tokens, layers, top_k]; `check` compares them with the job
and names what does not fit; both leave ids as they are: nothing is filled in, nothing is dropped.

| source | what `decode` takes |
|---|---|
| vLLM | the NumPy array, or the base64 text of its ``.npy`` file |
| SGLang | the base64 text of raw int32, with `shape` or the job's layers and top_k |
| NeMo-RL | ``"nrlre1:<dtype>:<S>x<L>x<K>:<base64>"`` |
| prime-rl, Dynamo | ``{"data": ..., "shape": ..., "start": ..., "dtype": ...}``, raw uint8 bytes |
| verl | one sequence's array; whole batches go through `split_batch` |
| slime | the sample's array |
| Megatron-Core | a list of arrays [tokens, top_k], one a layer |
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from relibra.arrays import Array, require_integers, to_numpy, unbind_nested
from relibra.job import ID_TYPES, JobSpec

_NPY_MAGIC = b"\x93NUMPY"
_NEMO_RL = re.compile(
    r"nrlre1:(?P<dtype>int8|int16|int32):(?P<S>\d+)x(?P<L>\d+)x(?P<K>\d+):(?P<data>[A-Za-z0-9+/=]*)"
)

LastRow = Literal["auto", "placeholder", "recorded"]


@dataclass(frozen=True)
class Routing:
    """One piece of a sequence's routing.

    Attributes:
        ids: integers [tokens, layers, top_k]; below zero: no recorded route.
        token_offset: position in the sequence of the first row, or None when the form does not say.
    """

    ids: Array
    token_offset: int | None = None


def decode(
    routed_experts: Any,
    job: JobSpec,
    *,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Routing:
    """Ids [tokens, layers, top_k] of any form in this module's table.

    Args:
        routed_experts: the routing of one piece of one sequence.
        job: says layers and top_k where the form does not.
        shape: of raw bytes and of SGLang's text; None: any number of tokens of the job's layers
            and top_k.
        dtype: NumPy name of the ids in raw bytes; None: uint8, and int32 in SGLang's text.

    Raises:
        ValueError: the form is broken; the text says where.
        TypeError: not integers, or no known form.
    """
    if isinstance(routed_experts, str):
        return _decode_text(routed_experts, job, shape, dtype)
    if isinstance(routed_experts, (bytes, bytearray, memoryview)):
        data = bytes(routed_experts)
        if data.startswith(_NPY_MAGIC):
            return Routing(_checked_rank(_load_npy(data)))
        return Routing(_from_raw(data, job, shape, dtype or "uint8"))
    if isinstance(routed_experts, Mapping):
        return _decode_mapping(routed_experts, job)
    if (
        isinstance(routed_experts, (list, tuple))
        and routed_experts
        and all(hasattr(layer, "shape") for layer in routed_experts)
    ):
        return Routing(_stack_layers(routed_experts))
    if routed_experts is None:
        raise TypeError("routed_experts: None; the engine recorded nothing for this sequence")
    return Routing(_checked_rank(_from_array(routed_experts, job)))


def _from_array(value: Any, job: JobSpec) -> Array:
    try:
        array = require_integers(to_numpy(value), "routed_experts")
    except ValueError as error:
        raise ValueError(f"routed_experts: {error}") from None
    width = array.shape[-1] if array.ndim else 0
    # int16 and int32 travel as views of bytes where NCCL knows no such type.
    if array.dtype == np.uint8 and width in (2 * job.model.top_k, 4 * job.model.top_k):
        itemsize = width // job.model.top_k
        array = np.ascontiguousarray(array).view(f"<i{itemsize}")
    return array


def _checked_rank(array: Array) -> Array:
    if array.ndim != 3:
        raise ValueError(
            f"routed_experts: expected [tokens, layers, top_k], got shape {array.shape}"
        )
    return require_integers(array, "routed_experts")


def _decode_text(
    text: str, job: JobSpec, shape: Sequence[int] | None, dtype: str | None
) -> Routing:
    if text.startswith("nrlre"):
        match = _NEMO_RL.fullmatch(text)
        if match is None:
            raise ValueError(
                "routed_experts: expected nrlre1:<int8|int16|int32>:<S>x<L>x<K>:<base64>, got "
                f"{text[:40]!r}"
            )
        own_shape = (int(match["S"]), int(match["L"]), int(match["K"]))
        return Routing(_from_raw(_from_base64(match["data"]), job, own_shape, match["dtype"]))
    data = _from_base64(text)
    if data.startswith(_NPY_MAGIC):
        return Routing(_checked_rank(_load_npy(data)))
    return Routing(_from_raw(data, job, shape, dtype or "int32"))


def _decode_mapping(value: Mapping[Any, Any], job: JobSpec) -> Routing:
    missing = [key for key in ("data", "shape") if key not in value]
    if missing:
        raise ValueError(f"routed_experts: the mapping has no {missing[0]!r}")
    data = value["data"]
    if isinstance(data, str):
        data = _from_base64(data)
    ids = _from_raw(bytes(data), job, value["shape"], str(value.get("dtype", "uint8")))
    start = value.get("start")
    return Routing(ids, None if start is None else int(start))


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"routed_experts: not base64: {error}") from None


def _load_npy(data: bytes) -> Array:
    try:
        return cast(Array, np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise ValueError(f"routed_experts: broken .npy: {error}") from None


def _from_raw(data: bytes, job: JobSpec, shape: Sequence[int] | None, dtype: str) -> Array:
    if dtype not in ID_TYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(ID_TYPES)}")
    kind = np.dtype(dtype).newbyteorder("<")
    if shape is None:
        row = job.num_recorded_layers * job.model.top_k * kind.itemsize
        if len(data) % row:
            raise ValueError(
                f"routed_experts: {len(data)} bytes are not rows of {job.num_recorded_layers} "
                f"layers x {job.model.top_k} ids of {dtype} ({row} bytes)"
            )
        shape = (len(data) // row, job.num_recorded_layers, job.model.top_k)
    shape = tuple(int(size) for size in shape)
    expected = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(shape) != 3 or min(shape) < 0 or len(data) != expected:
        raise ValueError(
            f"routed_experts: {len(data)} bytes are not {dtype} of shape {list(shape)}, which "
            f"takes {expected}"
        )
    return np.frombuffer(data, dtype=kind).reshape(shape)


def _stack_layers(layers: Sequence[Any]) -> Array:
    arrays = [require_integers(to_numpy(layer), f"layer {i}") for i, layer in enumerate(layers)]
    for i, array in enumerate(arrays):
        if array.ndim != 2 or array.shape != arrays[0].shape:
            raise ValueError(
                f"routed_experts: layer {i} has shape {array.shape}, layer 0 {arrays[0].shape}; "
                "expected [tokens, top_k] for every layer"
            )
    return np.stack(arrays, axis=1)


def check(ids: Array, job: JobSpec, sequence_id: str) -> None:
    """Refuses ids that do not fit the job, naming sequence, token, layer and slot.

    Args:
        ids: [tokens, layers, top_k].
        job: what they must fit.
        sequence_id: for the message.

    Raises:
        ValueError: another layer axis or top_k; a dtype in which ids may have wrapped around; an id
            that is no logical expert; a MoE layer that is zero throughout.
    """
    _check_axes(ids, job, sequence_id)
    experts = job.model.num_experts
    most = np.iinfo(ids.dtype).max
    if most < experts - 1:
        raise ValueError(
            f"sequence {sequence_id}: {ids.dtype} holds ids up to {most}, but the model has "
            f"{experts} experts: ids may have wrapped around"
        )
    if ids.size == 0:
        return
    moe = ids
    layers = job.recorded_moe_layers
    if len(layers) != ids.shape[1]:
        moe = ids[:, list(layers)]
    if int(moe.max()) >= experts:
        token, layer, slot = (int(index) for index in np.argwhere(moe >= experts)[0])
        raise ValueError(
            f"sequence {sequence_id}, token {token}, layer {job.model.moe_layer_ids[layer]}, slot "
            f"{slot}: id {moe[token, layer, slot]} of {experts} logical experts; a physical id "
            "after EPLB is the usual cause"
        )
    if job.model.top_k > 1:
        # A few rows clear nearly every layer of suspicion, and reading all rows takes longer.
        suspects = np.flatnonzero(~moe[:8].any(axis=(0, 2)))
        zero = [layer for layer in suspects.tolist() if not moe[:, layer].any()]
        if zero:
            raise ValueError(
                f"sequence {sequence_id}: MoE layer {job.model.moe_layer_ids[zero[0]]} is "
                "zero throughout: a dense layer's row, a pipeline stage that was not gathered, or "
                "rows filled with zeros that were never recorded"
            )


def _check_axes(ids: Array, job: JobSpec, sequence_id: str) -> None:
    tokens, layers, top_k = ids.shape
    moe, hidden = len(job.model.moe_layer_ids), job.num_hidden_layers
    if layers != job.num_recorded_layers:
        hint = ""
        if layers == moe:
            hint = "; that is the number of MoE layers: set layer_axis=LayerAxis.MOE_LAYERS"
        elif layers == hidden or (layers > moe and not hidden):
            hint = (
                "; if it has a row for every hidden layer, set layer_axis=LayerAxis.ALL_LAYERS "
                f"and num_hidden_layers={layers}"
            )
        raise ValueError(
            f"sequence {sequence_id}: {layers} layers recorded, the job expects "
            f"{job.num_recorded_layers} ({job.layer_axis.name}){hint}"
        )
    if top_k != job.model.top_k:
        raise ValueError(
            f"sequence {sequence_id}: {top_k} ids a token, the job expects top_k={job.model.top_k}"
        )


def for_wire(ids: Array, job: JobSpec) -> Array:
    """The same ids, little-endian, in the one type in which all of the job's records travel.

    That is the job's id_type, else the smallest signed type that holds its experts: the planner
    compares pieces of a sequence that overlap, so all must be of one type, and any may have rows
    without a route. A job of 129 to 256 experts whose engine leaves no gaps halves its traffic with
    id_type="uint8".

    Args:
        ids: [tokens, layers, top_k], checked; what stands in dense layers' rows becomes 0, and
            anything below zero -1.
        job: says which type, and which rows are dense layers'.
    """
    layers = job.recorded_moe_layers
    if len(layers) != ids.shape[1]:
        narrowed = np.zeros_like(ids)
        narrowed[:, list(layers)] = ids[:, list(layers)]
        ids = narrowed
    name = job.id_type or next(
        kind
        for kind in ("int8", "int16", "int32")
        if np.iinfo(kind).max >= job.model.num_experts - 1
    )
    if ids.size > 0 and ids.dtype.kind == "i" and int(ids.min()) < 0:
        if name.startswith("u"):
            raise ValueError(f"id_type: {name} cannot say -1, which rows without a route need")
        ids = np.maximum(ids, -1)
    return np.ascontiguousarray(ids, dtype=np.dtype(name).newbyteorder("<"))


def split_batch(
    routed_experts: Any,
    attention_mask: Any,
    *,
    last_row: LastRow = "auto",
) -> list[tuple[Array, int]]:
    """The sequences of a padded or nested batch, as verl keeps it.

    Args:
        routed_experts: integers [batch, tokens, layers, top_k], padded on either side, or a nested
            (jagged) tensor, or a list of arrays [tokens, layers, top_k].
        attention_mask: [batch, tokens], true where a token is real; None for nested batches.
        last_row: the row of a sequence's last token. "placeholder": never recorded, drop it;
            "recorded": keep it (a trainer's own recording, R2); "auto": every row that is zero
            throughout was never recorded (the last one, a turn that no engine saw), see
            zeros_as_unrouted. With top_k 1 zeros are expert 0 or nothing, so "auto" then raises
            ValueError when the last row is zero.

    Returns:
        For each sequence its rows [tokens or fewer, layers, top_k] and its count of tokens.
    """
    rows = unbind_nested(routed_experts)
    if rows is None and isinstance(routed_experts, (list, tuple)):
        rows = list(routed_experts)
    if rows is not None:
        sequences = [to_numpy(row) for row in rows]
    else:
        batch = to_numpy(routed_experts)
        if attention_mask is None:
            raise ValueError("attention_mask: a padded batch needs one")
        mask = to_numpy(attention_mask).astype(bool)
        if batch.ndim != 4 or mask.shape != batch.shape[:2]:
            raise ValueError(
                "routed_experts: expected [batch, tokens, layers, top_k] and a mask of its first "
                f"two axes, got {batch.shape} and {mask.shape}"
            )
        sequences = [batch[i][mask[i]] for i in range(len(batch))]
    return [(_without_placeholders(ids, last_row), len(ids)) for ids in sequences]


def _without_placeholders(ids: Array, last_row: LastRow) -> Array:
    if len(ids) == 0 or last_row == "recorded":
        return ids
    if last_row == "placeholder":
        return ids[:-1]
    if ids.shape[-1] == 1:
        if ids[-1].any():
            return ids
        raise ValueError(
            "last_row: with top_k 1 a last row of zeros can be expert 0 or a placeholder; say "
            "which"
        )
    return zeros_as_unrouted(ids)


def zeros_as_unrouted(ids: Array) -> Array:
    """Takes rows that are zero throughout for what they are: never recorded.

    No recorded row is so: it would route a token to expert 0 more than once in every layer.

    Args:
        ids: [tokens, layers, top_k] with top_k above 1.

    Returns:
        The ids without such rows at the end, and with -1 in those before.
    """
    recorded = ids.any(axis=(1, 2))
    rows = int(np.flatnonzero(recorded)[-1]) + 1 if recorded.any() else 0
    ids, recorded = ids[:rows], recorded[:rows]
    if recorded.all():
        return ids
    signed = ids.astype(np.promote_types(ids.dtype, np.int8))
    signed[~recorded] = -1
    return signed
