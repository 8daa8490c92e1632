"""Reader, with a Ledger's plans: copies, views, moves, fills, rows that wait, and block stores."""

import ctypes
import os
import select
import signal
import threading
import time

import numpy as np
import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS, SHAPE, picks, run_step

import moetap
from moetap import RowState


@pytest.fixture
def books() -> moetap.Ledger:
    return moetap.Ledger(NUM_BLOCKS, BLOCK_SIZE)


def run_request(pair, books, request, step, blocks, tokens):
    """Computes a request's prompt in one step. Returns its ids."""
    books.admit(request, tokens, blocks)
    books.schedule(step, request, range(tokens))
    ids = run_step(pair[0], step, moetap.slots_of(blocks, BLOCK_SIZE, range(tokens)))
    books.accept(step, request, tokens + 1)
    return ids


def test_read_rows(pair, books) -> None:
    ids = run_request(pair, books, 1, 1, [2, 5], 7)
    plan = books.finish(1, 8)
    rows = moetap.read_rows(pair[1], plan)
    assert (rows.ids == ids).all()
    bytes_read, states = pair[1].read(plan.slots, plan.windows)
    assert (bytes_read.reshape(7, 3, 2) == ids).all() and not states.any()
    assert pair[1].read([], (1, 1))[0].shape == (0, SHAPE.row_bytes)


def test_read_into_arrays_that_are_there(pair, books) -> None:
    ids = run_request(pair, books, 1, 1, [2, 5], 7)
    plan = books.finish(1, 8)
    rows, states = np.empty((7, SHAPE.row_bytes), np.uint8), np.full(7, 9, np.uint8)
    pair[1].wait_for(1)
    read, found = pair[1].read(plan.slots, plan.windows, out=(rows, states))
    assert read is rows and found is states
    assert (rows.reshape(7, 3, 2) == ids).all() and not states.any()
    before = rows.copy()
    read_only = rows.copy()
    read_only.flags.writeable = False
    both = np.empty(rows.size + 7, np.uint8)
    for out, error in [((rows[:6], states), moetap.ArgumentError), ((rows, states[:6]), moetap.ArgumentError),
                       ((rows.view(np.int16), states), TypeError), ((read_only, states), TypeError),
                       ((rows[:, ::-1], states), TypeError), ((rows,), TypeError), ([rows, states], TypeError),
                       ((both[:rows.size], both[rows.size - 1:-1]), moetap.ArgumentError)]:
        with pytest.raises(error):
            pair[1].read(plan.slots, plan.windows, out=out)
    assert (rows == before).all()


def test_a_later_owner_clobbers(pair, books) -> None:
    run_request(pair, books, 1, 1, [2], 4)
    plan = books.finish(1, 5)
    run_request(pair, books, 2, 2, [2], 4)
    moetap.read_rows(pair[1], plan, wait=False)
    pair[1].wait_for(2)
    assert moetap.read_rows(pair[1], plan).count(RowState.clobbered) == 4


def test_views_and_leases(pair, books) -> None:
    ids = run_request(pair, books, 1, 1, [2, 5], 7)
    plan = books.finish(1, 8)
    with moetap.view_rows(pair[1], plan, "request 1") as view:
        assert view.positions == range(0, 7) and view.shape == SHAPE and not view.states.any()
        row = view.row(3)
        assert (row == ids[3]).all() and not row.flags.writeable
        with pytest.raises(moetap.RangeError):
            view.row(7)
        if not view.owned:
            with pytest.raises(moetap.StateError, match="delete them"):
                view.detach()
    with pytest.raises(moetap.StateError, match="released"):
        view.row(3)
    with pytest.raises(moetap.StateError, match="cannot be closed"):
        pair[1].close()
    assert (row == ids[3]).all()
    del row
    detached = moetap.view_rows(pair[1], plan, "request 1").detach()
    assert (detached.ids == ids).all()


def test_a_lease_stops_what_would_change_the_rows(endpoint, books) -> None:
    with moetap.Capturer(endpoint, "host") as capturer, moetap.Reader(endpoint) as reader:
        capturer.bind_all()
        run_request((capturer, reader), books, 1, 1, [2], 4)
        view = moetap.view_rows(reader, books.finish(1, 5), "request 1")
        assert not view.owned
        with pytest.raises(moetap.StateError, match="request 1"):
            reader.put(9, [0], np.array([[1, 2, 3, 4, 5, 6]], np.uint8))
        view.release()


