"""The SGLang plugin without SGLang: when it does something, and what it refuses."""

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import moetap
from moetap import sglang as plugin
from moetap.sglang import changes
from moetap.sglang.capturers import RoutedExpertsCapturer
from moetap.sglang.engine import describe

CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "decoder_sparse_step": 1, "mlp_only_layers": [1],
}


class TopK:
    """A router of SGLang's."""

    def __init__(self, layer_id: int, allowed: bool = True) -> None:
        self.layer_id = layer_id
        self.topk_config = SimpleNamespace(allow_routed_experts_capture=allowed)


class Pretended:
    """SGLang's modules, as far as the plugin looks at them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.features = SimpleNamespace(enable_return_routed_experts=True, enable_return_indexer_topk=False)
        self.backend = SimpleNamespace(is_none=lambda: True, value="none")
        self.dp_attention = False
        self.schedule = SimpleNamespace(chunked_prefill_size=64)
        self.bags: dict[str, SimpleNamespace] = {
            "parallel": SimpleNamespace(pp_size=1, dcp_size=1, attn_cp_size=1),
            "spec": SimpleNamespace(speculative_algorithm=None),
            "disagg": SimpleNamespace(disaggregation_mode="null", enable_pdmux=False),
            "memory": SimpleNamespace(enable_hierarchical_cache=False, enable_lmcache=False, enable_flexkv=False,
                                      enable_unified_cache_external_linker=False, enable_hisparse=False),
            "overlap": SimpleNamespace(enable_two_batch_overlap=False),
            "dllm": SimpleNamespace(dllm_algorithm=None),
        }
        bags = {f"get_{name}": lambda name=name: self.bags[name] for name in ("parallel", "spec", "disagg", "memory")}
        self.module("sglang")
        self.module("sglang.version", __version__="0.5.23")
        self.module("sglang.srt.layers.dp_attention", is_dp_attention_enabled=lambda: self.dp_attention,
                    get_dp_local_slice_cpu="theirs")
        self.module("sglang.srt.layers.moe", get_moe_a2a_backend=lambda: self.backend)
        self.module("sglang.srt.layers.moe.topk", TopK=TopK)
        self.context = self.module(
            "sglang.srt.runtime_context", get_schedule=lambda: self.schedule,
            get_exec=lambda: SimpleNamespace(features=self.features, overlap=self.bags["overlap"],
                                             dllm=self.bags["dllm"]),
            **bags)
        self.module("sglang.srt", runtime_context=self.context)

    def module(self, name: str, **contents: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(contents)
        self.monkeypatch.setitem(sys.modules, name, made)
        return made


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setenv(plugin.VARIABLE, "device")
    return Pretended(monkeypatch)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each installation."""
    calls: list[str] = []
    monkeypatch.setattr(changes, "install", lambda: calls.append("installed"))
    return calls


# --- when it does something ---------------------------------------------------------------------------


