"""What the tests of the Python package share: names of their own, and nothing left over."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import moetap

_count = itertools.count(1)
SHAPE = moetap.ModelShape([1, 2, 4], top_k=2, num_experts=16, num_hidden_layers=6)
BLOCK_SIZE = 4
NUM_BLOCKS = 16


@pytest.fixture
def endpoint() -> Iterator[moetap.Endpoint]:
    """One of this test's own. Fails the test if it leaves shared memory."""
    instance = f"pytest-{os.getpid()}-{next(_count)}"
    yield moetap.Endpoint(instance, SHAPE, num_slots=NUM_BLOCKS * BLOCK_SIZE, max_tokens=32,
                          timeout=5)
    left = [segment.name for segment in moetap.find_segments() if instance in segment.name]
    for name in left:
        moetap.reclaim(name)
    assert not left


@pytest.fixture
def start() -> Iterator[Callable[..., multiprocessing.Process]]:
    """Starts a function in a new process, which is gone after the test."""
    context = multiprocessing.get_context("spawn")
    started: list[Any] = []

    def start_one(function: Callable[..., None], *arguments: Any) -> multiprocessing.Process:
        process = context.Process(target=function, args=arguments)
        started.append(process)
        process.start()
        return process  # type: ignore[return-value]

    yield start_one
    for process in started:
        process.kill()
        process.join()


def picks(tokens: int, step: int = 1, shape: moetap.ModelShape = SHAPE) -> np.ndarray:
    """A router's picks, int32 [layers][tokens][top_k]: distinct, and other ones in each step."""
    random = np.random.default_rng((tokens, step))
    scores = random.random((shape.num_layers, tokens, shape.num_experts))
    return np.argsort(scores, axis=2)[:, :, : shape.top_k].astype(np.int32)


def run_step(capturer: moetap.Capturer, step: int, slots: Any, ids: np.ndarray | None = None,
             **options: Any) -> np.ndarray:
    """Captures a step of these slots. Returns its ids as [tokens][layers][top_k]."""
    tokens = len(slots)
    ids = picks(tokens, step, capturer.shape) if ids is None else ids
    with capturer.step(step, tokens, **options) as open_step:
        for layer, layer_ids in zip(capturer.shape.moe_layers, ids, strict=True):
            capturer.capture(layer, layer_ids)
        open_step.publish(slots)
    return ids.transpose(1, 0, 2)


@pytest.fixture(params=["device", "shm"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport."""
    return request.param


@pytest.fixture(params=["host", "inline"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that needs no GPU."""
    return request.param


@pytest.fixture
def pair(transport: str, device: str, endpoint: moetap.Endpoint) -> Iterator[Any]:
    """A worker and a scheduler in this process, with each transport and on each device."""
    with moetap.Capturer(endpoint, device, transport=transport) as capturer:
        capturer.bind_all()
        with moetap.Reader(endpoint, transport) as reader:
            yield capturer, reader


@pytest.fixture
def capturer(endpoint: moetap.Endpoint) -> Iterator[moetap.Capturer]:
    with moetap.Capturer(endpoint, "host", transport="shm") as made:
        made.bind_all()
        yield made


def rows_of(endpoint: moetap.Endpoint, step: int, tokens: int = 8) -> moetap.Routes:
    """What the `capturer` published of the first tokens, by this step."""
    with moetap.Reader(endpoint, "shm") as reader:
        reader.wait_for(step)
        return reader.read_blocks([0, 1], BLOCK_SIZE, range(tokens), (1, step))


def routes_of(ids: Any, start: int = 0, states: Any = None, shape: moetap.ModelShape = SHAPE) -> moetap.Routes:
    """Rows with these ids, [tokens][layers][top_k], and states: all present unless given."""
    states = np.zeros(len(ids), np.uint8) if states is None else np.asarray(states, np.uint8)
    rows = np.asarray(ids).astype(shape.id_type)
    made = moetap.Routes.__new__(moetap.Routes)
    made.__setstate__((shape, start, start + len(ids), rows.tobytes(), states.tobytes()))
    return made


def random_ids(random: np.random.Generator, tokens: int, shape: moetap.ModelShape = SHAPE) -> np.ndarray:
    """Rows of a router, [tokens][layers][top_k]."""
    scores = random.random((tokens, shape.num_layers, shape.num_experts))
    return np.argsort(scores, axis=2)[..., :shape.top_k]
