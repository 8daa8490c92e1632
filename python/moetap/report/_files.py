"""One file of routes: what its header says, and its rows in blocks of bounded size.

The files are those of to_npy() and `moetap dump`: NumPy format 1.0, C order, little-endian, of shape
(rows, layers, top_k). Beside X.npy there may be X.states.npy, which says for each row whether it is
present, and X.weights.npy, which is not read here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from moetap._errors import ArgumentError

Ids = npt.NDArray[np.int64]

ID_TYPES = ("|u1", "<u2", "<i2", "<i4", "<i8")
STATES = ("present", "missing", "stale", "clobbered", "unverified")  # as in moetap.RowState
MAX_LAYERS = 1024  # as of moetap.ModelShape
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?\w{1,16})', 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]{1,18}(?:, ?|(?=\))))*)\), \} *\n",
    re.ASCII,
)
_BLOCK_IDS = 1 << 18  # ids in memory at a time: 2 MiB as int64


def shown(text: object) -> str:
    """Text of a file name or a header as one printable line."""
    line = str(text).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


@dataclass(frozen=True)
class RouteFile:
    """A file of one request's routes, whose header and size are sound. Its ids are not read yet."""

    request: str
    path: Path
    rows: int
    layers: int
    top_k: int
    dtype: np.dtype[np.generic] = field(repr=False)
    data: int = field(repr=False)  # where the first id is
    identity: tuple[int, int, int, int] = field(repr=False)
    states: npt.NDArray[np.uint8] | None = field(repr=False)  # of each row, if it came with them

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows, self.layers, self.top_k

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, Ids]]:
        """(position of the first row, ids [n][layers][top_k]) until all rows were given.

        rows: the most rows of a block; by default as many as 2 MiB hold, at least one.
        ArgumentError if the file is no longer the one whose header was read.
        """
        width = self.layers * self.top_k
        step = rows or max(1, _BLOCK_IDS // width)
        with open(self.path, "rb") as file:
            if _identity(file) != self.identity:
                raise ArgumentError(self._changed())
            file.seek(self.data)
            for start in range(0, self.rows, step):
                count = min(step, self.rows - start) * width
                block = np.fromfile(file, self.dtype, count)
                if block.size != count:
                    raise ArgumentError(self._changed())
                yield start, block.reshape(-1, self.layers, self.top_k).astype(np.int64)
            if _identity(file) != self.identity:
                raise ArgumentError(self._changed())

    def _changed(self) -> str:
        return f"{shown(self.path)} changed while it was read: report on it once it is whole"


def read_header(path: Path, request: str, states: Path | None = None) -> RouteFile:
    """Reads the header of a file of routes, and the states beside it if there are any.

    ArgumentError if either is not what moetap writes; OSError if it cannot be read.
    """
    with _open(path) as file:
        shape, dtype = _header(file, path)
        if len(shape) != 3:
            raise ArgumentError(
                f"{shown(path)}: an array of {len(shape)} dimensions, {shape}; routes have 3: "
                f"(rows, layers, top_k)"
            )
        if dtype not in ID_TYPES:
            raise ArgumentError(
                f"{shown(path)}: an array of '{dtype}'; expert ids are one of "
                f"{', '.join(ID_TYPES)}. Give the file of the ids, not the one of the weights"
            )
        rows, layers, top_k = shape
        if not 1 <= layers <= MAX_LAYERS or top_k < 1:
            raise ArgumentError(
                f"{shown(path)}: an array of {layers} layers and top_k {top_k}; there must be 1 to "
                f"{MAX_LAYERS} layers, and a top_k of at least 1"
            )
        data = file.tell()
        identity = _identity(file)
        _require_size(path, identity[2] - data, rows * layers * top_k * np.dtype(dtype).itemsize)
    of_rows = None if states is None else _read_states(states, rows)
    return RouteFile(request, path, rows, layers, top_k, np.dtype(dtype), data, identity, of_rows)


def _read_states(path: Path, rows: int) -> npt.NDArray[np.uint8]:
    with _open(path) as file:
        shape, dtype = _header(file, path)
        if shape != (rows,) or dtype != "|u1":
            raise ArgumentError(
                f"{shown(path)}: an array of '{dtype}' and shape {shape} beside {rows} rows; "
                f"the states of the rows are '|u1' of shape ({rows},). Dump both files again"
            )
        _require_size(path, _identity(file)[2] - file.tell(), rows)
        states = np.fromfile(file, np.uint8, rows)
    if states.size != rows:
        raise ArgumentError(f"{shown(path)} changed while it was read")
    if (unknown := states[states >= len(STATES)]).size:
        raise ArgumentError(
            f"{shown(path)}: state {unknown[0]}; the states are 0 to {len(STATES) - 1}: "
            f"{', '.join(STATES)}"
        )
    return states


def _open(path: Path) -> BinaryIO:
    """Of a plain file only: another kind could block, or end without saying so."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ArgumentError(f"{shown(path)} is not a plain file: copy its routes to one")
    return open(path, "rb")


def _header(file: BinaryIO, path: Path) -> tuple[tuple[int, ...], str]:
    """The shape and the type's name, of an array in C order.

    NumPy and moetap write these three keys in this order. NumPy's reader takes more than that, and
    raises many kinds of errors for what is damaged.
    """
    head = file.read(10)
    size = int.from_bytes(head[8:], "little")
    text = file.read(size).decode("latin-1")
    found = _HEADER.fullmatch(text)
    if head[:8] != _MAGIC or len(head) < 10 or found is None:
        raise ArgumentError(
            f"{shown(path)} does not begin as a .npy file of format 1.0 does: "
            f"{shown(head + text[:200].encode('latin-1'))}. Write it with numpy.save()"
        )
    dtype, fortran_order, lengths = found.groups()
    if fortran_order == "True":
        raise ArgumentError(
            f"{shown(path)}: an array in Fortran order; save numpy.ascontiguousarray() of it"
        )
    if dtype.startswith(">"):
        raise ArgumentError(
            f"{shown(path)}: an array of '{dtype}', big-endian; save it as '<{dtype[1:]}'"
        )
    return tuple(int(length) for length in lengths.replace(",", " ").split()), dtype


def _require_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise ArgumentError(
            f"{shown(path)}: {found} bytes after the header, and the shape needs {expected}: the "
            f"file was cut, or more was appended to it"
        )


def _identity(file: BinaryIO) -> tuple[int, int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
