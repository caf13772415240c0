"""The client against a planner that fails on demand."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

import relibra
from relibra import (
    AsyncPlanner,
    Backoff,
    Composition,
    EpGroup,
    JobSpec,
    LayerAxis,
    Model,
    Plan,
    Planner,
    PlanOptions,
    RoutingRejectedError,
    SenderOptions,
    SequencePlacement,
    Topology,
)
from relibra.v1 import plan_pb2, planner_pb2

IDS = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 0]]])


def connect(fake_planner, spec, **options):
    options.setdefault("backoff", Backoff(first=0.001, give_up=5))
    return Planner(fake_planner.address, spec, **options)


def test_a_spec_survives_the_way_to_the_planner_and_back(fake_planner):
    spec = JobSpec(
        "all-of-it",
        Model((1, 3), 8, 2, 100, 200, 300, 400, 500),
        Topology(2, 2, 3, 10, 20, 30),
        (EpGroup("ep0", (0, 1, 2, 3), (1,), 0), EpGroup("ep1", (4, 5, 6, 7), (3,), 1)),
        LayerAxis.ALL_LAYERS,
        "int16",
        4,
        0.25,
        PlanOptions(relibra.Effort.THOROUGH, 0, 7, 1.5, 2.5, 3),
    )
    with connect(fake_planner, spec) as planner:
        assert planner.job == spec
    with connect(fake_planner, "all-of-it") as planner:
        assert planner.job == spec


def test_an_unknown_job_name_is_not_found(fake_planner):
    with pytest.raises(relibra.NotFoundError, match="job nobody: not registered"):
        connect(fake_planner, "nobody")


def test_routing_arrives_once_whatever_fails_on_the_way(fake_planner, planner):
    fake_planner.failures += [grpc.StatusCode.UNAVAILABLE] * 3
    for i in range(20):
        planner.add_routing(f"s{i}", IDS, step=4, sequence_tokens=3, prompt_group="p")
    planner.flush()
    assert len(fake_planner.records) == 20
    record = fake_planner.records[4, "s7", 0]
    assert (record.sequence_tokens, record.prompt_group) == (3, "p")
    np.testing.assert_array_equal(fake_planner.ids(4, "s7"), IDS)
    assert planner.sent.accepted + planner.sent.repeated >= 20


def test_a_stream_that_breaks_half_way_is_sent_again_whole(fake_planner, planner):
    # The first window's stream is taken, then its first message fails.
    planner.add_routing("s", IDS, step=1)
    planner.flush()
    fake_planner.requests.clear()
    with fake_planner._lock:
        fake_planner.failures[:] = [None, grpc.StatusCode.UNAVAILABLE]
    planner.add_routing("t", IDS, step=1)
    planner.flush()
    assert len(fake_planner.calls("StreamRouting")) == 2
    np.testing.assert_array_equal(fake_planner.ids(1, "t"), IDS)


def test_the_missing_last_row_is_never_filled_in(fake_planner, planner):
    planner.add_routing("s", IDS, step=0, sequence_tokens=3)
    planner.flush()
    assert len(fake_planner.ids(0, "s")) == 2
    assert fake_planner.records[0, "s", 0].sequence_tokens == 3


def test_a_long_sequence_travels_in_pieces_at_their_offsets(fake_planner, planner, random):
    # Two layers of top 2 in int8 are 4 bytes a row: 1 MiB holds 262144 rows.
    ids = random.integers(0, 8, (300_000, 2, 2))
    planner.add_routing("long", ids, step=0, token_offset=10)
    planner.flush()
    assert sorted(offset for _, _, offset in fake_planner.records) == [10, 10 + (1 << 18)]
    np.testing.assert_array_equal(fake_planner.ids(0, "long"), ids)


def test_a_refused_record_is_named_and_the_others_arrive(fake_planner, planner):
    fake_planner.refuse = lambda record: (
        "sequence bad: the same expert twice" if record.sequence_id == "bad" else None
    )
    for name in ("a", "b", "bad", "c", "d"):
        planner.add_routing(name, IDS, step=0)
    with pytest.raises(RoutingRejectedError, match="1 records.*bad.*the same expert twice") as got:
        planner.flush()
    assert [ids for ids, _ in got.value.failures] == [("bad",)]
    assert {name for _, name, _ in fake_planner.records} == {"a", "b", "c", "d"}
    planner.flush()  # told once


def test_an_unreachable_planner_is_given_up_in_the_end(fake_planner, spec):
    planner = connect(fake_planner, spec, backoff=Backoff(first=0.001, give_up=0.05))
    fake_planner.failures += [grpc.StatusCode.UNAVAILABLE] * 1000
    planner.add_routing("s", IDS, step=0)
    with pytest.raises(RoutingRejectedError, match="told to fail"):
        planner.flush()
    planner.close()


def test_a_full_queue_makes_the_caller_wait(fake_planner, spec):
    sending = SenderOptions(max_pending_bytes=200)
    planner = connect(fake_planner, spec, sending=sending)
    fake_planner.blocked.clear()
    with pytest.raises(TimeoutError, match="no room came free"):
        for i in range(100):
            planner.add_routing(f"s{i}", IDS, step=0, timeout=0.05)
    assert planner._sender.pending_bytes <= 200
    waiting = threading.Thread(target=planner.add_routing, args=("late", IDS), kwargs={"step": 0})
    waiting.start()
    fake_planner.blocked.set()
    waiting.join()
    planner.flush()
    assert (0, "late", 0) in fake_planner.records
    planner.close()


def test_a_record_larger_than_the_queue_passes_alone(fake_planner, spec):
    with connect(fake_planner, spec, sending=SenderOptions(max_pending_bytes=1)) as planner:
        planner.add_routing("a", IDS, step=0)
        planner.add_routing("b", IDS, step=0)
        planner.flush()
    assert len(fake_planner.records) == 2


def test_steps_are_kept_apart_in_one_stream(fake_planner, planner):
    for i in range(6):
        planner.add_routing(f"s{i}", IDS, step=i % 2, policy_version=9)
    planner.flush()
    assert {(step, name) for step, name, _ in fake_planner.records} == {
        (i % 2, f"s{i}") for i in range(6)
    }
    for message in fake_planner.calls("StreamRouting.message"):
        assert message.key.policy_version == 9


def test_calls_without_a_step_take_the_started_one(fake_planner, planner):
    with pytest.raises(ValueError, match="start_step"):
        planner.add_routing("s", IDS)
    planner.start_step(12, policy_version=3)
    planner.add_routing("s", IDS)
    planner.flush()
    (message,) = fake_planner.calls("StreamRouting.message")
    assert (message.key.step, message.key.policy_version) == (12, 3)


def test_many_threads_may_add_at_once(fake_planner, planner):
    def work(thread):
        for i in range(50):
            planner.add_routing(f"{thread}/{i}", IDS, step=0)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    planner.flush()
    assert len(fake_planner.records) == 200
    assert planner.sent.accepted == 200


def test_more_rows_than_tokens_is_refused(planner):
    with pytest.raises(ValueError, match="rows up to 2, but it has 1 tokens"):
        planner.add_routing("s", IDS, step=0, sequence_tokens=1)


def test_packing_and_planning_wait_for_the_routing(fake_planner, planner):
    fake_planner.failures += [grpc.StatusCode.UNAVAILABLE] * 2
    for i in range(4):
        planner.add_routing(f"s{i}", IDS, step=5)
    packing = planner.pack(5, num_micro_batches=2, max_tokens=100, keep_prompt_groups=True)
    assert [s.sequence_id for s in packing.composition.micro_batch(1)] == ["s1", "s3"]
    assert (packing.node_imbalance, packing.node_imbalance_before) == (1.1, 1.3)
    (plan,) = planner.plan_step(5, packing.composition, pass_name="update")
    assert plan.summary.balancedness == 0.8
    (request,) = fake_planner.calls("PlanStep")
    assert Composition.from_proto(request.composition) == packing.composition


def test_small_counts_go_with_the_request(fake_planner, planner, random):
    loads = random.integers(0, 100, (3, 2, 4, 8))
    planner.plan_step(1, loads)
    (request,) = fake_planner.calls("PlanStep")
    assert request.WhichOneof("loads") == "counts"
    sent = np.array([entry.counts for entry in request.counts.entries])
    np.testing.assert_array_equal(sent.reshape(loads.shape), loads)


def test_large_counts_are_uploaded_in_pieces(fake_planner, planner, random):
    loads = random.integers(0, 100, (20, 2, 32, 512))
    planner.plan_step(1, loads, pass_name="logprob")
    (request,) = fake_planner.calls("PlanStep")
    assert request.uploaded_counts
    (messages,) = fake_planner.calls("UploadLoads")
    assert len(messages) > 1
    entries = []
    for message in messages:
        assert message.counts.first_entry == len(entries)
        assert getattr(message, "pass") == "logprob"
        entries += [entry.counts for entry in message.counts.entries]
    np.testing.assert_array_equal(np.array(entries).reshape(loads.shape), loads)


def test_a_wrong_count_is_named_with_its_place(planner):
    loads = np.zeros((1, 2, 4, 8), np.int64)
    loads[0, 1, 2, 3] = -5
    with pytest.raises(ValueError, match="micro-batch 0, layer 1, rank 2, expert 3.*got -5"):
        planner.plan_step(1, loads)
    with pytest.raises(ValueError, match="expected \\[micro_batches"):
        planner.plan_step(1, loads[0])


@pytest.mark.parametrize(
    "kind",
    [
        relibra.InvalidArgumentError,
        relibra.FailedPreconditionError,
        relibra.ResourceExhaustedError,
        relibra.NotFoundError,
        relibra.InternalError,
        relibra.UnauthenticatedError,
    ],
)
def test_refusals_are_exceptions_with_the_planners_words(fake_planner, planner, kind):
    fake_planner.failures.append(grpc.StatusCode[kind.code])
    with pytest.raises(kind, match="told to fail PlanStep"):
        planner.plan_step(1, np.ones((1, 2, 4, 8), int))


def test_no_answer_in_time_is_an_exception(fake_planner, spec):
    planner = connect(fake_planner, spec, sending=SenderOptions(timeout=0.05))
    fake_planner.blocked.clear()
    planner.add_routing("s", IDS, step=0)
    with pytest.raises(RoutingRejectedError, match="Deadline Exceeded"):
        planner.flush()
    planner.close()


# Four ranks of two experts and one replica slot. Expert 5 lives on rank 2; rank 3 has a replica.
PLAN = plan_pb2.Plan(
    job="test",
    step=4,
    digest="d",
    topology=plan_pb2.PlanTopology(nodes=2, gpus_per_node=2, replica_slots=1),
    layers=[
        plan_pb2.LayerPlan(
            layer=layer,
            home_rank=[1, 0, 0, 1, 2, 2, 3, 3],
            moves=[plan_pb2.Move(expert=0, from_rank=0, to_rank=1)],
            micro_batches=[
                plan_pb2.MicroBatchPlan(
                    replicas=[plan_pb2.Replica(expert=5, rank=3, slot=0, tokens=6)],
                    split_columns=[
                        plan_pb2.SplitColumns(
                            source_rank=1, experts=[5, 5], ranks=[2, 3], tokens=[2, 4]
                        )
                    ],
                )
            ],
        )
        for layer in (0, 1)
    ],
)


def updates(plan, layers=None, digest="d"):
    header = plan_pb2.Plan()
    header.CopyFrom(plan)
    del header.layers[:]
    from relibra.v1 import agent_pb2

    yield agent_pb2.PlanUpdate(header=header)
    for layer in plan.layers[:layers]:
        yield agent_pb2.PlanUpdate(layer=layer)
    if layers is None:
        yield agent_pb2.PlanUpdate(
            complete=agent_pb2.PlanComplete(num_layers=len(plan.layers), digest=digest)
        )


def test_a_plan_is_read_layer_by_layer(fake_planner, planner):
    fake_planner.plan = list(updates(PLAN))
    plan = planner.get_plan(4, splits_of=1)
    (request,) = fake_planner.calls("GetPlan")
    assert request.source_rank == 1
    layer = plan.layers[1]
    assert layer.layer == 1
    assert layer.moves.tolist() == [[0, 0, 1]]
    part = layer.micro_batches[0]
    assert part.splits.rank.tolist() == [2, 3]
    assert part.splits.tokens.tolist() == [2, 4]
    assert part.replicas.expert.tolist() == [5]
    placement = plan.placement(0)
    assert placement.physical_to_logical[0].tolist() == [1, 2, -1, 0, 3, -1, 4, 5, -1, 6, 7, 5]


def test_a_plan_that_breaks_off_tells_nothing(fake_planner, planner):
    fake_planner.plan = list(updates(PLAN, layers=1))
    with pytest.raises(ValueError, match="broke off after 1 layers"):
        planner.get_plan(4)
    fake_planner.plan = list(updates(PLAN, digest="other"))
    with pytest.raises(ValueError, match="digests"):
        planner.get_plan(4)


def test_an_unplanned_step_is_not_found(planner):
    with pytest.raises(relibra.NotFoundError, match="step 4: not planned"):
        planner.get_plan(4)


def test_a_plan_of_a_file_is_the_plan_of_the_wire():
    rows = plan_pb2.Plan()
    rows.CopyFrom(PLAN)
    for layer in rows.layers:
        part = layer.micro_batches[0]
        del part.split_columns[:]
        part.splits.add(expert=5, source_rank=1, rank=2, tokens=2)
        part.splits.add(expert=5, source_rank=1, rank=3, tokens=4)
    of_file, of_wire = Plan.from_proto(rows), Plan.from_updates(updates(PLAN))
    for a, b in zip(of_file.layers, of_wire.layers, strict=True):
        for x, y in zip(a.micro_batches, b.micro_batches, strict=True):
            for name in ("expert", "source_rank", "rank", "tokens"):
                np.testing.assert_array_equal(getattr(x.splits, name), getattr(y.splits, name))


def test_status_is_plain_data(planner):
    status = planner.status()
    assert status.planner_version == "fake"
    (job,) = status.jobs
    assert job.spec == planner.job
    assert job.agents[0].last_outcome == "applied"
    assert job.steps[0].step == 4


def test_a_closed_client_takes_no_more(fake_planner, spec):
    planner = connect(fake_planner, spec)
    planner.close()
    planner.close()
    with pytest.raises(RuntimeError, match="closed"):
        planner.add_routing("s", IDS, step=0)


def test_the_async_client_does_the_same(fake_planner, spec):
    async def run():
        async with await AsyncPlanner.connect(fake_planner.address, spec) as planner:
            planner.start_step(5)
            await asyncio.gather(*(planner.add_routing(f"s{i}", IDS) for i in range(10)))
            packing = await planner.pack(num_micro_batches=2)
            (plan,) = await planner.plan_step(loads=packing.composition)
            assert plan.step == 5
            assert planner.sent.accepted == 10
            with pytest.raises(relibra.NotFoundError):
                await planner.get_plan()
            assert (await planner.status()).jobs[0].spec == planner.job

    asyncio.run(run())
    assert len(fake_planner.records) == 10


def test_a_schedule_becomes_a_composition():
    composition = Composition.from_schedule(
        [[["a", "b"], []], [["c"], ["d"]]], [0, 2], padding_rows={"d": 3}
    )
    assert composition.num_micro_batches == 2
    assert composition.sequences == (
        SequencePlacement("a", 0, 0),
        SequencePlacement("b", 0, 0),
        SequencePlacement("c", 0, 2),
        SequencePlacement("d", 1, 2, padding_rows=3),
    )
    with pytest.raises(ValueError, match="expected one"):
        Composition.from_schedule([[["a"]], [["b"], ["c"]]])
    assert planner_pb2.Composition() == Composition(0, ()).to_proto()
