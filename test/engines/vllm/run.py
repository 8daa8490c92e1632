"""Runs the workload in a real vLLM, once, and writes what came back. Run by report.py."""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiny_model import MAX_LENGTH, make_model
from ways import Way
from workload import Job, make_jobs

BLOCK_SIZE = 32
BLOCKS = 18  # few: requests are preempted
RESET_EVERY = 20  # steps


def set_environment(way: Way) -> None:
    """For this process and its children, before vLLM is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is in this process
    if way.path in ("device", "shm") and "config" not in way.options:
        os.environ["MOETAP_VLLM"] = way.path
    if way.path.startswith("wire-"):
        os.environ["MOETAP_TEST_WIRE"] = way.path.removeprefix("wire-")


def engine_of(model: Path, way: Way, blocks: int) -> Any:
    """A vLLM engine. Its scheduler is in this process, and its worker in another unless asked for."""
    from vllm import LLM

    speculation = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 3,
                   "prompt_lookup_min": 1}
    if "async" in way.options:
        allow_async_scheduling()
    return LLM(
        model=str(model),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=MAX_LENGTH,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=blocks,
        kv_cache_memory_bytes=64 << 20,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        enable_prefix_caching=True,
        distributed_executor_backend="uni" if "uni" in way.options else "mp",
        tensor_parallel_size=2 if "tp2" in way.options else 1,
        speculative_config=speculation if "drafts" in way.options else None,
        enable_return_routed_experts=way.path != "none",
        async_scheduling="async" in way.options,
        additional_config={"moetap": way.path} if "config" in way.options else {},
        disable_log_stats=True,
    ).llm_engine


def allow_async_scheduling() -> None:
    """vLLM switches it off on a CPU, where it takes its own configuration for granted otherwise."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_keep(vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = staticmethod(check_and_keep)  # type: ignore[method-assign]


