"""Routes and pages for the tests of the report."""

import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from moetap.report import write_report


def random_routes(
    rng: np.random.Generator,
    rows: int,
    layers: int,
    num_experts: int,
    top_k: int,
    dtype: type = np.int16,
) -> Any:
    """Distinct picks, unevenly distributed, so that no two experts or layers have the same load."""
    bias = rng.normal(0, 1, (layers, num_experts))
    noise = rng.gumbel(size=(rows, layers, num_experts))
    return np.argsort(-(bias + noise), axis=-1)[..., :top_k].astype(dtype)


def save(path: Path, ids: Any, states: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, ids)
    if states is not None:
        np.save(path.with_name(path.name.removesuffix(".npy") + ".states.npy"), np.uint8(states))
    return path


def with_dense(ids: Any, where: list[int], dense_id: int = -1) -> Any:
    """The same rows with a layer without a router before each of these indices."""
    return np.insert(ids, where, dense_id, axis=1)


class Tables(HTMLParser):
    """The text of each table's cells, by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = self.found[str(dict(attrs)["id"])] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self._rows[-1][-1] += data


class Page:
    """A page that was written, and the figures in it."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.text)
        assert found
        self.data: dict[str, Any] = json.loads(found[1])
        self.tables = Tables(self.text).found

    def column(self, table: str, head: str) -> list[float | None]:
        """The numbers of a column: without units, or None for a dash."""
        heads, *rows = self.tables[table]
        at = heads.index(head)
        return [number(row[at]) for row in rows]

    def words(self, table: str, head: str) -> list[str]:
        heads, *rows = self.tables[table]
        return [row[heads.index(head)] for row in rows]


def number(text: str) -> float | None:
    if text == "–":
        return None
    found = re.fullmatch(r"(?:expert )?([+−]?[\d,]+(?:\.\d+)?)(×|%| pp)?", text)
    assert found, text
    return float(found[1].replace(",", "").replace("−", "-"))


def page_of(directory: Path, runs: Mapping[str, Sequence[Path]], **options: Any) -> Page:
    """The page of runs, each a name with a list of files."""
    output = directory / "page.html"
    write_report(runs, output, **options)
    return Page(output)
