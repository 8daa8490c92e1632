"""What vLLM 0.18 lacks on a CPU, for tests only: it gets a capture of routed experts and a model runner
that may be a step ahead. Also puts one end of moetap's into vLLM's own path, where a test asks."""

import contextlib
import os
from typing import Any

from moetap._imports import when_imported

WIRE = "MOETAP_TEST_WIRE"  # read: the scheduler's end of vLLM's buffer is ours; write: the worker's is


def register() -> None:
    """vLLM's entry point. Calling it again changes nothing."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe as module

    if hasattr(module, "_moetap_cpu_hook"):
        return
    module._moetap_cpu_hook = True
    _capture(module)
    when_imported("vllm.v1.worker.gpu_model_runner", _allow_a_step_ahead)
    if os.environ.get(WIRE):
        from moetap_cpu_hook import wire

        wire.install(os.environ[WIRE])


def _capture(module: Any) -> None:
    """Experts are picked on a CPU in a function of its own, which calls no capture function."""
    select = module.select_experts
    layers: list[Any] = []  # that are being computed

    def select_and_capture(*arguments: Any, **options: Any) -> Any:
        weights, ids = select(*arguments, **options)
        if layers and (capture := layers[-1].router.capture_fn) is not None:
            capture(ids)
        return weights, ids

    module.select_experts = select_and_capture
    for kind in (module.SGLFusedMOE, module.CPUFusedMOE):
        kind.__call__ = _remember_layer(kind.__call__, layers)


def _remember_layer(call: Any, layers: list[Any]) -> Any:
    def call_with_layer(self: Any, layer: Any, *arguments: Any, **options: Any) -> Any:
        layers.append(layer)
        try:
            return call(self, layer, *arguments, **options)
        finally:
            layers.pop()

    return call_with_layer


def _allow_a_step_ahead(module: Any) -> None:
    """The output of a step is copied on a CUDA stream. On a CPU there is nothing to wait for, so streams and
    events do nothing, as in the constructor of vLLM's own CPUModelRunner."""
    import torch

    class Nothing:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def record(self, *_: Any) -> None: ...
        def synchronize(self) -> None: ...
        def wait_stream(self, _: Any) -> None: ...

    output = module.AsyncGPUModelRunnerOutput
    construct = output.__init__

    def construct_without_streams(self: Any, *arguments: Any, **options: Any) -> None:
        options["async_output_copy_stream"] = Nothing()
        event, current, stream = torch.Event, torch.cuda.current_stream, torch.cuda.stream
        torch.Event, torch.cuda.current_stream = Nothing, Nothing
        torch.cuda.stream = lambda _: contextlib.nullcontext()
        try:
            construct(self, *arguments, **options)
        finally:
            torch.Event, torch.cuda.current_stream, torch.cuda.stream = event, current, stream

    output.__init__ = construct_without_streams
