"""A process of a host that leaves its requests to the leader, and learns what became of them."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.messages import (
    MAX_CONTENT,
    Request,
    Signal,
    decode_outcome,
    encode_outcome,
)
from fdbqueue.coordination.contention.process import Process
from fdbqueue.coordination.contention.sockets import FollowerSocket, LeadSocket
from fdbqueue.database.binding import error_classes
from fdbqueue.database.clock import uuids
from fdbqueue.database.exactly_once import RECEIPT_HOURS
from fdbqueue.database.retrying import run
from fdbqueue.errors import FDBError, StorageError
from fdbqueue.layout.keys import receipt_key, receipts_before
from fdbqueue.types import Database, Transaction

_GATHER = 0.0005  # seconds to wait for the threads that took part in the last message
_DEADLINE = 1.0  # seconds after which a process performs its requests itself
_POKE = 0.05  # seconds between checks whether the leader is alive
_UNDO_TIMEOUT = 3_000  # milliseconds


class Follower:
    """This process while another one leads.

    Args:
        process: This process.
        receipts: The subspace of the queue's receipts.
    """

    def __init__(self, process: Process, receipts: Subspace) -> None:
        self._process = process
        self._receipts = receipts
        self._socket: FollowerSocket | None = None
        self._receipt = b""
        self._hour: int = 0
        self._number: int = 0
        self._expected = 1

    @property
    def is_connected(self) -> bool:
        """True if this process has a socket that is connected to the leader's."""
        return self._socket is not None

    def connect(self, connected: FollowerSocket) -> None:
        """Use a socket that is connected to the leader's."""
        self._socket = connected

    def disconnect(self) -> None:
        """Close the socket, if there is one."""
        connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    def perform(
        self, name: bytes, db: Database, batch: Batch[Any]
    ) -> list[Any] | LeadSocket | None:
        """Let the leader perform a batch.

        Returns:
            The results; the lead if this process is the next leader; `None` if the process has to
            perform the batch itself. Without results, nothing happened.
        """
        messages, performer = self._process.kinds[name].messages, self._process.performers[name]
        if self._expected > 1:
            time.sleep(_GATHER)
            batch.fill()
        requests = [*batch]
        self._expected = len(requests)
        content = messages.encode(requests)
        if content is None or len(content) > MAX_CONTENT:
            return None
        self._renew_identity(db)
        self._number += 1
        is_done = False
        try:
            outcome = self._ask(db, name, content)
            if outcome is None or isinstance(outcome, LeadSocket):
                is_done = True
                return outcome
            results = [*map(messages.result, requests, outcome)]
            is_done = True
        finally:
            if not is_done:  # an interrupt, or an item that cannot be decoded
                self.disconnect()
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

    def _ask(
        self, db: Database, name: bytes, content: bytes
    ) -> list[list[bytes]] | LeadSocket | None:
        """Send requests to the leader; return their results, or as `perform` does."""
        assert self._socket is not None
        deadline = time.monotonic() + _DEADLINE
        number = self._number
        at = int(deadline * 1e9)
        request = Request(number, at, self._process.last_led, name, self._receipt, content)
        message = request.encode()
        try:
            if not self._socket.send(message, _DEADLINE):
                self._process.rest()
                return None
            while (left := deadline - time.monotonic()) > 0:
                answer = self._socket.receive(min(left, _POKE))
                if answer is None:
                    self._socket.send(Signal.POKE, 0)
                    continue
                text, lead = answer
                if lead is not None:
                    return lead
                if Signal.number_of(text) != number:
                    continue  # the answer to an earlier message
                signal = text[:1]
                if signal == Signal.OUTCOME:
                    self._process.note_contention()
                    return decode_outcome(text[1:])[1]
                if signal == Signal.AGAIN:
                    self._socket.send(message, left)
                    continue
                self._process.rest()
                if signal == Signal.REFUSED:
                    return None
                break
            else:
                self._process.rest()
                self.disconnect()
        except OSError:  # the leader is gone
            self.disconnect()
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
