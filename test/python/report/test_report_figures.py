"""The figures of a page against plain recomputations."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moetap.report._drift import equal_picks
from moetap.report._measures import imbalance, js_distance, js_noise
from report_made import Page, page_of, random_routes, save, with_dense

LAYERS, EXPERTS, TOP_K = 5, 24, 3


def counted(
    files: Iterable[Any], layers: int = LAYERS, num_experts: int = EXPERTS
) -> list[list[int]]:
    """Picks by layer and expert, of the rows that have no -1."""
    picks: list[Counter[int]] = [Counter() for _ in range(layers)]
    for ids in files:
        for row in ids.tolist():
            if any(expert == -1 for picked in row for expert in picked):
                continue
            for layer, picked in enumerate(row):
                picks[layer].update(picked)
    return [[of_layer[expert] for expert in range(num_experts)] for of_layer in picks]


def plain_entropy(p: Sequence[float]) -> float:
    return -sum(x * math.log2(x) for x in p if x > 0)


def plain_distance(a: Sequence[int], b: Sequence[int]) -> float:
    p, q = [x / sum(a) for x in a], [x / sum(b) for x in b]
    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    divergence = plain_entropy(middle) - (plain_entropy(p) + plain_entropy(q)) / 2
    return math.sqrt(max(0.0, divergence))


def runs_of(tmp_path: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Two runs with missing rows, one in each form; equal for some rows. {run: {request: ids}}"""
    rng = np.random.default_rng(seed)
    before = {f"r{i}": random_routes(rng, 40 + 7 * i, LAYERS, EXPERTS, TOP_K) for i in range(3)}
    after = {name: ids.copy() for name, ids in before.items()}
    for ids in after.values():
        ids[::3] = random_routes(rng, len(ids[::3]), LAYERS, EXPERTS, TOP_K)
        ids[:, 1, ::-1] = ids[:, 1].copy()  # the order of the picks does not count
    before["r0"][4:9] = -1
    before["r1"][11] = -1
    after["r0"][8:10] = -1
    after["r2"] = after["r2"][:-2]
    after["r9"] = random_routes(rng, 5, LAYERS, EXPERTS, TOP_K)
    for name, ids in before.items():
        save(tmp_path / "before" / f"{name}.npy", ids)
    for name, ids in after.items():
        save(tmp_path / "after" / f"{name}.npy", with_dense(ids, [0, 0, 3]).astype(np.int32))
    return {"before": before, "after": after}


def page_of_runs(tmp_path: Path) -> Page:
    runs = {name: [tmp_path / name] for name in ("before", "after")}
    return page_of(tmp_path, runs, num_experts=EXPERTS)


