"""The plugin's place in vLLM 0.18, whose classes are pretended."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import moetap
from moetap import vllm as plugin
from moetap.vllm import buffer_form as module
from moetap.vllm.engine import StepMetadata

SHAPE = moetap.ModelShape([0, 2], top_k=2, num_experts=16, num_hidden_layers=4)


class Connector:
    """Records what the scheduler's end is told."""

    def __init__(self, *_: Any) -> None:
        self.told: list[Any] = []

    def build_connector_meta(self, output: Any, requests: Any) -> StepMetadata:
        self.told.append(("schedule", output.number))
        return StepMetadata(output.number, 1)

    def take_output(self, request: Any, step: StepMetadata) -> Any:
        self.told.append(("take", step.step))
        return None if request.request_id == "stale" else np.full((1, 4, 2), step.step, np.uint8)

    def request_finished(self, request: Any) -> None:
        self.told.append(("finish" if request.is_finished() else "preempt", request.request_id))

    def reset(self) -> None:
        self.told.append("reset")

    def close(self) -> None:
        self.told.append("close")


class Reader:
    """vLLM's own."""

    @classmethod
    def create(cls) -> "Reader":
        return cls()

    def attach_buffer(self, max_num_kv_tokens: int, vllm_config: Any) -> None:
        raise FileNotFoundError("no worker made the buffer")


def scheduler_module() -> Any:
    """vLLM's module, as far as it is changed."""
    made = ModuleType("scheduler")

    class Scheduler:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config, self.kv_cache_config, self.requests = vllm_config, None, {}
            self.kv_cache_manager = SimpleNamespace(get_block_ids=None)
            self.steps = 0
            if vllm_config.model_config.enable_return_routed_experts:
                made.RoutedExpertsReader.create().attach_buffer(max_num_kv_tokens=1, vllm_config=vllm_config)

        def schedule(self) -> Any:
            self.steps += 1
            return SimpleNamespace(number=self.steps)

        def _preempt_request(self, request: Any, timestamp: float) -> None:
            """Frees its blocks."""

        def _free_request(self, request: Any, delay_free_blocks: bool = False) -> str:
            return "transfer"

        def reset_prefix_cache(self, done: bool = True) -> bool:
            return done

        def shutdown(self) -> None:
            self.ended = True

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            return [self._update_request_with_output(request, [1]) for request in model_runner_output]

        def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> Any:
            return new_token_ids, False

        def _get_routed_experts(self, request: Any) -> Any:
            raise FileNotFoundError("vLLM's own buffer")

    made.Scheduler, made.RoutedExpertsReader = Scheduler, Reader  # type: ignore[attr-defined]
    return made


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(plugin.VARIABLE, "device")
    monkeypatch.setattr(module, "SchedulerConnector", Connector)
    made = scheduler_module()
    module._change_scheduler(made)
    module._change_scheduler(made)  # changes nothing more
    return made


def config(routes: bool = True, **more: str) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(enable_return_routed_experts=routes), additional_config=more)


def request(name: str, finished: bool = False) -> Any:
    return SimpleNamespace(request_id=name, is_finished=lambda: finished)


def test_the_scheduler_tells_what_it_decides(changed: Any) -> None:
    scheduler = changed.Scheduler(config())
    told = scheduler._moetap.connector.told
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(first, [request("a"), request("stale")])
    scheduler._preempt_request(request("a"), 0.0)
    scheduler.update_from_output(second, [request("a")])
    assert told == [("schedule", 1), ("schedule", 2), ("take", 1), ("take", 1), ("preempt", "a"), ("take", 2)]
    rows = scheduler._get_routed_experts(request("a"))
    assert rows.dtype == np.int32 and rows[:, 0, 0].tolist() == [1, 2]
    assert scheduler._free_request(request("a", finished=True)) == "transfer"
    assert told[-1] == ("finish", "a")
    assert scheduler.reset_prefix_cache() and told[-1] == "reset"
    assert not scheduler.reset_prefix_cache(done=False) and told.count("reset") == 1


def test_the_scheduler_ends_its_connector(changed: Any) -> None:
    scheduler = changed.Scheduler(config())
    told = scheduler._moetap.connector.told
    for _ in range(2):
        scheduler.shutdown()
    assert scheduler.ended and told == ["close"]
    other = changed.Scheduler(config(routes=False))
    other.shutdown()
    assert other.ended


def test_rows_of_an_aborted_request_are_dropped(changed: Any) -> None:
    """Its name may come again."""
    scheduler = changed.Scheduler(config())
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), [request("a")])
        scheduler._free_request(request("a", finished=True))
    scheduler.update_from_output(scheduler.schedule(), [request("a")])
    assert scheduler._get_routed_experts(request("a"))[:, 0, 0].tolist() == [3]


def test_an_engine_without_routed_experts(changed: Any) -> None:
    scheduler = changed.Scheduler(config(routes=False))
    scheduler.update_from_output(scheduler.schedule(), [request("a")])
    scheduler._preempt_request(request("a"), 0.0)
    assert scheduler._free_request(request("a")) == "transfer" and scheduler.reset_prefix_cache()


