"""Calls everything that is public with arguments of all kinds: python fuzz.py [--seconds N] [--seed N].

An exception is an answer, but not SystemError of Python's own, which says that a function broke its
rules, nor one that only has the name of a C++ class. A crash, or what the address sanitizer finds, ends the process; --seed repeats its calls. Each
round has a worker and a scheduler of its own, so a failure lies in the last calls: --trace prints them.
`./dev fuzz python` builds with the sanitizer and runs this. Memory that the hostile objects leave is
not looked for.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import faulthandler
import functools
import gc
import itertools
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from conftest import BLOCK_SIZE, NUM_BLOCKS, SHAPE, picks, run_step

import moetap

CALLS_A_ROUND = 400
# Memory of these sizes is the caller's wish.
SIZES = {"num_slots", "num_blocks", "max_tokens", "max_bytes", "ring_depth", "block_size", "staging_depth",
         "num_layers", "num_hidden_layers", "num_experts", "top_k", "steps_in_flight", "shape", "positions",
         "dp_size", "tp_size", "pp_size", "sp_size", "shared_expert_columns", "cached", "num_tokens", "end"}  # fmt: skip
WAITS = {"timeout", "poll_every"}
# What would end this process, or remove what is not ours.
LEFT_OUT = {"reclaim", "wrap_stream", "why_no_cuda", "find_segments"}
INTS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, -1, -2, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63,
        2**64 - 1, 2**64, -2**31, -2**63, -2**63 - 1, 10**30)  # fmt: skip
DTYPES = ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8", "float32", "float64", "bool",
          "complex64", ">i8", "object", "U3", "datetime64[s]")  # fmt: skip
WORDS = ("", "host", "inline", "auto", "cuda", "cuda:99", "device", "shm", "wire", "native", "tree", "chain", "drop", "wait",
         "int32", "uint8", "float32", "bfloat16", "local", "padded", "concatenated", "full_attention", "uniform",
         "qwen3-30b-a3b", "/", "../x", "a" * 300, "\0", "é", "\ud800", "%s%n", "{}")  # fmt: skip


class Hostile:
    """Answers each protocol with something that makes no sense."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def answer(self) -> Any:
        if self.draw.chance(20):
            raise self.draw.of((ZeroDivisionError, MemoryError, StopIteration, KeyError, BufferError))("hostile")
        return self.draw.plain()

    def __index__(self) -> Any:
        return self.answer()

    def __float__(self) -> Any:
        return self.answer()

    def __len__(self) -> Any:
        return self.answer()

    def __getitem__(self, _: Any) -> Any:
        return self.answer()

    def __iter__(self) -> Any:
        return self.answer()

    def __eq__(self, _: object) -> Any:
        return self.answer()

    def __hash__(self) -> Any:
        return self.draw.of((0, 1, -1))

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.answer()

    def __dlpack__(self, **_: Any) -> Any:
        return self.answer()

    def __dlpack_device__(self) -> Any:
        return self.draw.of(((1, 0), (2, 0), (1, 7), (99, -1), self.draw.plain()))

    def __cuda_stream__(self) -> Any:
        return self.answer()

    def to_dict(self) -> Any:
        return self.answer()

    def __buffer__(self, _: int) -> Any:  # since Python 3.12
        return self.answer()


class HostileGpuArray:
    def __init__(self, draw: Draw) -> None:
        interface = {"shape": (4, 2), "typestr": "<i4", "data": (256, False), "version": 3, "strides": None}
        for key in list(interface):
            if draw.chance(25):
                interface[key] = draw.plain()
            if draw.chance(5):
                del interface[key]
        self.__cuda_array_interface__ = interface if draw.chance(90) else draw.plain()


