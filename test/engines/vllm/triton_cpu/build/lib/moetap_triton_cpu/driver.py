"""The driver of a backend whose kernels are interpreted."""

from typing import Any, NoReturn

from triton.backends.driver import DriverBase


class InterpretedDriver(DriverBase):
    """Active always: a process with TRITON_INTERPRET=1 has no other."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        raise RuntimeError(f"the type '{ty}' of a kernel that is to be compiled; set TRITON_INTERPRET=1")

    def get_current_target(self) -> NoReturn:
        raise RuntimeError("a kernel is to be compiled for a CPU; set TRITON_INTERPRET=1")

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> NoReturn:
        raise RuntimeError("interpreted kernels are not tuned; set TRITON_INTERPRET=1")
