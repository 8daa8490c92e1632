"""The command line: python -m moetap.report."""

from __future__ import annotations

import argparse
import operator
import os
import secrets
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import SupportsIndex

from moetap._errors import ArgumentError, Error
from moetap.report._counts import Request, RunCounts, count_run
from moetap.report._drift import Drift, find_drift
from moetap.report._files import Ids, shown
from moetap.report._measures import imbalance
from moetap.report._model import Declared, Layers, Model, find_model
from moetap.report._page import Report, page
from moetap.report._runs import Run, open_run
from moetap.report._similarity import SimilarityBuilder

_Path = str | os.PathLike[str]

MAX_RUNS = 8  # of a page: as many as it has colours

_DESCRIPTION = """\
Writes one HTML page about the routes in .npy files: how hot each expert is at each layer, how uneven
the load of each layer is, how alike requests are routed, and how far runs are apart. The page needs
no network.
"""
_EPILOG = """\
A file holds the routes of one request, as to_npy() and `moetap dump` write them: rows of the MoE
layers, or of all hidden layers. A run is a file, a directory of files, or files after --run NAME.
The states and weights that `moetap dump` puts beside a file are recognised, and are no requests.

examples:
  python -m moetap.report request.npy
  python -m moetap.report before/ after/ -o drift.html
  python -m moetap.report --run before a/*.npy --run after b/*.npy --config config.json

exit status:
  0  the page is written
  1  a file cannot be read or the page cannot be written
  2  wrong usage, or a file that is not of routes of the model; nothing is written
"""


def write_report(
    runs: Mapping[str, _Path | Sequence[_Path]],
    output: _Path,
    *,
    num_experts: SupportsIndex | None = None,
    config: _Path | None = None,
    dense_id: SupportsIndex = -1,
    repeated_experts: bool = False,
) -> None:
    """Writes a page about these runs: by name, a file or a directory of .npy files, or several.

    num_experts: of a layer; by default the configuration's, else the highest id plus 1.
    config: a model's config.json, which also says which of all hidden layers have a router.
    dense_id: what layers without a router hold in files of all hidden layers.
    repeated_experts: the model picks an expert twice for a token on purpose.

    Reads each file two or three times, 2 MiB at a time. Memory is for the counts: 8 bytes per
    layer, expert and run, and up to 256 MiB for the similarity of requests. ArgumentError for files
    that are not of routes of one model; OSError if the system refuses to read or write one.
    """
    target = Path(output)
    opened = [open_run(name, _paths(given)) for name, given in runs.items()]
    _require_runs(opened)
    _require_output(target, opened)
    experts = None if num_experts is None else operator.index(num_experts)
    declared = _declared(experts, config, operator.index(dense_id), repeated_experts)
    _place(target, page(measure(opened, declared)))


def _paths(given: _Path | Sequence[_Path]) -> list[Path]:
    return [Path(path) for path in ([given] if isinstance(given, str | os.PathLike) else given)]


def measure(runs: Sequence[Run], declared: Declared) -> Report:
    """Reads the files and works out all that the page shows. ArgumentError as write_report()."""
    model, layers = find_model(runs, declared)
    builder = SimilarityBuilder(runs, model)
    counts = [_count(i, run, layers[i], model, builder) for i, run in enumerate(runs)]
    drifts: list[Drift] = [
        find_drift((runs[0], runs[i]), (layers[0], layers[i]), (counts[0], counts[i]), model)
        for i in range(1, len(runs))
    ]
    return Report(
        model,
        tuple(counts),
        tuple(layers),
        tuple(imbalance(run.picks) for run in counts),
        builder.result(model),
        tuple(drifts),
    )


def _count(
    index: int, run: Run, layers: Layers, model: Model, builder: SimilarityBuilder
) -> RunCounts:
    seen = 0

    def add(request: Request, picks: Ids) -> None:
        nonlocal seen
        builder.add(index, run.name, seen, request, picks)
        seen += 1

    return count_run(run, layers, model, add)


