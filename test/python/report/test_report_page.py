"""What a page holds beside its figures: names, cuts, and nothing that reaches out."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moetap.report._command import main, write_report
from report_made import Page, page_of, random_routes, save


def routes(
    rows: int = 20, layers: int = 3, num_experts: int = 16, top_k: int = 2, seed: int = 0
) -> Any:
    return random_routes(np.random.default_rng(seed), rows, layers, num_experts, top_k)


def test_runs_are_files_directories_and_named_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = save(tmp_path / "a.npy", routes())
    for i in (10, 9, 1):
        save(tmp_path / "many" / f"r{i}.npy", routes(seed=i))
    b = save(tmp_path / "x" / "b.npy", routes(seed=3), np.zeros(20))
    np.save(tmp_path / "x" / "b.weights.npy", np.zeros((20, 3, 2), np.uint16))
    glob = [str(tmp_path / "x" / name) for name in sorted(os.listdir(tmp_path / "x"))]
    output = tmp_path / "page.html"
    assert (
        main([str(a), f"{tmp_path}/many/", "-o", str(output), "--run", "named", *glob, str(a)]) == 0
    )
    assert capsys.readouterr().out == f"{output}\n"
    page = Page(output)
    assert page.words("runs-table", "run") == ["a", "many", "named"]
    assert page.column("runs-table", "requests") == [1, 3, 2]
    assert page.data["similarity"]["requests"] == ["a", "r1", "r9", "r10", "a", "b"]
    assert [drift["second"] for drift in page.data["drift"]] == ["many", "named"]
    assert b.exists()


def test_plain_files_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    paths = [str(save(tmp_path / name / "r.npy", routes())) for name in "ab"]
    assert main([*paths, "-o", str(tmp_path / "page.html")]) == 0
    page = Page(tmp_path / "page.html")
    assert page.words("runs-table", "run") == paths
    assert page.data["drift"][0]["rows"] == 20  # both have a request r


def test_a_function_takes_paths_and_numpy_numbers(tmp_path: Path) -> None:
    path = save(tmp_path / "run" / "r.npy", routes())
    output = tmp_path / "page.html"
    old = os.umask(0o027)
    try:
        write_report({"a": path, "b": str(path.parent)}, output, num_experts=np.int64(16))
    finally:
        os.umask(old)
    assert Page(output).data["num_experts"] == 16
    assert output.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["page.html", "run"]


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>&\"'\n\x1b[2J\u202e\udcff"
    path = tmp_path / (evil.replace("/", "∕") + ".npy")
    with open(path, "wb") as file:
        np.save(file, routes())
    page = page_of(tmp_path, {evil: [path], "other": [path]})
    assert page.text.count("<script") == page.text.count("</script>") == 2
    assert "alert(1)</script>" not in page.text.replace("∕", "/").replace("&lt;/script&gt;", "")
    assert "&lt;script&gt;alert(1)" in page.text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", page.text)
    assert page.data["runs"][0]["name"].startswith("</script><script>alert(1)")


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = page_of(tmp_path, {"run": [save(tmp_path / "r.npy", routes())]})
    assert "default-src 'none'" in page.text
    links = re.findall(r"""(?:href|src|action|url)\s*[=(]\s*["']?([^"'>)]*)""", page.text)
    assert links and all(link.startswith(("#", "data:")) for link in links), links
    assert not re.search(r"https?://|//cdn|@import|fetch\(|XMLHttp|import\(", page.text)


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    path = save(tmp_path / "r.npy", routes())
    assert page_of(tmp_path, {"run": [path]}).text == page_of(tmp_path, {"run": [path]}).text


def test_a_matrix_of_many_requests_is_cut_to_the_longest_and_says_so(tmp_path: Path) -> None:
    for i in range(70):
        save(tmp_path / "many" / f"r{i}.npy", routes(rows=10 + (i * 7) % 70, seed=i))
    page = page_of(tmp_path, {"many": [tmp_path / "many"]})
    kept = page.data["similarity"]["requests"]
    by_rows = sorted(range(70), key=lambda i: -(10 + (i * 7) % 70))[:64]
    assert kept == [f"r{i}" for i in sorted(by_rows)]
    assert "cut to the 64 requests with most rows; 6 requests are left out" in page.text
    assert len(page.tables["similarity-table"]) == 65


def test_a_drawing_of_many_experts_is_cut_and_says_so(tmp_path: Path) -> None:
    ids = routes(rows=4, layers=520, num_experts=8)
    ids[0, 519, 0] = 1100
    page = page_of(tmp_path, {"run": [save(tmp_path / "r.npy", ids)]})
    assert "cut to the first 512 of 520 layers and the first 1024 of 1,101 experts" in page.text
    picks = page.data["runs"][0]["picks"]
    assert (len(picks), len(picks[0])) == (512, 1024)
    assert len(page.data["runs"][0]["max_load"]) == 520


def test_long_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    ids = routes(rows=60)
    ids[::2] = -1
    for i in range(55):
        save(tmp_path / "a" / f"r{i}.npy", ids)
        save(tmp_path / "b" / f"s{i}.npy", routes())
    page = page_of(tmp_path, {"a": [tmp_path / "a"], "b": [tmp_path / "b"]})
    assert len(page.tables["missing-table"]) == 51
    assert "5 other requests with missing rows not listed" in page.text
    assert page.words("missing-table", "rows")[0].endswith("38, and 10 other ranges")
    assert "110 requests not compared row by row" in page.text
    assert "<li>and 60 others</li>" in page.text
    assert "No row could be compared" in page.text


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 2, 2), (1, 40, 5, 5)])
def test_small_runs_have_a_page(tmp_path: Path, shape: tuple[int, int, int, int]) -> None:
    rows, layers, num_experts, top_k = shape
    path = save(tmp_path / "r.npy", routes(rows, layers, num_experts, top_k))
    page = page_of(tmp_path, {"a": [path], "b": [path]})
    assert page.data["drift"][0]["equal_rows"] == rows
    assert page.data["drift"][0]["distance"] == [0.0] * layers
    assert "nan" not in page.text.lower().split("<style>")[0]


def test_a_request_without_rows_is_counted(tmp_path: Path) -> None:
    save(tmp_path / "run" / "a.npy", routes())
    save(tmp_path / "run" / "b.npy", routes(rows=0))
    save(tmp_path / "run" / "c.npy", np.full((3, 3, 2), -1, np.int16))
    page = page_of(tmp_path, {"run": [tmp_path / "run"], "again": [tmp_path / "run"]})
    assert page.column("runs-table", "requests") == [3, 3]
    assert page.column("runs-table", "rows missing") == [3, 3]
    assert page.data["similarity"]["requests"] == ["a", "a"]
    assert page.column("drift-0-requests", "equal picks") == [100.0, None, None]
