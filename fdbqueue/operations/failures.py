"""Failures within a transaction: attempts, the delay before the next one, and dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from fdbqueue.layout.batches import End
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    NEXT,
    ClaimedItem,
    Dead,
    StoredAttempt,
    decode_attempt,
    encode_attempt,
    encode_metadata,
    header_of,
    text_end,
    text_room,
    utc_time,
    with_header,
)
from fdbqueue.operations.batches import note_end
from fdbqueue.operations.items import (
    Items,
    LocatedItem,
    ReturnedItem,
    free_unique,
)
from fdbqueue.operations.timers import LEASE_OVER, Fate, error_of_lease, fate_of_failure
from fdbqueue.types import FailedAttempt, Options, ReadTransaction, Transaction

MAX_KEPT_ATTEMPTS = 1_000
"""How many failed attempts of an item a queue may keep."""

MAX_TRACEBACK = 30_000
"""How many bytes of a traceback a queue may keep; fewer if a claim of many items fails."""

_MAX_STDERR = 4_096  # bytes

_FIRST_DELAY, _MAX_DELAY = 1.0, 3600.0  # seconds after the first failure, and after many

_FIRST_UNKNOWN = 10.0  # seconds before a job that a worker does not know is ready again, at first

_NO_OPTIONS = Options("", "", None, None)  # those of a queue before its first push
_item_of = attrgetter("item")


def retry_delay(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds before an item that failed this often becomes available again.

    >>> retry_delay(1, max), retry_delay(1, min), retry_delay(1000, max)
    (1.0, 0.5, 3600.0)
    """
    delay = min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (min(failures, 100) - 1))
    return delay * uniform(0.5, 1.0)