def _declared(
    num_experts: int | None, config: _Path | None, dense_id: int, repeated: bool
) -> Declared:
    if config is None:
        return Declared(num_experts=num_experts, dense_id=dense_id, repeated_experts=repeated)
    from moetap import ModelShape  # its library is needed for configurations only

    shape = ModelShape.from_config_file(os.fspath(config))
    if num_experts not in (None, shape.num_experts):
        raise ArgumentError(
            f"--num-experts {num_experts}, and {shown(config)} has {shape.num_experts}: give one"
        )
    return Declared(
        shape.num_experts,
        shape.top_k,
        tuple(shape.moe_layers),
        shape.num_hidden_layers,
        dense_id,
        repeated or shape.repeats_experts,
        shown(config),
    )


def _require_runs(runs: Sequence[Run]) -> None:
    if not runs:
        raise ArgumentError("no run: name a .npy file of routes, or a directory of them")
    if len(runs) > MAX_RUNS:
        raise ArgumentError(
            f"{len(runs)} runs; a page has at most {MAX_RUNS}. Put the files of one run together: "
            f"--run NAME FILE…, or name their directory"
        )


def _require_output(target: Path, runs: Sequence[Run]) -> None:
    """The page may replace an earlier one, and nothing that is not a plain file or is read."""
    if target.suffix.lower() == ".npy":
        raise ArgumentError(f"--output {shown(target)} is a name of routes: give one in .html")
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise ArgumentError(f"--output {shown(target)} is there and is no plain file: name another")
    if any(os.path.samefile(target, file.path) for run in runs for file in run.files):
        raise ArgumentError(f"--output {shown(target)} is one of the files of routes: name another")


def _place(target: Path, text: str) -> None:
    """Writes beside the target and then moves it there, so that there is never half a page."""
    beside = target.with_name(f".moetap-{secrets.token_hex(8)}.html")
    with open(beside, "x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.close()
            os.replace(beside, target)
        except BaseException:
            beside.unlink()
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        runs = _named_runs(options.runs, options.run or [])
        write_report(
            runs,
            options.output,
            num_experts=options.num_experts,
            config=options.config,
            dense_id=options.dense_id,
            repeated_experts=options.repeated_experts,
        )
    except OSError as error:
        print(f"moetap.report: {shown(error)}", file=sys.stderr)
        return 1
    except Error as error:
        print(f"moetap.report: {error}", file=sys.stderr)
        return 2
    print(shown(options.output))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moetap.report",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="a .npy file or a directory of them; its name is the run's",
    )
    parser.add_argument(
        "--run",
        metavar=("NAME", "FILE"),
        nargs="+",
        action="append",
        help="a run of these files and directories, by name",
    )
    parser.add_argument("-o", "--output", default="report.html", help="the page (%(default)s)")
    parser.add_argument(
        "--num-experts",
        type=int,
        metavar="N",
        help="experts of a layer; else of --config, else the highest id plus 1",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the model's config.json: its experts, and which layers have a router",
    )
    parser.add_argument(
        "--dense-id",
        type=int,
        default=-1,
        metavar="ID",
        help="what layers without a router hold (%(default)s)",
    )
    parser.add_argument(
        "--repeated-experts",
        action="store_true",
        help="the model picks an expert twice for a token on purpose",
    )
    return parser


def _named_runs(plain: Sequence[str], named: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Plain paths are named by their last part, or in full if two have the same."""
    short = [_short_name(path) for path in plain]
    runs: dict[str, list[str]] = {}
    pairs = [
        (name if short.count(name) == 1 else path, [path])
        for name, path in zip(short, plain, strict=True)
    ]
    for name, paths in [*pairs, *((group[0], list(group[1:])) for group in named)]:
        if name in runs:
            raise ArgumentError(
                f"run {shown(name)!r} is named twice: give each --run another name, and all of its "
                f"files after it"
            )
        runs[name] = paths
    return runs


def _short_name(path: str) -> str:
    return Path(path).name.removesuffix(".npy") or path
