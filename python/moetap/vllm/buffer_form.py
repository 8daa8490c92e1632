"""vLLM 0.18, whose worker writes rows into shared memory that its scheduler reads at a request's end."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moetap._imports import once, when_imported
from moetap.vllm import SWITCH_OFF, transport
from moetap.vllm.engine import StepMetadata, describe
from moetap.vllm.scheduler import SchedulerConnector
from moetap.vllm.worker import NO_STEP, StepPublisher, require_layers

if TYPE_CHECKING:
    import torch
    from vllm.v1.request import Request

_MARK = "_moetap"


def install() -> None:
    """Changes vLLM's classes as soon as they are imported. Installing again changes nothing."""
    when_imported("vllm.v1.worker.gpu_model_runner", _change_runner)
    when_imported("vllm.v1.worker.gpu_worker", _change_worker)
    when_imported("vllm.v1.core.sched.scheduler", _change_scheduler)


class BufferCapturer:
    """Stands where vLLM has its RoutedExpertsCapturer, for one worker.

    layers: those that vLLM captures. ValueError unless they are those of the model's configuration.
    """

    def __init__(self, runner: Any, layers: list[int]) -> None:
        import torch
        from vllm.distributed import get_tensor_model_parallel_rank

        engine = describe(runner.vllm_config, runner.kv_cache_config)
        if runner.vllm_config.parallel_config.data_parallel_size > 1:
            raise ValueError("moetap's plugin does not part data-parallel ranks' tokens in vLLM 0.18; set "
                             f"data_parallel_size=1, or {SWITCH_OFF}")
        shape = engine.endpoint.shape
        require_layers(layers, shape)
        size = (engine.endpoint.max_tokens, shape.num_hidden_layers, shape.top_k)
        self._picks = torch.full(size, -1, dtype=torch.int32, device=runner.device)
        self._publisher = StepPublisher(engine) if get_tensor_model_parallel_rank() == 0 else None
        self.anchor = engine.anchor
        self.step: StepMetadata | None = NO_STEP  # the latest, as the scheduler told it

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """A layer's picks: [tokens][top_k]."""
        self._picks[: len(topk_ids), layer_id] = topk_ids

    def clear_buffer(self) -> None:
        """Before the forward pass. A layer that is not captured leaves missing rows, and no old ones."""
        self._picks.fill_(-1)

    def save_captured_experts(self, indices: NDArray[np.int64]) -> None:
        """After the forward pass. indices: the slot of each token."""
        if self._publisher is None:
            return
        if self.step is None:
            raise RuntimeError("the scheduler did not say which step this is; MOETAP_VLLM must be the same "
                               "in all of vLLM's processes")
        self._publisher.publish(self.step, self._picks[: len(indices)].numpy(), indices)

    def close(self) -> None:
        """The worker ends."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


class _OneCapturer:
    """In place of the class that the runner asks for its capturer."""

    capturer: BufferCapturer | None = None
    replaced: Any = None  # vLLM's class

    @classmethod
    def get_instance(cls) -> BufferCapturer | None:
        return cls.capturer


@once
def _change_runner(module: ModuleType) -> None:
    runner = module.GPUModelRunner
    init, execute = runner.init_routed_experts_capturer, runner.execute_model

    @functools.wraps(init)
    def init_routed_experts_capturer(self: Any) -> None:
        if transport(self.vllm_config) is None:
            if module.RoutedExpertsCapturer is _OneCapturer:  # of an engine that was here before
                vars(module)["RoutedExpertsCapturer"] = _OneCapturer.replaced
            init(self)
            return
        if module.RoutedExpertsCapturer is not _OneCapturer:
            _OneCapturer.replaced = module.RoutedExpertsCapturer
            vars(module)["RoutedExpertsCapturer"] = _OneCapturer
        capturer = BufferCapturer(self, _captured_layers(self))
        self._bind_routed_experts_capturer(capturer)
        self.routed_experts_attn_gid = capturer.anchor
        _OneCapturer.capturer = capturer
        self.routed_experts_initialized = True

    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *arguments: Any, **options: Any) -> Any:
        if _OneCapturer.capturer is not None:
            _OneCapturer.capturer.step = getattr(scheduler_output, _MARK, None)
        return execute(self, scheduler_output, *arguments, **options)

    runner.init_routed_experts_capturer = init_routed_experts_capturer
    runner.execute_model = execute_model


def _captured_layers(runner: Any) -> list[int]:
    from vllm.model_executor.layers.fused_moe.layer import FusedMoE
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

    modules = runner.compilation_config.static_forward_context.values()
    return sorted(module.layer_id for module in modules
                  if isinstance(module, FusedMoE) and isinstance(module.router, BaseRouter))


@once
def _change_worker(module: ModuleType) -> None:
    """vLLM does not end its capturer."""
    shutdown = module.Worker.shutdown

    @functools.wraps(shutdown)
    def shutdown_and_close(self: Any) -> None:
        if _OneCapturer.capturer is not None:
            _OneCapturer.capturer.close()
            _OneCapturer.capturer = None
        shutdown(self)

    module.Worker.shutdown = shutdown_and_close


# --- scheduler ---------------------------------------------------------------------------------------


class RowsOfRequests:
    """A scheduler's connector, and the rows that its requests have so far."""

    def __init__(self, connector: SchedulerConnector) -> None:
        self.connector = connector
        self.step: StepMetadata | None = None  # whose output is processed
        self._rows: dict[str, list[NDArray[np.unsignedinteger]]] = {}

    def sampled(self, request: Request) -> None:
        """The step added tokens to the request."""
        rows = self.connector.take_output(request, self.step)
        if rows is not None:
            self._rows.setdefault(request.request_id, []).append(rows)

    def all_of(self, request: Request) -> NDArray[np.int32]:
        """All rows, in vLLM's type: [tokens][hidden layers][top_k]."""
        return np.concatenate(self._rows.pop(request.request_id)).astype(np.int32)

    def ended(self, request: Request) -> None:
        """The request ended or is preempted, and has its blocks still."""
        if request.is_finished():
            self._rows.pop(request.request_id, None)
        self.connector.request_finished(request)


