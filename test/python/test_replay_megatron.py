"""Replay in a real Megatron-Core, on the CPU. ./dev engines trainers installs it and runs this."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import random_ids, routes_of

import moetap
from moetap import replay

torch = pytest.importorskip("torch", reason="needs PyTorch and Megatron-Core: ./dev engines trainers")
pytest.importorskip("megatron.core", reason="needs Megatron-Core: ./dev engines trainers")

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.tensor_parallel.mappings import scatter_to_sequence_parallel_region  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.core.utils import get_batch_on_this_cp_rank  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

SHAPE = moetap.ModelShape([1, 2, 3], top_k=2, num_experts=16, num_hidden_layers=4)
TOKENS = [7, 10]
VOCABULARY = 64
LAYOUTS = {"packed": replay.Packed([0, 7, 17], [0, 8, 20]), "padded": replay.Padded(TOKENS, 12, [0, 2])}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")  # where Megatron makes its buffers
        patch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: SimpleNamespace(fork=nullcontext))  # for dropout
        patch.setattr(moe_utils, "te_general_gemm", None, raising=False)  # forgotten where there is no Transformer Engine
        yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def make_model() -> Any:
    """A GPT whose layer 0 is dense. Its routers register with RouterReplay."""
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=2, num_moe_experts=16, moe_router_topk=2,
        moe_layer_freq=[0, 1, 1, 1], moe_ffn_hidden_size=16, moe_enable_routing_replay=True,
        moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather", use_cpu_initialization=True,
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False, add_bias_linear=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return GPTModel(config, spec, VOCABULARY, max_sequence_length=64, position_embedding_type="learned_absolute")


@pytest.fixture
def model() -> Iterator[Any]:
    RouterReplay.clear_global_router_replay_instances()
    yield make_model()
    RouterReplay.clear_global_router_replay_instances()


class Picks:
    """What the model's routers picked, per layer [tokens][experts], of each forward pass of each."""

    def __init__(self, model: Any) -> None:
        self.of: dict[int, list[np.ndarray]] = {}
        for module in model.modules():
            if getattr(module, "router_replay", None) is not None:
                module.register_forward_hook(self._note)

    def _note(self, router: Any, _: Any, output: Any) -> None:
        self.of.setdefault(router.layer_number - 1, []).append(output[1].numpy().copy())

    def equal(self, targets: replay.Targets, run: int) -> list[bool]:
        """For each layer, whether the run's picks of tokens with a row are the row's."""
        return [bool((self.of[layer][run] == _map_of(ids))[targets.mask].all())
                for layer, ids in zip(targets.layers, targets.ids, strict=True)]


def _map_of(ids: np.ndarray) -> np.ndarray:
    picked = np.zeros((len(ids), SHAPE.num_experts), bool)
    np.put_along_axis(picked, ids, True, axis=1)
    return picked


def micro_batch(layout: Any, seed: int) -> tuple[list[moetap.Routes | None], Callable[[Any], Any]]:
    """Routes of the sequences, and a function that makes a model's loss. The packed ones are one
    sequence to its attention, since packed attention needs a GPU."""
    random = np.random.default_rng(seed)
    routes: list[moetap.Routes | None] = [routes_of(random_ids(random, n - 1, SHAPE), shape=SHAPE) for n in TOKENS]
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, (layout.lanes, layout.length)))
    positions = torch.arange(layout.length).expand_as(tokens)
    hidden = torch.ones(1, 1, layout.length, layout.length, dtype=torch.bool).triu(1)
    return routes, lambda model: model(tokens, positions, hidden, labels=tokens).mean()


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_steps_of_training(model: Any, name: str) -> None:
    layout, picks = LAYOUTS[name], Picks(model)
    ranks = replay.Ranks(layers=replay.layers_of(model))
    assert ranks.layers == (1, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    for step in range(2):
        routes, loss_of = micro_batch(layout, step)
        targets = replay.per_layer(routes, SHAPE, layout, ranks)
        assert targets.mask.sum() == sum(TOKENS) - 2
        loss_of(model)  # without replay
        RouterReplay.set_replay_data(targets.tensors())
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        RouterReplay.clear_global_indices()
        RouterReplay.clear_global_router_replay_action()
        assert picks.equal(targets, 2 * step) == [False] * 3
        assert picks.equal(targets, 2 * step + 1) == [True] * 3
    for key, value in model.named_parameters():
        if "router" in key:
            assert not torch.equal(value, before[key]), key


def test_recomputation_of_two_micro_batches(model: Any) -> None:
    """Backward passes compute each layer again, in the order of the forward passes."""
    layout, picks = LAYOUTS["padded"], Picks(model)
    losses, all_targets = [], []
    for seed in range(2):
        routes, loss_of = micro_batch(layout, seed)
        all_targets.append(replay.per_layer(routes, SHAPE, layout))
        RouterReplay.set_replay_data(all_targets[-1].tensors())
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        losses.append(checkpoint(loss_of, model, use_reentrant=False))
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
    for loss in losses:
        loss.backward()
    for run in range(4):
        assert picks.equal(all_targets[run % 2], run) == [True] * 3
    assert not any(picks.equal(all_targets[0], 1))
    assert not any(router.replay_backward_list for router in RouterReplay.global_router_replay_instances)


def test_masked_tokens_stop_megatrons_router(model: Any) -> None:
    """It knows no mask. -1 is an error there, and never an expert."""
    routes, loss_of = micro_batch(LAYOUTS["padded"], 1)
    targets = replay.per_layer(routes, SHAPE, LAYOUTS["padded"], absent="masked")
    RouterReplay.set_replay_data(targets.tensors())
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    with pytest.raises((RuntimeError, IndexError), match="index -1 is out of bounds"):
        loss_of(model)


def test_routers_of_two_models(model: Any) -> None:
    other = make_model()
    for one in (model, other):
        with pytest.raises(moetap.ArgumentError, match="RouterReplay has 6 routers, and they are not this model's 3"):
            replay.layers_of(one)


@pytest.mark.parametrize("tp_rank", [0, 1])
@pytest.mark.parametrize("cp_rank", [0, 1, 2])
def test_slices_are_megatrons(tp_rank: int, cp_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole batch, cut by Megatron's own functions, is what per_layer() gives."""
    layout = LAYOUTS["padded"]
    routes, _ = micro_batch(layout, 3)
    whole, mask = replay.stacked(routes, SHAPE, layout, dtype="int64")
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 3)
    monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda: cp_rank)
    part = get_batch_on_this_cp_rank({"ids": torch.from_numpy(whole), "mask": torch.from_numpy(mask)})
    ranks = replay.Ranks(2, tp_rank, True, 3, cp_rank)
    targets = replay.per_layer(routes, SHAPE, layout, ranks)
    group = SimpleNamespace(size=lambda: 2, rank=lambda: tp_rank)
    ids, mask = (scatter_to_sequence_parallel_region(part[key].transpose(0, 1).contiguous(), group)
                 for key in ("ids", "mask"))
    assert np.array_equal(np.stack(targets.ids, 1), ids.reshape(-1, 3, 2).numpy())
    assert np.array_equal(targets.mask, mask.reshape(-1).numpy())
