"""The planner's client.

from relibra import JobSpec, Model, Planner, Topology

spec = JobSpec("qwen3-rl", Model(tuple(range(48)), num_experts=128, top_k=8), Topology(8, 8))
with Planner("planner:7070", job=spec) as planner:
    for sequence_id, routed_experts in rollouts:
        planner.add_routing(sequence_id, routed_experts, step=17)
    packing = planner.pack(17, num_micro_batches=16)
    plans = planner.plan_step(17, packing.composition)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc

from relibra import _messages, routing
from relibra._api import CHANNEL_OPTIONS, Calls
from relibra.arrays import Array
from relibra.errors import NotFoundError
from relibra.job import JobSpec, PlanOptions
from relibra.plan import Composition, Packing, Plan
from relibra.retry import Backoff
from relibra.sender import RoutingSender, SenderOptions, SenderStats
from relibra.status import ServiceStatus
from relibra.v1 import planner_pb2, routing_pb2


class Planner:
    """A job's connection to the planner service. Any thread may call.

    Routing is sent in the background (`add_routing` returns at once while there is room) and
    repeated until it has arrived; `flush`, `pack` and `plan_step` wait for it and tell what was
    refused. Every other call waits for its answer, repeated while the planner cannot be reached.
    All raise the exceptions of relibra.errors, with the planner's own words.

    Args:
        address: "host:port" of the planner.
        job: the job's spec, which is registered; or the name of a job that is registered already.
        timeout: seconds that one call may take.
        backoff: how calls are repeated; Backoff(give_up=0) not to.
        sending: how routing is batched, and how much may wait.
        channel: to use in place of one to `address`; it is not closed.
    """

    def __init__(
        self,
        address: str,
        job: JobSpec | str,
        *,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        sending: SenderOptions | None = None,
        channel: grpc.Channel | None = None,
    ):
        self._own_channel = channel is None
        self._channel = channel or grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._calls = Calls(self._channel)
        self._timeout = timeout
        self._backoff = backoff or Backoff()
        self._step: tuple[int, int] | None = None
        try:
            self._job = self._register(job) if isinstance(job, JobSpec) else self._look_up(job)
        except BaseException:
            if self._own_channel:
                self._channel.close()
            raise
        self._sender = RoutingSender(
            lambda messages, limit: self._calls.StreamRouting(messages, timeout=limit),
            sending or SenderOptions(),
            self._backoff,
        )

    @property
    def job(self) -> JobSpec:
        """The job's spec, with the planner's defaults filled in."""
        return self._job

    @property
    def sent(self) -> SenderStats:
        """What routing has been delivered, and what the planner found odd about it."""
        return self._sender.stats

    def start_step(self, step: int, policy_version: int = 0) -> None:
        """Makes (step, policy_version) what calls without a step of their own mean."""
        self._step = (step, policy_version)

    def add_routing(
        self,
        sequence_id: str,
        routed_experts: Any,
        *,
        step: int | None = None,
        policy_version: int | None = None,
        token_offset: int | None = None,
        sequence_tokens: int = 0,
        prompt_group: str = "",
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hands over one sequence's routing, or one piece of it. Safe to repeat.

        Args:
            sequence_id: unique within the step.
            routed_experts: ids [tokens, layers, top_k] in any form of relibra.routing.
            step: the training step; None: that of start_step.
            policy_version: version of the policy that was rolled out; None: that of start_step.
            token_offset: position in the sequence of the first row; None: what the form says, else
                0.
            sequence_tokens: tokens of the whole sequence, so that rows that are missing are known;
                0: as many as arrive. The last token has no route: tokens - 1 rows are complete.
            prompt_group: sequences of one prompt (GRPO), for packing.
            shape: of raw bytes and SGLang's text.
            dtype: of raw bytes.
            timeout: seconds to wait for room in the queue; None: as long as it takes.

        Raises:
            ValueError: the routing does not fit the job; the text names sequence, token, layer and
                slot.
            TimeoutError: the queue stayed full.
        """
        key = self._key(step, policy_version)
        decoded = routing.decode(routed_experts, self._job, shape=shape, dtype=dtype)
        offset = token_offset if token_offset is not None else decoded.token_offset or 0
        routing.check(decoded.ids, self._job, sequence_id)
        rows = offset + len(decoded.ids)
        if sequence_tokens and rows > sequence_tokens:
            raise ValueError(
                f"sequence {sequence_id}: rows up to {rows}, but it has {sequence_tokens} tokens"
            )
        ids = routing.for_wire(decoded.ids, self._job)
        records = list(_messages.pieces(sequence_id, ids, offset, sequence_tokens, prompt_group))
        self._sender.put(key, records, timeout)

    def add_batch(
        self,
        sequence_ids: Sequence[str],
        routed_experts: Any,
        attention_mask: Any = None,
        *,
        step: int | None = None,
        policy_version: int | None = None,
        prompt_groups: Sequence[str] | None = None,
        last_row: routing.LastRow = "auto",
    ) -> None:
        """Hands over a padded or nested batch; see relibra.routing.split_batch.

        Args:
            sequence_ids: [batch].
            routed_experts: [batch, tokens, layers, top_k], nested, or a list.
            attention_mask: [batch, tokens]; None for nested batches.
            step: as for add_routing.
            policy_version: as for add_routing.
            prompt_groups: [batch], or None.
            last_row: what the row of each last token is.
        """
        groups = prompt_groups if prompt_groups is not None else [""] * len(sequence_ids)
        parts = routing.split_batch(routed_experts, attention_mask, last_row=last_row)
        for name, group, (ids, tokens) in zip(sequence_ids, groups, parts, strict=True):
            self.add_routing(
                name,
                ids,
                step=step,
                policy_version=policy_version,
                sequence_tokens=tokens,
                prompt_group=group,
            )

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all routing handed over so far has arrived.

        Raises:
            RoutingRejectedError: some was refused.
            TimeoutError: not done in time.
        """
        self._sender.flush(timeout)

    def pack(
        self,
        step: int | None = None,
        num_micro_batches: int = 1,
        *,
        policy_version: int | None = None,
        max_tokens: int = 0,
        keep_prompt_groups: bool = False,
        sequence_ids: Iterable[str] = (),
    ) -> Packing:
        """Which sequences should share a micro-batch, and on which rank.

        Args:
            step: the training step; None: that of start_step.
            num_micro_batches: M.
            policy_version: of the step; None: that of start_step.
            max_tokens: most tokens of one rank in one micro-batch; 0: no cap.
            keep_prompt_groups: keep the sequences of a prompt in one micro-batch.
            sequence_ids: what to pack; empty: all of the step.
        """
        self.flush(self._timeout)
        request = planner_pb2.PackSequencesRequest(
            key=self._key(step, policy_version),
            num_micro_batches=num_micro_batches,
            max_tokens=max_tokens,
            keep_prompt_groups=keep_prompt_groups,
            sequence_ids=list(sequence_ids),
        )
        response = self._call(self._calls.PackSequences, request)
        return Packing(
            Composition.from_proto(response.composition),
            response.node_imbalance,
            response.node_imbalance_before,
        )

    def plan_step(
        self,
        step: int | None = None,
        loads: Composition | Array | None = None,
        *,
        policy_version: int | None = None,
        pass_name: str = "",
        ep_group: str = "",
        options: PlanOptions | None = None,
    ) -> list[Plan]:
        """Plans one pass of a step and hands the plan to the agents.

        Args:
            step: the training step; None: that of start_step.
            loads: which sequences share which micro-batch; or the loads outright, integers
                [micro_batches, layers, source_ranks, experts].
            policy_version: of the step; None: that of start_step.
            pass_name: "logprob", "reference", "update" or another name; "": "update".
            ep_group: the group that loads given outright are of; "": the job's only one.
            options: in place of the job's own, for this pass.

        Returns:
            A plan for each EP group, without layers: read those with get_plan.
        """
        self.flush(self._timeout)
        request = planner_pb2.PlanStepRequest(
            key=self._key(step, policy_version), ep_group=ep_group, **{"pass": pass_name}
        )
        if options is not None:
            request.options.CopyFrom(options.to_proto())
        if isinstance(loads, Composition):
            request.composition.CopyFrom(loads.to_proto())
        elif loads is not None:
            counts = _messages.checked_counts(loads)
            if counts.size <= _messages.COUNTS_MESSAGE_ENTRIES:
                request.counts.CopyFrom(next(_messages.count_messages(counts)))
            else:
                self._upload(request, counts)
                request.uploaded_counts = True
        else:
            raise ValueError("loads: a composition or counts are needed")
        response = self._call(self._calls.PlanStep, request)
        return [Plan.from_proto(plan) for plan in response.plans]

    def get_plan(
        self,
        step: int | None = None,
        *,
        policy_version: int | None = None,
        pass_name: str = "",
        ep_group: str = "",
        splits_of: int | None = None,
        all_splits: bool = False,
    ) -> Plan:
        """Reads a whole plan.

        Args:
            step: the training step; None: that of start_step.
            policy_version: of the step; None: that of start_step.
            pass_name: "" for "update".
            ep_group: "" for the job's only one.
            splits_of: the source rank whose splits are wanted; None: no rank's.
            all_splits: the splits of all source ranks, which can be large.

        Raises:
            NotFoundError: it is not planned.
        """
        request = planner_pb2.GetPlanRequest(
            key=self._key(step, policy_version), ep_group=ep_group, **{"pass": pass_name}
        )
        if all_splits:
            request.all_splits = True
        elif splits_of is not None:
            request.source_rank = splits_of
        return self._backoff.call(
            lambda: Plan.from_updates(self._calls.GetPlan(request, timeout=self._timeout))
        )

    def status(self) -> ServiceStatus:
        """The planner and this job: agents, steps, plans, the last error."""
        request = planner_pb2.GetStatusRequest(job=self._job.job)
        return ServiceStatus.from_proto(self._call(self._calls.GetStatus, request))

    def delete_job(self) -> None:
        """Makes the planner forget the job, its records and plans."""
        self._call(self._calls.DeleteJob, planner_pb2.DeleteJobRequest(job=self._job.job))

    def close(self) -> None:
        """Closes the connection. Routing not yet delivered is dropped: flush first."""
        self._sender.close()
        if self._own_channel:
            self._channel.close()

    def __enter__(self) -> Planner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delivers what is pending, unless an exception is on its way, and closes."""
        try:
            if error is None:
                self.flush(self._timeout)
        finally:
            self.close()

    def _call(self, call: Any, request: Any) -> Any:
        return self._backoff.call(lambda: call(request, timeout=self._timeout))

    def _register(self, spec: JobSpec) -> JobSpec:
        request = planner_pb2.RegisterJobRequest(spec=spec.to_proto())
        return JobSpec.from_proto(self._call(self._calls.RegisterJob, request).spec)

    def _look_up(self, name: str) -> JobSpec:
        request = planner_pb2.GetStatusRequest(job=name)
        for job in self._call(self._calls.GetStatus, request).jobs:
            if job.spec.job == name:
                return JobSpec.from_proto(job.spec)
        raise NotFoundError(f"job {name}: not registered")

    def _key(self, step: int | None, policy_version: int | None) -> Any:
        default_step, default_version = self._step or (None, 0)
        chosen = step if step is not None else default_step
        if chosen is None:
            raise ValueError("step: give it, or call start_step before")
        # A step of one's own does not inherit the version of another step.
        inherited = default_version if chosen == default_step else 0
        version = policy_version if policy_version is not None else inherited
        return routing_pb2.StepKey(job=self._job.job, step=chosen, policy_version=version)

    def _upload(self, request: Any, counts: Array) -> None:
        def messages() -> Iterator[Any]:
            for part in _messages.count_messages(counts):
                yield planner_pb2.UploadLoadsRequest(
                    key=request.key,
                    ep_group=request.ep_group,
                    counts=part,
                    **{"pass": getattr(request, "pass")},
                )

        self._backoff.call(lambda: self._calls.UploadLoads(messages(), timeout=self._timeout))
