"""The Python design that moetap is compared with, as serving engines have it: one int32 array in
shared memory, an exclusive flock around each save and each read, NumPy to move the rows.

Prints results in Google Benchmark's JSON form. What is compared should be the design, not a careless
version of it: everything that can be made once is made once (the arrays, the index arrays, the open
lock file), the allocator is warm, and reads come in a second form ("python_one_copy") that saves the
design one of its two copies and the memory for it.
"""

import fcntl
import tempfile
import time
from multiprocessing import shared_memory

import measured
import numpy as np

# (MoE layers, top_k, experts), as in moetap::ModelShape::known.
MODELS = {
    "qwen3-30b-a3b": (48, 8, 128),
    "deepseek-v3": (58, 8, 256),
    "nemotron-3-super": (40, 22, 512),
}
TOKENS = (1, 16, 64, 256, 2048, 8192)
MAX_TOKENS = 8192
BLOCK_SIZE = 16
SLOTS = 64 * 1024
WORKING_SET = 16 * 1024


def slot_mappings(num_slots=SLOTS):
    """The slots of bench/workload.h: SlotMappings, in the same order."""
    blocks = list(range(num_slots // BLOCK_SIZE))
    state = 2
    for i in range(len(blocks) - 1, 0, -1):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        j = (state >> 33) % (i + 1)
        blocks[i], blocks[j] = blocks[j], blocks[i]
    starts = np.array(blocks[: WORKING_SET // BLOCK_SIZE], dtype=np.int64) * BLOCK_SIZE
    return (starts[:, None] + np.arange(BLOCK_SIZE)).reshape(-1)


class Design:
    """The shared buffer of one model, and both sides' calls on it."""

    def __init__(self, model):
        layers, top_k, experts = MODELS[model]
        row = (layers, top_k)
        rng = np.random.default_rng(1)
        self.slots = slot_mappings()
        # The routers' picks, their device memory, and the host array that a step is copied to.
        self.topk_ids = rng.integers(0, experts, (MAX_TOKENS, *row), dtype=np.int32)
        self.device = self.topk_ids.copy()
        self.host = np.empty_like(self.device)
        self.result = np.empty_like(self.device)
        self.memory = shared_memory.SharedMemory(create=True, size=SLOTS * layers * top_k * 4)
        self.buffer = np.ndarray((SLOTS, *row), dtype=np.int32, buffer=self.memory.buf)
        self.buffer.fill(0)
        self.lock = tempfile.TemporaryFile()
        # Warms the allocator: in a long-running process it keeps memory of the sizes it has seen. A
        # fresh allocator would return the memory to the kernel after every read.
        self.read(self.slots[:MAX_TOKENS])

    def close(self):
        del self.buffer
        self.memory.close()
        self.memory.unlink()
        self.lock.close()

    def steps(self, tokens):
        """The working set's index arrays, one a step."""
        return list(self.slots.reshape(-1, tokens))

    def forward(self, tokens):
        np.copyto(self.device[:tokens], self.topk_ids[:tokens])

    def publish(self, slots):
        rows = self.host[: len(slots)]
        np.copyto(rows, self.device[: len(slots)])
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.buffer[slots] = rows
        fcntl.flock(self.lock, fcntl.LOCK_UN)

    def read(self, slots):
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        rows = self.buffer[slots].copy()
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return rows

    def read_once(self, slots):
        """One copy, into memory that is there already."""
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        rows = np.take(self.buffer, slots, axis=0, out=self.result[: len(slots)], mode="clip")
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return rows


def check(design):
    """The baseline must do the work it is timed for."""
    slots = design.steps(64)[3]
    design.publish(slots)
    for read in (design.read, design.read_once):
        assert np.array_equal(read(slots), design.device[:64]), read


def measure_reads(read, steps, min_time):
    """(iterations, seconds of wall time an iteration, of CPU time), as Google Benchmark does it:
    more iterations until they take min_time."""
    for slots in steps:  # every page touched
        read(slots)
    iterations = 1
    while True:
        rounds, rest = divmod(iterations, len(steps))
        plan = steps * rounds + steps[:rest]
        cpu, wall = time.process_time(), time.perf_counter()
        for slots in plan:
            read(slots)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if wall >= min_time:
            return iterations, wall / iterations, cpu / iterations
        iterations = max(iterations + 1, min(10 * iterations, int(iterations * min_time * 1.4 / wall)))


def measure_publishes(design, steps, count):
    """The same, of `count` steps after a forward pass each, which is not measured: its output, in
    the caches as far as they hold it, is what is published."""
    for slots in steps:
        design.publish(slots)
    wall = cpu = 0.0
    for i in range(count):
        slots = steps[i % len(steps)]
        design.forward(len(slots))
        cpu_start, start = time.process_time(), time.perf_counter()
        design.publish(slots)
        wall += time.perf_counter() - start
        cpu += time.process_time() - cpu_start
    return count, wall / count, cpu / count


def publishes_of(tokens):
    """steps_of in bench/workload.h"""
    return 8 if tokens >= 8192 else 32 if tokens >= 2048 else 128 if tokens >= 256 else 256


def names():
    """{name: (what, model, tokens)} of each benchmark, in the order they run."""
    found = {}
    for model in MODELS:
        for tokens in TOKENS:
            found[f"publish/python/{model}/{tokens}"] = "publish", model, tokens
            found[f"read/python/{model}/{tokens}"] = "read", model, tokens
            found[f"read/python_one_copy/{model}/{tokens}"] = "read_once", model, tokens
    return found


def run(wanted, min_time):
    every = names()
    results = []
    design, model_of_design = None, None
    try:
        for name in wanted:
            what, model, tokens = every[name]
            if model != model_of_design:
                if design:
                    design.close()
                design, model_of_design = Design(model), model
                check(design)
            steps = design.steps(tokens)
            if what == "publish":
                measured_as = measure_publishes(design, steps, publishes_of(tokens))
            else:
                measured_as = measure_reads(getattr(design, what), steps, min_time)
            results.append(measured.result(name, *measured_as))
    finally:
        if design:
            design.close()
    return results


if __name__ == "__main__":
    measured.main(__doc__, names(), run, {"numpy": np.__version__})
