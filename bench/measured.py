"""What the benchmarks in Python share: Google Benchmark's options, and its form of results."""

import argparse
import json
import re
import sys


def chosen(names, pattern):
    """Google Benchmark's filter: a regular expression, a leading '-' inverts it."""
    wanted = not pattern.startswith("-")
    expression = re.compile(pattern.removeprefix("-") or ".")
    return [name for name in names if bool(expression.search(name)) == wanted]


def result(name, iterations, wall, cpu):
    """Of seconds an iteration."""
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": 1,
        "iterations": iterations,
        "real_time": wall * 1e9,
        "cpu_time": cpu * 1e9,
        "time_unit": "ns",
    }


def main(description, names, run, context):
    """run(names, min_time) returns results. `names`: all there are, in the order that they run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--benchmark_filter", default=".")
    parser.add_argument("--benchmark_min_time", default="0.1")
    parser.add_argument("--benchmark_list_tests", action="store_true")
    options = parser.parse_args()
    found = chosen(names, options.benchmark_filter)
    if options.benchmark_list_tests:
        print("\n".join(found))
        return
    results = run(found, float(options.benchmark_min_time.removesuffix("s")))
    json.dump({"context": context, "benchmarks": results}, sys.stdout, indent=2)