@pytest.mark.parametrize("seed", range(5))
def test_load_and_imbalance_are_as_recomputed(tmp_path: Path, seed: int) -> None:
    runs = runs_of(tmp_path, seed)
    page = page_of_runs(tmp_path)
    for index, (name, files) in enumerate(runs.items()):
        of_run = page.data["runs"][index]
        picks = counted(files.values())
        assert of_run["name"] == name
        assert of_run["picks"] == picks
        table = f"layers-{index}"
        for layer, of_layer in enumerate(picks):
            mean = sum(of_layer) / EXPERTS
            spread = math.sqrt(sum((x - mean) ** 2 for x in of_layer) / EXPERTS)
            entropy = plain_entropy([x / sum(of_layer) for x in of_layer]) / math.log2(EXPERTS)
            top = sum(sorted(of_layer)[-3:]) / sum(of_layer)  # 2.4 experts, rounded up
            expected = {
                "its load": (max(of_layer) / mean, 5e-4),
                "hottest expert": (of_layer.index(max(of_layer)), 0),
                "variation": (spread / mean, 5e-4),
                "entropy": (entropy, 5e-5),
                "share of the hottest 3": (100 * top, 5e-3),
                "without a pick": (of_layer.count(0), 0),
            }
            for head, (value, error) in expected.items():
                assert page.column(table, head)[layer] == pytest.approx(value, abs=error + 1e-9)
            assert of_run["max_load"][layer] == pytest.approx(max(of_layer) / mean, rel=1e-5)
            assert of_run["variation"][layer] == pytest.approx(spread / mean, rel=1e-5)
            assert of_run["entropy"][layer] == pytest.approx(entropy, rel=1e-5)
            assert of_run["top_share"][layer] == pytest.approx(top, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_drift_is_as_recomputed(tmp_path: Path, seed: int) -> None:
    runs = runs_of(tmp_path, seed)
    page = page_of_runs(tmp_path)
    (drift,) = page.data["drift"]
    a, b = (counted(runs[name].values()) for name in ("before", "after"))
    assert drift["distance"] == pytest.approx(
        [plain_distance(x, y) for x, y in zip(a, b, strict=True)], rel=1e-4
    )
    equal, rows, equal_rows = [0] * LAYERS, 0, 0
    for name in ("r0", "r1"):  # r2 has another number of rows, r9 is in one run only
        for x, y in zip(runs["before"][name].tolist(), runs["after"][name].tolist(), strict=True):
            if x[0][0] == -1 or y[0][0] == -1:
                continue
            same = [len(set(p) & set(q)) for p, q in zip(x, y, strict=True)]
            equal = [e + s for e, s in zip(equal, same, strict=True)]
            rows += 1
            equal_rows += same == [TOP_K] * LAYERS
    assert (drift["rows"], drift["equal_rows"]) == (rows, equal_rows)
    assert rows > 0 and equal_rows > 0
    assert drift["equal_picks"] == pytest.approx([e / (rows * TOP_K) for e in equal], rel=1e-5)
    for layer in range(LAYERS):
        change = [
            y / sum(b[layer]) - x / sum(a[layer]) for x, y in zip(a[layer], b[layer], strict=True)
        ]
        assert page.column("drift-0-layers", "gained most")[layer] == change.index(max(change))
        assert page.column("drift-0-layers", "share lost")[layer] == pytest.approx(
            100 * min(change), abs=6e-3
        )
    worst = max(range(LAYERS), key=lambda i: drift["distance"][i])
    assert re.search(
        rf'id="distance-0-reading"[^>]*>Highest: [0-9.]+ in layer {page.data["layers"][worst]}\.<',
        page.text,
    )
    assert set(page.words("drift-0-requests", "request")) == {"r0", "r1"}
    assert "r2: 54 rows in before, 52 in after" in page.text
    assert "r9: only in after" in page.text


def test_similarity_is_as_recomputed(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, 0)
    page = page_of_runs(tmp_path)
    loads = [counted([ids]) for files in runs.values() for ids in files.values()]
    names = [name for files in runs.values() for name in files]
    assert page.data["similarity"]["requests"] == names

    def cosine(a: list[list[int]], b: list[list[int]]) -> float:
        parts = [
            sum(x * y for x, y in zip(p, q, strict=True))
            / math.sqrt(sum(x * x for x in p) * sum(y * y for y in q))
            for p, q in zip(a, b, strict=True)
        ]
        return sum(parts) / len(parts)

    for i, a in enumerate(loads):
        expected = [cosine(a, b) for b in loads]
        assert page.data["similarity"]["cosine"][i] == pytest.approx(expected, rel=1e-4)


def test_rows_that_are_not_present_are_counted_and_named_and_are_no_expert(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = 1 + random_routes(rng, 30, LAYERS, EXPERTS - 1, TOP_K)  # none is expert 0
    ids[3:6] = -1
    ids[7] = -1
    ids[12, 2] = -1  # a row with one layer missing is missing
    ids[20, 0, 1] = -1
    states = np.zeros(30, np.uint8)
    states[[3, 4, 5, 7]] = [1, 2, 2, 3]
    states[[12, 20]] = 1
    path = save(tmp_path / "r.npy", ids)
    page = page_of(tmp_path, {"run": [path]})
    assert page.tables["missing-table"][1] == [
        "run",
        "r",
        "3–5, 7, 12 (-1 in some layers), 20 (-1 in some layers)",
        "6",
        "30",
    ]
    assert [row[0] for row in page.data["runs"][0]["picks"]] == [0] * LAYERS
    assert page.data["runs"][0]["picks"] == counted([ids])
    ids[12], ids[20] = -1, -1
    save(path, ids, states)
    named = page_of(tmp_path, {"run": [path]}).words("missing-table", "rows")
    assert named == ["3, 4–5 (stale), 7 (clobbered), 12, 20"]


@pytest.mark.parametrize(("dense_id", "dtype"), [(-1, np.int16), (0, np.int64), (0, np.uint8)])
def test_both_forms_give_the_same_figures(tmp_path: Path, dense_id: int, dtype: type) -> None:
    rng = np.random.default_rng(2)
    ids = random_routes(rng, 50, LAYERS, EXPERTS, TOP_K, dtype)
    if dtype != np.uint8:
        ids[10:12] = -1
    plain = save(tmp_path / "plain" / "r.npy", ids)
    hidden = save(tmp_path / "hidden" / "r.npy", with_dense(ids, [0, 2, 5], dense_id))
    of_plain = page_of(tmp_path, {"run": [plain]})
    of_hidden = page_of(tmp_path, {"run": [hidden]}, dense_id=dense_id)
    assert of_hidden.data["layers"] == [1, 2, 4, 5, 6]
    assert "0, 3, 7 left out" in of_hidden.text
    assert of_plain.data["runs"] == of_hidden.data["runs"]
    both = page_of(tmp_path, {"a": [plain], "b": [hidden]}, dense_id=dense_id)
    assert both.data["layers"] == [1, 2, 4, 5, 6]
    assert both.data["drift"][0]["equal_picks"] == [1.0] * LAYERS
    assert both.data["drift"][0]["distance"] == [0.0] * LAYERS


def test_the_page_says_where_the_number_of_experts_is_from(tmp_path: Path) -> None:
    ids = random_routes(np.random.default_rng(3), 50, 2, 6, 2)
    path = save(tmp_path / "r.npy", ids)
    highest = int(ids.max())
    page = page_of(tmp_path, {"run": [path]})
    assert page.data["num_experts"] == highest + 1
    assert f"the highest id in the files, {highest}, plus 1" in page.text
    page = page_of(tmp_path, {"run": [path]}, num_experts=40)
    assert page.data["num_experts"] == 40
    assert page.data["runs"][0]["dead"] == [40 - len(np.unique(ids[:, i])) for i in range(2)]
    assert "from --num-experts" in page.text


@pytest.mark.parametrize("repeats", [False, True])
def test_equal_picks_are_those_of_multisets(repeats: bool) -> None:
    rng = np.random.default_rng(4)
    if repeats:
        a, b = (rng.integers(0, 4, (60, 3, 5)) for _ in range(2))
    else:
        a, b = (random_routes(rng, 60, 3, 9, 5, np.int64) for _ in range(2))
    expected = [
        [sum((Counter(p) & Counter(q)).values()) for p, q in zip(x, y, strict=True)]
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert equal_picks(a, b, repeats).tolist() == expected


def test_repeated_experts_are_counted_where_they_are_declared(tmp_path: Path) -> None:
    ids = np.random.default_rng(5).integers(0, 4, (60, 2, 3)).astype(np.int16)
    path = save(tmp_path / "r.npy", ids)
    page = page_of(tmp_path, {"run": [path]}, repeated_experts=True)
    assert page.data["runs"][0]["picks"] == counted([ids], 2, 4)


def test_noise_is_what_two_samples_of_one_load_are_apart() -> None:
    rng = np.random.default_rng(6)
    p = rng.dirichlet(np.full(64, 4.0))
    a, b = (rng.multinomial(n, p, size=400) for n in (3000, 5000))
    measured = np.sqrt((js_distance(a, b) ** 2).mean())
    assert np.sqrt((js_noise(a, b) ** 2).mean()) == pytest.approx(measured, rel=0.05)


def test_measures_at_their_ends() -> None:
    even = imbalance(np.full((1, 16), 5))
    assert [float(x[0]) for x in (even.max_load, even.variation, even.entropy)] == [1, 0, 1]
    assert even.dead.tolist() == [0]
    one = np.zeros((1, 16), np.int64)
    one[0, 3] = 7
    single = imbalance(one)
    assert [float(x[0]) for x in (single.max_load, single.entropy)] == [16, 0]
    assert (single.hottest.tolist(), single.dead.tolist()) == ([3], [15])
    assert js_distance(one, np.roll(one, 1, axis=1)) == pytest.approx([1.0])
    assert js_distance(one, 3 * one) == [0.0]
    assert imbalance(np.array([[9]])).entropy == [1.0]
