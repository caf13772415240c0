"""The Slurm launcher and batch scripts, in a real Slurm of two nodes on loopback."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import BIN, DEPLOY, Process, run, wait_until

SLURM = DEPLOY / "slurm"
DONE = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and slurmctld need root"),
    pytest.mark.skipif(shutil.which("slurmctld") is None, reason="no slurmctld here"),
]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def configuration(folder, ports):
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName=node{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
        for i, port in enumerate(ports[1:])
    )
    # cred_expire: a job that is requeued waits so long before it starts again. The planners' ports
    # follow from the job ids, so other runs on this machine should have other ids.
    return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
MpiDefault=none
FirstJobId={os.getpid() % 9000 + 1}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=20
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{BIN}:{SLURM}:{os.environ['PATH']}",
        }

    def run(self, *words, **options):
        return run(*words, env=self.environment, cwd=self.folder, **options).stdout.strip()

    def submit(self, script, *flags, **environment):
        """The id of the job."""
        asked = {**self.environment, **environment}
        words = ["sbatch", "--parsable", *flags, script]
        return run(*words, env=asked, cwd=self.folder).stdout.strip()

    def describe(self, job):
        text = self.run("scontrol", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S+)", text))

    def wait_for(self, job, states, log):
        def reached():
            described = self.describe(job)
            return described if described["JobState"] in states else None

        return wait_until(
            reached, lambda: f"{self.describe(job)}\n{log.exists() and log.read_text()}"
        )

    def processes(self, job):
        """The processes of a job that run: a process belongs to it that has its id."""
        wanted = f"SLURM_JOB_ID={job}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in path.read_bytes():
                    found.append((path.parent / "cmdline").read_bytes().decode())
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # The path of munge's socket must be short.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(configuration(folder, free_ports(3)))
    cluster = Cluster(folder)
    munge = [f"--{what}={folder}/munge.{what.split('-')[0]}"
             for what in ("key-file", "socket", "pid-file", "log-file", "seed-file")]  # fmt: skip
    with contextlib.ExitStack() as stack:

        def start(*words):
            name = "-".join(word.strip("-/") for word in words[:3])
            log = folder / f"{name}.out"
            return stack.enter_context(Process(*words, log=log, env=cluster.environment))

        start("munged", "--foreground", "--force", *munge)
        wait_until((folder / "munge.socket").exists, "munged makes no socket")
        start("slurmctld", "-D", "-i")
        for i in range(2):
            start("slurmd", "-D", "-N", f"node{i}")
        logs = folder.glob("*.out")
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        wait_until(
            lambda: run(*idle, env=cluster.environment, check=False).stdout.strip() == "2",
            lambda: "\n".join(log.read_text() for log in logs),
        )
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


def script(cluster, name, command, flags=""):
    path = cluster.folder / f"{name}.sbatch"
    path.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --open-mode=append {flags}\n"
        f"#SBATCH --output={name}.log\nexec relibra-slurm-launch bash -c '{command}'\n"
    )
    return path, cluster.folder / f"{name}.log"


def assert_nothing_runs(cluster, job):
    wait_until(lambda: not cluster.processes(job), lambda: cluster.processes(job))


def test_the_preflight_runs_to_its_end(cluster):
    job = cluster.submit(
        SLURM / "preflight.sbatch", "--nodes=2", "--ntasks-per-node=2",
        RELIBRA_AGENT_FLAGS="--transports tcp,self")  # fmt: skip
    log = cluster.folder / f"relibra-preflight-{job}.log"
    assert cluster.wait_for(job, DONE, log)["JobState"] == "COMPLETED", log.read_text()
    results = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert sorted(result["rank"] for result in results) == [0, 1, 2, 3]
    assert all(result["passed"] for result in results)
    assert not (cluster.folder / f"relibra-{job}").exists()  # no state is left behind
    assert_nothing_runs(cluster, job)


def test_ranks_are_numbered_node_by_node(cluster):
    path, log = script(cluster, "ranks", 'echo "rank $RELIBRA_RANK on $SLURMD_NODENAME"')
    job = cluster.submit(path)
    cluster.wait_for(job, DONE, log)
    found = sorted(re.findall(r"^rank (\d) on (\w+)$", log.read_text(), re.M))
    assert found == [("0", "node0"), ("1", "node0"), ("2", "node1"), ("3", "node1")]


def test_the_job_fails_as_its_command_does(cluster):
    path, log = script(cluster, "fails", "exit $((RELIBRA_RANK == 3 ? 7 : 0))")
    job = cluster.submit(path)
    assert cluster.wait_for(job, DONE, log)["ExitCode"] == "7:0", log.read_text()
    assert_nothing_runs(cluster, job)


def test_a_planner_that_cannot_start_is_named(cluster):
    path, log = script(cluster, "no-planner", "echo trained")
    job = cluster.submit(path, RELIBRA_PLANNER_FLAGS="--nonsense")
    assert cluster.wait_for(job, DONE, log)["ExitCode"] == "1:0"
    assert "--nonsense" in log.read_text()
    assert "trained" not in log.read_text()


def test_a_job_that_is_cancelled_ends_its_planner_in_peace(cluster):
    path, log = script(cluster, "cancelled", "echo up; exec sleep 1000")
    job = cluster.submit(path)
    wait_until(lambda: log.exists() and log.read_text().count("up\n") == 4, "tasks do not start")
    cluster.run("scancel", job)
    assert cluster.wait_for(job, DONE, log)["JobState"] == "CANCELLED"
    assert_nothing_runs(cluster, job)
    state = cluster.folder / f"relibra-{job}"
    assert "event=stopped" in (state / "planner.log").read_text()
    assert (state / "planner.sqlite").exists()  # for a job that goes on


def test_a_requeued_job_finds_its_plans_again(cluster):
    status = 'relibra status --planner "$RELIBRA_PLANNER" --json'
    path, log = script(
        cluster,
        "requeued",
        # First it trains two steps and waits; the second time it looks at what the planner knows.
        f"""
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  relibra-agent selftest --planner "$RELIBRA_PLANNER" --job "$RELIBRA_JOB" --rank "$RELIBRA_RANK" \\
    --nodes 2 --gpus-per-node 2 --hidden 16 --intermediate 24 --transports tcp,self --steps 2
  [ "$RELIBRA_RANK" != 0 ] || {status} > first.json
  echo trained; exec sleep 1000
