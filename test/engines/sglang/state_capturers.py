"""Installs what SGLang's capturers import, and this checkout's moetap, into build/engines, and compares the two."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import install
from trainers import PYTORCH

VERSIONS = ["0.5.23"]  # of SGLang. Its wheel is for Python 3.11

# What the modules from the routers to the response import, of all that SGLang requires. Most of the
# rest is for GPUs. Versions are those that the wheel asks for.
IMPORTED = (
    "IPython", "aiohttp", "apache-tvm-ffi", "compressed-tensors", "einops", "fastapi", "gguf", "interegular",
    "llguidance", "msgspec", "numpy", "openai", "orjson", "packaging", "partial_json_parser", "pillow",
    "prometheus-client", "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq", "regex", "requests",
    "sentencepiece", "setproctitle", "tqdm", "transformers", "uvicorn", "uvloop", "xxhash",
)
UNNAMED = ("dill", "starlette", "torchvision")  # imported, and not required by name


def run(root: Path, version: str, seeds: int) -> int:
    """The exit status of the comparison. Installs what it needs if that is not there: 6 GB."""
    if version not in VERSIONS:
        raise SystemExit(f"engines: no SGLang {version}; there is {', '.join(VERSIONS)}")
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(f"engines: SGLang's wheel is for Python 3.11, and this is {sys.version.split()[0]}")
    folder = root / "build/engines" / f"sglang-{version}"
    if not (folder / "installed").exists():
        print(f"== installing SGLang {version} into {folder.relative_to(root)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install.pip(folder, "install", "uv")
        wheels = folder / "wheels"
        install.pip(folder, "download", "--no-deps", "--dest", str(wheels), f"sglang=={version}")
        (wheel,) = wheels.glob("sglang-*.whl")
        install.uv(folder, PYTORCH, *UNNAMED, *_imported(wheel))
        install.uv(folder, "--no-deps", str(wheel))
        (folder / "installed").touch()
    print("== building moetap of this checkout, and installing it", file=sys.stderr)
    install.pip(folder, "install", "--force-reinstall", "--no-deps", str(install.wheel_of(root)))
    return subprocess.run([folder / "bin/python", root / "test/engines/sglang/compare.py", str(seeds)],
                          env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}).returncode


def _imported(wheel: Path) -> list[str]:
    """The wheel's requirements of these names."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    found = {}
    for line in required:
        package = re.split(r"[ <>=!~;\[]", line, maxsplit=1)[0]
        if package in IMPORTED and "extra ==" not in line:
            found[package] = line
    missing = sorted(set(IMPORTED) - found.keys())
    if missing:
        raise SystemExit(f"engines: SGLang no longer requires {', '.join(missing)}; name them in UNNAMED")
    return list(found.values())
