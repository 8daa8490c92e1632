"""Serves the same requests with SGLang's capturer and with moetap's, and compares each row."""

import os
import sys
import time
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import sglang.srt.state_capturer.routed_experts as theirs
import torch
from serving import CHUNK, CONFIG, LONGEST, MOE_LAYERS, RUNNING, SLOTS, Layout, Model, Server
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context, get_flags, get_parallel
from sglang.srt.state_capturer import indexer_topk

import moetap
import moetap.sglang
from moetap.sglang.capturers import RoutedExpertsCapturer

LAYOUTS = [
    Layout("plain", overlap=False),
    Layout("overlap"),
    Layout("shared", shared=2),
    Layout("dp", ranks=2),
    Layout("virtual", virtual=True),
]
SHAPE = moetap.ModelShape.from_config(CONFIG)
# What the requests must have made happen, or the comparison proves little.
LEAST = {"requests": 30, "preemptions": 11, "tokens hit": 1, "chunks": 1, "aborts": 1}


def main() -> int:
    """0 if all rows are equal, and all that should happen did."""
    seeds = int(sys.argv[1])
    # SGLang registers its buffer with CUDA, also on a CPU.
    ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, **_: torch.empty(dims, dtype=dtype)
    create = theirs.RoutedExpertsCapturer.create
    os.environ["MOETAP_SGLANG"] = "device"
    load_plugins()
    ours = theirs.RoutedExpertsCapturer.create
    assert ours is not create, "SGLang did not load moetap's plugin; see above"
    total: Counter[str] = Counter()
    for layout in LAYOUTS:
        for way in ("device", "shm"):
            os.environ["MOETAP_SGLANG"] = way
            counts: Counter[str] = Counter()
            for seed in range(seeds):
                counts += compare(create, ours, layout, seed)
            print(f"{layout.name:8} {way:6} " + ", ".join(f"{name} {counts[name]}" for name in
                                                         ("rows", "equal", *LEAST)), flush=True)
            for name, least in LEAST.items():
                if counts[name] < least:
                    print(f"    only {counts[name]} {name}")
                    counts["faults"] += 1
            total += counts
    torch.set_num_threads(1)  # others would spin, and count as processor time
    for tokens in (16, 256, 2048):
        costs(tokens)
    total["faults"] += not_captured(create, ours) + indexer()
    print(f"SGLang 0.5.23: {total['equal']} of {total['rows']} rows equal, in {total['requests']} responses; "
          f"{total['faults']} other faults")
    return 0 if total["rows"] == total["equal"] and not total["faults"] else 1


def compare(create: Any, ours: Any, layout: Layout, seed: int) -> Counter[str]:
    """Serves both, and compares what the responses have."""
    first, second = serve(create, layout, seed), serve(ours, layout, seed)
    counts = Counter(first.counts)
    if first.texts.keys() != second.texts.keys() or first.counts != second.counts:
        counts["faults"] += 1
        print(f"    {layout.name}, seed {seed}: the two served other requests")
    for name, (text, tokens, start) in first.texts.items():
        expected = rows_of(text)
        counts["rows"] += max(0, tokens - 1 - start)
        found = rows_of(second.texts[name][0])
        if found.shape != expected.shape:
            print(f"    {layout.name}, seed {seed}, request {name}: {len(found)} rows, not {len(expected)}")
            continue
        equal = (found == expected).all(axis=(1, 2))
        counts["equal"] += int(equal.sum())
        if not equal.all():
            at = int(np.flatnonzero(~equal)[0])
            print(f"    {layout.name}, seed {seed}, request {name}: row {start + at} is {found[at].tolist()}, "
                  f"not {expected[at].tolist()}")
        routes = moetap.sglang.from_base64(text, SHAPE, tokens=tokens, start=start)
        if moetap.sglang.to_base64(routes) != text:
            counts["faults"] += 1
            print(f"    {layout.name}, seed {seed}, request {name}: read and written again, the text is another")
    return counts


def serve(create: Any, layout: Layout, seed: int) -> Server:
    """Makes the capturer as SGLang does, and runs a workload with it."""
    with ExitStack() as stack:
        configure(stack, layout)
        model = Model(layout)
        capturer = make(create, model)
        stack.callback(theirs.destroy_global_experts_capturer)
        server = Server(capturer, model, layout, seed)
        server.serve()
        return server


