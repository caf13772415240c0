"""The package against the real planner, and the package as pip installs it."""

import asyncio
import base64
import io
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import relibra
from planner_process import BUILD, REPOSITORY, PlannerProcess
from relibra import (
    AsyncPlanner,
    Backoff,
    Composition,
    JobSpec,
    LayerAxis,
    Model,
    Planner,
    PlanOptions,
    RoutingRejectedError,
    Topology,
)
from relibra.dispatch import computed_tokens, physical_ids

pytestmark = pytest.mark.integration

LAYERS, EXPERTS, TOP_K, RANKS = 3, 16, 4, 8
EXAMPLES = sorted((REPOSITORY / "python" / "examples").glob("*_*.py"))


@pytest.fixture(scope="module")
def server():
    process = PlannerProcess()
    yield process
    assert process.stop() == 0


@pytest.fixture
def spec(request):
    name = re.sub("[^a-z0-9-]", "-", request.node.name.removeprefix("test_").lower())[:63]
    return JobSpec(name, Model((2, 3, 5), EXPERTS, TOP_K), Topology(2, 4, 2))


def routing(random, tokens):
    """Skewed ids [tokens, layers, top_k], no expert twice in a row."""
    skew = np.log(np.arange(1, EXPERTS + 1.0))
    noise = random.gumbel(size=(tokens, LAYERS, EXPERTS))
    return np.argsort(skew - noise, axis=-1)[..., :TOP_K]


def counts(ids):
    """[layers, experts] of ids, counted apart from all else."""
    return np.array(
        [np.bincount(ids[:, layer].ravel(), minlength=EXPERTS) for layer in range(LAYERS)]
    )


def one_micro_batch(names):
    return Composition.from_schedule([[[name]] for name in names])


def test_a_step_from_routing_to_plan_balances_what_was_recorded(server, spec, random):
    names = [f"s{rank}" for rank in range(RANKS)]
    ids = {name: routing(random, 200) for name in names}
    with Planner(server.address, spec) as planner:
        for name in names:
            planner.add_routing(name, ids[name], step=1, sequence_tokens=201)
        (planned,) = planner.plan_step(1, one_micro_batch(names))
        assert planned.summary.tokens == RANKS * 200 * LAYERS * TOP_K
        assert planned.summary.missing_share == 0
        assert planned.summary.imbalance_after < 1.05 < 1.5 < planned.summary.imbalance_before

        computed = np.zeros((LAYERS, RANKS), np.int64)
        for rank, name in enumerate(names):
            plan = planner.get_plan(1, splits_of=rank)
            assert plan.digest == planned.digest
            for layer in range(LAYERS):
                slots = physical_ids(ids[name][:, layer], plan, plan.layers[layer], 0, rank)
                table = plan.placement(0).physical_to_logical[layer]
                np.testing.assert_array_equal(table[slots], ids[name][:, layer])
                computed[layer] += computed_tokens(slots, plan)
        imbalance = (computed.max(axis=1) / computed.mean(axis=1)).mean()
        assert imbalance == pytest.approx(planned.summary.imbalance_after, abs=1e-9)


def test_every_recorded_form_counts_the_same(server, spec, random):
    ids = routing(random, 50)
    npy = io.BytesIO()
    np.save(npy, ids.astype(np.uint8))
    forms = [
        ids,
        ids.astype(np.int16),
        ids.tolist(),
        base64.b64encode(npy.getvalue()).decode(),
        base64.b64encode(ids.astype("<i4").tobytes()).decode(),
        f"nrlre1:int8:50x3x4:{base64.b64encode(ids.astype(np.int8).tobytes()).decode()}",
        {"data": ids.astype(np.uint8).tobytes(), "shape": ids.shape, "start": 0, "dtype": "uint8"},
        [ids[:, layer] for layer in range(LAYERS)],
    ]
    with Planner(server.address, spec) as planner:
        digests = set()
        for step, form in enumerate(forms):
            planner.add_routing("s", form, step=step)
            options = PlanOptions(max_moves=0)  # homes stay, so that all steps start alike
            (plan,) = planner.plan_step(step, one_micro_batch(["s"]), options=options)
            assert plan.summary.tokens == ids.size
            digests.add(plan.digest)
        loads = np.zeros((1, LAYERS, RANKS, EXPERTS), np.uint32)
        loads[0, :, 0] = counts(ids)
        (plan,) = planner.plan_step(99, loads, options=PlanOptions(max_moves=0))
        assert digests == {plan.digest}


