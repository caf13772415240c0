"""The Kubernetes manifests: against Kubernetes' own schemas, against each other, and against the
programs that they start."""

import re
import shlex
import subprocess

import kubernetes_validate
import pytest
import yaml

import kustomize
from conftest import BIN, DEPLOY, Planner, run

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("base", "overlays/single", "overlays/tls")
EXAMPLES = sorted(path.name for path in (KUBERNETES / "examples").glob("*.yaml"))
# The oldest version with what the manifests use (gRPC probes), and the newest known schemas.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
CUSTOM = {"monitoring.coreos.com/v1", "batch.volcano.sh/v1alpha1"}


@pytest.fixture(scope="module", params=OVERLAYS)
def resources(request):
    return kustomize.render(KUBERNETES / request.param)


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request):
    return list(yaml.safe_load_all((KUBERNETES / "examples" / request.param).read_text()))


def of_kind(resources, kind):
    return [resource for resource in resources if resource["kind"] == kind]


def only(resources, kind):
    (resource,) = of_kind(resources, kind)
    return resource


def pod_templates(resource):
    """The Pods that a resource makes, as Pods."""
    if resource["kind"] == "Pod":
        return [resource]
    spec = resource.get("spec", {})
    templates = [spec["template"]] if "template" in spec else []
    templates += [task["template"] for task in spec.get("tasks", [])]  # Volcano
    return [
        {"apiVersion": "v1", "kind": "Pod", **t, "metadata": {"name": "pod", **t["metadata"]}}
        for t in templates
    ]


def validate(resource):
    for version in VERSIONS:
        checked = pod_templates(resource) if resource["apiVersion"] in CUSTOM else [resource]
        for one in checked:
            kubernetes_validate.validate(one, version, strict=True)


def test_kubernetes_own_schemas_accept_every_resource(resources):
    for resource in resources:
        validate(resource)


def test_kubernetes_own_schemas_accept_every_example(example):
    for resource in example:
        validate(resource)