def test_an_engine_that_does_not_ask_for_moetap(changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has vLLM's own reader, also after one that asked."""
    changed.Scheduler(config())
    monkeypatch.delenv(plugin.VARIABLE)
    with pytest.raises(FileNotFoundError, match="no worker made the buffer"):
        changed.Scheduler(config())
    scheduler = changed.Scheduler(config(moetap="shm"))
    scheduler.update_from_output(scheduler.schedule(), [request("a")])
    assert len(scheduler._get_routed_experts(request("a"))) == 1
    with pytest.raises(FileNotFoundError, match="vLLM's own buffer"):
        changed.Scheduler(config(routes=False))._get_routed_experts(request("a"))


# --- worker ------------------------------------------------------------------------------------------


class Tensor:
    """As much of a torch.Tensor as the plugin uses."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, where: Any) -> "Tensor":
        return Tensor(self.array[where])

    def __setitem__(self, where: Any, value: np.ndarray) -> None:
        self.array[where] = value

    def fill_(self, value: int) -> None:
        self.array[...] = value

    def numpy(self) -> np.ndarray:
        return self.array


class Publisher:
    """Records what is published."""

    def __init__(self, _: Any) -> None:
        self.published: list[Any] = []
        self.closed = False

    def publish(self, step: StepMetadata, picks: np.ndarray, slots: np.ndarray) -> None:
        self.published.append((step, picks.tolist(), slots.tolist()))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model runner with routed experts switched on, and its module."""
    monkeypatch.setenv(plugin.VARIABLE, "device")
    torch = ModuleType("torch")
    torch.int32 = np.int32  # type: ignore[attr-defined]
    torch.full = lambda size, value, dtype, device: Tensor(np.full(size, value, dtype))  # type: ignore[attr-defined]
    distributed = ModuleType("vllm.distributed")
    distributed.get_tensor_model_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    described = SimpleNamespace(endpoint=SimpleNamespace(shape=SHAPE, max_tokens=4), transport="device", anchor=1)
    monkeypatch.setattr(module, "describe", lambda *_: described)
    monkeypatch.setattr(module, "StepPublisher", Publisher)
    monkeypatch.setattr(module, "_captured_layers", lambda runner: runner.layers)
    monkeypatch.setattr(module._OneCapturer, "capturer", None)

    class GPUModelRunner:
        layers = list(SHAPE.moe_layers)
        kv_cache_config, device = None, "cpu"
        vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_size=1), additional_config={})

        def init_routed_experts_capturer(self) -> None:
            raise FileExistsError("vLLM's own buffer")

        def _bind_routed_experts_capturer(self, capturer: Any) -> None:
            self.capturer = capturer

        def execute_model(self, scheduler_output: Any, intermediate: Any = None) -> Any:
            return intermediate

    made = ModuleType("gpu_model_runner")
    made.GPUModelRunner = GPUModelRunner  # type: ignore[attr-defined]
    made.RoutedExpertsCapturer = "theirs"  # type: ignore[attr-defined]
    module._change_runner(made)
    module._change_runner(made)  # changes nothing more
    one = made.GPUModelRunner()
    one.module = made
    return one


def test_a_step(runner: Any) -> None:
    runner.init_routed_experts_capturer()
    assert runner.routed_experts_initialized and runner.routed_experts_attn_gid == 1
    capturer = runner.module.RoutedExpertsCapturer.get_instance()
    assert capturer is runner.capturer
    for number in (1, 2):
        output = SimpleNamespace(_moetap=StepMetadata(number, 2))
        assert runner.execute_model(output, "tensors") == "tensors"
        capturer.clear_buffer()
        for layer in (0, 2) if number == 1 else (0,):
            capturer.capture(layer, np.array([[number, 5], [6, 7]]))
        capturer.save_captured_experts(indices=np.array([8, 9]))
    none = [-1, -1]  # of the layer that was not captured this time, and of dense ones
    assert capturer._publisher.published[-1] == (
        StepMetadata(2, 2), [[[2, 5], none, none, none], [[6, 7], none, none, none]], [8, 9])


def test_a_step_that_the_scheduler_did_not_number(runner: Any) -> None:
    runner.init_routed_experts_capturer()
    runner.execute_model(SimpleNamespace())
    with pytest.raises(RuntimeError, match="MOETAP_VLLM must be the same in all of vLLM's processes"):
        runner.capturer.save_captured_experts(indices=np.array([8, 9]))


def test_layers_and_ranks_that_are_refused(runner: Any) -> None:
    runner.layers = [0, 1, 2]
    with pytest.raises(ValueError, match=r"captures layers \[0, 1, 2\]"):
        runner.init_routed_experts_capturer()
    runner.vllm_config.parallel_config.data_parallel_size = 2
    with pytest.raises(ValueError, match="data_parallel_size=1"):
        runner.init_routed_experts_capturer()


def test_the_worker_ends_its_capturer(runner: Any) -> None:
    runner.init_routed_experts_capturer()
    publisher = runner.capturer._publisher

    class Worker:
        def shutdown(self) -> None:
            self.ended = True

    made = ModuleType("gpu_worker")
    made.Worker = Worker  # type: ignore[attr-defined]
    module._change_worker(made)
    for _ in range(2):
        worker = made.Worker()
        worker.shutdown()
        assert worker.ended and publisher.closed


def test_a_worker_that_does_not_ask_for_moetap(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.init_routed_experts_capturer()
    monkeypatch.delenv(plugin.VARIABLE)
    with pytest.raises(FileExistsError, match="vLLM's own buffer"):
        runner.init_routed_experts_capturer()
    assert runner.module.RoutedExpertsCapturer == "theirs"
    runner.vllm_config.additional_config[plugin.KEY] = "shm"
    runner.init_routed_experts_capturer()
    assert runner.module.RoutedExpertsCapturer is module._OneCapturer


def test_a_worker_without_routed_experts(runner: Any) -> None:
    assert runner.execute_model(None, 3) == 3
