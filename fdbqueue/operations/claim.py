"""Claims under a lease: taken, acknowledged, extended, given back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from fdbqueue.errors import LeaseLost, UndecodableItem
from fdbqueue.layout import MINUS_ONE, Layout, decode_facts, header_of, with_header
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.operations.items import Found, Rows
from fdbqueue.operations.schedule import VERSIONS, Schedule
from fdbqueue.operations.slots import Candidate
from fdbqueue.types import Claim, DeadLetter

__all__ = ["ClaimRequest", "Leases", "told_error"]

_log = logging.getLogger("fdbqueue")

_LONGEST_ERROR = 1_000  # characters


def told_error(error: object) -> str | None:
    """What is kept of an error: a text, or an exception; raises `TypeError` for something else.

    >>> told_error(ValueError("no such address"))
    'ValueError: no such address'
    """
    if isinstance(error, BaseException):
        try:
            error = f"{type(error).__name__}: {error}"
        except Exception:  # of its own `__str__`
            error = f"{type(error).__name__}, whose text cannot be had"
    if error is not None and not isinstance(error, str):
        raise TypeError(f"an error is a text or an exception, not {error!r}")
    return error and error[:_LONGEST_ERROR].encode("utf-8", "backslashreplace").decode()


class _Claimed(NamedTuple):
    """A claimed item, as it is stored."""

    place: bytes
    lease_end: int
    attempt: int
    slots: list[bytes]
    value: bytes


class ClaimRequest(NamedTuple):
    """What one call claims: how many items, from how many of the first ones, for how long."""

    n: int
    within: int
    lease: float
    token: bytes


class Leases:
    """The claimed items of one queue; each method is part of a transaction.

    A lease is counted in the database's versions, which no client's clock changes. A claim belongs
    to whoever has its token, as long as the item is there under it: when the lease has run out,
    the next one who looks for items takes it away.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        codec: RowCodec[Any],
        schedule: Schedule,
        backoff: Callable[[int], float],
    ) -> None:
        self._layout = layout
        self._backoff = backoff
        self._rows = rows
        self._codec = codec
        self._schedule = schedule

    def take(
        self, tr: Any, found: list[Candidate], request: ClaimRequest, now: int
    ) -> Claim | None:
        """Claim items that a transaction read, those that can be read."""
        layout = self._layout
        readable = [(each, item) for each in found if (item := self._read(tr, each, now))]
        if not readable:
            return None
        self._rows.drop(tr, [(each.key, each.value) for each, _ in readable])
        tr[layout.scheduled] = b""
        end = tr.get_read_version().wait() + int(request.lease * VERSIONS)
        attempts = []
        for (key, value, slots), _ in readable:
            attempt = header_of(value)[0].attempts + 1
            place = layout.place(key)
            for slot in slots:
                tr[layout.slots + slot] = place
            self._store(tr, _Claimed(place, end, attempt, [*slots], value), request.token)
            attempts.append(attempt)
        items = tuple(item for _, item in readable)
        keys = tuple(each.key for each, _ in readable)
        return Claim(items, tuple(attempts), keys, request.token)

    def _read(self, tr: Any, found: Candidate, now: int) -> Any:
        """The item, or `None`; one that cannot be read has failed, as if it had been claimed."""
        try:
            return self._codec.decode(tr, found.key, found.value)
        except UndecodableItem as error:
            _log.warning("%s", error)
            self._rows.drop(tr, [(found.key, found.value)])
            attempt = header_of(found.value)[0].attempts + 1
            due = now + int(1000 * self._backoff(attempt))
            place = self._layout.place(found.key)
            told = told_error(error)
            self._schedule.give_back(tr, place, attempt, found.value, now, told, due)
            return None

    def _store(self, tr: Any, claimed: _Claimed, token: bytes) -> None:
        layout = self._layout
        facts = token, claimed.lease_end, claimed.attempt, *claimed.slots
        self._rows.keep(tr, layout.claims, claimed.place, facts, claimed.value)
        tr[layout.when_key(layout.leases, claimed.lease_end, claimed.place)] = b""

    def _begin(self, tr: Any, claim: Claim) -> list[Any]:
        """Begin to read the items of a claim."""
        return [tr[self._layout.claims + self._layout.place(key)] for key in claim.keys]

    def _own(self, claim: Claim, reads: list[Any]) -> list[_Claimed]:
        """The items of a claim; raises `LeaseLost` if it is over."""
        layout = self._layout
        own = []
        for key, stored in zip(claim.keys, reads):
            if not stored.present():
                raise LeaseLost(layout.item_id(key))
            (token, end, attempt, *slots), value = decode_facts(stored.value)
            if token != claim.token:
                raise LeaseLost(layout.item_id(key))
            own.append(_Claimed(layout.place(key), end, attempt, slots, value))
        return own

    def _end(self, tr: Any, claim: Claim, reads: list[Any] | None = None) -> list[_Claimed]:
        """Take a claim away."""
        layout = self._layout
        ended = self._own(claim, self._begin(tr, claim) if reads is None else reads)
        for each in ended:
            self._rows.let_go(tr, layout.claims, each.place)
            del tr[layout.when_key(layout.leases, each.lease_end, each.place)]
            if each.slots:
                self._schedule.free_slots(tr, each.slots)
        return ended

    def each(
        self, tr: Any, claims: list[Claim], do: Callable[[Any, Claim, list[Any]], None]
    ) -> list[LeaseLost | None]:
        """Do something with several claims, each for itself; of those that are over, the error."""
        # Every read is under way before the first is waited for.
        began = [self._begin(tr, claim) for claim in claims]
        errors: list[LeaseLost | None] = []
        for claim, reads in zip(claims, began):
            try:
                do(tr, claim, reads)
                errors.append(None)
            except LeaseLost as error:
                errors.append(error)
        return errors

    def ack(self, tr: Any, claim: Claim, reads: list[Any] | None = None) -> None:
        """Be done with the items."""
        for each in self._end(tr, claim, reads):
            self._layout.end(tr, each.value)

    def extend(
        self, tr: Any, claim: Claim, reads: list[Any] | None = None, *, lease: float
    ) -> None:
        """Begin the lease anew."""
        layout = self._layout
        end = tr.get_read_version().wait() + int(lease * VERSIONS)
        for each in self._own(claim, self._begin(tr, claim) if reads is None else reads):
            del tr[layout.when_key(layout.leases, each.lease_end, each.place)]
            self._store(tr, each._replace(lease_end=end), claim.token)

    def release(self, tr: Any, claim: Claim) -> None:
        """Give the items back as if they had never been claimed."""
        for each in self._end(tr, claim):
            self._schedule.put(tr, each.place, each.value)

    def nack(
        self, tr: Any, claim: Claim, dues: list[int | None], error: str | None, now: int
    ) -> None:
        """Give the items back after they failed, each when it is due; or to the dead letters."""
        for each, due in zip(self._end(tr, claim), dues):
            self._schedule.give_back(tr, each.place, each.attempt, each.value, now, error, due)

    # Dead letters

    def dead_letter(self, tr: Any, key: bytes, stored: bytes) -> DeadLetter:
        """The dead letter of a key and a value."""
        layout = self._layout
        (attempts, died_at, error), value = decode_facts(stored)
        item_key = layout.items + key[len(layout.dead) :]
        item = None
        with suppress(UndecodableItem):  # which is what it died of
            item = self._codec.decode(tr, item_key, value)
        died = datetime.fromtimestamp(died_at / 1000, timezone.utc)
        return DeadLetter(item, self._codec.id_of(item_key), attempts, died, error)

    def retry_dead(self, tr: Any, dead: Found, reserve: Callable[[Any], None]) -> bool:
        """Put a dead letter back to its place; false if another item has its unique key.

        `reserve(tr)` takes its place in the bound of the queue, or raises.
        """
        layout = self._layout
        place = layout.place(dead.key)
        header, payload = header_of(dead.value)
        if header.unique is not None and tr[layout.unique_key(header.unique)].present():
            return False
        reserve(tr)
        if header.unique is not None:
            tr[layout.unique_key(header.unique)] = place
        self._rows.let_go(tr, layout.dead, place)
        tr.add(layout.died, MINUS_ONE)
        # Who retries it wants it done, though it be late.
        header = header._replace(attempts=0, expires=None)
        self._schedule.put(tr, place, with_header(header, payload))
        return True

    def drop_dead(self, tr: Any, dead: Found) -> bool:
        """Drop a dead letter; true, for it was there."""
        self._rows.let_go(tr, self._layout.dead, self._layout.place(dead.key))
        self._layout.clear_pieces(tr, dead.value)
        return True