def test_the_same_routing_again_counts_once(server, spec, random):
    ids = routing(random, 100)
    with Planner(server.address, spec) as planner:
        for first in (0, 30, 60, 30, 0):  # pieces that overlap, and pieces again
            planner.add_routing("s", ids[first : first + 40], step=1, token_offset=first)
            planner.flush()
        (plan,) = planner.plan_step(1, one_micro_batch(["s"]))
        assert plan.summary.tokens == ids.size
        assert planner.sent.repeated >= 2


def test_a_record_of_identical_rows_is_taken_with_a_warning(server, spec, random, caplog):
    ids = np.repeat(routing(random, 1), 1000, axis=0)  # a warm-up pass looks like this
    with Planner(server.address, spec) as planner:
        planner.add_routing("warm-up", ids, step=1)
        planner.flush()
        (warning,) = planner.sent.warnings
        assert "warm-up" in warning
    assert warning in caplog.text


def test_pieces_that_contradict_each_other_are_refused(server, spec, random):
    ids = routing(random, 40)
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", ids, step=1)
        planner.flush()
        planner.add_routing("s", ids[:20] ^ 1, step=1)
        with pytest.raises(RoutingRejectedError, match="sequence") as refused:
            planner.flush()
        assert isinstance(refused.value.failures[0][1], relibra.InvalidArgumentError)


def test_an_expert_twice_in_a_token_is_refused_with_its_place(server, spec, random):
    ids = routing(random, 10)
    ids[7, 1] = [5, 6, 5, 7]
    with Planner(server.address, spec) as planner:
        planner.add_routing("good", routing(random, 10), step=1)
        planner.add_routing("bad", ids, step=1)
        with pytest.raises(RoutingRejectedError, match="bad.*7.*") as refused:
            planner.flush()
        ((names, error),) = refused.value.failures
        assert names == ("bad",)
        assert "5" in str(error)
        planner.plan_step(1, one_micro_batch(["good"]))


def test_too_many_missing_routes_refuse_the_step(server, spec, random):
    ids = routing(random, 100)
    ids[:10] = -1
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", ids, step=1)
        with pytest.raises(relibra.FailedPreconditionError):
            planner.plan_step(1, one_micro_batch(["s"]))


def test_few_missing_routes_are_spread_and_reported(server, spec, random):
    ids = routing(random, 100)
    ids[:3] = -1
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", ids, step=1, sequence_tokens=102)  # one more row is missing
        (plan,) = planner.plan_step(1, one_micro_batch(["s"]))
        assert plan.summary.tokens == 101 * LAYERS * TOP_K
        assert plan.summary.missing_share == pytest.approx(4 / 101)


def test_a_sequence_that_came_back_without_routes_is_all_missing(server, spec, random):
    ids = routing(random, 1000)
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", ids, step=1)
        planner.add_routing("lost", ids[:0], step=1, sequence_tokens=11)
        (plan,) = planner.plan_step(1, one_micro_batch(["s", "lost"]))
        assert plan.summary.tokens == 1010 * LAYERS * TOP_K
        assert plan.summary.missing_share == pytest.approx(10 / 1010)


def test_dense_layers_are_no_load(server, spec, random):
    wide_spec = JobSpec(
        spec.job, spec.model, spec.topology, (), LayerAxis.ALL_LAYERS, "", num_hidden_layers=7
    )
    ids = routing(random, 30)
    wide = np.zeros((30, 7, TOP_K), np.int32)
    wide[:, [2, 3, 5]] = ids
    with Planner(server.address, wide_spec) as planner:
        planner.add_routing("s", wide, step=1)
        (plan,) = planner.plan_step(1, one_micro_batch(["s"]))
        assert plan.summary.tokens == ids.size
        assert [layer.layer for layer in planner.get_plan(1).layers] == [2, 3, 5]


def test_records_after_the_plan_are_refused(server, spec, random):
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", routing(random, 10), step=1)
        planner.plan_step(1, one_micro_batch(["s"]))
        planner.add_routing("late", routing(random, 10), step=1)
        planner.add_routing("next", routing(random, 10), step=2)
        with pytest.raises(RoutingRejectedError, match="late") as refused:
            planner.flush()
        assert [names for names, _ in refused.value.failures] == [("late",)]
        planner.plan_step(2, one_micro_batch(["next"]))


