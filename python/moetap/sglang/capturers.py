"""Stand where SGLang has its capturers, with the same names: sglang/srt/state_capturer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap._plugins import Transport
from moetap.sglang import SWITCH_OFF
from moetap.sglang.rows import STEPS_IN_FLIGHT, Published, SlotRows

if TYPE_CHECKING:
    import torch

# SGLang gives this slot to padding tokens only.
PADDING_SLOT = 0

# Of a forward batch, can_run_graph and cuda_graph_batch: the first of this rank's captured rows, and
# their number.
LocalSlice = Callable[[Any, bool, int | None], tuple[int, int]]


class TopkCaptureOutput:
    """A forward pass's rows on their way, from on_forward_end() to the processing of its output."""

    def __init__(self, rows: SlotRows, published: Published | None) -> None:
        self._rows = rows
        self._published = published

    def map_device_tensors(self, fn: Any) -> None:
        """Nothing is on a device: moetap has the rows already."""

    def finalize(self) -> None:
        """The rows can be read from now on."""
        if self._published is not None:
            self._rows.take_in(self._published)
            self._published = None


class RoutedExpertsCapturer:
    """Records the picks of each forward pass, and returns those of a request.

    For tensors on CPUs, and forward passes that run eagerly. One thread.

    num_tokens: slots of the KV cache. max_batch_size: the most tokens of this rank in a forward pass.
    Rows have the model's hidden layers; dense ones are 0.
    """

    def __init__(
        self,
        shape: moetap.ModelShape,
        *,
        num_tokens: int,
        max_batch_size: int,
        num_fused_shared_experts: int = 0,
        transport: Transport = "device",
        instance: str | None = None,
        local_slice: LocalSlice | None = None,
    ) -> None:
        self.topk_size = shape.top_k
        self.num_layers = shape.num_hidden_layers
        self.num_fused_shared_experts = num_fused_shared_experts
        self._moe_layers = frozenset(shape.moe_layers)
        self._local_slice = local_slice
        self._captured: dict[int, NDArray[Any]] = {}  # of the forward pass that runs: [tokens][top_k]
        self._rows: SlotRows | None = SlotRows(
            moetap.Endpoint(
                instance or f"sglang-{os.getpid()}",
                shape,
                num_slots=num_tokens,
                max_tokens=max_batch_size,
                ring_depth=STEPS_IN_FLIGHT + 1,
                steps_in_flight=STEPS_IN_FLIGHT,
            ),
            transport,
        )

    @staticmethod
    def create(
        *, model: Any, model_config: Any, num_tokens: int, max_running_requests: int, device: str
    ) -> RoutedExpertsCapturer | None:
        """That of SGLang's configuration, or None where it does not return routed experts."""
        from moetap.sglang.engine import describe

        engine = describe(model, model_config, num_tokens, max_running_requests, device)
        if engine is None:
            return None
        return RoutedExpertsCapturer(
            engine.shape,
            num_tokens=num_tokens,
            max_batch_size=engine.max_batch_size,
            num_fused_shared_experts=engine.num_fused_shared_experts,
            transport=engine.transport,
            local_slice=engine.local_slice,
        )

    def forward_begins(self) -> None:
        """What was captured before is not of the next forward pass.

        Needed only where forward passes run that no on_forward_end() follows, such as warm-ups.
        """
        self._captured.clear()

    def capture(self, layer_id: int, topk_indices: torch.Tensor) -> None:
        """A layer's picks, copied now: [tokens][top_k], or with a column per fused shared expert.

        A layer that comes again begins a new forward pass.
        """
        if layer_id not in self._moe_layers:
            raise moetap.RangeError(f"layer {layer_id} was captured, and the model's configuration has routers in "
                                    f"layers {sorted(self._moe_layers)}")
        ids = np.asarray(topk_indices)
        allowed = (self.topk_size, self.topk_size + self.num_fused_shared_experts)
        if ids.ndim != 2 or ids.shape[1] not in allowed:
            raise moetap.ArgumentError(f"layer {layer_id}: topk_indices is {list(ids.shape)}; it must be [tokens] of "
                                       f"{' or '.join(str(width) for width in sorted(set(allowed)))} columns")
        if layer_id in self._captured:
            self._captured.clear()
        self._captured[layer_id] = np.array(ids[:, : self.topk_size])

    def on_forward_end(
        self,
        forward_batch: Any,
        can_run_graph: bool,
        cuda_graph_batch: int | None,
        no_copy_to_cpu: bool = False,
    ) -> TopkCaptureOutput | None:
        """Publishes the rows. With no_copy_to_cpu they can be read after the result's finalize().

        A layer that was not captured, or an expert twice in a row, leaves the step's rows missing.
        """
        captured, self._captured = self._captured, {}
        if can_run_graph:
            raise RuntimeError("the forward pass ran as a graph, in which capture() is not called: start SGLang "
                               "with --disable-cuda-graph, and without --enable-torch-compile")
        output = TopkCaptureOutput(self._open_rows(), self._publish(captured, forward_batch, cuda_graph_batch))
        if no_copy_to_cpu:
            return output
        output.finalize()
        return None

    def get_topk(
        self, req_pool_idx: int, seqlen: int, req_to_token_pool: Any, start_len: int = 0
    ) -> torch.Tensor:
        """The rows [start_len, seqlen - 1) of a request: int32 [rows][hidden layers][top_k].

        RowsNotPresent if one is not there: no row is made up.
        """
        import torch

        if start_len < 0 or seqlen < 1:
            raise ValueError(f"start_len is {start_len} and seqlen {seqlen}; start_len must be at least 0, and "
                             "seqlen at least 1")
        start = min(start_len, seqlen - 1)
        slots = req_to_token_pool.req_to_token[req_pool_idx][start : seqlen - 1]
        if len(slots) != seqlen - 1 - start:
            raise moetap.RangeError(f"row {req_pool_idx} of the request-to-token pool has "
                                    f"{start + len(slots)} tokens, and the request {seqlen}")
        try:
            rows = self._open_rows().read(np.array(slots, np.int64), start)
        except moetap.RowsNotPresent as absent:
            raise moetap.RowsNotPresent(f"the request in row {req_pool_idx} of the pool: {absent}") from None
        return torch.from_numpy(rows)

    def destroy(self) -> None:
        """The engine ends. Calling it again does nothing."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _open_rows(self) -> SlotRows:
        if self._rows is None:
            raise moetap.StateError("the capturer was destroyed")
        return self._rows

    def _publish(
        self, captured: dict[int, NDArray[Any]], forward_batch: Any, cuda_graph_batch: int | None
    ) -> Published | None:
        """The step, or None if no token of this rank was computed."""
        virtual = forward_batch.out_cache_loc_virtual
        slots = np.array(forward_batch.out_cache_loc if virtual is None else virtual, np.int64)
        first, count = 0, len(slots)
        if self._local_slice is not None:
            first, count = self._local_slice(forward_batch, False, cuda_graph_batch)
        if count != len(slots) and (virtual is None or count < len(slots)):
            raise moetap.ArgumentError(f"the forward pass has {len(slots)} slots, and {count} tokens of this rank")
        own = {}
        for layer, ids in captured.items():
            own[layer] = ids[first : first + len(slots)]
            if len(own[layer]) != len(slots):
                raise moetap.ArgumentError(f"layer {layer} captured {len(ids)} tokens, and this rank's are "
                                           f"{first} to {first + len(slots)}")
        real = slots != PADDING_SLOT
        if not real.all():
            slots, own = slots[real], {layer: ids[real] for layer, ids in own.items()}
        return self._open_rows().publish(own, slots) if len(slots) else None


class IndexerTopkCapturer:
    """SGLang's capturer of sparse attention's positions. moetap does not carry them: constructing it
    is an error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        refuse_indexer_topk()


def refuse_indexer_topk() -> None:
    """NotImplementedError, which says why."""
    raise NotImplementedError(
        "moetap does not carry indexer top-k: a row's ids are at most 16 bits wide, and positions of a "
        "long context need 32; and -1 makes a whole row missing, where the indexer pads rows with it. "
        f"Leave out --enable-return-indexer-topk, or {SWITCH_OFF}"
    )
