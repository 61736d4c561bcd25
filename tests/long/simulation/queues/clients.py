"""Clients of one queue that make all kinds of operations at random, alone or in twos."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import fdbqueue
from fdbqueue.errors import LeaseLost, QueueChanged, QueueFull, WrongState, error_classes
from fdbqueue.layout.keys import shard_of
from fdbqueue.layout.values import Header
from fdbqueue.queue.base import store_of
from tests.long.simulation.queues.log import Attempt, read_log, run
from tests.long.simulation.queues.model import Model
from tests.support.full import unless_full

_NAME = "queue"
_LEASES = (0.5, 1, 1, 5, 20)
_DELAYS = (0, 0, 0, 0.5, 3, 10)
_TTLS = (None, None, None, 1, 5, 20)
_STATES = ("ready", "delayed", "claimed", "dead")
_LIMITS = (None, 0, 2, 15)
_LARGE = "+" * 20_000
_UPDATES = ((), ("priority",), ("delay",), ("priority", "delay"))
_KEPT = 10
"""How many of its last items a client remembers."""


class Storm:
    """What all clients of one simulation share.

    Args:
        chance: The random choices of the seed.
        stopped_clock: Stops the clock of a client, so that several reads see the same items as due.
    """

    def __init__(
        self, chance: random.Random, stopped_clock: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.max_size = chance.choice([None, 3, 6, 20])
        self.max_attempts = chance.choice([None, 1, 3])
        self.levels = chance.choice([1, 2, 4])
        self.shards = chance.choice([1, 2, 5]) if self.max_size is None else 1
        self.is_of_pairs = chance.random() < 0.2
        """Whether priorities are pairs of numbers."""
        self.stopped_clock = stopped_clock
        self.problems: list[str] = []

    def begin(self, db: Any) -> None:
        """Create the queue. All clients look for leases and delays from the beginning."""
        kinds = (int, int) if self.is_of_pairs else int
        bounds: Any = {"max_size": self.max_size, "max_attempts": self.max_attempts}

        def create(attempt: Attempt) -> None:
            queue = fdbqueue.PriorityQueue.named(attempt.tr, _NAME, priorities=kinds, **bounds)
            queue.configure(attempt.tr, paused=False, shards=self.shards)

        run(db, create)

    def end(
        self,
        session: Session,
        db: Any,
        version_of: Callable[[int], int] = lambda version: version,
    ) -> list[str]:
        """Take all items, and replay the log, when no other client runs any more; return it."""
        session.audit()
        while session.pop_first() is not None:
            pass
        session.audit()
        session.check()
        entries = read_log(db, version_of)
        model = Model(self.max_size, self.max_attempts, self.shards > 1)
        model.replay(entries)
        self.problems += model.problems
        if model.unfinished:
            self.problems.append(f"the queue is empty, without {model.unfinished}")
        return [*map(str, entries)]


def _nothing(_: Any) -> None:
    pass


def _noted(item: Any) -> Any:
    """Return the value of an item, its name and its data, shortened; `None` for `None`."""
    return item and str(item.value).replace(_LARGE, "+")


def _name(item: Any) -> str:
    return str(item.value).partition(" ")[0]


class Step(NamedTuple):
    """An operation, which shares a transaction with others.

    Attributes:
        body: Makes the operation in an attempt of the transaction, and returns its result.
        then: Is given the result once the transaction has committed.
    """

    body: Callable[[Attempt], Any]
    then: Callable[[Any], None] = _nothing


class _Opened:
    """A database that keeps the first transaction which it has created."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.first: Any = None

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        self.first = self.first or tr
        return tr


