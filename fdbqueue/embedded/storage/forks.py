"""Handling of open databases when the process forks."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import Protocol
from weakref import ref


class Storage(Protocol):
    """An object with open files, which must be closed around a fork."""

    @property
    def is_closed(self) -> bool:
        """True once it was closed for good."""
        ...

    def before_fork(self) -> None:
        """Close the files before the process is copied."""

    def after_fork(self, in_child: bool) -> None:
        """Open the files again, in the parent or in the child."""


# When a storage is gone, a `WeakSet` would run Python code, which would lose an interrupt.
_storages: set[ref[Storage]] = set()
_forking: list[Storage] = []
opening = threading.RLock()
"""Held while a thread opens a storage. A fork waits for it: a child could not close the storage."""


def register(storage: Storage) -> None:
    """Close and open the files of a storage around each fork."""
    _storages.add(ref(storage, _storages.discard))


def _before() -> None:
    opening.acquire()
    for reference in _storages.copy():
        storage = reference()
        if storage is not None and not storage.is_closed:
            storage.before_fork()
            _forking.append(storage)


def _after(in_child: bool) -> None:
    with ExitStack() as stack:  # an error of one storage does not keep the others closed
        stack.callback(opening.release)
        for storage in _forking:
            stack.callback(storage.after_fork, in_child)
        _forking.clear()


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(in_child=False),
    after_in_child=lambda: _after(in_child=True),
)
