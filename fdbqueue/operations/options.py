"""The stored options of a queue, and this client's cache of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fdbqueue.errors import OptionsMismatch
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE, decode_options, encode_options
from fdbqueue.operations.names import register
from fdbqueue.types import Options, ReadTransaction, Transaction

_log = logging.getLogger("fdbqueue")

_FLEXIBLE = ("max_size", "max_attempts", "keep_seconds", "keep_number", "shards")
"""Options that a client may omit when it opens a queue."""

NO_OPTIONS = Options("", "", None, None)
"""The options of a queue before its first push."""

LIMITING = frozenset({"concurrency", "paused", "rate", "shards"})
"""Options that clients which take items obey."""


def reconcile_options(given: Options, stored: Options) -> Options:
    """Return the stored options, which take precedence.

    A different limit logs a warning; any other difference raises `OptionsMismatch`.
    """
    for option in ("kind", "codec", "priorities", *_FLEXIBLE):
        wanted, actual = getattr(given, option), getattr(stored, option)
        if wanted == actual or (option in _FLEXIBLE and wanted is None):
            continue
        mismatch = OptionsMismatch(option, wanted, actual)
        if option not in _FLEXIBLE:
            raise mismatch
        _log.warning("%s. The stored value holds.", mismatch)
    return stored


def has_kept(options: Options) -> bool:
    """Return whether done items may be stored, even if none are kept."""
    return (options.keep_seconds, options.keep_number) != (None, None)


class StoredOptions:
    """The stored options of one queue. The first push stores the options of its client.

    Attributes:
        agreed: The options that the client last agreed with; at first, the given ones.
        stored: Their stored form, if known.
        has_bounds: Whether they bound the queue or some groups.
        keeps_done: Whether done items are kept; true if unknown.
        may_have_done: The last value of `has_kept`.
        has_any_rate, has_groups: Whether this client has found a rate, or groups.
        shards: The number of shards as this client has last read it; 0 if unknown.
        has_homes: Whether rows say where groups are, as this client has last read it.
    """

    def __init__(self, layout: Layout, given: Options) -> None:
        self._layout = layout
        self._given = given
        self._accepted: dict[str, Any] = {}  # options of which any stored value is accepted
        self.shards = 0
        self.has_homes = False
        self._agree_on(given, None)
        self._seen: Options | None = None
        self.max_attempts: int | None = None
        self.keeps_done = True
        self.may_have_done = False
        self.has_any_rate = False
        self.has_groups = False

    def begin_read(self, tr: ReadTransaction) -> Callable[[], Options]:
        """Start to read the options of the queue."""
        read = tr.get(self._layout.options)

        def finish() -> Options:
            if read.value is None:
                return NO_OPTIONS
            options = decode_options(read.value)
            if options is not self._seen:
                self._seen = options
                self.max_attempts = options.max_attempts
                self.keeps_done = options.keeps_done
                self.may_have_done = has_kept(options)
                self.has_any_rate |= options.rate is not None
                self.has_groups |= options.has_groups
                self.shards = options.shards or 1
                self.has_homes = options.shards_before is not None
            return options

        return finish

    def known_shards(self, tr: ReadTransaction) -> int:
        """Return the number of shards, for one as this client has last read it."""
        return 1 if self.shards == 1 else self.read(tr).shards or 1

    def read(self, tr: ReadTransaction) -> Options:
        """Return the options of the queue."""
        return self.begin_read(tr)()

    def agree(self, tr: Transaction) -> Options:
        """Return the stored options; store the given ones if the queue is new."""
        stored = tr.get(self._layout.options).value
        if stored is None or stored != self.stored:
            self.agree_with(tr, stored)
        return self.agreed

    def agree_with(self, tr: Transaction, stored: bytes | None) -> None:
        """Adopt the stored options, or store the given ones."""
        if stored is None:
            self._agree_on(self._given, None)
            tr[self._layout.options] = encode_options(self._given)
            if self._given.shards:  # let clients that pop read the options
                tr[self._layout.scheduled] = b""
            if self._layout.name is not None:
                register(tr, self._layout.name, self._layout.subspace)
        else:
            given = replace(self._given, **self._accepted)
            self._agree_on(reconcile_options(given, decode_options(stored)), stored)

    def _agree_on(self, options: Options, stored: bytes | None) -> None:
        self.agreed = options
        self.stored = stored
        self.has_bounds = options.max_size is not None or options.limited_groups

    def accept(self, changed: Iterable[str]) -> None:
        """Accept any stored value of options that this client changes.

        Until the next read, it assumes that done items are kept.
        """
        self._accepted |= dict.fromkeys({*changed} & {*_FLEXIBLE})
        self.stored = self._seen = None
        self.keeps_done = True

    def note(self, tr: Transaction, **groups: Any) -> None:
        """Store that the queue has groups, which take turns, or groups with a bound."""
        options = self.read(tr)
        if options is not NO_OPTIONS and (noted := replace(options, **groups)) != options:
            tr[self._layout.options] = encode_options(noted)

    def note_limit(self, tr: Transaction) -> None:
        """Let clients check the limits from now on, and wake waiting ones."""
        tr[self._layout.scheduled] = b""
        tr.add(self._layout.wake_counter, ONE)
        tr.clear_range(*self._layout.range_of(self._layout.waiters))
