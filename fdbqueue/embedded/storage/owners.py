"""Release of what an object held when nothing refers to it any more.

A signal handler can run in a finalizer that is written in Python. Python prints the handler's
exception and forgets it, so Ctrl-C has no effect. Here a weak reference notes that its owner is
gone, by a method that is not written in Python. The release follows at another moment.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Protocol
from weakref import ref

__all__ = ["Owners", "Reference"]


class _Held(Protocol):
    def drop(self) -> None:
        """Release everything. A second call has no effect."""


class Reference(ref[Any]):
    """A weak reference to an owner."""

    __slots__ = ("held",)
    held: _Held


class Owners:
    """Owners, and what each of them holds."""

    def __init__(self) -> None:
        self._references: set[Reference] = set()
        self._gone: deque[Reference] = deque()

    def add(self, owner: object, held: _Held) -> Reference:
        """Let something be released some time after its owner is gone.

        It must not refer to its owner. Before that, release whatever earlier owners have left.
        Return what `forget` takes.
        """
        if self._gone:
            self.release()
        reference = Reference(owner, self._gone.append)
        reference.held = held
        self._references.add(reference)
        return reference

    def forget(self, reference: Reference) -> None:
        """Leave alone what an owner holds, because that has been released."""
        self._references.discard(reference)

    def release(self) -> None:
        """Release whatever owners that are gone have left."""
        while self._gone:
            reference = self._gone[0]
            reference.held.drop()
            # Afterwards: an interrupted release is repeated. Another thread may do the same.
            self._references.discard(reference)
            with suppress(ValueError):
                self._gone.remove(reference)
