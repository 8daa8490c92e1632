"""Matrices as small PNG images, one pixel a cell, with a palette for each colour scheme.

The load scale diverges from the mean, in blue and orange; the scale of parts has one hue. Both stay
readable with any colour vision, since they also differ in lightness from end to end.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]
Stops = Sequence[tuple[float, str]]

OCTAVES = 3.0  # the load scale ends at an eighth and at eight times the mean
_STEPS = 255  # colours of a scale; index 0 is apart


@dataclass(frozen=True)
class Scale:
    """Colours from 0 to 1, and one for cells that have no place on the scale."""

    apart: str
    stops: Stops

    def css(self) -> str:
        """The scale as a CSS gradient."""
        return ", ".join(f"{colour} {100 * at:.1f}%" for at, colour in self.stops)

    def palette(self) -> bytes:
        at = [place for place, _ in self.stops]
        colours = np.array([_rgb(colour) for _, colour in self.stops], np.float64)
        places = np.linspace(0, 1, _STEPS)
        channels = [np.interp(places, at, colours[:, c]) for c in range(3)]
        table = np.vstack([np.array([_rgb(self.apart)]), np.rint(np.stack(channels, axis=1))])
        return table.astype(np.uint8).tobytes()


LOAD_LIGHT = Scale(
    "#b06a9c",
    [
        (0.0, "#08407a"),
        (0.25, "#5b9bd1"),
        (0.5, "#f1efe9"),
        (0.75, "#ee8a2a"),
        (1.0, "#7a2600"),
    ],
)
LOAD_DARK = Scale(
    "#8a4d78",
    [
        (0.0, "#c3e2ff"),
        (0.25, "#3d86c6"),
        (0.5, "#1f262e"),
        (0.75, "#d5741c"),
        (1.0, "#ffe3b8"),
    ],
)
PART_LIGHT = Scale(
    "#b06a9c",
    [
        (0.0, "#f3f5ee"),
        (0.35, "#a9d5c5"),
        (0.7, "#2f8c93"),
        (1.0, "#0c3352"),
    ],
)
PART_DARK = Scale(
    "#8a4d78",
    [
        (0.0, "#18202a"),
        (0.35, "#1c5166"),
        (0.7, "#3aa79b"),
        (1.0, "#e4f6cf"),
    ],
)


def load_cells(load: npt.NDArray[np.float64]) -> Cells:
    """Palette indices of loads: 0 without a pick, else by the logarithm of the load."""
    with np.errstate(divide="ignore"):
        place = (np.log2(load) + OCTAVES) / (2 * OCTAVES)
    return np.where(load > 0, _index(np.where(load > 0, place, 0.0)), 0).astype(np.uint8)


def part_cells(parts: npt.NDArray[np.float64], low: float) -> Cells:
    """Palette indices of values from `low` to 1."""
    return _index((parts - low) / (1 - low) if low < 1 else np.ones_like(parts))


def _index(place: npt.NDArray[np.float64]) -> Cells:
    return (1 + np.rint(np.clip(place, 0, 1) * (_STEPS - 1))).astype(np.uint8)


def png(cells: Cells, palette: bytes) -> bytes:
    """A PNG file: https://www.w3.org/TR/png-3/, 8-bit palette, no filter."""
    height, width = cells.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: 0, none
    lines[:, 1:] = cells
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def data_url(cells: Cells, scale: Scale) -> str:
    return "data:image/png;base64," + base64.b64encode(png(cells, scale.palette())).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def _rgb(colour: str) -> Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
