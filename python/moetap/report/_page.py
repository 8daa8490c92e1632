"""The page: sections of words, drawings and tables, with the style, the script and the data inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from moetap.report import _comparisons as comparisons
from moetap.report import _sections as sections
from moetap.report._counts import RunCounts
from moetap.report._drift import Drift
from moetap.report._files import shown
from moetap.report._markup import counted, escaped, listed, ranges, whole
from moetap.report._measures import Imbalance
from moetap.report._model import Layers, Model
from moetap.report._similarity import Similarity

# Nothing is fetched, whatever a name in the page holds.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Report:
    """All that a page shows."""

    model: Model
    runs: tuple[RunCounts, ...]
    layers: tuple[Layers, ...]
    imbalances: tuple[Imbalance, ...]
    similarity: Similarity | None
    drifts: tuple[Drift, ...]


def page(report: Report) -> str:
    """The whole file."""
    names = [run.name for run in report.runs]
    shown_sections = [
        ("runs", "Runs", sections.overview(report.runs, report.imbalances)),
        ("experts", "Hot experts", sections.hot_experts(report.model, report.runs)),
        (
            "imbalance",
            "Imbalance",
            sections.imbalance_section(report.model, report.runs, report.imbalances),
        ),
        ("similarity", "Similarity", comparisons.similarity_section(report.similarity)),
        ("drift", "Drift", comparisons.drift_section(report.model, report.drifts)),
        ("missing", "Missing rows", sections.missing_section(report.runs)),
    ]
    links = "".join(f'<a href="#{ident}">{title}</a>' for ident, title, _ in shown_sections)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>Expert routes of {escaped(listed(names))} – moetap</title>",
            f"<style>{_resource('page.css')}</style></head><body>",
            _header(report),
            f'<nav aria-label="Sections">{links}</nav><main>',
            *(content for _, _, content in shown_sections),
            "</main>",
            f'<script type="application/json" id="data">{_json(_data(report))}</script>',
            f"<script>{_resource('page.js')}</script></body></html>\n",
        )
    )


def _header(report: Report) -> str:
    model = report.model
    rows = sum(run.rows for run in report.runs)
    missing = rows - sum(run.present for run in report.runs)
    requests = sum(len(run.requests) for run in report.runs)
    names = listed([f"<b>{escaped(run.name)}</b>" for run in report.runs])
    facts = [
        ("MoE layers", whole(model.num_layers), _layers_words(report)),
        ("experts per layer", whole(model.num_experts), f"from {escaped(model.experts_from)}"),
        ("picks per token and layer", whole(model.top_k), "top_k"),
        ("rows counted", whole(rows - missing), f"of {counted(requests, 'request')}"),
        ("rows missing", whole(missing), "in no figure" if missing else "every row is present"),
    ]
    items = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"
        for name, value, note in facts
    )
    return f'<header><p class="kicker">moetap</p><h1>Expert routes of {names}</h1><dl>{items}</dl></header>'


def _layers_words(report: Report) -> str:
    """Where the layers' numbers are from, and which layers of the files were left out."""
    if report.model.layer_ids is None:
        return "numbered in the order of the files"
    dense = sorted({layer for layers in report.layers for layer in layers.dense})
    if not dense:
        return "numbered as the model's"
    return f"{ranges(dense)} left out: {report.model.dense_id} in every row"


def _data(report: Report) -> dict[str, Any]:
    """What the script reads out, and what other programs can take from the page."""
    model = report.model
    return {
        "num_layers": model.num_layers,
        "num_experts": model.num_experts,
        "top_k": model.top_k,
        "layers": [model.label(i) for i in range(model.num_layers)],
        "runs": [
            _run_data(run, figures)
            for run, figures in zip(report.runs, report.imbalances, strict=True)
        ],
        "similarity": _similarity_data(report.similarity),
        "drift": [_drift_data(drift) for drift in report.drifts],
    }


def _run_data(run: RunCounts, figures: Imbalance) -> dict[str, Any]:
    drawn = run.picks[: sections.MAX_DRAWN_LAYERS, : sections.MAX_DRAWN_EXPERTS]
    return {
        "name": shown(run.name),
        "rows": run.rows,
        "present": run.present,
        "picks": drawn.tolist(),
        "max_load": _rounded(figures.max_load),
        "hottest": figures.hottest.tolist(),
        "variation": _rounded(figures.variation),
        "entropy": _rounded(figures.entropy),
        "top_share": _rounded(figures.top_share),
        "dead": figures.dead.tolist(),
    }


def _similarity_data(similarity: Similarity | None) -> dict[str, Any] | None:
    if similarity is None:
        return None
    return {
        "runs": [shown(name) for name in similarity.runs],
        "requests": [shown(name) for name in similarity.names],
        "cosine": [_rounded(row) for row in similarity.cosine],
    }


def _drift_data(drift: Drift) -> dict[str, Any]:
    return {
        "first": shown(drift.first),
        "second": shown(drift.second),
        "distance": _rounded(drift.distance),
        "noise": _rounded(drift.noise),
        "equal_picks": None if drift.equal_picks is None else _rounded(drift.equal_picks),
        "rows": drift.rows,
        "equal_rows": drift.equal_rows,
    }


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element that it is in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _resource(name: str) -> str:
    return resources.files("moetap.report").joinpath(name).read_text(encoding="utf-8")
