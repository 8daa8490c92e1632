"""A worker and the books of its scheduler in one process, for tests of the vLLM plugin."""

import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest

import moetap
from moetap.vllm.books import Books

SHAPE = moetap.ModelShape([0, 2], top_k=2, num_experts=16, num_hidden_layers=4)
BLOCK = 4


class Engine:
    """A worker and the books of its scheduler. Step s picks experts that tell s and the position."""

    def __init__(self, endpoint: moetap.Endpoint) -> None:
        self.capturer = moetap.Capturer(endpoint, "host")
        self.capturer.bind_all()
        self.reader = moetap.Reader(endpoint)
        self.books = Books(moetap.Ledger(16, BLOCK, "chain"), self.reader)

    def run(self, step: int, tokens: dict[int, int], layers: tuple[int, ...] = SHAPE.moe_layers) -> None:
        """The worker computes a step: a token at each of these slots, with these positions."""
        with self.capturer.step(step, len(tokens)) as open_step:
            for layer in layers:
                ids = [row(step, position)[layer] for position in tokens.values()]
                self.capturer.capture(layer, np.array(ids, np.int32))
            open_step.publish(list(tokens))

    def close(self) -> None:
        self.reader.close()
        self.capturer.close()


def row(step: int, position: int) -> np.ndarray:
    """What step's router picked at a position: [hidden layers][top_k], 0 in dense layers."""
    ids = np.zeros((4, 2), np.uint8)
    for layer in SHAPE.moe_layers:
        ids[layer] = (step + layer) % 16, (step + layer + 1 + position % 8) % 16
    return ids


def rows(*pairs: tuple[int, int]) -> np.ndarray:
    return np.stack([row(step, position) for step, position in pairs])


_count = itertools.count(1)


@pytest.fixture
def engine() -> Iterator[Engine]:
    endpoint = moetap.Endpoint(
        f"vllm-test-{os.getpid()}-{next(_count)}", SHAPE, num_slots=16 * BLOCK, max_tokens=16,
        ring_depth=6, timeout=5)
    made = Engine(endpoint)
    yield made
    made.close()


def slots(blocks: list[int], positions: range) -> dict[int, int]:
    return {blocks[p // BLOCK] * BLOCK + p % BLOCK: p for p in positions}
