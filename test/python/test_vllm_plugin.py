"""The vLLM plugin without vLLM: when it does something, and what it refuses."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import moetap
from moetap import vllm as plugin
from moetap.vllm import connector_form, imports, worker
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


def test_does_nothing_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.VARIABLE)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import would fail
    plugin.register()


def test_a_transport_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.VARIABLE, "yes")
    with pytest.raises(ValueError, match="MOETAP_VLLM is 'yes'; it must be device, shm or unset"):
        plugin.register()


def test_an_unknown_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[bool] = []
    monkeypatch.setattr(connector_form, "install", lambda: installed.append(True))
    package = sys.modules["vllm"]
    for version, parts in (("0.33.0", (0, 33, 0)), ("0.3.2", (0, 3, 2)), ("dev", (0, 0, "dev"))):
        monkeypatch.setattr(package, "__version__", version, raising=False)
        monkeypatch.setattr(package, "__version_tuple__", parts, raising=False)
        with pytest.raises(RuntimeError, match=f"vLLM is {version}, and moetap's plugin knows 0.18, 0.32"):
            plugin.register()
    assert not installed
    monkeypatch.setattr(package, "__version__", "0.32.1")
    monkeypatch.setattr(package, "__version_tuple__", (0, 32, 1))
    plugin.register()
    assert installed


def test_an_action_waits_for_the_import(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_this_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    imports.when_imported("module_of_this_test", lambda module: seen.append(module.value))
    assert not seen
    import module_of_this_test  # type: ignore[import-not-found]

    assert seen == [1]
    imports.when_imported("module_of_this_test", lambda module: seen.append(module))
    assert seen == [1, module_of_this_test]
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

    monkeypatch.setattr(worker, "WorkerConnector", lambda *given: given)
    assert module.get_aux_output_connector("model", "config", "cache") == ("model", "config", "cache")
    runner = module.GPUModelRunner()
    assert runner.prepare_attn("batch") == ("blocks", "slots of batch")
    runner.aux_output_connector = SimpleNamespace()
    runner.prepare_attn("batch")
    assert runner.aux_output_connector.slot_mappings == "slots of batch"


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
    with pytest.raises(ValueError, match="MOETAP_VLLM=device"):
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
