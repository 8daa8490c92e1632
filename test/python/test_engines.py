"""What judges the rows of real engines: it must find each kind of fault."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines/vllm"))

import oracle
import report
from ways import DEFAULT, Way

LOGITS = np.array([[[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 1.0 + oracle.TIE / 2, 2.0]]], np.float32)


@pytest.mark.parametrize(("picked", "equal", "tied"), [
    ([[0, 1], [3, 2]], True, True),
    ([[1, 0], [2, 3]], True, True),  # in another order
    ([[0, 1], [3, 1]], False, True),  # a tie
    ([[0, 2], [3, 2]], False, False),
    ([[0, 0], [3, 2]], False, False),  # one expert twice
    ([[0, 1], [0, 2]], False, False),
])
def test_compare(picked: list[list[int]], equal: bool, tied: bool) -> None:
    found = oracle.compare(np.array([picked]), LOGITS)
    assert (found[0].tolist(), found[1].tolist()) == ([equal], [tied])


class Oracle(oracle.Oracle):
    """With given logits: a token's best experts are its number and the next, in both of its MoE layers."""

    def __init__(self) -> None:
        self.top_k, self.num_layers, self.layers = 2, 3, [0, 2]

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        experts = np.arange(8)
        distance = (experts[None] - tokens[:, None]) % 8
        return np.repeat(-distance[:, None].astype(np.float32), 2, axis=1)


def rows(tokens: list[int]) -> np.ndarray:
    made = np.zeros((len(tokens), 3, 2), np.uint8)
    for index, token in enumerate(tokens):
        made[index, [0, 2]] = token % 8, (token + 1) % 8
    return made


def judge(folder: Path, routes: np.ndarray | None, start: int = 0) -> oracle.Verdict:
    arrays: dict[str, Any] = {"a/tokens": np.array([3, 5, 6, 1]), "a/start": np.array(start)}
    if routes is not None:
        arrays["a/routes"] = routes
    np.savez(folder / "outputs.npz", **arrays)
    return Oracle().judge(folder / "outputs.npz")


def test_right_rows(tmp_path: Path) -> None:
    verdict = judge(tmp_path, rows([3, 5, 6]))
    assert (verdict.expected, verdict.equal, verdict.wrong, verdict.shapes, verdict.first) == (3, 3, 0, 0, "")
    assert judge(tmp_path, rows([5, 6]), start=1).equal == 2


def test_wrong_rows(tmp_path: Path) -> None:
    verdict = judge(tmp_path, rows([3, 6, 6]))
    assert (verdict.equal, verdict.wrong) == (2, 1)
    assert verdict.first == "a: token 1 of 4 has [[6, 7], [6, 7]] instead of [[5, 6], [5, 6]]"
    dense = rows([3, 5, 6])
    dense[2, 1] = 1
    assert judge(tmp_path, dense).first == "a: ids other than 0 in dense layers"


@pytest.mark.parametrize("routes", [None, rows([3, 5]), rows([3, 5, 6, 1])])
def test_another_number_of_rows(tmp_path: Path, routes: np.ndarray | None) -> None:
    verdict = judge(tmp_path, routes)
    assert (verdict.shapes, verdict.equal, verdict.expected) == (1, 0, 3)


SUMMARY = {"steps": 1, "seconds": 1.0, "connector": "moetap.vllm.scheduler.SchedulerConnector", "preemptions": 11,
           "hit_tokens": 1, "chunks": 1, "aborts": 1, "drafts": 0, "accepted": 0, "resets": 0,
           "ahead": 0, "preempted_ahead": 0, "kills": 0, "unfinished": 0, "died": "", "left": [], "left_later": [],
           "leaked": False}
KILLED = {"kills": 1, "unfinished": 9, "died": "RuntimeError: cancelled", "preemptions": 0, "left": ["/moetap_a"]}
VERDICT = {"requests": 1, "expected": 3, "equal": 2, "ties": 1, "wrong": 0, "shapes": 0, "first": ""}


@pytest.mark.parametrize(("way", "changes", "faults"), [
    ("device", {}, 0),
    ("device", {"preemptions": 10}, 1),
    ("device", {"hit_tokens": 0}, 1),
    ("device", {"chunks": 0}, 1),
    ("device", {"aborts": 0}, 1),
    ("device+drafts", {"drafts": 9}, 1),
    ("device+drafts", {"drafts": 9, "accepted": 1}, 0),
    ("device+resets", {}, 1),
    ("device+resets", {"resets": 1}, 0),
    ("device", {"connector": "vllm.distributed.aux_output_connector.connector.AuxOutputSchedulerConnector"}, 1),
    ("wire-read", {"connector": "vllm.model_executor.layers.fused_moe.routed_experts_capturer.RoutedExpertsReader"}, 1),
    ("wire-read", {"connector": "moetap_cpu_hook.wire.WireReader"}, 0),
    ("none", {"connector": "builtins.NoneType"}, 0),
    ("device+async", {}, 1),
    ("device+async", {"ahead": 1}, 0),
    ("device", {"left": ["/moetap_a"]}, 1),
    ("theirs", {"left": ["/vllm_a"], "connector": "vllm.a"}, 0),
    ("wire-write", {"left": ["/vllm_a"], "connector": "vllm.a"}, 1),
    ("wire-write+kill", KILLED | {"connector": "vllm.a"}, 0),
    ("wire-write+kill", KILLED | {"left_later": ["/vllm_a"], "connector": "vllm.a"}, 1),
    ("device", {"leaked": True}, 1),
    ("device+kill", KILLED, 0),
    ("device+kill", KILLED | {"unfinished": 0}, 1),
    ("device+kill", KILLED | {"died": ""}, 1),
    ("device+kill", KILLED | {"left_later": ["/moetap_a"]}, 1),
    ("device", {"error": "RowsNotPresent: request 'a'"}, 1),
])
def test_a_report(way: str, changes: dict[str, Any], faults: int) -> None:
    assert report._print(Way.parse(way), SUMMARY | changes, VERDICT if way != "none" else None) == faults


def test_a_report_of_wrong_rows() -> None:
    assert report._print(Way.parse("device"), SUMMARY, VERDICT | {"equal": 1, "wrong": 1, "first": "a: token 1"}) == 1
    assert report._print(Way.parse("device"), SUMMARY, VERDICT | {"equal": 0, "shapes": 1, "first": "a: shape"}) == 1


@pytest.mark.parametrize("text", ["", "devices", "device+", "device+unix"])
def test_a_way_that_there_is_not(text: str) -> None:
    with pytest.raises(ValueError, match="there is none, theirs, device"):
        Way.parse(text)


def test_ways_that_a_version_has() -> None:
    for ways in DEFAULT.values():
        for way in ways:
            assert Way.parse(way).words
