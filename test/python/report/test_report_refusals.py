"""What is refused: with a message that names value, limit and remedy, and without a page."""

import io
import os
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from moetap._errors import ArgumentError
from moetap.report._command import main
from moetap.report._runs import open_run
from report_made import random_routes, save, with_dense


def routes(
    rows: int = 20,
    layers: int = 3,
    num_experts: int = 16,
    top_k: int = 2,
    dtype: type = np.int16,
    seed: int = 0,
) -> Any:
    return random_routes(np.random.default_rng(seed), rows, layers, num_experts, top_k, dtype)


def refused(
    capsys: pytest.CaptureFixture[str],
    output: Path,
    arguments: Sequence[object],
    pattern: str,
    status: int = 2,
) -> None:
    """The command is refused with such a message, and leaves the output and its folder as they are."""
    before = output.read_bytes() if output.is_file() else None
    beside = set(os.listdir(output.parent)) if output.parent.is_dir() else None
    assert main([*map(str, arguments), "-o", str(output)]) == status
    message = capsys.readouterr().err
    assert re.search(pattern, message), message
    assert (output.read_bytes() if output.is_file() else None) == before
    assert (set(os.listdir(output.parent)) if output.parent.is_dir() else None) == beside


def changed(ids: Any, where: Any, value: int) -> Any:
    ids = ids.copy()
    ids[where] = value
    return ids


FILES = {
    "floats": (
        np.zeros((4, 3, 2), np.float32),
        r"array of '<f4'.*one of \|u1, <u2.*not the one of the w",
    ),
    "wrong int": (np.zeros((4, 3, 2), np.uint32), r"array of '<u4'"),
    "objects": (np.array([[[None]]]), r"array of '\|O'"),
    "big-endian": (routes().astype(">i4"), r"big-endian; save it as '<i4'"),
    "2 dimensions": (routes()[:, 0], r"2 dimensions, \(20, 2\); routes have 3"),
    "4 dimensions": (routes()[None], r"4 dimensions"),
    "Fortran order": (np.asfortranarray(routes()), r"Fortran order; save numpy.ascontiguousarray"),
    "no layer": (np.zeros((4, 0, 2), np.int16), r"0 layers and top_k 2; there must be 1 to 1024"),
    "too many layers": (np.zeros((1, 1025, 1), np.int16), r"1025 layers.*1 to 1024"),
    "no pick": (np.zeros((4, 3, 0), np.int16), r"top_k 0; .*at least 1"),
    "no row": (np.zeros((0, 3, 2), np.int16), r"run 'r' has no rows: leave it out"),
    "only missing": (np.full((4, 3, 2), -1, np.int16), r"'r' has no row that is present"),
    "every row partly missing": (
        changed(changed(routes(2), (0, 0), -1), (1, 1), -1),
        r"none of its 2 rows is present",
    ),
    "negative id": (
        changed(routes(), (7, 2, 1), -2),
        r"id -2 in row 7, layer 2; expert ids are 0 to \d+, and -1.*--dense-id",
    ),
    "id of no model": (
        changed(routes(dtype=np.int64), (3, 1, 0), 65536),
        r"id 65536 in row 3, layer 1; expert ids are 0 to 65535",
    ),
    "id far off": (
        changed(routes(dtype=np.int64), (3, 1, 0), 2**62),
        r"id 4611686018427387904 in row 3",
    ),
    "repeated expert": (
        changed(routes(), (5, 1), 9),
        r"expert 9 comes twice in row 5, layer 1; .*--repeated-experts",
    ),
    "dense layer that is not declared": (
        with_dense(routes(), [0], 0),
        r"expert 0 comes twice in row 0, layer 0; .*--dense-id 0",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_not_of_routes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    ids, pattern = FILES[what]
    np.save(tmp_path / "r.npy", ids, allow_pickle=True)
    refused(capsys, tmp_path / "page.html", [tmp_path / "r.npy"], pattern)


def npy(ids: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, ids)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"", r"does not begin as a .npy file"),
        (b"PK\x03\x04 and so on", r"does not begin as a .npy file"),
        (b"\x93NUMPY\x02\x00" + npy(routes())[8:], r"x02.*Write it with numpy.save\(\)"),
        (npy(routes())[:-1], r"239 bytes after the header, and the shape needs 240: .*cut"),
        (npy(routes()) + b"x", r"241 bytes after the header, and the shape needs 240"),
        (npy(routes())[:40], r"does not begin as a .npy file"),
        (npy(routes()).replace(b"(20, 3, 2)", b"(-2, 3, 2)"), r"does not begin as a .npy file"),
        (npy(routes()).replace(b"(20, 3, 2)", b"(20, 3,(2)"), r"does not begin as a .npy file"),
        (npy(routes()).replace(b"(20, 3, 2), }", b"(20L, 3, 2),}"), r"does not begin as a .npy"),
        (npy(routes()).replace(b"'<i2'", b"'<V2'"), r"an array of '<V2'"),
    ],
)
def test_a_file_that_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, pattern: str
) -> None:
    (tmp_path / "r.npy").write_bytes(content)
    refused(capsys, tmp_path / "page.html", [tmp_path / "r.npy"], pattern)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_refused_or_read_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    random = Random(seed)
    path, output = tmp_path / "r.npy", tmp_path / "page.html"
    statuses = set()
    for _ in range(250):
        content = bytearray(npy(routes(dtype=random.choice((np.uint8, np.int16, np.int64)))))
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(min(len(content), random.choice((128, len(content)))))
            if random.random() < 0.5:
                content[at] = random.choice((0, 1, 127, 255, random.randrange(256)))
            else:
                content[at : at + random.randrange(2)] = random.choice(
                    (b"", b"9", b"(", b"'", b"L")
                )
        path.write_bytes(content)
        statuses.add(main([str(path), "-o", str(output)]))
        assert ("r.npy" in capsys.readouterr().err) != output.exists()
        output.unlink(missing_ok=True)
    assert statuses == {0, 2}


