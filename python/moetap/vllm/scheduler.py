"""The scheduler's end: tells the books what vLLM decides, and returns rows in vLLM's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import moetap
from moetap.vllm.books import Books, Ids
from moetap.vllm.engine import StepMetadata, describe

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.request import Request


class SchedulerConnector:
    """Stands where vLLM has its AuxOutputSchedulerConnector.

    block_ids: of a request that runs, [KV-cache group][block].
    """

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, block_ids: Callable[[str], tuple[list[int], ...]]
    ) -> None:
        engine = describe(vllm_config, kv_cache_config)
        self._anchor = engine.anchor
        self._block_ids = block_ids
        self._concurrent_steps = engine.concurrent_steps
        self._step = 0
        self._books = Books(
            moetap.Ledger(engine.num_blocks, engine.block_size, "chain"),
            moetap.Reader(engine.endpoint, engine.transport),
        )

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput, requests: dict[str, Request]
    ) -> StepMetadata:
        """A step is scheduled. Called once for each, also for those that compute no token."""
        if getattr(scheduler_output, "kv_cache_block_copies", None):
            raise NotImplementedError("vLLM copies KV-cache blocks, and moetap's plugin does not move rows yet")
        if not scheduler_output.num_scheduled_tokens:
            return StepMetadata(0, 0)
        self._step += 1
        # The outputs of all steps before these were taken. Requests may have got nothing from them.
        self._books.arrived(self._step - self._concurrent_steps)
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            new_blocks = blocks[self._anchor] if blocks else ()
            if request_id in cached.resumed_req_ids:
                self._books.resume(request_id, new_blocks, start)
                new_blocks = ()
            self._schedule(scheduler_output, request_id, start, new_blocks)
        for new in scheduler_output.scheduled_new_reqs:
            self._place(new, requests[new.req_id])
            self._schedule(scheduler_output, new.req_id, new.num_computed_tokens, ())
        return StepMetadata(self._step, scheduler_output.total_num_scheduled_tokens)

    def take_output(self, request: Request, output: StepMetadata | None) -> Ids | None:
        """The rows that this output adds to the request, dense layers 0, or None for none yet."""
        if output is None:
            raise RuntimeError(f"request '{request.request_id}': the worker did not say which step this is")
        return self._books.take(output.step, request.request_id, request.num_tokens, request.is_finished())

    def request_finished(self, request: Request) -> None:
        """The request ended, was aborted, or is preempted. It has its blocks still."""
        if request.is_finished():
            self._books.end(request.request_id)
        else:
            self._books.preempt(request.request_id, self._block_ids(request.request_id)[self._anchor])

    def reset(self) -> None:
        """vLLM dropped its prefix cache."""
        self._books.flush()

    def close(self) -> None:
        """The engine ends. Of moetap nothing is left: vLLM keeps its scheduler until the process ends,
        out of the garbage collector's reach."""
        self._books.close()
        del self._books

    def _place(self, new: NewRequestData, request: Request) -> None:
        blocks = new.block_ids[self._anchor]
        if self._books.is_preempted(new.req_id):
            self._books.resume(new.req_id, blocks, new.num_computed_tokens)
            return
        if request.resumable:
            raise NotImplementedError(f"request '{new.req_id}' streams its input; moetap's plugin cannot do this yet")
        if getattr(new, "replay_start", 0):
            raise NotImplementedError(f"request '{new.req_id}' replays tokens; moetap's plugin cannot do this yet")
        assert request.sampling_params is not None
        start = min(getattr(request.sampling_params, "routed_experts_prompt_start", 0), request.num_prompt_tokens)
        self._books.admit(new.req_id, request.num_tokens, blocks, new.num_computed_tokens, start)

    def _schedule(self, scheduler_output: SchedulerOutput, request: str, start: int, blocks: Any) -> None:
        count = scheduler_output.num_scheduled_tokens[request]
        self._books.schedule(self._step, request, range(start, start + count), blocks)
