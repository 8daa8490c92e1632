"""The drawings of a page, as SVG. page.js adds what a pointer or the arrow keys read from them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moetap.report._raster import Cells, Scale, data_url

Values = Sequence[float] | npt.NDArray[np.float64] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    name: str
    values: Values  # [layers]
    colour: int  # 0 to 7: of the run
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """A matrix's rows or columns, and the ticks along them."""

    title: str
    labels: Sequence[str]
    every: int  # of the labels, one is drawn


def grid(
    ident: str,
    cells: Cells,
    scales: tuple[Scale, Scale],
    x: Axis,
    y: Axis,
    cell: tuple[int, int],
    title: str,
) -> str:
    """A matrix with its axes; `cell` is the size of one in pixels."""
    rows, columns = cells.shape
    width, height = columns * cell[0], rows * cell[1]
    left = 30 + 7 * max(len(label) for label in y.labels)
    top = 6
    images = "".join(
        f'<image class="{name}" x="{left}" y="{top}" width="{width}" height="{height}" '
        f'preserveAspectRatio="none" href="{data_url(cells, scale)}"/>'
        for name, scale in zip(("on-light", "on-dark"), scales, strict=True)
    )
    body = [f'<g class="cells">{images}</g>', _frame(left, top, width, height)]
    for i in range(0, columns, x.every):
        at = left + (i + 0.5) * cell[0]
        body.append(_text(at, top + height + 16, x.labels[i], "middle"))
        body.append(f'<path class="tick" d="M{at:.1f} {top + height}v4"/>')
    for i in range(0, rows, y.every):
        at = top + (i + 0.5) * cell[1]
        body.append(_text(left - 8, at + 3.5, y.labels[i], "end"))
        body.append(f'<path class="tick" d="M{left} {at:.1f}h-4"/>')
    body.append(_text(left + width / 2, top + height + 36, x.title, "middle", "axis"))
    body.append(_upright(13, top + height / 2, y.title))
    body.append(
        f'<rect class="cursor" x="0" y="0" width="{max(cell[0], 4)}" height="{max(cell[1], 4)}"/>'
    )
    return (
        f'<div class="scroll"><svg id="{ident}" class="grid" tabindex="0" role="img" '
        f'aria-label="{html.escape(title)}" width="{left + width + 14}" height="{top + height + 44}" '
        f'data-x="{left}" data-y="{top}" data-columns="{columns}" data-rows="{rows}" '
        f'data-cell-x="{cell[0]}" data-cell-y="{cell[1]}">{"".join(body)}</svg></div>'
        f'<p class="reading" id="{ident}-reading" aria-live="polite"></p>'
    )


_WIDTH, _HEIGHT = 540, 196
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 40


def lines(
    ident: str,
    title: str,
    series: Sequence[Series],
    labels: Sequence[str],
    x_title: str,
    even: float | None = None,
    whole: bool = False,
    reading: str = "",
) -> str:
    """One line per series over the layers. even: a value that is drawn as a line of its own.

    reading: what stands below until the script reads out a layer.
    """
    drawn = [*series, *([] if even is None else [Series("", [even], 0)])]
    ticks = _ticks(
        min(float(np.min(s.values)) for s in drawn),
        max(float(np.max(s.values)) for s in drawn),
        whole,
    )
    low, high = ticks[0], ticks[-1]
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    count = len(labels)

    def x(i: float) -> float:
        return _LEFT + (i + 0.5) * width / count

    def y(value: float) -> float:
        return _TOP + height * (1 - (value - low) / (high - low))

    body = []
    for tick in ticks:
        body.append(f'<path class="rule" d="M{_LEFT} {y(tick):.1f}h{width}"/>')
        body.append(_text(_LEFT - 7, y(tick) + 3.5, _short(tick), "end"))
    for i in range(0, count, label_step(count, 12)):
        body.append(_text(x(i), _TOP + height + 16, labels[i], "middle"))
    body.append(_text(_LEFT + width / 2, _HEIGHT - 5, x_title, "middle", "axis"))
    if even is not None:
        body.append(f'<path class="even" d="M{_LEFT} {y(even):.1f}h{width}"/>')
    for s in series:
        body.append(_line(s, [(x(i), y(float(v))) for i, v in enumerate(s.values)]))
    body.append(f'<path class="cursor" d="M0 {_TOP}v{height}"/>')
    return (
        f'<svg id="{ident}" class="lines" tabindex="0" role="img" aria-label="{html.escape(title)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" data-x="{_LEFT}" data-width="{width}" '
        f'data-columns="{count}">{"".join(body)}</svg>'
        f'<p class="reading" id="{ident}-reading" aria-live="polite">{html.escape(reading)}</p>'
    )


def _line(series: Series, points: Sequence[tuple[float, float]]) -> str:
    dashed = " dashed" if series.dashed else ""
    if len(points) == 1:
        ((x, y),) = points
        return f'<circle class="run{series.colour}{dashed}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = ""
    if len(points) <= 64 and not series.dashed:
        dots = "".join(
            f'<circle class="run{series.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
            for x, y in points
        )
    return f'<path class="line run{series.colour}{dashed}" d="M{path}"/>{dots}'


def label_step(count: int, most: int) -> int:
    """Every how many of `count` labels one is drawn, so that there are about `most`."""
    for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1024):
        if count <= most * step:
            return step
    return count


def _ticks(low: float, high: float, whole: bool) -> list[float]:
    """Three to six round values that enclose both."""
    if high - low < 1e-9:
        low, high = low - (abs(low) or 1) / 20, high + (abs(high) or 1) / 20
        low = max(low, 0.0)
    size = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = next(size * k for k in (1, 2, 5, 10, 20) if (high - low) / (size * k) <= 4.001)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> str:
    return f"{value:.6g}" if value else "0"


def _frame(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _upright(x: float, y: float, text: str) -> str:
    return (
        f'<text class="axis" text-anchor="middle" transform="translate({x} {y:.1f}) rotate(-90)">'
        f"{html.escape(text)}</text>"
    )