def test_ids_beyond_the_given_number_of_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "r.npy", changed(routes(), (4, 0, 0), 77))
    refused(
        capsys,
        tmp_path / "page.html",
        [path, "--num-experts", 64],
        r"id 77 in row 4, layer 0; expert ids are 0 to 63.*\(--num-experts\)",
    )
    for number in (0, -1, 65537):
        refused(
            capsys,
            tmp_path / "page.html",
            [path, "--num-experts", number],
            rf"--num-experts {number}: must be 1 to 65536",
        )


def test_layers_times_experts_beyond_what_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "r.npy", routes(layers=65))
    refused(
        capsys,
        tmp_path / "page.html",
        [path, "--num-experts", 65536],
        r"65 layers x 65536 experts; a page is made of at most 4194304.*--num-experts",
    )


def test_layers_that_all_hold_the_dense_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "r.npy", np.zeros((4, 3, 1), np.int16))
    refused(
        capsys,
        tmp_path / "page.html",
        [path, "--dense-id", 0],
        r"every layer is 0 in every row, .*give another --dense-id",
    )


def test_files_of_a_run_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for other in (routes(layers=4), routes(top_k=3)):
        save(tmp_path / "run" / "a.npy", routes())
        save(tmp_path / "run" / "b.npy", other)
        refused(
            capsys,
            tmp_path / "page.html",
            [tmp_path / "run"],
            r"b.npy has \d layers and top_k \d, and .*a.npy has 3 and 2",
        )


def test_runs_of_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = save(tmp_path / "a.npy", routes())
    b = save(tmp_path / "b.npy", with_dense(routes(layers=4), [0]))
    refused(
        capsys,
        tmp_path / "page.html",
        [a, b],
        r"run 'b' has 4 MoE layers \(1 others without\) and top_k 2, and run 'a' has 3 MoE",
    )
    b = save(tmp_path / "b.npy", routes(top_k=3))
    refused(
        capsys, tmp_path / "page.html", [a, b], r"'b' has 3 MoE layers and top_k 3, and run 'a'"
    )
    b = save(tmp_path / "b.npy", with_dense(routes(), [0]))
    c = save(tmp_path / "c.npy", with_dense(routes(), [2]))
    refused(
        capsys,
        tmp_path / "page.html",
        [a, b, c],
        r"'b' and 'c' have routers at different layers: 2 only in the first, 0 only in the sec",
    )


