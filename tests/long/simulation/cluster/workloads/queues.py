"""Queues of all kinds in the caller's transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import fdbqueue
from fdbqueue.errors import LeaseLost, QueueFull, WrongState
from fdbqueue.layout.values import Header
from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.inside.environment import stopped_clock
from tests.long.simulation.cluster.model import Model
from tests.long.simulation.cluster.workloads.kinds import KINDS, Priorities
from tests.long.simulation.cluster.workloads.log import Attempt, errors, read_log, run
from tests.long.simulation.cluster.workloads.shared import (
    look_for_leftovers,
    run_threads,
    wait_for_ends,
)

_NAMES = ("here", "there")
"""The names that the queue has in turn."""
_LEASES = (0.5, 1, 1, 5, 20)
_DELAYS = (0, 0, 0, 0.5, 3, 10)
_TTLS = (None, None, None, 1, 5, 20)
_STATES = ("ready", "delayed", "claimed", "dead")
_KEPT = 10
"""How many of its last items a thread remembers."""


class Queues:
    """Each thread makes random operations: half of the transactions have one, the others two."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"queues {client.scenario['seed']}")  # the same for all clients
        self._max_size = chance.choice([None, 3, 6, 20])
        self._max_attempts = chance.choice([None, 1, 3])
        self._pause = chance.choice([0.05, 0.2, 0.5])
        self._kind = chance.choice(KINDS)(chance)
        self._client = client

    def setup(self, db: Any) -> None:
        """Create the queue. All clients look for leases and delays from the beginning."""
        if self._client.id == 0:
            bounds = {"max_size": self._max_size, "max_attempts": self._max_attempts}

            def create(attempt: Attempt) -> None:
                self._kind.create(attempt.tr, _NAMES[0], **bounds).configure(
                    attempt.tr, paused=False
                )

            run(db, self._client.id, create)

    def _session(self, db: Any, name: str) -> Session:
        return Session(db, self._kind, self._client, name, self._max_size is not None)

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
        session = self._session(db, "check")
        wait_for_ends(self._client, db, session.queue)
        session.audit()
        while session.pop_first() is not None:
            pass
        session.audit()
        session.check()
        look_for_leftovers(self._client, db, session.queue.subspace)
        entries, digest = read_log(db)
        self._client.keep_log(sorted(entries, key=lambda entry: entry.stamp))
        model = Model(self._max_size, self._max_attempts)
        model.replay(entries)
        for problem in model.problems[:10]:
            self._client.problem(problem)
        if model.unfinished:
            self._client.problem(f"the queue is empty, without {model.unfinished}")
        self._client.report(operations=model.operations, digest=digest, errors=errors)


def _nothing(_: Any) -> None:
    pass


class Step(NamedTuple):
    """An operation, which shares a transaction with others.

    Attributes:
        body: Makes the operation in an attempt of the transaction, and returns its result.
        then: Is given the result once the transaction has committed.
    """

    body: Callable[[Attempt], Any]
    then: Callable[[Any], None] = _nothing