def test_the_schemas_refuse_a_field_that_does_not_exist():
    pod = yaml.safe_load((KUBERNETES / "examples/trainer-pod.yaml").read_text())
    pod["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(pod)


def planner_pod(resources):
    (pod,) = pod_templates(only(resources, "StatefulSet"))
    return pod


def test_selectors_select_the_planner_s_pod(resources):
    labels = planner_pod(resources)["metadata"]["labels"]
    selectors = [
        only(resources, "StatefulSet")["spec"]["selector"]["matchLabels"],
        only(resources, "Service")["spec"]["selector"],
        only(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        only(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_ports_are_the_ones_that_the_planner_listens_at(resources):
    (container,) = planner_pod(resources)["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--listen=0.0.0.0:{ports['grpc']}" in container["args"]
    assert f"--metrics-address=0.0.0.0:{ports['metrics']}" in container["args"]
    for port in only(resources, "Service")["spec"]["ports"]:
        assert port["targetPort"] == port["name"]
        assert port["port"] == ports[port["name"]]
    policy = only(resources, "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in policy for port in rule["ports"]} == set(ports)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        ((how, asked),) = ((k, v) for k, v in container[probe].items() if isinstance(v, dict))
        if how == "grpc":
            assert asked["port"] == ports["grpc"]
        else:
            assert asked["port"] in ports


def test_the_grpc_probes_are_not_used_with_tls(resources):
    (container,) = planner_pod(resources)["spec"]["containers"]
    with_tls = any(arg.startswith("--tls-cert") for arg in container["args"])
    probes = [container[p] for p in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert all(("grpc" in probe) != with_tls for probe in probes)


def test_mounts_have_volumes_and_the_state_file_is_on_one(resources):
    pod = planner_pod(resources)["spec"]
    (container,) = pod["containers"]
    spec = only(resources, "StatefulSet")["spec"]
    volumes = [volume["name"] for volume in pod["volumes"]] if pod.get("volumes") else []
    volumes += [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert sorted(volumes) == sorted(mounts)  # each once
    (state,) = (arg.split("=")[1] for arg in container["args"] if "--state-file" in arg)
    assert state.startswith(mounts["state"] + "/")
    files = [arg.split("=")[1] for arg in container["args"] if arg.startswith("--tls-")]
    assert all(file.startswith(mounts["tls"] + "/") for file in files)


def test_the_pod_is_locked_down(resources):
    pod = planner_pod(resources)["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    policy = only(resources, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy


def expanded(container, resources):
    """The container's arguments as the kubelet would hand them over."""
    data = only(resources, "ConfigMap")
    assert container["envFrom"] == [{"configMapRef": {"name": data["metadata"]["name"]}}]
    missing = re.compile(r"\$\((\w+)\)")
    return [missing.sub(lambda m: data["data"][m[1]], arg) for arg in container["args"]]


def certificate(folder):
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-keyout", folder / "tls.key", "-out", folder / "tls.crt", "-subj",
        "/CN=relibra-planner", "-days", "2")  # fmt: skip
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def test_the_planner_starts_with_the_pod_s_arguments(resources, tmp_path):
    (container,) = planner_pod(resources)["spec"]["containers"]
    known = run(BIN / "relibra-planner", "--help").stdout
    certificate(tmp_path)
    arguments = []
    for argument in expanded(container, resources):
        flag, _, value = argument.partition("=")
        assert re.search(rf"^  +{flag}\b", known, re.M), flag
        for mount in container["volumeMounts"]:
            value = value.replace(mount["mountPath"], str(tmp_path))
        if flag not in ("--listen", "--metrics-address"):  # Planner takes free ports of its own
            arguments.append(f"{flag}={value}" if value else flag)
    with Planner(tmp_path, *arguments) as planner:
        assert planner.stop() == 0, planner.log.read_text()
    assert (tmp_path / "planner.sqlite").exists()


def test_the_memory_limit_leaves_room_above_the_planner_s_own(resources):
    (container,) = planner_pod(resources)["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "6Gi"
    quota = int(only(resources, "ConfigMap")["data"]["MAX_MEMORY_BYTES"])
    assert quota <= 4 << 30


def test_the_termination_takes_longer_than_the_drain(resources):
    pod = planner_pod(resources)["spec"]
    (drain,) = (arg.split("=")[1] for arg in pod["containers"][0]["args"] if "--drain" in arg)
    assert pod["terminationGracePeriodSeconds"] > float(drain)


def test_the_rules_are_those_of_deploy_prometheus():
    rule = yaml.safe_load((KUBERNETES / "components/monitoring/prometheusrule.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus/relibra.rules.yml").read_text())


def test_prometheus_finds_the_service_under_the_name_that_the_rules_use():
    resources = kustomize.render(KUBERNETES / "overlays/single")
    monitor, service = only(resources, "ServiceMonitor")["spec"], only(resources, "Service")
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "relibra-planner"
    names = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= names


def test_clients_carry_the_label_that_the_network_policy_asks_for(example):
    resources = kustomize.render(KUBERNETES / "base")
    (clients, _) = only(resources, "NetworkPolicy")["spec"]["ingress"]
    wanted = clients["from"][0]["podSelector"]["matchLabels"]
    for resource in example:
        for pod in pod_templates(resource):
            assert wanted.items() <= pod["metadata"]["labels"].items()


def test_the_preflight_s_agents_take_its_words(tmp_path):
    """Its script, run by a shell with a program in the agent's place that keeps the words."""
    job = yaml.safe_load((KUBERNETES / "examples/preflight.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell, dash_c, script = container["command"]
    stand_in = tmp_path / "relibra-agent"
    stand_in.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/words\n')
    stand_in.chmod(0o755)
    values = {"RELIBRA_PLANNER": "planner:7070", "NODES": "2", "JOB": "preflight"}
    assert values.keys() == {variable["name"] for variable in container["env"]}
    environment = {**values, "JOB_COMPLETION_INDEX": "1", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([shell, dash_c, script], check=True, env=environment, timeout=60)
    known = run(BIN / "relibra-agent", "selftest", "--help").stdout
    ranks = set()
    for line in (tmp_path / "words").read_text().splitlines():
        words = shlex.split(line)
        assert words[0] == "selftest"
        flags = dict(zip(words[1::2], words[2::2], strict=True))
        assert all(re.search(rf"^  +{flag}\b", known, re.M) for flag in flags)
        ranks.add(int(flags["--rank"]))
    assert ranks == set(range(8, 16))
