"""The Python package, measured as bench/*.cc measure the C++ library: the same models, tokens, slots
and calls, with names that begin with "package/".

Prints results in Google Benchmark's JSON form. PYTHONPATH has the package.
"""

import itertools
import multiprocessing
import os
import sys
import time

import measured
import numpy as np
import python_design as workload

import moetap

TOKENS = (16, 256, 8192)
MODEL = "qwen3-30b-a3b"  # of the calls
CALL_TOKENS = 256
PATIENCE = 3600.0
PROMPT, OUTPUT = 64, 256  # tokens, as in bench/ledger.cc


def endpoint_of(model):
    return moetap.Endpoint(f"bench-{os.getpid()}", moetap.ModelShape.known(model),
                           num_slots=workload.SLOTS, max_tokens=workload.MAX_TOKENS)


def take_steps_in(endpoint, taken):
    """The scheduler's process."""
    with moetap.Reader(endpoint) as reader:
        for step in itertools.count(1):
            reader.wait_for(step, PATIENCE)
            taken.value = step


class Worker:
    """As bench/worker.h: a forward pass on the host device, captured. `elsewhere`: a process reads."""

    def __init__(self, model, transport, elsewhere):
        self.endpoint = endpoint_of(model)
        shape = self.endpoint.shape
        self.taken = self.process = None
        if elsewhere:
            context = multiprocessing.get_context("spawn")
            self.taken = context.Value("Q", 0, lock=False)
            self.process = context.Process(target=take_steps_in, args=(self.endpoint, self.taken), daemon=True)
            self.process.start()
        self.capturer = moetap.Capturer(self.endpoint, "host", transport=transport)
        self.capturer.bind_all()
        self.stream = self.capturer.device.make_stream()
        random = np.random.default_rng(1)
        rows = np.argsort(random.random((workload.MAX_TOKENS, shape.num_experts), np.float32), axis=1)[:, :shape.top_k]
        self.picks = []
        for _ in range(shape.num_layers):
            self.picks.append(self.capturer.device.empty((workload.MAX_TOKENS, shape.top_k)).numpy())
            self.picks[-1][:] = rows
        slots = self.capturer.device.empty(workload.WORKING_SET, "int64").numpy()
        slots[:] = workload.slot_mappings()
        self.slots = slots
        self.step = 0

    def close(self):
        if self.process:
            self.process.kill()
            self.process.join()
        self.capturer.close()

    def capture_layers(self, picks):
        capture = self.capturer.capture
        for layer, ids in zip(self.endpoint.shape.moe_layers, picks, strict=True):
            capture(layer, ids)

    def forward(self, tokens):
        self.step += 1
        self.capturer.begin_step(self.step, tokens, stream=self.stream)
        self.capture_layers([ids[:tokens] for ids in self.picks])
        self.stream.synchronize()

    def publish(self, tokens, i):
        """Seconds of wall time that publishing the step took."""
        slots = self.slots.reshape(-1, tokens)[i % (workload.WORKING_SET // tokens)]
        start = time.perf_counter()
        self.capturer.publish(slots)
        took = time.perf_counter() - start
        while self.taken is not None and self.taken.value < self.step:
            time.sleep(0)
        return took

    def time_captures(self, tokens):
        """Seconds of a call of capture(), in a step of which no rows are wanted."""
        self.step += 1
        picks = [ids[:tokens] for ids in self.picks]
        self.capturer.begin_step(self.step, tokens, wanted=[], stream=self.stream)
        self.stream.synchronize()
        start = time.perf_counter()
        self.capture_layers(picks)
        took = time.perf_counter() - start
        self.capturer.publish(None)
        self.stream.synchronize()
        return took / len(picks)


class Decoding:
    """As in bench/ledger.cc, with the calls for many requests."""

    def __init__(self, requests=256, num_slots=1024 * 1024):
        self.ledger = moetap.Ledger(num_slots // workload.BLOCK_SIZE, workload.BLOCK_SIZE)
        self.free = list(range(num_slots // workload.BLOCK_SIZE))
        self.number = self.admitted = 0
        self.ids = np.zeros(requests, np.uint64)
        self.tokens = np.zeros(requests, np.int64)
        self.computed, self.room, self.last = (np.zeros(requests, np.int64) for _ in range(3))
        self.offsets = np.zeros(requests + 1, np.int64)
        self.blocks = [[] for _ in range(requests)]
        for i in range(requests):
            self.admit(i, OUTPUT * (i + 1) // requests)
        for _ in range(2 * OUTPUT):
            self.step()

    def take(self, count):
        taken, self.free = self.free[-count:], self.free[:-count]
        return taken

    def admit(self, i, output=OUTPUT):
        self.admitted += 1
        self.ids[i], self.tokens[i], self.computed[i], self.room[i] = self.admitted, PROMPT, 0, PROMPT
        self.last[i] = PROMPT + output
        self.blocks[i] = [self.free.pop() for _ in range(PROMPT // workload.BLOCK_SIZE)]
        self.ledger.admit(self.admitted, PROMPT, self.blocks[i])

    def step(self):
        self.number += 1
        grow = np.flatnonzero(self.tokens > self.room)
        blocks = [self.free.pop() for _ in range(len(grow))]
        self.offsets[:] = np.searchsorted(grow, np.arange(len(self.offsets)))
        self.room[grow] += workload.BLOCK_SIZE
        for i, block in zip(grow.tolist(), blocks, strict=True):
            self.blocks[i].append(block)
        ended = self.tokens + 1 == self.last
        start = time.perf_counter()
        self.ledger.schedule_many(self.number, self.ids, self.computed, self.tokens, blocks, self.offsets)
        took = time.perf_counter() - start
        self.computed[:] = self.tokens
        self.tokens += 1
        start = time.perf_counter()
        self.ledger.accept_many(self.number, self.ids, self.tokens)
        if ended.any():
            self.ledger.finish_many(self.ids[ended], self.tokens[ended])
        took += time.perf_counter() - start
        for i in np.flatnonzero(ended).tolist():
            self.free[:0] = self.blocks[i]
            self.admit(i)
        return took


def mean_of(call, count):
    """Of a call that returns its seconds."""
    seconds = sum(call() for _ in range(count)) / count
    return count, seconds, seconds


def repeated(call, min_time):
    """(iterations, seconds of wall time of one, of this thread's CPU time), with the loop's own."""
    iterations = 100
    while True:
        cpu, wall = time.thread_time(), time.perf_counter()
        for _ in itertools.repeat(None, iterations):
            call()
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        if wall >= min_time:
            return iterations, wall / iterations, cpu / iterations
        iterations = max(2 * iterations, int(iterations * min_time * 1.2 / wall))


# --- the benchmarks ------------------------------------------------------------------------------


def measure_publish(transport, model, tokens, _):
    worker = Worker(model, transport, elsewhere=transport == "device")
    try:
        for i in range(workload.WORKING_SET // workload.MAX_TOKENS):
            worker.forward(workload.MAX_TOKENS)
            worker.publish(workload.MAX_TOKENS, i)
        numbers = itertools.count()

        def step():
            worker.forward(tokens)
            return worker.publish(tokens, next(numbers))

        return mean_of(step, workload.publishes_of(tokens))
    finally:
        worker.close()


def measure_read(transport, model, tokens, min_time):
    worker = Worker(model, transport, elsewhere=False)
    try:
        with moetap.Reader(worker.endpoint, transport) as reader:
            for i in range(workload.WORKING_SET // workload.MAX_TOKENS):
                worker.forward(workload.MAX_TOKENS)
                worker.publish(workload.MAX_TOKENS, i)
                reader.wait_for(worker.step)
            window = (1, worker.step)
            steps = itertools.cycle(list(workload.slot_mappings().reshape(-1, tokens)))
            rows = np.empty((tokens, worker.endpoint.shape.row_bytes), np.uint8)
            states = np.empty(tokens, np.uint8)
            result = repeated(lambda: reader.read(next(steps), window, out=(rows, states)), min_time)
            assert not states.any()
            return result
    finally:
        worker.close()


class Calls:
    """As in bench/calls.cc."""

    def __init__(self):
        self.worker = Worker(MODEL, "device", elsewhere=False)
        self.reader = moetap.Reader(self.worker.endpoint)
        self.ledger = moetap.Ledger(workload.SLOTS // workload.BLOCK_SIZE, workload.BLOCK_SIZE)
        self.worker.forward(CALL_TOKENS)
        self.worker.publish(CALL_TOKENS, 0)
        self.reader.wait_for(1)
        self.blocks = np.arange(CALL_TOKENS // workload.BLOCK_SIZE)
        self.ledger.admit(1, CALL_TOKENS, self.blocks)
        self.ledger.schedule(1, 1, range(CALL_TOKENS))

    def close(self):
        self.reader.close()
        self.worker.close()

    def all(self):
        reader, ledger, blocks = self.reader, self.ledger, self.blocks
        positions, window = range(CALL_TOKENS), (1, 1)
        slot = np.array([3])
        out = np.empty((1, reader.shape.row_bytes), np.uint8), np.empty(1, np.uint8)
        return {
            "poll": lambda: reader.poll(),
            "wait_for": lambda: reader.wait_for(1, 1.0),
            "worker_alive": lambda: reader.worker_alive,
            "read one row": lambda: reader.read(slot, window, out=out),
            "held": lambda: ledger.held(3),
            "schedule": lambda: ledger.schedule(1, 1, positions),
            "accept": lambda: ledger.accept(1, 1, CALL_TOKENS + 1),
            "cached_rows": lambda: ledger.cached_rows(blocks, CALL_TOKENS),
            "slots_of": lambda: moetap.slots_of(blocks, workload.BLOCK_SIZE, positions),
            "rows_since": lambda: ledger.rows_since(1, 0),
        }


def measure_call(name, min_time):
    calls = Calls()
    try:
        if name == "capture":
            return mean_of(lambda: calls.worker.time_captures(CALL_TOKENS), 200)
        iterations, *times = repeated(calls.all()[name], min_time)
        _, *empty = repeated(lambda: None, min_time)
        return iterations, *(time - loop for time, loop in zip(times, empty, strict=True))
    finally:
        calls.close()


CALLS = ("poll", "wait_for", "worker_alive", "read one row", "held", "schedule", "accept", "cached_rows",
         "slots_of", "rows_since", "capture")  # fmt: skip


def benchmarks():
    """{name: function of min_time}"""
    found = {f"package/call/{name}": lambda t, n=name: measure_call(n, t) for name in CALLS}
    found["package/ledger/step/requests/256"] = lambda _: mean_of(Decoding().step, 1000)
    for model, transport, tokens in itertools.product(workload.MODELS, ("shm", "device"), TOKENS):
        key = (transport, model, tokens)
        found[f"package/publish/{transport}/{model}/{tokens}"] = lambda t, k=key: measure_publish(*k, t)
        found[f"package/read/{transport}/{model}/{tokens}"] = lambda t, k=key: measure_read(*k, t)
    return found


def run(names, min_time):
    every = benchmarks()
    results = []
    for name in names:
        results.append(measured.result(name, *every[name](min_time)))
    return results


if __name__ == "__main__":
    measured.main(__doc__, benchmarks(), run, {"python": sys.version.split()[0]})
