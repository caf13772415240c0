"""The client for asyncio: the same calls as Planner, awaited.

    async with await AsyncPlanner.connect("planner:7070", job=spec) as planner:
        await planner.add_routing("prompt-3/1", routed_experts, step=17)

Each call runs Planner's in a thread, so the event loop never waits: not for the planner, not for
room in the queue, not while ids are checked. A cancelled call is not awaited any longer, but ends
in its thread; every call is safe to repeat.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from relibra.client import Planner
from relibra.job import JobSpec
from relibra.sender import SenderStats

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Planner, P], T],
) -> Callable[Concatenate[AsyncPlanner, P], Coroutine[Any, Any, T]]:
    """An async method of AsyncPlanner that runs the Planner's method of that name in a thread."""

    @functools.wraps(method)
    async def call(self: AsyncPlanner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._planner, *args, **kwargs)

    return call


class AsyncPlanner:
    """Planner's twin for asyncio. Made by `connect`."""

    def __init__(self, planner: Planner):
        self._planner = planner

    @staticmethod
    async def connect(address: str, job: JobSpec | str, **options: Any) -> AsyncPlanner:
        """Connects and registers the job; the arguments are Planner's."""
        return AsyncPlanner(await asyncio.to_thread(Planner, address, job, **options))

    @property
    def job(self) -> JobSpec:
        """The job's spec."""
        return self._planner.job

    @property
    def sent(self) -> SenderStats:
        """What routing has been delivered."""
        return self._planner.sent

    def start_step(self, step: int, policy_version: int = 0) -> None:
        """Makes (step, policy_version) what calls without a step of their own mean."""
        self._planner.start_step(step, policy_version)

    add_routing = _awaited(Planner.add_routing)
    add_batch = _awaited(Planner.add_batch)
    flush = _awaited(Planner.flush)
    pack = _awaited(Planner.pack)
    plan_step = _awaited(Planner.plan_step)
    get_plan = _awaited(Planner.get_plan)
    status = _awaited(Planner.status)
    delete_job = _awaited(Planner.delete_job)
    close = _awaited(Planner.close)

    async def __aenter__(self) -> AsyncPlanner:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delivers what is pending, unless an exception is on its way, and closes."""
        await asyncio.to_thread(self._planner.__exit__, kind, error, trace)
