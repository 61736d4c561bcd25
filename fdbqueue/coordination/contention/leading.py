"""The process of a host that performs the requests of the others, together with its own."""

from __future__ import annotations

import _thread
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.messages import (
    NotShareable,
    Request,
    Signal,
    encode_outcome,
)
from fdbqueue.coordination.contention.process import IDLE_CHECK, Process
from fdbqueue.coordination.contention.sockets import MAX_MESSAGE, LeadSocket
from fdbqueue.types import Database, Transaction

_TURN = 0.1  # seconds that a process leads while its own threads go on working
_IDLE_WAIT = 0.1  # seconds that an idle leader waits for a message

_log = logging.getLogger("fdbqueue")


class _Remote(NamedTuple):
    """The requests of another process."""

    request: Request
    sender: str
    requests: list[Any]


class Leader:
    """The turn of this process as the leader, until it passes the lead on or resigns.

    Args:
        process: This process.
        lead: The socket that the other processes send their requests to.
    """

    def __init__(self, process: Process, lead: LeadSocket) -> None:
        self._process = process
        self._lead: LeadSocket | None = lead
        self._is_watched = False  # by a thread that passes the lead on
        self._turn_ends = time.monotonic() + _TURN
        self._held: list[_Remote] = []  # each is performed once, or sent back
        process.note_leads()

    @property
    def leads(self) -> bool:
        """True until this process has passed the lead on, or resigned."""
        return self._lead is not None

    def perform(self, name: bytes, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch together with the requests of other processes."""
        if not self._is_watched:
            self._is_watched = True
            try:
                # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
                _thread.start_new_thread(self._pass_on_when_idle, ())
            except RuntimeError:  # the system has no thread, or the program ends
                self.resign()
                self._process.rest()
                return self._process.performers[name].perform(db, batch)
        # Requests of the same kind join this batch. Those of the other kind waited for it in case
        # it was theirs, because many processes push and pop in turns. It is not, so they go first.
        for other in {remote.request.kind for remote in self._held} - {name}:
            try:
                _SharedBatch(Batch(), other, self._process, self).perform(db)
            except Exception as error:
                _log.debug("other processes perform their requests themselves: %r", error)
        results = _SharedBatch(batch, name, self._process, self).perform(db)
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
            self.resign()

    def _hold(self, message: bytes, sender: str, lead: LeadSocket) -> None:
        try:
            request = Request.decode(message)
            requests = self._process.kinds[request.kind].messages.decode(request.content)
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
            cost = self._process.kinds[name].cost
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

    def _pass_on_when_idle(self) -> None:
        """Pass the lead on once this process does not work on the queue, and end with the lead."""
        process, seen = self._process, -1
        while (lead := self._lead) is not None:
            time.sleep(IDLE_CHECK)
            if seen != process.calls:
                seen = process.calls
                continue
            if not self._held:
                lead.wait(_IDLE_WAIT)
            if not process.guard.acquire(blocking=False):
                continue
            try:
                if self.leads and seen == process.calls:
                    self._pass_on()
                    if process.met_nobody:
                        self.resign()
            finally:
                process.guard.release()

    def resign(self) -> None:
        """Close the leader's socket."""
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.close()


class _SharedBatch(Batch[Any]):
    """The requests of this process, and those of other processes that join them."""

    is_open = True

    def __init__(self, own: Batch[Any], name: bytes, process: Process, leader: Leader) -> None:
        super().__init__(own)
        self._own = own
        self._process = process
        self._leader = leader
        self._name = name
        self._kind = process.kinds[name]
        self._performer = process.performers[name]
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
        self._leader.receive()
        for remote in self._leader.take(self._name, self._budget):
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
                    self._leader.send(Signal.UNKNOWN.about(remote.request.number), remote)
        if not is_answered:
            # Not within the `except` clause: its error refers to the failed transaction.
            return self._performer.perform(db, self._own) if self._own else ()
        return [result for is_own, result in zip(self._is_own, results) if is_own]

    def _answer(self, results: Sequence[Any]) -> None:
        if not self._remotes:
            return
        self._process.note_contention()
        # After an unknown result, an earlier attempt may be the one that committed.
        (outcomes,) = [outcomes for found, outcomes in self._attempts if found is results]
        for (begin, remote), outcome in zip(self._remotes, outcomes):
            is_performed = begin < len(results)
            refusal = Signal.REFUSED.about(remote.request.number)
            self._leader.send(Signal.OUTCOME.value + outcome if is_performed else refusal, remote)
