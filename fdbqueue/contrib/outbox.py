"""Jobs that commit with rows of a SQL database: what the adapters share."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.database.clock import monotonic, retry_delay, uuids
from fdbqueue.database.pages import in_batches
from fdbqueue.database.retrying import read, run
from fdbqueue.jobs.app import App
from fdbqueue.layout.names import decode_rows, encode_rows, name_key, outbox_key
from fdbqueue.operations.items import NewItem
from fdbqueue.queue.base import new_items, store_of
from fdbqueue.queue.batches import push_members
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Duration, Transaction
from fdbqueue.worker.telemetry import Log

TABLE = "fdbqueue_outbox"
"""The name of the table, and of the channel on which Postgres tells of new rows."""

IDENTITY = -1
"""The id of a row whose token is the identity of the outbox."""

BATCH = 100
"""The number of rows that a relay reads at a time."""

_BYTES = 1_000_000  # of the rows that one transaction pushes, unless one row is larger
_FIRST, _LONGEST = 0.1, 5.0  # seconds between looks at the table, which double while it is empty
_LOOK = 0.5  # seconds after which a relay that listens to Postgres looks whether it is to stop
_END = 10.0  # seconds that a relay has to end

_log = Log("fdbqueue.outbox")
_queue_of = attrgetter("queue")
_any_queue = PriorityQueue[Any](Subspace(("any",)))


class Row(NamedTuple):
    """A row of an outbox: its id, a random token, the name of a queue, and a push as JSON.

    After a restore of the table an id may come again, a token does not.
    """

    id: int
    token: str
    queue: str
    push: str

    def item(self, queue: PriorityQueue[Any]) -> NewItem:
        """Return the item to push to the queue."""
        given = json.loads(self.push)
        due, alert = given.pop("due"), bytes.fromhex(given.pop("alert"))
        item = _item(queue, **given)
        return item._replace(due=due, header=item.header._replace(alert=alert))


def _item(queue: PriorityQueue[Any], values: list[Any], priority: Any, **options: Any) -> NewItem:
    return new_items(store_of(queue), values, [priority], **options)[0]


def new_row(
    queue: str, push: Mapping[str, Any], alert: bytes = b"", delay: Duration | None = None
) -> dict[str, str]:
    """Return the columns of a row, given arguments of `push_many` with one value; check them.

    A delay begins now, whenever the row is pushed. `alert` is the header field of that name.
    """
    name_key(queue)  # raises for a text that cannot be a name
    given = {name: value for name, value in push.items() if value is not None}
    given |= {name: [*given[name]] for name in ("unique", "groups") if name in given}
    if delay is not None:
        given["delay"] = delay
    given |= {"due": _item(_any_queue, **given).due, "delay": None, "at": None}
    given["alert"] = alert.hex()
    text = json.dumps(given, default=timedelta.total_seconds)
    return {"token": uuids(1)[0].hex(), "queue": queue, "push": text}


def new_identity() -> dict[str, Any]:
    """Return the columns of the row `IDENTITY` of a new table."""
    return {"id": IDENTITY, "token": uuids(1)[0].hex(), "queue": "", "push": ""}


class Outbox(ABC):
    """An outbox of an app; adapters say how its table is read and written.

    Attributes:
        woken: Set when there may be new rows.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.woken = threading.Event()
        app.relays.append(self.relaying)

    @property
    def app(self) -> App:
        """The app on whose database the queues are."""
        return self._app

    def relay(self) -> int:
        """Push the committed rows until none is left, and return their number.

        Workers of the app and `fdbq relay` do this, too. Rows that cannot be pushed stay, and the
        log says why.
        """
        return Relay(self).drain()

    @contextmanager
    def relaying(self, drain: bool = False) -> Generator[None]:
        """Push rows in a thread until the end of a `with` block.

        With `drain`, the committed rows are pushed before it begins. The thread looks for rows when
        this process or, on Postgres with psycopg 3, any process commits one, otherwise every 0.1 to
        5 seconds.
        """
        relay = Relay(self)
        if drain:
            relay.drain()
        stop = threading.Event()
        thread = threading.Thread(target=relay.run, args=[stop], name=TABLE, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.wake()
            thread.join(_END)

    def wake(self, *_: object) -> None:
        """Let the relays of this process look for rows."""
        self.woken.set()

    @abstractmethod
    def identity(self) -> str:
        """Return the token of the row `IDENTITY`; the first call stores `new_identity`."""

    @abstractmethod
    def take(self, pushed: Sequence[tuple[int, str]], held: Collection[str]) -> list[Row]:
        """Delete pushed rows, and return the first others, except those of held queues.

        One transaction does both. It begins after the call, and has committed at the end.
        """

    @abstractmethod
    def listen(self) -> Any:
        """Return a new connection of psycopg 3 that listens on `TABLE`; `None` without psycopg."""


class Relay:
    """A client that pushes the rows of an outbox, in the order of their ids.

    The *ledger*, a key in the database of the queues, has the rows that the last relay has pushed
    and perhaps not deleted. A relay reads the ledger, deletes these rows, and reads others. It
    pushes them, and writes them to the ledger, in a transaction that fails if another relay has
    changed the ledger meanwhile. So none of them was pushed before: it would be deleted, or the
    ledger would be another.

    If rows of a queue cannot be pushed, those of other queues go on.

    Attributes:
        pushed: The number of rows that it has pushed.
        is_current: Whether it knows the ledger.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.pushed = 0
        self.is_current = False
        self._outbox = outbox
        self._limits: dict[str, int] = {}  # rows of a queue after an error: one at a time, or none
        self._connection: Any = None

    def drain(self) -> int:
        """Push rows until none is left, and return the number of rows that it has pushed."""
        while self.turn() or not self.is_current:
            pass
        return self.pushed

    def run(self, stop: threading.Event) -> None:
        """Push rows until `stop` is set."""
        idle = 0
        while not stop.is_set():
            idle += 1
            before, delay = self.pushed, retry_delay(idle, first=_FIRST, longest=_LONGEST)
            try:
                if not self.turn():
                    self._wait(delay)
            except Exception as error:
                _log.warning("the outbox waits for %.1f s: %r", delay, error)
                stop.wait(delay)
            if self.pushed > before:
                idle = 0
        if self._connection is not None:
            self._connection.close()

    def _wait(self, seconds: float) -> None:
        ends, woken = monotonic() + seconds, self._outbox.woken
        if self._connection is None or self._connection.closed:
            self._connection = self._outbox.listen()
        while not woken.is_set() and (left := ends - monotonic()) > 0:
            if self._connection is None:
                woken.wait(left)
            elif [*self._connection.notifies(timeout=min(left, _LOOK), stop_after=1)]:
                break
        woken.clear()

    def turn(self) -> bool:
        """Delete the rows that are pushed, and push others; return whether there may be more."""
        outbox = self._outbox
        if not self.is_current:
            self._key = outbox_key(outbox.identity())
            self._ledger = read(outbox.app.db, self._read)
            self._pushed = decode_rows(self._ledger)
        self.is_current = False  # after an error, it reads the ledger again
        rows = outbox.take(self._pushed, [name for name, n in self._limits.items() if not n])
        self._pushed = []
        for queue, group in groupby(sorted(rows, key=_queue_of), _queue_of):
            limit = self._limits.get(queue, BATCH)
            for batch in in_batches(group, lambda row: len(row.push), limit, _BYTES):
                try:
                    if not self._push(outbox.app.queue(queue), batch):
                        return False
                except Exception as error:
                    text = "row %d of the outbox cannot be pushed to the queue %r: %r"
                    _log.warning(text, batch[0].id, queue, error)
                    self._limits[queue] = 1 if len(batch) > 1 else 0
                    return True
            self._limits.pop(queue, None)
        if not rows:
            self._limits = dict.fromkeys(self._limits, 1)
        self.is_current = True
        return bool(rows)

    def _read(self, tr: Transaction) -> bytes | None:
        return tr[self._key].value

    def _push(self, queue: PriorityQueue[Any], rows: Sequence[Row]) -> bool:
        """Push rows, and add them to the ledger; return false if it has changed.

        An earlier attempt whose commit had an unknown result may have changed it, too.
        """
        items = [row.item(queue) for row in rows]
        pushed = [*self._pushed, *((row.id, row.token) for row in rows)]

        def body(tr: Transaction) -> bool:
            is_same = self._read(tr) == self._ledger
            if is_same:
                tr[self._key] = encode_rows(pushed)
                push_members(tr, queue, items)
            return is_same

        if not run(self._outbox.app.db, body):
            return False
        self._pushed, self._ledger = pushed, encode_rows(pushed)
        self.pushed += len(rows)
        return True
