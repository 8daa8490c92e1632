"""Tests and measures moetap on a GPU: ./dev gpu_check.

Runs the tests that have a device on `cuda`, measures, serves the demo on both transports, and runs
the kernel tests under compute-sanitizer. The figures go to a JSON file; the table comes last. Ends
with 0 if all is well, 1 if something failed, could not be run or had no time left, or a row was
wrong, 3 if this machine has no GPU. A goal of a measurement that is missed is shown and changes no
status. With --device host the same is run without a GPU (and without compute-sanitizer), to see that
it works.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NO_GPU = 3
SECONDS = 350  # of the 6 minutes that a check may take, all parts together
# Together they launch every kernel.
KERNEL_SUITES = (
    "DeviceCacheOn", "RouterOn", "BindOn", "DeviceOrder.RunsEach", "PartGatherOn", "GatheredStepOn",
    "WantedRowsOn", "SlotRowsOn", "RouteSinkOn",
)  # fmt: skip


def run(command, seconds):
    """(whether it ended well, what it printed). Never raises for what the command does, and leaves
    none of its processes running if it is not done in time."""
    print(">", " ".join(map(str, command)), file=sys.stderr, flush=True)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, _ = process.communicate()
            return False, f"{output}\nnot done in the {seconds:.0f} s that were left"
    return process.returncode == 0, output


def contents(file):
    """What a program wrote; {} if it did not get there."""
    try:
        return json.load(file)
    except ValueError:
        return {}


class Check:
    def __init__(self, build, device, deadline):
        self.build = build
        self.device = device
        self.deadline = deadline
        self.parameter = "cuda" if device.startswith("cuda") else "host"
        self.outcomes = []  # (name, "ok" | "failed" | "not run", detail)
        self.figures = []
        self.demo = {}

    def run(self, name, command):
        """As run(), with the time that is left; None if there is none."""
        left = self.deadline - time.monotonic()
        if left > 0:
            return run(command, left)
        self.outcomes.append((name, "not run", "no time was left"))
        return None

    def note(self, name, good, output, lines=1):
        detail = " / ".join(output.strip().splitlines()[-lines:])
        self.outcomes.append((name, "ok" if good else "failed", detail))
        if not good:
            print(output, file=sys.stderr, flush=True)

    def tests(self):
        filters = f"*{self.parameter}:Cuda.*"
        done = self.run("tests", [self.build / "test/gpu/gpu_tests", f"--gtest_filter={filters}"])
        if done is None:
            return
        good, output = done
        ran = [line for line in output.splitlines() if line.startswith("[  PASSED  ]")]
        self.note("tests", good and bool(ran), "\n".join(ran) if good and ran else output)

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        for name in ("memcheck", "racecheck"):
            if self.parameter != "cuda":
                continue
            if not pathlib.Path(tool).exists():
                self.outcomes.append((name, "not run", "compute-sanitizer is not installed"))
                continue
            filters = ":".join(f"*{suite}*{self.parameter}" for suite in KERNEL_SUITES)
            done = self.run(
                name,
                [tool, "--tool", name, "--error-exitcode", "9", self.build / "test/gpu/gpu_tests",
                 f"--gtest_filter={filters}"],
            )  # fmt: skip
            if done is not None:
                self.note(name, *done)

    def measure(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            program = self.build / "bench/gpu_check/moetap_gpu_check"
            done = self.run("measure", [program, self.device, file.name])
            if done is None:
                return
            self.figures = contents(file).get("figures", [])
            self.note("measure", done[0] and bool(self.figures), done[1])

    def serve(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            program = self.build / "examples/simulator/moetap-demo"
            done = self.run("demo", [program, "--device", self.device, "--json", file.name])
            if done is None:
                return
            self.demo = contents(file)
            rows = self.rows()
            right = bool(rows) and all(figure["met"] is not False for figure in rows)
            self.note("demo", done[0] and right, done[1])

    def rows(self):
        """The figures of the demo that say whether it got the right rows."""
        figures = []
        for served in self.demo.get("runs", []):
            verified, wrong = served["rows_verified"], served["rows_wrong"]
            for kind, value, goal, met in (
                ("verified", verified, None, None),
                ("wrong", wrong, "<= 0", wrong == 0),
            ):
                name = f"rows {kind}/{served['transport']}"
                figures.append(
                    {"name": name, "value": value, "unit": "rows", "goal": goal, "met": met}
                )
        return figures

    def report(self, started):
        return {
            "device": self.device,
            "seconds": round(time.monotonic() - started, 1),
            "outcomes": [dict(zip(("name", "outcome", "detail"), o)) for o in self.outcomes],
            "figures": self.figures + self.rows(),
            "demo": self.demo,
        }


def table(report):
    lines = [f"{'figure':<52} {'value':>12} {'unit':<9} {'goal':<8}"]
    for figure in report["figures"]:
        goal = figure["goal"] or ""
        verdict = "" if figure["met"] is None else ("met" if figure["met"] else "MISSED")
        lines.append(
            f"{figure['name']:<52} {figure['value']:>12.3f} {figure['unit']:<9} {goal:<8} {verdict}"
        )
    lines.append("")
    for outcome in report["outcomes"]:
        lines.append(f"{outcome['name']:<12} {outcome['outcome']:<8} {outcome['detail'][:100]}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or host")
    parser.add_argument("--json", type=pathlib.Path, help="default: gpu_check.json beside the build")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"for all parts together ({SECONDS})"
    )
    options = parser.parse_args()

    started = time.monotonic()
    if options.device != "host":
        good, why = run([options.build / "bench/gpu_check/moetap_gpu_check", "--why-no-gpu"], 60)
        if not good:
            print(f"gpu_check: there is no GPU here: {why.strip()}")
            return NO_GPU
    check = Check(options.build, options.device, started + options.seconds)
    for part in (check.tests, check.measure, check.serve, check.sanitizer):
        part()
    report = check.report(started)
    path = options.json or options.build / "gpu_check.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{path}\n\n{table(report)}")
    return 0 if all(outcome == "ok" for _, outcome, _ in check.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
