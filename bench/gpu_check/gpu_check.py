"""Tests and measures moetap on a GPU: ./dev gpu_check.

Runs the tests that have a device on `cuda`, the kernel tests under compute-sanitizer, then measures,
and serves the demo on both transports. The figures go to a JSON file; the table comes last. Ends with
0 if all is well, 1 if something failed or could not be run, 3 if this machine has no GPU. With
--device host the same is run without a GPU (and without compute-sanitizer), to see that it works.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

NO_GPU = 3
KERNEL_TESTS = "*DeviceCacheOn*{0}:*RouterOn*{0}:*BindOn*{0}:*DeviceOrder.RunsEach*{0}"


def run(command, seconds):
    """(whether it ended well, what it printed). Never raises for what the command does."""
    print(">", " ".join(map(str, command)), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        return False, f"{(error.output or b'').decode(errors='replace')}\nnot done in {seconds} s"
    return done.returncode == 0, done.stdout


class Check:
    def __init__(self, build, device):
        self.build = build
        self.device = device
        self.parameter = "cuda" if device.startswith("cuda") else "host"
        self.outcomes = []  # (name, "ok" | "failed" | "not run", detail)
        self.figures = []
        self.demo = []

    def note(self, name, good, output, lines=1):
        detail = " / ".join(output.strip().splitlines()[-lines:])
        self.outcomes.append((name, "ok" if good else "failed", detail))
        if not good:
            print(output, file=sys.stderr, flush=True)

    def tests(self):
        filters = f"*{self.parameter}:Cuda.*"
        good, output = run([self.build / "test/gpu/gpu_tests", f"--gtest_filter={filters}"], 120)
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
            filters = KERNEL_TESTS.format(self.parameter)
            good, output = run(
                [tool, "--tool", name, "--error-exitcode", "9", self.build / "test/gpu/gpu_tests",
                 f"--gtest_filter={filters}"], 100,
            )  # fmt: skip
            self.note(name, good, output)

    def measure(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            program = self.build / "bench/gpu_check/moetap_gpu_check"
            good, output = run([program, self.device, file.name], 150)
            self.note("measure", good, output)
            if good:
                self.figures = json.load(file)["figures"]

    def serve(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            program = self.build / "examples/simulator/moetap-demo"
            good, output = run([program, "--device", self.device, "--json", file.name], 60)
            self.note("demo", good, output)
            if good:
                self.demo = json.load(file)

    def report(self, started):
        return {
            "device": self.device,
            "seconds": round(time.monotonic() - started, 1),
            "outcomes": [dict(zip(("name", "outcome", "detail"), o)) for o in self.outcomes],
            "figures": self.figures,
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
    parser.add_argument("--build", type=pathlib.Path, required=True, help="Meson's build directory")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or host")
    parser.add_argument("--json", type=pathlib.Path, help="default: gpu_check.json in --build")
    options = parser.parse_args()

    started = time.monotonic()
    if options.device != "host":
        good, why = run([options.build / "bench/gpu_check/moetap_gpu_check", "--why-no-gpu"], 60)
        if not good:
            print(f"gpu_check: there is no GPU here: {why.strip()}")
            return NO_GPU
    check = Check(options.build, options.device)
    for part in (check.tests, check.sanitizer, check.measure, check.serve):
        part()
    report = check.report(started)
    path = options.json or options.build / "gpu_check.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{path}\n\n{table(report)}")
    return 0 if all(outcome == "ok" for _, outcome, _ in check.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
