"""Which rows each request of vLLM has, and which of them it was given. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap._plugins import Arrivals, with_dense_layers

Ids = NDArray[np.unsignedinteger]  # [tokens][hidden layers][top_k], 0 in dense layers


@dataclass
class _Remains:
    """Rows of a run that was preempted, from `start` on: where they are, and of which step."""

    start: int
    slots: NDArray[np.int64]
    windows: NDArray[np.uint64]  # [n][2]
    steps: set[int]  # in flight when the request was preempted


@dataclass
class _Request:
    number: int  # in the ledger
    given: int  # rows before this position were returned
    in_flight: dict[int, range] = field(default_factory=dict)  # step: positions that it computes
    remains: _Remains | None = None
    preempted: bool = False


class Books:
    """Follows what vLLM's scheduler decides, and returns each row once, in order of position.

    vLLM takes its steps' outputs in the order of the steps. So does the reader: it takes in no step
    whose output the scheduler has not seen. A later step cannot overwrite a row before it is read.
    """

    def __init__(self, ledger: moetap.Ledger, reader: moetap.Reader) -> None:
        self._ledger = ledger
        self._reader = reader
        self._shape = reader.shape
        self._requests: dict[str, _Request] = {}
        self._next_number = 1
        self._arrivals = Arrivals(reader)

    # --- what the scheduler decided ------------------------------------------------------------------

    def admit(self, request: str, num_tokens: int, blocks: Sequence[int], cached: int, start: int) -> None:
        """A new request. Rows before `start` are not asked for."""
        number = self._next_number
        self._ledger.admit(number, num_tokens, blocks, cached, start=start)
        self._next_number += 1
        self._requests[request] = _Request(number, start)

    def resume(self, request: str, blocks: Sequence[int], cached: int) -> None:
        """A preempted request runs again."""
        known = self._known(request)
        self._ledger.resume(known.number, blocks, cached)
        known.preempted = False

    def is_preempted(self, request: str) -> bool:
        """Whether the request is to be resumed, and not to be admitted."""
        return request in self._requests and self._requests[request].preempted

    def schedule(self, step: int, request: str, positions: range, new_blocks: Sequence[int] = ()) -> None:
        """`step` computes these positions, if all drafts before them are accepted."""
        known = self._known(request)
        self._ledger.schedule(step, known.number, positions, new_blocks)
        known.in_flight[step] = positions

    def preempt(self, request: str, blocks: Sequence[int]) -> None:
        """The request loses its blocks. Outputs of its steps in flight may still come."""
        known = self._known(request)
        known.remains = self._remains(known, blocks)
        known.in_flight.clear()
        self._ledger.preempt(known.number)
        known.preempted = True

    def end(self, request: str) -> None:
        """The request is over. Does nothing for one that never ran."""
        known = self._requests.pop(request, None)
        if known is not None:
            self._ledger.abort(known.number)

    def flush(self) -> None:
        """The keys and values are dropped, as when the weights changed."""
        self._ledger.flush()

    def close(self) -> None:
        """Ends reading. No call may follow."""
        self._reader.close()

    # --- what came back ------------------------------------------------------------------------------

    def arrived(self, step: int) -> None:
        """The scheduler has the outputs of all steps up to this one."""
        self._arrivals.take_in(step)

    def take(self, step: int, request: str, num_tokens: int, finished: bool) -> Ids | None:
        """The rows that `step` adds: the request has num_tokens tokens now, the last without a row.

        None if they come later: only after a preemption. RowsNotPresent if one is not there.
        """
        known = self._known(request)
        self.arrived(step)
        if known.remains is not None and step in known.remains.steps:
            return self._take_remains(known, known.remains, step, request, num_tokens, finished)
        self._ledger.accept(step, known.number, num_tokens)
        self._settle(known, step, num_tokens - 1)
        end = num_tokens - 1
        if end <= known.given:
            return self._nothing() if end == known.given else None
        plan = self._ledger.rows_since(known.number, known.given)
        routes = moetap.read_rows(self._reader, plan)
        if plan.positions != range(known.given, end) or not routes.all_present:
            self._raise_absent(request, range(known.given, end), routes.states)
        known.given = end
        return self._with_dense_layers(routes.rows)

    # --- inside --------------------------------------------------------------------------------------

    def _known(self, request: str) -> _Request:
        known = self._requests.get(request)
        if known is None:
            raise KeyError(f"request '{request}' was never scheduled")
        return known

    def _settle(self, known: _Request, step: int, start: int) -> None:
        """The request's next step in flight begins at `start`: drafts of this one were rejected."""
        for earlier in [other for other in known.in_flight if other <= step]:
            del known.in_flight[earlier]
        for later, positions in known.in_flight.items():
            moved = range(start, start + len(positions))
            if moved != positions:
                self._ledger.schedule(later, known.number, moved)
                known.in_flight[later] = moved
            start = moved.stop

    def _remains(self, known: _Request, blocks: Sequence[int]) -> _Remains | None:
        """The rows not yet given that are in the blocks now, or will be when steps in flight end."""
        stop = max((positions.stop for positions in known.in_flight.values()), default=0)
        if stop <= known.given:  # as in a second run that is not yet where the first one was
            return None
        plan = self._ledger.rows_since(known.number, known.given)
        slots = moetap.slots_of(blocks, self._ledger.block_size, range(known.given, stop))
        windows = np.zeros((len(slots), 2), np.uint64)  # no step is 0: not present
        windows[: len(plan.windows)] = plan.windows[: len(slots)]
        for step, positions in known.in_flight.items():
            windows[max(positions.start - known.given, 0) : positions.stop - known.given] = step
        return _Remains(known.given, slots, windows, set(known.in_flight))

    def _take_remains(
        self, known: _Request, remains: _Remains, step: int, request: str, num_tokens: int, finished: bool
    ) -> Ids | None:
        """As take(), of a step that was in flight when the request was preempted."""
        remains.steps = {later for later in remains.steps if later > step}
        if not remains.steps:
            known.remains = None
        self._ledger.accept(step, known.number, num_tokens)
        wanted = range(known.given, num_tokens - 1)
        first, last = wanted.start - remains.start, wanted.stop - remains.start
        if last <= first:
            return self._nothing() if last == first else None
        slots, windows = remains.slots[first:last], remains.windows[first:last]
        rows, states = self._reader.read(slots, windows)
        if len(slots) == len(wanted) and np.all(states == int(moetap.RowState.present)):
            known.given = wanted.stop
            return self._with_dense_layers(rows)
        if finished:
            self._raise_absent(request, wanted, states)
        return None  # the next run computes them again

    def _nothing(self) -> Ids:
        return np.zeros((0, self._shape.num_hidden_layers, self._shape.top_k), self._shape.id_type)

    def _with_dense_layers(self, rows: NDArray[np.uint8]) -> Ids:
        return with_dense_layers(rows, self._shape, self._shape.id_type)

    def _raise_absent(self, request: str, wanted: range, states: NDArray[np.uint8]) -> None:
        for index, position in enumerate(wanted):
            state = moetap.RowState(states[index]) if index < len(states) else moetap.RowState.missing
            if state != moetap.RowState.present:
                break
        reasons = "; ".join(f"step {step} failed: {reason}" for step, reason in self._arrivals.failed.items())
        raise moetap.RowsNotPresent(
            f"request '{request}': the row of its token {position} is {state.name}"
            + (f" ({reasons})" if reasons else "")
        )
