"""The capturers for SGLang, without SGLang: what they promise."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import SHAPE, picks

import moetap
from moetap.sglang import rows as rows_module
from moetap.sglang.capturers import IndexerTopkCapturer, RoutedExpertsCapturer, TopkCaptureOutput

_count = itertools.count(1)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of PyTorch as is used."""
    module = ModuleType("torch")
    module.from_numpy = lambda array: array  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.fixture(params=["device", "shm"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., RoutedExpertsCapturer]]:
    """Makes a capturer of 64 slots. Fails the test if it leaves shared memory."""
    instance = f"sglang-test-{os.getpid()}-{next(_count)}"
    made: list[RoutedExpertsCapturer] = []

    def make_one(**options: Any) -> RoutedExpertsCapturer:
        made.append(RoutedExpertsCapturer(options.pop("shape", SHAPE), num_tokens=64, max_batch_size=8,
                                          transport=request.param, instance=instance, **options))
        return made[-1]

    yield make_one
    for capturer in made:
        capturer.destroy()
    assert not [segment.name for segment in moetap.find_segments() if instance in segment.name]


@pytest.fixture
def capturer(make: Callable[..., RoutedExpertsCapturer]) -> RoutedExpertsCapturer:
    return make()


def batch(slots: Any, virtual: Any = None) -> SimpleNamespace:
    return SimpleNamespace(out_cache_loc=np.asarray(slots), out_cache_loc_virtual=virtual)


def capture(capturer: RoutedExpertsCapturer, ids: np.ndarray, layers: Any = SHAPE.moe_layers) -> None:
    """ids: [MoE layers][tokens][top_k]"""
    for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
        if layer in layers:
            capturer.capture(layer_id=layer, topk_indices=layer_ids)


def run(capturer: RoutedExpertsCapturer, slots: Any, seed: int, layers: Any = SHAPE.moe_layers,
        **options: Any) -> tuple[np.ndarray, TopkCaptureOutput | None]:
    """A forward pass. Returns its rows as SGLang has them, and the pending output."""
    ids = picks(len(slots), seed)
    capture(capturer, ids, layers)
    output = capturer.on_forward_end(forward_batch=batch(slots), can_run_graph=False, cuda_graph_batch=None, **options)
    return whole(ids), output


def whole(ids: np.ndarray) -> np.ndarray:
    """[tokens][hidden layers][top_k], 0 in dense layers."""
    rows = np.zeros((ids.shape[1], SHAPE.num_hidden_layers, SHAPE.top_k), np.int32)
    rows[:, list(SHAPE.moe_layers)] = ids.transpose(1, 0, 2)
    return rows


def pool(slots: Any, tokens: int = 40) -> SimpleNamespace:
    """The request in row 1 has these slots."""
    table = np.zeros((3, tokens), np.int32)
    table[1, : len(slots)] = slots
    return SimpleNamespace(req_to_token=table)


def get(capturer: RoutedExpertsCapturer, slots: Any, start: int = 0) -> np.ndarray:
    """The rows of a request whose tokens are in these slots. Its last token has no slot."""
    rows: Any = capturer.get_topk(req_pool_idx=1, seqlen=len(slots) + 1, req_to_token_pool=pool(slots),
                                  start_len=start)
    assert isinstance(rows, np.ndarray)
    return rows


def test_rows_of_a_request(capturer: RoutedExpertsCapturer) -> None:
    """A prompt in two chunks, then tokens one by one, each beside another request's."""
    expected = [run(capturer, [20, 21, 5, 6], 1)[0], run(capturer, [7], 2)[0]]
    for step, slot in enumerate((40, 3), 3):
        expected.append(run(capturer, [50, slot], step)[0][1:])
    found = get(capturer, [20, 21, 5, 6, 7, 40, 3])
    assert found.dtype == np.int32
    assert np.array_equal(found, np.concatenate(expected))
    assert np.array_equal(get(capturer, [20, 21, 5, 6, 7, 40, 3], start=5), np.concatenate(expected)[5:])


def test_past_the_end_are_no_rows(capturer: RoutedExpertsCapturer) -> None:
    run(capturer, [4, 5], 1)
    for start in (2, 9):
        assert get(capturer, [4, 5], start).shape == (0, 6, 2)


