"""Serves made-up requests through SGLang's own code from the routers to the response's text.

SGLang's are: the routers, which call the capturer, the end of ModelRunner.forward(), the pool of the
requests' slots, the collection of a request's rows, and the base64 text. The model, the scheduler and
the slots' allocator are made up.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.moe.topk import TopK, capture_routed_experts_if_allowed
from sglang.srt.managers.detokenizer_manager import DetokenizerManager
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner, ModelRunnerOutput
from sglang.srt.state_capturer.routed_experts import set_global_experts_capturer

CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 5, "num_experts": 32, "num_experts_per_tok": 4,
    "moe_intermediate_size": 8, "decoder_sparse_step": 1, "mlp_only_layers": [1],
}
MOE_LAYERS = [0, 2, 3, 4]
SLOTS, CHUNK, RUNNING, LONGEST = 120, 16, 6, 64


@dataclass(frozen=True)
class Layout:
    """How an engine passes its rows."""

    name: str
    overlap: bool = True  # a step starts before the one before it is taken in
    shared: int = 0  # columns of fused shared experts
    ranks: int = 1  # of data-parallel attention: this one is the last
    virtual: bool = False  # requests have other slots than attention


class Model(torch.nn.Module):
    """The routers of a model. Other logits in each forward pass."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.shared_experts_config = SimpleNamespace(num_fused_shared_experts=layout.shared)
        top_k = CONFIG["num_experts_per_tok"]
        self.routers = torch.nn.ModuleList(TopK(top_k, layer_id=layer, renormalize=True) for layer in MOE_LAYERS)

    def run(self, number: int, tokens: int, absent: int | None = None) -> None:
        """A forward pass: each layer's router, and SGLang's capture in it."""
        for router in self.routers:
            if router.layer_id == absent:
                continue
            generator = torch.Generator().manual_seed(number * 100 + router.layer_id)
            logits = torch.randn(tokens, CONFIG["num_experts"], generator=generator)
            if not self.layout.shared:
                router.forward_native(torch.zeros(tokens, 8), logits)
                continue
            ids = logits.topk(CONFIG["num_experts_per_tok"]).indices.int()
            if router.layer_id % 2 == 0:  # others append the columns after the capture
                ids = torch.cat([ids, torch.full((tokens, self.layout.shared), CONFIG["num_experts"])], 1).int()
            capture_routed_experts_if_allowed(router.topk_config, router.layer_id, ids)


@dataclass(eq=False)
class Request:
    """One that asks for its rows from a position on."""

    name: str
    prompt: int
    outputs: int  # until it ends
    start: int
    aborted_after: int | None
    row: int = 0  # in the pool
    slots: list[int] = field(default_factory=list)  # of the tokens that were computed
    owned: int = 0  # the first slot that is not a cached one
    made: int = 0  # outputs

    @property
    def tokens(self) -> int:
        return self.prompt + self.made


