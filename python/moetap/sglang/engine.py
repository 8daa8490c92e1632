"""What SGLang's configuration says of an engine, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import moetap
from moetap._plugins import Transport
from moetap.sglang import SWITCH_OFF, transport
from moetap.sglang.capturers import LocalSlice

# The values with which rows stay in the slots of the pass that computed them, and each layer is
# captured once a pass. Where SGLang keeps it, the option, its value, and why no other.
_REQUIRED: tuple[tuple[str, str, Any, str], ...] = (
    ("parallel", "pp_size", 1, "a pipeline stage captures its own layers only"),
    ("parallel", "dcp_size", 1, "ranks of context parallelism hold parts of the tokens"),
    ("parallel", "attn_cp_size", 1, "ranks of context parallelism hold parts of the tokens"),
    ("spec", "speculative_algorithm", None, "keys and values of accepted drafts move to other slots"),
    ("disagg", "disaggregation_mode", "null", "another engine computed some of the tokens"),
    ("disagg", "enable_pdmux", False, "a forward pass is split by layers"),
    ("memory", "enable_hierarchical_cache", False, "keys and values come back to other slots"),
    ("memory", "enable_lmcache", False, "keys and values come from elsewhere"),
    ("memory", "enable_flexkv", False, "keys and values come from elsewhere"),
    ("memory", "enable_unified_cache_external_linker", False, "keys and values come from elsewhere"),
    ("memory", "enable_hisparse", False, "keys and values move between slots"),
    ("overlap", "enable_two_batch_overlap", False, "each half of a batch would overwrite the rows of the other"),
    ("dllm", "dllm_algorithm", None, "a token is computed several times"),
)


@dataclass(frozen=True)
class Engine:
    """One rank of an engine."""

    shape: moetap.ModelShape
    transport: Transport
    max_batch_size: int
    num_fused_shared_experts: int
    local_slice: LocalSlice | None


def describe(
    model: Any, model_config: Any, num_tokens: int, max_running_requests: int, device: str
) -> Engine | None:
    """The engine of this process, or None where it does not return routed experts.

    ValueError for what rows could not be got right of.
    """
    from sglang.srt.layers.dp_attention import get_dp_local_slice_cpu, is_dp_attention_enabled
    from sglang.srt.layers.moe import get_moe_a2a_backend
    from sglang.srt.runtime_context import get_exec, get_schedule

    if not get_exec().features.enable_return_routed_experts:
        return None
    if device != "cpu":
        raise ValueError(
            f"moetap's plugin has been compared with SGLang on CPUs only, not on {device}; {SWITCH_OFF}"
        )
    _require_options()
    if not get_moe_a2a_backend().is_none():
        raise ValueError(f"moetap's plugin does not gather the tokens of moe_a2a_backend "
                         f"{get_moe_a2a_backend().value}; set it to none, or {SWITCH_OFF}")
    shape = _shape(model_config.hf_text_config)
    _require_layers(model, shape)
    chunk = get_schedule().chunked_prefill_size or 0
    return Engine(
        shape,
        transport() or "device",
        # With mixed chunks, running requests come on top. Without chunks, a prompt may fill the cache.
        max_batch_size=chunk + max_running_requests if chunk > 0 else num_tokens,
        num_fused_shared_experts=model.shared_experts_config.num_fused_shared_experts,
        local_slice=get_dp_local_slice_cpu if is_dp_attention_enabled() else None,
    )


def _require_options() -> None:
    from sglang.srt import runtime_context as context

    places = {
        "parallel": context.get_parallel(),
        "spec": context.get_spec(),
        "disagg": context.get_disagg(),
        "memory": context.get_memory(),
        "overlap": context.get_exec().overlap,
        "dllm": context.get_exec().dllm,
    }
    for place, option, value, why in _REQUIRED:
        found = getattr(places[place], option)  # an option that is gone is an error too
        if found != value:
            raise ValueError(f"{option} is {found!r}: {why}, and moetap's plugin does not follow that; set it to "
                             f"{value!r}, or {SWITCH_OFF}")


def _shape(config: Any) -> moetap.ModelShape:
    """The shape that the model's configuration describes, which SGLang must read alike."""
    shape = moetap.ModelShape.from_config(config)
    ours = (shape.num_hidden_layers, shape.top_k)
    theirs = (config.num_hidden_layers, config.num_experts_per_tok)
    if ours != theirs:
        raise ValueError(f"the model's configuration says (layers, top_k) = {ours} to moetap and {theirs} to SGLang; "
                         "moetap cannot capture this model")
    return shape


def _require_layers(model: Any, shape: moetap.ModelShape) -> None:
    from sglang.srt.layers.moe.topk import TopK

    routers = (module for module in model.modules() if isinstance(module, TopK))
    captured = sorted(router.layer_id for router in routers if router.topk_config.allow_routed_experts_capture)
    if captured != list(shape.moe_layers):
        raise ValueError(f"SGLang captures layers {captured}, and the model's configuration has routers in layers "
                         f"{list(shape.moe_layers)}")
