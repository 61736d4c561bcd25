"""Bugs to plant into the library, each against a rule that matters, to see that they are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MUTATIONS"]


def _pop_by_snapshot() -> None:
    """Two clients pop the same item."""
    from fdbqueue.operations.items import Items

    def first(first: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr, *args: first(self, getattr(tr, "snapshot", tr), *args)

    _change(Items, "first", first)


def _ack_without_token() -> None:
    """A client ends a claim that another one has made since."""
    from fdbqueue.layout import decode_claim
    from fdbqueue.operations import leases

    def claimed(_: object) -> Callable[..., Any]:
        def without_token(self: Any, claim: Any, reads: Any) -> Any:
            stored = [(position, read.value) for position, read in reads]
            if any(value is None for _, value in stored):
                raise leases.LeaseLost(claim.items[0].id)
            return [(position, decode_claim(value)) for position, value in stored]

        return without_token

    _change(leases.Leases, "_claimed", claimed)


def _forgotten_counter() -> None:
    """A removed item is not counted."""
    from fdbqueue.operations.items import Items

    def tally(tally: Callable[..., None]) -> Callable[..., None]:
        def without_removed(self: Any, tr: Any, **changes: int) -> None:
            changes.pop("removed", None)
            tally(self, tr, **changes)

        return without_removed

    _change(Items, "tally", tally)


def _lease_by_version() -> None:
    """A recovery ends a lease, because it advances the versions."""
    from fdbqueue.layout.values import Lease

    _change(Lease, "left", lambda _: lambda self, now: 0)


def _unbounded() -> None:
    """Two pushes take the last place."""
    from fdbqueue.operations.slots import Places

    _change(Places, "take", lambda _: lambda *args: None)


def _unique_by_snapshot() -> None:
    """Two pushes with the same unique key both store an item."""
    from fdbqueue.operations.push import Pusher

    def find(find: Callable[..., Any]) -> Callable[..., Any]:
        def by_snapshot(self: Any, tr: Any, key: bytes, now: int) -> Any:
            is_free = tr.snapshot[key].value is None
            return None if is_free else find(self, tr, key, now)

        return by_snapshot

    _change(Pusher, "_find_unique", find)


def _change(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    setattr(owner, name, change(getattr(owner, name)))


MUTATIONS: dict[str, Callable[[], None]] = {
    "pop-by-snapshot": _pop_by_snapshot,
    "ack-without-token": _ack_without_token,
    "forgotten-counter": _forgotten_counter,
    "lease-by-version": _lease_by_version,
    "unbounded": _unbounded,
    "unique-by-snapshot": _unique_by_snapshot,
}
"""What plants each bug, before the first queue is opened."""