class _NoReader:
    """In place of vLLM's reader: there is no buffer to attach."""

    @classmethod
    def create(cls) -> _NoReader:
        return cls()

    def attach_buffer(self, max_num_kv_tokens: int, vllm_config: Any) -> None:
        """Nothing to do."""


@once
def _change_scheduler(module: ModuleType) -> None:
    scheduler = module.Scheduler
    construct = scheduler.__init__

    @functools.wraps(construct)
    def construct_with_connector(self: Any, vllm_config: Any, *arguments: Any, **options: Any) -> None:
        if not vllm_config.model_config.enable_return_routed_experts or transport(vllm_config) is None:
            construct(self, vllm_config, *arguments, **options)
            return
        theirs = module.RoutedExpertsReader
        vars(module)["RoutedExpertsReader"] = _NoReader
        try:
            construct(self, vllm_config, *arguments, **options)
        finally:
            vars(module)["RoutedExpertsReader"] = theirs
        setattr(self, _MARK, RowsOfRequests(SchedulerConnector(
            self.vllm_config, self.kv_cache_config, self.kv_cache_manager.get_block_ids)))

    scheduler.__init__ = construct_with_connector
    _follow_decisions(scheduler)
    _follow_outputs(scheduler)


def _follow_decisions(scheduler: Any) -> None:
    schedule, preempt, free = scheduler.schedule, scheduler._preempt_request, scheduler._free_request
    reset, shutdown = scheduler.reset_prefix_cache, scheduler.shutdown

    @functools.wraps(schedule)
    def schedule_and_tell(self: Any) -> Any:
        output = schedule(self)
        if (rows := getattr(self, _MARK, None)) is not None:
            setattr(output, _MARK, rows.connector.build_connector_meta(output, self.requests))
        return output

    @functools.wraps(preempt)
    def tell_and_preempt(self: Any, request: Any, timestamp: float) -> None:
        if (rows := getattr(self, _MARK, None)) is not None:
            rows.ended(request)
        preempt(self, request, timestamp)

    @functools.wraps(free)
    def tell_and_free(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        if (rows := getattr(self, _MARK, None)) is not None:
            rows.ended(request)
        return free(self, request, *arguments, **options)

    @functools.wraps(reset)
    def reset_and_tell(self: Any, *arguments: Any, **options: Any) -> bool:
        done: bool = reset(self, *arguments, **options)
        if done and (rows := getattr(self, _MARK, None)) is not None:
            rows.connector.reset()
        return done

    @functools.wraps(shutdown)
    def close_and_shutdown(self: Any) -> None:
        if (rows := getattr(self, _MARK, None)) is not None:
            setattr(self, _MARK, None)
            rows.connector.close()
        shutdown(self)

    scheduler.schedule, scheduler._preempt_request = schedule_and_tell, tell_and_preempt
    scheduler._free_request, scheduler.reset_prefix_cache = tell_and_free, reset_and_tell
    scheduler.shutdown = close_and_shutdown


def _follow_outputs(scheduler: Any) -> None:
    update, add_tokens = scheduler.update_from_output, scheduler._update_request_with_output
    theirs = scheduler._get_routed_experts

    @functools.wraps(update)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        if (rows := getattr(self, _MARK, None)) is not None:
            rows.step = getattr(scheduler_output, _MARK, None)
        return update(self, scheduler_output, model_runner_output)

    @functools.wraps(add_tokens)
    def add_tokens_and_take(self: Any, request: Any, new_token_ids: list[int]) -> Any:
        added = add_tokens(self, request, new_token_ids)
        if (rows := getattr(self, _MARK, None)) is not None:
            rows.sampled(request)
        return added

    @functools.wraps(theirs)
    def get_rows(self: Any, request: Any) -> Any:
        rows = getattr(self, _MARK, None)
        return theirs(self, request) if rows is None else rows.all_of(request)

    scheduler.update_from_output, scheduler._update_request_with_output = update_from_output, add_tokens_and_take
    scheduler._get_routed_experts = get_rows
