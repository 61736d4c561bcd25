"""Relays of an outbox with faults and kills: each committed row is pushed once, and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.admin import drop
from fdbqueue.contrib.outbox import Outbox, Relay, Row, new_row
from fdbqueue.errors import QueueNotFound, error_classes
from fdbqueue.jobs import App
from tests.long.simulation.simulated import Simulated

QUEUES = ("simulated a", "simulated b", "simulated c")


class SqlError(Exception):
    """An error of the database with the rows, whose transaction has perhaps committed."""


class Table(Outbox):
    """A table of rows in memory; each call is a transaction, after and before steps of others."""

    def __init__(self, app: App, simulation: OutboxSimulation) -> None:
        super().__init__(app)
        self.rows: dict[int, Row] = {}
        self._simulation = simulation

    def identity(self) -> str:
        self._simulation.step("identity")
        return "outbox"

    def listen(self) -> None: ...

    def take(self, pushed: Sequence[tuple[int, str]], held: Collection[str]) -> list[Row]:
        self._simulation.step("delete")
        for id, token in pushed:
            if (row := self.rows.get(id)) is not None and row.token == token:
                del self.rows[id]
        found = [row for _, row in sorted(self.rows.items()) if row.queue not in held]
        self._simulation.step("select")
        return found[: self._simulation.batch]


class OutboxSimulation(Simulated):
    """Some relays, and programs whose transactions store rows."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        super().__init__(db, space, seed)
        self._drop()
        self.batch = self.random.choice([1, 3, 100])
        self.app = App(self.db)
        self.table = Table(self.app, self)
        self._send = self.app.job(name="send")(lambda writer, n: None)
        self._next_id = 0
        self._committed: dict[str, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}

    def step(self, name: str) -> None:
        """Let others run, and perhaps fail."""
        self.scheduler.step(name)
        if self.scheduler.client is not None and self.random.random() < self.db.faults / 10:
            raise SqlError(name)

    def run(self) -> list[str]:
        """Run the clients, push what is left, and return what must not be."""
        with self.patched():
            relays = [self._relay() for _ in range(self.random.randint(1, 3))]
            writers = [self._writer(n) for n in range(self.random.randint(1, 3))]
            self.scheduler.run([*relays, *writers])
            self.db.deliver_late(1.0)
            self.db.faults = self.db.read_faults = 0.0
            self.table.relay()
            problems = [*self._problems()]
        self._drop()
        return problems

    def _drop(self) -> None:
        for queue in QUEUES:
            with suppress(QueueNotFound):
                drop(self._raw, queue)

    def _problems(self) -> Any:
        if self.table.rows:
            yield f"not pushed: {self.table.rows}"
        for queue, rows in self._committed.items():
            pushed = [tuple(item.value["args"]) for item in self.app.queue(queue).items(self._raw)]
            if sorted(pushed) != sorted(rows):
                yield f"{queue} has {pushed}, but {rows} were committed"
            for writer in {writer for writer, _ in rows}:
                own = [n for each, n in pushed if each == writer]
                if own != sorted(own):
                    yield f"{queue} has the rows of one program in the order {own}"

    def _relay(self) -> Callable[[], None]:
        def body() -> None:
            relay = Relay(self.table)
            for _ in range(15):
                try:
                    relay.turn()
                except Exception as error:
                    if not isinstance(error, (SqlError, *error_classes())):
                        raise
                    self.scheduler.note(f"fails: {error!r}")
                if relay.pushed:
                    self.scheduler.note("has pushed")

        return body

    def _writer(self, writer: int) -> Callable[[], None]:
        def body() -> None:
            n = 0
            for _ in range(self.random.randint(1, 8)):
                new: list[tuple[str, int, Row]] = []
                for _ in range(self.random.randint(1, 4)):
                    queue = self.random.choice(QUEUES)
                    call = self._send.using(queue=queue).bind(writer, n)
                    row = new_row(*call.push_many)
                    self._next_id += 1  # ids are given before the commit
                    new.append((queue, n, Row(self._next_id, **row)))
                    n += 1
                    self.scheduler.step("insert")
                if self.random.random() < 0.2:
                    self.scheduler.note("rolled back")
                    continue
                for queue, number, row in new:
                    self.table.rows[row.id] = row
                    self._committed[queue].append((writer, number))

        return body
