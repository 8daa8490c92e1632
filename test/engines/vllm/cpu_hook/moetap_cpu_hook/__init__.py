"""vLLM 0.18 picks experts on a CPU in a function of its own, which calls no capture function. This
plugin, which is for tests only, calls it there with the same picks."""

from typing import Any


def register() -> None:
    """vLLM's entry point. Calling it again changes nothing."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe as module

    if hasattr(module, "_moetap_cpu_hook"):
        return
    module._moetap_cpu_hook = True
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
