"""Prometheus's rules and scrape config and Grafana's dashboard, against real processes."""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import grpc
import pytest
import yaml

from conftest import DEPLOY, REPOSITORY, Planner, Process, run, selftest, wait_until

PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana/relibra.json").read_text())
RULES = yaml.safe_load((PROMETHEUS / "relibra.rules.yml").read_text())


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    """Every query of the dashboard, with the name of its panel."""
    return [(panel["title"], t["expr"]) for panel in panels() for t in panel["targets"]]


def get(address, path, **parameters):
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://{address}{path}?{query}", timeout=10) as answer:
        return answer.read().decode()


def ready(prometheus):
    try:
        return get(prometheus, "/-/ready")
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return None


class Api:
    """The planner's unary calls, by name."""

    def __init__(self, folder, address):
        run(sys.executable, REPOSITORY / "python/generate_api.py", folder)
        sys.path.insert(0, str(folder))
        from relibra.v1 import planner_pb2

        self.messages = planner_pb2
        self.channel = grpc.insecure_channel(address)

    def call(self, method, **fields):
        answer = getattr(self.messages, f"{method}Response")
        ask = self.channel.unary_unary(
            f"/relibra.v1.Planner/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return ask(getattr(self.messages, f"{method}Request")(**fields), timeout=20)


def trouble(api):
    """What a job does whose plans are refused and half of the time not applied."""
    key = {"job": "trouble", "step": 1}
    never_recorded = {"num_micro_batches": 1, "sequences": [{"sequence_id": "unknown"}]}
    for step in range(2, 8):
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            step_key = {"job": "trouble", "step": step}
            api.call("PlanStep", key=step_key, composition=never_recorded)
    for outcome in ("STEP_OUTCOME_KEPT_OLD", "STEP_OUTCOME_APPLIED"):
        api.call("ReportStep", report={**key, "outcome": outcome, "reason": "late"})


def plan(api, step):
    counts = {"num_micro_batches": 1, "num_layers": 1, "num_source_ranks": 2, "num_experts": 4}
    counts["entries"] = [{"counts": [9, 1, 1, 1] * 2}]
    api.call("PlanStep", key={"job": "trouble", "step": step}, counts=counts)


def register(api):
    model = {"moe_layer_ids": [0], "num_experts": 4, "top_k": 1}
    topology = {"nodes": 1, "gpus_per_node": 2, "replica_slots": 1}
    spec = {"job": "trouble", "model": model, "topology": topology}
    api.call("RegisterJob", spec=spec)
    plan(api, step=1)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A planner with a healthy job and one in trouble, and a Prometheus that saw it all."""
    folder = tmp_path_factory.mktemp("demo")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    with Planner(folder) as planner:
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [planner.metrics]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        api = Api(folder / "api", planner.grpc)
        register(api)
        with Process(
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0",
            log=folder / "prometheus.log",
        ) as prometheus:
            address = wait_until(
                lambda: re.search(r"Listening on.* address=(\S+)", prometheus.log.read_text()),
                prometheus.log.read_text,
            )[1]
            # It listens before it can answer, with 503 until then.
            wait_until(lambda: ready(address), prometheus.log.read_text)

            def query(expression):
                answer = json.loads(get(address, "/api/v1/query", query=expression))
                assert answer["status"] == "success", answer
                return answer["data"]["result"]

            # Every counter of trouble and of the calls is scraped once before it grows.
            wait_until(lambda: query('relibra_plans_total{training_job="trouble"}'), "no scrape")
            selftest(folder, planner.grpc, 2, 2, "--job", "healthy", "--steps", "3")
            trouble(api)
            wait_until(
                lambda: query('relibra_plans_total{training_job="healthy"} == 3'), "no plans"
            )
            wait_until(lambda: query("increase(relibra_failed_plans_total[1m]) > 2"), "no failure")
            plan(api, step=10)
            wait_until(lambda: query('ALERTS{alertname="RelibraPlansFail"}'), "no alert")
            yield SimpleNamespace(query=query, metrics=planner.metrics)


def substitute(expression):
    for name, value in (
        ("$instance", ".*"),
        ("$training_job", ".*"),
        ("$__rate_interval", "1m"),
        ("$window", "5m"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def test_every_query_of_the_dashboard_returns_data(demo):
    # What the last scrapes brought may still be on its way.
    def without_data():
        return [(title, e) for title, e in expressions() if not demo.query(substitute(e))]

    wait_until(lambda: not without_data(), lambda: f"no data: {without_data()}", seconds=30)


def test_every_query_of_the_variables_and_annotations_returns_data(demo):
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            form = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            metric, label = form.groups()
            assert demo.query(f'{metric}{{{label}!=""}}'), variable["name"]
    for annotation in DASHBOARD["annotations"]["list"]:
        demo.query(annotation["expr"])


def test_the_figures_of_the_dashboard_are_the_demo_s(demo):
    def value(title):
        (expression,) = (e for t, e in expressions() if t == title)
        return float(demo.query(substitute(expression))[0]["value"][1])

    assert value("Planner") == 1
    assert value("Jobs registered") == 2
    # [9, 1, 1, 1] from both ranks: 24 tokens, rank 0 computes 20 of them, the mean is 12.
    before = demo.query('1 / relibra_balancedness_before_ratio{training_job="trouble"}')
    assert float(before[0]["value"][1]) == pytest.approx(20 / 12)
    assert 0 < value("Plans applied") < 1
    assert value("Imbalance without ReLibra") > value("Imbalance as planned")


def test_the_rules_evaluate_without_error(demo):
    for group in RULES["groups"]:
        for rule in group["rules"]:
            demo.query(rule["expr"])
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                assert demo.query(rule["record"]), rule["record"]


def names_in(expression):
    return set(re.findall(r"\brelibra_\w+", re.sub(r"[\w]+:\S+?:\w+", "", expression)))


def test_rules_and_dashboard_name_metrics_that_the_planner_has(demo):
    served = set(re.findall(r"^(relibra_\w+)", get(demo.metrics, "/metrics"), re.M))
    used = set().union(*(names_in(e) for _, e in expressions()))
    used |= set().union(*(names_in(r["expr"]) for g in RULES["groups"] for r in g["rules"]))
    assert used - served == set()


def test_the_operations_page_tells_every_metric_and_every_alert(demo):
    page = (DEPLOY / "README.md").read_text()
    served = get(demo.metrics, "/metrics")
    for name in re.findall(r"^# TYPE (relibra_\w+)", served, re.M):
        assert f"`{name}`" in page, name
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert f"\n#### {rule['alert']}\n" in page, rule["alert"]


def test_promtool_is_content():
    run("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    run("promtool", "test", "rules", PROMETHEUS / "relibra.rules_test.yml")


def test_every_alert_is_tested_to_fire_and_not_to_fire():
    tests = yaml.safe_load((PROMETHEUS / "relibra.rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                of_rule = [case for case in cases if case["alertname"] == rule["alert"]]
                assert any(case.get("exp_alerts") for case in of_rule), rule["alert"]
                assert any(not case.get("exp_alerts") for case in of_rule), rule["alert"]


def test_the_panels_are_told_apart_described_and_do_not_overlap():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"], panel["title"]
