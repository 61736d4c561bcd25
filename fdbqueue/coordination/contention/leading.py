"""The process of a host that performs the requests of the others, together with its own."""

from __future__ import annotations

import _thread
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.messages import (
    MAX_RECEIPT,
    Message,
    NotShareable,
    Signal,
)
from fdbqueue.coordination.contention.process import IDLE_CHECK, Kind, Process
from fdbqueue.coordination.contention.sockets import LeadSocket
from fdbqueue.layout.values import encode_results, pack_staged
from fdbqueue.types import Database, Transaction

_TURN = 0.1  # seconds that a process leads while its own threads go on working
_IDLE_WAIT = 0.1  # seconds that an idle leader waits for a message

_log = logging.getLogger("fdbqueue")


class _Guest(NamedTuple):
    """The requests of another process."""

    message: Message
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
        self._held: list[_Guest] = []  # each is performed once, or sent back
        process.note_leads()

    @property
    def leads(self) -> bool:
        """True until this process has passed the lead on, or resigned."""
        return self._lead is not None

    def perform(self, kind: Kind, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch together with the requests of other processes."""
        if not self._is_watched:
            self._is_watched = True
            try:
                # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
                _thread.start_new_thread(self._pass_on_when_idle, ())
            except RuntimeError:  # the system has no thread, or the program ends
                self.resign()
                self._process.rest()
                return self._process.performers[kind.name].perform(db, batch)
        # Requests of the same kind join this batch. Those of the other kind waited for it in case
        # it was theirs, because many processes push and pop in turns. It is not, so they go first.
        for other in {guest.message.kind for guest in self._held} - {kind.name}:
            try:
                self._perform(self._process.kinds[other], db, Batch())
            except Exception as error:
                _log.debug("other processes perform their requests themselves: %r", error)
        results = self._perform(kind, db, batch)
        if time.monotonic() >= self._turn_ends:
            self._pass_on()
        return results

    def _perform(self, kind: Kind, db: Database, own: Batch[Any]) -> Sequence[Any]:
        """Perform a batch with its guests, answer these, and return the results of this process."""
        performer = self._process.performers[kind.name]
        batch = SharedBatch(own, kind, self)
        if not own or not getattr(db, "commits_are_certain", False):
            batch.join()  # the queue of a socket may be short
        try:
            results = performer.perform(db, batch) if batch else ()
            for guest, answer in batch.answers(results):
                self._send(answer, guest)
        except BaseException as error:
            for _, guest in batch.guests:
                self._send(Signal.UNKNOWN.about(guest.message.number), guest)
            if not isinstance(error, NotShareable):
                raise
        else:
            if batch.guests:
                self._process.note_contention()
            return [each for index, each in enumerate(results) if index not in batch.guests_at]
        # Not within the `except` clause: its error refers to the failed transaction.
        return performer.perform(db, own) if own else ()

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

    def _hold(self, text: bytes, sender: str, lead: LeadSocket) -> None:
        try:
            message = Message.decode(text)
            requests = self._process.kinds[message.kind].decode(message.content)
        except Exception as error:
            _log.warning("a message of another process could not be read: %r", error)
            lead.send(Signal.UNKNOWN.about(Signal.number_of(text)), sender)
        else:
            self._held.append(_Guest(message, sender, requests))

    def _send(self, answer: bytes, guest: _Guest) -> None:
        if self._lead is not None:
            self._lead.send(answer, guest.sender)

    def take(self, kind: Kind, budget: int) -> list[_Guest]:
        """Remove and return the requests of a kind, as far as a budget goes."""
        taken: list[_Guest] = []
        if self._held:
            held, self._held, now = self._held, [], time.monotonic_ns()
            for guest in held:
                if guest.message.kind != kind.name or budget <= 0:
                    self._held.append(guest)
                elif now < guest.message.deadline:
                    budget -= sum(map(kind.cost, guest.requests))
                    taken.append(guest)
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
        held, self._held = sorted(self._held, key=lambda each: each.message.last_led), []
        try:
            for guest in held[1:]:
                lead.send(Signal.AGAIN.about(guest.message.number), guest.sender)
            if lead.pass_to(Signal.LEAD.about(held[0].message.number), held[0].sender):
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


class SharedBatch(Batch[Any]):
    """The requests of this process, and those of other processes, its guests.

    Attributes:
        guests: The guests, each with the index of its first request.
        guests_at: The indexes of all their requests.
    """

    is_open = True

    def __init__(self, own: Batch[Any], kind: Kind, leader: Leader) -> None:
        super().__init__(own)
        self._own = own
        self._kind = kind
        self._leader = leader
        self._left = kind.budget  # for requests of guests
        self.guests: list[tuple[int, _Guest]] = []
        self.guests_at: set[int] = set()
        self._settled: list[tuple[Sequence[Any], list[bytes]]] = []

    def join(self) -> None:
        """Add the requests that have arrived, within the budget."""
        self._own.join()
        self.extend(self._own[len(self) - len(self.guests_at) :])
        self._leader.receive()
        for guest in self._leader.take(self._kind, self._left):
            self._left -= sum(map(self._kind.cost, guest.requests))
            self.guests.append((len(self), guest))
            self.guests_at.update(range(len(self), len(self) + len(guest.requests)))
            self.extend(guest.requests)

    def depend(self, tr: Transaction) -> None:
        """Conflict with guests that settle with their receipts.

        Call this in each transaction that performs the batch, after `join` and, because it is
        faster then, before any write.
        """
        for _, guest in self.guests:
            tr.add_read_conflict_key(guest.message.receipt)

    def settle(self, tr: Transaction, results: Sequence[Any]) -> None:
        """Write the receipts of the guests, as part of the transaction that performs the batch.

        Call this after all its reads. If a guest settles with its receipt first, this transaction
        conflicts (`depend`): it has read before the deadline, and a guest settles after the
        deadline, or when its leader is gone.

        Raises:
            NotShareable: A process may perform its requests itself by now, or its results are too
                large for a message.
        """
        answers: list[bytes] = []
        for index, (message, _, requests) in self.guests:
            if time.monotonic_ns() >= message.deadline:
                raise NotShareable
            found = results[index : index + len(requests)]
            answer = pack_staged(map(self._kind.pairs, found))
            answers.append(answer)
            receipt = encode_results(message.number, answer)
            if len(receipt) > MAX_RECEIPT:
                raise NotShareable
            if any(found):
                tr[message.receipt] = receipt
        self._settled.append((results, answers))

    def answers(self, results: Sequence[Any]) -> Iterator[tuple[_Guest, bytes]]:
        """Yield each guest with its answer, given the results of the requests performed."""
        if not self.guests:
            return
        # After an unknown result, an earlier attempt may be the one that committed.
        (answers,) = [answers for found, answers in self._settled if found is results]
        for (index, guest), answer in zip(self.guests, answers):
            number = guest.message.number
            if index < len(results):
                yield guest, Signal.OUTCOME.about(number, answer)
            else:
                yield guest, Signal.REFUSED.about(number)
