"""The two ends of tests with several processes: functions that a new process can import."""

import os
import signal
import time

import numpy as np
from conftest import BLOCK_SIZE, NUM_BLOCKS, picks, run_step

import moetap


def worker(endpoint: moetap.Endpoint, transport: str, steps: int, killed_in: int, connection) -> None:
    """Publishes steps of 8 tokens in slots [0, 8). Kills itself inside step `killed_in`, if not 0."""
    with moetap.Capturer(endpoint, "host", transport=transport) as capturer:
        capturer.bind_all()
        connection.send("ready")
        for step in range(1, steps + 1):
            if step == killed_in:
                if step > 1:
                    capturer.finalize(step - 1)
                capturer.begin_step(step, 8)
                capturer.capture(1, picks(8, step)[0])
                os.kill(os.getpid(), signal.SIGKILL)
            run_step(capturer, step, np.arange(8))
        capturer.finalize(steps)
        connection.send("published")
        connection.recv()


def scheduler(endpoint: moetap.Endpoint, transport: str, connection) -> None:
    """Takes in the first step, and waits to be killed, with a view of the rows out."""
    books = moetap.Ledger(NUM_BLOCKS, BLOCK_SIZE)
    books.admit(1, 8, [0, 1])
    books.schedule(1, 1, range(8))
    with moetap.Reader(endpoint, transport) as reader:
        reader.wait_for(1)
        view = moetap.view_rows(reader, books.finish(1, 9), "the test")
        connection.send(bool((view.row(3) == picks(8, 1)[:, 3]).all()))
        time.sleep(60)


def round_trip(endpoint: moetap.Endpoint, described: list, connection) -> None:
    """A worker and a scheduler of this process's own. Sends whether the rows are right, and `described` back."""
    with moetap.Capturer(endpoint, "host") as capturer, moetap.Reader(endpoint, poll_every=0.001) as reader:
        capturer.bind_all()
        ids = run_step(capturer, 1, np.arange(8))
        reader.wait_for(1)
        right = (reader.read_blocks([0, 1], BLOCK_SIZE, range(8), (1, 1)).ids == ids).all()
    connection.send((bool(right), described))
