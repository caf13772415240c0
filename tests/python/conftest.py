"""Makes the package importable from the source tree, with the API generated there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "python"

subprocess.run([sys.executable, str(PACKAGE / "generate_api.py")], check=True)
sys.path.insert(0, str(PACKAGE))

# The same cases on every machine, and no deadline: other work may share the machine.
settings.register_profile("relibra", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("relibra")

from fake_planner import FakePlanner  # noqa: E402
from relibra import Backoff, JobSpec, Model, Planner, Topology  # noqa: E402


@pytest.fixture
def spec():
    """Two MoE layers of 8 experts, top 2, on 2 nodes of 2 GPUs."""
    return JobSpec("test", Model((0, 1), num_experts=8, top_k=2), Topology(2, 2, replica_slots=1))


@pytest.fixture
def fake_planner():
    with FakePlanner() as server:
        yield server


@pytest.fixture
def planner(fake_planner, spec):
    with Planner(fake_planner.address, spec, backoff=Backoff(first=0.001, give_up=5)) as client:
        yield client


@pytest.fixture
def random():
    return np.random.default_rng(7)
