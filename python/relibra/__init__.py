"""ReLibra: expert load balancing for MoE reinforcement learning.

`Planner` and `AsyncPlanner` talk to the planner service; relibra.eplb places experts from past
loads without it; relibra.placements reads and writes other systems' placements; relibra.adapters
fits it all to verl, slime, NeMo-RL, Megatron-Core and prime-rl.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relibra.aio import AsyncPlanner
    from relibra.client import Planner
    from relibra.errors import (
        DeadlineExceededError,
        FailedPreconditionError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        PermissionDeniedError,
        RelibraError,
        ResourceExhaustedError,
        RoutingRejectedError,
        UnauthenticatedError,
        UnavailableError,
    )
    from relibra.job import Effort, EpGroup, JobSpec, LayerAxis, Model, PlanOptions, Topology
    from relibra.plan import (
        Composition,
        LayerPlan,
        MicroBatchPlan,
        Packing,
        Plan,
        PlanSummary,
        SequencePlacement,
    )
    from relibra.retry import Backoff
    from relibra.sender import SenderOptions
    from relibra.status import ServiceStatus

__all__ = [
    "AsyncPlanner",
    "Backoff",
    "Composition",
    "DeadlineExceededError",
    "Effort",
    "EpGroup",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "JobSpec",
    "LayerAxis",
    "LayerPlan",
    "MicroBatchPlan",
    "Model",
    "NotFoundError",
    "Packing",
    "PermissionDeniedError",
    "Plan",
    "PlanOptions",
    "PlanSummary",
    "Planner",
    "RelibraError",
    "ResourceExhaustedError",
    "RoutingRejectedError",
    "SenderOptions",
    "SequencePlacement",
    "ServiceStatus",
    "Topology",
    "UnauthenticatedError",
    "UnavailableError",
]
__version__ = "0.1.0"

# Imported when first asked for, so that relibra.eplb and relibra.placements need neither gRPC nor
# the time to load it.
_HOMES = {
    "relibra.aio": ("AsyncPlanner",),
    "relibra.client": ("Planner",),
    "relibra.errors": (
        "DeadlineExceededError",
        "FailedPreconditionError",
        "InternalError",
        "InvalidArgumentError",
        "NotFoundError",
        "PermissionDeniedError",
        "RelibraError",
        "ResourceExhaustedError",
        "RoutingRejectedError",
        "UnauthenticatedError",
        "UnavailableError",
    ),
    "relibra.job": (
        "Effort",
        "EpGroup",
        "JobSpec",
        "LayerAxis",
        "Model",
        "PlanOptions",
        "Topology",
    ),
    "relibra.plan": (
        "Composition",
        "LayerPlan",
        "MicroBatchPlan",
        "Packing",
        "Plan",
        "PlanSummary",
        "SequencePlacement",
    ),
    "relibra.retry": ("Backoff",),
    "relibra.sender": ("SenderOptions",),
    "relibra.status": ("ServiceStatus",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public names, from where they are defined."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'relibra' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What `dir(relibra)` shows."""
    return sorted([*globals(), *__all__])
