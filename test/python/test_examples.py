"""The example programs, as users run them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import moetap

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"


@pytest.mark.parametrize("transport", ["device", "shm"])
@pytest.mark.parametrize("scheduler", ["scheduler.py", "asyncio_scheduler.py"])
def test_pairs(endpoint, scheduler, transport) -> None:
    arguments = [transport, endpoint.instance]
    with subprocess.Popen([sys.executable, EXAMPLES / "worker.py", *arguments], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        try:
            assert worker.stdout.readline().startswith("worker: <the Capturer of ")
            done = subprocess.run([sys.executable, EXAMPLES / scheduler, *arguments], text=True,
                                  capture_output=True, timeout=60)
            out, errors = worker.communicate("\n", timeout=60)
        finally:
            worker.kill()
    assert (done.returncode, done.stderr, worker.returncode, errors) == (0, "", 0, "")
    assert "64 rows, all present" in done.stdout or "64 present" in done.stdout
    assert "25 steps published" in out


def test_types_with_pyright(tmp_path) -> None:
    """The examples, and what they and trainers see of the package."""
    pytest.importorskip("pyright")
    package = pathlib.Path(moetap.__file__).parent
    checked = [*EXAMPLES.glob("*.py"), *package.glob("*.pyi"), package / "__init__.py", package / "_errors.py",
               *package.glob("replay/*.py")]
    config = {"typeCheckingMode": "strict", "extraPaths": [str(package.parent), str(EXAMPLES)],
              "include": [os.path.relpath(path, tmp_path) for path in checked]}  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-m", "pyright", "-p", tmp_path, "--pythonpath", sys.executable],
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checked", [["-p", "moetap.replay"], sorted(EXAMPLES.glob("*.py"))], ids=["package", "examples"])
def test_types_with_mypy(checked) -> None:
    pytest.importorskip("mypy")
    where = pathlib.Path(moetap.__file__).parents[1]
    path = {} if where.name == "site-packages" else {"MYPYPATH": str(where)}  # where it looks anyway, and only there
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", *checked],
                          capture_output=True, text=True, cwd=EXAMPLES, env={**os.environ, **path}, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
