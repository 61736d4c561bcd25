"""Failures: the next attempt or a dead letter, and the errors of attempts."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NamedTuple

from fdbqueue.layout.batches import End
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    MAX_TRACEBACK,
    NEXT,
    NOW,
    StoredAttempt,
    decode_attempt,
    encode_attempt,
    text_end,
    text_room,
    utc_time,
)
from fdbqueue.operations.items import EXPIRED, Items
from fdbqueue.operations.limits.bounds import Bounds
from fdbqueue.operations.timers import DIED_ALONE, LEASE_OVER, has_expired
from fdbqueue.operations.transitions import Change, Why
from fdbqueue.types import FailedAttempt, ReadTransaction, State, Transaction

_MAX_STDERR = 4_096  # bytes

_FIRST_UNKNOWN = 10.0  # seconds before a job that a worker does not know is ready again, at first
_LAST_UNKNOWN = 3600.0  # seconds at last


def unknown_delay(passed: float, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds before an unknown job is ready again.

    >>> [unknown_delay(passed, max) for passed in (0, 60, 100_000)], unknown_delay(60, min)
    ([10.0, 60.0, 3600.0], 30.0)
    """
    return min(_LAST_UNKNOWN, max(_FIRST_UNKNOWN, passed)) * uniform(0.5, 1.0)


def traceback_text(error: object) -> str | None:
    """Return the end of an exception's traceback, and of its `stderr` if it has any."""
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
    """Start to read an item's failed attempts, oldest first."""
    rows = tr.get_range(*layout.attempts_range(position))
    return lambda: [
        _shown(layout.unpack_attempt_key(row.key)[1], decode_attempt(row.value)) for row in rows
    ]


def _shown(number: int, stored: StoredAttempt) -> FailedAttempt:
    ended_at, client, error, text, started_at, log, retried_at, retried_by = stored
    retried = None if retried_at is None else utc_time(retried_at)
    times = utc_time(started_at), utc_time(ended_at)
    return FailedAttempt(number, *times, client, error, text, log, retried, retried_by)


def begin_last_error(
    tr: ReadTransaction, layout: Layout, position: bytes
) -> Callable[[], str | None]:
    """Start to read the error of an item's last failed attempt."""
    rows = tr.get_range(*layout.attempts_range(position), limit=1, reverse=True)
    return lambda: next((decode_attempt(row.value).error for row in rows), None)


class Failed(NamedTuple):
    """A claimed item that failed; `due` is `None` for at once."""

    row: ItemRow
    due: int | None
    client: str
    log: str = ""


class Failures:
    """The failures of one queue's items, and retries of dead letters."""

    def __init__(self, items: Items, bounds: Bounds) -> None:
        self._layout = items.layout
        self._items = items
        self._bounds = bounds
        self._perform = items.transitions.perform

    def fail(
        self,
        tr: Transaction,
        now: int,
        failed: list[Failed],
        error: str | None,
        traceback: str | None = None,
        dead: bool = False,
        are_lost: bool = False,
    ) -> None:
        """Return failed items to their positions, now or when due, or make them dead letters.

        Items die after their last attempt, or at once with `dead`. With `are_lost`, the leases ran
        out: expired items end, and others run alone next time, in case one killed the worker.
        """
        if not failed:
            return
        options = self._items.options.read(tr.snapshot)
        room = text_room(len(failed))
        if traceback is not None:
            traceback = text_end(traceback, min(options.traceback_bytes, room)) or None
        why: Why = "lease over" if are_lost else "failed"
        changes: list[Change] = []
        for row, due, client, log in failed:
            header, attempts = row.item.header, row.attempts
            is_last = options.max_attempts is not None and attempts >= options.max_attempts
            is_dead = dead or is_last
            if are_lost and not is_dead and has_expired(header.expires, now):
                changes.append(Change("expired", row, None, EXPIRED))
                continue
            if are_lost:
                error = DIED_ALONE if header.alone == NOW else LEASE_OVER
            header = header._replace(alone=NEXT if are_lost else 0)
            attempt = (now, client, error, traceback, row.claimed_at, text_end(log, room))
            number = header.earlier_attempts + attempts
            self._store_attempt(tr, row, number, StoredAttempt(*attempt), options.kept_attempts)
            if is_dead:
                died = ItemRow(
                    "dead", row.item.with_header(header), attempts, died_at=now, error=error
                )
                changes.append(Change(why, row, died, End("dead", error=error)))
                continue
            item = row.item.with_header(header._replace(attempts=attempts, since=now))
            state: State = "ready" if due is None else "delayed"
            changes.append(Change(why, row, ItemRow(state, item, attempts, due or 0)))
        self._perform(tr, now, self._items.unique_keys.hold_again(tr, changes))

    def _store_attempt(
        self, tr: Transaction, row: ItemRow, number: int, attempt: StoredAttempt, kept: int
    ) -> None:
        layout, position = self._layout, self._layout.position(row.key)
        tr[layout.attempt_key(position, number)] = encode_attempt(attempt)
        if number > kept:
            begin, _ = layout.attempts_range(position)
            tr.clear_range(begin, layout.attempt_key(position, number - kept + 1))

    def retry(self, tr: Transaction, now: int, dead: ItemRow, by: str) -> bool:
        """Return a dead letter to its position; return false if its unique key is in use.

        Attempt numbers continue, but `max_attempts` counts anew. Raise `QueueFull`.
        """
        layout = self._layout
        header = dead.item.header.counted()
        unique = header.held_while_waiting
        number = header.earlier_attempts + dead.attempts
        attempt_key = layout.attempt_key(layout.position(dead.key), number)
        read = tr[attempt_key]
        if unique is not None and tr[layout.unique_key(unique)].present():
            return False
        self._bounds.reserve(tr, dead.item.level.group)
        if read.value is not None:
            last = decode_attempt(read.value)
            tr[attempt_key] = encode_attempt(last._replace(retried_at=now, retried_by=by))
        # The item may have expired since, but the caller wants to retry it.
        header = header._replace(attempts=0, expires=None, unique=unique, since=now)
        item = dead.item.with_header(header._replace(earlier_attempts=number))
        item = self._items.shards.present(tr, item)
        self._perform(tr, now, [Change("retried", dead, ItemRow("ready", item, 0))])
        return True
