"""What the planner says of itself. The words are those of planner.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relibra.job import JobSpec
from relibra.plan import Plan

_OUTCOMES = {0: "", 1: "applied", 2: "kept_old", 3: "failed"}


@dataclass(frozen=True)
class AgentStatus:
    """One worker agent; last_outcome is "", "applied", "kept_old" or "failed"."""

    ep_group: str
    rank: int
    host: str
    watching: bool
    last_step: int
    last_outcome: str
    last_reason: str


@dataclass(frozen=True)
class StepStatus:
    """One step: its records, and its plans without layers."""

    step: int
    policy_version: int
    sequences: int
    tokens: int
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class JobStatus:
    """One job."""

    spec: JobSpec
    agents: tuple[AgentStatus, ...]
    steps: tuple[StepStatus, ...]
    records: int
    record_bytes: int
    last_error: str


@dataclass(frozen=True)
class ServiceStatus:
    """The planner and the jobs that were asked for."""

    planner_version: str
    uptime_seconds: float
    jobs: tuple[JobStatus, ...]

    @staticmethod
    def from_proto(message: Any) -> ServiceStatus:
        """The status that a GetStatusResponse holds."""
        return ServiceStatus(
            message.planner_version,
            message.uptime_seconds,
            tuple(_job(job) for job in message.jobs),
        )


def _job(message: Any) -> JobStatus:
    return JobStatus(
        spec=JobSpec.from_proto(message.spec),
        agents=tuple(_agent(agent) for agent in message.agents),
        steps=tuple(
            StepStatus(
                step.key.step,
                step.key.policy_version,
                step.sequences,
                step.tokens,
                tuple(Plan.from_proto(plan) for plan in step.plans),
            )
            for step in message.steps
        ),
        records=message.records,
        record_bytes=message.record_bytes,
        last_error=message.last_error,
    )


def _agent(message: Any) -> AgentStatus:
    return AgentStatus(
        ep_group=message.ep_group,
        rank=message.rank,
        host=message.host,
        watching=message.watching,
        last_step=message.last_step,
        last_outcome=_OUTCOMES.get(message.last_outcome, ""),
        last_reason=message.last_reason,
    )
