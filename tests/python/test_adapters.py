"""Adapters, on the documented forms of each framework's data."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from relibra import Composition, JobSpec, LayerAxis, Model, Plan, Planner, Topology
from relibra.adapters import megatron, nemo_rl, prime_rl, slime, verl
from relibra.dispatch import computed_tokens, physical_ids
from test_client import PLAN, updates

IDS = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 0]], [[2, 1], [4, 3]]])


# --- verl ----------------------------------------------------------------------------------------


def verl_batch(container=dict):
    routed = np.zeros((2, 5, 2, 2), np.int16)
    mask = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    routed[0, 1:4] = IDS
    routed[1, 0:2] = IDS[:2]
    return {"routed_experts": routed, "attention_mask": mask}, {"uid": np.array(["p", "p"])}


def test_verl_rows_become_sequences_of_their_prompt(fake_planner, planner):
    tensors, columns = verl_batch()
    names = verl.add_batch(planner, {**tensors, **columns}, step=3)
    planner.flush()
    assert names == ["p/0", "p/1"]
    np.testing.assert_array_equal(fake_planner.ids(3, "p/0"), IDS)
    np.testing.assert_array_equal(fake_planner.ids(3, "p/1"), IDS[:2])
    record = fake_planner.records[3, "p/1", 0]
    assert (record.sequence_tokens, record.prompt_group) == (3, "p")


def test_verl_data_proto_is_read_like_a_mapping(fake_planner, planner):
    tensors, columns = verl_batch()
    batch = SimpleNamespace(batch=tensors, non_tensor_batch=columns)
    assert verl.add_batch(planner, batch, step=3) == ["p/0", "p/1"]


def test_verl_rows_without_uid_are_numbered(planner):
    tensors, _ = verl_batch()
    assert verl.add_batch(planner, tensors, step=3) == ["row/0", "row/1"]


def test_verl_without_routing_says_what_to_set(planner):
    with pytest.raises(ValueError, match="router_replay.mode"):
        verl.add_batch(planner, {"attention_mask": np.ones((1, 2))}, step=3)


def test_verl_micro_batches_there_and_back():
    names = ["a", "b", "c", "d"]
    rows = [[[0, 3], [1]], [[2], []]]
    composition = verl.composition(rows, [names, names])
    assert composition == verl.composition([[[0, 2], [1]], [[0], []]], [["a", "b", "d"], ["c"]])
    assert [s.sequence_id for s in composition.micro_batch(0)] == ["a", "d", "c"]
    assert verl.micro_batch_rows(composition, names) == rows


# --- slime ---------------------------------------------------------------------------------------


def slime_samples(count, spec):
    wide = np.zeros((3, spec.num_hidden_layers, 2), np.int32)
    wide[:, list(spec.model.moe_layer_ids)] = IDS
    return [
        SimpleNamespace(index=i, group_index=i // 2, tokens=[0] * 4, rollout_routed_experts=wide)
        for i in range(count)
    ]


@pytest.fixture
def slime_spec():
    return JobSpec("slime", Model((1, 2), 8, 2), Topology(1, 2), (), LayerAxis.ALL_LAYERS, "", 3)


def test_slime_samples_have_all_layers_and_no_last_row(fake_planner, slime_spec):
    samples = slime_samples(4, slime_spec)
    with Planner(fake_planner.address, slime_spec) as planner:
        names = slime.add_samples(planner, samples, step=1)
    assert names == ["0/0", "1/1", "2/2", "3/3"]
    record = fake_planner.records[1, "3/3", 0]
    assert (record.sequence_tokens, record.ids.num_tokens, record.prompt_group) == (4, 3, "1")
    np.testing.assert_array_equal(fake_planner.ids(1, "3/3")[:, 1:], IDS)


def test_slime_without_routing_says_which_flag(fake_planner, slime_spec):
    samples = slime_samples(1, slime_spec)
    samples[0].rollout_routed_experts = None
    with (
        Planner(fake_planner.address, slime_spec) as planner,
        pytest.raises(ValueError, match="--use-rollout-routing-replay"),
    ):
        slime.add_samples(planner, samples, step=1)


def test_slime_schedule_gives_a_composition_a_step():
    # The documented lengths [1000,400,900,300,700,200,600,500] with a cap of 1500 on two ranks,
    # as build_dp_schedule deals them out in one step, then a second step of one sample a rank.
    partitions = [[0, 1, 4, 6, 8], [2, 3, 5, 7, 9]]
    indices = [[[0, 1], [2, 3], [4]], [[0, 1, 2], [3], [4]]]
    samples = [SimpleNamespace(index=i) for i in range(10)]
    first, second = slime.compositions(
        samples, (partitions, indices, [2, 1], [8, 2]), padding_rows={"7/7": 12}
    )
    assert first.num_micro_batches == 2
    where = {s.sequence_id: (s.source_rank, s.micro_batch, s.padding_rows) for s in first.sequences}
    assert where["0/0"] == (0, 0, 0)
    assert where["6/6"] == (0, 1, 0)
    assert where["5/5"] == (1, 0, 0)
    assert where["7/7"] == (1, 1, 12)
    assert len(where) == 8
    assert [s.sequence_id for s in second.sequences] == ["8/8", "9/9"]


# --- NeMo-RL -------------------------------------------------------------------------------------


def envelope(ids):
    data = base64.b64encode(ids.astype(np.int8).tobytes()).decode()
    return f"nrlre1:int8:{'x'.join(map(str, ids.shape))}:{data}"


def test_nemo_rl_turns_add_up_to_one_sequence(fake_planner, planner):
    ids = np.tile(IDS, (2, 1, 1))
    for tokens in (4, 6):
        routed = ids[:tokens].copy()
        routed[-1] = -1
        message = {
            "prompt_token_ids": [0] * (tokens - 2),
            "generation_token_ids": [0] * 2,
            "routed_experts": envelope(routed),
        }
        assert nemo_rl.add_message(planner, "task", message, step=2)
    planner.flush()
    np.testing.assert_array_equal(fake_planner.ids(2, "task"), ids[:5])


def test_nemo_rl_nested_lists_and_a_surplus_row(fake_planner, planner):
    message = SimpleNamespace(
        prompt_token_ids=[0], generation_token_ids=[0], routed_experts=IDS.tolist()
    )
    nemo_rl.add_message(planner, "task", message, step=2)
    planner.flush()
    np.testing.assert_array_equal(fake_planner.ids(2, "task"), IDS[:1])
    message.generation_token_ids = []
    with pytest.raises(ValueError, match="3 rows of routing for 1 tokens"):
        nemo_rl.add_message(planner, "task", message, step=2)


def test_nemo_rl_message_without_routes_is_left_to_the_native_router(planner):
    message = {"prompt_token_ids": [0], "generation_token_ids": [0]}
    assert not nemo_rl.add_message(planner, "task", message, step=2)


# --- prime-rl ------------------------------------------------------------------------------------


def test_prime_rl_padding_at_the_tail_is_no_load(fake_planner, planner):
    padded = np.concatenate([IDS, np.zeros_like(IDS[:2])]).astype(np.uint8)
    form = {"data": padded.tobytes(), "shape": padded.shape, "start": 4, "dtype": "uint8"}
    prime_rl.add_sample(planner, "r", form, 9, step=1)
    planner.flush()
    np.testing.assert_array_equal(fake_planner.ids(1, "r"), IDS)
    assert list(fake_planner.records) == [(1, "r", 4)]


# --- Megatron-Core -------------------------------------------------------------------------------


class Replay:
    def __init__(self, layers):
        self.layers = layers

    def get_recorded_data(self):
        return self.layers

    def set_replay_data(self, layers):
        self.layers = layers


def test_megatron_routing_goes_out_and_back_in():
    replay = Replay([IDS[:, 0].astype(np.int64), IDS[:, 1].astype(np.int64)])
    ids = megatron.recorded_routing(replay)
    np.testing.assert_array_equal(ids, IDS)
    target = Replay(None)
    megatron.set_replay(ids.astype(np.int16), target)
    assert [layer.dtype for layer in target.layers] == [np.int64] * 2
    np.testing.assert_array_equal(target.layers[1], IDS[:, 1])


def test_megatron_tells_what_was_not_recorded():
    with pytest.raises(ValueError, match="router 1 recorded nothing"):
        megatron.recorded_routing(Replay([IDS[:, 0], None]))
    with pytest.raises(ValueError, match="no routers"):
        megatron.recorded_routing(Replay([]))


def test_megatron_cannot_replay_a_missing_route():
    ids = IDS.copy()
    ids[1, 1] = -1
    with pytest.raises(ValueError, match="token 1, layer 1: no route"):
        megatron.per_layer(ids)


def test_megatron_core_is_only_needed_when_it_is_used():
    with pytest.raises(ImportError, match="Megatron-Core with RouterReplay"):
        megatron.recorded_routing()


# Homes of PLAN, three slots a rank: rank 0 holds 1 2 -, rank 1 0 3 -, rank 2 4 5 -, rank 3 6 7 5.
HOME_SLOT = {1: 0, 2: 1, 0: 3, 3: 4, 4: 6, 5: 7, 6: 9, 7: 10}
REPLICA_OF_5 = 11


@pytest.fixture
def plan():
    return Plan.from_updates(updates(PLAN))


def test_pairs_go_home_or_to_the_replica_exactly_as_planned(plan):
    # Source rank 1 was planned with six pairs of expert 5: two stay home, four go to the replica.
    topk = np.array([[5, 0], [5, 1], [5, 2], [5, 3], [5, 4], [5, 6]])
    slots = physical_ids(topk, plan, plan.layers[0], 0, 1)
    assert slots[:, 0].tolist() == [7, 7, 11, 11, 11, 11]
    assert slots[:, 1].tolist() == [HOME_SLOT[e] for e in topk[:, 1]]
    assert computed_tokens(slots, plan).tolist() == [2, 2, 3, 5]


@pytest.mark.parametrize(("pairs", "home"), [(1, 1), (3, 1), (12, 4), (600, 200)])
def test_other_numbers_than_planned_are_dealt_out_in_proportion(plan, pairs, home):
    slots = physical_ids(np.full((pairs, 1), 5), plan, plan.layers[0], 0, 1)
    assert (slots == HOME_SLOT[5]).sum() == home
    assert (slots == REPLICA_OF_5).sum() == pairs - home


def test_a_source_rank_without_planned_pairs_sends_home(plan):
    slots = physical_ids(np.array([[5], [-1]]), plan, plan.layers[0], 0, 0)
    assert slots.tolist() == [[HOME_SLOT[5]], [-1]]


def test_the_routing_map_has_a_column_for_every_slot(plan):
    topk = np.array([[5, 0], [7, -1]])
    columns = megatron.physical_routing_map(topk, plan, plan.layers[0], 0, 1)
    assert columns.shape == (2, 12)
    assert np.argwhere(columns).tolist() == [[0, 3], [0, 7], [1, 10]]


def test_a_composition_of_megatron_ranks():
    composition = Composition.from_schedule([[["rank-0"]], [["rank-1"]]])
    assert [s.source_rank for s in composition.sequences] == [0, 1]
