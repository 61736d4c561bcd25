"""Share transactions among the processes of a host that work on one queue: one of them leads."""

from __future__ import annotations

import _thread
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from fdbqueue.coordination.combiner import Batch, Combiner, Performer
from fdbqueue.coordination.contention.messages import (
    FORMAT,
    MAX_CONTENT,
    Messages,
    NotShareable,
    Request,
    Signal,
    decode_outcome,
    encode_outcome,
)
from fdbqueue.coordination.contention.sockets import (
    IS_AVAILABLE,
    MAX_MESSAGE,
    FollowerSocket,
    LeadSocket,
    meet,
)
from fdbqueue.database.binding import database_identity, error_classes
from fdbqueue.database.clock import uuids
from fdbqueue.database.exactly_once import RECEIPT_HOURS
from fdbqueue.database.retrying import run
from fdbqueue.errors import FDBError, StorageError
from fdbqueue.layout import Layout, receipt_key, receipts_before
from fdbqueue.types import Database, Options, Transaction

__all__ = ["Kind", "Sharing"]

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

_CONTENDED = 1.0  # seconds that a process expects contention to last after it met some
_TURN = 0.1  # seconds that a process leads while its own threads go on working
_IDLE_CHECK = 0.002  # seconds between checks whether its threads still work
_IDLE_WAIT = 0.1  # seconds that an idle leader waits for a message
_GATHER = 0.0005  # seconds to wait for the threads that took part in the last message
_PATIENCE = 1.0  # seconds after which a process performs its requests itself
_POKE = 0.05  # seconds between checks whether the leader is alive
_REST = 5.0  # seconds without an attempt after a leader did not answer
_UNDO_TIMEOUT = 3_000  # milliseconds

_log = logging.getLogger("fdbqueue")


class Contender(Performer[Any, Any], Protocol):
    """A performer that tells when its transactions meet those of other processes."""

    contended_until: float
    """Until then it expects conflicts, by the monotonic clock."""


@dataclass(frozen=True)
class Kind(Generic[_Request, _Result]):
    """The requests of one kind.

    Attributes:
        performer: Returns a new performer of batches of them.
        messages: How they and their results travel between processes.
        cost: `cost(request)` returns the cost of a request.
        budget: The maximum cost of a batch.
    """

    performer: Callable[[], Contender]
    messages: Messages[_Request, _Result]
    cost: Callable[[_Request], int]
    budget: int


class Sharing:
    """The batches of one queue, which the processes of a host share while they contend.

    A process that meets contention looks for the leader of its host, and becomes the leader if
    there is none. The leader adds the requests of the other processes to its own batches. After a
    tenth of a second, or when its threads pause, it passes the lead on.

    A process leaves its requests with the leader until a deadline. The leader's transaction writes
    their results to a receipt of that process, and conflicts on it. A process without an answer
    reads its receipt after the deadline, or as soon as the leader is gone. If the receipt lacks the
    results, the process writes to it. The leader commits only if its transaction did its reads
    before the deadline, so that transaction conflicts with this write. Each request takes effect
    exactly once.

    Args:
        layout: The keys of the queue.
        options: The options that the client opened the queue with.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010), here among processes.
    """

    def __init__(self, layout: Layout, options: Options) -> None:
        self._layout = layout
        # What a leader checks for other processes has to be what they would check themselves.
        self._given = repr((options.kind, options.codec, options.priorities, options.ageing))
        self._kinds: dict[bytes, Kind[Any, Any]] = {}
        self._guard = threading.Lock()
        self._hosts: WeakKeyDictionary[Database, _Host] = WeakKeyDictionary()
        _sharings.add(self)

    def combiner(self, kind: Kind[_Request, _Result]) -> Combiner[_Request, _Result]:
        """Return the combiner of requests of one kind."""
        name = kind.messages.kind
        self._kinds[name] = kind
        return Combiner(lambda: _Performer(self, name), kind.cost, kind.budget)

    def host(self, db: Database) -> _Host:
        """Return this process among those that work on a database."""
        with self._guard:
            if db not in self._hosts:
                self._hosts[db] = _Host(db, self._layout, self._given, self._kinds)
            return self._hosts[db]

    def forget(self) -> None:
        """Drop all state in a forked child: the sockets belong to its parent."""
        self._guard = threading.Lock()
        for host in self._hosts.values():
            host.close()
        self._hosts = WeakKeyDictionary()


