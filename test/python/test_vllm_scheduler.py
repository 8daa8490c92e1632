"""The plugin's scheduler end, told what vLLM's scheduler tells it."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm_worker import Engine, engine, rows, slots

import moetap
from moetap.vllm import scheduler as module
from moetap.vllm.engine import StepMetadata
from moetap.vllm.scheduler import SchedulerConnector

__all__ = ["engine"]  # a fixture

BLOCKS = {"a": [1, 2, 3]}


@pytest.fixture
def connector(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> SchedulerConnector:
    """With the group 1 of two as the anchor."""
    described = SimpleNamespace(
        endpoint=None, transport="device", anchor=1, num_blocks=16, block_size=4, concurrent_steps=1)
    monkeypatch.setattr(module, "describe", lambda *_: described)
    monkeypatch.setattr(moetap, "Reader", lambda *_: engine.reader)
    return SchedulerConnector(None, None, lambda request: ([9], BLOCKS[request]))


def request(tokens: int, **changes: Any) -> Any:
    made = SimpleNamespace(
        request_id="a", num_tokens=tokens, num_prompt_tokens=tokens, resumable=False,
        sampling_params=SimpleNamespace(routed_experts_prompt_start=0), is_finished=lambda: False)
    vars(made).update(changes)
    return made


def new(blocks: list[int], computed: int, **changes: Any) -> Any:
    made = SimpleNamespace(req_id="a", block_ids=([9], blocks), num_computed_tokens=computed, replay_start=0)
    vars(made).update(changes)
    return made


def scheduled(tokens: dict[str, int], new_requests: tuple[Any, ...] = (),
              cached: tuple[tuple[str, Any, int], ...] = (), copies: Any = None,
              resumed: tuple[str, ...] = ()) -> Any:
    names, blocks, starts = zip(*cached, strict=True) if cached else ((), (), ())
    return SimpleNamespace(
        num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=new_requests, kv_cache_block_copies=copies,
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names, new_block_ids=blocks, num_computed_tokens=starts, resumed_req_ids=resumed))


def test_a_request_from_its_prompt_to_its_end(connector: SchedulerConnector, engine: Engine) -> None:
    a = request(6, num_prompt_tokens=6)
    a.sampling_params.routed_experts_prompt_start = 1
    assert connector.build_connector_meta(scheduled({"a": 4}, (new([1], 0),)), {"a": a}) == StepMetadata(1, 4)
    engine.run(1, slots([1], range(4)))
    assert connector.build_connector_meta(scheduled({}), {"a": a}) == StepMetadata(0, 0)
    meta = connector.build_connector_meta(scheduled({"a": 2}, cached=(("a", ([], [2]), 4),)), {"a": a})
    engine.run(meta.step, slots([1, 2], range(4, 6)))
    a.num_tokens = 7
    given = connector.take_output(a, meta)
    assert np.array_equal(given, rows((1, 1), (1, 2), (1, 3), (2, 4), (2, 5)))
    meta = connector.build_connector_meta(scheduled({"a": 1}, cached=(("a", None, 6),)), {"a": a})
    engine.run(meta.step, slots([1, 2], range(6, 7)))
    a.num_tokens, a.is_finished = 8, lambda: True
    assert np.array_equal(connector.take_output(a, meta), rows((3, 6)))
    connector.request_finished(a)
    connector.request_finished(request(3, request_id="never ran", is_finished=lambda: True))


@pytest.mark.parametrize("as_new", [True, False])
def test_a_request_that_is_preempted_and_resumed(
    connector: SchedulerConnector, engine: Engine, as_new: bool
) -> None:
    """vLLM's second model runner takes it for a new one, the first one does not."""
    a = request(4)
    connector.build_connector_meta(scheduled({"a": 4}, (new([1, 2, 3], 0),)), {"a": a})
    engine.run(1, slots([1, 2, 3], range(4)))
    connector.request_finished(a)  # preempted, while step 1 is in flight
    a.num_tokens = 5
    assert np.array_equal(connector.take_output(a, StepMetadata(1, 4)), rows(*((1, p) for p in range(4))))
    resumed = scheduled({"a": 1}, (new([1, 5], 4),))
    if not as_new:
        resumed = scheduled({"a": 1}, cached=(("a", ([9], [1, 5]), 4),), resumed=("a",))
    meta = connector.build_connector_meta(resumed, {"a": a})
    engine.run(meta.step, slots([1, 5], range(4, 5)))
    a.num_tokens = 6
    assert np.array_equal(connector.take_output(a, meta), rows((2, 4)))


def test_steps_that_no_request_takes_are_taken_in(connector: SchedulerConnector, engine: Engine) -> None:
    """Or the worker's ring fills, and it waits for a scheduler that waits for it."""
    a = request(40)
    blocks = list(range(1, 11))
    for step in range(1, 11):
        chunk = scheduled({"a": 4}, cached=(("a", ([], [step]), 4 * step - 4),))
        if step == 1:
            chunk = scheduled({"a": 4}, (new([1], 0),))
        connector.build_connector_meta(chunk, {"a": a})
        engine.run(step, slots(blocks, range(4 * step - 4, 4 * step)))
    assert engine.capturer.num_failed == 0
    a.num_tokens = 41
    assert len(connector.take_output(a, StepMetadata(10, 4))) == 40


@pytest.mark.parametrize(("make", "message"), [
    (lambda: (scheduled({"a": 1}, copies=[(1, 2)]), request(1)), "copies KV-cache blocks"),
    (lambda: (scheduled({"a": 1}, (new([1], 0),)), request(1, resumable=True)), "'a' streams its input"),
    (lambda: (scheduled({"a": 1}, (new([1], 0, replay_start=1),)), request(1)), "'a' replays tokens"),
])
def test_what_is_refused(connector: SchedulerConnector, make: Callable[[], Any], message: str) -> None:
    output, a = make()
    with pytest.raises(NotImplementedError, match=message):
        connector.build_connector_meta(output, {"a": a})


def test_an_output_without_its_step(connector: SchedulerConnector) -> None:
    with pytest.raises(RuntimeError, match="request 'a': the worker did not say which step"):
        connector.take_output(request(1), None)


def test_the_end_of_an_engine(connector: SchedulerConnector, engine: Engine) -> None:
    connector.close()
    assert engine.reader.closed


FROZEN = """
import gc, os
from types import SimpleNamespace
import moetap
from moetap.vllm import scheduler

shape = moetap.ModelShape.uniform(num_layers=2, top_k=2, num_experts=16)
endpoint = moetap.Endpoint(f"vllm-test-exit-{os.getpid()}", shape, num_slots=64, max_tokens=16)
scheduler.describe = lambda *_: SimpleNamespace(
    endpoint=endpoint, transport="device", anchor=0, num_blocks=16, block_size=4, concurrent_steps=1)
with moetap.Capturer(endpoint, "host"):
    engine = SimpleNamespace(connector=scheduler.SchedulerConnector(None, None, None))
    engine.itself = engine
    gc.freeze()
    scheduler.describe = None
    engine.connector.close()
"""


def test_an_engine_that_ended_leaves_no_object_of_moetap() -> None:
    """vLLM keeps its engine from the garbage collector. What is alive when the process ends is printed."""
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
