"""Placements in other systems' forms: known files, round trips, and refusals that say where."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra import placements
from relibra.placements import Placement

ROW = [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]
EXAMPLE = Placement(np.array([ROW]), num_experts=12, num_gpus=8)
WORKED = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text())


@st.composite
def any_placement(draw):
    experts, gpus = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    per_gpu = -(-experts // gpus) + draw(st.integers(0, 2))
    layers = draw(st.integers(1, 3))
    rows = []
    for _ in range(layers):
        extra = st.lists(
            st.integers(0, experts - 1),
            min_size=per_gpu * gpus - experts,
            max_size=per_gpu * gpus - experts,
        )
        rows.append(draw(st.permutations(list(range(experts)) + draw(extra))))
    ids = draw(st.lists(st.integers(0, 99), min_size=layers, max_size=layers, unique=True))
    return Placement(np.array(rows), experts, gpus, tuple(sorted(ids)))


@given(any_placement())
def test_every_form_comes_back_as_it_went(placement):
    p, e = placement, placement.num_experts
    facts = {"num_gpus": p.num_gpus, "layer_ids": p.layer_ids}
    assert placements.from_eplb(*placements.to_eplb(p), **facts) == p
    assert placements.read_sglang(placements.write_sglang(p), num_experts=e, **facts) == p
    yaml = placements.write_tensorrt_llm(p, layer_updates_per_iter=3)
    read = placements.read_tensorrt_llm(yaml, num_gpus=p.num_gpus, num_experts=e)
    assert (read.placement, read.layer_updates_per_iter) == (p, 3)
    assert placements.read_ascend(placements.write_ascend(p), num_experts=e) == p
    vllm = placements.read_vllm(placements.write_vllm(p, model="M"), num_gpus=p.num_gpus)
    np.testing.assert_array_equal(vllm.physical_to_logical, p.physical_to_logical)


@given(any_placement())
def test_tables_of_a_placement_agree_with_each_other(placement):
    inverse, count = placement.logical_to_physical, placement.replica_count
    for layer in range(placement.num_layers):
        for expert in range(placement.num_experts):
            slots = inverse[layer, expert]
            slots = slots[slots >= 0]
            assert len(slots) == count[layer, expert]
            assert (placement.physical_to_logical[layer, slots] == expert).all()


def test_the_published_triple_is_taken():
    case = WORKED["eplb"]["readme"]
    placement = placements.from_eplb(case["phy2log"], case["log2phy"], case["logcnt"], num_gpus=8)
    assert placement.num_experts == 12
    np.testing.assert_array_equal(placement.physical_to_logical, case["phy2log"])
    np.testing.assert_array_equal(placement.replica_count, case["logcnt"])
    assert placement.duplicates() == []


def test_tables_that_disagree_are_refused():
    physical, inverse, count = placements.to_eplb(EXAMPLE)
    with pytest.raises(ValueError, match="logical_replica_count does not agree"):
        placements.from_eplb(physical, inverse, count + 1, num_gpus=8)
    inverse[0, 0, 0] = 3
    with pytest.raises(ValueError, match="logical_to_physical_map does not agree"):
        placements.from_eplb(physical, inverse, count, num_gpus=8)


def test_duplicates_on_a_gpu_are_told():
    extreme = WORKED["eplb"]["extreme"]
    placement = placements.from_eplb(extreme["phy2log"], num_gpus=4)
    assert placement.duplicates() == [(0, 0, 0), (0, 2, 4), (0, 3, 5)]


def test_empty_slots_are_no_expert_and_no_duplicate():
    placement = Placement(np.array([[0, -1, -1, 1, 0, -1]]), num_experts=2, num_gpus=2)
    assert placement.replica_count.tolist() == [[2, 1]]
    assert placement.logical_to_physical.tolist() == [[[0, 4], [3, -1]]]
    assert placement.duplicates() == []
    with pytest.raises(ValueError, match="no empty slots"):
        placements.write_tensorrt_llm(placement)


WRONG_TABLES = [
    ([[0, 1, 2]], 3, 2, "3 slots do not divide evenly over 2 GPUs"),
    ([[0, 1, 3, 2]], 3, 2, "layer 0, slot 2: expected an expert in 0..2 or -1, got 3"),
    ([[0, 1, -2, 2]], 3, 2, "slot 2.*got -2"),
    ([[0, 1, 1, 0]], 3, 2, "layer 0: expert 2 is in no slot"),
    ([0, 1], 2, 2, "expected \\[layers, slots\\]"),
]


@pytest.mark.parametrize(("table", "experts", "gpus", "message"), WRONG_TABLES, ids=range(5))
def test_tables_that_are_no_placement_are_refused(table, experts, gpus, message):
    with pytest.raises(ValueError, match=message):
        Placement(np.array(table), experts, gpus)


def test_layer_ids_must_be_different_and_as_many_as_layers():
    for ids in ((1, 1), (1, 2, 3)):
        with pytest.raises(ValueError, match="expected 2 different numbers"):
            Placement(np.array([[0], [0]]), 1, 1, ids)


def test_sglang_json():
    text = json.dumps({"physical_to_logical_map": [ROW]})
    assert placements.read_sglang(text, num_gpus=8) == EXAMPLE
    assert json.loads(placements.write_sglang(EXAMPLE)) == json.loads(text)


def test_sglang_counts_are_loads_to_plan_from():
    one = json.dumps({"logical_count": [[1, 2], [3, 4]]})
    many = json.dumps({"logical_count": [[[1, 2], [3, 4]], [[10, 20], [30, 40]]]})
    assert placements.read_sglang_counts(one).tolist() == [[1, 2], [3, 4]]
    assert placements.read_sglang_counts(many).tolist() == [[11, 22], [33, 44]]
    with pytest.raises(ValueError, match="read_sglang_counts"):
        placements.read_sglang(one, num_gpus=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "one key"),
        ('{"physical_to_logical_map": [[0]], "more": 1}', "one key"),
        ('{"something": 1}', "unknown key 'something'"),
        ('{"physical_to_logical_map": []}', "expected a list of layers"),
        ('{"physical_to_logical_map": [[0, 1], [0]]}', r"map\[1\]: 1 slots, but layer 0 has 2"),
        ('{"physical_to_logical_map": [[0, 1.5]]}', r"map\[0\]\[1\]: expected an integer, got 1.5"),
        ('{"physical_to_logical_map": [[0, true]]}', "expected an integer"),
    ],
)
def test_broken_sglang_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        placements.read_sglang(text, num_gpus=1)


def test_dense_layers_get_a_row_for_sglang():
    moe = Placement(np.array([[1, 0], [1, 0]]), 2, 2, (1, 3))
    wide = placements.widen_to_all_layers(moe, 4)
    assert wide.physical_to_logical.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    with pytest.raises(ValueError, match="layer 3 is not among 3"):
        placements.widen_to_all_layers(moe, 3)


# As TensorRT-LLM's own generator writes it: keys in alphabetical order, each list on one line.
GENERATED = f"""initial_global_assignments:
  3: {ROW}
  4: {ROW}