class Session:
    """The operations of one thread, each of which it logs.

    Args:
        db: A database.
        kind: The kind of the queue.
        client: The client.
        name: The name of the thread.
        is_bounded: Whether to fill the queue.
    """

    def __init__(
        self, db: Any, kind: Priorities, client: Client, name: str, is_bounded: bool
    ) -> None:
        self.random = random.Random(f"{client.scenario['seed']} {name}")
        self._db = db
        self._kind = kind
        self._client = client
        self._name = name
        self._number = 0
        self._items: list[Any] = []
        """Items that it pushed last, perhaps gone."""
        self._popped: list[Any] = []
        """Items that it popped last."""
        self._claims: list[fdbqueue.Claim] = []
        weights: dict[Callable[[], Step | None], float] = {
            self._push: 9 if is_bounded else 5,
            self._pop: 2,
            self._peek: 1,
            self._claim: 5,
            self._settle: 5,
            self._take_back: 0.3,
            self._remove: 0.7,
            self._cancel: 0.7,
            self._run_now: 0.5,
            self._put_back: 1,
            self._retry: 1,
            self._drop: 0.2,
            self._clear: 0.05,
            self._rename: 0.2,
            self._open: 0.2,
        }
        if kind.has_priorities:
            weights[self._reprioritize] = 0.7
        self._steps, self._weights = [*weights], [*weights.values()]
        (self.queue,) = self._run(self._open())

    def step(self) -> None:
        """Make a random operation, or two in one transaction, or look at everything."""
        what = self.random.random()
        if what < 0.02:
            self.audit()
        elif what < 0.025:
            self.check()
        elif what < 0.05:
            self._run(self._peek(snapshot=True))
        else:
            n = self.random.choice([1, 2])
            chosen = self.random.choices(self._steps, self._weights, k=n)
            self._run(*[step for step in (choose() for choose in chosen) if step is not None])

    def _run(self, *steps: Step) -> list[Any]:
        """Make operations in one transaction; return their results."""
        results: list[Any] = run(
            self._db, self._client.id, lambda attempt: [step.body(attempt) for step in steps]
        )
        for step, result in zip(steps, results):
            step.then(result)
        return results

    # Pushes and pops

    def _push(self) -> Step:
        """Push an item, perhaps with a delay, an expiry or a unique key."""
        place, options, kind = self._kind.place(self.random), dict[str, Any](), self._kind
        if kind.has_options:
            unique = self.random.choice([None, None, None, "a", "b"])
            delay, ttl = self.random.choice(_DELAYS), self.random.choice(_TTLS)
            options = {"delay": delay, "ttl": ttl, "unique": unique}

        def body(attempt: Attempt) -> Any:
            self._number += 1  # also for another attempt: both may take effect
            value = f"{self._name}{self._number}"
            item, at = attempt.call(kind.push, self.queue, attempt.tr, value, place, options)
            found = None if item is None else kind.value(item)
            attempt.note(
                "push",
                value=value,
                key=None if item is None else item.key.hex(),
                existing=None if found == value else found,
                **{"delay": 0, **options, **at._asdict()},
            )
            return item

        return Step(body, self._remember)

    def _remember(self, item: Any) -> None:
        if item is not None:
            self._items = [*self._items[1 - _KEPT :], item]

    def _pop(self) -> Step:
        """Pop an item, at either end."""
        return self._popping(self._at_max())

    def _at_max(self) -> bool:
        return self._kind.has_max and self.random.random() < 0.4

    def _popping(self, at_max: bool = False) -> Step:
        def body(attempt: Attempt) -> Any:
            item = attempt.call(self._kind.pop, self.queue, attempt.tr, at_max)
            attempt.note("pop", value=self._value(item), at_max=at_max)
            return item

        def remember(item: Any) -> None:
            if item is not None:
                self._popped = [*self._popped[-1:], item]  # few, so that some are put back twice

        return Step(body, remember)

    def _value(self, item: Any) -> str | None:
        return None if item is None else self._kind.value(item)

    def pop_first(self) -> Any:
        """Pop the first item of the queue."""
        return self._run(self._popping())[0]

    def _peek(self, snapshot: bool = False) -> Step:
        """Look at the first item. A snapshot is alone in its transaction: it shows no commit."""
        at_max = self._at_max()

        def body(attempt: Attempt) -> None:
            tr = attempt.tr.snapshot if snapshot else attempt.tr
            value = self._value(attempt.call(self._kind.peek, self.queue, tr, at_max))
            attempt.note("peek", snapshot=snapshot, value=value, at_max=at_max)

        return Step(body)

    def _put_back(self) -> Step | None:
        """Put back an item that it has popped, perhaps once more."""
        if not self._popped:
            return None
        item = self.random.choice(self._popped)
        header = Header(*item.metadata)
        facts = {
            "priority": self._kind.priority(item),
            "key": item.key.hex(),
            "attempts": header.attempts,
            "expires": header.expires,
            "unique": header.unique,
        }

        def body(attempt: Attempt) -> None:
            attempt.call(self.queue.put_back, attempt.tr, [item])
            attempt.note("put_back", value=self._value(item), **facts)

        return Step(body)

    # Claims

    def _claim(self) -> Step:
        """Claim some of the first items."""
        n, lease = self.random.choice([1, 1, 1, 3]), self.random.choice(_LEASES)
        within = self.random.choice([1, 4, 256])
        options = {"lease": lease, "n": n, "within": within}

        def body(attempt: Attempt) -> fdbqueue.Claim | None:
            claim: fdbqueue.Claim | None
            claim = attempt.call(self.queue.claim, attempt.tr, **options)
            attempt.note(
                "claim",
                values=[self._value(item) for item in claim.items] if claim else [],
                attempts=claim.attempts if claim else [],
                token=claim.token.hex() if claim else "",
                lease=lease,
                within=max(n, within),
            )
            return claim

        def remember(claim: fdbqueue.Claim | None) -> None:
            if claim is not None:
                self._claims.append(claim)

        return Step(body, remember)

    def _settle(self) -> Step | None:
        """End or extend a claim, which may be over."""
        if not self._claims:
            return None
        verb = self.random.choice(["ack", "ack", "nack", "nack", "release", "extend"])
        claim = self._claims.pop(self.random.randrange(len(self._claims)))
        facts: dict[str, Any] = {
            "nack": {"delay": self.random.choice(_DELAYS)},
            "extend": {"lease": self.random.choice(_LEASES)},
        }.get(verb, {})

        def body(attempt: Attempt) -> bool:
            lost = None
            try:
                attempt.call(getattr(self.queue, verb), attempt.tr, claim, **facts)
            except LeaseLost as error:
                (lost,) = (self._value(each) for each in claim.items if each.id == error.item_id)
            values = [self._value(item) for item in claim.items]
            attempt.note(verb, values=values, token=claim.token.hex(), lost=lost, **facts)
            return lost is None

        def remember(held: bool) -> None:
            if (held and verb == "extend") or self.random.random() < 0.3:
                self._claims.append(claim)  # once more, when another client may have the items

        return Step(body, remember)

    # Single items

    def _take_back(self) -> Step | None:
        """Take an item away from the client that may have claimed it."""
        return self._of_own("take_back", "release")

    def _remove(self) -> Step | None:
        """Remove an item that this session has pushed."""
        return self._of_own("remove", "remove")

    def _cancel(self) -> Step | None:
        """Cancel an item that this session has pushed, whether or not a client has claimed it."""
        return self._of_own("cancel", "cancel")

    def _run_now(self) -> Step | None:
        """End a delay."""
        return self._of_own("run_now", "retry", state="delayed")

    def _of_own(self, verb: str, method: str, **options: Any) -> Step | None:
        """Call a method that returns whether it has changed an item of this session."""
        if not self._items:
            return None
        item = self.random.choice(self._items)

        def body(attempt: Attempt) -> None:
            done = attempt.call(getattr(self.queue, method), attempt.tr, item, **options)
            attempt.note(verb, value=self._value(item), done=done)

        return Step(body)

    def _reprioritize(self) -> Step | None:
        """Move an item that this session has pushed."""
        if not self._items:
            return None
        item, place = self.random.choice(self._items), self._kind.place(self.random)

        def body(attempt: Attempt) -> None:
            outcome, key, at = "gone", "", place
            try:
                moved, at = attempt.call(self._kind.move, self.queue, attempt.tr, item, place)
                if moved is not None:
                    outcome, key = "moved", moved.key.hex()
            except WrongState as error:
                outcome = error.state
            facts = {"outcome": outcome, "priority": at.priority, "key": key}
            attempt.note("reprioritize", value=self._value(item), **facts)

        return Step(body)

    # Dead letters

    def _retry(self) -> Step:
        """Return a dead letter to the queue."""
        return self._of_dead("retry", "retry")

    def _drop(self) -> Step:
        """Delete a dead letter."""
        return self._of_dead("drop", "remove")

    def _of_dead(self, verb: str, method: str) -> Step:
        """Call a method with a dead letter; without any, with an item of this session."""
        choice = self.random.random()

        def body(attempt: Attempt) -> None:
            letters = self.queue.items(attempt.tr.snapshot, state="dead")
            items = [letter.item for letter in letters] or self._items
            if not items:
                return
            item, is_full, done = items[int(choice * len(items))], False, False
            try:
                done = attempt.call(getattr(self.queue, method), attempt.tr, item, state="dead")
            except QueueFull:
                is_full = True
            attempt.note(verb, value=self._value(item), done=done, is_full=is_full)

        return Step(body)

    # The queue

    def _clear(self) -> Step:
        """Clear the queue."""

        def body(attempt: Attempt) -> None:
            attempt.call(self.queue.clear, attempt.tr)
            attempt.note("clear")

        return Step(body)

    def _rename(self) -> Step:
        """Give the queue the other name."""

        def body(attempt: Attempt) -> None:
            (name,) = fdbqueue.admin.queue_names(attempt.tr)
            (new_name,) = {*_NAMES} - {name}
            attempt.call(fdbqueue.admin.rename, attempt.tr, name, new_name)
            attempt.note("rename", name=name, new_name=new_name)

        return Step(body)

    def _open(self) -> Step:
        """Open the queue by its name. A queue stays the same when it is renamed."""

        def body(attempt: Attempt) -> Any:
            (name,) = fdbqueue.admin.queue_names(attempt.tr)
            queue = attempt.call(fdbqueue.existing_queue, attempt.tr, name)
            attempt.note("open", name=name)
            return queue

        def use(queue: Any) -> None:
            self.queue = queue

        return Step(body, use)

    # All items

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

        self._run(Step(body))

    def _look(self, tr: Any) -> tuple[dict[str, list[str | None]], fdbqueue.types.QueueStats]:
        with stopped_clock():
            stats = self.queue.stats(tr)
            infos = {state: self.queue.items(tr, state=state) for state in _STATES}
            return {
                state: [self._value(info.item) for info in found] for state, found in infos.items()
            }, stats

    def check(self) -> None:
        """Let the library compare all indexes and counters."""
        report = fdbqueue.admin.check(self._db, self.queue)
        if not report.ok:
            self._client.problem(f"fdbqueue.admin.check: {report.problems}")
