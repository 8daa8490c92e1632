"""The sections of a page that compare: requests with each other, and runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from moetap.report._charts import Axis, Series, grid, label_step, lines
from moetap.report._drift import Drift
from moetap.report._files import shown
from moetap.report._markup import (
    counted,
    escaped,
    folded,
    percent,
    scale_key,
    section,
    table,
    whole,
)
from moetap.report._model import Model
from moetap.report._raster import PART_DARK, PART_LIGHT, part_cells
from moetap.report._sections import NAMED_REQUESTS, extreme, labels, layer_title, panel
from moetap.report._similarity import Similarity


def similarity_section(similarity: Similarity | None) -> str:
    title = "Similarity of requests"
    if similarity is None:
        return section("similarity", title, "There are no two requests with rows to compare.", "")
    count = len(similarity.names)
    lead = (
        "The cosine of two requests' loads, averaged over the layers: 1 is the same load at every "
        "layer. Short requests look less alike than they are, since they have few picks."
    )
    if similarity.left_out:
        lead += (
            f" <b>The matrix is cut to the {count} requests with most rows; "
            f"{counted(similarity.left_out, 'request is', 'requests are')} left out.</b>"
        )
    apart = ~np.eye(count, dtype=bool)
    low = float(np.floor(similarity.cosine[apart].min() * 20) / 20)
    low = min(low, 0.95)
    names = _request_labels(similarity)
    size = max(8, min(36, 620 // count))
    drawing = grid(
        "similarity-grid",
        part_cells(similarity.cosine, low),
        (PART_LIGHT, PART_DARK),
        Axis(
            "request, in the order of the rows",
            [str(i + 1) for i in range(count)],
            label_step(count, count * size // 26),
        ),
        Axis("", names, label_step(count, count * size // 13)),
        (size, size),
        "Cosine similarity of each two requests",
    )
    key = scale_key(
        (PART_LIGHT, PART_DARK),
        [(at, f"{low + at * (1 - low):.2f}") for at in (0.0, 0.5, 1.0)],
        "cosine",
    )
    return section(
        "similarity",
        title,
        lead,
        key
        + f"<figure>{drawing}</figure>"
        + folded("Each request's most and least similar one", _nearest(similarity)),
    )


def _request_labels(similarity: Similarity) -> list[str]:
    several = len(set(similarity.runs)) > 1
    found = []
    for i, (run, name) in enumerate(zip(similarity.runs, similarity.names, strict=True)):
        full = name if run == name or not several else f"{run}: {name}"
        found.append(f"{_shortened(shown(full), 26)} · {i + 1}")
    return found


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


def _nearest(similarity: Similarity) -> str:
    count = len(similarity.names)

    def name(i: int) -> str:
        return escaped(_request_labels(similarity)[i])

    rows = []
    for i in range(count):
        others = [j for j in range(count) if j != i]
        values = similarity.cosine[i]
        best, worst = max(others, key=lambda j: values[j]), min(others, key=lambda j: values[j])
        rows.append(
            (
                name(i),
                name(best),
                name(worst),
                whole(similarity.rows[i]),
                f"{values[best]:.4f}",
                f"{values[worst]:.4f}",
                f"{values[others].mean():.4f}",
            )
        )
    heads = (
        "request",
        "most similar",
        "least similar",
        "rows",
        "highest cosine",
        "lowest cosine",
        "mean",
    )
    return table("similarity-table", heads, rows, text=3)


def drift_section(model: Model, drifts: Sequence[Drift]) -> str:
    if not drifts:
        return section("drift", "Drift", "Drift is between runs, and there is one run here.", "")
    return section(
        "drift",
        "Drift",
        "The distance compares the loads of all rows. Equal picks compare row by row, in any order "
        "of the picks: only requests of one name and one number of rows, and only rows that both "
        "runs have. The files do not hold the tokens, so these are taken to be the same.",
        "".join(_drift(model, i, drift) for i, drift in enumerate(drifts)),
    )


def _drift(model: Model, index: int, drift: Drift) -> str:
    layers, title = labels(model), layer_title(model)
    colour = index + 1
    panels = panel(
        "Jensen-Shannon distance of the loads",
        "0 is the same load, 1 is no expert in common; dashed: what chance alone gives for as many rows",
        lines(
            f"distance-{index}",
            "Jensen-Shannon distance per layer",
            [
                Series("distance", drift.distance, colour),
                Series("chance alone", drift.noise, colour, dashed=True),
            ],
            layers,
            title,
            0.0,
            reading=extreme(model, [drift.distance]),
        ),
    )
    if drift.equal_picks is not None:
        panels += panel(
            "Equal picks",
            f"part of the picks of {counted(drift.rows, 'row')} that both runs have",
            lines(
                f"equal-{index}",
                "Equal picks per layer",
                [Series("equal picks", drift.equal_picks, colour)],
                layers,
                title,
                1.0,
                reading=extreme(model, [drift.equal_picks], lowest=True),
            ),
        )
    names = f"{escaped(drift.first)} → {escaped(drift.second)}"
    return (
        f'<h3>{names}</h3><p>{_drift_words(drift)}</p><div class="panels">{panels}</div>'
        + folded("Figures per layer", _drift_table(model, index, drift))
        + _compared(index, drift)
        + _not_compared(drift)
    )


def _drift_words(drift: Drift) -> str:
    words = f"Distance: {drift.distance.mean():.3f} in the mean of the layers."
    if not drift.rows:
        return words + " <b>No row could be compared with its counterpart.</b>"
    equal = float(drift.equal_picks.mean()) if drift.equal_picks is not None else float("nan")
    return words + (
        f" Of the picks in {counted(drift.rows, 'row')} of {counted(len(drift.compared), 'request')} "
        f"{percent(equal, 2)} are equal. {counted(drift.equal_rows, 'row is', 'rows are')} equal at "
        f"every layer ({percent(drift.equal_rows / drift.rows, 2)})."
    )


def _drift_table(model: Model, index: int, drift: Drift) -> str:
    heads = (
        layer_title(model),
        "distance",
        "chance alone",
        "equal picks",
        "gained most",
        "share gained",
        "lost most",
        "share lost",
    )
    rows = (
        (
            label,
            f"{drift.distance[i]:.4f}",
            f"{drift.noise[i]:.4f}",
            "–" if drift.equal_picks is None else percent(drift.equal_picks[i], 2),
            f"expert {drift.rising[i]}",
            f"+{100 * drift.rise[i]:.2f} pp",
            f"expert {drift.falling[i]}",
            f"−{-100 * drift.fall[i]:.2f} pp",
        )
        for i, label in enumerate(labels(model))
    )
    return table(f"drift-{index}-layers", heads, rows)


def _compared(index: int, drift: Drift) -> str:
    if not drift.compared:
        return ""
    worst = sorted(drift.compared, key=lambda request: request.equal_picks if request.rows else 2.0)
    rows = (
        (
            escaped(request.name),
            whole(request.rows),
            whole(request.not_present),
            percent(request.equal_picks, 2),
            whole(request.equal_rows),
        )
        for request in worst[:NAMED_REQUESTS]
    )
    heads = ("request", "rows compared", "rows missing in either", "equal picks", "rows all equal")
    first = f", the first {NAMED_REQUESTS} of them" if len(worst) > NAMED_REQUESTS else ""
    return folded(
        f"{counted(len(worst), 'request')} compared row by row, the least equal first{first}",
        table(f"drift-{index}-requests", heads, rows),
    )


def _not_compared(drift: Drift) -> str:
    if not drift.not_compared:
        return ""
    named = drift.not_compared[:NAMED_REQUESTS]
    items = "".join(f"<li>{escaped(r.name)}: {escaped(r.reason)}</li>" for r in named)
    if (others := len(drift.not_compared) - len(named)) > 0:
        items += f"<li>and {counted(others, 'other')}</li>"
    return folded(
        f"{counted(len(drift.not_compared), 'request')} not compared row by row",
        f"<ul>{items}</ul>",
    )
