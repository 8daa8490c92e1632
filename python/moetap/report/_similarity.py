"""How alike requests are routed: the cosine of their loads, averaged over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moetap.report._counts import Request
from moetap.report._files import Ids
from moetap.report._model import Model
from moetap.report._runs import Run

MAX_REQUESTS = 64  # of a page's matrix
_MAX_FLOATS = 1 << 26  # 256 MiB of float32


@dataclass(frozen=True)
class Similarity:
    """Between the requests of all runs, in their order: those with most rows if there are many."""

    runs: tuple[str, ...]  # of each request
    names: tuple[str, ...]
    rows: tuple[int, ...]  # that are present
    cosine: npt.NDArray[np.float64]  # [requests][requests]: 1 is the same load at every layer
    left_out: int  # requests with a row that is present, beyond the ones here


class SimilarityBuilder:
    """Takes requests one by one, and keeps the loads of those that are compared."""

    def __init__(self, runs: Sequence[Run], model: Model) -> None:
        most = min(MAX_REQUESTS, _MAX_FLOATS // (model.num_layers * model.num_experts))
        by_rows = sorted(
            ((-file.rows, i, j) for i, run in enumerate(runs) for j, file in enumerate(run.files))
        )
        self._chosen = {(i, j) for _, i, j in by_rows[:most]}
        self._loads: list[npt.NDArray[np.float32]] = []
        self._taken: list[tuple[str, Request]] = []
        self._left_out = 0

    def add(self, run: int, name: str, index: int, request: Request, picks: Ids) -> None:
        """The index-th request of the run with this index and name."""
        if request.present == 0:
            return
        if (run, index) not in self._chosen:
            self._left_out += 1
            return
        length = np.sqrt((picks.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        self._loads.append((picks / length).astype(np.float32).ravel())
        self._taken.append((name, request))

    def result(self, model: Model) -> Similarity | None:
        """None if there are no two requests to compare."""
        if len(self._loads) < 2:
            return None
        loads = np.stack(self._loads)
        cosine = (loads @ loads.T).astype(np.float64) / model.num_layers
        np.fill_diagonal(cosine, 1.0)
        return Similarity(
            tuple(run for run, _ in self._taken),
            tuple(request.name for _, request in self._taken),
            tuple(request.present for _, request in self._taken),
            np.clip(cosine, 0.0, 1.0),
            self._left_out,
        )
