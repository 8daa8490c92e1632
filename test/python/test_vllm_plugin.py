"""The vLLM plugin without vLLM: when it does something, and what it refuses."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import moetap
from moetap import _imports as imports
from moetap import vllm as plugin
from moetap.vllm import buffer_form, connector_form, scheduler, worker
from moetap.vllm.engine import describe


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """vLLM's platform, pretended. Tests of other platforms change it."""
    platform = SimpleNamespace(is_cpu=lambda: True, device_name="cpu")
    module = ModuleType("vllm.platforms")
    module.current_platform = platform  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    monkeypatch.setenv(plugin.VARIABLE, "device")
    return platform


# --- when it does something --------------------------------------------------------------------------


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretends a release of vLLM."""

    def pretend(version: str) -> None:
        parts = tuple(int(part) if part.isdigit() else part for part in version.split("."))
        monkeypatch.setattr(sys.modules["vllm"], "__version__", version, raising=False)
        monkeypatch.setattr(sys.modules["vllm"], "__version_tuple__", parts, raising=False)

    return pretend


UNKNOWN = ("0.33.0", "0.3.2", "0.0.dev")


@pytest.mark.parametrize("name", ["yes", "Device", "wire"])
def test_a_transport_that_there_is_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(plugin.VARIABLE, name)
    with pytest.raises(ValueError, match=f"MOETAP_VLLM is '{name}'; it must be device or shm"):
        plugin.register()
    monkeypatch.delenv(plugin.VARIABLE)
    with pytest.raises(ValueError, match=f"moetap in additional_config is '{name}'; it must be device or shm"):
        plugin.transport(config(additional_config={"moetap": name}))
    with pytest.raises(ValueError, match="moetap in additional_config is True"):
        plugin.transport(config(additional_config={"moetap": True}))


def test_an_engine_names_its_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.transport(config()) == "device"
    assert plugin.transport(config(additional_config={"moetap": "device", "other": 1})) == "device"
    with pytest.raises(ValueError, match="MOETAP_VLLM is 'device', and moetap in additional_config is 'shm'"):
        plugin.transport(config(additional_config={"moetap": "shm"}))
    monkeypatch.setenv(plugin.VARIABLE, "")
    assert plugin.transport(config(additional_config={"moetap": "shm"})) == "shm"
    assert plugin.transport(config()) is None
    assert plugin.transport(config(additional_config=object())) is None  # a platform's own class


@pytest.mark.parametrize("asked", [True, False])
def test_known_versions(release: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Are changed also where no variable asks, since an engine's configuration may."""
    installed: list[str] = []
    for form in (connector_form, buffer_form):
        monkeypatch.setattr(form, "install", lambda name=form.__name__: installed.append(name))
    if not asked:
        monkeypatch.delenv(plugin.VARIABLE)
    for version in ("0.32.1", "0.18.0"):
        release(version)
        plugin.register()
    assert installed == [connector_form.__name__, buffer_form.__name__]


@pytest.mark.parametrize("version", UNKNOWN)
def test_an_unknown_version_is_refused_by_name(release: Callable[[str], None], version: str) -> None:
    release(version)
    with pytest.raises(RuntimeError, match=f"vLLM is {version}, and moetap's plugin knows 0.18, 0.32"):
        plugin.register()