def test_a_slot_that_is_computed_again(capturer: RoutedExpertsCapturer) -> None:
    run(capturer, [4, 5, 6], 1)
    again, _ = run(capturer, [5], 2)
    assert np.array_equal(get(capturer, [5]), again)


# --- overlapping steps --------------------------------------------------------------------------------


def test_rows_come_when_the_output_is_processed(capturer: RoutedExpertsCapturer) -> None:
    first, pending = run(capturer, [4, 5], 1, no_copy_to_cpu=True)
    assert pending is not None
    with pytest.raises(moetap.RowsNotPresent, match="row 1 of the pool: the row of token 0, in slot 4, is missing: "
                                                    "no forward pass computed this slot"):
        get(capturer, [4, 5])
    later, after = run(capturer, [6], 2, no_copy_to_cpu=True)
    pending.map_device_tensors(None)
    pending.finalize()
    assert np.array_equal(get(capturer, [4, 5]), first)
    assert after is not None
    after.finalize()
    after.finalize()
    assert np.array_equal(get(capturer, [4, 5, 6]), np.concatenate([first, later]))


def test_the_next_step_writes_into_the_slot(capturer: RoutedExpertsCapturer) -> None:
    """Its rows are never those of the step before, and with `device` the old ones are still there."""
    first, pending = run(capturer, [4, 5], 1, no_copy_to_cpu=True)
    later, after = run(capturer, [5], 2, no_copy_to_cpu=True)
    assert pending is not None and after is not None
    pending.finalize()
    try:
        assert np.array_equal(get(capturer, [4, 5]), first)
    except moetap.RowsNotPresent as why:
        assert "token 1, in slot 5, is clobbered" in str(why)  # `shm` has the later row there
    after.finalize()
    assert np.array_equal(get(capturer, [4, 5]), np.concatenate([first[:1], later]))


def test_outputs_in_another_order(capturer: RoutedExpertsCapturer) -> None:
    first, pending = run(capturer, [4, 5], 1, no_copy_to_cpu=True)
    later, after = run(capturer, [5], 2, no_copy_to_cpu=True)
    assert pending is not None and after is not None
    after.finalize()
    pending.finalize()
    assert np.array_equal(get(capturer, [4, 5]), np.concatenate([first[:1], later]))


def test_outputs_that_are_never_processed(capturer: RoutedExpertsCapturer) -> None:
    """Do not fill the ring. Their rows do not count, and neither do those they wrote over."""
    first, _ = run(capturer, [4, 5], 1)
    for step in range(2, 4 * rows_module.STEPS_IN_FLIGHT):
        run(capturer, [5], step, no_copy_to_cpu=True)
    assert np.array_equal(get(capturer, [4]), first[:1])
    with pytest.raises(moetap.RowsNotPresent, match="token 0, in slot 5, is clobbered: step 1 computed this slot last"):
        get(capturer, [5])


# --- what is missing ----------------------------------------------------------------------------------


def test_a_slot_that_was_never_computed(capturer: RoutedExpertsCapturer) -> None:
    run(capturer, [4, 5], 1)
    with pytest.raises(moetap.RowsNotPresent, match="token 2, in slot 9, is missing: no forward pass"):
        get(capturer, [4, 5, 9])


@pytest.mark.parametrize("absent", SHAPE.moe_layers)
def test_a_layer_that_was_not_captured(capturer: RoutedExpertsCapturer, absent: int) -> None:
    """Though the slots have rows of an earlier step."""
    run(capturer, [4, 5], 1)
    run(capturer, [5], 2, layers=[layer for layer in SHAPE.moe_layers if layer != absent])
    assert len(get(capturer, [4])) == 1
    with pytest.raises(moetap.RowsNotPresent, match=f"slot 5, is .*: step 2 failed: layer {absent} was not captured"):
        get(capturer, [4, 5])
    again, _ = run(capturer, [5], 3)
    assert np.array_equal(get(capturer, [5]), again)


def test_no_layer_was_captured(capturer: RoutedExpertsCapturer) -> None:
    run(capturer, [4], 1)
    run(capturer, [4], 2, layers=())
    with pytest.raises(moetap.RowsNotPresent, match="step 2 failed: layer"):
        get(capturer, [4])