class Server:
    """Schedules requests, and runs a capturer. The same for the same seed, whatever the capturer."""

    def __init__(self, capturer: Any, model: Model, layout: Layout, seed: int) -> None:
        self.model, self.layout = model, layout
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.texts: dict[str, tuple[str, int, int]] = {}  # a request's text, tokens and start
        self.pool = ReqToTokenPool(RUNNING, LONGEST, "cpu", False)
        self.free = self.random.sample(range(1, SLOTS), SLOTS - 1)
        self.cached: list[int] = []  # slots of a prefix that requests share
        self.waiting = [self._request(number) for number in range(40)]
        self.running: list[Request] = []
        self.pending: tuple[Any, list[tuple[Request, int]]] | None = None
        self.passes = 0
        set_global_experts_capturer(capturer)
        self.runner = SimpleNamespace(
            forward_pass_id=0, msprobe_debugger=None, gpu_id=0, is_draft_worker=False, canary_manager=None,
            enable_elastic_ep=False, decode_cuda_graph_runner=None, eplb_manager=None, _forward_raw=self._raw)

    def serve(self) -> None:
        """Runs until all requests ended."""
        self.model.run(9999, 7)  # a warm-up, which no on_forward_end() follows
        while self.waiting or self.running or self.pending:
            launched = self._launch()
            if self.layout.overlap:
                self._process(self.pending)
                self.pending = launched
            else:
                self._process(launched)

    # --- a step ---------------------------------------------------------------------------------------

    def _launch(self) -> Any:
        """Starts a step: chunks of prompts first, then a token of each running request."""
        self._admit()
        work: list[tuple[Request, int]] = []
        budget = CHUNK - 2  # attention may pad
        for request in list(self.running):
            left = request.tokens - len(request.slots)
            count = min(left, budget)
            if count < 1 or request not in self.running:
                continue  # its token is on its way, or it has just been preempted
            if count > len(self.free) and not self._preempt_for(request, count, work):
                continue
            self.counts["chunks"] += count < left
            budget -= count
            slots = [self.free.pop() for _ in range(count)]
            self.pool.write((request.row, slice(len(request.slots), len(request.slots) + count)),
                            torch.tensor(slots, dtype=torch.int32))
            request.slots += slots
            work.append((request, count))
        if not work:
            return None
        slots = [slot for request, count in work for slot in request.slots[-count:]]
        return self._forward(slots), [(request, len(request.slots)) for request, _ in work]

    def _forward(self, slots: list[int]) -> Any:
        """SGLang's ModelRunner.forward()."""
        self.passes += 1
        attention = [slot + 1000 for slot in slots] + [0, 0] if self.layout.virtual else slots
        batch = ForwardBatch(
            forward_mode=ForwardMode.EXTEND, batch_size=1, input_ids=torch.zeros(len(slots)),
            req_pool_indices=torch.tensor([1]), seq_lens=torch.tensor([1]), seq_lens_sum=1,
            out_cache_loc=torch.tensor(attention),
            out_cache_loc_virtual=torch.tensor(slots) if self.layout.virtual else None)
        others = [self.random.randrange(4) for _ in range(self.layout.ranks - 1)]
        batch.global_num_tokens_cpu = [*others, len(slots)]
        batch.rows = sum(others) + len(attention)  # type: ignore[attr-defined]
        return ModelRunner.forward(self.runner, batch).routed_experts_output

    def _raw(self, batch: ForwardBatch, *_: Any) -> ModelRunnerOutput:
        self.model.run(self.passes, batch.rows)  # type: ignore[attr-defined]
        return ModelRunnerOutput(logits_output=None, can_run_graph=False)

    def _process(self, launched: Any) -> None:
        """Takes a step's output in: each request whose tokens are all computed has one more."""
        if launched is None:
            return
        output, work = launched
        if output is not None:
            output.map_device_tensors(torch.clone)
            output.finalize()
        for request, computed in work:
            if request not in self.running or len(request.slots) != computed or computed < request.tokens:
                continue  # aborted or preempted meanwhile, or a chunk
            request.made += 1
            if request.made == request.aborted_after:
                self.counts["aborts"] += 1
                self._release(request)
            elif request.made == request.outputs:
                self._collect(request)
                self._release(request, keep=not self.cached)

    def _collect(self, request: Request) -> None:
        """SGLang's collection of a request's rows, and its text."""
        asked = SimpleNamespace(
            return_routed_experts=True, routed_experts_start_len=request.start, rid=request.name, seqlen=request.tokens,
            origin_input_ids=[1] * request.prompt, output_ids_through_stop=[1] * request.made, cached_tokens=0,
            kv=SimpleNamespace(req_pool_idx=request.row), routed_experts=None)
        SchedulerBatchResultProcessor._maybe_collect_routed_experts(SimpleNamespace(req_to_token_pool=self.pool), asked)
        text = DetokenizerManager._b64_encode_per_request([asked.routed_experts])[0]
        self.texts[request.name] = text, request.tokens, request.start
        self.counts["requests"] += 1

    # --- requests -------------------------------------------------------------------------------------

    def _request(self, number: int) -> Request:
        prompt, outputs = self.random.randrange(3, 40), self.random.randrange(1, 20)
        start = self.random.choice([0, 0, 0, self.random.randrange(prompt + 1)])
        aborted = self.random.randrange(1, outputs) if outputs > 1 and self.random.random() < 0.15 else None
        return Request(str(number), prompt, outputs, start, aborted)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < RUNNING:
            request = self.waiting.pop(0)
            request.row = self.pool.free_slots.pop()
            hit = min(len(self.cached), request.tokens - 1) if self.random.random() < 0.5 else 0
            self.counts["tokens hit"] += hit
            request.slots, request.owned = self.cached[:hit], hit
            self.pool.write((request.row, slice(0, hit)), torch.tensor(request.slots, dtype=torch.int32))
            self.running.append(request)

    def _preempt_for(self, request: Request, count: int, work: list[tuple[Request, int]]) -> bool:
        """Takes the slots of later requests, also while their step runs. False if that is not enough."""
        for victim in reversed(self.running):
            if len(self.free) >= count or victim is request:
                break
            if all(victim is not other for other, _ in work):
                self.counts["preemptions"] += 1
                self.waiting.insert(0, victim)
                self._release(victim)
        return len(self.free) >= count

    def _release(self, request: Request, keep: bool = False) -> None:
        """Its slots are free, or become the shared prefix."""
        self.running.remove(request)
        self.pool.free_slots.append(request.row)
        slots = request.slots[request.owned :]
        if keep:
            self.cached, slots = request.slots[:20], request.slots[20:]
        self.free += slots
        self.random.shuffle(self.free)
        request.slots, request.owned = [], 0
