"""What a job is: its model, its GPUs, how it is planned. The words are those of job.proto."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from relibra.v1 import job_pb2


class LayerAxis(IntEnum):
    """How the layer axis of recorded routing relates to the model's layers."""

    MOE_LAYERS = 1
    """One row a MoE layer, in the order of Model.moe_layer_ids."""
    ALL_LAYERS = 2
    """One row a hidden layer; dense layers' rows are skipped."""


class Effort(IntEnum):
    """How long planning may take."""

    FAST = 1
    THOROUGH = 2


ID_TYPES: dict[str, int] = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "uint16": 4,
    "int32": 5,
    "int64": 6,
}
"""NumPy names of the integer types in which ids travel, with their numbers in job.proto."""

_ID_TYPE_NAMES = {number: name for name, number in ID_TYPES.items()}


@dataclass(frozen=True)
class Model:
    """The MoE part of a model; sizes are of one logical expert in one layer.

    Attributes:
        moe_layer_ids: the model's own numbers of its MoE layers, ascending.
        num_experts: logical experts a layer, E.
        top_k: experts a token is routed to, K.
        weight_bytes: bytes of an expert's weights.
        gradient_bytes: bytes of an expert's gradient.
        optimizer_bytes: bytes of master weights and moments.
        flops_per_token: forward FLOPs of one token in one expert.
        token_bytes: bytes of a token's hidden state.
    """

    moe_layer_ids: tuple[int, ...]
    num_experts: int
    top_k: int
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    flops_per_token: int = 0
    token_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "moe_layer_ids", tuple(self.moe_layer_ids))


@dataclass(frozen=True)
class Topology:
    """The GPUs of one EP group: rank = node * gpus_per_node + local. Bandwidths in bytes a second,
    0 where unknown.
    """

    nodes: int
    gpus_per_node: int
    replica_slots: int = 2
    intra_node_bandwidth: int = 0
    inter_node_bandwidth: int = 0
    gpu_flops: int = 0

    @property
    def num_ranks(self) -> int:
        """Ranks of the group, P."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class EpGroup:
    """Ranks that hold the experts of some layers between them; see job.proto."""

    name: str
    global_ranks: tuple[int, ...] = ()
    layer_ids: tuple[int, ...] = ()
    data_parallel_index: int = 0


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    Attributes:
        effort: FAST (milliseconds a batch) or THOROUGH.
        bridges: most bridges a node; None: the planner decides.
        max_moves: most experts that change their home in a step; None: no limit.
        move_cost: tokens that moving one expert is worth; 0: free.
        replica_cost: tokens that making one replica is worth; 0: free.
        seed: of randomised searches.
    """

    effort: Effort = Effort.FAST
    bridges: int | None = None
    max_moves: int | None = None
    move_cost: float = 0.0
    replica_cost: float = 0.0
    seed: int = 0

    def to_proto(self) -> Any:
        """The message PlanOptions."""
        message = job_pb2.PlanOptions(
            effort=int(self.effort),
            move_cost=self.move_cost,
            replica_cost=self.replica_cost,
            seed=self.seed,
        )
        if self.bridges is not None:
            message.bridges = self.bridges
        if self.max_moves is not None:
            message.max_moves = self.max_moves
        return message

    @staticmethod
    def from_proto(message: Any) -> PlanOptions:
        """The options that a message holds."""
        return PlanOptions(
            effort=Effort(message.effort or Effort.FAST),
            bridges=message.bridges if message.HasField("bridges") else None,
            max_moves=message.max_moves if message.HasField("max_moves") else None,
            move_cost=message.move_cost,
            replica_cost=message.replica_cost,
            seed=message.seed,
        )


@dataclass(frozen=True)
class JobSpec:
    """A training run as the planner must know it.

    Attributes:
        job: unique in the planner, 1 to 63 of [a-z0-9-].
        model: its MoE part.
        topology: the shape of each EP group.
        ep_groups: empty: one group "ep0" of all ranks and layers.
        layer_axis: what the layer axis of recorded routing is.
        id_type: NumPy name of the type of ids on the wire; "": the smallest that fits.
        num_hidden_layers: length of the layer axis under ALL_LAYERS.
        max_missing_share: largest share of a step's tokens without route; 0: the default of 0.05.
        plan_options: how to plan.
    """

    job: str
    model: Model
    topology: Topology
    ep_groups: tuple[EpGroup, ...] = ()
    layer_axis: LayerAxis = LayerAxis.MOE_LAYERS
    id_type: str = ""
    num_hidden_layers: int = 0
    max_missing_share: float = 0.0
    plan_options: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        if self.id_type:
            if self.id_type not in ID_TYPES:
                raise ValueError(f"id_type: {self.id_type!r} is not one of {', '.join(ID_TYPES)}")
            most = np.iinfo(self.id_type).max
            if most < self.model.num_experts - 1:
                raise ValueError(
                    f"id_type: {self.id_type} holds ids up to {most}, but the model has "
                    f"{self.model.num_experts} experts"
                )
        if self.layer_axis == LayerAxis.ALL_LAYERS and self.num_hidden_layers <= max(
            self.model.moe_layer_ids, default=-1
        ):
            raise ValueError(
                f"num_hidden_layers: {self.num_hidden_layers}, but MoE layer "
                f"{max(self.model.moe_layer_ids)} exists and layer_axis is ALL_LAYERS"
            )

    @property
    def num_recorded_layers(self) -> int:
        """Length of the layer axis of recorded routing, L."""
        if self.layer_axis == LayerAxis.ALL_LAYERS:
            return self.num_hidden_layers
        return len(self.model.moe_layer_ids)

    @property
    def recorded_moe_layers(self) -> tuple[int, ...]:
        """Indices on the recorded layer axis that are MoE layers."""
        if self.layer_axis == LayerAxis.ALL_LAYERS:
            return self.model.moe_layer_ids
        return tuple(range(len(self.model.moe_layer_ids)))

    def to_proto(self) -> Any:
        """The message JobSpec."""
        message = job_pb2.JobSpec(
            job=self.job,
            model=job_pb2.Model(**vars(self.model)),
            topology=job_pb2.Topology(**vars(self.topology)),
            layer_axis=int(self.layer_axis),
            id_type=ID_TYPES.get(self.id_type, 0),
            num_hidden_layers=self.num_hidden_layers,
            max_missing_share=self.max_missing_share,
            plan_options=self.plan_options.to_proto(),
        )
        for group in self.ep_groups:
            message.ep_groups.add(**vars(group))
        return message

    @staticmethod
    def from_proto(message: Any) -> JobSpec:
        """The spec that a message holds."""
        model = {name: getattr(message.model, name) for name in Model.__dataclass_fields__}
        topology = {name: getattr(message.topology, name) for name in Topology.__dataclass_fields__}
        return JobSpec(
            job=message.job,
            model=Model(**model),
            topology=Topology(**topology),
            ep_groups=tuple(
                EpGroup(
                    group.name,
                    tuple(group.global_ranks),
                    tuple(group.layer_ids),
                    group.data_parallel_index,
                )
                for group in message.ep_groups
            ),
            layer_axis=LayerAxis(message.layer_axis or LayerAxis.MOE_LAYERS),
            id_type=_ID_TYPE_NAMES.get(message.id_type, ""),
            num_hidden_layers=message.num_hidden_layers,
            max_missing_share=message.max_missing_share,
            plan_options=PlanOptions.from_proto(message.plan_options),
        )