layer_updates_per_iter: 0
num_slots: 16
"""
BY_HAND = f"""# a comment
num_slots: 16   # slots
ep_size: 8
initial_global_assignments:
    3: [{", ".join(map(str, ROW[:9]))},
        {", ".join(map(str, ROW[9:]))}]

    4:
{"".join(f"    - {e}" + chr(10) for e in ROW)}layer_updates_per_iter: 2
"""


@pytest.mark.parametrize(("text", "gpus"), [(GENERATED, 8), (BY_HAND, None)])
def test_tensorrt_llm_yaml(text, gpus):
    read = placements.read_tensorrt_llm(text, num_gpus=gpus)
    assert read.placement == Placement(np.array([ROW, ROW]), 12, 8, (3, 4))
    assert read.layer_updates_per_iter == (0 if gpus else 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GENERATED.replace("num_slots: 16", ""), "num_slots is missing"),
        (GENERATED.replace("16", "18"), "layer 3: 16 slots, num_slots says 18"),
        (GENERATED.replace("num_slots: 16", "num_slots: many"), "line 5: num_slots: expected a"),
        (GENERATED + "extra: 1\n", "line 6: unknown key 'extra'"),
        (GENERATED + "num_slots: 16\n", "line 6: num_slots stands twice"),
        (GENERATED.replace("  4:", "  3:"), "line 3: layer 3 stands twice"),
        (GENERATED.replace("  4:", "   4:"), "line 3: indented otherwise"),
        (GENERATED.replace("[5,", "[five,"), "line 2: expected a list of expert ids"),
        (GENERATED.replace("[5,", "[5.0,"), "line 2: expected a list"),
        (GENERATED.replace("]", ""), "expected a list of expert ids"),
        (GENERATED.replace("  3: ", "  three: "), "line 2: expected a layer's number"),
        ("num_slots: 16\n", "initial_global_assignments is missing"),
        ("num_slots 16\n", "line 1: expected a key"),
        ("", "num_slots is missing"),
    ],
)
def test_broken_tensorrt_llm_yaml_is_refused_with_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        placements.read_tensorrt_llm(text, num_gpus=8)


def test_tensorrt_llm_needs_to_know_the_gpus():
    with pytest.raises(ValueError, match="no ep_size"):
        placements.read_tensorrt_llm(GENERATED)


@given(st.text(alphabet="num_slots:16 -[],\n#initial_global_assignments03", max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        placements.read_tensorrt_llm(text, num_gpus=1)
    except ValueError as error:
        assert str(error)


def test_vllm_file_of_several_models():
    one = json.loads(placements.write_vllm(EXAMPLE, model="A"))
    one["model_maps"]["B"] = dict(one["model_maps"]["A"], model_class="B")
    text = json.dumps(one)
    assert placements.read_vllm(text, num_gpus=8, model="B") == EXAMPLE
    with pytest.raises(ValueError, match="name one of \\['A', 'B'\\]"):
        placements.read_vllm(text, num_gpus=8)
    with pytest.raises(ValueError, match="no 'C'"):
        placements.read_vllm(text, num_gpus=8, model="C")


def test_a_vllm_file_that_contradicts_itself_is_refused():
    content = json.loads(placements.write_vllm(EXAMPLE, model="A"))
    content["model_maps"]["A"]["num_redundant_experts"] = 5
    with pytest.raises(ValueError, match="num_redundant_experts: 5, but the map has 4"):
        placements.read_vllm(json.dumps(content), num_gpus=8)
    content["version"] = 1
    with pytest.raises(ValueError, match="version 1"):
        placements.read_vllm(json.dumps(content), num_gpus=8)


def test_ascend_json_as_documented():
    content = json.loads(placements.write_ascend(EXAMPLE))
    assert content["moe_layer_count"] == 1
    assert content["layer_list"][0]["device_list"][1] == {
        "device_id": 1,
        "device_expert": [5, 7],
    }
    # vLLM-Ascend's own example: one layer on two devices.
    devices = [[7, 2, 0, 3, 5], [6, 1, 4, 7, 2]]
    text = json.dumps(
        {
            "moe_layer_count": 1,
            "layer_list": [
                {
                    "layer_id": 0,
                    "device_count": 2,
                    "device_list": [
                        {"device_id": i, "device_expert": e} for i, e in enumerate(devices)
                    ],
                }
            ],
        }
    )
    placement = placements.read_ascend(text)
    assert placement.physical_to_logical.tolist() == [devices[0] + devices[1]]
    for broken, message in [
        (text.replace('"device_id": 1', '"device_id": 2'), "numbered from 0"),
        (text.replace("[7, 2, 0", "[7, 2, 0, 0"), "unequal numbers"),
        (text.replace('"moe_layer_count": 1', '"moe_layer_count": 2'), "layer_list has 1"),
        (text.replace("layer_list", "layers"), "expected layers of devices"),
    ]:
        with pytest.raises(ValueError, match=message):
            placements.read_ascend(broken)


@pytest.mark.parametrize("case", WORKED["vllm_preserve_intragpu_slots"])
def test_experts_that_stay_on_their_gpu_keep_their_slot(case):
    experts = 1 + max(case["old"])
    old, new = (Placement(np.array([case[key]]), experts, case["ranks"]) for key in ("old", "new"))
    assert placements.preserve_slots(new, old).physical_to_logical.tolist() == [case["expect"]]
