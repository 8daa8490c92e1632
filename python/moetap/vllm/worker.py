"""The worker's end: takes the routes of each step from vLLM's capture buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap.vllm.engine import Engine, StepMetadata, describe

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch


NO_STEP = StepMetadata(0, 0)


class StepPublisher:
    """Publishes each step's rows. Of all tensor-parallel ranks only the first one has one."""

    def __init__(self, engine: Engine) -> None:
        self._layers = engine.endpoint.shape.moe_layers
        self._capturer = moetap.Capturer(engine.endpoint, "host", transport=engine.transport)
        self._capturer.bind_all()

    def publish(self, step: StepMetadata, picks: NDArray[np.int32], slots: NDArray[np.int64]) -> None:
        """picks: [tokens][hidden layers][top_k], -1 where nothing was captured. slots: [tokens]."""
        if not len(picks) == len(slots) == step.tokens:
            raise RuntimeError(
                f"step {step.step} computed {len(picks)} tokens with {len(slots)} slots, and {step.tokens} "
                "were scheduled"
            )
        with self._capturer.step(step.step, step.tokens) as open_step:
            for layer in self._layers:
                self._capturer.capture(layer, picks[:, layer])
            open_step.publish(slots)

    def close(self) -> None:
        """The worker ends."""
        self._capturer.close()


@dataclass(frozen=True)
class PublishedStep:
    """In place of vLLM's rows on their way to the scheduler: moetap has them already."""

    step: StepMetadata

    def enqueue_cpu_copy(self, num_sampled: Any, num_rejected: Any) -> None:
        """Nothing is to be copied."""

    def process_output(self) -> StepMetadata:
        """What the scheduler gets with the step's tokens."""
        return self.step


class WorkerConnector:
    """Stands where vLLM has its AuxOutputWorkerConnector.

    vLLM's own capturer records into a tensor, which works under graphs and in every layout of data
    and sequence parallelism that vLLM has. The step's part of it is filled with -1 before the step,
    so that a layer which was not captured is noticed. Each rank captures; the first one publishes.
    """

    def __init__(self, model: Any, vllm_config: Any, kv_cache_config: Any) -> None:
        from vllm.distributed.parallel_state import get_tp_group
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        engine = describe(vllm_config, kv_cache_config)
        require_layers(_captured_layers(model), engine.endpoint.shape)
        self._picks = RoutedExpertsCapturer(
            max_num_batched_tokens=engine.endpoint.max_tokens, vllm_config=vllm_config
        )
        bind_routed_experts_capturer(model, self._picks)
        self._anchor = engine.anchor
        self._step = NO_STEP
        self.slot_mappings: Any = None  # of the latest step: [KV-cache groups][tokens]
        self._publisher = StepPublisher(engine) if get_tp_group().is_first_rank else None

    def begin_step(self, metadata: StepMetadata | None) -> None:
        """Before the forward pass."""
        self._step = metadata or NO_STEP
        self._picks.device_buffer[: self._step.tokens].fill_(-1)

    def prepare_output(self, input_batch: InputBatch) -> PublishedStep | None:
        """After the forward pass: publishes the step's rows."""
        if self._publisher is None or not self._step.step:
            return None
        tokens = int(input_batch.query_start_loc_np[len(input_batch.req_ids)])
        slots = self.slot_mappings[self._anchor][:tokens].numpy()
        self._publisher.publish(self._step, self._picks.device_buffer[:tokens].numpy(), slots)
        return PublishedStep(self._step)

    def close(self) -> None:
        """The worker ends."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


def require_layers(captured: list[int], shape: moetap.ModelShape) -> None:
    """ValueError unless vLLM captures exactly the layers of which rows are made."""
    if captured != list(shape.moe_layers):
        raise ValueError(
            f"vLLM captures layers {captured}, and the model's configuration has routers in layers "
            f"{list(shape.moe_layers)}"
        )


def _captured_layers(model: Any) -> list[int]:
    from vllm.model_executor.layers.fused_moe.layer import MoERunner
    from vllm.model_executor.layers.fused_moe.routed_experts_capturer import RoutedExpertsCaptureSource

    return sorted(
        module.layer_id
        for module in model.modules()
        if isinstance(module, (MoERunner, RoutedExpertsCaptureSource))
    )
