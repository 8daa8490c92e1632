"""Replay in trainers: what is refused, by name."""

import pathlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SHAPE, random_ids, routes_of
from test_replay import STATES

import moetap
from moetap import replay

IDS = random_ids(np.random.default_rng(1), 4)
FIVE = replay.Packed([0, 5])


def refused(error, match, routes=None, layout=FIVE, **options) -> None:
    """Both functions refuse it."""
    routes = [routes_of(IDS)] if routes is None else routes
    with pytest.raises(error, match=match):
        replay.per_layer(routes, SHAPE, layout, **options)
    with pytest.raises(error, match=match):
        replay.stacked(routes, SHAPE, layout, **options)


# --- rows -------------------------------------------------------------------------------------------


def test_another_number_of_sequences() -> None:
    refused(moetap.ArgumentError, "routes of 2 sequences, and a layout of 1", [routes_of(IDS)] * 2)
    refused(moetap.ArgumentError, "routes of 0 sequences", [])


@pytest.mark.parametrize(("shape", "match"), [
    (moetap.ModelShape([1, 2], 2, 16, 6), "layers"), (moetap.ModelShape([0, 1, 4], 2, 16, 6), "layers"),
    (moetap.ModelShape([1, 2, 4], 2, 16, 5), "hidden"), (moetap.ModelShape([1, 2, 4], 3, 16, 6), "top_k 2 and 3"),
    (moetap.ModelShape([1, 2, 4], 2, 17, 6), "experts 16 and 17")])
def test_rows_of_another_model(shape, match) -> None:
    other = routes_of(random_ids(np.random.default_rng(1), 4, shape), shape=shape)
    refused(moetap.ArgumentError, f"sequence 0 has routes of another model than the trainer's.*{match}", [other])


def test_rows_with_weights_are_taken() -> None:
    weighted = moetap.Routes(SHAPE.with_weights("float32"), range(4))
    assert not replay.per_layer([weighted], SHAPE, FIVE, absent="distinct").mask.any()


def test_rows_past_the_sequences_end() -> None:
    for absent in ("refuse", "distinct", "masked"):
        refused(moetap.ArgumentError, r"sequence 0 has 3 tokens, and rows of positions \[0, 4\)",
                layout=replay.Packed([0, 3], [0, 8]), absent=absent)
        refused(moetap.ArgumentError, r"has 5 tokens, and rows of positions \[2, 6\)", [routes_of(IDS, 2)],
                absent=absent)


def test_rows_that_are_not_there() -> None:
    refused(moetap.RowsNotPresent, r"5 tokens, and no row present for 4 of those.*position 0; .*no routes", [None])
    refused(moetap.RowsNotPresent, r"for 1 of those .*position 0; .*\[1, 5\)", [routes_of(IDS, 1)])
    refused(moetap.RowsNotPresent, r"for 2 of those .*position 2; .*\[0, 2\)", [routes_of(IDS[:2])])
    for state in STATES:
        routes = [routes_of(IDS, states=[0, state, 0, state])]
        refused(moetap.RowsNotPresent, f"for 2 of those .*position 1; .*2 {state.name}.*absent='distinct'", routes)
    complete, part = routes_of(IDS), routes_of(IDS[:3])
    refused(moetap.RowsNotPresent, "sequence 1 has 5 tokens", [complete, part], replay.Padded([5, 5], 6))
    assert replay.per_layer([complete, part], SHAPE, replay.Padded([5, 4], 6)).mask.sum() == 7


def test_ids_that_there_are_not() -> None:
    bad = IDS.copy()
    bad[2, 1, 0] = 16
    refused(moetap.RangeError, "sequence 0, position 3, layer 2: expert 16 of 16", [routes_of(bad, 1)],
            absent="masked")
    where_nothing_is = routes_of(bad, states=[0, 0, STATES[1], 0])
    assert replay.per_layer([where_nothing_is], SHAPE, FIVE, absent="masked").ids[1][2].tolist() == [-1, -1]


