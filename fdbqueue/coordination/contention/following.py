"""A process of a host that leaves its requests to the leader, and learns what became of them."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.messages import MAX_CONTENT, Message, Signal
from fdbqueue.coordination.contention.process import Kind, Pairs, Process
from fdbqueue.coordination.contention.sockets import FollowerSocket, LeadSocket
from fdbqueue.database.exactly_once import NOTHING, Receipt, settle
from fdbqueue.database.retrying import run
from fdbqueue.errors import FDBError, error_classes
from fdbqueue.layout.values import unpack_staged
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

    def perform(self, kind: Kind, db: Database, batch: Batch[Any]) -> list[Any] | LeadSocket | None:
        """Let the leader perform a batch.

        Returns:
            The results; the lead if this process is the next leader; `None` if the process has to
            perform the batch itself. Without results, nothing happened.
        """
        if self._expected > 1:
            time.sleep(_GATHER)
            batch.join()
        requests = [*batch]
        self._expected = len(requests)
        content = kind.encode(requests)
        if content is None or len(content) > MAX_CONTENT:
            return None
        with Receipt(self._receipts) as receipt:
            if receipt.number == 1:
                run(db, receipt.clear_outdated)
            try:
                outcome = self._ask(db, kind, content, receipt)
                if outcome is None or isinstance(outcome, LeadSocket):
                    return outcome
                results = [*map(kind.result, outcome)]
            except BaseException:  # an interrupt, or an item that cannot be decoded
                self.disconnect()
                with suppress(*error_classes()):
                    kind.undo(db, self._settle(db, receipt, _UNDO_TIMEOUT) or [])
                raise
        performer = self._process.performers[kind.name]
        try:
            for index, result in enumerate(results):
                if result is None:
                    results[index] = performer.perform(db, Batch((requests[index],)))[0]
        except Exception as error:
            if len(requests) == 1:
                raise
            raise FDBError(1021) from error  # the other requests took effect
        return results

    def _ask(
        self, db: Database, kind: Kind, content: bytes, receipt: Receipt
    ) -> list[Pairs] | LeadSocket | None:
        """Send requests to the leader; return their results, or as `perform` does."""
        assert self._socket is not None
        deadline = time.monotonic() + _DEADLINE
        number, led = receipt.number, self._process.last_led
        request = Message(number, int(deadline * 1e9), led, kind.name, receipt.key, content)
        message = request.encode()
        try:
            if not self._socket.send(message, _DEADLINE):
                self._process.rest()
                return None
            while (left := deadline - time.monotonic()) > 0:
                received = self._socket.receive(min(left, _POKE))
                if received is None:
                    self._socket.send(Signal.POKE, 0)
                    continue
                answer, lead = received
                if lead is not None:
                    return lead
                if Signal.number_of(answer) != number:
                    continue  # the answer to an earlier message
                signal = answer[:1]
                if signal == Signal.OUTCOME:
                    self._process.note_contention()
                    return unpack_staged(Signal.content_of(answer))
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
        except BaseException:
            # Only a receipt that is written after the deadline prevents a later transaction of the
            # leader, which may not have read this message yet.
            time.sleep(max(0.0, deadline - time.monotonic()))
            raise
        return self._settle(db, receipt)

    def _settle(self, db: Database, receipt: Receipt, timeout: int = 0) -> list[Pairs] | None:
        """Return the results in the receipt; if there are none, prevent later ones.

        Args:
            db: The database.
            receipt: The receipt of the last requests.
            timeout: In milliseconds; 0 for that of the database.
        """

        def find(tr: Transaction) -> Any:
            if timeout:
                tr.options.set_timeout(timeout)
            return receipt.read(tr)

        outcome = settle(db, find, partial(receipt.write, outcome=NOTHING))
        return unpack_staged(outcome) if isinstance(outcome, bytes) else None
