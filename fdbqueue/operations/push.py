"""Pushes: append payloads within the options and the bound of a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

from fdbqueue.errors import QueueFull
from fdbqueue.layout import Layout, decode_options, encode_count, encode_options
from fdbqueue.operations.bound import Bound
from fdbqueue.operations.items import Entry, Items
from fdbqueue.operations.names import register
from fdbqueue.operations.options import FLEXIBLE, reconcile_options
from fdbqueue.types import Options, Transaction

__all__ = ["PushRequest", "Pusher"]


class PushRequest(NamedTuple):
    """The items of one push call: stored completely or not at all, unless `as_many_as_fit`."""

    entries: list[Entry]
    as_many_as_fit: bool = False


class Pusher:
    """The pushes of one queue, each in a transaction.

    Every push reads the queue's options, so that all clients follow the same ones, whenever they
    opened the queue. The first push stores them.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Items,
        options: Options,
        randrange: Callable[[int, int], int],
    ) -> None:
        self.layout = layout
        self._items = rows
        self._given = options
        self.options = options
        """The options that the last push followed."""
        self._stored = b""
        self._bound = Bound(layout, randrange)

    def set_option(self, tr: Transaction, name: str, value: object) -> bool:
        """Store another value of an option; return true, because something was written."""
        if name in FLEXIBLE:
            given: dict[str, Any] = {name: None}  # accept any stored value from now on
            self._given = replace(self._given, **given)
        self._agree(tr, tr[self.layout.options].value)
        changed: dict[str, Any] = {name: value}
        tr[self.layout.options] = encode_options(replace(self.options, **changed))
        return True

    def push(self, tr: Transaction, pushes: list[PushRequest]) -> list[list[bytes]]:
        """Append payloads to their levels; return the keys of each push's new items.

        A push without enough room has no keys, or fewer with `as_many_as_fit`.
        """
        # All reads start before the first is waited for.
        stored = tr[self.layout.options]
        known = self.options.max_size
        taken = None if known is None else self._bound.begin_count(tr, known)
        levels = {entry.level for push in pushes for entry in push.entries}
        lasts = {level: self._items.last(tr, level) for level in levels}
        self._agree(tr, stored.value)
        fitting = [push.entries for push in pushes]
        bound = self.options.max_size
        if bound is not None:
            if taken is None or bound != known:
                taken = self._bound.begin_count(tr, bound)
            fitting = self._fitting(tr, pushes, taken(), bound)
        keys = iter(self._items.append_all(tr, [*chain.from_iterable(fitting)], lasts))
        return [list(islice(keys, len(entries))) for entries in fitting]

    def reserve(self, tr: Transaction) -> None:
        """Take a place for a dead letter that is retried; raise `QueueFull` if there is none."""
        stored = tr[self.layout.options].value
        bound = None if stored is None else decode_options(stored).max_size
        if bound is None:
            return
        taken = self._bound.begin_count(tr, bound)()
        if taken >= bound:
            self._bound.rely_on_full(tr)
            raise QueueFull(bound, 1)
        self._bound.take(tr, taken, bound, 1)

    def rely_on_full(self, tr: Transaction) -> None:
        """Conflict with every operation that makes room, so that the queue is full at commit."""
        self._bound.rely_on_full(tr)

    def _agree(self, tr: Transaction, stored: bytes | None) -> None:
        """Adopt the stored options, or store these."""
        if stored == self._stored:
            return
        if stored is None:
            self.options = self._given
            tr[self.layout.options] = encode_options(self._given)
            if self.layout.name is not None:
                register(tr, self.layout.name, self.layout.subspace)
            return
        self.options = reconcile_options(self._given, decode_options(stored))
        self._stored = stored

    def _fitting(
        self, tr: Transaction, pushes: list[PushRequest], taken: int, bound: int
    ) -> list[list[Entry]]:
        fitting = []
        room = bound - taken
        for push in pushes:
            entries = push.entries
            if len(entries) > room:
                entries = entries[: max(0, room)] if push.as_many_as_fit else []
            room -= len(entries)
            fitting.append(entries)
        pushed = bound - taken - room
        if pushed:
            self._bound.take(tr, taken, bound, pushed)
        rejected = sum(len(push.entries) for push in pushes) - pushed
        if rejected:
            tr.add(self.layout.total_rejected, encode_count(rejected))
        return fitting