def test_an_expert_twice() -> None:
    zeros = routes_of(np.zeros_like(IDS))
    refused(moetap.ArgumentError, "sequence 0 has a row that names an expert twice", [zeros])
    repeats = SHAPE.with_repeated_experts()
    declared = routes_of(np.zeros_like(IDS), shape=repeats)
    assert replay.per_layer([declared], repeats, FIVE).mask.sum() == 4


def test_a_word_that_there_is_not() -> None:
    refused(moetap.ArgumentError, "absent is 'zeros'; it must be one of refuse, distinct, masked", absent="zeros")


def test_types_that_cannot_hold_it() -> None:
    for dtype, options in (("uint8", {"absent": "masked"}), ("uint16", {"all_hidden": True}), ("float32", {}),
                           ("int8", {"all_hidden": True, "dense_id": 200})):
        with pytest.raises(moetap.RangeError, match=f"{dtype} cannot hold ids"):
            replay.stacked([routes_of(IDS)], SHAPE, FIVE, dtype=dtype, **options)
    assert replay.stacked([routes_of(IDS)], SHAPE, FIVE, dtype="uint8")[0].dtype == np.uint8
    many = moetap.ModelShape([0], 2, 257)
    with pytest.raises(moetap.RangeError, match="uint8 cannot hold ids of 0 to 256"):
        replay.stacked([None], many, replay.Packed([0, 1]), dtype="uint8")


# --- layouts and ranks ------------------------------------------------------------------------------


def test_offsets() -> None:
    for offsets, match in (([1, 5], r"cu_seqlens begins with \[1, 5\]"), ([0], r"cu_seqlens begins with \[0\]"),
                           ([0, 5, 4], "goes down from 5 to 4 at sequence 1")):
        with pytest.raises(moetap.ArgumentError, match=match):
            replay.Packed(offsets)
        with pytest.raises(moetap.ArgumentError, match=match.replace("cu_seqlens", "cu_seqlens_padded")):
            replay.Packed([0, 0], offsets)
    with pytest.raises(moetap.ArgumentError, match="cu_seqlens_padded has 3 offsets and cu_seqlens 2"):
        replay.Packed([0, 5], [0, 5, 9])
    with pytest.raises(moetap.ArgumentError, match="sequence 1 has 3 tokens, and cu_seqlens_padded leaves room for 2"):
        replay.Packed([0, 2, 5], [0, 4, 6])
    for offsets in ([0.0, 5.0], [[0, 5]], 5, "05"):
        with pytest.raises(TypeError, match="cu_seqlens must be integers in one dimension"):
            replay.Packed(offsets)


def test_padded_lengths() -> None:
    for tokens, starts, match in (([9], 0, "sequence 0 has 9 tokens from 0 on, in a batch of length 8"),
                                  ([1, 5], [0, 4], "sequence 1 has 5 tokens from 4 on"), ([5], -1, "from -1 on"),
                                  ([-1], 0, "has -1 tokens"), ([5, 5], [0], "tokens of 2 sequences and 1 starts"),
                                  (np.empty(0, int), 0, "tokens of 0 sequences")):
        with pytest.raises(moetap.ArgumentError, match=match):
            replay.Padded(tokens, 8, starts)
    with pytest.raises(TypeError, match="tokens must be integers"):
        replay.Padded([1.5], 8)
    with pytest.raises(TypeError, match="starts must be integers"):
        replay.Padded([1], 8, 0.5)
    with pytest.raises(TypeError):
        replay.Padded([1], 8.5)


def test_ranks_outside_their_group() -> None:
    for options in ({"tp_rank": 1}, {"tp_size": 2, "tp_rank": 2}, {"tp_rank": -1}, {"tp_size": 0}):
        with pytest.raises(moetap.RangeError, match="tp_rank is"):
            replay.Ranks(**options)
    for options in ({"cp_rank": 1}, {"cp_size": 2, "cp_rank": 2}, {"cp_rank": -1}, {"cp_size": 0}):
        with pytest.raises(moetap.RangeError, match="cp_rank is"):
            replay.Ranks(**options)


