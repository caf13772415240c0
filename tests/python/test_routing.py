"""Every form in which routing is recorded, and the traps that others fell into."""

import base64
import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from relibra import JobSpec, LayerAxis, Model, Topology, routing

# Two tokens, two layers, top 2; every encoding below is of this array.
IDS = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 0]]])


def job(experts=8, layers=(0, 1), **more):
    return JobSpec("job", Model(layers, experts, 2), Topology(1, 2), **more)


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


class FakeTensor:
    """What a torch tensor shows of itself."""

    def __init__(self, array, nested=False):
        self.array = array
        self.is_nested = nested

    @property
    def shape(self):
        return self.array.shape

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array

    def unbind(self):
        return [FakeTensor(row) for row in self.array]


FakeTensor.__name__ = FakeTensor.__qualname__ = "Tensor"
FakeTensor.__module__ = "torch"


class FakeDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


FORMS = {
    "numpy": IDS.astype(np.int16),
    "nested lists": IDS.tolist(),
    "torch": FakeTensor(IDS.astype(np.int32)),
    "dlpack": FakeDlpack(IDS.astype(np.int32)),
    "vllm npy, as worked out elsewhere": (
        "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIs"
        "IDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoBAgMEBQ"
        "YHAA=="
    ),
    "vllm npy uint16": base64.b64encode(npy(IDS.astype(np.uint16))).decode(),
    "vllm npy fortran order": npy(np.asfortranarray(IDS.astype(np.uint8))),
    "vllm npy big-endian": npy(IDS.astype(">i4")),
    "sglang": "AQAAAAIAAAADAAAABAAAAAUAAAAGAAAABwAAAAAAAAA=",
    "nemo-rl int8": "nrlre1:int8:2x2x2:AQIDBAUGBwA=",
    "nemo-rl int16": "nrlre1:int16:2x2x2:AQACAAMABAAFAAYABwAAAA==",
    "prime-rl": {"data": "AQIDBAUGBwA=", "shape": [2, 2, 2], "start": 0, "dtype": "uint8"},
    "prime-rl bytes": {"data": bytes([1, 2, 3, 4, 5, 6, 7, 0]), "shape": (2, 2, 2)},
    "prime-rl raw": bytes([1, 2, 3, 4, 5, 6, 7, 0]),
    "verl int16 seen as uint8": IDS.astype("<i2").view(np.uint8),
    "slime": IDS.astype(np.int32),
    "megatron": [IDS[:, 0].astype(np.int64), FakeTensor(IDS[:, 1].astype(np.int64))],
}


@pytest.mark.parametrize("form", FORMS, ids=lambda name: name.replace(" ", "-"))
def test_every_form_gives_the_same_ids(form):
    decoded = routing.decode(FORMS[form], job())
    np.testing.assert_array_equal(decoded.ids, IDS)
    routing.check(decoded.ids, job(), "s")


def test_sglang_text_takes_its_shape_from_the_caller():
    text = base64.b64encode(IDS.astype("<i4").tobytes()).decode()
    decoded = routing.decode(text, job(), shape=(1, 4, 2))
    assert decoded.ids.shape == (1, 4, 2)


def test_prime_rl_start_is_the_token_offset():
    form = {"data": "AQIDBAUGBwA=", "shape": [2, 2, 2], "start": 17, "dtype": "uint8"}
    assert routing.decode(form, job()).token_offset == 17


BROKEN = {
    "!!": "not base64",
    "nrlre2:int8:2x2x2:AQIDBAUGBwA=": "expected nrlre1:",
    "nrlre1:uint64:2x2x2:AQIDBAUGBwA=": "expected nrlre1:",
    "nrlre1:int8:3x2x2:AQIDBAUGBwA=": "8 bytes are not int8 of shape",
    base64.b64encode(b"\x93NUMPY\x01\x00").decode(): "broken .npy",
    base64.b64encode(b"123456789").decode(): "9 bytes are not rows",
}


@pytest.mark.parametrize(("form", "message"), BROKEN.items(), ids=range(len(BROKEN)))
def test_broken_text_is_refused_in_words(form, message):
    with pytest.raises(ValueError, match=message):
        routing.decode(form, job())


def test_a_pickled_npy_is_not_loaded():
    form = base64.b64encode(npy(np.array([object()]), allow_pickle=True)).decode()
    with pytest.raises(ValueError, match=r"broken \.npy"):
        routing.decode(form, job())


