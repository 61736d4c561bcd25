"""Timers, and the fate of an item whose timer is over.

A sweep carries it out; a view shows it as done.

| Timer | Its item |
| --- | --- |
| the end of a lease | becomes a dead letter, ends if it has expired, or becomes ready |
| the end of a delay | ends if it has expired, or becomes ready |
| an expiry | ends |
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from fdbqueue.layout.values import (
    CANCELLED,
    NOW,
    ClaimedItem,
    Header,
    Lease,
    decode_lease,
    header_of,
    lease_expiry,
)
from fdbqueue.types import Options, State, Transaction

if TYPE_CHECKING:
    from fdbqueue.layout.keys import Layout

VERSIONS = 1_000_000
"""The approximate number of read versions per second."""

LEASE_OVER = "its lease ran out"
"""The error of an attempt whose lease has ended."""

DIED_ALONE = "its worker died, or was stopped, while it ran alone in its process"
"""The error of an attempt that ran alone in its process, and whose lease has ended."""


class Fate(Enum):
    """The change of an item whose timer is over.

    Attributes:
        before: The state that it had.
        after: The state that it gets; `None` if it ends.
    """

    RETURNED = ("claimed", "ready")
    DIED = ("claimed", "dead")
    ENDED = ("claimed", None)
    AVAILABLE = ("delayed", "ready")
    LAPSED = ("delayed", None)
    EXPIRED = ("ready", None)

    def __init__(self, before: State, after: State | None) -> None:
        self.before: State = before
        self.after: State | None = after


def due_after(now: int, delay: float | None) -> int | None:
    """Return the time after a delay in seconds, in milliseconds since 1970; `None` for at once."""
    return now + math.ceil(delay * 1000) if delay else None


def has_expired(expires: int | None, now: int) -> bool:
    """Return whether an item has expired; `expires` is `None` or 0 if it never does."""
    return 0 < (expires or 0) <= now


def fate_of_return(expires: int | None, now: int) -> Fate:
    """Return the fate of a claimed item that does not die, or of one staged for a dead process."""
    return Fate.ENDED if has_expired(expires, now) else Fate.RETURNED


def fate_of_failure(attempts: int, expires: int | None, options: Options | None, now: int) -> Fate:
    """Return the fate of a claimed item that failed this often and is not to be delayed."""
    max_attempts = None if options is None else options.max_attempts
    if max_attempts is not None and attempts >= max_attempts:
        return Fate.DIED
    return fate_of_return(expires, now)


def fate_of_lease(lease: Lease, options: Options | None, now: int) -> Fate | None:
    """Return the fate of an item whose lease is over by version; `None` if not by the clock.

    An item that was cancelled stays claimed until a sweep ends it.
    """
    if lease.left(now) > 0 or lease.expires == CANCELLED:
        return None
    return fate_of_failure(lease.delivery_count, lease.expires, options, now)


def error_of_lease(header: Header) -> str:
    """Return the error of an attempt whose lease has ended, given the header of its item."""
    return DIED_ALONE if header.alone == NOW else LEASE_OVER


def fate_of_delay(expires: int | None, now: int) -> Fate:
    """Return the fate of an item whose delay is over."""
    return Fate.LAPSED if has_expired(expires, now) else Fate.AVAILABLE


def lease_of(timer: bytes, claim: ClaimedItem | None = None) -> Lease:
    """Return the lease in the value of a timer, with what only the claim is sure to know.

    The timer of a repair lacks the number of attempts and the expiry.
    """
    lease = decode_lease(timer) or Lease(0, 0)
    if claim is None:
        return lease
    expires = lease_expiry(header_of(claim.value)[0])
    return lease._replace(delivery_count=claim.delivery_count, expires=expires or 0)


def set_timer(tr: Transaction, layout: Layout, due: int, reference: bytes) -> None:
    """Let the next sweep from this time on find a schedule or a group.

    Args:
        tr: A transaction.
        layout: The layout of the queue.
        due: The time in milliseconds since 1970.
        reference: What the timer has instead of the position of an item.
    """
    tr[layout.timer_key(layout.dues, due, reference)] = b""
    tr[layout.scheduled] = b""
