"""Ledger: what it tells a scheduler to read."""

import numpy as np
import pytest

import moetap


def ledger(**options) -> moetap.Ledger:
    return moetap.Ledger(num_blocks=16, block_size=4, **options)


def test_a_request() -> None:
    books = ledger()
    books.admit(1, 5, [3, 7])
    books.schedule(1, 1, range(0, 5))
    books.accept(1, 1, 6)
    books.schedule(2, 1, (5, 6))
    books.accept(2, 1, 7)
    so_far = books.rows_since(1, 2)
    assert so_far.positions == range(2, 6)
    plan = books.finish(1, 7)
    assert (plan.request, plan.positions, len(plan), plan.last_step) == (1, range(0, 6), 6, 2)
    assert plan.slots.tolist() == [12, 13, 14, 15, 28, 29] and plan.blocks.tolist() == [3, 7]
    assert plan.windows.tolist() == [[1, 1]] * 5 + [[2, 2]]
    assert not plan.slots.flags.writeable and plan.verdicts == []
    with pytest.raises(moetap.StateError, match="request 1"):
        books.finish(1, 7)


def test_views_outlive_the_plan() -> None:
    books = ledger()
    books.admit(1, 4, [3])
    books.schedule(1, 1, range(4))
    slots = books.finish(1, 5).slots
    assert slots.tolist() == [12, 13, 14, 15]


def test_blocks_come_as_arrays_and_as_sequences() -> None:
    books = ledger()
    for request, blocks in enumerate([[0], (1,), range(2, 3), np.array([3]), np.array([4], np.uint8),
                                      np.array([9, 5, 9])[1:2], np.arange(0, 14, 2)[3:4]]):
        books.admit(request, 4, blocks)
        books.schedule(1, request, range(4))
    assert [books.finish(r, 5).blocks.tolist() for r in range(7)] == [[0], [1], [2], [3], [4], [5], [6]]


@pytest.mark.parametrize("blocks", [[1.5], "12", b"12", [True], np.array([1.0]), np.array([[1]]), 3, None,
                                    np.array([True]), [None], np.array(["a"]), {1: 2}.items()])
def test_blocks_that_are_no_integers(blocks) -> None:
    with pytest.raises(TypeError, match="blocks"):
        ledger().admit(1, 4, blocks)


@pytest.mark.parametrize(("blocks", "error"), [
    ([16], moetap.RangeError), ([-1], moetap.RangeError), ([1, 1], moetap.ArgumentError),
    ([2**63], moetap.RangeError), (np.array([2**63], np.uint64), moetap.RangeError),
])
def test_blocks_that_the_cache_does_not_have(blocks, error) -> None:
    books = ledger()
    with pytest.raises(error):
        books.admit(1, 4, blocks)
    books.admit(1, 4, [1])  # nothing was changed


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_no_request_has(number) -> None:
    with pytest.raises(moetap.RangeError, match="the request is"):
        ledger().admit(number, 4, [1])
    with pytest.raises(moetap.RangeError, match="the step is"):
        ledger().schedule(number, 1, range(1))


@pytest.mark.parametrize("number", [1.0, "1", None, True])
def test_what_is_no_number(number) -> None:
    with pytest.raises(TypeError):
        ledger().admit(number, 4, [1])


def test_requests_may_have_numbers_of_64_bits() -> None:
    books = ledger()
    books.admit(2**64 - 1, 4, [1])
    books.schedule_many(1, [2**64 - 1], [0], [4])
    assert books.finish(np.uint64(2**64 - 1), 5).request == 2**64 - 1


def test_prefix_hits_and_opting_out() -> None:
    books = ledger()
    books.admit(1, 8, [0, 1])
    books.schedule(1, 1, range(8))
    assert books.cached_rows([0, 1], 8) == 8
    books.admit(2, 12, [0, 1, 2], 8, start=4)
    books.admit(3, 4, [3], wants_rows=False)
    books.schedule(2, 2, range(8, 12))
    assert books.finish(2, 13).positions == range(4, 12)
    assert books.wants_rows(1) and not books.wants_rows(3) and books.num_wanting == 1
    assert books.block_rows(1).positions == range(0, 4)
    books.forget([1])
    assert books.cached_rows([0, 1], 8) == 4


def test_preemption() -> None:
    books = ledger()
    books.admit(1, 4, [0, 1])
    books.schedule(1, 1, range(4))
    books.accept(1, 1, 5)
    kept = books.preempt_keeping(1)
    assert kept.positions == range(0, 4)
    books.resume(1, [2, 3])
    books.schedule(2, 1, range(5))
    books.accept(2, 1, 6)
    assert books.finish(1, 6).positions == range(4, 5)
    books.admit(2, 4, [4])
    books.preempt(2)
    with pytest.raises(moetap.StateError):
        books.preempt(2)
    assert books.abort(2).positions == range(0, 0)


def test_trees_and_moves() -> None:
    books = ledger()
    books.admit(1, 2, [0, 1, 2])
    books.schedule(1, 1, range(2))
    books.accept(1, 1, 3)
    books.schedule(2, 1, range(2, 6))  # one token, and three drafts
    with pytest.raises(moetap.ArgumentError):
        books.accept(2, 1, 5, accepted=[0, 0], moved_as=3)
    moved = books.accept(2, 1, 5, accepted=[0, 2], moved_as=3)
    assert (moved.step, len(moved), moved.last_step) == (3, 1, 2)
    assert moved.from_slots.tolist() == [4] and moved.to_slots.tolist() == [3]
    assert moved.windows.tolist() == [[2, 2]]
    again = books.move(4, [(0, 5), (1, 6)])
    copied = books.copy(5, 1, from_block=2, to_block=7)
    with pytest.raises(moetap.ArgumentError, match="step"):
        again.append(copied)
    view = again.to_slots
    before = view.tolist()
    again.append(again)
    assert len(again) == 2 * len(before) and view.tolist() == before


