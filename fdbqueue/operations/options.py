"""The stored options of a queue within a transaction, and what this client knows of them."""

from __future__ import annotations

from collections.abc import Callable

from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import ONE, decode_options
from fdbqueue.types import Options, ReadTransaction, Transaction

LIMITING = frozenset({"concurrency", "agent_concurrency", "paused", "rate"})
"""The options that limit claims and pops."""


class StoredOptions:
    """The stored options of one queue.

    Attributes:
        max_attempts: As the last claim has read it; `None` also before the first one.
        keeps_done: Likewise, whether done items are kept; `None` if that is not known.
        may_have_done: Whether some may be stored that are no longer to be kept.
        may_have_rate: Whether the queue has a rate, as the last sweep of this client has read.
        limited_groups: Whether a claim or sweep of this client has read that groups have limits.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.max_attempts: int | None = None
        self.keeps_done: bool | None = None
        self.may_have_done = False
        self.may_have_rate = False
        self.limited_groups = False

    def read(self, tr: ReadTransaction) -> Options | None:
        """Return the options of the queue; `None` before its first push."""
        return self.begin_read(tr)()

    def begin_read(self, tr: ReadTransaction) -> Callable[[], Options | None]:
        """Start to read the options; return a function that waits for them."""
        read = tr.get(self._layout.options)

        def finish() -> Options | None:
            return None if read.value is None else decode_options(read.value)

        return finish

    def note(self, options: Options) -> None:
        """Note the options that a claim has read."""
        self.limited_groups |= options.limited_groups
        self.max_attempts = options.max_attempts
        self.keeps_done = options.keeps_done
        self.may_have_done = (options.keep_seconds, options.keep_number) != (None, None)

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