def test_layers_without_a_router() -> None:
    for layers, match in (([1, 3], r"layer 3 has no router; the MoE layers are \[1, 2, 4\]"), ([5], "layer 5 has no"),
                          ([1, 2, 1], "layer 1 is in layers more than once")):
        with pytest.raises(moetap.ArgumentError, match=match):
            replay.per_layer([routes_of(IDS)], SHAPE, FIVE, replay.Ranks(layers=layers))


def test_batches_that_cannot_be_shared() -> None:
    for layout in (replay.Packed([0, 5], [0, 8]), replay.Packed([0, 5, 5], [0, 6, 10]), replay.Padded([5], 9)):
        routes = [routes_of(IDS)] + [None] * (len(layout.places) - 1)
        with pytest.raises(moetap.ArgumentError, match="cp_size 3 cannot cut into 6 chunks: pad it to (12|6)"):
            replay.per_layer(routes, SHAPE, layout, replay.Ranks(cp_size=3))
        with pytest.raises(moetap.ArgumentError, match="tp_size 7 cannot share with sequence_parallel: pad them to 14"):
            replay.per_layer(routes, SHAPE, layout, replay.Ranks(tp_size=7, sequence_parallel=True))
        assert len(replay.per_layer(routes, SHAPE, layout, replay.Ranks(tp_size=7)).mask) == layout.length


# --- a model of Megatron-Core, pretended: test_replay_megatron.py has a real one ---------------------


class Replay:
    global_router_replay_instances: list["Replay"] = []


def model_of(*layer_numbers: int, fusion: bool = False, routing_type: str = "none",
             replays: bool = True) -> SimpleNamespace:
    """Modules as Megatron-Core makes them: one of no router, and a router for each number."""
    Replay.global_router_replay_instances = [Replay() for _ in layer_numbers]
    config = SimpleNamespace(moe_router_fusion=fusion, moe_enable_routing_replay=replays)
    modules = [SimpleNamespace(), SimpleNamespace(router_replay=None)]
    modules += [SimpleNamespace(router_replay=one, layer_number=number, config=config, routing_type=routing_type)
                for one, number in zip(Replay.global_router_replay_instances, layer_numbers, strict=True)]
    return SimpleNamespace(config=config, modules=lambda: modules)


def test_layers_of_a_model() -> None:
    assert replay.layers_of(model_of(2, 3, 5)) == (1, 2, 4)
    chunks = [model_of(2), model_of(5)]
    Replay.global_router_replay_instances = [chunk.modules()[2].router_replay for chunk in chunks]
    assert replay.layers_of(chunks) == (1, 4)
    assert replay.layers_of(model_of()) == ()
    for model, match in ((model_of(replays=False), "set moe_enable_routing_replay"),
                         (model_of(2, fusion=True), "switch moe_router_fusion off"),
                         (model_of(2, routing_type="sinkhorn"), "than sinkhorn"),
                         (model_of(1, 2, 1), "layer 0 has two routers, as with multi-token prediction")):
        with pytest.raises(moetap.ArgumentError, match=match):
            replay.layers_of(model)


def test_routers_that_another_model_left() -> None:
    model = model_of(2, 3)
    known = Replay.global_router_replay_instances
    for others in ([*known, Replay()], [Replay(), Replay()], known[::-1], known[:1]):
        Replay.global_router_replay_instances = others
        with pytest.raises(moetap.ArgumentError, match="not this model's 2: .*clear_global_router_replay_instances"):
            replay.layers_of(model)


# --- the package ------------------------------------------------------------------------------------


def test_names_are_documented() -> None:
    page = (pathlib.Path(__file__).parents[2] / "doc/trainers.md").read_text()
    for name in replay.__all__:
        assert name in page


def test_it_needs_no_torch() -> None:
    """Not even where it is installed."""
    program = "import sys; sys.modules['torch'] = None; import moetap.replay as r; r.Ranks(); r.Packed([0, 1])"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
