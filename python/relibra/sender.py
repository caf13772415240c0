"""Sends routing records in the background: batched, bounded, repeated until they arrive."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from relibra.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    RelibraError,
    RoutingRejectedError,
)
from relibra.retry import Backoff
from relibra.v1 import routing_pb2

_KEPT_FAILURES = 100
_LOG = logging.getLogger("relibra")


@dataclass(frozen=True)
class SenderOptions:
    """How records are batched.

    Attributes:
        max_pending_bytes: records that wait or are on their way; more make `put` wait.
        message_bytes: records of one step are put into messages of about this size.
        window_bytes: messages that are sent before the planner is asked to acknowledge them.
        linger_seconds: how long a window waits for more records, unless `flush` is waiting.
        timeout: seconds that the planner may take for a window.
    """

    max_pending_bytes: int = 256 << 20
    message_bytes: int = 1 << 20
    window_bytes: int = 16 << 20
    linger_seconds: float = 0.02
    timeout: float = 60.0


@dataclass(frozen=True)
class _Item:
    key: Any  # StepKey
    record: Any  # RoutingRecord
    size: int


@dataclass
class SenderStats:
    """What has been delivered so far. `repeated` were there already, from an earlier attempt."""

    accepted: int = 0
    repeated: int = 0
    bytes_received: int = 0
    warnings: list[str] = field(default_factory=list)


class RoutingSender:
    """One background thread that streams records to the planner.

    Records are kept until the planner has acknowledged them. One that the planner refuses is
    reported by the next `flush`, and does not hold up the others. Any thread may call.
    """

    def __init__(
        self,
        stream: Callable[[Iterator[Any], float], Any],
        options: SenderOptions,
        backoff: Backoff,
    ):
        self._stream = stream
        self._options = options
        self._backoff = backoff
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._pending_bytes = 0
        self._in_flight = 0
        self._flushing = 0
        self._closed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures: list[tuple[tuple[str, ...], RelibraError]] = []
        self._failed = 0
        self._stats = SenderStats()

    def put(self, key: Any, records: list[Any], timeout: float | None = None) -> None:
        """Queues records of one step; waits while too many bytes are pending.

        Args:
            key: StepKey.
            records: RoutingRecord, all or none of them are queued.
            timeout: seconds to wait at most; None: as long as it takes.

        Raises:
            TimeoutError: the queue stayed full; nothing was queued.
            RuntimeError: the sender is closed.
        """
        items = [_Item(key, record, record.ByteSize()) for record in records]
        size = sum(item.size for item in items)
        with self._changed:
            # A record larger than the whole queue must still pass: it waits for an empty one.
            has_room = self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._pending_bytes == 0
                    or self._pending_bytes + size <= self._options.max_pending_bytes
                ),
                timeout,
            )
            if self._closed:
                raise RuntimeError("the planner client is closed")
            if not has_room:
                raise TimeoutError(
                    f"{self._pending_bytes} bytes of routing wait for the planner, and no room "
                    f"came free in {timeout} s"
                )
            self._waiting.extend(items)
            self._pending_bytes += size
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="relibra-routing", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was queued has been acknowledged or refused.

        Raises:
            RoutingRejectedError: records that were refused, or not delivered before the retries
                ended, since the last flush.
            TimeoutError: not done in `timeout` seconds; sending goes on.
        """
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(
                    lambda: not self._waiting and not self._in_flight, timeout
                )
            finally:
                self._flushing -= 1
            if not done:
                raise TimeoutError(
                    f"{len(self._waiting) + self._in_flight} records not yet delivered after "
                    f"{timeout} s"
                )
            if self._failed:
                error = RoutingRejectedError(self._failures, self._failed)
                self._failures, self._failed = [], 0
                raise error

    def close(self) -> None:
        """Stops the thread; what is not delivered is dropped. `flush` first to keep it."""
        with self._changed:
            self._closed = True
            self._stop.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    @property
    def stats(self) -> SenderStats:
        """A copy of the figures so far."""
        with self._changed:
            stats = self._stats
            return SenderStats(
                stats.accepted, stats.repeated, stats.bytes_received, list(stats.warnings)
            )

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait or are on their way."""
        with self._changed:
            return self._pending_bytes

    def _run(self) -> None:
        while True:
            window = self._take_window()
            if window is None:
                return
            self._deliver(window)
            with self._changed:
                self._pending_bytes -= sum(item.size for item in window)
                self._in_flight = 0
                self._changed.notify_all()

    def _take_window(self) -> list[_Item] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            deadline = time.monotonic() + self._options.linger_seconds
            self._changed.wait_for(
                lambda: (
                    self._flushing
                    or self._closed
                    or self._pending_bytes >= self._options.message_bytes
                ),
                max(0.0, deadline - time.monotonic()),
            )
            window: list[_Item] = []
            size = 0
            while self._waiting and (not window or size < self._options.window_bytes):
                item = self._waiting.popleft()
                window.append(item)
                size += item.size
            self._in_flight = len(window)
            return window

    def _deliver(self, window: list[_Item]) -> None:
        """Sends a window; halves it to find the records that the planner refuses."""
        if self._stop.is_set():
            return
        try:
            response = self._backoff.call(
                lambda: self._stream(self._messages(window), self._options.timeout),
                self._stop.wait,
            )
        except RelibraError as error:
            if _may_be_others_fault(error, window):
                middle = len(window) // 2
                self._deliver(window[:middle])
                self._deliver(window[middle:])
                return
            self._fail(window, error)
            return
        for warning in response.warnings:
            _LOG.warning("%s", warning)
        with self._changed:
            self._stats.accepted += response.records_accepted
            self._stats.repeated += response.records_repeated
            self._stats.bytes_received += response.bytes_received
            room = _KEPT_FAILURES - len(self._stats.warnings)
            self._stats.warnings.extend(list(response.warnings)[: max(0, room)])

    def _fail(self, window: list[_Item], error: RelibraError) -> None:
        with self._changed:
            self._failed += len(window)
            if len(self._failures) < _KEPT_FAILURES:
                ids = tuple(dict.fromkeys(item.record.sequence_id for item in window))
                self._failures.append((ids[:_KEPT_FAILURES], error))

    def _messages(self, window: list[_Item]) -> Iterator[Any]:
        """StreamRoutingRequests: consecutive records of one step, up to message_bytes."""
        message: Any = None
        size = 0
        for item in window:
            full = size + item.size > self._options.message_bytes
            if message is None or full or message.key != item.key:
                if message is not None:
                    yield message
                message = routing_pb2.StreamRoutingRequest(key=item.key)
                size = 0
            message.records.append(item.record)
            size += item.size
        if message is not None:
            yield message


def _may_be_others_fault(error: RelibraError, window: list[_Item]) -> bool:
    """Whether some records of a refused window may be good: one is wrong, or one step is over."""
    if len(window) == 1:
        return False
    if isinstance(error, FailedPreconditionError):
        return any(item.key != window[0].key for item in window)
    return isinstance(error, InvalidArgumentError)
