"""Small pieces of HTML: text, numbers, tables, legends."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from moetap.report._files import shown
from moetap.report._raster import Scale


def escaped(text: object) -> str:
    """Text of a name, as HTML."""
    return html.escape(shown(text))


def whole(number: int) -> str:
    return f"{number:,}"


def counted(number: int, word: str, many: str = "") -> str:
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def percent(part: float, digits: int = 1) -> str:
    return "–" if math.isnan(part) else f"{100 * part:.{digits}f}%"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def ranges(numbers: Iterable[int]) -> str:
    """0, 3–5 of 0, 3, 4, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def table(ident: str, heads: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """Of cells that are HTML already. The first `text` columns are words, the others numbers."""

    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="word"' if column < text else ""
        return f"<{tag}{kind}>{content}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", i, content) for i, content in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll"><table id="{ident}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>{content}</details>"


def section(ident: str, title: str, lead: str, content: str) -> str:
    return (
        f'<section id="{ident}" aria-labelledby="{ident}-title"><h2 id="{ident}-title">{title}</h2>'
        f'<p class="lead">{lead}</p>{content}</section>'
    )


def run_key(names: Sequence[str]) -> str:
    """Which colour is which run."""
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 22 10" aria-hidden="true"><path class="line run{i}" '
        f'd="M0 5h22"/></svg>{escaped(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="key">{items}</ul>'


def scale_key(
    scales: tuple[Scale, Scale], ticks: Sequence[tuple[float, str]], title: str, apart: str = ""
) -> str:
    """A colour scale with its ticks at parts of its length, and what lies apart from it."""
    bars = "".join(
        f'<span class="bar {name}" style="background:linear-gradient(90deg, {scale.css()})"></span>'
        for name, scale in zip(("on-light", "on-dark"), scales, strict=True)
    )
    marks = "".join(f'<span style="left:{100 * at:.1f}%">{label}</span>' for at, label in ticks)
    other = (
        ""
        if not apart
        else "".join(
            f'<span class="apart {name}"><i style="background:{scale.apart}"></i>{apart}</span>'
            for name, scale in zip(("on-light", "on-dark"), scales, strict=True)
        )
    )
    return (
        f'<div class="scale"><span class="scale-title">{title}</span><span class="ramp">{bars}'
        f'<span class="marks">{marks}</span></span>{other}</div>'
    )
