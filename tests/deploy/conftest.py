"""What the deployment tests share: the built programs, and the files under deploy/ as they are."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
BUILD = Path(os.environ.get("RELIBRA_BUILD_DIR", REPOSITORY / "build" / "release"))
BIN = BUILD / "bin"


def run(*words, timeout=120, check=True, **options):
    """Runs a program to its end; a failure shows what it printed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=timeout, **options
    )
    if check and done.returncode != 0:
        pytest.fail(f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def wait_until(condition, what, seconds=60):
    """Polls until `condition` gives something true, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    pytest.fail(f"not within {seconds} s: {what() if callable(what) else what}")


class Process:
    """A program in the background, its output in a file; ended with the `with` block."""

    def __init__(self, *words, log, **options):
        self.log = Path(log)
        with self.log.open("w") as out:
            self.popen = subprocess.Popen(
                [str(word) for word in words], stdout=out, stderr=subprocess.STDOUT, **options
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self, number=signal.SIGTERM):
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            try:
                self.popen.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        return self.popen.returncode


class Planner(Process):
    """relibra-planner at free ports of loopback; `grpc` and `metrics` are its addresses."""

    def __init__(self, folder, *flags, program=BIN / "relibra-planner", name="planner"):
        ports = Path(folder) / f"{name}.ports"
        super().__init__(
            program,
            "--listen=127.0.0.1:0",
            "--metrics-address=127.0.0.1:0",
            f"--port-file={ports}",
            *flags,
            log=Path(folder) / f"{name}.log",
        )
        wait_until(ports.exists, self.log.read_text)
        chosen = dict(line.split() for line in ports.read_text().splitlines())
        self.grpc, self.metrics = (f"127.0.0.1:{chosen[name]}" for name in ("grpc", "metrics"))


def selftest(folder, planner, nodes, gpus, *flags):
    """The demo run: one agent a rank trains a small model to its end; each agent's status."""
    agents = [
        Process(
            *(BIN / "relibra-agent", "selftest", "--planner", planner, "--rank", rank),
            *("--nodes", nodes, "--gpus-per-node", gpus, "--hidden", 16, "--intermediate", 24),
            *("--transports", "tcp,self", *flags),
            log=Path(folder) / f"agent{rank}.log",
        )
        for rank in range(nodes * gpus)
    ]
    statuses = []
    try:
        statuses = [agent.popen.wait(timeout=120) for agent in agents]
    finally:
        for agent in agents:
            agent.stop()
    if any(statuses):
        pytest.fail("\n".join(agent.log.read_text() for agent in agents))