def test_moved_and_filled_rows(pair, books) -> None:
    ids = run_request(pair, books, 1, 1, [2], 4)
    assert moetap.move_rows(pair[1], books.move(2, [(2, 9)])) == 4
    rows = moetap.read_rows(pair[1], books.finish(1, 5))
    assert (rows.ids == ids).all()

    books.admit(2, 8, [3, 4])
    plan = books.fill(3, 2, range(0, 4))
    moetap.fill_rows(pair[1], plan, rows.rows)
    filled = moetap.read_rows(pair[1], books.rows_since(2, 0))
    assert (filled.ids == ids).all()
    for bad, error in [(rows.rows[:3], moetap.ArgumentError), (rows.rows.astype(np.int32), TypeError),
                       (rows.rows[::-1], TypeError), (np.full((4, 6), 17, np.uint8), moetap.RangeError),
                       (np.full((4, 6), 3, np.uint8), moetap.ArgumentError), ("x" * 24, TypeError)]:
        with pytest.raises(error):
            moetap.fill_rows(pair[1], plan, bad)


def test_put(pair) -> None:
    _, reader = pair
    row = np.array([[1, 2, 3, 4, 5, 6]], np.uint8)
    reader.put(1, [5], row)
    assert reader.read([5], (1, 1))[0].tolist() == row.tolist()
    reader.put(2, [5], row, np.array([RowState.missing], np.uint8))
    assert reader.read([5], np.array([[2, 2]], np.uint64))[1].tolist() == [RowState.missing]
    with pytest.raises(moetap.RangeError):
        reader.put(3, [64], row)
    for states in (np.zeros(2, np.uint8), np.full(1, 5, np.uint8)):
        with pytest.raises(moetap.ArgumentError):
            reader.put(3, [5], row, states)


@pytest.mark.parametrize("windows", [None, 3, (1,), (True, 1), ("a", "b"), np.zeros((1, 3), np.uint64),
                                     np.zeros(2, np.uint64), np.zeros((1, 2)), np.zeros((1, 4), np.uint64)[:, ::2]])
def test_windows_that_are_none(pair, windows) -> None:
    with pytest.raises(TypeError):
        pair[1].read([0], windows)


@pytest.mark.parametrize("windows", [(1, -1), (2**64, 2**64), (2, 1), np.array([[1, -1]]), np.array([[2, 1]], np.uint64)])
def test_windows_of_steps_that_cannot_be(pair, windows) -> None:
    with pytest.raises((moetap.RangeError, moetap.ArgumentError), match="windows"):
        pair[1].read([0], windows)


