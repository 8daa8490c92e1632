"""The page in a headless Chromium without a network: no error, and what it reads out."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_made import Page, page_of, random_routes, save

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

# Each drawing is read at a place that the arrow keys lead to, and at one under the pointer.
PROBE = """
<script>
window.onload = () => {
  const found = { errors: window.found, width: document.documentElement.scrollWidth, read: {} };
  for (const svg of document.querySelectorAll("svg[tabindex]")) {
    const reading = () => document.getElementById(svg.id + "-reading").textContent;
    const key = (name) => svg.dispatchEvent(new KeyboardEvent("keydown", { key: name }));
    const of = (found.read[svg.id] = { first: reading() });
    svg.focus();
    of.focused = document.activeElement === svg;
    key("ArrowRight"); key("ArrowRight"); key("ArrowDown"); key("ArrowUp"); key("ArrowDown");
    of.keys = reading();
    key("End"); key("ArrowRight");
    of.end = reading();
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal ? box.width / svg.viewBox.baseVal.width : 1;
    const grid = svg.dataset.cellX !== undefined;
    const column = 1;
    const wide = grid ? Number(svg.dataset.cellX) : Number(svg.dataset.width) / Number(svg.dataset.columns);
    svg.dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + (Number(svg.dataset.x) + (column + 0.5) * wide) * (grid ? 1 : scale),
      clientY: box.top + (grid ? Number(svg.dataset.y) + 2.5 * Number(svg.dataset.cellY) : 10),
    }));
    of.pointer = reading();
  }
  for (const image of document.querySelectorAll("svg image")) {
    if (!image.href.baseVal.startsWith("data:image/png;base64,")) found.errors.push(image.href.baseVal);
  }
  found.ground = getComputedStyle(document.body).backgroundColor;
  document.body.innerHTML = "";
  document.body.append("FOUND" + JSON.stringify(found) + "END");
};
</script>
"""
LISTEN = """<script>
window.found = [];
addEventListener("error", (event) => found.push(event.message), true);
addEventListener("securitypolicyviolation", (event) => found.push(event.violatedDirective));
</script>"""


def visit(tmp_path: Path, text: str, *options: str) -> Any:
    """What the probe found, after a look at what Chromium wrote to its log."""
    page = tmp_path / "probed.html"
    page.write_text(
        text.replace("<head>", "<head>" + LISTEN, 1).replace("</body>", PROBE + "</body>", 1),
        encoding="utf-8",
    )
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--proxy-server=127.0.0.1:9",
        "--dump-dom",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == [], console
    found = re.search("FOUND(.*)END", done.stdout)
    assert found, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    rng = np.random.default_rng(0)
    for name in ("r0", "r1"):
        ids = random_routes(rng, 40, 6, 12, 3)
        save(tmp_path / "before" / f"{name}.npy", ids)
        ids[::4] = random_routes(rng, 10, 6, 12, 3)
        save(tmp_path / "after" / f"{name}.npy", ids)
    return page_of(tmp_path, {name: [tmp_path / name] for name in ("before", "after")})


def test_it_has_no_error_and_reads_out_its_figures(tmp_path: Path, page: Page) -> None:
    found = visit(tmp_path, page.text)
    assert found["errors"] == []
    read, data = found["read"], page.data
    assert set(read) == {
        "heat-0",
        "heat-1",
        "panel-max_load",
        "panel-variation",
        "panel-entropy",
        "panel-top_share",
        "panel-dead",
        "similarity-grid",
        "distance-0",
        "equal-0",
    }
    assert all(of["focused"] for of in read.values())
    for index, run in enumerate(data["runs"]):
        # The first key shows the first cell, and the others lead from there.
        for place, (layer, expert) in {"keys": (1, 1), "end": (1, 11), "pointer": (2, 1)}.items():
            picks = run["picks"][layer][expert]
            mean = run["present"] * 3 / 12
            assert read[f"heat-{index}"][place].startswith(
                f"layer {layer}, expert {expert}: {picks} picks, {picks / mean:.2f}× the mean"
            )
    before, after = data["runs"]
    assert (
        read["panel-dead"]["keys"]
        == f"layer 1: before {before['dead'][1]}, after {after['dead'][1]}"
    )
    assert read["panel-entropy"]["end"].startswith(f"layer 5: before {before['entropy'][5]:.4f}")
    cosine = data["similarity"]["cosine"]
    assert (
        read["similarity-grid"]["pointer"] == f"after: r0 and before: r1: cosine {cosine[2][1]:.4f}"
    )
    drift = data["drift"][0]
    assert read["distance-0"]["pointer"].startswith(f"layer 1: distance {drift['distance'][1]:.4f}")
    assert read["equal-0"]["end"] == f"layer 5: {100 * drift['equal_picks'][5]:.2f}% equal"


def test_what_reaches_out_is_noticed(tmp_path: Path, page: Page) -> None:
    text = page.text.replace("</main>", '<img src="https://moetap.invalid/x.png"></main>')
    with pytest.raises(AssertionError, match="moetap.invalid.*violates"):
        visit(tmp_path, text)


def test_a_narrow_page_does_not_scroll_sideways(tmp_path: Path, page: Page) -> None:
    assert visit(tmp_path, page.text, "--window-size=500,900")["width"] <= 500


def test_it_follows_the_colour_scheme(tmp_path: Path, page: Page) -> None:
    light = visit(tmp_path, page.text)["ground"]
    dark = visit(tmp_path, page.text, "--force-dark-mode")["ground"]
    assert (light, dark) == ("rgb(244, 246, 248)", "rgb(14, 19, 24)")