def unknown_delay(passed: float, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds before a job that a worker does not know is ready again.

    Args:
        passed: The seconds since a worker first met it.
        uniform: Returns a number between two others.

    Example:
        >>> [unknown_delay(passed, max) for passed in (0, 60, 100_000)], unknown_delay(60, min)
        ([10.0, 60.0, 3600.0], 30.0)
    """
    return min(_MAX_DELAY, max(_FIRST_UNKNOWN, passed)) * uniform(0.5, 1.0)


def traceback_text(error: object) -> str | None:
    """Return the end of the traceback of an exception; `None` for no exception.

    If the exception has the standard error of a command in `stderr`, as `CalledProcessError` has,
    its end follows, up to 4,096 bytes. The text has up to `MAX_TRACEBACK` bytes; the options of the
    queue say how many of them are stored.

    >>> traceback_text("busy") is None
    True
    """
    if not isinstance(error, BaseException):
        return None
    try:
        text = "".join(traceback.format_exception(error))
        stderr = getattr(error, "stderr", None)
        if isinstance(stderr, bytes):
            stderr = stderr.decode(errors="replace")
        if isinstance(stderr, str):
            text += f"Standard error:\n{text_end(stderr, _MAX_STDERR)}"
    except BaseException:  # raised by a method of its class, or of its output
        text = "".join(traceback.format_tb(error.__traceback__))
    return text_end(text, MAX_TRACEBACK)


def begin_attempts(
    tr: ReadTransaction, layout: Layout, position: bytes
) -> Callable[[], list[FailedAttempt]]:
    """Start to read the failed attempts of the item at a position, the oldest first."""
    rows = tr.get_range(*layout.attempts_range(position))

    def finish() -> list[FailedAttempt]:
        attempts: list[FailedAttempt] = []
        for row in rows:
            stored = decode_attempt(row.value)
            attempts.append(
                FailedAttempt(
                    layout.unpack_attempt_key(row.key)[1],
                    utc_time(stored.started_at),
                    utc_time(stored.ended_at),
                    stored.client,
                    stored.error,
                    stored.traceback,
                    stored.log,
                    None if stored.retried_at is None else utc_time(stored.retried_at),
                    stored.retried_by,
                )
            )
        return attempts

    return finish


def begin_last_error(
    tr: ReadTransaction, layout: Layout, position: bytes
) -> Callable[[], str | None]:
    """Start to read the error of the last failed attempt of the item at a position."""
    rows = tr.get_range(*layout.attempts_range(position), limit=1, reverse=True)
    return lambda: next((decode_attempt(row.value).error for row in rows), None)


class FailedItem(NamedTuple):
    """A claimed item whose processing failed.

    Attributes:
        position: Its position.
        item: The item as it was claimed.
        due: When it becomes available again, in milliseconds since 1970; `None` for now.
        client: The name of the client that had claimed it.
        log: The lines that the client has logged.
    """

    position: bytes
    item: ClaimedItem
    due: int | None
    client: str
    log: str


class Failures:
    """The failed attempts and the dead letters of a queue. Each method is part of a transaction."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    def return_failed(
        self,
        tr: Transaction,
        now: int,
        failed: list[FailedItem],
        error: str | None,
        traceback: str | None = None,
        dead: bool = False,
        are_lost: bool = False,
    ) -> list[bytes]:
        """Return failed items to their positions, now or when due, or make them dead letters.

        They become dead letters after their last attempt, or at once with `dead`. The last failed
        attempts of an item are kept until it ends, as many as the options say. With `are_lost`,
        their leases ran out: their next attempts run alone, because one of them may have killed
        the worker.

        Returns:
            The positions of the items whose fate is to end, because they have expired. They are
            returned, too; the sweep then deletes them.
        """
        expired: list[bytes] = []
        if not failed:
            return expired
        options = self._items.options.read(tr.snapshot) or _NO_OPTIONS
        kept = options.kept_attempts
        room = text_room(len(failed))
        if traceback is not None:
            traceback = text_end(traceback, min(options.traceback_bytes, room)) or None
        returned: list[ReturnedItem] = []
        layout = self._layout
        self._items.history.note_ended(tr, now, map(_item_of, failed))
        for position, item, due, client, log in failed:
            attempts, (header, payload) = item.delivery_count, header_of(item.value)
            if are_lost:
                error = error_of_lease(header)
            header = header._replace(alone=NEXT if are_lost else 0)
            end = text_end(log, room)
            attempt = StoredAttempt(now, client, error, traceback, item.claimed_at, end)
            number = header.earlier_attempts + attempts
            tr[layout.attempt_key(position, number)] = encode_attempt(attempt)
            if number > kept:
                begin, _ = layout.attempts_range(position)
                tr.clear_range(begin, layout.attempt_key(position, number - kept + 1))
            fate = fate_of_failure(attempts, header.expires, options, now)
            if dead or fate == Fate.DIED:
                self._die(tr, now, position, with_header(header, payload), attempts, error)
            else:
                value = with_header(header._replace(attempts=attempts, since=now), payload)
                returned.append(ReturnedItem(position, value, due))
                if fate == Fate.ENDED:
                    expired.append(position)
        n, died = len(failed), len(failed) - len(returned)
        counts = {"returned": n, "failed": n, "retried": n - died, "died": died, "dead": died}
        self._items.requeue(tr, now, returned, **counts)
        for each in returned:
            if each.due is not None:
                self._items.groups.note_failed(tr, now, each.position)
        return expired

    def _die(
        self,
        tr: Transaction,
        now: int,
        position: bytes,
        value: bytes,
        attempts: int,
        error: str | None,
    ) -> None:
        """Store a dead letter."""
        layout = self._layout
        free_unique(tr, layout, value)
        stored = encode_metadata(Dead(attempts, now, error), value)
        self._items.park(tr, layout.dead, position, stored)
        note_end(tr, layout, now, position, value, End("dead", error=error))

    def bury(
        self, tr: Transaction, now: int, position: bytes, value: bytes, why: str | None = None
    ) -> None:
        """Make a claimed item a dead letter; its claim does not count.

        `why` is its error; `None` if its attempts were used up before this claim.
        """
        header = header_of(value)[0]
        error = why or begin_last_error(tr, self._layout, position)()
        if error is None and header.alone:
            error = LEASE_OVER
        self._die(tr, now, position, value, header.attempts, error)
        self._items.tally(tr, now, returned=1, died=1, dead=1)

    def retry(
        self,
        tr: Transaction,
        now: int,
        dead: LocatedItem,
        by: str,
        reserve: Callable[[Transaction], None],
    ) -> bool:
        """Return a dead letter to its position; return false if its unique key is in use.

        Its failed attempts stay, and the last one says when and by whom it was retried. The next
        attempts have higher numbers, and count from one again.

        `reserve(tr)` takes a place below the bound of the queue, or raises `QueueFull`.
        """
        layout = self._layout
        position = layout.position(dead.item.key)
        header = dead.item.header.counted()
        unique = header.held_while_waiting
        number = header.earlier_attempts + dead.attempts
        attempt_key = layout.attempt_key(position, number)
        read = tr[attempt_key]
        if unique is not None and tr[layout.unique_key(unique)].present():
            return False
        reserve(tr)
        if unique is not None:
            tr[layout.unique_key(unique)] = position
        self._items.unpark(tr, layout.dead, position)
        if read.value is not None:
            last = decode_attempt(read.value)
            tr[attempt_key] = encode_attempt(last._replace(retried_at=now, retried_by=by))
        # The item may have expired since, or was cancelled, but the caller wants to retry it.
        header = header._replace(attempts=0, expires=None, unique=unique, since=now, cancelled=None)
        header = header._replace(earlier_attempts=number)
        returned = ReturnedItem(position, with_header(header, dead.item.content))
        self._items.requeue(tr, now, [returned], dead=-1, retried=1)
        return True
