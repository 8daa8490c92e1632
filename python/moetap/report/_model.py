"""What the ids of the runs are of: the MoE layers, the number of experts, and how that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from moetap._errors import ArgumentError
from moetap.report._files import Ids, RouteFile, shown
from moetap.report._runs import Run

MAX_EXPERTS = 65536  # as of moetap.ModelShape
MAX_CELLS = 1 << 22  # layers x experts: counts of a run take 32 MiB then


@dataclass(frozen=True)
class Declared:
    """What the caller says of the model. What is None is taken from the files."""

    num_experts: int | None = None
    top_k: int | None = None
    moe_layers: tuple[int, ...] | None = None
    num_hidden_layers: int | None = None
    dense_id: int = -1
    repeated_experts: bool = False
    source: str = "--num-experts"


@dataclass(frozen=True)
class Model:
    """The one model that all runs of a page are of."""

    num_layers: int  # with a router
    num_experts: int
    top_k: int
    experts_from: str
    layer_ids: tuple[int, ...] | None  # of the hidden layers; None if no file says them
    dense_id: int
    repeated_experts: bool

    def label(self, layer: int) -> int:
        """The hidden layer's id if it is known, else the index among the MoE layers."""
        return layer if self.layer_ids is None else self.layer_ids[layer]


@dataclass(frozen=True)
class Layers:
    """Which of a run's layers have a router, by their index in its files."""

    moe: tuple[int, ...]
    dense: tuple[int, ...]


def find_model(runs: Sequence[Run], declared: Declared) -> tuple[Model, list[Layers]]:
    """Reads all files once. ArgumentError if the runs are not of one model, or too large."""
    _require_declared(declared)
    layers: list[Layers] = []
    highest = -1
    for run in runs:
        scan = _scan(run)
        layers.append(_layers_of(run, scan, declared))
        highest = max(highest, int(scan.high[list(layers[-1].moe)].max()))
    limit = declared.num_experts or MAX_EXPERTS
    if highest >= limit:
        _name_high_id(runs, layers, limit, declared)
    _require_one_model(runs, layers)
    num_experts = declared.num_experts or max(highest, 0) + 1
    num_layers = len(layers[0].moe)
    if num_layers * num_experts > MAX_CELLS:
        raise ArgumentError(
            f"{num_layers} layers x {num_experts} experts; a page is made of at most {MAX_CELLS}. "
            f"If the number of experts is wrong, give --num-experts"
        )
    if declared.num_experts is not None:
        source = declared.source
    else:
        source = f"the highest id in the files, {highest}, plus 1"
    model = Model(
        num_layers,
        num_experts,
        runs[0].top_k,
        source,
        _layer_ids(runs, layers, declared),
        declared.dense_id,
        declared.repeated_experts,
    )
    return model, layers


@dataclass(frozen=True)
class _Scan:
    """The lowest and highest id of each layer of a run, missing routes included."""

    low: Ids
    high: Ids


def _scan(run: Run) -> _Scan:
    low = np.full(run.layers, np.iinfo(np.int64).max)
    high = np.full(run.layers, np.iinfo(np.int64).min)
    for file in run.files:
        for _, ids in file.blocks():
            np.minimum(low, ids.min(axis=(0, 2)), out=low)
            np.maximum(high, ids.max(axis=(0, 2)), out=high)
    if all(file.rows == 0 for file in run.files):
        raise ArgumentError(f"run {shown(run.name)!r} has no rows: leave it out")
    if (high == -1).all() and (low == -1).all():
        raise ArgumentError(
            f"run {shown(run.name)!r} has no row that is present, only -1: leave it out"
        )
    return _Scan(low, high)


def _layers_of(run: Run, scan: _Scan, declared: Declared) -> Layers:
    if declared.moe_layers is not None:
        return _declared_layers(run, declared)
    dense = (scan.low == declared.dense_id) & (scan.high == declared.dense_id)
    if dense.all():
        raise ArgumentError(
            f"run {shown(run.name)!r}: every layer is {declared.dense_id} in every row, which is "
            f"the id of layers without a router: give another --dense-id"
        )
    indices = range(run.layers)
    return Layers(tuple(i for i in indices if not dense[i]), tuple(i for i in indices if dense[i]))


