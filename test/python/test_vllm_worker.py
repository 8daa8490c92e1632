"""The plugin's worker end, with vLLM's parts pretended: a step's rows, and its faults."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm_worker import SHAPE, Engine, engine, row, rows, slots

import moetap
from moetap.vllm import worker as module
from moetap.vllm.engine import StepMetadata
from moetap.vllm.worker import WorkerConnector

__all__ = ["engine"]  # a fixture

PREFIX = "vllm.model_executor.layers.fused_moe."


class Tensor:
    """As much of a torch.Tensor as the plugin uses."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, where: Any) -> "Tensor":
        return Tensor(self.array[where])

    def fill_(self, value: int) -> None:
        self.array[...] = value

    def numpy(self) -> np.ndarray:
        return self.array


class MoERunner:
    """A layer with a router."""

    def __init__(self, layer_id: int) -> None:
        self.layer_id = layer_id


class RoutedExpertsCapturer:
    """vLLM's buffer of a step's picks: [tokens][hidden layers][top_k]."""

    def __init__(self, max_num_batched_tokens: int, vllm_config: Any) -> None:
        shape = (max_num_batched_tokens, SHAPE.num_hidden_layers, SHAPE.top_k)
        self.device_buffer = Tensor(np.full(shape, 7, np.int32))


@pytest.fixture
def make(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerConnector]]:
    """Makes the connector of a worker with these MoE layers. engine.reader reads what it publishes."""
    first = SimpleNamespace(is_first_rank=True)
    pretended = {
        "vllm.distributed.parallel_state": {"get_tp_group": lambda: first},
        PREFIX + "layer": {"MoERunner": MoERunner},
        PREFIX + "routed_experts_capturer": {
            "RoutedExpertsCapturer": RoutedExpertsCapturer,
            "RoutedExpertsCaptureSource": type("RoutedExpertsCaptureSource", (), {}),
            "bind_routed_experts_capturer": lambda model, capturer: None,
        },
    }
    for name, contents in pretended.items():
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
    described = SimpleNamespace(
        endpoint=SimpleNamespace(shape=SHAPE, max_tokens=16), transport="device", anchor=1)
    monkeypatch.setattr(module, "describe", lambda *_: described)
    monkeypatch.setattr(moetap, "Capturer", lambda *_, **__: engine.capturer)
    monkeypatch.setattr(engine.capturer.__class__, "bind_all", lambda self: None)  # the fixture did

    def make_one(layers: tuple[int, ...] = SHAPE.moe_layers, first_rank: bool = True) -> WorkerConnector:
        first.is_first_rank = first_rank
        model = SimpleNamespace(modules=lambda: [MoERunner(layer) for layer in layers])
        return WorkerConnector(model, None, None)

    yield make_one


def forward(connector: WorkerConnector, step: int, positions: range, layers: tuple[int, ...]) -> Any:
    """The forward pass: these layers are captured. Returns the batch."""
    buffer = connector._picks.device_buffer.array
    for layer in layers:
        buffer[: len(positions), layer] = [row(step, position)[layer] for position in positions]
    where = np.array(list(slots([1, 2], positions)), np.int64)
    connector.slot_mappings = [None, Tensor(np.append(where, [-1, -1]))]  # padded
    return SimpleNamespace(req_ids=["a"], query_start_loc_np=np.array([0, len(positions), 99]))


def test_a_step(make: Callable[..., WorkerConnector], engine: Engine) -> None:
    connector = make()
    connector.begin_step(StepMetadata(1, 5))
    output = connector.prepare_output(forward(connector, 1, range(5), SHAPE.moe_layers))
    assert output is not None
    output.enqueue_cpu_copy(num_sampled=None, num_rejected=None)
    assert output.process_output() == StepMetadata(1, 5)
    engine.books.admit("a", 5, [1, 2], 0, start=0)
    engine.books.schedule(1, "a", range(5))
    given = engine.books.take(1, "a", 6, finished=True)
    assert given is not None and np.array_equal(given, rows(*((1, p) for p in range(5))))


def test_a_layer_that_was_not_captured_leaves_no_row(make: Callable[..., WorkerConnector], engine: Engine) -> None:
    """Though the buffer still has the picks of the step before."""
    connector = make()
    engine.books.admit("a", 4, [1, 2], 0, start=0)
    for step, positions, layers in ((1, range(4), SHAPE.moe_layers), (2, range(4, 8), (0,))):
        engine.books.schedule(step, "a", positions)
        connector.begin_step(StepMetadata(step, 4))
        connector.prepare_output(forward(connector, step, positions, layers))
    assert len(engine.books.take(1, "a", 5, finished=False)) == 4
    with pytest.raises(moetap.RowsNotPresent, match="request 'a': the row of its token 4 is missing"):
        engine.books.take(2, "a", 9, finished=True)


def test_a_step_without_tokens(make: Callable[..., WorkerConnector]) -> None:
    connector = make()
    for metadata in (StepMetadata(0, 0), None):
        connector.begin_step(metadata)
        assert connector.prepare_output(forward(connector, 1, range(2), SHAPE.moe_layers)) is None


def test_another_number_of_tokens_than_was_scheduled(make: Callable[..., WorkerConnector]) -> None:
    connector = make()
    connector.begin_step(StepMetadata(1, 6))
    with pytest.raises(RuntimeError, match="step 1 computed 5 tokens with 5 slots, and 6 were"):
        connector.prepare_output(forward(connector, 1, range(5), SHAPE.moe_layers))


def test_only_the_first_rank_publishes(make: Callable[..., WorkerConnector]) -> None:
    connector = make(first_rank=False)
    connector.begin_step(StepMetadata(1, 5))
    assert connector.prepare_output(forward(connector, 1, range(5), SHAPE.moe_layers)) is None
    connector.close()


def test_layers_that_the_configuration_does_not_have(make: Callable[..., WorkerConnector]) -> None:
    with pytest.raises(ValueError, match=r"captures layers \[0, 1, 2\]"):
        make(layers=(0, 1, 2))
