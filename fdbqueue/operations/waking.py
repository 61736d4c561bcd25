"""Waiting clients: a transaction that brings items wakes a client for each."""

from __future__ import annotations

from typing import NamedTuple

from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE
from fdbqueue.types import Transaction

_TIME = 8  # the first bytes of a name, which order it by time
_MAX_TIME = 256**_TIME - 1
_MAX_WOKEN = 16  # by a client that finds items for which nobody was woken


class Waiter(NamedTuple):
    """A waiting client, which another transaction wakes by clearing its key.

    The keys of `neighbours` change when clients next to it come or go.
    """

    key: bytes
    neighbours: list[bytes]
    is_sentinel: bool
    is_alone: bool


def has_items(tr: Transaction, layout: Layout) -> bool:
    """Return whether an item is ready, by a snapshot read."""
    return bool([*tr.snapshot.get_range(*layout.all_items, limit=1)])


def wake(tr: Transaction, waiters: bytes, n: int) -> None:
    """Wake up to `n` of the clients that wait under a prefix: the newest, poppers first."""
    if n == 0:  # which means no limit in FoundationDB
        return
    for row in tr.snapshot.get_range(*Layout.range_of(waiters), limit=n, reverse=True):
        tr.clear(row.key)


def wake_claims(tr: Transaction, layout: Layout, n: int) -> None:
    """Wake clients that wait to claim, after `n` slots became free."""
    tr.add(layout.wake_counter, ONE)
    wake(tr, layout.waiting_claims, n)


class Waiters:
    """The clients that wait for items of one queue, in the order in which they began.

    The neighbours of a client watch its key, and the oldest client, the sentinel, the keys that
    every push changes. See `docs/design/wakeups.md`.
    """

    def __init__(self, layout: Layout, prefix: bytes) -> None:
        self._layout = layout
        self.prefix = prefix
        self._begin, self._end = layout.range_of(prefix)
        self._newest = layout.arrivals + prefix[len(layout.waiters) :]

    def wait(
        self, tr: Transaction, key: bytes | None, name: bytes, *, is_first: bool = False
    ) -> Waiter:
        """Begin to wait, or continue, in a transaction that reads that there is nothing to take.

        A client without a key, or whose key was cleared, gets the new `name`, a UUID that begins
        with the time. The first client of a process (`is_first`) wakes the newest and the oldest
        client, which may be dead.
        """
        is_new = key is None or not tr[key].present()
        if key is None or is_new:
            name = self._newer_name(tr, name)
            key = self._layout.entry_key(self.prefix, name)
            tr[key] = b""
            if is_first:
                self._clear_first(tr, key)
                self._clear_first(tr, key, reverse=True)
        older = [row.key for row in tr.get_range(self._begin, key, limit=1, reverse=True)]
        newer = [row.key for row in tr.get_range(key + b"\x00", self._end, limit=1)]
        is_alone = not (older or newer)
        if not newer:
            newer = [self._newest]
            if is_new:
                tr[self._newest] = name
        return Waiter(key, older + newer, is_sentinel=not older, is_alone=is_alone)

    def _newer_name(self, tr: Transaction, name: bytes) -> bytes:
        """Return the name, with a later time if needed, so that names sort by commit order."""
        for row in tr.get_range(self._begin, self._end, limit=1, reverse=True):
            newest: bytes = self._layout.unpack_entry(self.prefix, row.key)[0]
            if newest > name:
                later = min(int.from_bytes(newest[:_TIME], "big") + 1, _MAX_TIME)
                return b"%b%b" % (later.to_bytes(_TIME, "big"), name[_TIME:])
        return name

    def leave(self, tr: Transaction, key: bytes, *, has_found: bool) -> None:
        """End a wait that no other transaction has ended.

        With `has_found`, the client found an item without a wake-up: wake the sentinel, and others
        if more items are left.
        """
        tr.clear(key)
        if has_found:
            self._clear_first(tr, key)
            if has_items(tr, self._layout):
                wake(tr, self.prefix, _MAX_WOKEN)

    def _clear_first(self, tr: Transaction, key: bytes, reverse: bool = False) -> None:
        for row in tr.snapshot.get_range(self._begin, key, limit=1, reverse=reverse):
            tr.clear(row.key)