class Draw:
    """Where all arguments come from."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: list[Any] = []  # results of earlier calls, and the round's own objects

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def of(self, choices: Any) -> Any:
        return self.random.choice(choices)

    def number(self) -> int:
        return self.of(INTS) if self.chance(50) else self.random.randrange(-3, 70)

    def array(self) -> Any:
        shape = tuple(self.of((0, 1, 2, 3, 4, 7, 8, 16, 32)) for _ in range(self.of((0, 1, 1, 1, 2, 2, 2, 3))))
        with np.errstate(all="ignore"):
            made = np.random.default_rng(self.random.randrange(2**32)).integers(-3, 70, shape).astype(self.of(DTYPES))
        way = self.random.randrange(9)
        if way == 0 and made.ndim:
            made = made[::2]
        elif way == 1 and made.ndim:
            made = made[::-1]
        elif way == 2:
            made = made.T
        elif way == 3:
            made.flags.writeable = False
        elif way == 4 and made.ndim:
            made = np.broadcast_to(made, (3, *made.shape))
        elif way == 5 and made.nbytes > 8 and made.dtype != object:
            made = np.frombuffer(bytes(made.nbytes + 1), np.uint8)[1:].view(made.dtype)
        elif way == 6 and made.dtype != object:
            return memoryview(np.ascontiguousarray(made)) if made.dtype.kind in "iuf" else made.tobytes()
        return made

    def plain(self) -> Any:
        """Something that is none of ours."""
        way = self.random.randrange(14)
        if way < 4:
            return self.number()
        if way == 4:
            return self.of((0.0, -1.0, 0.01, 1e-9, 1e300, float("inf"), float("nan"), True, False, None, 1j, ..., int))
        if way == 5:
            return self.of(WORDS)
        if way == 6:
            return self.of((b"", b"x" * 7, bytes(64), bytearray(9), b"\x93NUMPY", b"\xff" * 65))
        if way == 7:
            return range(self.number(), self.random.randrange(-3, 70), self.of((1, 1, 1, 2, -1)))
        if way == 8:
            return [self.plain() for _ in range(self.random.randrange(4))]
        if way == 9:
            return tuple(self.plain() for _ in range(self.random.randrange(4)))
        if way == 10:
            return {self.of(WORDS): self.plain() for _ in range(self.random.randrange(4))}
        return self.array()

    def any(self) -> Any:
        if self.chance(35):
            return self.of(self.seen)
        if self.chance(8):
            return Hostile(self)
        if self.chance(3):
            return HostileGpuArray(self)
        return self.plain()

    def argument(self, name: str) -> Any:
        """Of this parameter: often one that it may be."""
        if name in WAITS:
            return self.of((0, 0.001, 0.01, -1, float("nan"), "1", None, True, Hostile(self), [1]))
        if name in SIZES:
            other = self.any()
            if self.chance(90) or (isinstance(other, int) and other > 2**16):
                return self.of((1, 2, 3, 4, 8, 16, 64, -1, 2**63, 0, "4", None, 1.5, (0, 4), range(6), (2, 3), range(2, 1)))
            return other
        if self.chance(40):
            return self.any()
        likely: dict[str, Callable[[], Any]] = {
            "step": lambda: self.random.randrange(1, 9), "request": lambda: self.random.randrange(1, 6),
            "requests": lambda: [(1, 0, 4)] if self.chance(30) else np.arange(1, 1 + self.of((1, 2, 3)), dtype=np.uint64),
            "positions": lambda: range(self.of((0, 0, 4)), self.of((4, 8))), "blocks": lambda: [self.of((0, 1, 2, 3))],
            "slots": lambda: np.arange(self.of((1, 4, 8))), "slot_mapping": lambda: np.arange(self.of((1, 4, 8))),
            "windows": lambda: (1, self.of((1, 2, 3))), "layer": lambda: self.of(SHAPE.moe_layers),
            "topk_ids": lambda: picks(self.of((1, 4, 8)))[0], "state": lambda: self.of(list(moetap.RowState)),
            "transport": lambda: self.of(("device", "shm", "capture_only")), "device": lambda: self.of((None, "host", "inline")),
            "moves": lambda: [(self.of((0, 1, 2)), self.of((3, 4, 5)))], "key": lambda: self.of((b"a", b"b")),
            "keys": lambda: [b"a"], "num_tokens": lambda: self.of((1, 4, 5, 8)), "instance": lambda: self.instance(),
        }  # fmt: skip
        return likely[name]() if name in likely else self.any()

    def instance(self) -> str:
        return f"fuzz-{os.getpid()}-{self.random.randrange(3)}"


def parameters(function: Any) -> list[tuple[str, bool]]:
    """Names of a binding's parameters but `self`, and whether each must be given by name."""
    found: list[tuple[str, bool]] = []
    for signature, *_ in getattr(function, "__nb_signature__", ()):
        by_name = False
        inside = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", signature[signature.index("(") + 1:]))
        for part in re.split(r",\s*", inside.split(") ->")[0].rstrip(")")):
            name = part.split(":")[0].split("=")[0].strip()
            by_name = by_name or name == "*"
            if name.isidentifier() and name != "self" and (name, by_name) not in found:
                found.append((name, by_name))
    return found


def arguments_of(draw: Draw, function: Any) -> tuple[list[Any], dict[str, Any]]:
    names = parameters(function)
    if draw.chance(8) and not SIZES.intersection(name for name, _ in names):
        return [draw.any() for _ in range(draw.random.randrange(5))], {}
    plain = [name for name, by_name in names if not by_name]
    given = plain[: draw.random.randrange(len(plain) + 1)] if draw.chance(25) else plain
    arguments = [draw.argument(name) for name in given]
    return arguments, {name: draw.argument(name) for name, by_name in names if by_name and draw.chance(25)}


def targets(draw: Draw) -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """Without end: functions, constructors, members of what the round has. A name, what has the
    signature, and what is called."""
    names = [name for name in moetap.__all__ if name not in LEFT_OUT and callable(getattr(moetap, name))
             and not (isinstance(getattr(moetap, name), type) and issubclass(getattr(moetap, name), Exception))]
    while True:
        if draw.chance(30):
            name = draw.of(names)
            function = getattr(moetap, name)
            yield name, function.__init__ if isinstance(function, type) else function, function
            continue
        owner = draw.of([seen for seen in draw.seen if type(seen).__module__.startswith("moetap")])
        members = [member for member in dir(type(owner)) if member not in LEFT_OUT
                   and (not member.startswith("_") or member in ("__enter__", "__exit__", "__eq__", "__repr__", "__len__",
                        "__contains__", "__hash__", "__reduce__", "__dlpack__", "__setstate__", "__getstate__"))]  # fmt: skip
        member = draw.of(members)
        yield f"{type(owner).__name__}.{member}", getattr(type(owner), member), functools.partial(use, owner, member)


def use(owner: Any, member: str, *given: Any, **named: Any) -> Any:
    value = getattr(owner, member)
    return value(*given, **named) if callable(value) else value


@contextlib.contextmanager
def world(draw: Draw) -> Iterator[None]:
    """A worker, a scheduler and a request between them, for one round."""
    endpoint = moetap.Endpoint(f"fuzz-{os.getpid()}-0", SHAPE, num_slots=NUM_BLOCKS * BLOCK_SIZE, max_tokens=32,
                               timeout=0.01)  # fmt: skip
    transport = draw.of(("device", "shm"))
    capturer = moetap.Capturer(endpoint, "host", transport=transport)
    capturer.bind_all()
    reader = moetap.Reader(endpoint, transport, poll_every=draw.of((None, None, 0.001)))
    ledger = moetap.Ledger(NUM_BLOCKS, BLOCK_SIZE, draw.of(("tree", "chain")))
    ledger.admit(1, 8, [0, 1])
    ledger.schedule(1, 1, range(8))
    run_step(capturer, 1, list(range(8)))
    capturer.finalize(1, 10)
    reader.poll()
    store = moetap.BlockStore.in_memory(SHAPE, block_size=BLOCK_SIZE, max_bytes=4096)
    plan = ledger.rows_since(1, 0)
    draw.seen = [endpoint, capturer, reader, ledger, store, plan, SHAPE, moetap.Topology(), moetap.KvCacheGroup(),
                 moetap.PendingRows(ledger, reader), moetap.read_rows(reader, plan, wait=False), ledger.hold(plan),
                 capturer.device, capturer.device.make_stream(), capturer.device.empty((8, 2)),
                 moetap.view_rows(reader, plan, "the fuzzer"), ledger.fill(5, 1, range(0)), ledger.move(6, [])]  # fmt: skip
    try:
        yield
    finally:
        draw.seen = []


def run(seed: int, trace: bool) -> int:
    """One round. Returns how many calls were answered without an exception."""
    draw = Draw(seed)
    answered = 0
    with world(draw):
        for name, function, target in itertools.islice(targets(draw), CALLS_A_ROUND):
            given, named = arguments_of(draw, function)
            if trace:
                print(f"{name} {given!r:.200} {named!r:.200}", flush=True)
            try:
                result = target(*given, **named)
            except builtins.SystemError as broken:
                if not isinstance(broken, moetap.Error):
                    raise
            except RuntimeError as unclear:
                if "std::" in str(unclear) or isinstance(unclear, RecursionError):
                    raise  # of C++, without a word for the caller
            except Exception:  # noqa: BLE001  an answer
                pass
            else:
                answered += 1
                if result is not None and not isinstance(result, (bool, int, str)) and len(draw.seen) < 60:
                    draw.seen.append(result)
    return answered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="one round, of this number")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    faulthandler.enable()
    sys.unraisablehook = lambda _: None  # of what hostile objects raise where nobody can be told
    if options.seed is not None:
        print(f"seed {options.seed}: {run(options.seed, options.trace)} of {CALLS_A_ROUND} calls answered")
        return
    end, seed, answered = time.monotonic() + options.seconds, options.first, 0
    while time.monotonic() < end:
        print(f"seed {seed}", end="\r", flush=True)  # the last line names the one that crashed
        answered += run(seed, options.trace)
        gc.collect()
        seed += 1
    rounds = seed - options.first
    print(f"{rounds} rounds of {CALLS_A_ROUND} calls, {answered} answered without an exception")


if __name__ == "__main__":
    main()
