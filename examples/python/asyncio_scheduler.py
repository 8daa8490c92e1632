"""A scheduler in asyncio: it sleeps until the worker's steps arrive, and its loop stays free.

    python asyncio_scheduler.py [device|shm] [instance]
"""

import asyncio
import os
import sys

from common import BLOCK_SIZE, BLOCKS, PROMPT, ROWS, STEPS, make_endpoint, tokens_of

import moetap

REQUEST = 1


class Arrivals:
    """Wakes coroutines that wait for a step."""

    def __init__(self, reader: moetap.Reader) -> None:
        self.reader = reader
        self.changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader.fileno(), self.on_readable)

    def on_readable(self) -> None:
        os.eventfd_read(self.reader.fileno())
        self.changed.set()

    async def wait_for(self, step: int) -> None:
        while self.reader.poll() < step:
            if not self.reader.worker_alive:
                raise RuntimeError("the worker is gone")
            await self.changed.wait()
            self.changed.clear()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.reader.fileno())


async def run(transport: str, instance: str) -> None:
    endpoint = make_endpoint(instance)
    ledger = moetap.Ledger(endpoint.num_slots // BLOCK_SIZE, BLOCK_SIZE)
    # The thread that polls gives the file descriptor. Attaching may wait for the worker.
    reader = await asyncio.to_thread(
        lambda: moetap.Reader(endpoint, "shm" if transport == "shm" else "device", poll_every=0.001))
    with reader:
        arrivals = Arrivals(reader)
        ledger.admit(REQUEST, num_tokens=PROMPT, blocks=BLOCKS)
        for step in range(1, STEPS + 1):
            ledger.schedule(step, REQUEST, tokens_of(step))
            await arrivals.wait_for(step)
            ledger.accept(step, REQUEST, num_tokens=tokens_of(step).stop + 1)
        routes = moetap.read_rows(reader, ledger.finish(REQUEST, num_tokens=ROWS + 1), wait=False)
        arrivals.close()
    print(f"scheduler: {routes!r}")


if __name__ == "__main__":
    asyncio.run(run(*(sys.argv[1:] + ["device", "example"][len(sys.argv) - 1:])))