_sharings: WeakSet[Sharing] = WeakSet()


def _forget_all() -> None:
    for sharing in _sharings:
        sharing.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Performer:
    """Performs the batches of one kind on one database."""

    def __init__(self, sharing: Sharing, name: bytes) -> None:
        self._sharing = sharing
        self._name = name
        self._host: _Host | None = None

    def perform(self, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch in this process, or leave it to the leader."""
        host = self._host
        if host is None:
            host = self._host = self._sharing.host(db)
        performer = host.performers[self._name]
        # Another thread, or a call that a signal handler interrupted, may be sharing.
        if not host.is_contended(db, performer) or host.guard.locked():
            return performer.perform(db, batch)
        with host.guard:
            return host.perform(self._name, db, batch)


class _Remote(NamedTuple):
    """The requests of another process."""

    request: Request
    sender: str
    requests: list[Any]


class _Host:
    """One process among those of its host that work on a queue."""

    def __init__(
        self, db: Database, layout: Layout, given: str, kinds: dict[bytes, Kind[Any, Any]]
    ) -> None:
        self._is_shared = IS_AVAILABLE and getattr(db, "commits_take_time", True)
        self._receipts = layout.receipts
        self.kinds = kinds
        self.performers = {name: kind.performer() for name, kind in kinds.items()}
        self._queue = given.encode() + b" " + layout.subspace.key()
        self.guard = threading.Lock()
        """Held during a call. Python leaves its `with` statement in one step."""
        self._name: str | None = None
        self._calls = 0
        self._waits = 0
        self._contended_until = self._rests_until = 0.0
        # As the leader
        self._lead: LeadSocket | None = None
        self._watched: LeadSocket | None = None  # by a thread that passes it on
        self._turn_ends, self._last_led = 0.0, 0
        self._held: list[_Remote] = []  # each is performed once, or sent back
        self._expected = 1
        # As a follower
        self._follower: FollowerSocket | None = None
        self._receipt = b""
        self._hour: int = 0
        self._number: int = 0

    def close(self) -> None:
        """Close the sockets; in a forked child, leave their names to the parent."""
        self._resign()
        self._disconnect()

    def is_contended(self, db: Database, performer: Contender) -> bool:
        """Return whether to share: this process recently waited for others or worked with them."""
        if not self._is_shared:
            return False
        waits: int = getattr(db, "lock_waits", 0)
        if waits != self._waits:
            self._waits = waits
            self.note_contention()
        until = max(self._contended_until, performer.contended_until)
        return until > 0 and self._rests_until < time.monotonic() < until

    def note_contention(self) -> None:
        """Expect contention for a while."""
        self._contended_until = time.monotonic() + _CONTENDED

    def _rest(self) -> None:
        """Share no transactions for a while."""
        self._rests_until = time.monotonic() + _REST

    def perform(self, name: bytes, db: Database, batch: Batch[_Request]) -> Sequence[Any]:
        """Perform a batch as the leader, or leave it to the leader."""
        self._calls += 1
        messages, performer = self.kinds[name].messages, self.performers[name]
        if self._lead is None and self._has_leader(db):
            if self._expected > 1:
                time.sleep(_GATHER)
                batch.fill()
            requests = [*batch]
            self._expected = len(requests)
            content = messages.encode(requests)
            if content is None or len(content) > MAX_CONTENT:
                return performer.perform(db, batch)
            results = self._leave_to_leader(name, db, requests, content)
            if results is not None:
                return results
        if self._lead is None:
            return performer.perform(db, batch)
        return self._perform_as_leader(name, db, batch)

    # As a follower

    def _has_leader(self, db: Database) -> bool:
        """Connect to the leader of the host, or become it; return whether there is another one."""
        if self._name is None:
            try:
                identity = database_identity(db)
            except OSError as error:
                _log.debug("this process cannot share transactions now: %r", error)
                self._rest()
                return False
            self._is_shared = identity is not None
            if identity is None:
                return False
            self._name = _name_of(identity, self._queue)
        if self._follower is None:
            found = meet(self._name)
            if isinstance(found, LeadSocket):
                self._begin_turn(found)
            elif found is None:
                self._rest()
            else:
                self._follower = found
        return self._follower is not None and self._lead is None

    def _disconnect(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def _leave_to_leader(
        self, name: bytes, db: Database, requests: list[Any], content: bytes
    ) -> list[Any] | None:
        """Let the leader perform requests; return their results, or `None` if nothing happened."""
        messages, performer = self.kinds[name].messages, self.performers[name]
        self._renew_identity(db)
        self._number += 1
        is_done = False
        try:
            outcome = self._ask(db, name, content)
            if outcome is None:
                is_done = True
                return None
            results = [*map(messages.result, requests, outcome)]
            is_done = True
        finally:
            if not is_done:  # an interrupt, or an item that cannot be decoded
                self._disconnect()
                with suppress(*error_classes()):
                    messages.undo(db, self._settle(db, _UNDO_TIMEOUT))
        try:
            for number, result in enumerate(results):
                if result is None:
                    results[number] = performer.perform(db, Batch((requests[number],)))[0]
        except Exception as error:
            if len(requests) == 1:
                raise
            raise FDBError(1021) from error  # the other requests took effect
        return results

    def _renew_identity(self, db: Database) -> None:
        """Begin a receipt for this hour, and delete receipts more than a day old."""
        hour = int(time.time() // 3600)
        if hour == self._hour:
            return
        (client,) = uuids(1)
        self._receipt = receipt_key(self._receipts, hour, client)
        self._hour, self._number = hour, 0
        outdated = receipts_before(self._receipts, hour - RECEIPT_HOURS)
        run(db, lambda tr: tr.clear_range(*outdated))

    def _ask(self, db: Database, name: bytes, content: bytes) -> list[list[bytes]] | None:
        """Send requests to the leader; return their results, or `None` if nothing happened."""
        assert self._follower is not None
        deadline = time.monotonic() + _PATIENCE
        number = self._number
        at = int(deadline * 1e9)
        request = Request(number, at, self._last_led, name, self._receipt, content)
        message = request.encode()
        try:
            if not self._follower.send(message, _PATIENCE):
                self._rest()
                return None
            while (left := deadline - time.monotonic()) > 0:
                answer = self._follower.receive(min(left, _POKE))
                if answer is None:
                    self._follower.send(Signal.POKE, 0)
                    continue
                text, lead = answer
                if lead is not None:
                    self._begin_turn(lead)
                    return None
                if Signal.number_of(text) != number:
                    continue  # the answer to an earlier message
                signal = text[:1]
                if signal == Signal.OUTCOME:
                    self.note_contention()
                    return decode_outcome(text[1:])[1]
                if signal == Signal.AGAIN:
                    self._follower.send(message, left)
                    continue
                self._rest()
                if signal == Signal.REFUSED:
                    return None
                break
            else:
                self._rest()
                self._disconnect()
        except OSError:  # the leader is gone
            self._disconnect()
        return self._settle(db) or None

    def _settle(self, db: Database, timeout: int = 0) -> list[list[bytes]]:
        """Return the results of the last requests; if there are none, prevent later ones.

        Args:
            db: The database.
            timeout: In milliseconds; 0 for that of the database.
        """
        key, number = self._receipt, self._number

        def body(tr: Transaction) -> list[list[bytes]]:
            if timeout:
                tr.options.set_timeout(timeout)
            receipt = tr[key].value
            if receipt is not None:
                last, results = decode_outcome(receipt)
                if last == number:
                    return results
            # A transaction of the leader that is on its way conflicts with this.
            tr[key] = encode_outcome(number, [])
            return []

        errors: tuple[type[Exception], ...] = (StorageError, *error_classes())
        try:
            try:
                return run(db, body)
            except error_classes():
                return run(db, body)  # after one lost answer or timeout, try once more
        except errors as error:
            raise FDBError(1021) from error

    # As the leader

    def _begin_turn(self, lead: LeadSocket) -> None:
        self._lead = lead
        self._last_led = time.monotonic_ns()
        self._turn_ends = time.monotonic() + _TURN
        for performer in self.performers.values():
            # The conflicts so far were with processes that now share.
            performer.contended_until = 0.0

    def _perform_as_leader(self, name: bytes, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch together with the requests of other processes."""
        lead = self._lead
        if lead is not None and self._watched is not lead:
            self._watched = lead
            try:
                # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
                _thread.start_new_thread(self._pass_on_when_idle, (lead,))
            except RuntimeError:  # the system has no thread, or the program ends
                self._resign()
                self._rest()
                return self.performers[name].perform(db, batch)
        # Requests of the same kind join this batch. Those of the other kind waited for it in case
        # it was theirs, because many processes push and pop in turns. It is not, so they go first.
        for other in {remote.request.kind for remote in self._held} - {name}:
            try:
                _SharedBatch(Batch(), other, self).perform(db)
            except Exception as error:
                _log.debug("other processes perform their requests themselves: %r", error)
        results = _SharedBatch(batch, name, self).perform(db)
        if time.monotonic() >= self._turn_ends:
            self._pass_on()
        return results

    def receive(self) -> None:
        """Receive the messages that wait."""
        lead = self._lead
        try:
            while lead is not None and (received := lead.receive()) is not None:
                message, sender = received
                if message != Signal.POKE:
                    self._hold(message, sender, lead)
        except OSError:  # an interrupt came after the socket was closed
            self._resign()

    def _hold(self, message: bytes, sender: str, lead: LeadSocket) -> None:
        try:
            request = Request.decode(message)
            requests = self.kinds[request.kind].messages.decode(request.content)
        except Exception as error:
            _log.warning("a message of another process could not be read: %r", error)
            lead.send(Signal.UNKNOWN.about(Signal.number_of(message)), sender)
        else:
            self._held.append(_Remote(request, sender, requests))

    def send(self, message: bytes, remote: _Remote) -> None:
        """Send an answer."""
        if self._lead is not None:
            self._lead.send(message, remote.sender)

    def take(self, name: bytes, budget: int) -> list[_Remote]:
        """Remove and return the requests of a kind, as far as a budget goes."""
        taken: list[_Remote] = []
        if self._held:
            cost = self.kinds[name].cost
            held, self._held, now = self._held, [], time.monotonic_ns()
            for remote in held:
                if remote.request.kind != name or budget <= 0:
                    self._held.append(remote)
                elif now < remote.request.deadline:
                    budget -= sum(map(cost, remote.requests))
                    taken.append(remote)
        return taken

    def _pass_on(self) -> None:
        """Pass the lead on to a process that waits, the one that has not led for the longest time.

        The others send their requests again, to the next leader.
        """
        self.receive()
        lead = self._lead
        if lead is None or not self._held:
            return
        # Nothing that is sent back may stay here, wherever this thread is interrupted.
        held, self._held = sorted(self._held, key=lambda each: each.request.last_led), []
        try:
            for remote in held[1:]:
                lead.send(Signal.AGAIN.about(remote.request.number), remote.sender)
            if lead.pass_to(Signal.LEAD.about(held[0].request.number), held[0].sender):
                self._lead = None
        except BaseException:
            lead.close()
            raise

    def _pass_on_when_idle(self, lead: LeadSocket) -> None:
        """Pass the lead on once this process does not work on the queue, and end with the lead."""
        seen = -1
        while self._lead is lead:
            time.sleep(_IDLE_CHECK)
            if seen != self._calls:
                seen = self._calls
                continue
            if not self._held:
                lead.wait(_IDLE_WAIT)
            if not self.guard.acquire(blocking=False):
                continue
            try:
                if self._lead is lead and seen == self._calls:
                    self._pass_on()
                    if time.monotonic() >= self._contended_until:
                        self._resign()
            finally:
                self.guard.release()

    def _resign(self) -> None:
        """Close the leader's socket."""
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.close()


class _SharedBatch(Batch[Any]):
    """The requests of this process, and those of other processes that join them."""

    def __init__(self, own: Batch[Any], name: bytes, host: _Host) -> None:
        super().__init__(own)
        self._own = own
        self._host = host
        self._name = name
        self._kind = host.kinds[name]
        self._performer = host.performers[name]
        self._budget = self._kind.budget  # what is left for requests of other processes
        self._n_own = len(own)
        self._is_own = [True] * len(own)
        self._remotes: list[tuple[int, _Remote]] = []
        self._attempts: list[tuple[Any, list[bytes]]] = []

    def join(self, tr: Transaction) -> None:
        """Add the requests that have arrived, within the budget."""
        self._own.join(tr)
        self._fill()
        self.depend(tr)

    def _fill(self) -> None:
        while self._n_own < len(self._own):
            self.append(self._own[self._n_own])
            self._is_own.append(True)
            self._n_own += 1
        self._host.receive()
        for remote in self._host.take(self._name, self._budget):
            self._budget -= sum(map(self._kind.cost, remote.requests))
            self._remotes.append((len(self), remote))
            self.extend(remote.requests)
            self._is_own += [False] * len(remote.requests)

    def depend(self, tr: Transaction) -> None:
        """Conflict with processes that perform their requests themselves."""
        for _, remote in self._remotes:
            tr.add_read_conflict_key(remote.request.receipt)

    def is_own(self, index: int) -> bool:
        """Return whether a thread of this process made a request."""
        return self._is_own[index]

    def settle(self, tr: Transaction, results: Sequence[Any]) -> None:
        """Write the receipts of other processes, as part of the transaction that performs them.

        Raises:
            NotShareable: A process may perform its requests itself by now, or its results are too
                large for a message.
        """
        outcomes: list[bytes] = []
        for begin, (request, _, requests) in self._remotes:
            # The reads of this transaction precede this look at the clock.
            if time.monotonic_ns() >= request.deadline:
                raise NotShareable
            end = begin + len(requests)
            fields = [*map(self._kind.messages.fields, results[begin:end])]
            outcome = encode_outcome(request.number, fields)
            if len(outcome) >= MAX_MESSAGE:
                raise NotShareable
            outcomes.append(outcome)
            if any(fields):
                tr[request.receipt] = outcome
        self._attempts.append((results, outcomes))

    def perform(self, db: Database) -> Sequence[Any]:
        """Perform the batch, answer the other processes, and return the results of this one."""
        if not self or not getattr(db, "commits_are_certain", False):
            self._fill()  # the queue of a socket may be short
        results: Sequence[Any] = ()
        is_answered = False
        try:
            if self:
                results = self._performer.perform(db, self)
            self._answer(results)
            is_answered = True
        except NotShareable:
            pass
        finally:
            if not is_answered:
                for _, remote in self._remotes:
                    self._host.send(Signal.UNKNOWN.about(remote.request.number), remote)
        if not is_answered:
            # Not within the `except` clause: its error refers to the failed transaction.
            return self._performer.perform(db, self._own) if self._own else ()
        return [result for is_own, result in zip(self._is_own, results) if is_own]

    def _answer(self, results: Sequence[Any]) -> None:
        if not self._remotes:
            return
        self._host.note_contention()
        # After an unknown result, an earlier attempt may be the one that committed.
        (outcomes,) = [outcomes for found, outcomes in self._attempts if found is results]
        for (begin, remote), outcome in zip(self._remotes, outcomes):
            is_performed = begin < len(results)
            refusal = Signal.REFUSED.about(remote.request.number)
            self._host.send(Signal.OUTCOME.value + outcome if is_performed else refusal, remote)


def _name_of(identity: str, queue: bytes) -> str:
    """Return the name of the leader's socket."""
    # Processes that compare their monotonic clocks must share them.
    boot = Path("/proc/sys/kernel/random/boot_id")
    clock = Path("/proc/self/ns/time")
    parts = [
        boot.read_text() if boot.exists() else "",
        clock.stat().st_ino if clock.exists() else 0,
    ]
    text = f"{FORMAT} {parts} {identity} ".encode() + queue
    return hashlib.sha256(text).hexdigest()[:32]
