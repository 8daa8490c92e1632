"""What worker and scheduler both derive from vLLM's configuration, and what is refused."""

from dataclasses import dataclass
from typing import Any, Literal

import moetap
from moetap._plugins import Transport
from moetap.vllm import SWITCH_OFF, transport

# vLLM's classes of KV-cache groups, by name: those that moetap.anchor_group() tells apart.
_Kind = Literal["full_attention", "mla", "sliding_window", "chunked_local", "mamba"]
_KINDS: dict[str, _Kind] = {
    "FullAttentionSpec": "full_attention",
    "SinkFullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "mla",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local",
    "MambaSpec": "mamba",
}


@dataclass(frozen=True)
class StepMetadata:
    """A step, as the scheduler tells its workers. It comes back with the step's output."""

    step: int  # 0: it computes no token
    tokens: int


@dataclass(frozen=True)
class Engine:
    """One engine, as both of its ends see it."""

    endpoint: moetap.Endpoint
    transport: Transport
    anchor: int  # the KV-cache group whose slots identify rows
    num_blocks: int
    block_size: int  # of the anchor group
    concurrent_steps: int


def describe(vllm_config: Any, kv_cache_config: Any) -> Engine:
    """The engine of this configuration. ValueError for what rows could not be got right of."""
    way = transport(vllm_config)
    assert way is not None, "asked only of engines that moetap is to serve"
    _refuse(vllm_config, way)
    groups = [_group(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
    anchor = moetap.anchor_group(groups)
    block_size = groups[anchor].block_size
    num_slots = kv_cache_config.num_blocks * block_size
    shape = _shape(vllm_config.model_config)
    if hasattr(vllm_config, "aux_output_config"):
        _require_memory(vllm_config.aux_output_config.max_bytes, num_slots * shape.row_bytes)
    asynchronous = vllm_config.scheduler_config.async_scheduling
    steps = getattr(vllm_config, "max_concurrent_batches", 2 if asynchronous else 1)
    endpoint = moetap.Endpoint(
        f"vllm-{vllm_config.instance_id}",
        shape,
        num_slots=num_slots,
        max_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        dp_rank=vllm_config.parallel_config.data_parallel_rank,
        # The scheduler takes a step in when it has its output, or so many steps later.
        ring_depth=2 * steps + 2,
        steps_in_flight=steps,
    )
    return Engine(endpoint, way, anchor, kv_cache_config.num_blocks, block_size, steps)


def _shape(model_config: Any) -> moetap.ModelShape:
    """The shape that the model's configuration describes, which vLLM must read alike."""
    shape = moetap.ModelShape.from_config(model_config.hf_text_config)
    ours = (shape.num_hidden_layers, shape.num_experts, shape.top_k)
    theirs = (
        model_config.get_total_num_hidden_layers(),
        model_config.get_num_experts(),
        model_config.hf_text_config.num_experts_per_tok
        if not hasattr(model_config, "get_num_experts_per_tok")
        else model_config.get_num_experts_per_tok(),
    )
    if ours != theirs:
        raise ValueError(
            f"the model's configuration says (layers, experts, top_k) = {ours} to moetap and {theirs} "
            "to vLLM; moetap cannot capture this model"
        )
    return shape


def _group(spec: Any) -> moetap.KvCacheGroup:
    name = type(spec).__name__
    if name == "UniformTypeKVCacheSpecs":
        members = [_group(member) for member in spec.kv_cache_specs.values()]
        return moetap.KvCacheGroup("uniform", spec.block_size, members)
    if name not in _KINDS:
        raise ValueError(
            f"a KV-cache group is a {name}, which moetap does not know; known are "
            f"{', '.join(sorted(_KINDS))}"
        )
    return moetap.KvCacheGroup(_KINDS[name], spec.block_size)


def _refuse(vllm_config: Any, way: str) -> None:
    from vllm.platforms import current_platform

    parallel = vllm_config.parallel_config
    if not current_platform.is_cpu():
        raise ValueError(
            f"moetap's plugin has run with vLLM on CPUs only, not on {current_platform.device_name}; "
            f"{SWITCH_OFF}"
        )
    if vllm_config.kv_transfer_config is not None:
        raise ValueError(
            "a KV connector loads tokens that no step computed, and moetap's plugin does not get "
            f"their rows; leave out kv_transfer_config, or {SWITCH_OFF}"
        )
    if parallel.use_ubatching:
        raise ValueError("with microbatches each part of a step would overwrite the rows of the other; "
                         f"leave out enable_dbo and ubatch_size, or {SWITCH_OFF}")
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("moetap's plugin reads one pipeline stage; set pipeline_parallel_size=1")
    if way == "shm" and vllm_config.scheduler_config.async_scheduling:
        raise ValueError(
            "with asynchronous scheduling a step may overwrite a preempted request's last rows in the "
            "shm transport's buffer before they are read; use the device transport, or "
            "async_scheduling=False"
        )


def _require_memory(limit: int | None, needed: int) -> None:
    if limit is not None and limit < needed:
        raise ValueError(
            f"aux_output_config.max_bytes is {limit}, and a row for each slot of the KV cache takes "
            f"{needed} bytes; raise it, or leave it out"
        )
