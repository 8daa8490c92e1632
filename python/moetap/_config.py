"""Text of model configurations, for ModelShape.from_config(), and making objects of their fields."""

import json
from collections.abc import Mapping
from typing import Any


def text_of(config: Any) -> str:
    """JSON text of a mapping, or of an object such as a transformers configuration."""
    return json.dumps(_plain(config, "the configuration"))


def make(cls: Any, fields: dict[str, Any]) -> Any:
    """Unpickles an object that is made of its fields."""
    return cls(**fields)


def _plain(value: Any, name: str) -> Any:
    """Only what JSON has. Anything else, such as a torch.dtype, is kept as its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if callable(to_dict := getattr(value, "to_dict", None)):
        return _plain(to_dict(), name)
    if hasattr(value, "__dict__"):
        return {key: _plain(item, f"{name}.{key}") for key, item in vars(value).items()
                if not key.startswith("_")}
    return str(value)