def test_an_id_that_is_not_there(capturer: RoutedExpertsCapturer) -> None:
    ids = picks(2, 1)
    ids[1, 1] = -1
    capture(capturer, ids)
    capturer.on_forward_end(batch([4, 5]), False, None)
    assert len(get(capturer, [4])) == 1
    with pytest.raises(moetap.RowsNotPresent, match="token 1, in slot 5, is missing"):
        get(capturer, [4, 5])


def test_memory_that_nobody_wrote(capturer: RoutedExpertsCapturer) -> None:
    ids = picks(2, 1)
    ids[1, 1] = 0
    capture(capturer, ids)
    capturer.on_forward_end(batch([4, 5]), False, None)
    with pytest.raises(moetap.RowsNotPresent, match="step 1 failed: .* twice"):
        get(capturer, [5])


def test_padding_tokens(capturer: RoutedExpertsCapturer) -> None:
    """Are in slot 0, several at once. Nobody has rows there."""
    expected, _ = run(capturer, [4, 0, 5, 0], 1)
    assert np.array_equal(get(capturer, [4, 5]), expected[[0, 2]])
    with pytest.raises(moetap.RowsNotPresent, match="slot 0, is missing"):
        get(capturer, [0])
    run(capturer, [0, 0], 2)  # no step


# --- forward passes -----------------------------------------------------------------------------------


def test_a_warm_up_is_of_no_pass(capturer: RoutedExpertsCapturer) -> None:
    capture(capturer, picks(3, 7), layers=SHAPE.moe_layers[:1])
    capturer.forward_begins()
    run(capturer, [4, 5, 6], 2, layers=SHAPE.moe_layers[1:])
    with pytest.raises(moetap.RowsNotPresent, match="step 1 failed: layer 1 was not captured"):
        get(capturer, [4])


def test_a_layer_that_comes_again_begins_a_pass(capturer: RoutedExpertsCapturer) -> None:
    capture(capturer, picks(3, 7))
    expected, _ = run(capturer, [4, 5, 6], 1)
    assert np.array_equal(get(capturer, [4, 5, 6]), expected)
    capture(capturer, picks(3, 7))
    run(capturer, [4, 5, 6], 2, layers=SHAPE.moe_layers[1:])
    with pytest.raises(moetap.RowsNotPresent, match="step 2 failed: layer 1 was not captured"):
        get(capturer, [4])


def test_picks_are_copied(capturer: RoutedExpertsCapturer) -> None:
    """SGLang maps them to physical experts in place."""
    ids = picks(2, 1)
    expected = whole(ids)
    capture(capturer, ids)
    ids[:] = 3
    capturer.on_forward_end(batch([4, 5]), False, None)
    assert np.array_equal(get(capturer, [4, 5]), expected)


@pytest.mark.parametrize("shared", [-1, 16])
def test_fused_shared_experts(make: Callable[..., RoutedExpertsCapturer], shared: int) -> None:
    """Add columns, or do not."""
    capturer = make(num_fused_shared_experts=2)
    ids = picks(2, 1)
    capture(capturer, np.concatenate([ids, np.full_like(ids, shared)], axis=2))
    capturer.on_forward_end(batch([4, 5]), False, None)
    assert np.array_equal(get(capturer, [4, 5]), whole(ids))
    assert np.array_equal(run(capturer, [6], 2)[0], get(capturer, [6]))
    with pytest.raises(moetap.ArgumentError, match=r"topk_indices is \[2, 3\]; it must be \[tokens\] of 2 or 4"):
        capturer.capture(1, np.zeros((2, 3), np.int32))


def test_no_tokens(capturer: RoutedExpertsCapturer) -> None:
    """As of an idle rank."""
    _, output = run(capturer, [], 1, layers=(), no_copy_to_cpu=True)
    assert output is not None
    output.finalize()


def test_rows_past_the_tokens_are_padding(capturer: RoutedExpertsCapturer) -> None:
    ids = picks(4, 1)
    capture(capturer, ids)
    capturer.on_forward_end(batch([4, 5]), False, None)
    assert np.array_equal(get(capturer, [4, 5]), whole(ids)[:2])