@pytest.mark.parametrize("version", UNKNOWN)
def test_an_unknown_version_whose_engine_asks(
    release: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Its other engines run as ever."""
    release(version)
    monkeypatch.delenv(plugin.VARIABLE)
    made = ModuleType("vllm.config")

    class VllmConfig:
        additional_config: Any = {}

        def __post_init__(self) -> None:
            self.checked = True

    made.VllmConfig = VllmConfig  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.config", made)
    plugin.register()
    once = VllmConfig.__post_init__
    plugin.register()
    assert VllmConfig.__post_init__ is once
    engine = VllmConfig()
    engine.__post_init__()
    assert engine.checked
    engine.additional_config = {"moetap": "device"}
    with pytest.raises(RuntimeError, match=f"vLLM is {version}, and moetap's plugin knows 0.18, 0.32"):
        engine.__post_init__()


def test_an_action_waits_for_the_import(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_this_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    imports.when_imported("module_of_this_test", lambda module: seen.append(module.value))
    imports.when_imported("module_of_this_test", lambda module: seen.append(module.value + 1))
    assert not seen
    import module_of_this_test  # type: ignore[import-not-found]

    assert seen == [1, 2]
    imports.when_imported("module_of_this_test", lambda module: seen.append(module))
    assert seen == [1, 2, module_of_this_test]
    del sys.modules["module_of_this_test"]


def model_runner() -> ModuleType:
    """vLLM's module, as far as it is changed."""

    class GPUModelRunner:
        aux_output_connector: Any = None

        def prepare_attn(self, input_batch: Any) -> tuple[str, str]:
            return "blocks", f"slots of {input_batch}"

    module = ModuleType("model_runner")
    module.GPUModelRunner = GPUModelRunner  # type: ignore[attr-defined]
    module.get_aux_output_connector = lambda *_: "theirs"  # type: ignore[attr-defined]
    return module


def test_the_worker_gets_our_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    module = model_runner()
    connector_form._change_worker(module)
    once = module.GPUModelRunner.prepare_attn
    connector_form._change_worker(module)
    assert module.GPUModelRunner.prepare_attn is once

    monkeypatch.setattr(worker, "WorkerConnector", lambda *given: SimpleNamespace(given=given, slot_mappings=None))
    asked = config()
    made = module.get_aux_output_connector("model", asked, "cache")
    assert made.given == ("model", asked, "cache")
    runner = module.GPUModelRunner()
    runner.aux_output_connector = made
    assert runner.prepare_attn("batch") == ("blocks", "slots of batch")
    assert made.slot_mappings == "slots of batch"


def scheduler_module() -> Any:
    """vLLM's module, as far as it is changed, changed."""

    class Scheduler:
        def __init__(self, vllm_config: Any, connector: Any = "theirs") -> None:
            self.vllm_config, self.kv_cache_config = vllm_config, None
            self.kv_cache_manager = SimpleNamespace(get_block_ids=None)
            self.aux_output_connector = connector

        def shutdown(self) -> None:
            self.ended = True

    made = ModuleType("scheduler")
    made.Scheduler = Scheduler  # type: ignore[attr-defined]
    connector_form._change_scheduler(made)
    return made


def test_the_scheduler_ends_our_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    module = scheduler_module()
    closed: list[str] = []
    ours = SimpleNamespace(close=lambda: closed.append("ours"))
    monkeypatch.setattr(scheduler, "SchedulerConnector", lambda *_: ours)
    made = module.Scheduler(config())
    for _ in range(2):
        made.shutdown()
    assert made.ended and closed == ["ours"]
    monkeypatch.delenv(plugin.VARIABLE)
    for theirs in (None, "theirs"):
        made = module.Scheduler(config(), theirs)
        made.shutdown()
        assert made.ended and made.aux_output_connector is theirs


def test_an_engine_that_does_not_ask_has_vllms_connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    module = model_runner()
    connector_form._change_worker(module)
    monkeypatch.delenv(plugin.VARIABLE)
    assert module.get_aux_output_connector("model", config(), "cache") == "theirs"
    for theirs in (None, SimpleNamespace()):
        runner = module.GPUModelRunner()
        runner.aux_output_connector = theirs
        assert runner.prepare_attn("batch") == ("blocks", "slots of batch")
        assert not hasattr(theirs, "slot_mappings")

    made = scheduler_module()
    monkeypatch.setattr(scheduler, "SchedulerConnector", lambda *_: "ours")
    assert made.Scheduler(config()).aux_output_connector == "theirs"
    assert made.Scheduler(config(additional_config={"moetap": "shm"})).aux_output_connector == "ours"


# --- what both ends derive ---------------------------------------------------------------------------


class FullAttentionSpec(SimpleNamespace):
    """Named as vLLM's."""


class MambaSpec(SimpleNamespace):
    """Named as vLLM's."""


class SurpriseSpec(SimpleNamespace):
    """Of a later vLLM."""


def config(**changes: Any) -> Any:
    """vLLM's configuration of a small model on one CPU."""
    hf = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
          "decoder_sparse_step": 1, "mlp_only_layers": [1]}
    made = SimpleNamespace(
        instance_id="abcde",
        additional_config={},
        kv_transfer_config=None,
        max_concurrent_batches=2,
        aux_output_config=SimpleNamespace(max_bytes=None),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, async_scheduling=False),
        parallel_config=SimpleNamespace(use_ubatching=False, pipeline_parallel_size=1, data_parallel_rank=1),
        model_config=SimpleNamespace(
            hf_text_config=hf, get_total_num_hidden_layers=lambda: 4, get_num_experts=lambda: 8,
            get_num_experts_per_tok=lambda: 2))
    for path, value in changes.items():
        part, _, name = path.partition("__")
        setattr(getattr(made, part) if name else made, name or part, value)
    return made


