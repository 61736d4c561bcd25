"""Handling of open databases when the process forks."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.storage import Storage

__all__ = ["storages"]

storages: weakref.WeakSet[Storage] = weakref.WeakSet()
_forking: list[Storage] = []


def _before() -> None:
    for storage in list(storages):
        if not storage.is_closed:
            storage.before_fork()
            _forking.append(storage)


def _after(in_child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(in_child)


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(in_child=False),
    after_in_child=lambda: _after(in_child=True),
)
