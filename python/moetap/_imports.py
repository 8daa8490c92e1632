"""Changing a module once, when the program imports it, and not before."""

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]

_MARK = "_moetap"


def once(change: Action) -> Action:
    """`change`, which does nothing for a module that it has changed."""

    @functools.wraps(change)
    def change_once(module: ModuleType) -> None:
        if not hasattr(module, _MARK):
            change(module)
            setattr(module, _MARK, True)

    return change_once


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds a module as all others would, and adds actions to its loading."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        actions = self.actions.pop(fullname, None)
        if actions is None:
            return None
        spec = importlib.util.find_spec(fullname)  # this finder knows nothing of it any more
        if spec is None or spec.loader is None:
            self.actions[fullname] = actions
            return None
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            for action in actions:
                action(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


_finder = _WhenImported()


def when_imported(name: str, action: Action) -> None:
    """Calls action(module) after the module is loaded: now if it is already."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        action(loaded)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(name, []).append(action)