def _declared_layers(run: Run, declared: Declared) -> Layers:
    moe, hidden = declared.moe_layers, declared.num_hidden_layers
    assert moe is not None and hidden is not None
    if run.layers not in (len(moe), hidden) or run.top_k != declared.top_k:
        raise ArgumentError(
            f"run {shown(run.name)!r} has rows of {run.layers} layers and top_k {run.top_k}; "
            f"{declared.source} says {len(moe)} MoE layers of {hidden} and top_k {declared.top_k}: "
            f"give the configuration of the model that the files are of"
        )
    if run.layers == len(moe):
        return Layers(tuple(range(run.layers)), ())
    return Layers(moe, tuple(i for i in range(hidden) if i not in moe))


def _layer_ids(
    runs: Sequence[Run], layers: Sequence[Layers], declared: Declared
) -> tuple[int, ...] | None:
    if declared.moe_layers is not None:
        return declared.moe_layers
    return next((of_run.moe for of_run in layers if of_run.dense), None)


def _require_one_model(runs: Sequence[Run], layers: Sequence[Layers]) -> None:
    first = 0
    for i, (run, of_run) in enumerate(zip(runs, layers, strict=True)):
        if (len(of_run.moe), run.top_k) != (len(layers[first].moe), runs[first].top_k):
            raise ArgumentError(
                f"{_describe(run, of_run)}, and {_describe(runs[first], layers[first])}: a page is "
                f"of one model. Make a page for each, or say what the layers are with --config"
            )
        if not of_run.dense:
            continue
        if layers[first].dense and layers[first].moe != of_run.moe:
            raise ArgumentError(
                f"runs {shown(runs[first].name)!r} and {shown(run.name)!r} have routers at "
                f"different layers: {_only(layers[first].moe, of_run.moe)} only in the first, "
                f"{_only(of_run.moe, layers[first].moe)} only in the second. Was a layer not "
                f"captured? If the model has it, give --config"
            )
        if not layers[first].dense:
            first = i


def _describe(run: Run, layers: Layers) -> str:
    dense = f" ({len(layers.dense)} others without)" if layers.dense else ""
    return f"run {shown(run.name)!r} has {len(layers.moe)} MoE layers{dense} and top_k {run.top_k}"


def _only(layers: Sequence[int], others: Sequence[int]) -> str:
    return ", ".join(str(i) for i in layers if i not in others) or "none"


def _name_high_id(
    runs: Sequence[Run], layers: Sequence[Layers], limit: int, declared: Declared
) -> None:
    for run, of_run in zip(runs, layers, strict=True):
        for file in run.files:
            for start, ids in file.blocks():
                require_experts(file, start, ids, of_run.moe, limit, declared.source)


def require_experts(
    file: RouteFile, start: int, ids: Ids, moe: Sequence[int], limit: int, source: str
) -> None:
    """ArgumentError for an id that is neither an expert's nor -1.

    ids: a block of the file that begins at row `start`; moe: the layers in it that have a router.
    """
    of_moe = ids[:, list(moe)]
    bad = (of_moe < -1) | (of_moe >= limit)
    if not bad.any():
        return
    row, layer, k = (int(i) for i in np.argwhere(bad)[0])
    raise ArgumentError(
        f"{shown(file.path)}: id {of_moe[row, layer, k]} in row {start + row}, layer {moe[layer]}; "
        f"expert ids are 0 to {limit - 1}, and -1 is a missing route. Check the number of experts "
        f"({source}), or give the --dense-id of layers without a router"
    )


def _require_declared(declared: Declared) -> None:
    if declared.num_experts is not None and not 1 <= declared.num_experts <= MAX_EXPERTS:
        raise ArgumentError(f"--num-experts {declared.num_experts}: must be 1 to {MAX_EXPERTS}")
