"""Routed experts of vLLM through moetap.

vLLM loads this plugin in each of its processes. An engine's rows take vLLM's own path unless the
environment variable MOETAP_VLLM, or `moetap` in the engine's `additional_config`, names a
transport: `device` or `shm`. Then vLLM's own `enable_return_routed_experts` gives the rows that
moetap carried, in the same place and form.
"""

import functools
import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from moetap._imports import once, when_imported
from moetap._plugins import Transport, transport_named

VARIABLE = "MOETAP_VLLM"
KEY = "moetap"  # in additional_config

# How an error says that the engine would run without moetap.
SWITCH_OFF = f"switch moetap off ({VARIABLE} unset, no {KEY} in additional_config)"

# The releases that this plugin was run with, with their patch releases: which of our modules knows
# their classes.
KNOWN = {(0, 18): "buffer_form", (0, 32): "connector_form"}


def transport(vllm_config: Any) -> Transport | None:
    """The transport that this engine is to use, or None. ValueError if it is asked for two."""
    by_variable = _asked_by_environment()
    by_config = _asked_by_config(vllm_config)
    if by_variable is not None and by_config is not None and by_variable != by_config:
        raise ValueError(
            f"{VARIABLE} is '{by_variable}', and {KEY} in additional_config is '{by_config}'; leave one out"
        )
    return by_config or by_variable


def register() -> None:
    """vLLM's entry point, called in every process. Calling it again changes nothing."""
    asked = _asked_by_environment() is not None
    import vllm

    form = KNOWN.get(vllm.__version_tuple__[:2])
    if form is not None:
        import_module(f"moetap.vllm.{form}").install()
    elif asked:
        raise RuntimeError(_unknown(vllm.__version__))
    else:
        when_imported("vllm.config", _refuse_when_asked)


def _asked_by_environment() -> Transport | None:
    return transport_named(os.environ.get(VARIABLE), VARIABLE, "left out")


def _asked_by_config(vllm_config: Any) -> Transport | None:
    more = vllm_config.additional_config
    if not isinstance(more, Mapping):
        return None
    return transport_named(more.get(KEY), f"{KEY} in additional_config", "left out")


@once
def _refuse_when_asked(module: ModuleType) -> None:
    """In a release that is not known, an engine that asks for moetap is an error, and no other is."""
    import vllm

    config = module.VllmConfig
    check = config.__post_init__

    @functools.wraps(check)
    def check_and_refuse(self: Any, *arguments: Any) -> None:
        check(self, *arguments)
        if _asked_by_config(self) is not None:
            raise RuntimeError(_unknown(vllm.__version__))

    config.__post_init__ = check_and_refuse


def _unknown(version: str) -> str:
    known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN)
    return (
        f"vLLM is {version}, and moetap's plugin knows {known}: another release may pass its rows in "
        f"another way. Install one of these, or {SWITCH_OFF}"
    )
