"""Puts our capturer where SGLang makes its own."""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from moetap._imports import once, when_imported
from moetap.sglang import SWITCH_OFF
from moetap.sglang.capturers import RoutedExpertsCapturer, refuse_indexer_topk


def install() -> None:
    """Changes SGLang's classes as soon as they are imported. Installing again changes nothing.

    SGLang's own hooks are not used: it logs one that cannot be set, and goes on without it.
    """
    when_imported("sglang.srt.state_capturer.routed_experts", _change_capturer)
    when_imported("sglang.srt.state_capturer.indexer_topk", _change_indexer)
    when_imported("sglang.srt.model_executor.model_runner", _change_runner)


@once
def _change_capturer(module: ModuleType) -> None:
    theirs = module.RoutedExpertsCapturer
    for name in ("create", "capture", "on_forward_end", "get_topk", "destroy"):
        _require_alike(getattr(theirs, name), getattr(RoutedExpertsCapturer, name))
    theirs.create = staticmethod(RoutedExpertsCapturer.create)


@once
def _change_indexer(module: ModuleType) -> None:
    """In an engine that asks for it, it is refused."""
    theirs = module.create_indexer_capturer

    @functools.wraps(theirs)
    def create_indexer_capturer(**options: Any) -> Any:
        from sglang.srt.runtime_context import get_exec

        if get_exec().features.enable_return_indexer_topk:
            refuse_indexer_topk()
        return theirs(**options)

    vars(module)["create_indexer_capturer"] = create_indexer_capturer


@once
def _change_runner(module: ModuleType) -> None:
    """Warm-ups capture too, and SGLang does not say when they end."""
    runner = module.ModelRunner
    theirs = runner.forward

    @functools.wraps(theirs)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        capturer = module.get_global_experts_capturer()
        if isinstance(capturer, RoutedExpertsCapturer) and not self.is_draft_worker:
            capturer.forward_begins()
        return theirs(self, *arguments, **options)

    runner.forward = forward


def _require_alike(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """RuntimeError unless they take the same arguments."""
    found, known = (list(inspect.signature(function).parameters) for function in (theirs, ours))
    if found != known:
        raise RuntimeError(f"SGLang's {theirs.__qualname__} takes {found}, and moetap's plugin knows {known}; "
                           f"{SWITCH_OFF}")
