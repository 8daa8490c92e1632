"""Routed experts of SGLang through moetap.

SGLang loads this plugin in each of its processes. Rows take SGLang's own path unless the environment
variable MOETAP_SGLANG names a transport: `device` or `shm`. Then SGLang's own
`--enable-return-routed-experts` gives the rows that moetap carried, in the same place and form.

from_base64() reads the `routed_experts` of a response, with or without the plugin, and to_base64()
writes it.
"""

import os

from moetap._plugins import Transport, transport_named
from moetap.sglang.flat import from_base64, to_base64

__all__ = ["from_base64", "register", "to_base64", "transport"]

VARIABLE = "MOETAP_SGLANG"

# How an error says that the engine would run without moetap.
SWITCH_OFF = f"switch moetap off ({VARIABLE} unset)"

# The releases whose classes this plugin was compared with. Their last number changes classes too.
KNOWN = ("0.5.23",)


def transport() -> Transport | None:
    """The transport that this process is to use, or None. ValueError for one that there is not."""
    return transport_named(os.environ.get(VARIABLE), VARIABLE, "unset")


def register() -> None:
    """SGLang's entry point, called in every process. Calling it again changes nothing.

    SGLang logs an exception of a plugin, and then runs without the plugin. So what is refused ends
    the process: SystemExit.
    """
    try:
        if transport() is None:
            return
        _require_known_release()
    except (RuntimeError, ValueError) as refused:
        raise SystemExit(f"moetap: {refused}") from refused
    from moetap.sglang.changes import install

    install()


def _require_known_release() -> None:
    from sglang.version import __version__ as version

    if version not in KNOWN:
        raise RuntimeError(
            f"SGLang is {version}, and moetap's plugin knows {', '.join(KNOWN)}: another release may "
            f"take its rows in another way. Install one of these, or {SWITCH_OFF}"
        )
