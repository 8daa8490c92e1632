"""How far the routes of two runs are apart: the loads of all rows, and row by row where both have it.

Rows are compared one by one only between files of one name and one number of rows, and only where
both are present. A .npy file does not hold the tokens. So that these are the same in both runs is
what the equal names say, and cannot be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from moetap.report._counts import Block, RunCounts, checked_blocks
from moetap.report._files import Ids, RouteFile
from moetap.report._measures import Floats, js_distance, js_noise, shares
from moetap.report._model import Layers, Model
from moetap.report._runs import Run

_BLOCK_IDS = 1 << 18


@dataclass(frozen=True)
class Compared:
    """A request that both runs have."""

    name: str
    rows: int  # that are present in both runs: these are compared
    not_present: int  # in one of the runs or in both
    equal_picks: float  # part of the picks that are the same; NaN without rows
    equal_rows: int  # whose experts are the same at every layer


@dataclass(frozen=True)
class NotCompared:
    name: str
    reason: str


@dataclass(frozen=True)
class Drift:
    """Of the second run against the first."""

    first: str
    second: str
    distance: Floats  # Jensen-Shannon, [layers]
    noise: Floats  # what chance alone would make of it, [layers]
    rising: Ids  # the expert whose share of the picks grew most, [layers]
    rise: Floats  # by how much, in shares
    falling: Ids
    fall: Floats
    compared: tuple[Compared, ...]
    not_compared: tuple[NotCompared, ...]
    equal_picks: Floats | None  # part of the compared rows' picks, [layers]; None without rows

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.compared)

    @property
    def equal_rows(self) -> int:
        return sum(request.equal_rows for request in self.compared)


def find_drift(
    runs: tuple[Run, Run],
    layers: tuple[Layers, Layers],
    counts: tuple[RunCounts, RunCounts],
    model: Model,
) -> Drift:
    """Reads the files that both runs have once more."""
    a, b = counts[0].picks, counts[1].picks
    change = shares(b) - shares(a)
    every = np.arange(len(change))
    rising, falling = change.argmax(axis=1), change.argmin(axis=1)
    pairs, not_compared = _pairs(*runs)
    equal = np.zeros(model.num_layers, np.int64)
    compared: list[Compared] = []
    for pair in pairs:
        request, of_layers = _compare(pair, layers, model)
        compared.append(request)
        equal += of_layers
    rows = sum(request.rows for request in compared)
    return Drift(
        counts[0].name,
        counts[1].name,
        js_distance(a, b),
        js_noise(a, b),
        rising,
        change[every, rising],
        falling,
        change[every, falling],
        tuple(compared),
        tuple(not_compared),
        equal / (rows * model.top_k) if rows else None,
    )


def equal_picks(a: Ids, b: Ids, repeats: bool) -> Ids:
    """How many picks [n][layers][top_k] of `a` are in `b` too, in any order: [n][layers].

    repeats: an expert may come several times, and is then equal as often as it is in both.
    """
    mine, theirs = (np.ascontiguousarray(np.moveaxis(x.astype(np.int32), -1, 0)) for x in (a, b))
    equal = np.zeros(mine.shape[1:], np.int64)
    for k, pick in enumerate(mine):
        there = sum((pick == other).astype(np.int64) for other in theirs)
        if repeats:
            earlier = sum(
                ((pick == other).astype(np.int64) for other in mine[:k]), np.zeros_like(equal)
            )
            equal += there > earlier
        else:
            equal += there
    return equal


def _pairs(first: Run, second: Run) -> tuple[list[tuple[RouteFile, RouteFile]], list[NotCompared]]:
    theirs = {file.request: file for file in second.files}
    mine = {file.request for file in first.files}
    pairs: list[tuple[RouteFile, RouteFile]] = []
    others: list[NotCompared] = []
    for file in first.files:
        other = theirs.get(file.request)
        if other is None:
            others.append(NotCompared(file.request, f"only in {first.name}"))
        elif other.rows != file.rows:
            reason = f"{file.rows} rows in {first.name}, {other.rows} in {second.name}"
            others.append(NotCompared(file.request, reason))
        else:
            pairs.append((file, other))
    others += [
        NotCompared(file.request, f"only in {second.name}")
        for file in second.files
        if file.request not in mine
    ]
    return pairs, others


def _compare(
    pair: tuple[RouteFile, RouteFile], layers: tuple[Layers, Layers], model: Model
) -> tuple[Compared, Ids]:
    """The request, and how many picks of each layer are equal."""
    step = max(1, _BLOCK_IDS // (max(file.layers for file in pair) * model.top_k))
    equal = np.zeros(model.num_layers, np.int64)
    rows = equal_rows = 0
    blocks = (
        checked_blocks(file, of_file, model, step)
        for file, of_file in zip(pair, layers, strict=True)
    )
    for a, b in zip(*blocks, strict=True):
        picks = _equal_of_blocks(a, b, model)
        equal += picks.sum(axis=0)
        rows += len(picks)
        equal_rows += int((picks == model.top_k).all(axis=1).sum())
    total = rows * model.num_layers * model.top_k
    part = float(equal.sum() / total) if total else float("nan")
    return Compared(pair[0].request, rows, pair[0].rows - rows, part, equal_rows), equal


def _equal_of_blocks(a: Block, b: Block, model: Model) -> Ids:
    both = a.present & b.present
    return equal_picks(a.ids[both], b.ids[both], model.repeated_experts)
