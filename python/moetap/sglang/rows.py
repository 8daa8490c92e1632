"""Rows by KV-cache slot, and which step computed each slot last. Knows nothing of SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap._plugins import Arrivals, Transport, with_dense_layers

# Steps whose rows may be on their way. SGLang starts a step before it takes the one before it in.
STEPS_IN_FLIGHT = 3


@dataclass(frozen=True)
class Published:
    """A step on its way to the scheduler."""

    step: int
    slots: NDArray[np.int64]  # of its tokens


class SlotRows:
    """Both ends of one engine: SGLang's scheduler runs in its worker's process.

    The reader takes a step in when the engine has its output, and not before. So a step in flight
    cannot overwrite rows that are still to be read. A row counts only if the last step that computed
    its slot delivered it. If that step failed, the row is missing, whatever the slot held before.
    """

    def __init__(self, endpoint: moetap.Endpoint, transport: Transport) -> None:
        self._endpoint = endpoint
        self._capturer = moetap.Capturer(endpoint, "host", transport=transport)
        self._capturer.bind_all()
        self._reader = moetap.Reader(endpoint, transport)
        self._steps = np.zeros(endpoint.num_slots, np.uint64)  # by slot; no step is 0
        self._step = 0
        self._arrivals = Arrivals(self._reader)

    def publish(self, picks: Mapping[int, NDArray[Any]], slots: NDArray[np.int64]) -> Published:
        """A forward pass ended. picks: [tokens][top_k] of each layer that was captured.

        If a layer is not there the step fails, and its rows are missing. RangeError, and no step,
        for too many tokens or a slot that there is not.
        """
        self._require_slots(slots)
        if len(slots) > self._endpoint.max_tokens:
            raise moetap.RangeError(
                f"a forward pass computed {len(slots)} tokens, and the largest is {self._endpoint.max_tokens}"
            )
        self._step += 1
        # Steps that the engine never takes in must not fill the ring.
        self._arrivals.take_in(self._step - STEPS_IN_FLIGHT)
        with self._capturer.step(self._step, len(slots)) as open_step:
            for layer, ids in picks.items():
                self._capturer.capture(layer, ids)
            open_step.publish(slots)
        return Published(self._step, slots)

    def take_in(self, published: Published) -> None:
        """The engine has the output of this step."""
        self._arrivals.take_in(published.step)
        slots = published.slots
        self._steps[slots] = np.maximum(self._steps[slots], np.uint64(published.step))

    def read(self, slots: NDArray[np.int64], start: int) -> NDArray[np.int32]:
        """The rows in these slots, of tokens from position `start` on: [tokens][hidden layers][top_k].

        0 in dense layers. RowsNotPresent, which names the first, if a row is not there.
        """
        self._require_slots(slots)
        rows, states = self._reader.read(slots, np.repeat(self._steps[slots, None], 2, axis=1))
        absent = np.flatnonzero(states != int(moetap.RowState.present))
        if len(absent):
            self._raise_absent(int(slots[absent[0]]), moetap.RowState(states[absent[0]]), start + int(absent[0]))
        return with_dense_layers(rows, self._endpoint.shape, np.int32)

    def close(self) -> None:
        """The engine ends."""
        self._reader.close()
        self._capturer.close()

    def _require_slots(self, slots: NDArray[np.int64]) -> None:
        outside = (slots < 0) | (slots >= len(self._steps))
        if outside.any():
            raise moetap.RangeError(f"slot {slots[outside][0]} is outside [0, {len(self._steps)}), the slots of "
                                    "the KV cache: num_tokens must be their number")

    def _raise_absent(self, slot: int, state: moetap.RowState, position: int) -> None:
        step = int(self._steps[slot])
        if step == 0:
            why = "no forward pass computed this slot"
        elif step in self._arrivals.failed:
            why = f"step {step} failed: {self._arrivals.failed[step]}"
        else:
            why = f"step {step} computed this slot last"
        name = "missing" if step == 0 else state.name
        raise moetap.RowsNotPresent(f"the row of token {position}, in slot {slot}, is {name}: {why}")
