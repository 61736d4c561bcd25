"""The fate of an item whose timer is over. A sweep carries it out; a view shows it as done."""

from __future__ import annotations

from enum import Enum

from fdbqueue.layout.values import Lease
from fdbqueue.types import Options, State

VERSIONS = 1_000_000
"""The approximate number of read versions per second."""

LEASE_OVER = "its lease ran out"
"""The error of an attempt whose lease has ended."""


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


def is_last_attempt(attempts: int, options: Options | None) -> bool:
    """Return whether an item that failed this often becomes a dead letter."""
    max_attempts = None if options is None else options.max_attempts
    return max_attempts is not None and attempts >= max_attempts


def has_expired(expires: int | None, now: int) -> bool:
    """Return whether an item has expired; `expires` is `None` or 0 if it never does."""
    return 0 < (expires or 0) <= now


def fate_of_lease(lease: Lease, options: Options | None, now: int) -> Fate | None:
    """Return the fate of an item whose lease is over by its version; `None` if not by the clock."""
    if lease.left(now) > 0:
        return None
    if is_last_attempt(lease.delivery_count, options):
        return Fate.DIED
    return Fate.ENDED if has_expired(lease.expires, now) else Fate.RETURNED


def fate_of_delay(expires: int | None, now: int) -> Fate:
    """Return the fate of an item whose delay is over."""
    return Fate.LAPSED if has_expired(expires, now) else Fate.AVAILABLE
