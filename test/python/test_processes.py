"""Worker and scheduler in processes of their own: also killed ones, and forked children."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import process_ends
import pytest
from conftest import SHAPE, picks, run_step

import moetap
from moetap import RowState

TRANSPORTS = ("device", "shm")


def segments_of(endpoint: moetap.Endpoint) -> list[moetap.SegmentInfo]:
    return [segment for segment in moetap.find_segments() if endpoint.instance in segment.name]


def reclaim_all(endpoint: moetap.Endpoint) -> None:
    for segment in segments_of(endpoint):
        moetap.reclaim(segment.name)


def exit_code_of(child: int) -> int:
    """Of a forked child. Fails, and ends it, if it has not ended within 20 s."""
    end = time.monotonic() + 20
    pid, status = os.waitpid(child, os.WNOHANG)
    while pid == 0 and time.monotonic() < end:
        time.sleep(0.01)
        pid, status = os.waitpid(child, os.WNOHANG)
    if pid == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert pid == child
    return os.waitstatus_to_exitcode(status)


def expected(step: int) -> np.ndarray:
    return picks(8, step).transpose(1, 0, 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_processes(endpoint, start, transport) -> None:
    here, there = multiprocessing.Pipe()
    ends = endpoint.replace(timeout=20)
    process = start(process_ends.worker, ends, transport, 20, 0, there)
    assert here.recv() == "ready"
    with moetap.Reader(ends, transport) as reader:
        for step in range(1, 21):
            reader.wait_for(step)
            rows, states = reader.read(range(8), (step, step))
            # A later step may have come in: then the rows say so.
            assert set(states.tolist()) <= {RowState.present, RowState.clobbered}
            present = states == RowState.present
            assert (rows.reshape(8, 3, 2)[present] == expected(step)[present]).all()
        assert here.recv() == "published"
        assert (reader.read(range(8), (20, 20))[0].reshape(8, 3, 2) == expected(20)).all()
        here.send("end")
    process.join(30)  # it removes its segments
    assert process.exitcode == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_worker(endpoint, start, transport) -> None:
    here, there = multiprocessing.Pipe()
    ends = endpoint.replace(timeout=20)
    process = start(process_ends.worker, ends, transport, 9, 3, there)
    assert here.recv() == "ready"
    with moetap.Reader(ends, transport) as reader:
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with pytest.raises(moetap.TimeoutError, match="died|ended|not alive|no longer"):
            reader.wait_for(3, 0.3)
        assert not reader.worker_alive
        reader.wait_for(2)
        assert (reader.read(range(8), (2, 2))[0].reshape(8, 3, 2) == expected(2)).all()
    for left in segments_of(endpoint):
        assert left.owner == "dead" and left.kind == ("shm" if transport == "shm" else "ring")
    with moetap.Capturer(endpoint, "host", transport=transport) as capturer:  # the name is free
        capturer.bind_all()
        with moetap.Reader(endpoint, transport) as reader:
            run_step(capturer, 1, list(range(8)))
            reader.wait_for(1)
            assert (reader.read(range(8), (1, 1))[0].reshape(8, 3, 2) == expected(1)).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_scheduler(endpoint, start, transport) -> None:
    here, there = multiprocessing.Pipe()
    with moetap.Capturer(endpoint, "host", transport=transport) as capturer:
        capturer.bind_all()
        process = start(process_ends.scheduler, endpoint, transport, there)
        run_step(capturer, 1, list(range(8)))
        assert here.recv()
        process.kill()
        process.join()
        run_step(capturer, 2, list(range(8)))
        with moetap.Reader(endpoint, transport) as reader:  # takes over
            reader.wait_for(2)
            assert (reader.read(range(8), (2, 2))[0].reshape(8, 3, 2) == expected(2)).all()
        assert capturer.take_failures() == []


def test_segments_can_be_reclaimed(endpoint, start) -> None:
    here, there = multiprocessing.Pipe()
    for _ in range(9):  # any worker that starts on this machine meanwhile removes it too
        start(process_ends.worker, endpoint, "shm", 1, 1, there).join()
        assert here.recv() == "ready"
        if found := segments_of(endpoint):
            break
    [left] = found
    assert (left.owner, left.owner_pid, left.user, left.bytes > 0) == ("dead", 0, os.getuid(), True)
    assert left.name in repr(left)
    assert moetap.reclaim(left.name) and not moetap.reclaim(left.name)
    assert not moetap.reclaim("/not-ours")


def test_a_daemon_thread_in_a_call_does_not_end_the_program_otherwise(endpoint) -> None:
    """Python ends such threads when they come back for the GIL."""
    program = f"""
import threading, time, moetap
capturer = moetap.Capturer(moetap.Endpoint({endpoint.instance!r}, moetap.ModelShape([1], 2, 16), num_slots=8, max_tokens=4), "host")
stream = capturer.device.make_stream()
threading.Thread(target=lambda: [stream.synchronize() for _ in iter(int, 1)], daemon=True).start()
reader = moetap.Reader(moetap.Endpoint({endpoint.instance!r}, moetap.ModelShape([1], 2, 16), num_slots=8, max_tokens=4))
def wait():
    while True:
        try: reader.wait_for(1, timeout=0.01)
        except moetap.TimeoutError: pass
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert "terminate" not in done.stderr and done.returncode == 0, done.stderr
        reclaim_all(endpoint)


