"""The planner's calls, made from the API's descriptors so that no generated stub is needed."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import message_factory

from relibra.v1 import planner_pb2

SERVICE = "relibra.v1.Planner"
# A message may be larger than gRPC's default of 4 MiB: a layer's plan of a large group is.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),
    # Back soon after the planner is: gRPC itself would wait up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


def methods() -> dict[str, tuple[bool, bool, Any, Any]]:
    """(client streams, server streams, request class, response class) by the call's name."""
    service = planner_pb2.DESCRIPTOR.services_by_name["Planner"]
    return {
        method.name: (
            method.client_streaming,
            method.server_streaming,
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for method in service.methods
    }


class Calls:
    """Every call of the service as an attribute: calls.PlanStep(request, timeout=...)."""

    def __init__(self, channel: grpc.Channel):
        makers = {
            (False, False): channel.unary_unary,
            (True, False): channel.stream_unary,
            (False, True): channel.unary_stream,
            (True, True): channel.stream_stream,
        }
        for name, (client_streams, server_streams, request, response) in methods().items():
            call = makers[client_streams, server_streams](
                f"/{SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the planner has no call {name}")
