"""Runs the benchmarks, the Python baseline and the Python package, and compares them: ./dev bench.

The programs run in turn, round after round, so that a machine that is slower for a while is slower
for all; a figure is the median of the rounds. --benchmark_* options are Google Benchmark's own:
--benchmark_repetitions is the number of rounds, --benchmark_filter also chooses among the baseline's
entries, and the rest go to the programs. Without the package in the build its entries are left out.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import compare
import measured

HERE = pathlib.Path(__file__).parent
SUFFIX = "(/iterations:[0-9]+)?(/manual_time)?"  # what Google Benchmark appends to a name
NOT_COUNTERS = {
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions",
    "repetition_index", "threads", "iterations", "time_unit", "error_occurred", "error_message",
}  # fmt: skip


def plain(name):
    return re.sub(SUFFIX + "$", "", name)


class Program:
    """One of the programs: what it can run, and a run of some of it."""

    def __init__(self, command, writes_file, **environment):
        self.command = command
        self.writes_file = writes_file  # else it prints its JSON
        self.environment = {**os.environ, **environment}

    def names(self):
        listed = subprocess.run(
            [*self.command, "--benchmark_list_tests"], check=True, stdout=subprocess.PIPE, text=True,
            env=self.environment
        )  # fmt: skip
        return [plain(name) for name in listed.stdout.splitlines()]

    def run(self, names, options):
        """(context, results) of these benchmarks, once."""
        exact = f"^({'|'.join(names)}){SUFFIX if self.writes_file else ''}$"  # no special characters
        command = [*self.command, *options, f"--benchmark_filter={exact}"]
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            if self.writes_file:
                command += [f"--benchmark_out={file.name}", "--benchmark_out_format=json"]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                    env=self.environment).stdout  # fmt: skip
            report = json.load(file) if self.writes_file else json.loads(output)
        for result in report["benchmarks"]:
            result["name"] = result["run_name"] = plain(result["run_name"])
        return report["context"], report["benchmarks"]


def aggregates(results):
    """What Google Benchmark adds for the repetitions of one benchmark."""
    first = results[0]
    keys = [k for k, v in first.items() if k not in NOT_COUNTERS and isinstance(v, (int, float))]
    columns = {key: [result[key] for result in results] for key in keys}
    functions = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "stddev": lambda v: statistics.stdev(v) if len(v) > 1 else 0.0,
        "cv": lambda v: statistics.stdev(v) / statistics.fmean(v) if len(v) > 1 else 0.0,
    }
    for name, function in functions.items():
        yield {
            "name": f"{first['run_name']}_{name}",
            "run_name": first["run_name"],
            "run_type": "aggregate",
            "repetitions": len(results),
            "threads": first["threads"],
            "aggregate_name": name,
            "aggregate_unit": "percentage" if name == "cv" else "time",
            "iterations": len(results),
            **{key: function(values) for key, values in columns.items()},
            "time_unit": first["time_unit"],
        }


def measure(programs, wanted, rounds, options):
    """(context, {name: results of all rounds})"""
    context, results = {}, {name: [] for name in wanted}
    for index in range(rounds):
        for program, names in programs:
            print(f"round {index + 1} of {rounds}: {program.command[-1]}", file=sys.stderr)
            about, found = program.run(names, options)
            context = {**about, **context}
            for result in found:
                if result.get("error_occurred"):
                    sys.exit(f"{result['name']}: {result['error_message']}")
                result.update(repetitions=rounds, repetition_index=index)
                results[result["name"]].append(result)
    return context, results


def parse():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", "--benchmark_out", metavar="FILE", help="write all results, in Google Benchmark's format")
    parser.add_argument("--picture", metavar="FILE", help="where to draw (.svg, .png; default: bench.svg beside the build)")
    parser.add_argument("--benchmark_filter", default=".", metavar="REGEX")
    parser.add_argument("--benchmark_repetitions", type=int, default=7, metavar="N")
    parser.add_argument("--benchmark_min_time", default="0.04", metavar="SECONDS")
    parser.add_argument("--benchmark_list_tests", nargs="?", const="true", default="false")
    arguments, rest = parser.parse_known_args()
    for option in rest:
        if not option.startswith("--benchmark_"):
            parser.error(f"no option {option}")
    return arguments, rest


def programs_of(build):
    found = [
        Program([str(build / "bench" / "moetap_bench")], writes_file=True),
        Program([sys.executable, str(HERE / "python_design.py")], writes_file=False),
    ]
    if python := interpreter_of(build):
        found.append(Program([python, str(HERE / "python_package.py")], writes_file=False,
                             PYTHONPATH=str(build / "python")))  # fmt: skip
    return found


def interpreter_of(build):
    """The Python that the package is built for; None if it is not built."""
    options = json.loads((build / "meson-info" / "intro-buildoptions.json").read_text())
    values = {option["name"]: option["value"] for option in options}
    return (values["python_interpreter"] or sys.executable) if values["python"] != "disabled" else None


def main():
    arguments, rest = parse()
    programs = [(p, measured.chosen(p.names(), arguments.benchmark_filter))
                for p in programs_of(arguments.build)]  # fmt: skip
    programs = [(p, names) for p, names in programs if names]
    wanted = [name for _, names in programs for name in names]
    if not wanted:
        sys.exit(f"no benchmark matches {arguments.benchmark_filter!r}")
    if arguments.benchmark_list_tests != "false":
        print("\n".join(wanted))
        return
    options = [f"--benchmark_min_time={arguments.benchmark_min_time}", *rest]
    context, results = measure(programs, wanted, arguments.benchmark_repetitions, options)

    merged = []
    for repetitions in results.values():
        merged += [*repetitions, *aggregates(repetitions)]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"context": context, "benchmarks": merged}, file, indent=1)
        print(f"results: {arguments.json}", file=sys.stderr)

    medians = compare.medians(merged)
    picture = arguments.picture or str(arguments.build.parent / "bench.svg")
    if compare.draw(medians, picture):
        print(f"picture: {picture}", file=sys.stderr)
    print(compare.table(medians))


if __name__ == "__main__":
    main()