def test_virtual_slots(capturer: RoutedExpertsCapturer) -> None:
    """Requests have these, also where attention uses others."""
    ids = picks(4, 1)
    capture(capturer, ids)
    capturer.on_forward_end(batch([50, 51, 0, 0], virtual=np.array([4, 5])), False, None)
    assert np.array_equal(get(capturer, [4, 5]), whole(ids)[:2])


def test_another_ranks_tokens(make: Callable[..., RoutedExpertsCapturer]) -> None:
    """Data parallelism: topk_indices has all ranks'. This one's are the second and third."""
    capturer = make(local_slice=lambda forward_batch, graph, size: (1, forward_batch.tokens))
    ids = picks(4, 1)
    capture(capturer, ids)
    one = batch([4, 5])
    one.tokens = 2
    capturer.on_forward_end(one, False, None)
    assert np.array_equal(get(capturer, [4, 5]), whole(ids)[1:3])
    one.tokens = 3
    capture(capturer, ids)
    with pytest.raises(moetap.ArgumentError, match="has 2 slots, and 3 tokens of this rank"):
        capturer.on_forward_end(one, False, None)


# --- refused ------------------------------------------------------------------------------------------


def test_fewer_rows_than_tokens(capturer: RoutedExpertsCapturer) -> None:
    capture(capturer, picks(2, 1))
    with pytest.raises(moetap.ArgumentError, match="layer 1 captured 2 tokens, and this rank's are 0 to 3"):
        capturer.on_forward_end(batch([4, 5, 6]), False, None)


def test_a_graph(capturer: RoutedExpertsCapturer) -> None:
    capture(capturer, picks(1, 1))
    with pytest.raises(RuntimeError, match="ran as a graph, .* --disable-cuda-graph"):
        capturer.on_forward_end(batch([4]), True, 1)


def test_a_layer_without_a_router(capturer: RoutedExpertsCapturer) -> None:
    with pytest.raises(moetap.RangeError, match=r"layer 3 was captured, .* routers in layers \[1, 2, 4\]"):
        capturer.capture(3, picks(1, 1)[0])


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_that_there_is_not(capturer: RoutedExpertsCapturer, slot: int) -> None:
    expected, _ = run(capturer, [4], 1)
    with pytest.raises(moetap.RangeError, match=rf"slot {slot} is outside \[0, 64\)"):
        run(capturer, [5, slot], 2)
    with pytest.raises(moetap.RangeError, match=rf"slot {slot} is outside \[0, 64\)"):
        get(capturer, [4, slot])
    assert np.array_equal(get(capturer, [4]), expected)


def test_too_many_tokens(capturer: RoutedExpertsCapturer) -> None:
    with pytest.raises(moetap.RangeError, match="computed 9 tokens, and the largest is 8"):
        run(capturer, range(1, 10), 1)
    expected, _ = run(capturer, [4], 2)
    assert np.array_equal(get(capturer, [4]), expected)


@pytest.mark.parametrize(("start", "seqlen"), [(-1, 3), (0, 0)])
def test_lengths_that_there_are_not(capturer: RoutedExpertsCapturer, start: int, seqlen: int) -> None:
    with pytest.raises(ValueError, match=f"start_len is {start} and seqlen {seqlen}"):
        capturer.get_topk(1, seqlen, pool([4]), start)


def test_more_tokens_than_the_pool_has(capturer: RoutedExpertsCapturer) -> None:
    with pytest.raises(moetap.RangeError, match="row 1 of the request-to-token pool has 40 tokens, and the request 42"):
        capturer.get_topk(1, 42, pool([4]))


def test_a_second_capturer_of_an_engine(make: Callable[..., RoutedExpertsCapturer]) -> None:
    make()
    with pytest.raises(moetap.OwnedError):
        make()


def test_after_the_end(capturer: RoutedExpertsCapturer) -> None:
    capturer.destroy()
    capturer.destroy()
    for call in (lambda: get(capturer, [4]), lambda: run(capturer, [4], 1)):
        with pytest.raises(moetap.StateError, match="destroyed"):
            call()


def test_indexer_topk() -> None:
    with pytest.raises(NotImplementedError, match="does not carry indexer top-k: .* 16 bits wide.*MOETAP_SGLANG unset"):
        IndexerTopkCapturer(num_tokens=64, num_indexer_layers=1, index_topk=2048, max_running_requests=1, device="cuda")
