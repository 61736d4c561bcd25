"""stand-in"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


class Arguments:
    def __init__(self, name: str, function: Callable[..., Any], skip: int = 0) -> None:
        self._s = inspect.signature(function)
        self._skip = skip

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        self._s.bind(*(None,) * self._skip, *args, **kwargs)
        return [*args], {**kwargs}

    def decode(
        self, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(args), kwargs

    def encode_result(self, value: Any) -> Any:
        return value

    def decode_result(self, stored: Any) -> Any:
        return stored
