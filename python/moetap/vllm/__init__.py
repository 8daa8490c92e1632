"""Routed experts of vLLM through moetap.

vLLM loads this plugin in each of its processes. It does nothing unless the environment variable
MOETAP_VLLM names a transport: `device` or `shm`. Then vLLM's own
`enable_return_routed_experts` gives the rows that moetap carried, in the same place and form.
"""

import os
from importlib import import_module
from typing import Literal

VARIABLE = "MOETAP_VLLM"

# The releases that this plugin was run with, with their patch releases: which of our modules knows
# their classes.
KNOWN = {(0, 18): "buffer_form", (0, 32): "connector_form"}


def transport() -> Literal["device", "shm"] | None:
    """The transport that the environment asks for, or None."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return None
    if asked == "device":
        return "device"
    if asked == "shm":
        return "shm"
    raise ValueError(f"{VARIABLE} is '{asked}'; it must be device, shm or unset")


def register() -> None:
    """vLLM's entry point, called in every process. Calling it again changes nothing."""
    if transport() is None:
        return
    import vllm

    import_module(f"moetap.vllm.{form_of(vllm.__version__, vllm.__version_tuple__)}").install()


def form_of(version: str, parts: tuple[int | str, ...]) -> str:
    """The module for this release. RuntimeError for a release that this plugin was not run with."""
    form = KNOWN.get(parts[:2])  # type: ignore[arg-type]
    if form is not None:
        return form
    known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN)
    raise RuntimeError(
        f"vLLM is {version}, and moetap's plugin knows {known}: another release may pass its rows in "
        f"another way. Install one of these, or unset {VARIABLE}"
    )
