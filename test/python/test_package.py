"""The package itself: what it loads, names, documents and types."""

import enum
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import SHAPE

import moetap


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_scheduler_never_loads_the_workers_library() -> None:
    loaded = "print('libmoetap-gpu' in open('/proc/self/maps').read())"
    assert run(f"import moetap; moetap.Reader; moetap.Ledger(1, 1); {loaded}") == "False"
    assert run(f"import moetap; moetap.Capturer; {loaded}") == "True"


def test_all_names_are_there_and_documented() -> None:
    assert set(dir(moetap)) == set(moetap.__all__)
    for name in moetap.__all__:
        value = getattr(moetap, name)
        assert inspect.getdoc(value), name
        assert not name.startswith("_")
    with pytest.raises(AttributeError, match="no attribute 'Capturers'"):
        _ = moetap.Capturers


def test_all_names_are_in_the_page() -> None:
    page = (pathlib.Path(__file__).parents[2] / "doc/python.md").read_text()
    described = set(re.findall(r"\w+", page))
    missing = [name for name in moetap.__all__ if name not in described]
    for name in moetap.__all__:
        if inspect.isclass(value := getattr(moetap, name)) and not issubclass(value, (Exception, enum.Enum)):
            missing += [f"{name}.{member}" for member in vars(value)
                        if not member.startswith("_") and member not in described]
    assert not missing


def test_all_errors_are_python_errors() -> None:
    assert issubclass(moetap.ArgumentError, ValueError) and issubclass(moetap.RangeError, IndexError)
    assert issubclass(moetap.TimeoutError, TimeoutError) and issubclass(moetap.SystemError, OSError)
    for error in moetap.Error.__subclasses__():
        assert getattr(moetap, error.__name__) is error and error.__module__ == "moetap"


def test_it_is_typed() -> None:
    folder = pathlib.Path(moetap.__file__).parent
    assert (folder / "py.typed").exists()
    stubs = (folder / "_reader.pyi").read_text() + (folder / "_capturer.pyi").read_text()
    for name in moetap.__all__:
        assert name in stubs or name in (folder / "_errors.py").read_text()
    assert moetap.__version__ == moetap.version() and moetap.version().count(".") == 2


def test_pythons_resource_tracker_never_sees_our_segments() -> None:
    assert run("import moetap, os; moetap.find_segments(); from multiprocessing import resource_tracker as r; "
               "print(r._resource_tracker._pid)") == "None"


class Endless:
    """Has an item at each index, and says of itself that it is this long."""

    def __init__(self, length: int, item: object) -> None:
        self.length, self.item = length, item

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, _: object) -> object:
        return self.item


def test_sequences_are_not_longer_than_memory() -> None:
    rows = moetap.Routes(SHAPE, range(4))
    for items in (range(-(2**31), 40), range(10**30), Endless(2**40, 1), Endless(-1, 1)):
        for call in (moetap.anchor_group, lambda layers: rows.take(layers=layers),
                     lambda layers: moetap.ModelShape(layers, 2, 16), SHAPE.with_layers):  # fmt: skip
            with pytest.raises((TypeError, ValueError, OverflowError)):
                call(items)
        with pytest.raises((TypeError, ValueError, OverflowError)):
            moetap.slots_of(items, 4, range(4))
    assert moetap.ModelShape(Endless(1, 3), 2, 16).moe_layers == (3,)
    assert moetap.slots_of(Endless(1, 3), 4, range(4)).tolist() == [12, 13, 14, 15]
