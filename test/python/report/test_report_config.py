"""What a model's configuration says about the files, and the files that it contradicts."""

import json
from pathlib import Path
from typing import Any

import moetap
import numpy as np
import pytest
from moetap._errors import ArgumentError
from moetap.report._command import main, measure
from moetap.report._model import Declared
from moetap.report._runs import Run, open_run
from report_made import Page, random_routes, save, with_dense

# Of a model with 6 hidden layers, the first two and the last dense.
SHAPE: dict[str, Any] = {
    "num_experts": 16,
    "top_k": 2,
    "moe_layers": (2, 3, 4),
    "num_hidden_layers": 6,
}
DECLARED = Declared(source="config.json", **SHAPE)


def routes(rows: int = 20, top_k: int = 2) -> Any:
    return random_routes(np.random.default_rng(0), rows, 3, 16, top_k)


def run_of(tmp_path: Path, ids: Any, name: str = "r") -> Run:
    return open_run(name, [save(tmp_path / f"{name}.npy", ids)])


def test_the_layers_are_the_declared_ones(tmp_path: Path) -> None:
    ids = routes()
    ids[:, 1] = -1  # a MoE layer that was never captured is not taken for a dense one
    hidden = run_of(tmp_path, with_dense(ids, [0, 0, 3]), "hidden")
    with pytest.raises(ArgumentError, match="none of its 20 rows is present"):
        measure([hidden], DECLARED)
    plain = run_of(tmp_path, routes(), "plain")
    hidden = run_of(tmp_path, with_dense(routes(), [0, 0, 3]), "hidden")
    report = measure([plain, hidden], DECLARED)
    assert report.model.layer_ids == (2, 3, 4)
    assert report.model.num_experts == 16
    assert (report.runs[0].picks == report.runs[1].picks).all()


def test_files_of_another_model_are_refused(tmp_path: Path) -> None:
    def refused(ids: Any, pattern: str) -> None:
        with pytest.raises(ArgumentError, match=pattern):
            measure([run_of(tmp_path, ids)], DECLARED)

    refused(with_dense(routes(), [0]), r"4 layers and top_k 2; config.json says 3 MoE layers of 6")
    refused(routes(top_k=3), r"3 layers and top_k 3; config.json says .* top_k 2")
    dense = with_dense(routes(), [0, 0, 3])
    dense[7, 1, 1] = 5
    refused(dense, r"id 5 in row 7, layer 1, which has no router, and -1 was declared")
    dense[7, 1, 1] = -1
    dense[9, 4, 0] = 16
    refused(dense, r"id 16 in row 9, layer 4; expert ids are 0 to 15.*\(config.json\)")


def test_a_configuration_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "qwen3_moe",
                "num_hidden_layers": 4,
                "num_experts": 16,
                "num_experts_per_tok": 2,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [1],
            }
        )
    )
    path = save(tmp_path / "r.npy", with_dense(routes(), [1]))
    output = tmp_path / "page.html"
    assert main([str(path), "--config", str(config), "-o", str(output)]) == 0
    page = Page(output)
    assert (page.data["layers"], page.data["num_experts"]) == ([0, 2, 3], 16)
    assert f"from {config}" in page.text
    assert main([str(path), "--config", str(config), "--num-experts", "8", "-o", str(output)]) == 2
    assert "--num-experts 8, and" in capsys.readouterr().err
    assert main([str(path), "--config", str(tmp_path / "none"), "-o", str(output)]) == 1


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    shape = moetap.ModelShape(
        moe_layers=SHAPE["moe_layers"], top_k=2, num_experts=16, num_hidden_layers=6
    )
    ids = routes()
    ids[4] = -1
    source = save(tmp_path / "source.npy", ids)
    made = moetap.Routes.from_npy(source.read_bytes(), shape, start=0)
    for name, file in {
        "plain": made.to_npy("int16"),
        "wide": made.to_npy("int64", all_hidden=True),
        "zero": made.to_npy("int32", all_hidden=True, dense_id=0),
    }.items():
        (tmp_path / f"{name}.npy").write_bytes(file)
    for name, dense_id in {"plain": -1, "wide": -1, "zero": 0}.items():
        run = open_run("r", [tmp_path / f"{name}.npy"])
        report = measure([run], Declared(num_experts=16, dense_id=dense_id))
        source_report = measure([open_run("r", [source])], Declared(num_experts=16))
        assert (report.runs[0].picks == source_report.runs[0].picks).all()
        assert report.runs[0].requests[0].missing == 1
