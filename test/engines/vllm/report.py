"""Runs vLLM in each way, lets the oracle judge the rows, and prints what was found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import install
from ways import PATHS, Way

COUNTS = {
    "preemptions": "preemptions", "hit_tokens": "tokens hit", "chunks": "chunks of prompts",
    "aborts": "aborts", "drafts": "drafts", "accepted": "drafts accepted", "resets": "resets",
    "ahead": "steps scheduled ahead", "preempted_ahead": "preempted with a step in flight"}
LOG = "vllm.log"
# What a run must have made happen, or it proves nothing.
LEAST = {"preemptions": 11, "hit_tokens": 1, "chunks": 1, "aborts": 1}
MORE = {"drafts": ("drafts", "accepted"), "resets": ("resets",), "async": ("ahead",)}


def run(root: Path, folder: Path, version: str, ways: list[Way], jobs: int, seed: int) -> int:
    """0 if every row of moetap's is equal to the oracle's, and all that should happen did."""
    here = root / "test/engines/vllm"
    output = root / "build/engines" / f"output-{version}"
    model = root / "build/engines" / f"tiny-qwen3-moe-{version}"
    python = folder / "bin/python"
    environment = install.environment(folder, version)
    arguments = ["--jobs", str(jobs), "--seed", str(seed)]
    print(f"== {len(ways)} ways; vLLM writes to {output.relative_to(root)}/WAY/{LOG}", file=sys.stderr)
    summaries = {}
    for way in ways:
        print(f"== {way.name}", file=sys.stderr)
        shutil.rmtree(output / way.name, ignore_errors=True)
        (output / way.name).mkdir(parents=True)
        with open(output / way.name / LOG, "w") as log:
            subprocess.run([python, here / "run.py", model, output / way.name, way.name, *arguments],
                           env=environment, check=False, stdout=log, stderr=log)
        summaries[way] = _summary(output / way.name, [python, here / "left.py"], environment)
    with_rows = [way for way in ways if way.path != "none" and "error" not in summaries[way]]
    judged = subprocess.run([python, here / "oracle.py", model, *(output / way.name for way in with_rows)],
                            env=environment, check=True, stdout=subprocess.PIPE, text=True)
    verdicts = {Path(name).name: verdict for name, verdict in json.loads(judged.stdout).items()}
    faults = sum(_print(way, summaries[way], verdicts.get(way.name)) for way in ways)
    print("all rows equal" if not faults else f"{faults} faults; see above")
    return 1 if faults else 0


def _summary(folder: Path, left: list[Path], environment: dict[str, str]) -> dict[str, Any]:
    """What the run says of itself, which it writes last, and what it left. left: the command that tells."""
    file = folder / "summary.json"
    summary = json.loads(file.read_text()) if file.exists() else {"error": "the process died; see the log"}
    if "instance" in summary:
        told = subprocess.run([*left, summary["instance"]], env=environment, check=True, stdout=subprocess.PIPE)
        summary |= json.loads(told.stdout)
    return summary | {"leaked": "nanobind: leaked" in (folder / LOG).read_text()}


def _left(way: Way, summary: dict[str, Any]) -> list[str]:
    """Faults in what is left in shared memory. A killed worker's is removed at the next start."""
    if way.path in ("theirs", "wire-read"):  # vLLM's own
        return []
    left = summary["left_later" if "kill" in way.options else "left"]
    return [f"left in shared memory: {', '.join(left)}"] if left else []


def _print(way: Way, summary: dict[str, Any], verdict: dict[str, Any] | None) -> int:
    """Prints what was found in one way. Returns the number of faults."""
    print(f"{way.name}: {way.words}")
    faults = [summary["error"]] if "error" in summary else []
    if not faults:
        counts = ", ".join(f"{summary[what]} {name}" for what, name in COUNTS.items())
        step = 1e3 * summary["seconds"] / summary["steps"]
        print(f"    {summary['steps']} steps of {step:.1f} ms, {counts}")
        ends = [f"{1e6 * summary[f'{end}_seconds'] / summary['steps']:.0f} us in the {end}"
                for end in ("worker", "scheduler") if f"{end}_seconds" in summary]
        if ends:
            print(f"    processor time of the rows in each step: {', '.join(ends)}")
        least = {} if "kill" in way.options else dict(LEAST)
        for option in way.options:
            least |= dict.fromkeys(MORE.get(option, ()), 1)
        faults += [f"{summary[what]} {COUNTS[what]}; there must be {count} or more"
                   for what, count in least.items() if summary[what] < count]
        if not summary["connector"].startswith(PATHS[way.path][1]):
            faults.append(f"the rows came by {summary['connector']}")
        if "kill" in way.options:
            print(f"    {summary['kills']} worker killed, then {summary['unfinished']} requests unfinished: "
                  f"{summary['died'] or 'no error'}")
            print(f"    left in shared memory: {len(summary['left'])}, and {len(summary['left_later'])} after the next start")
            if not summary["died"] or not summary["unfinished"]:
                faults.append("the engine went on without its worker")
        faults += _left(way, summary)
    if summary["leaked"]:
        faults.append("objects of moetap were alive when a process ended; see the log")
    if verdict is not None:
        print(f"    {verdict['equal']} of {verdict['expected']} rows equal, {verdict['ties']} tied, "
              f"{verdict['wrong']} wrong, in {verdict['requests']} requests, {verdict['shapes']} of another shape")
        if verdict["equal"] + verdict["ties"] != verdict["expected"]:
            faults.append(verdict["first"])
    if way.path == "theirs":  # what vLLM's own path returns is shown, and no fault of ours
        for fault in faults:
            print(f"    {fault}")
        return 0
    for fault in faults:
        print(f"    FAULT: {fault}")
    return len(faults)
