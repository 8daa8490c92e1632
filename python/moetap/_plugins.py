"""What the plugins of engines share: their switch, steps that arrive, and rows in an engine's form."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

import moetap

Transport = Literal["device", "shm"]


def transport_named(name: Any, where: str, without: str) -> Transport | None:
    """The transport of this name, or None for no name. ValueError for one that there is not.

    where: what has the name. without: how to ask for none.
    """
    if name is None or name == "":
        return None
    if name == "device":
        return "device"
    if name == "shm":
        return "shm"
    raise ValueError(f"{where} is {name!r}; it must be device or shm, or {without}")


class Arrivals:
    """Takes steps in when an engine has their outputs, and remembers which of the latest failed."""

    def __init__(self, reader: moetap.Reader) -> None:
        self._reader = reader
        self.failed: dict[int, str] = {}  # step: reason

    def take_in(self, step: int) -> None:
        """The engine has the outputs of all steps up to this one."""
        if step < 1:
            return
        try:
            self._reader.wait_for(step)
        except moetap.StepFailed as failure:
            self.failed[failure.step] = failure.reason
            if len(self.failed) > 64:  # as many as the reader knows
                del self.failed[next(iter(self.failed))]


def with_dense_layers(rows: NDArray[np.uint8], shape: moetap.ModelShape, dtype: DTypeLike) -> NDArray[Any]:
    """A reader's rows as ids: [tokens][hidden layers][top_k], 0 in dense layers."""
    ids = np.zeros((len(rows), shape.num_hidden_layers, shape.top_k), dtype)
    ids[:, list(shape.moe_layers)] = (
        rows[:, : shape.ids_bytes].view(shape.id_type).reshape(len(rows), shape.num_layers, shape.top_k)
    )
    return ids
