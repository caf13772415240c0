"""Repeating what failed on the way. Every call of the planner is safe to repeat."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc

from relibra.errors import RelibraError, from_rpc_error, is_transient

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Waits that double from `first` to `most` seconds, each shortened at random by up to half, so
    that many workers do not come back at once; given up after `give_up` seconds.
    """

    first: float = 0.1
    most: float = 5.0
    give_up: float = 60.0

    def call(self, attempt: Callable[[], T], wait: Callable[[float], object] = time.sleep) -> T:
        """What `attempt` returns, tried again while the planner cannot be reached.

        Args:
            attempt: may raise grpc.RpcError.
            wait: sleeps; a true result stops the repeating (an event that was set).

        Raises:
            RelibraError: refused, or not reached in time.
        """
        started = time.monotonic()
        pause = self.first
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                failure: RelibraError = from_rpc_error(error)
            jittered = pause * random.uniform(0.5, 1.0)
            late = time.monotonic() - started + jittered > self.give_up
            if not is_transient(failure) or late or wait(jittered):
                raise failure
            pause = min(2 * pause, self.most)