def test_a_hold_does_not_wait_for_a_daemon_thread_in_an_interpreter_that_ends(endpoint) -> None:
    program = f"""
import threading, time, moetap
endpoint = moetap.Endpoint({endpoint.instance!r}, moetap.ModelShape([1], 2, 16), num_slots=16, max_tokens=4)
capturer = moetap.Capturer(endpoint, "host")
reader = moetap.Reader(endpoint)
books = moetap.Ledger(4, 4)
plans = []
for request in (1, 2):
    books.admit(request, 4, [request])
    books.schedule(1, request, range(4))
    plans.append(books.finish(request, 5))
pending = moetap.PendingRows(books, reader)
pending.add(plans[1])
class Keeper: pass
keeper = Keeper()
keeper.itself, keeper.hold = keeper, books.hold(plans[0])
def collect():
    try: pending.collect(2, timeout=0.5)
    except moetap.TimeoutError: pass
threading.Thread(target=collect, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    reclaim_all(endpoint)


def test_a_hold_of_a_busy_ledger_may_go_in_a_forked_child(endpoint) -> None:
    with moetap.Capturer(endpoint, "host"), moetap.Reader(endpoint) as reader:
        books = moetap.Ledger(4, 4)
        plans = []
        for request in (1, 2):
            books.admit(request, 4, [request])
            books.schedule(1, request, range(4))
            plans.append(books.finish(request, 5))
        hold = books.hold(plans[0])
        pending = moetap.PendingRows(books, reader)
        pending.add(plans[1])
        ended = []

        def collect() -> None:
            try:
                pending.collect(2, timeout=1)
            except moetap.TimeoutError as error:
                ended.append(error)

        thread = threading.Thread(target=collect)
        thread.start()
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            del hold
            os._exit(7)
        code = exit_code_of(child)
        thread.join()
        assert ended and code == 7
        hold.release()
        del pending


@pytest.mark.parametrize("poll_every", [None, 0.001])
def test_a_forked_child_may_not_use_its_parents_objects(endpoint, poll_every) -> None:
    """Each call is refused in the child, which then ends as Python ends: with its garbage collected."""
    capturer = moetap.Capturer(endpoint, "host")
    capturer.bind_all()
    reader = moetap.Reader(endpoint, poll_every=poll_every)
    books = moetap.Ledger(4, 4)
    stream = capturer.device.make_stream()
    array = capturer.device.empty(4)
    calls = [lambda: reader.poll(), lambda: reader.read([0], (1, 1)), lambda: capturer.begin_step(1, 1),
             lambda: capturer.bind(1), lambda: books.admit(1, 1), lambda: stream.synchronize(),
             lambda: capturer.device.empty(4), lambda: reader.close(), lambda: capturer.close()]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except moetap.StateError as error:
                refused += "fork" in str(error)
        del capturer, reader, books, stream, array, calls, call
        sys.stderr.flush()
        os._exit(refused)
    assert exit_code_of(child) == len(calls)
    run_step(capturer, 1, list(range(8)))  # the parent's still work
    reader.wait_for(1)
    reader.close()
    capturer.close()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_each_way_to_start_a_process(endpoint, method) -> None:
    """The new process makes objects of its own, and ends as Python ends, while its parent's are open."""
    described = [endpoint, SHAPE, moetap.Topology(dp_size=2, dp_rank=1), moetap.Routes(SHAPE, range(2, 5))]
    with moetap.Capturer(endpoint, "host") as capturer, moetap.Reader(endpoint, poll_every=0.001) as reader:
        capturer.bind_all()
        run_step(capturer, 1, list(range(8)))
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=process_ends.round_trip,
                                  args=(endpoint.replace(dp_rank=1), described, there))
        process.start()
        try:
            assert here.poll(60)
            right, returned = here.recv()
            process.join(60)
        finally:
            process.kill()
            process.join()
        assert right and process.exitcode == 0
        assert returned[:3] == described[:3] and returned[3].states.tolist() == [RowState.missing] * 3
        run_step(capturer, 2, list(range(8)))  # the parent's still work
        reader.wait_for(2)
        assert (reader.read(range(8), (2, 2))[0].reshape(8, 3, 2) == expected(2)).all()


def test_python_ends_with_everything_open(endpoint, tmp_path) -> None:
    program = f"""
import moetap
endpoint = moetap.Endpoint("{endpoint.instance}", moetap.ModelShape.uniform(2, 2, 16), num_slots=64, max_tokens=8)
capturer = moetap.Capturer(endpoint, "host")
capturer.bind_all()
reader = moetap.Reader(endpoint, poll_every=0.001)
array = capturer.device.empty(4)
view = array.numpy()
rows = moetap.Routes(endpoint.shape, range(4)).states
capturer.begin_step(1, 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
