"""Serves requests with examples/llama, and compares every row that the scheduler read with the graph's.

Arguments: the folder of llama.cpp and the models, that of the programs, and the number of workloads.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from gguf_sizes import TINY, VOCABULARY

REQUESTS = 60  # of each workload
TRANSPORTS = ("shm", "device")
# What the requests must have made happen, or the comparison proves little.
LEAST = {"preemptions": 11, "hits": 11, "chunks": 11, "aborts": 11}


def main() -> int:
    """0 if all rows are equal, and all that should happen did."""
    folder, programs, seeds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    faults = sum(compare(folder, programs, transport, seeds) for transport in TRANSPORTS)
    print(f"llama.cpp: {faults} faults" if faults else "llama.cpp: all rows equal")
    return 1 if faults else 0


def compare(folder: Path, programs: Path, transport: str, seeds: int) -> int:
    """Serves requests, and compares. The number of faults."""
    counts: Counter[str] = Counter()
    faults = 0
    for seed in range(1, seeds + 1):
        results = folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        serve(folder / "tiny", programs, results, transport, seed)
        for line in (results / "counts").read_text().splitlines():
            what, count = line.split("\t")
            counts[what] += int(count)
        expected, found = (rows_of(results / name) for name in ("picks", "rows"))
        if expected.keys() != found.keys() or len(found) != REQUESTS:
            print(f"    seed {seed}: rows of {len(found)} requests, picks of {len(expected)}, of {REQUESTS} in all")
            faults += 1
        for request, rows in expected.items():
            counts["rows"] += len(rows)
            counts["equal"] += equal_rows(request, rows, found.get(request, rows[:0]), seed)
    print(f"{transport:6} " + ", ".join(f"{name} {counts[name]}" for name in
                                        ("rows", "equal", "finished", *LEAST, "tokens hit", "tokens computed")),
          flush=True)
    for what, least in LEAST.items():
        if counts[what] < least:
            print(f"    only {counts[what]} {what}")
            faults += 1
    return faults + (counts["rows"] == 0) + (counts["rows"] != counts["equal"])


def serve(model: Path, programs: Path, results: Path, transport: str, seed: int) -> None:
    """A worker and a scheduler, each other's standard input and output."""
    instance = f"llama-{os.getpid()}-{transport}-{seed}"
    config = model / "config.json"
    to_worker, to_scheduler = os.pipe(), os.pipe()
    worker = subprocess.Popen([programs / "worker", model / "model.gguf", config, transport, instance,
                               results / "picks"], stdin=to_worker[0], stdout=to_scheduler[1])
    scheduler = subprocess.Popen([programs / "scheduler", config, transport, instance, str(REQUESTS),
                                  str(VOCABULARY), str(seed), results / "rows", results / "counts"],
                                 stdin=to_scheduler[0], stdout=to_worker[1])
    for end in (*to_worker, *to_scheduler):
        os.close(end)  # so that each ends when the other has
    try:
        ended = [process.wait(timeout=600) for process in (scheduler, worker)]
    finally:
        for process in (scheduler, worker):
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(ended):
        raise SystemExit(f"engines: {transport}, seed {seed}: the scheduler ended with {ended[0]}, "
                         f"the worker with {ended[1]}")


def rows_of(path: Path) -> dict[int, np.ndarray]:
    """By request: int32 [rows][ids of a row]."""
    layers, _, top_k, _ = TINY
    ids = (layers - 1) * top_k
    data, at, rows = path.read_bytes(), 0, {}
    while at < len(data):
        request, count = map(int, np.frombuffer(data, np.int64, 2, at))
        rows[request] = np.frombuffer(data, np.int32, count * ids, at + 16).reshape(count, ids)
        at += 16 + 4 * count * ids
    return rows


def equal_rows(request: int, expected: np.ndarray, found: np.ndarray, seed: int) -> int:
    """How many are equal. Prints the first that is not."""
    if found.shape != expected.shape:
        print(f"    seed {seed}, request {request}: {len(found)} rows, not {len(expected)}")
        return 0
    equal = (found == expected).all(axis=1)
    if not equal.all():
        at = int(np.flatnonzero(~equal)[0])
        print(f"    seed {seed}, request {request}: row {at} is {found[at].tolist()}, not {expected[at].tolist()}")
    return int(equal.sum())


if __name__ == "__main__":
    sys.exit(main())