def test_missing_sequences_and_unknown_steps_are_told(server, spec, random):
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", routing(random, 10), step=1)
        with pytest.raises(relibra.FailedPreconditionError, match="ghost"):
            planner.plan_step(1, one_micro_batch(["s", "ghost"]))
        with pytest.raises(relibra.NotFoundError):
            planner.get_plan(77)


def test_another_spec_under_the_same_name_is_refused(server, spec):
    with Planner(server.address, spec):
        other = JobSpec(spec.job, spec.model, Topology(4, 2, 2))
        with pytest.raises(relibra.FailedPreconditionError, match="topology"):
            Planner(server.address, other)
        with Planner(server.address, spec.job) as again:
            assert again.job.topology == spec.topology


def test_loads_too_large_for_one_message_give_the_same_plan(server, spec, random, monkeypatch):
    loads = random.integers(0, 1000, (6, LAYERS, RANKS, EXPERTS))
    options = PlanOptions(max_moves=0)
    with Planner(server.address, spec) as planner:
        (whole,) = planner.plan_step(1, loads, options=options)
        monkeypatch.setattr("relibra._messages.COUNTS_MESSAGE_ENTRIES", 300)
        (pieces,) = planner.plan_step(2, loads, options=options)
        assert pieces.digest == whole.digest
        assert whole.summary.tokens == loads.sum()


def test_status_tells_of_steps_and_plans(server, spec, random):
    with Planner(server.address, spec) as planner:
        planner.add_routing("s", routing(random, 10), step=4)
        planner.plan_step(4, one_micro_batch(["s"]))
        (job,) = planner.status().jobs
        assert job.records == 1
        (step,) = job.steps
        assert (step.step, step.sequences) == (4, 1)
        assert step.plans[0].summary.tokens == 10 * LAYERS * TOP_K
        planner.delete_job()
        with pytest.raises(relibra.NotFoundError):
            planner.status()


def test_the_async_client_does_the_same(server, spec, random):
    async def run():
        async with await AsyncPlanner.connect(server.address, spec) as planner:
            planner.start_step(1)
            await asyncio.gather(
                *(planner.add_routing(f"s{i}", routing(random, 20)) for i in range(RANKS))
            )
            composition = one_micro_batch([f"s{i}" for i in range(RANKS)])
            (plan,) = await planner.plan_step(loads=composition)
            assert plan.summary.tokens == RANKS * 20 * LAYERS * TOP_K
            assert len((await planner.get_plan()).layers) == LAYERS

    asyncio.run(run())


def test_routing_waits_for_a_planner_that_is_away(spec, random):
    first = PlannerProcess()
    planner = Planner(first.address, spec, backoff=Backoff(first=0.05, most=0.2, give_up=60))
    first.kill()
    planner.add_routing("s", routing(random, 20), step=1)
    second = []
    starter = threading.Thread(target=lambda: second.append(PlannerProcess(port=first.port)))
    starter.start()
    # The planner that comes back has forgotten the job: it says so, and nothing hangs.
    with pytest.raises(RoutingRejectedError, match=spec.job):
        planner.flush()
    starter.join()
    planner.close()
    with Planner(second[0].address, spec) as again:
        again.add_routing("s", routing(random, 20), step=1)
        again.plan_step(1, one_micro_batch(["s"]))
    assert second[0].stop() == 0


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem != "eplb_benchmark"], ids=lambda p: p.stem
)
def test_examples_run_without_their_framework(server, example):
    result = subprocess.run(
        [sys.executable, example, server.address],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for before, after in re.findall(r"imbalance ([\d.]+) -> ([\d.]+)", result.stdout):
        assert float(after) < float(before)
    assert "imbalance" in result.stdout


def test_pip_installs_the_package(server, tmp_path):
    library = BUILD / "lib" / "librelibra_eplb.so"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps"),
            *("--target", tmp_path, REPOSITORY / "python"),
        ],
        env={**os.environ, "RELIBRA_EPLB_LIBRARY": str(library)},
        check=True,
    )
    code = f"""
import relibra, relibra.eplb
assert relibra.__file__.startswith({str(tmp_path)!r}), relibra.__file__
assert relibra.eplb.is_native()
print(relibra.eplb.rebalance_experts([[10, 20, 30, 40]], 6, 2, 1, 2)[2].sum())
spec = relibra.JobSpec("pip", relibra.Model((0,), 8, 2), relibra.Topology(1, 2))
with relibra.Planner({server.address!r}, spec) as planner:
    print(planner.status().jobs[0].spec.job)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.stdout.split() == ["6", "pip"], result.stderr
