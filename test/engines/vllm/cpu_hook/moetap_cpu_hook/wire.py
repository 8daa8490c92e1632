"""One end of moetap's in vLLM 0.18's own path: the other end is vLLM's, and vLLM calls both."""

from typing import Any

import numpy as np

import moetap
from moetap._imports import when_imported


def install(end: str) -> None:
    """Puts our reader (`read`) or our writer (`write`) where vLLM makes its own."""
    if end == "read":
        when_imported("vllm.v1.core.sched.scheduler", _read_at_the_scheduler)
    elif end == "write":
        when_imported("vllm.v1.worker.gpu_model_runner",
                      lambda module: vars(module).update(RoutedExpertsCapturer=WireCapturer))
        when_imported("vllm.v1.worker.gpu_worker", _clean_up_at_shutdown)
    else:
        raise ValueError(f"the end '{end}'; it must be read or write")


def _read_at_the_scheduler(module: Any) -> None:
    """vLLM does not end its reader."""
    vars(module).update(RoutedExpertsReader=WireReader)
    shutdown = module.Scheduler.shutdown

    def clean_up_and_shut_down(self: Any) -> None:
        self.routed_experts_reader.cleanup()
        shutdown(self)

    module.Scheduler.shutdown = clean_up_and_shut_down


def _clean_up_at_shutdown(module: Any) -> None:
    """vLLM does not end its capturer."""
    shutdown = module.Worker.shutdown

    def clean_up_and_shut_down(self: Any) -> None:
        if (capturer := WireCapturer.get_instance()) is not None:
            capturer.cleanup()
        shutdown(self)

    module.Worker.shutdown = clean_up_and_shut_down


def endpoint(vllm_config: Any, slots: int) -> moetap.Endpoint:
    """The buffer of this engine, as vLLM names and sizes it."""
    return moetap.Endpoint(
        vllm_config.instance_id,
        moetap.ModelShape.from_config(vllm_config.model_config.hf_text_config),
        num_slots=slots,
        max_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        dp_rank=vllm_config.parallel_config.data_parallel_rank,
        shm_layout="wire",
    )


class WireReader:
    """As vLLM's RoutedExpertsReader: it reads what vLLM's worker wrote."""

    _reader: moetap.Reader | None = None

    @classmethod
    def create(cls) -> "WireReader":
        return cls()

    def attach_buffer(self, max_num_kv_tokens: int, vllm_config: Any) -> None:
        self._reader = moetap.Reader(endpoint(vllm_config, max_num_kv_tokens), "shm")

    def get_routed_experts(self, indices: Any) -> Any:
        assert self._reader is not None
        shape = self._reader.shape
        rows, states = self._reader.read(indices, (1, 1))
        if (states != int(moetap.RowState.unverified)).any():
            raise moetap.RowsNotPresent(f"rows of slots {indices[states != int(moetap.RowState.unverified)]}")
        ids = np.zeros((len(rows), shape.num_hidden_layers, shape.top_k), np.int32)
        ids[:, list(shape.moe_layers)] = rows.view(shape.id_type).reshape(len(rows), shape.num_layers, shape.top_k)
        return ids

    def cleanup(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class WireCapturer:
    """As vLLM's RoutedExpertsCapturer: it writes what vLLM's scheduler reads."""

    _one: "WireCapturer | None" = None

    @classmethod
    def create(cls) -> "WireCapturer":
        cls._one = cls()
        return cls._one

    @classmethod
    def get_instance(cls) -> "WireCapturer | None":
        return cls._one

    def init_buffer(self, max_num_batched_tokens: int, max_num_kv_tokens: int, vllm_config: Any) -> None:
        ours = endpoint(vllm_config, max_num_kv_tokens)
        self._capturer = moetap.Capturer(ours, "host", transport="shm")
        self._capturer.bind_all()
        self._layers = ours.shape.moe_layers
        self._picks = np.full((ours.shape.num_hidden_layers, max_num_batched_tokens, ours.shape.top_k), -1, np.int32)
        self._step = 0

    def clear_buffer(self) -> None:
        self._picks.fill(-1)

    def capture(self, layer_id: int, topk_ids: Any) -> None:
        self._picks[layer_id, : len(topk_ids)] = topk_ids.numpy()

    def save_captured_experts(self, indices: Any) -> None:
        self._step += 1
        with self._capturer.step(self._step, len(indices)) as step:
            for layer in self._layers:
                self._capturer.capture(layer, self._picks[layer, : len(indices)])
            step.publish(indices)

    def cleanup(self) -> None:
        self._capturer.close()