def test_without_the_variable_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], engine: Pretended
) -> None:
    """In any release."""
    engine.module("sglang.version", __version__="0.6.0")
    for value in (None, ""):
        monkeypatch.delenv(plugin.VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(plugin.VARIABLE, value)
        plugin.register()
    assert not installed


@pytest.mark.parametrize("way", ["device", "shm"])
def test_with_the_variable(monkeypatch: pytest.MonkeyPatch, installed: list[str], way: str) -> None:
    monkeypatch.setenv(plugin.VARIABLE, way)
    plugin.register()
    assert installed == ["installed"]
    assert plugin.transport() == way


@pytest.mark.parametrize("name", ["yes", "Device", "direct"])
def test_a_transport_that_there_is_not(monkeypatch: pytest.MonkeyPatch, installed: list[str], name: str) -> None:
    """Ends the process: SGLang would go on without the plugin after an Exception."""
    monkeypatch.setenv(plugin.VARIABLE, name)
    with pytest.raises(SystemExit, match=f"moetap: MOETAP_SGLANG is '{name}'; it must be device or shm"):
        plugin.register()
    assert not installed


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23.post1", "0.5.24", "0.6.0", "0.0.0.dev0"])
def test_an_unknown_version_is_refused_by_name(engine: Pretended, installed: list[str], version: str) -> None:
    engine.module("sglang.version", __version__=version)
    message = f"SGLang is {version}, and moetap's plugin knows 0.5.23: .*MOETAP_SGLANG unset"
    with pytest.raises(SystemExit, match=message):
        plugin.register()
    assert not installed


# --- what it changes ----------------------------------------------------------------------------------


def state_capturer() -> ModuleType:
    """SGLang's module, as far as it is changed."""

    class Theirs:
        @staticmethod
        def create(*, model: Any, model_config: Any, num_tokens: int, max_running_requests: int, device: str) -> str:
            return "theirs"

        def capture(self, layer_id: int, topk_indices: Any) -> None: ...

        def on_forward_end(self, forward_batch: Any, can_run_graph: bool, cuda_graph_batch: Any,
                           no_copy_to_cpu: bool = False) -> None: ...

        def get_topk(self, req_pool_idx: int, seqlen: int, req_to_token_pool: Any, start_len: int = 0) -> None: ...

        def destroy(self) -> None: ...

    module = ModuleType("routed_experts")
    module.RoutedExpertsCapturer = Theirs  # type: ignore[attr-defined]
    return module


def test_sglang_makes_our_capturer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = state_capturer()
    changes._change_capturer(module)
    changes._change_capturer(module)
    assert module.RoutedExpertsCapturer.create is RoutedExpertsCapturer.create
    monkeypatch.setattr("moetap.sglang.engine.describe", lambda *given: None)
    assert module.RoutedExpertsCapturer.create(model=1, model_config=2, num_tokens=3, max_running_requests=4,
                                               device="cpu") is None


def test_a_class_that_is_not_alike() -> None:
    module = state_capturer()
    module.RoutedExpertsCapturer.get_topk = lambda self, request, seqlen: None
    with pytest.raises(RuntimeError, match=r"takes \['self', 'request', 'seqlen'\], and moetap's plugin knows"):
        changes._change_capturer(module)
    assert module.RoutedExpertsCapturer.create is not RoutedExpertsCapturer.create
    module = state_capturer()
    del module.RoutedExpertsCapturer.destroy
    with pytest.raises(AttributeError, match="destroy"):
        changes._change_capturer(module)


def test_indexer_topk_is_refused(engine: Pretended) -> None:
    module = ModuleType("indexer_topk")
    module.create_indexer_capturer = lambda **options: options  # type: ignore[attr-defined]
    changes._change_indexer(module)
    once = module.create_indexer_capturer
    changes._change_indexer(module)
    assert module.create_indexer_capturer is once
    assert once(device="cpu") == {"device": "cpu"}
    engine.features.enable_return_indexer_topk = True
    with pytest.raises(NotImplementedError, match="does not carry indexer top-k"):
        once(device="cpu")


@pytest.mark.parametrize("draft", [False, True])
def test_a_forward_pass_begins(monkeypatch: pytest.MonkeyPatch, draft: bool) -> None:
    """Of the target model: a draft's is none."""
    seen: list[str] = []

    class Ours(RoutedExpertsCapturer):
        def __init__(self) -> None: ...

        def forward_begins(self) -> None:
            seen.append("begins")

    class ModelRunner:
        is_draft_worker = draft

        def forward(self, batch: Any, more: int = 0) -> str:
            seen.append("forward")
            return f"{batch} {more}"

    module = ModuleType("model_runner")
    capturer: list[Any] = [None]
    vars(module).update(ModelRunner=ModelRunner, get_global_experts_capturer=lambda: capturer[0])
    changes._change_runner(module)
    once = ModelRunner.forward
    changes._change_runner(module)
    assert ModelRunner.forward is once
    assert ModelRunner().forward("batch", more=1) == "batch 1"
    capturer[0] = Ours()
    assert ModelRunner().forward("batch") == "batch 0"
    assert seen == ["forward", *([] if draft else ["begins"]), "forward"]


# --- what it refuses ----------------------------------------------------------------------------------


def a_model(layers: tuple[int, ...] = (0, 2, 3), shared: int = 0, drafts: tuple[int, ...] = ()) -> Any:
    modules = [object(), *(TopK(layer) for layer in reversed(layers)), *(TopK(layer, False) for layer in drafts)]
    return SimpleNamespace(modules=lambda: modules,
                           shared_experts_config=SimpleNamespace(num_fused_shared_experts=shared))


def describe_one(model: Any = None, device: str = "cpu", **config: Any) -> Any:
    text_config = SimpleNamespace(**(CONFIG | config))
    return describe(model or a_model(), SimpleNamespace(hf_text_config=text_config), 1000, 8, device)


def test_an_engine(engine: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    found = describe_one(a_model(shared=1, drafts=(0, 4)))
    assert found.shape == moetap.ModelShape([0, 2, 3], top_k=2, num_experts=16)
    assert (found.transport, found.max_batch_size, found.num_fused_shared_experts) == ("device", 72, 1)
    assert found.local_slice is None
    engine.dp_attention = True
    engine.schedule.chunked_prefill_size = -1
    monkeypatch.setenv(plugin.VARIABLE, "shm")
    found = describe_one()
    assert (found.transport, found.max_batch_size, found.local_slice) == ("shm", 1000, "theirs")


def test_an_engine_that_does_not_return_routed_experts(engine: Pretended) -> None:
    engine.features.enable_return_routed_experts = False
    assert describe_one(device="cuda") is None


@pytest.mark.parametrize("device", ["cuda", "npu", "cpu:0"])
def test_another_device(device: str) -> None:
    with pytest.raises(ValueError, match=f"on CPUs only, not on {device}; switch moetap off"):
        describe_one(device=device)


@pytest.mark.parametrize(("bag", "option", "value"), [
    ("parallel", "pp_size", 2),
    ("parallel", "dcp_size", 2),
    ("parallel", "attn_cp_size", 2),
    ("spec", "speculative_algorithm", "EAGLE"),
    ("disagg", "disaggregation_mode", "decode"),
    ("disagg", "enable_pdmux", True),
    ("memory", "enable_hierarchical_cache", True),
    ("memory", "enable_lmcache", True),
    ("memory", "enable_flexkv", True),
    ("memory", "enable_unified_cache_external_linker", True),
    ("memory", "enable_hisparse", True),
    ("overlap", "enable_two_batch_overlap", True),
    ("dllm", "dllm_algorithm", "LowConfidence"),
])
def test_an_option_that_moves_rows(engine: Pretended, bag: str, option: str, value: Any) -> None:
    setattr(engine.bags[bag], option, value)
    with pytest.raises(ValueError, match=f"{option} is {value!r}: .* switch moetap off"):
        describe_one()
    delattr(engine.bags[bag], option)
    with pytest.raises(AttributeError, match=option):
        describe_one()


def test_tokens_that_are_scattered(engine: Pretended) -> None:
    engine.backend = SimpleNamespace(is_none=lambda: False, value="deepep")
    with pytest.raises(ValueError, match="moe_a2a_backend deepep"):
        describe_one()


@pytest.mark.parametrize("layers", [(), (0, 2), (0, 1, 2, 3), (0, 2, 3, 3)])
def test_layers_that_the_configuration_does_not_have(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"SGLang captures layers \[.*routers in layers \[0, 2, 3\]"):
        describe_one(a_model(layers))


def test_a_configuration_that_sglang_reads_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    other = moetap.ModelShape([0, 2, 3], top_k=3, num_experts=16)
    monkeypatch.setattr(moetap.ModelShape, "from_config", lambda config: other)
    with pytest.raises(ValueError, match=r"\(layers, top_k\) = \(4, 3\) to moetap and \(4, 2\) to SGLang"):
        describe_one()


def test_a_dense_model() -> None:
    with pytest.raises(moetap.ArgumentError):
        describe_one(num_experts=1)


def test_sglang_finds_the_plugin() -> None:
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.exists():
        text = project.read_text()
        assert '[project.entry-points."sglang.srt.plugins"]\nmoetap = "moetap.sglang:register"' in text
    else:  # the package is installed
        found = importlib.metadata.distribution("moetap").entry_points.select(group="sglang.srt.plugins")
        assert [(entry.name, entry.value) for entry in found] == [("moetap", "moetap.sglang:register")]