def cache(*specs: Any) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return SimpleNamespace(num_blocks=10, kv_cache_groups=groups)


def test_an_engine() -> None:
    made = describe(config(), cache(MambaSpec(block_size=64), FullAttentionSpec(block_size=16)))
    assert (made.anchor, made.block_size, made.num_blocks, made.concurrent_steps) == (1, 16, 10, 2)
    endpoint = made.endpoint
    assert endpoint.instance == "vllm-abcde" and endpoint.dp_rank == 1 and endpoint.num_slots == 160
    assert endpoint.shape.moe_layers == (0, 2, 3) and endpoint.shape.num_hidden_layers == 4
    # The worker must not wait for a scheduler that waits for it.
    assert endpoint.ring_depth >= 2 * made.concurrent_steps


@pytest.mark.parametrize(("changes", "message"), [
    ({"kv_transfer_config": object()}, "kv_transfer_config"),
    ({"parallel_config__use_ubatching": True}, "microbatches"),
    ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size=1"),
    ({"aux_output_config__max_bytes": 959}, "max_bytes is 959, .* takes 960 bytes"),
    ({"model_config__get_num_experts": lambda: 9}, r"= \(4, 8, 2\) to moetap and \(4, 9, 2\) to vLLM"),
])
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(config(**changes), cache(FullAttentionSpec(block_size=16)))


def test_the_memory_that_rows_need_is_enough() -> None:
    describe(config(aux_output_config__max_bytes=960), cache(FullAttentionSpec(block_size=16)))


def test_asynchronous_scheduling_needs_the_device_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    asynchronous = config(scheduler_config__async_scheduling=True)
    describe(asynchronous, cache(FullAttentionSpec(block_size=16)))
    monkeypatch.setenv(plugin.VARIABLE, "shm")
    describe(config(), cache(FullAttentionSpec(block_size=16)))
    with pytest.raises(ValueError, match="use the device transport"):
        describe(asynchronous, cache(FullAttentionSpec(block_size=16)))


def test_another_platform(on_a_cpu: SimpleNamespace) -> None:
    on_a_cpu.is_cpu, on_a_cpu.device_name = (lambda: False), "cuda"
    with pytest.raises(ValueError, match="CPUs only, not on cuda"):
        describe(config(), cache(FullAttentionSpec(block_size=16)))


def test_an_unknown_group() -> None:
    with pytest.raises(ValueError, match="SurpriseSpec, which moetap does not know"):
        describe(config(), cache(SurpriseSpec(block_size=16)))


def test_no_group_that_identifies_rows() -> None:
    with pytest.raises(moetap.ArgumentError, match="mamba"):
        describe(config(), cache(MambaSpec(block_size=16)))


def test_captured_layers_must_be_those_of_the_configuration() -> None:
    shape = moetap.ModelShape([0, 2], 2, 8)
    worker.require_layers([0, 2], shape)
    with pytest.raises(ValueError, match=r"captures layers \[0, 1, 2\]"):
        worker.require_layers([0, 1, 2], shape)
