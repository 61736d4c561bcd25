"""The stored options of a queue within a transaction, and what this client has cached of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from fdbqueue.errors import OptionsMismatch
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE, decode_options, encode_options
from fdbqueue.operations.names import register
from fdbqueue.types import Options, ReadTransaction, Transaction

_log = logging.getLogger("fdbqueue")

_FLEXIBLE = ("max_size", "max_attempts", "keep_seconds", "keep_number")
"""Options that a client may omit when it opens a queue, and may change later."""

LIMITING = frozenset({"concurrency", "agent_concurrency", "paused", "rate"})
"""The options that limit claims and pops."""


def reconcile_options(given: Options, stored: Options) -> Options:
    """Return the stored options, which hold.

    Log a warning if a limit that was given differs: the clients of a deployment that changes it
    must go on. Raise `OptionsMismatch` if another option differs.
    """
    for option in ("kind", "codec", "priorities", "ageing", *_FLEXIBLE):
        wanted, actual = getattr(given, option), getattr(stored, option)
        if wanted == actual or (option in _FLEXIBLE and wanted is None):
            continue
        mismatch = OptionsMismatch(option, wanted, actual)
        if option not in _FLEXIBLE:
            raise mismatch
        _log.warning("%s. The stored value holds.", mismatch)
    return stored


def begin_options(tr: ReadTransaction, layout: Layout) -> Callable[[], Options | None]:
    """Start to read the options of a queue; return a function that waits for them."""
    read = tr.get(layout.options)

    def finish() -> Options | None:
        return None if read.value is None else decode_options(read.value)

    return finish


def limits_agents(options: Options) -> bool:
    """Return whether a claim has to look for the limits of the agents of a task queue."""
    return options.kind == "task" and (
        options.limited_groups or options.agent_concurrency is not None
    )


class StoredOptions:
    """The stored options of one queue.

    The first push stores the options that the client was given. Every push and every claim reads
    the stored ones, so all clients follow the same options.

    Args:
        layout: The keys of the queue.
        given: The options that this client opened the queue with.

    Attributes:
        agreed: The options that the client has last agreed with; at first, the given ones.
        stored: Their stored form; `None` if it is not known.
        max_attempts: As the last claim has read it; `None` also before the first one.
        has_rate: Likewise, whether the queue has a rate.
        has_rate_of_group: Whether this client has taken items of a group with a rate.
        keeps_done: Likewise, whether done items are kept; `None` if that is not known.
        may_have_done: Whether some may be stored that are no longer to be kept.
        may_have_rate: Whether the queue has a rate, as the last sweep of this client has read.
        limited_groups: Whether a claim or sweep of this client has read that groups have limits.
    """

    def __init__(self, layout: Layout, given: Options) -> None:
        self._layout = layout
        self.begin_read = partial(begin_options, layout=layout)
        """Start to read the options in a transaction; return a function that waits for them."""
        self._given = given
        self.agreed = given
        self.stored: bytes | None = None
        self.max_attempts: int | None = None
        self.has_rate = self.has_rate_of_group = False
        self.keeps_done: bool | None = None
        self.may_have_done = False
        self.may_have_rate = False
        self.limited_groups = False

    def read(self, tr: ReadTransaction) -> Options | None:
        """Return the options of the queue; `None` before its first push."""
        return self.begin_read(tr)()

    def agree(self, tr: Transaction) -> Options:
        """Return the stored options; store the given ones if the queue is new."""
        self.agree_with(tr, tr.get(self._layout.options).value)
        return self.agreed

    def agree_with(self, tr: Transaction, stored: bytes | None) -> None:
        """Adopt the stored options; store the given ones if there are none yet."""
        if stored is None:
            self.agreed, self.stored = self._given, None
            tr[self._layout.options] = encode_options(self._given)
            if self._layout.name is not None:
                register(tr, self._layout.name, self._layout.subspace)
        else:
            self.agreed = reconcile_options(self._given, decode_options(stored))
            self.stored = stored

    def accept(self, changed: Iterable[str]) -> None:
        """Accept any stored value of some options from now on, because this client changes them."""
        given: dict[str, Any] = dict.fromkeys({*changed} & {*_FLEXIBLE})
        self._given = replace(self._given, **given)
        self.stored = None

    def note(self, options: Options) -> None:
        """Note the options that a claim has read."""
        self.limited_groups |= options.limited_groups
        self.max_attempts = options.max_attempts
        self.has_rate = options.rate is not None
        self.keeps_done = options.keeps_done
        self.may_have_done = (options.keep_seconds, options.keep_number) != (None, None)

    @property
    def has_any_rate(self) -> bool:
        """True if a claim may use up a start of a rate."""
        return self.has_rate or self.has_rate_of_group

    def note_rate_of_group(self) -> None:
        """Note that the items of some group use up starts when they are taken."""
        self.has_rate_of_group = True

    def forget(self) -> None:
        """Forget what is known, because this client changes the options."""
        self.keeps_done = None

    def is_paused(self, tr: Transaction) -> bool:
        """Return whether the queue is paused, and note whether it or its groups have limits."""
        options = self.read(tr)
        self.limited_groups |= options is not None and options.limited_groups
        self.may_have_rate = options is not None and options.rate is not None
        return options is not None and options.paused

    def note_limit(self, tr: Transaction) -> None:
        """Let clients check the limits from now on, and wake those that wait."""
        tr[self._layout.scheduled] = b""
        tr.add(self._layout.wake_counter, ONE)
        tr.clear_range(*self._layout.range_of(self._layout.waiters))
