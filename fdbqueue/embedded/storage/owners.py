"""Release of what an object held when nothing refers to it any more.

A signal handler can run in a finalizer that is written in Python. Python prints the handler's
exception and forgets it, so Ctrl-C has no effect. Here a weak reference notes that its owner is
gone, by a method that is not written in Python. The release follows at another moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import ref


class _Held(Protocol):
    reference: Reference | None
    """The weak reference to the owner, while there is something to release."""

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
        self.forget: Callable[[Reference], None] = self._references.discard
        """Leave alone what an owner holds, because that has been released."""

    def add(self, owner: object, held: _Held) -> None:
        """Let something be released some time after its owner is gone.

        It must not refer to its owner. Before that, release whatever earlier owners have left.
        """
        if self._gone:
            self.release()
        if held.reference is None:
            reference = held.reference = Reference(owner, self._gone.append)
            reference.held = held
            self._references.add(reference)

    def release(self) -> None:
        """Release whatever owners that are gone have left."""
        while True:
            try:
                reference = self._gone[0]
            except IndexError:
                return  # other threads may have released the last ones
            reference.held.drop()
            # Afterwards: an interrupted release is repeated. Another thread may do the same.
            self._references.discard(reference)
            with suppress(ValueError, IndexError):  # it, or one beside it, has been removed
                self._gone.remove(reference)