def test_accept_blocks() -> None:
    books = moetap.Ledger(16, 1)
    books.admit(1, 1, [0, 1, 2, 3])
    books.schedule(1, 1, range(1))
    books.accept(1, 1, 2)
    books.schedule(2, 1, range(1, 4))
    books.accept_blocks(2, 1, 4, [0, 2])
    assert books.finish(1, 4).slots.tolist() == [0, 1, 3]


def test_fill_and_flush() -> None:
    books = ledger()
    books.admit(1, 8, [0, 1])
    plan = books.fill(1, 1, range(0, 4))
    assert (plan.step, plan.slots.tolist(), len(plan)) == (1, [0, 1, 2, 3], 4)
    books.schedule(2, 1, range(4, 8))
    books.accept(2, 1, 9)
    books.flush()
    states = [state for _, state in books.finish(1, 9).verdicts]
    assert states and set(states) == {moetap.RowState.stale}


def test_holds() -> None:
    books = ledger()
    books.admit(1, 4, [3])
    books.schedule(1, 1, range(4))
    plan = books.finish(1, 5)
    with books.hold(plan) as hold:
        assert books.held(3) and not hold.released
        with pytest.raises(moetap.StateError, match="held"):
            books.admit(2, 4, [3])
    assert hold.released and not books.held(3)
    hold.release()
    hold = books.hold(plan)
    assert books.held(3)
    del hold
    assert not books.held(3)


def test_a_hold_keeps_its_ledger() -> None:
    books = ledger()
    books.admit(1, 4, [3])
    books.schedule(1, 1, range(4))
    hold = books.hold(books.finish(1, 5))
    del books
    hold.release()


def test_batches_do_what_single_calls_do() -> None:
    random = np.random.default_rng(7)
    one, many = ledger(), ledger()
    requests = np.arange(8, dtype=np.uint64) + 100
    lengths = random.integers(1, 5, 8)
    for books in (one, many):
        for i, request in enumerate(requests):
            books.admit(int(request), int(lengths[i]))
    for i, request in enumerate(requests):
        one.schedule(1, int(request), range(int(lengths[i])), [2 * i, 2 * i + 1])
        one.accept(1, int(request), int(lengths[i]) + 1)
    many.schedule_many(1, requests, np.zeros(8, np.int64), lengths, new_blocks=np.arange(16),
                       new_block_offsets=np.arange(9) * 2)
    many.accept_many(1, requests, lengths + 1)
    many.schedule_many(2, requests, lengths, lengths + 1)
    many.accept_many(2, requests, lengths + 2)
    for i, request in enumerate(requests):
        one.schedule(2, int(request), (int(lengths[i]), int(lengths[i]) + 1))
        one.accept(2, int(request), int(lengths[i]) + 2)
    plans = many.finish_many(requests, lengths + 2)
    for i, plan in enumerate(plans):
        single = one.finish(int(requests[i]), int(lengths[i]) + 2)
        assert plan.request == single.request and plan.positions == single.positions
        assert (plan.slots == single.slots).all() and (plan.windows == single.windows).all()


def test_a_batch_says_where_it_failed() -> None:
    books = ledger()
    books.admit(1, 4, [0])
    books.admit(2, 4, [1])
    with pytest.raises(moetap.StateError, match="request 9") as error:
        books.schedule_many(1, [1, 9, 2], [0, 0, 0], [4, 4, 4])
    assert error.value.index == 1
    assert books.finish(1, 5).slots.tolist() == [0, 1, 2, 3]
    assert books.abort(2).positions == range(0, 0)


def test_a_batch_of_ends_loses_no_plan() -> None:
    books = ledger()
    books.admit(1, 4, [0])
    books.schedule(1, 1, range(4))
    with pytest.raises(moetap.StateError) as error:
        books.finish_many([1, 9], [5, 5])
    assert error.value.index == 1
    assert [plan.slots.tolist() for plan in error.value.done] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("arguments", [
    ([1], [0, 1], [1]), ([1], [0], []), ([1], [0], [1], [3], [0]), ([1], [0], [1], [3], [0, 2]),
    ([1], [0], [1], [3], [1, 1]), ([1, 2], [0, 0], [1, 1], [3], [0, 2, 1]), ([1], [0], [1], [3]),
])
def test_batches_that_contradict_themselves(arguments) -> None:
    books = ledger()
    books.admit(1, 4, [0])
    books.admit(2, 4, [1])
    with pytest.raises(moetap.ArgumentError):
        books.schedule_many(1, *arguments)


def test_options_and_repr() -> None:
    books = ledger(drafts="chain")
    assert (books.num_slots, books.block_size) == (64, 4)
    assert repr(books) == "<Ledger of 16 blocks of 4 tokens, 0 requests want rows>"
    with pytest.raises(moetap.ArgumentError, match="'tree', 'chain'"):
        ledger(drafts="trees")
    with pytest.raises(moetap.ArgumentError):
        moetap.Ledger(0, 4)