class Meter:
    """The processor time that an object takes in these of its methods."""

    def __init__(self, measured: Any, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        for name in names:
            if hasattr(measured, name):
                setattr(measured, name, self._timed(getattr(measured, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - started

        return timed


def scheduler_end(scheduler: Any) -> Any:
    """What rows come from, moetap's or vLLM's own. None without routed experts."""
    if (ours := getattr(scheduler, "_moetap", None)) is not None:
        return ours.connector
    return getattr(scheduler, "aux_output_connector", None) or getattr(scheduler, "routed_experts_reader", None)


def worker_end(core: Any) -> Any:
    """What rows go to, where the worker is in this process."""
    runner = core.model_executor.driver_worker.worker.model_runner
    if (connector := getattr(runner, "aux_output_connector", None)) is not None:
        return connector
    return sys.modules[type(runner).__mro__[1].__module__].RoutedExpertsCapturer.get_instance()


def meters(core: Any, way: Way) -> dict[str, Meter]:
    """Of both ends of the path that rows take. The worker's can be measured only in this process."""
    if way.path == "none":
        return {}
    found = {"scheduler": Meter(scheduler_end(core.scheduler),
                                ("build_connector_meta", "take_output", "request_finished", "get_routed_experts"))}
    if "uni" in way.options:
        found["worker"] = Meter(worker_end(core), ("begin_step", "prepare_output", "process_output",
                                                   "clear_buffer", "save_captured_experts"))
    return found


class Observer:
    """Counts what the scheduler does."""

    def __init__(self, scheduler: Any) -> None:
        self.counts = dict.fromkeys(
            ("steps", "tokens", "preemptions", "hit_tokens", "chunks", "drafts", "accepted", "aborts",
             "resets", "kills", "ahead", "preempted_ahead"), 0)
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        self._preempt = scheduler._preempt_request
        self._requests = scheduler.requests
        self._in_flight: list[Any] = []  # request names of each step
        scheduler.schedule, scheduler.update_from_output = self.schedule, self.update
        scheduler._preempt_request = self.preempt

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        output = self._schedule(*arguments, **options)
        self.counts["ahead"] += bool(output.num_scheduled_tokens and any(self._in_flight))
        self._in_flight.append(set(output.num_scheduled_tokens))
        self.counts["steps"] += bool(output.num_scheduled_tokens)
        self.counts["tokens"] += output.total_num_scheduled_tokens
        self.counts["hit_tokens"] += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        self.counts["drafts"] += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        self.counts["chunks"] += sum(self._requests[name].is_prefill_chunk for name in output.num_scheduled_tokens)
        return output

    def update(self, *arguments: Any, **options: Any) -> Any:
        self._in_flight.pop(0)
        return self._update(*arguments, **options)

    def preempt(self, request: Any, *arguments: Any, **options: Any) -> None:
        self.counts["preemptions"] += 1
        self.counts["preempted_ahead"] += any(request.request_id in names for names in self._in_flight)
        self._preempt(request, *arguments, **options)


def is_first_form() -> bool:
    """Whether this is vLLM 0.18. Its requests cannot leave out the rows of the first tokens, and on a CPU
    they cannot have seeds: it takes back a generator's steps, which a CPU's cannot."""
    from vllm import __version_tuple__

    return __version_tuple__[:2] == (0, 18)


def add(engine: Any, job: Job, way: Way) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if "stream" in way.options else RequestOutputKind.CUMULATIVE
    more = {} if is_first_form() else {"seed": job.seed, "routed_experts_prompt_start": job.start}
    parameters = SamplingParams(
        temperature=job.temperature, max_tokens=job.max_tokens, ignore_eos=True, detokenize=False,
        output_kind=kind, **more)
    engine.add_request(job.name, {"prompt_token_ids": job.prompt}, parameters)


class Done(NamedTuple):
    """A request that ended by itself."""

    tokens: list[int]  # of the output
    routes: Any  # [tokens][hidden layers][top_k], or None


def serve(engine: Any, jobs: list[Job], way: Way, counts: dict[str, int], done: dict[str, Done]) -> None:
    """Runs all jobs to their ends, and gives what came of those that were not aborted."""
    waiting = sorted(jobs, key=lambda job: job.arrives)
    aborts = {job.name: job.aborted_after for job in jobs if job.aborted_after is not None}
    step = 0
    tokens: dict[str, list[int]] = {job.name: [] for job in jobs}
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0].arrives <= step:
            add(engine, waiting.pop(0), way)
        for output in engine.step():
            name, completion = output.request_id, output.outputs[0]
            kept = tokens[name] if "stream" in way.options else []
            counts["accepted"] += max(len(kept) + len(completion.token_ids) - len(tokens[name]) - 1, 0)
            tokens[name] = [*kept, *completion.token_ids]
            if output.finished:
                done[name] = Done(tokens[name], completion.routed_experts)
            elif name in aborts and len(tokens[name]) >= aborts[name]:
                del aborts[name]
                engine.abort_request([name])
                counts["aborts"] += 1
        step += 1
        if "kill" in way.options and 3 * len(done) > len(jobs) and not counts["kills"]:
            counts["kills"] += 1
            os.kill(engine.engine_core.engine_core.model_executor.workers[0].proc.pid, signal.SIGKILL)
        if "resets" in way.options and step % RESET_EVERY == 0:
            counts["resets"] += bool(engine.reset_prefix_cache(reset_running_requests=True))


def write(folder: Path, jobs: list[Job], done: dict[str, Done]) -> None:
    """Tokens, start and rows of each request that was not aborted."""
    arrays: dict[str, Any] = {}
    for job in jobs:
        if job.name not in done:
            continue
        arrays[f"{job.name}/tokens"] = np.array(job.prompt + done[job.name].tokens, np.int64)
        arrays[f"{job.name}/start"] = np.array(0 if is_first_form() else job.start)
        if done[job.name].routes is not None:
            arrays[f"{job.name}/routes"] = done[job.name].routes
    np.savez(folder / "outputs.npz", **arrays)


def run(model: Path, options: argparse.Namespace, jobs: list[Job]) -> dict[str, Any]:
    """The engine, from its start to its end. Returns what it did."""
    way: Way = options.way
    engine = engine_of(model, way, BLOCKS)
    try:
        core = engine.engine_core.engine_core
        scheduler = core.scheduler
        measured = meters(core, way)
        observer = Observer(scheduler)
        started = time.perf_counter()
        done: dict[str, Done] = {}
        died = ""
        try:
            serve(engine, jobs, way, observer.counts, done)
        except Exception as error:
            if not observer.counts["kills"]:
                raise
            died = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        connector = type(scheduler_end(scheduler))
        write(options.folder, jobs, done)
        return {
            "seconds": seconds, "died": died, "unfinished": len(jobs) - len(done) - observer.counts["aborts"],
            "instance": core.vllm_config.instance_id, "connector": f"{connector.__module__}.{connector.__name__}", **observer.counts,
            **{f"{end}_seconds": meter.seconds for end, meter in measured.items()}}
    finally:
        engine.engine_core.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", type=Way.parse, help="see ways.py")
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    set_environment(options.way)
    options.folder.mkdir(parents=True, exist_ok=True)
    # A step ahead preempts fewer requests.
    jobs = make_jobs(options.jobs * (2 if "async" in options.way.options else 1), options.seed)
    try:
        summary = run(make_model(options.model), options, jobs)
    except Exception as error:  # to be reported
        traceback.print_exc()
        summary = {"error": f"{type(error).__name__}: {error}"}
    (options.folder / "summary.json").write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