def test_rows_of_another_shape_are_refused(pair) -> None:
    reader = pair[1]
    size = reader.shape.row_bytes
    row = np.frombuffer(bytes([0, 1] * (size // 2)), np.uint8)
    rows = np.tile(row, (3, 1))
    reader.put(5, [4, 5, 6], rows)
    reader.put(6, [4, 5, 6], rows.reshape(-1))
    for other in (np.ascontiguousarray(rows.T), rows.reshape(1, -1), rows[:2]):
        with pytest.raises(moetap.ArgumentError, match=f"of \\(3, {size}\\)"):
            reader.put(7, [4, 5, 6], other)
    states = np.zeros(3, np.uint8)
    for mask in (states.astype(bool), (ctypes.c_bool * 3)()):
        with pytest.raises(TypeError, match="array of bool"):
            reader.put(7, [4, 5, 6], rows, mask)
    with pytest.raises(moetap.ArgumentError, match="the rows of out"):
        reader.read([4, 5, 6], (6, 6), out=(np.zeros((size, 3), np.uint8), states))


def test_slots_outside_the_cache(pair) -> None:
    for slots in ([-1], [64], np.array([2**62])):
        with pytest.raises(moetap.RangeError):
            pair[1].read(slots, (1, 1))
    with pytest.raises(moetap.ArgumentError):
        pair[1].read([0, 1, 2], np.ones((2, 2), np.uint64))


def test_pending_rows(pair, books) -> None:
    ids = [run_request(pair, books, r, r, [r], 4) for r in (1, 2, 3)]
    pending = moetap.PendingRows(books, pair[1])
    for request in (1, 2, 3):
        pending.add(books.finish(request, 5))
    assert len(pending) == 3 and 2 in pending and books.held(2)
    pending.take_early([2])
    assert not books.held(2) and 2 in pending
    assert (pending.collect(2).ids == ids[1]).all() and (pending.collect(1).ids == ids[0]).all()
    pending.drop(3)
    assert len(pending) == 0 and not books.held(3)
    with pytest.raises(moetap.StateError):
        pending.collect(3)


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_block_stores(pair, books, tmp_path, where) -> None:
    options = {"block_size": BLOCK_SIZE, "max_bytes": 1 << 20, "model_version": "1"}
    store = (moetap.BlockStore.in_memory(SHAPE, **options) if where == "memory" else
             moetap.BlockStore.in_directory(tmp_path / "blocks", SHAPE, **options))
    with store:
        ids = run_request(pair, books, 1, 1, [2], 4)
        assert moetap.store_block(store, b"hash", books, pair[1], 2)
        books.finish(1, 5)
        books.admit(2, 8, [5, 6])
        assert moetap.load_blocks(store, [b"hash", b"other"], books, pair[1], step=2, request=2, position=0) == 1
        rows = moetap.read_rows(pair[1], books.rows_since(2, 0))
        assert (rows.take(tokens=range(4)).ids == ids).all()
        assert (store.get(b"hash").reshape(4, 3, 2) == ids).all() and store.get(b"none") is None
        assert store.put(b"hash", rows.take(tokens=range(4)).rows) == "present"
        assert store.put(b"new", rows.take(tokens=range(4)).rows) == "stored"
        assert store.hold(b"hash") and not store.hold(b"none")
        store.release(b"hash")
        assert (store.stats.blocks, store.stats.evicted, store.shape) == (2, 0, SHAPE)
        with pytest.raises(moetap.StateError):
            store.release(b"hash")
        with pytest.raises(moetap.ArgumentError):
            store.put(b"", rows.rows)
        with pytest.raises(moetap.ArgumentError):
            store.put(b"bad", np.zeros((4, 6), np.uint8))
    with pytest.raises(moetap.StateError, match="closed"):
        store.get(b"hash")


def test_waits(pair) -> None:
    capturer, reader = pair
    started = time.monotonic()
    with pytest.raises(moetap.TimeoutError, match="waited 250 ms in all"):
        reader.wait_for(1, 0.25)
    assert 0.25 <= time.monotonic() - started < 2
    with pytest.raises(TimeoutError):
        reader.wait_for(1, 0)
    for bad in (-1, float("nan"), float("inf"), 1e12):
        with pytest.raises(moetap.ArgumentError):
            reader.wait_for(1, bad)
    with capturer.step(1, 2):
        pass
    with pytest.raises(moetap.StepFailed, match="step 1 failed") as failed:
        reader.wait_for(1)
    assert failed.value.step == 1 and "gave it up" in failed.value.reason
    assert reader.worker_alive and reader.dropped.given_up == capturer.dropped.given_up


def test_ctrl_c_ends_a_wait(pair) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    try:
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pair[1].wait_for(1, 60)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_run_while_one_waits(pair) -> None:
    def wait() -> None:
        while True:
            try:
                return pair[1].wait_for(1, 60)
            except moetap.StateError:
                pass  # in a poll() of the other thread

    waiting = threading.Thread(target=wait)
    waiting.start()
    end = time.monotonic() + 30
    with pytest.raises(moetap.StateError, match="another thread"):
        while time.monotonic() < end:  # until it waits
            pair[1].poll()
    with pytest.raises(moetap.StateError, match="another thread"):
        pair[1].close()
    run_step(pair[0], 1, [0])  # which it waits for
    waiting.join()
    pair[1].poll()


def test_a_thread_that_polls(endpoint) -> None:
    with moetap.Capturer(endpoint, "host") as capturer, moetap.Reader(endpoint, poll_every=0.001) as reader:
        capturer.bind_all()
        run_step(capturer, 1, [0, 1])
        assert select.select([reader], [], [], 5)[0] == [reader]
        assert os.eventfd_read(reader.fileno()) >= 1 and reader.poll() == 1
        waiting = threading.Thread(target=lambda: pytest.raises(TimeoutError, reader.wait_for, 9, 0.2))
        waiting.start()
        reader.poll()  # they exclude each other
        waiting.join()
    with pytest.raises(moetap.ArgumentError), moetap.Capturer(endpoint, "host"):
        moetap.Reader(endpoint, poll_every=5)


def test_a_reader_without_a_thread_has_no_descriptor(pair) -> None:
    with pytest.raises(moetap.StateError, match="poll_every"):
        pair[1].fileno()


def test_after_close(pair) -> None:
    _, reader = pair
    reader.close()
    reader.close()
    assert reader.closed and "closed" in repr(reader)
    for call in (reader.poll, lambda: reader.read([0], (1, 1)), lambda: reader.wait_for(1), lambda: reader.shape):
        with pytest.raises(moetap.StateError, match="was closed"):
            call()


def test_other_descriptions_are_refused(endpoint) -> None:
    with moetap.Capturer(endpoint, "host"):
        with pytest.raises(moetap.MismatchError, match="16 and 17|17 and 16|experts"):
            moetap.Reader(endpoint.replace(shape=moetap.ModelShape([1, 2, 4], 2, 17, 6)))
        with moetap.Reader(endpoint), pytest.raises(moetap.OwnedError, match=str(os.getpid())):
            moetap.Reader(endpoint)
    with pytest.raises(moetap.TimeoutError, match=endpoint.instance):
        moetap.Reader(endpoint.replace(timeout=0.05))


def test_joined_stages(endpoint) -> None:
    topology = moetap.Topology(pp_size=2, stage_layers=[[1], [2, 4]])
    [[first], [second]] = moetap.endpoints_of(endpoint, topology)
    with moetap.Capturer(first, "host") as one, moetap.Capturer(second, "host") as two:
        with moetap.Reader(endpoint, topology=topology) as reader:
            ids = picks(4)
            for capturer, part in ((one, ids[:1]), (two, ids[1:])):
                capturer.bind_all()
                run_step(capturer, 1, list(range(4)), part)
            reader.wait_for(1)
            rows = reader.read_blocks([0], 4, range(4), (1, 1))
            assert (rows.ids == ids.transpose(1, 0, 2)).all()


def test_rows_by_request(endpoint) -> None:
    with moetap.Capturer(endpoint, "host", host_cache="per_request") as capturer:
        capturer.bind_all()
        with moetap.RequestReader(endpoint) as reader:
            ids = run_step(capturer, 1, list(range(5)), requests=[(7, 0, 3), (8, 0, 2, 0)])
            capturer.end_request(7)
            capturer.end_request(8, "aborted")
            assert (reader.take(7, range(0, 3)).ids == ids[:3]).all()
            with pytest.raises(moetap.StateError):
                reader.take(7, range(0, 3))
            with pytest.raises(moetap.TimeoutError):
                reader.take(9, range(0, 3), 0.05)
            with pytest.raises(TypeError, match="requests"):
                run_step(capturer, 2, [0], requests=[(7, 0)])


class NoNumber:
    def __index__(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize(("number", "error"), [
    (NoNumber(), TypeError), (np.zeros(0, np.uint64), TypeError), (1.5, TypeError), (True, TypeError),
    (2**64, moetap.RangeError), (-2**63 - 1, moetap.RangeError), pytest.param(10**5000, moetap.RangeError, id="very long")])
def test_numbers_of_calls_that_wait(pair, books, number, error) -> None:
    store = moetap.BlockStore.in_memory(SHAPE, block_size=BLOCK_SIZE, max_bytes=2**16)
    waiting = moetap.PendingRows(books, pair[1])
    for call in (lambda: pair[1].wait_for(number, 0), lambda: pair[0].finalize(number, 0),
                 lambda: waiting.collect(number, 0), lambda: moetap.store_block(store, b"k", books, pair[1], number, 0),
                 lambda: moetap.load_blocks(store, [b"k"], books, pair[1], step=number, request=1, position=0, timeout=0),
                 lambda: moetap.load_blocks(store, [b"k"], books, pair[1], step=1, request=number, position=0, timeout=0)):
        with pytest.raises(error):
            call()
