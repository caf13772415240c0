"""Exceptions of the client: one for each way in which the planner refuses, with its own words."""

from __future__ import annotations

from typing import ClassVar

import grpc


class RelibraError(Exception):
    """What the planner, or the way to it, answered.

    Attributes:
        code: the gRPC status code's name, e.g. "INVALID_ARGUMENT".
        details: the status' text, which names field, index and what was expected.
    """

    code: ClassVar[str] = "UNKNOWN"

    def __init__(self, details: str):
        super().__init__(details)
        self.details = details


class InvalidArgumentError(RelibraError):
    """The request is wrong; the text names layer, micro-batch, rank or expert."""

    code = "INVALID_ARGUMENT"


class NotFoundError(RelibraError):
    """No such job, step or plan."""

    code = "NOT_FOUND"


class FailedPreconditionError(RelibraError):
    """Too late or too early: the step is planned already, or records are missing."""

    code = "FAILED_PRECONDITION"


class ResourceExhaustedError(RelibraError):
    """Over one of the planner's quotas; the text names its flag."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(RelibraError):
    """The planner could not be reached, also after retries. Training goes on without it."""

    code = "UNAVAILABLE"


class DeadlineExceededError(RelibraError):
    """No answer in time."""

    code = "DEADLINE_EXCEEDED"


class UnauthenticatedError(RelibraError):
    """The planner wants credentials that were not given."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(RelibraError):
    """The credentials do not allow this."""

    code = "PERMISSION_DENIED"


class InternalError(RelibraError):
    """The planner failed in a way that it does not expect."""

    code = "INTERNAL"


class RoutingRejectedError(RelibraError):
    """Routing that was handed over could not be delivered.

    Attributes:
        failures: (sequence ids, why) of each part, the first hundred.
    """

    code = "DATA_LOSS"

    def __init__(self, failures: list[tuple[tuple[str, ...], RelibraError]], total: int):
        ids, first = failures[0]
        named = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        super().__init__(f"{total} records were not delivered; sequences {named}: {first}")
        self.failures = failures


_BY_CODE: dict[str, type[RelibraError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        FailedPreconditionError,
        ResourceExhaustedError,
        UnavailableError,
        DeadlineExceededError,
        UnauthenticatedError,
        PermissionDeniedError,
        InternalError,
    )
}


def from_rpc_error(error: grpc.RpcError) -> RelibraError:
    """The exception for what gRPC raised."""
    name: str = error.code().name
    details: str = error.details() or name
    kind = _BY_CODE.get(name)
    if kind is None:
        return RelibraError(f"{name}: {details}")
    return kind(details)


def is_transient(error: RelibraError) -> bool:
    """Whether the same call can succeed later: every call is safe to repeat."""
    return isinstance(error, UnavailableError)
