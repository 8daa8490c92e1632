"""The exceptions of moetap.

Every message names the value, the limit and the remedy. A call that raises one has changed
nothing, unless its description says otherwise.
"""

import builtins


class Error(Exception):
    """The base of every exception of moetap's. Each is a builtin one of its kind too."""


class ArgumentError(Error, ValueError):
    """A shape, option, configuration file or argument that cannot work."""


class RangeError(Error, IndexError):
    """A number outside its range: a slot, an expert id, a token count."""


class StateError(Error, RuntimeError):
    """A call at the wrong time: after close(), in a forked child, while another thread's runs."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait ended at its timeout. The message names what was waited for."""


class SystemError(Error, OSError):
    """The operating system refused a call. `errno` says why."""


class DeviceError(Error, RuntimeError):
    """The device's runtime refused a call. `code` is the runtime's error number."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class MismatchError(Error, RuntimeError):
    """The two ends were given different descriptions, or shared memory holds something else."""


class OwnedError(Error, RuntimeError):
    """A living process already owns this name. The message has its pid."""


class StepFailed(Error, RuntimeError):
    """A step's rows could not be published, so they are missing. `reason` is the worker's text."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(step, reason)
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"step {self.step} failed: {self.reason}"


class CollectiveError(Error, RuntimeError):
    """Ranks that gather their parts together cannot go on."""


class RowsNotPresent(Error, RuntimeError):
    """All rows were required to be present, and some are not."""


for _error in (Error, *Error.__subclasses__()):
    _error.__module__ = "moetap"
