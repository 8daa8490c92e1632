"""Which files a run has: a file, a directory of files, or files by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moetap._errors import ArgumentError
from moetap.report._files import RouteFile, read_header, shown

_BESIDE = (".states", ".weights")  # of what lies beside X.npy: X.states.npy, X.weights.npy


@dataclass(frozen=True)
class Run:
    """Files of one model that were written in one run, each of one request. All have one shape."""

    name: str
    files: tuple[RouteFile, ...]

    @property
    def layers(self) -> int:
        return self.files[0].layers

    @property
    def top_k(self) -> int:
        return self.files[0].top_k


def open_run(name: str, paths: Sequence[Path]) -> Run:
    """Reads the headers of a run's files; a directory stands for the .npy files directly in it.

    Files of states and of weights beside a file of routes belong to it and are no requests.
    ArgumentError for anything else; OSError for what cannot be read.
    """
    files = _route_files(_expand(paths))
    if not files:
        raise ArgumentError(
            f"run {shown(name)!r} has no file: name at least one .npy file of routes"
        )
    named: dict[str, Path] = {}
    for path in files:
        request = path.name.removesuffix(".npy")
        if request in named:
            raise ArgumentError(
                f"run {shown(name)!r} has request {shown(request)!r} twice, in "
                f"{shown(named[request])} and {shown(path)}: a request's name is its file's. "
                f"Rename one, or make two runs of them"
            )
        named[request] = path
    opened = [read_header(path, request, files[path]) for request, path in named.items()]
    opened.sort(key=lambda file: _natural(file.request))
    _require_one_shape(name, opened)
    return Run(name, tuple(opened))


def _expand(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = [p for p in path.iterdir() if p.suffix == ".npy" and not p.is_dir()]
        if not inside:
            raise ArgumentError(
                f"directory {shown(path)} has no .npy file directly in it: name the one that has"
            )
        found += sorted(inside)
    return found


def _route_files(paths: Sequence[Path]) -> dict[Path, Path | None]:
    """The files of routes, each with its file of states if there is one."""
    files: dict[Path, Path | None] = {}
    given = set(paths)
    for path in dict.fromkeys(paths):
        if (owner := _owner(path)) is None:
            states = path.with_name(path.name.removesuffix(".npy") + ".states.npy")
            files[path] = states if states.is_file() else None
        elif owner not in given:
            raise ArgumentError(
                f"{shown(path)} lies beside routes and has none itself: give {shown(owner)}, which "
                f"it belongs to"
            )
    return files


def _owner(path: Path) -> Path | None:
    """X.npy of X.states.npy or X.weights.npy."""
    stem = path.name.removesuffix(".npy")
    for ending in _BESIDE:
        if stem.endswith(ending):
            return path.with_name(stem.removesuffix(ending) + ".npy")
    return None


def _require_one_shape(name: str, files: Sequence[RouteFile]) -> None:
    first = files[0]
    for file in files:
        if (file.layers, file.top_k) != (first.layers, first.top_k):
            raise ArgumentError(
                f"run {shown(name)!r}: {shown(file.path)} has {file.layers} layers and top_k "
                f"{file.top_k}, and {shown(first.path)} has {first.layers} and {first.top_k}. The "
                f"files of a run are of one model and one form: make a page for each"
            )


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts r2 before r10."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(p), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts]