class Session:
    """The operations of one thread, each of which it logs.

    Args:
        storm: What all clients share.
        db: A database.
        name: The name of the thread, which no other one has.
        chance: The source of its randomness.
        opened_by: A database to open the queue with, if not by the first one.
    """

    def __init__(
        self, storm: Storm, db: Any, name: str, chance: random.Random, opened_by: Any = None
    ) -> None:
        self.random = chance
        self._storm = storm
        self._db = db
        self._name = name
        self._number = 0
        self._items: list[Any] = []
        """Items that it pushed last, perhaps gone."""
        self._popped: list[Any] = []
        """Items that it popped last."""
        self._claims: list[fdbqueue.Claim] = []
        self._weights: dict[Callable[[], Step | None], float] = {
            self._push: 5 if storm.max_size is None else 9,
            self._pop: 2,
            self._peek: 1,
            self._claim: 5,
            self._settle: 5,
            partial(self._of_own, "take_back", "release"): 0.3,
            partial(self._of_own, "remove", "remove"): 0.7,
            partial(self._of_own, "cancel", "cancel"): 0.7,
            partial(self._of_own, "run_now", "retry", state="delayed"): 0.5,
            self._update: 1.5,
            self._put_back: 1,
            partial(self._of_dead, "retry", "retry"): 1,
            partial(self._of_dead, "drop", "remove"): 0.2,
            self._clear: 0.05,
        }
        self.queue: Any = fdbqueue.existing_queue(opened_by or db, _NAME)

    def step(self) -> None:
        """Make a random operation, or two in one transaction, or look at everything."""
        what = self.random.random()
        if what < 0.02:
            self.audit()
        elif what < 0.025:
            self.check()
        elif what < 0.03:
            self.back_up()
        elif what < 0.05:
            self._run(self._peek(snapshot=True))
        else:
            n = self.random.choice([1, 2])
            chosen = self.random.choices([*self._weights], [*self._weights.values()], k=n)
            self._run(*[step for step in (choose() for choose in chosen) if step is not None])

    def _run(self, *steps: Step) -> list[Any]:
        """Make operations in one transaction; return their results."""
        results: list[Any] = run(self._db, lambda attempt: [step.body(attempt) for step in steps])
        for step, result in zip(steps, results):
            step.then(result)
        return results

    # Pushes and pops

    def _priority(self) -> Any:
        n = self._storm.levels
        if self._storm.is_of_pairs:
            return self.random.randrange(n), self.random.randrange(n)
        return self.random.randrange(n)

    def _place(self, item: Any) -> str:
        """Return the place of an item in its shard, and the shard."""
        position = store_of(self.queue).layout.position(item.key)
        shard = shard_of(position)
        return f"{position[len(shard) :].hex()} {shard.hex()}"

    def _push(self) -> Step:
        """Push an item, perhaps with a delay, an expiry or a unique key, to replace another."""
        draw, priority, data = self.random, self._priority(), self._data()
        unique = draw.choice([None, None, None, "a", "b"])
        options = {"delay": draw.choice(_DELAYS), "ttl": draw.choice(_TTLS), "unique": unique}
        if unique is not None and draw.random() < 0.5:
            options |= {"replace": True, "at_most": draw.choice(_LIMITS)}

        def body(attempt: Attempt) -> Any:
            self._number += 1  # also for another attempt: both may take effect
            value = f"{self._name}{self._number} {data}"
            push = partial(unless_full, self.queue.push)
            item = attempt.call(push, attempt.tr, value, priority, **options)
            attempt.note(
                "push",
                value=value.replace(_LARGE, "+"),
                priority=priority,
                key=None if item is None else self._place(item),
                id=item and item.id,
                existing=None if item is None or item.is_new else item.id,
                found=_noted(item),
                **options,
            )
            return item

        def remember(item: Any) -> None:
            if item is not None:
                self._items = [*self._items[1 - _KEPT :], item]

        return Step(body, remember)

    def _pop(self, at_max: bool | None = None) -> Step:
        """Pop an item, at either end."""
        at_max = self.random.random() < 0.4 if at_max is None else at_max

        def body(attempt: Attempt) -> Any:
            pop = self.queue.pop_max if at_max else self.queue.pop_min
            item = attempt.call(pop, attempt.tr)
            attempt.note("pop", value=_noted(item), at_max=at_max)
            return item

        def remember(item: Any) -> None:
            if item is not None:
                self._popped = [*self._popped[-1:], item]  # few, so that some are put back twice

        return Step(body, remember)

    def pop_first(self) -> Any:
        """Pop the first item of the queue."""
        return self._run(self._pop(at_max=False))[0]

    def _peek(self, snapshot: bool = False) -> Step:
        """Look at the first item. A snapshot is alone in its transaction: it shows no commit."""
        at_max = self.random.random() < 0.4
        peek = "peek_max" if at_max else "peek_min"

        def body(attempt: Attempt) -> None:
            tr = attempt.tr.snapshot if snapshot else attempt.tr
            item = attempt.call(getattr(self.queue, peek), tr)
            attempt.note("peek", snapshot=snapshot, value=_noted(item), at_max=at_max)

        return Step(body)

    def _put_back(self) -> Step | None:
        """Put back an item that it has popped, perhaps once more."""
        if not self._popped:
            return None
        item = self.random.choice(self._popped)
        header = Header(*item.metadata)
        facts = {name: getattr(header, name) for name in ("attempts", "expires", "unique")}
        facts |= {"value": _noted(item), "priority": item.priority, "key": self._place(item)}

        def body(attempt: Attempt) -> None:
            attempt.call(self.queue.put_back, attempt.tr, [item])
            attempt.note("put_back", **facts)

        return Step(body)

    # Claims

    def _claim(self) -> Step:
        """Claim some of the first items."""
        n, lease = self.random.choice([1, 1, 1, 3]), self.random.choice(_LEASES)
        within = self.random.choice([1, 4, 256])

        def body(attempt: Attempt) -> fdbqueue.Claim | None:
            options = {"lease": lease, "n": n, "within": within}
            claim: fdbqueue.Claim | None
            claim = attempt.call(self.queue.claim, attempt.tr, **options)
            attempt.note(
                "claim",
                values=[_noted(item) for item in claim.items] if claim else [],
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
                (lost,) = (_name(each) for each in claim.items if each.id == error.item_id)
            values = [_name(item) for item in claim.items]
            attempt.note(verb, values=values, token=claim.token.hex(), lost=lost, **facts)
            return lost is None

        def remember(held: bool) -> None:
            if (held and verb == "extend") or self.random.random() < 0.3:
                self._claims.append(claim)  # once more, when another client may have the items

        return Step(body, remember)

    # Single items

    def _of_own(self, verb: str, method: str, **options: Any) -> Step | None:
        """Call a method that returns whether it has changed an item of this session."""
        if not self._items:
            return None
        item = self.random.choice(self._items)

        def body(attempt: Attempt) -> None:
            done = attempt.call(getattr(self.queue, method), attempt.tr, item, **options)
            attempt.note(verb, value=_name(item), done=done)

        return Step(body)

    def _of_dead(self, verb: str, method: str) -> Step:
        """Call a method with a dead letter; without any, with an item of this session."""
        choice = self.random.random()

        def body(attempt: Attempt) -> None:
            letters = self.queue.items(attempt.tr.snapshot, state="dead")
            items = [each.item for each in letters if each.item is not None] or self._items
            if not items:
                return
            item, is_full, done = items[int(choice * len(items))], False, False
            try:
                done = attempt.call(getattr(self.queue, method), attempt.tr, item, state="dead")
            except QueueFull:
                is_full = True
            attempt.note(verb, value=_name(item), done=done, is_full=is_full)

        return Step(body)

    def _data(self) -> str:
        """Return the part of a value that an update replaces."""
        return f"{self._name}{self.random.randrange(10**6)}{self.random.choice(['', '', _LARGE])}"

    def _update(self) -> Step | None:
        """Change the value, the priority or the time of an item that this session has pushed."""
        if not self._items:
            return None
        draw, item = self.random, self.random.choice(self._items)
        options = {"priority": self._priority(), "delay": draw.choice(_DELAYS)}
        given: dict[str, Any] = {each: options[each] for each in draw.choice(_UPDATES)}
        value = {} if draw.random() < 0.5 else {"value": f"{_name(item)} {self._data()}"}

        def body(attempt: Attempt) -> None:
            outcome, key, updated = "updated", "", None
            try:
                updated = attempt.call(self.queue.update, attempt.tr, item, **given, **value)
                key = self._place(updated)
            except WrongState as error:
                outcome = error.state
            facts = {"of": _name(item), "outcome": outcome, "key": key, "is_new": bool(value)}
            attempt.note("update", value=_noted(updated) or _name(item), **facts, **given)

        return Step(body)

    # The queue

    def _clear(self) -> Step:
        """Clear the queue."""

        def body(attempt: Attempt) -> None:
            attempt.call(self.queue.clear, attempt.tr)
            attempt.note("clear")

        return Step(body)

    # All items

    def audit(self) -> None:
        """Compare the counters with all items, at one read version and one time."""

        def body(attempt: Attempt) -> None:
            values, stats = attempt.call(self._look, attempt.tr.snapshot, self.queue)
            counts = {state: getattr(stats, state) for state in _STATES}
            attempt.note("audit", snapshot=True, values=values, counts=counts)
            came = stats.total_pushed + stats.total_put_back
            went = stats.total_completed + stats.total_expired + stats.total_removed
            if came != went + sum(counts.values()):
                self._storm.problems.append(f"the totals do not add up: {stats}")

        self._run(Step(body))

    def _look(self, tr: Any, queue: Any) -> tuple[dict[str, list[str]], fdbqueue.types.QueueStats]:
        with self._storm.stopped_clock():
            stats = queue.stats(tr)
            infos = {state: queue.items(tr, state=state) for state in _STATES}
            return {
                state: [_noted(info.item) for info in found] for state, found in infos.items()
            }, stats

    def back_up(self) -> None:
        """Back the queue up, restore it under another name, and look what it has."""
        self._number += 1
        name, file, opened = f"{self._name}{self._number}", io.BytesIO(), _Opened(self._db)
        try:
            copies = fdbqueue.admin.backup(opened, file, [_NAME])
            moment = opened.first.get_read_version().wait()
        except QueueChanged:
            return
        except error_classes():
            return
        fdbqueue.admin.restore(self._db, file, new_name=name)
        copy = fdbqueue.existing_queue(self._db, name)

        def body(attempt: Attempt) -> None:
            values, _ = attempt.call(self._look, attempt.tr.snapshot, copy)
            counts = {state: len(found) for state, found in values.items()}
            attempt.note("audit", snapshot=True, read=moment, values=values, counts=counts)

        if copies.moments == 1:
            self._run(Step(body))
        self.check(copy)
        fdbqueue.admin.drop(self._db, name)

    def check(self, queue: Any = None) -> None:
        """Let the library compare all indexes and counters."""
        report = fdbqueue.admin.check(self._db, queue or self.queue)
        if not report.ok:
            self._storm.problems.append(f"fdbqueue.admin.check: {report.problems}")
