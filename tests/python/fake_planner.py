"""A planner service in this process that keeps what it is sent and fails when it is told to."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc
import numpy as np

from relibra._api import SERVICE, methods
from relibra.v1 import agent_pb2, plan_pb2, planner_pb2, routing_pb2

ID_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<i8"}


class FakePlanner:
    """Accepts jobs and records; counts a record once, as the real one does."""

    def __init__(self):
        self.requests = []  # (call's name, request), streams as lists
        self.records = {}  # (step, sequence id, token offset) -> RoutingRecord
        self.failures = []  # status codes for the next calls, first first
        self.refuse = None  # record -> text of INVALID_ARGUMENT, or None
        self.blocked = threading.Event()  # cleared: StreamRouting waits
        self.blocked.set()
        self.spec = None
        self.plan = None
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        handlers = {}
        for name, (client_streams, server_streams, request, response) in methods().items():
            if not hasattr(self, name):
                continue
            makers = {
                (False, False): grpc.unary_unary_rpc_method_handler,
                (True, False): grpc.stream_unary_rpc_method_handler,
                (False, True): grpc.unary_stream_rpc_method_handler,
            }
            handlers[name] = makers[client_streams, server_streams](
                getattr(self, name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self.blocked.set()
        self._server.stop(None)

    def note(self, name, request, context):
        with self._lock:
            self.requests.append((name, request))
            failure = self.failures.pop(0) if self.failures else None
        if failure:
            context.abort(failure, f"told to fail {name}")

    def calls(self, name):
        with self._lock:
            return [request for called, request in self.requests if called == name]

    def ids(self, step, sequence_id):
        """The sequence's rows, all pieces in order: [tokens, layers, top_k]."""
        with self._lock:
            pieces = sorted(
                (offset, record)
                for (at, name, offset), record in self.records.items()
                if (at, name) == (step, sequence_id)
            )
        arrays = [
            np.frombuffer(record.ids.ids, ID_TYPES[record.ids.id_type]).reshape(
                record.ids.num_tokens, record.ids.num_layers, record.ids.top_k
            )
            for _, record in pieces
        ]
        return np.concatenate(arrays)

    def RegisterJob(self, request, context):  # noqa: N802
        self.note("RegisterJob", request, context)
        self.spec = request.spec
        return planner_pb2.RegisterJobResponse(spec=request.spec)

    def GetStatus(self, request, context):  # noqa: N802
        self.note("GetStatus", request, context)
        response = planner_pb2.GetStatusResponse(planner_version="fake", uptime_seconds=1.5)
        if self.spec is not None:
            job = response.jobs.add(spec=self.spec, records=len(self.records))
            job.agents.add(ep_group="ep0", rank=3, last_outcome=agent_pb2.STEP_OUTCOME_APPLIED)
            step = job.steps.add(sequences=2, tokens=9)
            step.key.step = 4
        return response

    def StreamRouting(self, messages, context):  # noqa: N802
        self.note("StreamRouting", None, context)
        self.blocked.wait()
        response = routing_pb2.StreamRoutingResponse()
        for message in messages:
            self.note("StreamRouting.message", message, context)
            for record in message.records:
                if self.refuse and (why := self.refuse(record)):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
                key = (message.key.step, record.sequence_id, record.token_offset)
                with self._lock:
                    known = key in self.records
                    self.records[key] = record
                response.records_repeated += known
                response.records_accepted += not known
            response.bytes_received += message.ByteSize()
        return response

    def UploadLoads(self, messages, context):  # noqa: N802
        self.note("UploadLoads", list(messages), context)
        return planner_pb2.UploadLoadsResponse()

    def PlanStep(self, request, context):  # noqa: N802
        self.note("PlanStep", request, context)
        plan = plan_pb2.Plan(job=request.key.job, step=request.key.step, ep_group="ep0")
        plan.summary.imbalance_before = 2
        plan.summary.imbalance_after = 1.25
        return planner_pb2.PlanStepResponse(plans=[plan])

    def PackSequences(self, request, context):  # noqa: N802
        self.note("PackSequences", request, context)
        response = planner_pb2.PackSequencesResponse(node_imbalance=1.1, node_imbalance_before=1.3)
        response.composition.num_micro_batches = request.num_micro_batches
        with self._lock:
            names = sorted({name for _, name, _ in self.records})
        for i, name in enumerate(names):
            response.composition.sequences.add(
                sequence_id=name, micro_batch=i % request.num_micro_batches, source_rank=i % 4
            )
        return response

    def GetPlan(self, request, context):  # noqa: N802
        self.note("GetPlan", request, context)
        if self.plan is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"step {request.key.step}: not planned")
        yield from self.plan
