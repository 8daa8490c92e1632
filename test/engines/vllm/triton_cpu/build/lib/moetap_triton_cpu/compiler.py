"""The compiler of a backend whose kernels are interpreted. It refuses every target."""

from types import ModuleType
from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend


def _refuse() -> NoReturn:
    raise RuntimeError("a kernel is to be compiled for a CPU; set TRITON_INTERPRET=1")


class NoCompiler(BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return False

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: dict[str, Any]) -> NoReturn:
        _refuse()

    def add_stages(self, stages: dict[str, Any], options: object, *_: Any) -> NoReturn:
        _refuse()

    def load_dialects(self, context: Any) -> NoReturn:
        _refuse()

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
