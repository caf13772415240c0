"""ReLibra: expert load balancing for MoE reinforcement learning.

`Planner` and `AsyncPlanner` talk to the planner service; relibra.eplb places experts from past
loads without it; relibra.placements reads and writes other systems' placements; relibra.adapters
fits it all to verl, slime, NeMo-RL, Megatron-Core and prime-rl.
"""

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
