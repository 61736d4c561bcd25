"""Priority queues in the caller's transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.errors import LeaseLost, QueueFull, WrongState
from tests.simulation.cluster.inside.clients import Client
from tests.simulation.cluster.inside.environment import stopped_clock
from tests.simulation.cluster.model import Model
from tests.simulation.cluster.workloads.log import Attempt, errors, read_log, run
from tests.simulation.cluster.workloads.shared import look_for_leftovers, run_threads, wait_for_ends

__all__ = ["Queues"]

_SPACE = Subspace(("queue",))
_LEASES = (1, 5, 20)
_DELAYS = (0, 0, 0, 0.5, 3, 10)
_STATES = ("ready", "delayed", "claimed", "dead")


class Queues:
    """Each thread makes random operations, most of them alone in a transaction, some in twos."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"queues {client.scenario['seed']}")  # the same for all clients
        self._max_size = chance.choice([None, None, 5, 20])
        self._max_attempts = chance.choice([None, 1, 3])
        self._priorities = chance.choice([1, 2, 4])
        self._pause = chance.choice([0.05, 0.2, 0.5])
        self._client = client

    def _queue(self) -> fdbqueue.PriorityQueue:
        return fdbqueue.PriorityQueue(
            _SPACE, max_size=self._max_size, max_attempts=self._max_attempts
        )

    def setup(self, db: Any) -> None:
        """Create the queue. Later clients find at once that it has delays, and look for them."""
        if self._client.id == 0:
            self._session(db, "setup").push(delay=0.5)

    def _session(self, db: Any, name: str) -> Session:
        return Session(db, self._queue(), self._client, name, self._priorities)

    def start(self, db: Any) -> None:
        """Work until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            session = self._session(db, name)
            while time.monotonic() < end:
                session.step()
                time.sleep(2 * self._pause * session.random.random())

        run_threads(self._client, work)

    def check(self, db: Any) -> None:
        """Take all items, look for what is left, and replay the log."""
        if self._client.id != 0:
            return
        wait_for_ends(self._client, db, self._queue())
        session = self._session(db, "check")
        session.audit()
        while session.pop(at_max=False) is not None:
            pass
        session.audit()
        session.check()
        look_for_leftovers(self._client, db, _SPACE)
        entries, digest = read_log(db)
        self._client.keep_log(sorted(entries, key=lambda entry: entry.stamp))
        model = Model(self._max_size, self._max_attempts)
        model.replay(entries)
        for problem in model.problems[:10]:
            self._client.problem(problem)
        if model.unfinished:
            self._client.problem(f"the queue is empty, without {model.unfinished}")
        self._client.report(operations=model.operations, digest=digest, errors=errors)


class Session:
    """The operations of one thread, each of which it logs."""

    def __init__(
        self, db: Any, queue: fdbqueue.PriorityQueue, client: Client, name: str, priorities: int
    ) -> None:
        self.random = random.Random(f"{client.scenario['seed']} {name}")
        self._db = db
        self._queue = queue
        self._client = client
        self._name = name
        self._priorities = priorities
        self._number = 0
        self._items: list[fdbqueue.Item] = []
        """Items that it pushed last, perhaps gone."""
        self._claims: list[fdbqueue.Claim] = []

    def step(self) -> None:
        """Make a random operation."""
        weights: dict[Callable[[], object], float] = {
            self.push: 5,
            self.pop: 2,
            self.peek: 1,
            self.claim: 4,
            self.settle: 5,
            self.remove: 0.7,
            self.reprioritize: 0.7,
            self.replace: 1,
            self.clear: 0.05,
            self.audit: 0.5,
            self.check: 0.1,
        }
        (operation,) = self.random.choices([*weights], [*weights.values()])
        operation()

    def _run(self, body: Callable[[Attempt], Any]) -> Any:
        return run(self._db, self._client.id, body)

    # Pushes and pops

    def push(self, delay: float | None = None) -> None:
        """Push an item, perhaps with a delay or a unique key."""
        if delay is None:
            delay = self.random.choice(_DELAYS)
        unique = self.random.choice([None, None, None, "a", "b"])
        item = self._run(lambda attempt: self._push(attempt, delay, unique))
        if item is not None:
            self._items = [*self._items[-9:], item]

    def _push(self, attempt: Attempt, delay: float, unique: str | None) -> fdbqueue.Item | None:
        self._number += 1  # also for another attempt: both may take effect
        value, priority = f"{self._name}{self._number}", self.random.randrange(self._priorities)
        facts = {"value": value, "priority": priority, "delay": delay, "unique": unique}
        item = None
        try:
            item = attempt.call(
                self._queue.push, attempt.tr, value, priority, delay=delay, unique=unique
            )
        except QueueFull:
            attempt.note("push", key=None, **facts)
        else:
            existing = None if item.is_new else item.value
            attempt.note("push", key=item.key.hex(), existing=existing, **facts)
        return item

    def pop(self, at_max: bool | None = None) -> str | None:
        """Pop an item at either end."""
        if at_max is None:
            at_max = self.random.random() < 0.4
        value: str | None = self._run(lambda attempt: self._pop(attempt, at_max))
        return value

    def _pop(self, attempt: Attempt, at_max: bool) -> str | None:
        method = self._queue.pop_max if at_max else self._queue.pop_min
        item = attempt.call(method, attempt.tr)
        value = None if item is None else item.value
        attempt.note("pop", value=value, at_max=at_max)
        return value

    def peek(self) -> None:
        """Look at the first item, with or without conflicts."""
        at_max, snapshot = self.random.random() < 0.4, self.random.random() < 0.5

        def body(attempt: Attempt) -> None:
            method = self._queue.peek_max if at_max else self._queue.peek_min
            item = attempt.call(method, attempt.tr.snapshot if snapshot else attempt.tr)
            value = None if item is None else item.value
            attempt.note("peek", snapshot=snapshot, value=value, at_max=at_max)

        self._run(body)

    def replace(self) -> None:
        """Take an item and push another one in the same transaction."""
        if self._claims and self.random.random() < 0.5:
            claim = self._claims.pop()
            self._run(
                lambda attempt: (self._end(attempt, "ack", claim), self._push(attempt, 0, None))
            )
        else:
            self._run(lambda attempt: (self._pop(attempt, False), self._push(attempt, 0, None)))

    # Claims

    def claim(self) -> None:
        """Claim some of the first items."""
        n, lease = self.random.choice([1, 1, 1, 3]), self.random.choice(_LEASES)
        within = self.random.choice([1, 4, 256])

        def body(attempt: Attempt) -> fdbqueue.Claim | None:
            claim = attempt.call(self._queue.claim, attempt.tr, lease=lease, n=n, within=within)
            attempt.note(
                "claim",
                values=[item.value for item in claim.items] if claim else [],
                attempts=claim.attempts if claim else [],
                token=claim.token.hex() if claim else "",
                lease=lease,
                within=max(n, within),
            )
            return claim

        claim = self._run(body)
        if claim is not None:
            self._claims.append(claim)

    def settle(self) -> None:
        """End or extend a claim, which may be over."""
        if not self._claims:
            return
        verb = self.random.choice(["ack", "ack", "nack", "release", "extend"])
        claim = self._claims.pop(self.random.randrange(len(self._claims)))
        held = self._run(lambda attempt: self._end(attempt, verb, claim))
        if (held and verb == "extend") or self.random.random() < 0.1:
            self._claims.append(claim)  # once more, if it has ended

    def _end(self, attempt: Attempt, verb: str, claim: fdbqueue.Claim) -> bool:
        facts: dict[str, Any] = {
            "nack": {"delay": self.random.choice(_DELAYS)},
            "extend": {"lease": self.random.choice(_LEASES)},
        }.get(verb, {})
        lost = None
        try:
            attempt.call(getattr(self._queue, verb), attempt.tr, claim, **facts)
        except LeaseLost as error:
            (lost,) = (item.value for item in claim.items if item.id == error.item_id)
        values = [item.value for item in claim.items]
        attempt.note(verb, values=values, token=claim.token.hex(), lost=lost, **facts)
        return lost is None

    # Single items

    def remove(self) -> None:
        """Remove an item that this session has pushed."""
        if self._items:
            item = self.random.choice(self._items)
            self._run(lambda attempt: self._remove(attempt, item))

    def _remove(self, attempt: Attempt, item: fdbqueue.Item) -> None:
        removed = attempt.call(self._queue.remove, attempt.tr, item)
        attempt.note("remove", value=item.value, removed=removed)

    def reprioritize(self) -> None:
        """Move an item that this session has pushed."""
        if self._items:
            item = self.random.choice(self._items)
            priority = self.random.randrange(self._priorities)
            self._run(lambda attempt: self._reprioritize(attempt, item, priority))

    def _reprioritize(self, attempt: Attempt, item: fdbqueue.Item, priority: int) -> None:
        outcome, key = "gone", ""
        try:
            moved = attempt.call(self._queue.reprioritize, attempt.tr, item, priority)
            if moved is not None:
                outcome, key = "moved", moved.key.hex()
        except WrongState as error:
            outcome = error.state
        facts = {"outcome": outcome, "priority": priority, "key": key}
        attempt.note("reprioritize", value=item.value, **facts)

    # All items

    def clear(self) -> None:
        """Clear the queue."""

        def body(attempt: Attempt) -> None:
            attempt.call(self._queue.clear, attempt.tr)
            attempt.note("clear")

        self._run(body)

    def audit(self) -> None:
        """Compare the counters with all items, at one read version and one time."""

        def body(attempt: Attempt) -> None:
            values, stats = attempt.call(self._look, attempt.tr.snapshot)
            counts = {state: getattr(stats, state) for state in _STATES}
            attempt.note("audit", snapshot=True, values=values, counts=counts)
            came = stats.total_pushed + stats.total_put_back
            went = stats.total_completed + stats.total_expired + stats.total_removed
            if came != went + sum(counts.values()):
                self._client.problem(f"the totals do not add up: {stats}")

        self._run(body)

    def _look(self, tr: Any) -> tuple[dict[str, list[str]], fdbqueue.QueueStats]:
        with stopped_clock():
            stats = self._queue.stats(tr)
            infos: dict[str, Any] = {
                state: self._queue.items(tr, state=state)  # type: ignore[call-overload]
                for state in _STATES
            }
            return {
                state: [info.item.value for info in found] for state, found in infos.items()
            }, stats

    def check(self) -> None:
        """Let the library compare all indexes and counters."""
        report = fdbqueue.check(self._db, self._queue)
        if not report.ok:
            self._client.problem(f"fdbqueue.check: {report.problems}")