def configure(stack: ExitStack, layout: Layout) -> None:
    stack.enter_context(get_context().override_server_args(
        enable_return_routed_experts=True, chunked_prefill_size=CHUNK, device="cpu",
        disable_overlap_schedule=not layout.overlap))
    if layout.ranks > 1:
        stack.enter_context(get_flags().dp.override(enabled=True))
        stack.enter_context(get_parallel().override(
            tp_size=layout.ranks, moe_tp_size=layout.ranks, dp_size=layout.ranks, attn_dp_size=layout.ranks,
            num_dp_ranks=layout.ranks, tp_rank=layout.ranks - 1, attn_dp_rank=layout.ranks - 1))


def make(create: Any, model: Model) -> Any:
    return create(model=model, model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**CONFIG)),
                  num_tokens=SLOTS, max_running_requests=RUNNING, device="cpu")


def rows_of(text: str) -> np.ndarray:
    """As SGLang's clients read a response: [rows][hidden layers][top_k]."""
    flat = theirs.extract_routed_experts_from_meta_info({"meta_info": {"routed_experts": text}})
    return flat.reshape(-1, CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"])


def not_captured(create: Any, ours: Any) -> int:
    """A layer's router calls no capturer in the second pass over a slot. The number of faults."""
    faults = 0
    for name, maker in (("SGLang", create), ("moetap", ours)):
        with ExitStack() as stack:
            layout = Layout("plain", overlap=False)
            configure(stack, layout)
            model = Model(layout)
            capturer = make(maker, model)
            stack.callback(theirs.destroy_global_experts_capturer)
            theirs.set_global_experts_capturer(capturer)
            pool = SimpleNamespace(req_to_token=torch.full((2, LONGEST), 5))
            batch = SimpleNamespace(out_cache_loc=torch.tensor([5]), out_cache_loc_virtual=None)
            for number, absent in ((1, None), (2, MOE_LAYERS[1])):
                model.run(number, 1, absent)
                capturer.on_forward_end(batch, False, None)
            try:
                row = capturer.get_topk(1, 2, pool)[0, MOE_LAYERS[1]].tolist()
                print(f"a layer is not captured: {name} returns {row}, of the pass before")
                faults += maker is ours
            except moetap.RowsNotPresent as refused:
                print(f"a layer is not captured: {name} says: {refused}")
    return faults


def costs(tokens: int, passes: int = 200) -> None:
    """Prints what a forward pass of 48 layers takes to capture and to take in, as processor time."""
    layers, top_k, experts = 48, 8, 128
    picks = torch.rand(layers, tokens, experts).topk(top_k).indices.int()
    config = SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=layers, num_experts_per_tok=top_k))
    batch = SimpleNamespace(out_cache_loc=torch.arange(1, tokens + 1), out_cache_loc_virtual=None)
    found = []
    with get_context().override_server_args(chunked_prefill_size=tokens, device="cpu"):
        makers = [("SGLang", lambda: theirs.RoutedExpertsCapturer(config, tokens + 1, 1, 0, "cpu"))]
        for way in ("device", "shm"):
            makers.append((way, lambda way=way: RoutedExpertsCapturer(
                moetap.ModelShape.uniform(layers, top_k, experts), num_tokens=tokens + 1, max_batch_size=tokens,
                transport=way)))
        for name, maker in makers:
            capturer = maker()
            times = []
            for _ in range(passes):
                start = time.process_time()
                for layer in range(layers):
                    capturer.capture(layer, picks[layer])
                capturer.on_forward_end(batch, False, None, no_copy_to_cpu=True).finalize()
                times.append(time.process_time() - start)
            found.append(f"{name} {sorted(times)[passes // 2] * 1e6:.0f} us")
            capturer.destroy()
    print(f"a pass of {tokens} tokens, 48 layers, top-8: {', '.join(found)}")


def indexer() -> int:
    """An engine that asks for indexer top-k is refused. The number of faults."""
    with get_context().override_server_args(enable_return_indexer_topk=True, device="cpu"):
        try:
            indexer_topk.create_indexer_capturer(model_config=None, num_tokens=1, max_running_requests=1, device="cpu")
        except NotImplementedError as refused:
            print(f"indexer top-k: {refused}")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