def test_states_that_contradict_the_routes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = changed(routes(), 5, -1)
    states = np.zeros(20, np.uint8)
    path = save(tmp_path / "r.npy", ids, states)
    output = tmp_path / "page.html"
    refused(
        capsys, output, [path], r"row 5 has -1, and its states file says present.*Dump both again"
    )
    states[[5, 6]] = 1, 2
    save(path, ids, states)
    refused(capsys, output, [path], r"row 6 has all ids, and its states file says stale")
    save(path, changed(ids, (6, 0), -1), states)
    refused(capsys, output, [path], r"row 6 has -1, and its states file says stale")
    states[6] = 9
    save(path, ids, states)
    refused(capsys, output, [path], r"state 9; the states are 0 to 4")
    save(path, ids, states[1:])
    refused(capsys, output, [path], r"shape \(19,\) beside 20 rows")


def test_files_beside_routes_that_are_given_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = save(tmp_path / "r.weights.npy", np.zeros((20, 3, 2), np.uint16))
    refused(
        capsys,
        tmp_path / "page.html",
        [weights],
        r"r.weights.npy lies beside routes and has none itself: give .*/r.npy",
    )
    refused(capsys, tmp_path / "page.html", [tmp_path], r"give .*/r.npy")


def test_runs_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    a = save(tmp_path / "a" / "r.npy", routes())
    b = save(tmp_path / "b" / "r.npy", routes())
    (tmp_path / "empty").mkdir()
    refused(capsys, output, [], r"no run: name a .npy file")
    refused(capsys, output, ["--run", "before"], r"run 'before' has no file")
    refused(capsys, output, [tmp_path / "empty"], r"has no .npy file directly in it")
    refused(
        capsys, output, ["--run", "x", a, b], r"has request 'r' twice, in .*a/r.npy and .*b/r.npy"
    )
    refused(capsys, output, ["--run", "x", a, "--run", "x", b], r"run 'x' is named twice")
    refused(capsys, output, [a, a], r"is named twice")
    many = [save(tmp_path / f"{i}.npy", routes()) for i in range(9)]
    refused(capsys, output, many, r"9 runs; a page has at most 8.*--run NAME")


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    refused(capsys, output, [tmp_path / "none.npy"], r"No such file.*none.npy", 1)
    os.mkfifo(tmp_path / "pipe.npy")
    refused(capsys, output, [tmp_path / "pipe.npy"], r"pipe.npy is not a plain file")
    refused(capsys, output, ["/dev/null"], r"/dev/null is not a plain file")


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "r.npy", routes())
    refused(capsys, tmp_path / "none" / "page.html", [path], r"No such file", 1)
    refused(capsys, tmp_path / "other.npy", [path], r"is a name of routes: give one in .html")
    (tmp_path / "directory.html").mkdir()
    refused(capsys, tmp_path / "directory.html", [path], r"is no plain file: name another")
    (tmp_path / "link.html").symlink_to(path)
    refused(capsys, tmp_path / "link.html", [path], r"is no plain file")
    os.link(path, tmp_path / "same.html")
    refused(capsys, tmp_path / "same.html", [path], r"is one of the files of routes")


def test_a_page_that_does_not_fit_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "r.npy", routes())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        refused(capsys, tmp_path / "page.html", [path], r"File too large", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_earlier_page_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    assert main([str(save(tmp_path / "r.npy", routes())), "-o", str(output)]) == 0
    capsys.readouterr()
    save(tmp_path / "r.npy", changed(routes(), (5, 1), 9))
    refused(capsys, output, [tmp_path / "r.npy"], r"comes twice")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "r.npy", routes())
    (file,) = open_run("run", [path]).files
    blocks = file.blocks(rows=8)
    next(blocks)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArgumentError, match="r.npy changed while it was read"):
        list(blocks)
    save(path, routes(seed=1))
    with pytest.raises(ArgumentError, match="changed while it was read"):
        next(file.blocks())


def test_a_file_that_is_written_over_while_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "r.npy", routes())
    (file,) = open_run("run", [path]).files
    blocks = file.blocks(rows=8)
    next(blocks)
    with open(path, "r+b") as written:
        written.write(npy(routes(seed=1)))
    os.utime(path, ns=(0, 12345))
    with pytest.raises(ArgumentError, match="changed while it was read"):
        list(blocks)
