"""The sections of a page, each from the figures that it shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from moetap.report._charts import Axis, Series, grid, label_step, lines
from moetap.report._counts import Request, RunCounts
from moetap.report._files import Ids, shown
from moetap.report._markup import (
    counted,
    escaped,
    folded,
    listed,
    percent,
    run_key,
    scale_key,
    section,
    table,
    whole,
)
from moetap.report._measures import Floats, Imbalance, load, top_count
from moetap.report._model import Model
from moetap.report._raster import (
    LOAD_DARK,
    LOAD_LIGHT,
    load_cells,
)

MAX_DRAWN_LAYERS = 512  # of a heat map
MAX_DRAWN_EXPERTS = 1024
_VARIATION = "standard deviation of the experts' picks over their mean; 0 is even"
NAMED_REQUESTS = 50  # of a list; the others are counted


def overview(runs: Sequence[RunCounts], imbalances: Sequence[Imbalance]) -> str:
    rows = [
        (
            escaped(run.name),
            whole(len(run.requests)),
            whole(run.rows),
            whole(run.rows - run.present),
            f"{figures.max_load.mean():.2f}×",
            f"{figures.max_load.max():.2f}×",
            f"{figures.variation.mean():.2f}",
            whole(int(figures.dead.sum())),
        )
        for run, figures in zip(runs, imbalances, strict=True)
    ]
    heads = (
        "run",
        "requests",
        "rows",
        "rows missing",
        "hottest expert (mean)",
        "hottest expert (worst layer)",
        "variation (mean)",
        "without a pick (all layers)",
    )
    return section(
        "runs",
        "Runs",
        "A row is all picks of one token. Missing rows are counted here, and are in no other figure. "
        "The hottest expert's load is a multiple of its layer's mean; means are over the layers.",
        table("runs-table", heads, rows),
    )


def hot_experts(model: Model, runs: Sequence[RunCounts]) -> str:
    lead = (
        "Each cell is one expert of one layer. Its load is its picks as a multiple of the layer's "
        "mean: 1× is an even load."
    )
    if cut := _cut(model):
        lead += f" <b>{cut}</b>"
    key = scale_key(
        (LOAD_LIGHT, LOAD_DARK),
        [(i / 6, tick) for i, tick in enumerate(("⅛×", "¼×", "½×", "1×", "2×", "4×", "8×"))],
        "load",
        "no pick",
    )
    return section(
        "experts",
        "Hot experts",
        lead,
        key + "".join(_heat_map(model, i, run) for i, run in enumerate(runs)),
    )


def _cut(model: Model) -> str:
    parts = []
    if model.num_layers > MAX_DRAWN_LAYERS:
        parts.append(f"the first {MAX_DRAWN_LAYERS} of {model.num_layers} layers")
    if model.num_experts > MAX_DRAWN_EXPERTS:
        parts.append(f"the first {MAX_DRAWN_EXPERTS} of {model.num_experts:,} experts")
    if not parts:
        return ""
    return f"The drawing is cut to {listed(parts)}. All other figures are of all."


def _heat_map(model: Model, index: int, run: RunCounts) -> str:
    cells = load_cells(load(run.picks)[:MAX_DRAWN_LAYERS, :MAX_DRAWN_EXPERTS])
    rows, columns = cells.shape
    size = max(2, min(32, 1072 // columns)), max(2, min(16, 520 // rows))
    drawing = grid(
        f"heat-{index}",
        cells,
        (LOAD_LIGHT, LOAD_DARK),
        Axis(
            "expert", [str(i) for i in range(columns)], label_step(columns, columns * size[0] // 56)
        ),
        Axis(layer_title(model), labels(model)[:rows], label_step(rows, rows * size[1] // 15)),
        size,
        f"Load of each expert at each layer in {shown(run.name)}",
    )
    note = f"{counted(run.present, 'row')} of {counted(len(run.requests), 'request')}"
    return f"<figure><figcaption><b>{escaped(run.name)}</b> {note}</figcaption>{drawing}</figure>"


def imbalance_section(
    model: Model, runs: Sequence[RunCounts], imbalances: Sequence[Imbalance]
) -> str:
    top = top_count(model.num_experts)
    even = top / model.num_experts
    of_layer = [
        ("max_load", "Hottest expert", "its picks as a multiple of the mean; 1 is even", 1.0),
        ("variation", "Coefficient of variation", _VARIATION, None),
        ("entropy", "Entropy", "of the load, as a part of an even load's; 1 is even", 1.0),
        ("top_share", f"Share of the hottest {counted(top, 'expert')}",
         f"part of the layer's picks; {even:.3g} is even", even),
        ("dead", "Experts without a pick", f"of {model.num_experts:,}", None),
    ]  # fmt: skip
    names = [run.name for run in runs]
    panels = "".join(
        panel(title, note, _imbalance_lines(model, names, imbalances, field, title, at))
        for field, title, note, at in of_layer
    )
    tables = "".join(
        folded(f"Figures of {escaped(name)}, per layer", _layer_table(model, i, figures))
        for i, (name, figures) in enumerate(zip(names, imbalances, strict=True))
    )
    return section(
        "imbalance",
        "Load imbalance per layer",
        "With few rows the load looks uneven by chance alone: compare runs of similar length.",
        run_key(names) + f'<div class="panels">{panels}</div>{tables}',
    )


def _imbalance_lines(
    model: Model,
    names: Sequence[str],
    imbalances: Sequence[Imbalance],
    field: str,
    title: str,
    even: float | None,
) -> str:
    """One figure of all runs: a field of Imbalance."""
    values = [getattr(figures, field) for figures in imbalances]
    return lines(
        f"panel-{field}",
        title,
        [
            Series(name, of_run, i)
            for i, (name, of_run) in enumerate(zip(names, values, strict=True))
        ],
        labels(model),
        layer_title(model),
        even,
        whole=field == "dead",
        reading=extreme(model, values, names, lowest=field == "entropy"),
    )


def extreme(
    model: Model, values: Sequence[Floats | Ids], names: Sequence[str] = (), lowest: bool = False
) -> str:
    """Where the highest of the values is, [runs][layers], and in which run if there are names."""
    found = np.array(values, dtype=np.float64)
    if not found.any():
        return "0 at every layer."
    place = found.argmin() if lowest else found.argmax()
    run, layer = (int(i) for i in np.unravel_index(place, found.shape))
    word = "Lowest" if lowest else "Highest"
    of_run = f"{shown(names[run])}, " if names else ""
    return f"{word}: {found[run, layer]:.4g} in {of_run}layer {model.label(layer)}."


def panel(title: str, note: str, drawing: str) -> str:
    return f"<figure><figcaption><b>{title}</b> {note}</figcaption>{drawing}</figure>"


def _layer_table(model: Model, index: int, figures: Imbalance) -> str:
    heads = (
        layer_title(model),
        "hottest expert",
        "its load",
        "variation",
        "entropy",
        f"share of the hottest {top_count(model.num_experts)}",
        "without a pick",
    )
    rows = (
        (
            label,
            whole(int(figures.hottest[i])),
            f"{figures.max_load[i]:.3f}×",
            f"{figures.variation[i]:.3f}",
            f"{figures.entropy[i]:.4f}",
            percent(figures.top_share[i], 2),
            whole(int(figures.dead[i])),
        )
        for i, label in enumerate(labels(model))
    )
    return table(f"layers-{index}", heads, rows)


def missing_section(runs: Sequence[RunCounts]) -> str:
    found = [(run, request) for run in runs for request in run.requests if request.missing]
    if not found:
        return section("missing", "Missing rows", "Every row of every run is present.", "")
    found.sort(key=lambda pair: -pair[1].missing)
    rows = [
        (
            escaped(run.name),
            escaped(request.name),
            _gaps(request),
            whole(request.missing),
            whole(request.rows),
        )
        for run, request in found[:NAMED_REQUESTS]
    ]
    lead = (
        "These rows are in no figure above. Their positions are counted from the file's first row."
    )
    if (others := len(found) - len(rows)) > 0:
        lead += f" <b>{counted(others, 'other request')} with missing rows not listed.</b>"
    heads = ("run", "request", "rows", "missing", "of")
    return section("missing", "Missing rows", lead, table("missing-table", heads, rows, text=3))


def _gaps(request: Request) -> str:
    parts = []
    for gap in request.gaps:
        where = str(gap.start) if gap.end - gap.start == 1 else f"{gap.start}–{gap.end - 1}"
        parts.append(where if gap.reason == "missing" else f"{where} ({gap.reason})")
    if request.other_gaps:
        parts.append(f"and {counted(request.other_gaps, 'other range')}")
    return ", ".join(parts)


def labels(model: Model) -> list[str]:
    return [str(model.label(i)) for i in range(model.num_layers)]


def layer_title(model: Model) -> str:
    return "MoE layer" if model.layer_ids is None else "layer"