@pytest.mark.parametrize("form", [None, np.ones((1, 2, 2)), 7.5])
def test_what_is_no_routing_is_a_type_error(form):
    with pytest.raises(TypeError):
        routing.decode(form, job())


def test_a_mapping_without_shape_says_so():
    with pytest.raises(ValueError, match="no 'shape'"):
        routing.decode({"data": b""}, job())


def test_megatron_layers_of_unequal_tokens_are_refused():
    with pytest.raises(ValueError, match="layer 1 has shape"):
        routing.decode([IDS[:, 0], IDS[:1, 1]], job())


def test_ragged_lists_are_refused():
    with pytest.raises(ValueError):
        routing.decode([[[1, 2], [3, 4]], [[5, 6]]], job())


@given(st.binary(max_size=64))
def test_any_bytes_are_decoded_or_refused_but_never_crash(data):
    for form in (data, base64.b64encode(data).decode(), b"\x93NUMPY" + data):
        with contextlib.suppress(ValueError):
            assert routing.decode(form, job()).ids.ndim == 3


@given(
    arrays.arrays(
        st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64]),
        st.tuples(st.integers(0, 5), st.just(2), st.just(2)),
        elements=st.integers(0, 7),
    )
)
def test_wire_form_keeps_every_id(ids):
    wire = routing.for_wire(ids, job())
    assert wire.dtype == np.int8
    np.testing.assert_array_equal(wire, ids)


# --- traps ---------------------------------------------------------------------------------------


def test_a_physical_id_is_named_with_its_place_and_the_usual_cause():
    ids = IDS.copy()
    ids[1, 0, 1] = 9
    with pytest.raises(ValueError, match=r"sequence s, token 1, layer 0, slot 1: id 9.*physical"):
        routing.check(ids, job(), "s")


@pytest.mark.parametrize(
    ("dtype", "experts"), [(np.int8, 129), (np.uint8, 257), (np.int8, 256), (np.int16, 40_000)]
)
def test_a_dtype_too_small_for_the_experts_is_refused_even_if_all_ids_fit(dtype, experts):
    with pytest.raises(ValueError, match="may have wrapped around"):
        routing.check(IDS.astype(dtype), job(experts), "s")


@pytest.mark.parametrize(("dtype", "experts"), [(np.int8, 128), (np.uint8, 256)])
def test_a_dtype_that_just_holds_the_experts_is_taken(dtype, experts):
    routing.check(IDS.astype(dtype), job(experts), "s")


def test_a_job_with_an_id_type_too_small_is_refused():
    with pytest.raises(ValueError, match="int8 holds ids up to 127, but the model has 256"):
        job(256, id_type="int8")


def test_dense_layers_are_skipped_where_the_job_says_all_layers():
    spec = job(layers=(1, 3), layer_axis=LayerAxis.ALL_LAYERS, num_hidden_layers=4)
    ids = np.zeros((2, 4, 2), np.int32)
    ids[:, [1, 3]] = IDS
    ids[:, 0] = 99  # a dense layer's row may hold anything
    routing.check(ids, spec, "s")
    wire = routing.for_wire(ids, spec)
    np.testing.assert_array_equal(wire[:, [1, 3]], IDS)
    assert not wire[:, [0, 2]].any()


def test_another_layer_axis_is_named_with_the_setting_that_fits():
    moe_only = job(layers=(1, 3))
    with pytest.raises(ValueError, match=r"4 layers recorded, the job expects 2.*ALL_LAYERS"):
        routing.check(np.ones((2, 4, 2), int), moe_only, "s")
    all_layers = job(layers=(1, 3), layer_axis=LayerAxis.ALL_LAYERS, num_hidden_layers=4)
    with pytest.raises(ValueError, match=r"2 layers recorded, the job expects 4.*MOE_LAYERS"):
        routing.check(IDS, all_layers, "s")


def test_another_top_k_is_refused():
    with pytest.raises(ValueError, match="3 ids a token, the job expects top_k=2"):
        routing.check(np.ones((2, 2, 3), int), job(), "s")


def test_a_moe_layer_that_is_zero_throughout_is_refused():
    ids = IDS.copy()
    ids[:, 1] = 0
    with pytest.raises(ValueError, match="MoE layer 1 is zero throughout"):
        routing.check(ids, job(), "s")


