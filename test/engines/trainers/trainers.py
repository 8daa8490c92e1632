"""Installs Megatron-Core for a CPU, and this checkout's moetap, into build/engines, and replays routes in it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from install import wheel_of

VERSIONS = ["0.16.1"]  # of Megatron-Core. Later ones need Python 3.12
PYTORCH = "torch==2.13.0"


def run(root: Path, version: str) -> int:
    """The exit status of the tests that need a trainer. Installs it if it is not there: 5 GB."""
    if version not in VERSIONS:
        raise SystemExit(f"engines: no Megatron-Core {version}; there is {', '.join(VERSIONS)}")
    folder = root / "build/engines" / f"megatron-{version}"
    python = folder / "bin/python"
    pip = [python, "-m", "pip", "--quiet", "install"]
    if not (folder / "installed").exists():
        print(f"== installing Megatron-Core {version} into {folder.relative_to(root)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([*pip, "uv"], check=True)
        subprocess.run([folder / "bin/uv", "pip", "install", "--quiet", "--python", python, PYTORCH,
                        f"megatron-core=={version}", "numpy", "pytest"], check=True)
        (folder / "installed").touch()
    print("== building moetap of this checkout, and installing it", file=sys.stderr)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel_of(root)], check=True)
    tests = root / "test/python/test_replay_megatron.py"
    return subprocess.run([python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-W", "ignore", tests],
                          env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""},
                          cwd=root / "test/python").returncode