fi
[ "$RELIBRA_RANK" != 0 ] || {status} > second.json""",
        flags="--requeue",
    )
    job = cluster.submit(path)
    wait_until(lambda: log.exists() and log.read_text().count("trained\n") == 4, log.name)
    cluster.run("scontrol", "requeue", job)
    assert cluster.wait_for(job, DONE, log)["JobState"] == "COMPLETED", log.read_text()
    assert cluster.describe(job)["Restarts"] == "1"

    def plans(name):
        (known,) = json.loads((cluster.folder / name).read_text())["jobs"]
        return [(step["key"], plan["digest"]) for step in known["steps"] for plan in step["plans"]]

    assert len(plans("first.json")) == 2
    assert plans("second.json") == plans("first.json")


@pytest.mark.parametrize("path", sorted(SLURM.glob("*.sbatch")), ids=lambda path: path.name)
def test_slurm_takes_the_flags_of_the_batch_script(cluster, path):
    """Up to GPUs, which these nodes have not."""
    text = path.read_text().replace("#SBATCH --gpus-per-node=8\n", "")
    text = re.sub(r"(--ntasks-per-node|--cpus-per-task)=\d+\n", r"\1=1\n", text)
    copy = cluster.folder / path.name
    copy.write_text(text)
    cluster.run("sbatch", "--test-only", copy)