def test_a_moe_layer_that_is_zero_only_at_first_is_taken():
    ids = np.tile(IDS, (10, 1, 1))
    ids[:15, 1] = 0
    routing.check(ids, job(), "s")


def test_with_top_1_a_layer_of_zeros_is_expert_0():
    spec = JobSpec("job", Model((0, 1), 8, 1), Topology(1, 2))
    routing.check(np.zeros((2, 2, 1), int), spec, "s")


def test_rows_without_a_route_stay_without_one():
    ids = IDS.copy()
    ids[0] = -7
    routing.check(ids, job(), "s")
    wire = routing.for_wire(ids, job())
    assert (wire[0] == -1).all()
    np.testing.assert_array_equal(wire[1], IDS[1])


def test_an_unsigned_id_type_cannot_say_that_a_route_is_missing():
    ids = IDS.copy()
    ids[0] = -1
    with pytest.raises(ValueError, match="uint8 cannot say -1"):
        routing.for_wire(ids, job(id_type="uint8"))


def test_all_pieces_of_a_job_travel_in_one_type():
    without, missing = IDS.astype(np.uint8), np.where(IDS == 7, 7, -1).astype(np.int64)
    assert routing.for_wire(without, job()).dtype == routing.for_wire(missing, job()).dtype


def padded(lengths, width=5):
    """verl's batch: prompts padded on the left, answers on the right, last rows zero."""
    batch = np.zeros((len(lengths), width, 2, 2), np.int16)
    mask = np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        mask[row, 1 : 1 + length] = 1
        batch[row, 1:length] = np.arange(1, 5).reshape(2, 2)
    return batch, mask


def test_the_placeholder_of_the_last_token_is_dropped_and_credits_no_expert():
    batch, mask = padded([4, 2])
    parts = routing.split_batch(batch, mask)
    assert [(len(ids), tokens) for ids, tokens in parts] == [(3, 4), (1, 2)]
    assert all(ids.all() for ids, _ in parts)


def test_a_recorded_last_row_is_kept():
    batch, mask = padded([4])
    batch[0, 4] = [[1, 2], [3, 4]]
    ((ids, tokens),) = routing.split_batch(batch, mask)
    assert (len(ids), tokens) == (4, 4)


def test_rows_that_no_engine_saw_are_missing_and_credit_no_expert():
    batch, mask = padded([4])
    batch[0, 2:4] = 0  # a tool's answer at the end: rows 1..4 are real, only the first is recorded
    ((ids, tokens),) = routing.split_batch(batch, mask)
    assert (len(ids), tokens) == (1, 4)
    batch[0, 4] = [[1, 2], [3, 4]]  # and the model goes on after it
    ((ids, tokens),) = routing.split_batch(batch.astype(np.uint8), mask)
    assert (len(ids), tokens) == (4, 4)
    assert (ids[1:3] == -1).all()
    assert ids[0].all() and ids[3].all()


def test_a_sequence_without_any_recorded_row_is_empty():
    ((ids, tokens),) = routing.split_batch(np.zeros((1, 3, 2, 2), int), np.ones((1, 3)))
    assert (len(ids), tokens) == (0, 3)


def test_a_row_of_zeros_with_top_1_must_be_explained():
    batch, mask = np.zeros((1, 3, 2, 1), np.int16), np.ones((1, 3))
    with pytest.raises(ValueError, match="say which"):
        routing.split_batch(batch, mask)
    assert len(routing.split_batch(batch, mask, last_row="placeholder")[0][0]) == 2
    assert len(routing.split_batch(batch, mask, last_row="recorded")[0][0]) == 3


def test_nested_batches_need_no_mask():
    nested = FakeTensor([IDS.astype(np.int16), IDS[:1].astype(np.int16)], nested=True)
    parts = routing.split_batch(nested, None)
    assert [(len(ids), tokens) for ids, tokens in parts] == [(2, 2), (1, 1)]


def test_a_padded_batch_without_mask_is_refused():
    batch, mask = padded([4])
    with pytest.raises(ValueError, match="needs one"):
        routing.split_batch(batch, None)
    with pytest.raises(ValueError, match="a mask of its first two axes"):
        routing.split_batch(batch, mask[:, :-1])
