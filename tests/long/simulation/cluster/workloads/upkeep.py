"""Backups, copies and renames, beside clients that go on working.

The items of one queue are accounts, and each transaction moves an amount between two of them. So
the state at any read version has each account once, and the same sum. The log says which balances
there were at each version, and a backup or a copy has to hold those of one version.
"""

from __future__ import annotations

import io
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import fdbqueue
from fdbqueue.errors import LeaseLost, QueueChanged
from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.inside.environment import stopped_clock
from tests.long.simulation.cluster.workloads.shared import (
    look_for_leftovers,
    run_threads,
    wait_for_ends,
)
from tests.long.simulation.queues.log import Attempt, errors, read_log, run
from tests.long.simulation.queues.model import Entry, last_stamp

_NAMES = ("here", "there")
"""The names that the queue of accounts has in turn."""
_COPY = "copy"
_STATES = ("ready", "delayed", "claimed", "dead")
_AMOUNT = 100
"""What each account has at first."""


class Saved(NamedTuple):
    """What a backup or a copy holds.

    Attributes:
        what: How it was made.
        begun: A read version before it began.
        ended: A read version after it had ended.
        balances: The balance of each account.
    """

    what: str
    begun: int
    ended: int
    balances: dict[str, int]


class _Torn(io.BytesIO):
    """A backup; a restore of it is interrupted once it has read this many rows after the check."""

    def __init__(self, data: bytes, rows: int) -> None:
        super().__init__(data)
        self._left = rows

    @property
    def is_torn(self) -> bool:
        """True if the restore was interrupted."""
        return self._left < 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self._left -= size == -1
        if self.is_torn:
            raise InterruptedError
        return super().readline(size)


class Upkeep:
    """The first client keeps the queues up; all clients use them."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"upkeep {client.scenario['seed']}")  # the same for all clients
        self._n = chance.choice([2, 10, 40])
        self._pause = chance.choice([0.02, 0.1, 0.3])
        self._client = client

    def setup(self, db: Any) -> None:
        """Create the queue."""
        if self._client.id != 0:
            return

        def open_accounts(attempt: Attempt) -> None:
            queue = fdbqueue.PriorityQueue.named(attempt.tr, _NAMES[0])
            if queue.is_empty(attempt.tr):
                for number in range(self._n):
                    queue.push(attempt.tr, [f"account {number}", _AMOUNT])
            # From its first limit on, pops read whether a queue is paused. Until then, each process
            # looks for one once a second.
            queue.configure(attempt.tr, paused=False)

        run(db, open_accounts)

    def start(self, db: Any) -> None:
        """Work until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            chance = random.Random(f"{self._client.scenario['seed']} {name}")
            is_keeper = name == "0a"
            clerk = (Keeper if is_keeper else Clerk)(self._client, db, name, chance)
            while time.monotonic() < end:
                clerk.step()
                time.sleep(2 * self._pause * chance.random())

        run_threads(self._client, work)

    def check(self, db: Any) -> None:
        """Save the queue once more, while nothing changes, and compare all with the log."""
        if self._client.id != 0:
            return
        keeper = Keeper(self._client, db, "check", random.Random(0))
        wait_for_ends(self._client, db, keeper.queue)
        keeper.back_up()
        if not keeper.copy():
            self._client.problem("a queue that does not change cannot be copied")
        report = fdbqueue.admin.check(db, keeper.queue)
        if not report.ok:
            self._client.problem(f"fdbqueue.admin.check: {report.problems}")
        while keeper.queue.pop_many(db, 100):
            pass
        look_for_leftovers(self._client, db, keeper.queue.subspace, expected={"a receipt"})
        names = fdbqueue.admin.queue_names(db)
        if names != [keeper.name]:
            self._client.problem(f"the queues are {names}")
        entries, digest = read_log(db)
        entries.sort(key=lambda entry: entry.stamp)
        self._client.keep_log([*entries, *map(str, _saved)])
        self._check_accounts(entries)
        facts = {"saved": Counter(saved.what for saved in _saved), "errors": errors}
        self._client.report(operations=len(entries), digest=digest, **facts)

    def _check_accounts(self, entries: list[Entry]) -> None:
        """Check that what was saved are the balances of one version within its time."""
        balances = {f"account {number}": _AMOUNT for number in range(self._n)}
        history = [(0, dict(balances))]
        is_paused = False
        for entry in entries:
            if entry.verb == "set_paused":
                is_paused = entry.facts["is_paused"]
            elif entry.verb == "move":
                if is_paused and entry.facts["popped"]:
                    self._client.problem(f"popped from a paused queue: {entry}")
                balances |= entry.facts["balances"]
                history.append((entry.stamp, dict(balances)))
        for saved in _saved:
            first = max(stamp for stamp, _ in history if stamp <= last_stamp(saved.begun))
            last = last_stamp(saved.ended)
            if saved.balances not in (each for stamp, each in history if first <= stamp <= last):
                self._client.problem(f"these balances there never were: {saved}")
        if _saved[-1].balances != balances:
            self._client.problem(f"at the end there are {_saved[-1]}, and should be {balances}")


_saved: list[Saved] = []


def values_of(db: Any, queue: Any) -> list[Any]:
    """Return the values of a queue in all states, at one read version and one time."""

    def body(attempt: Attempt) -> list[Any]:
        tr = attempt.tr.snapshot
        with stopped_clock():
            infos = (info for state in _STATES for info in queue.items(tr, state=state))
            return [info.item.value for info in infos]

    values: list[Any] = run(db, body)
    return values


class Clerk:
    """One thread, which moves amounts between accounts."""

    def __init__(self, client: Client, db: Any, name: str, chance: random.Random) -> None:
        self.random = chance
        self._client = client
        self._db = db
        self._name = name
        self._number = 0
        self._claims: list[fdbqueue.Claim] = []
        self.name = ""
        """The name under which it has found the queue of accounts."""
        self.queue = self._open()

    def _open(self) -> Any:
        def body(attempt: Attempt) -> tuple[str, Any]:
            names = fdbqueue.admin.queue_names(attempt.tr)
            (name,) = {*_NAMES} & {*names}
            return name, fdbqueue.existing_queue(attempt.tr, name)

        self.name, queue = run(self._db, body)
        return queue

    def step(self) -> None:
        """Do something at random."""
        steps = [self.move, self.claim, self.settle, self.reopen]
        (step,) = self.random.choices(steps, [5, 2, 2, 0.3])
        step()

    def reopen(self) -> None:
        """Open the queue again, by the name that it has now."""
        self.queue = self._open()

    def move(self) -> None:
        """Move an amount from the first account to the last one, or between any two."""
        takes_any = self.random.random() < 0.7  # the ends conflict with each other

        def body(attempt: Attempt) -> None:
            tr, queue = attempt.tr, self.queue
            if not takes_any:
                ends = queue.pop_min(tr), queue.pop_max(tr)
                self._move(attempt, [item for item in ends if item is not None])
            elif (claim := queue.claim(tr, n=2)) is not None:
                queue.ack(tr, claim)
                self._move(attempt, claim.items)

        run(self._db, body)

    def _move(self, attempt: Attempt, popped: Sequence[Any], claimed: Sequence[Any] = ()) -> None:
        """Move an amount between accounts that were taken, and put them into the queue again."""
        accounts = [item.value for item in [*claimed, *popped]]
        amounts = [-1, 1] if len(accounts) == 2 else [0] * len(accounts)
        moved = {name: old + amount for (name, old), amount in zip(accounts, amounts)}
        for name, balance in moved.items():
            delay = self.random.choice([0, 0, 0, 2])
            priority = self.random.randrange(3)
            self.queue.push(attempt.tr, [name, balance], priority, delay=delay)
        attempt.note("move", balances=moved, popped=len(popped))

    def claim(self) -> None:
        """Claim an account."""
        claim = run(self._db, lambda attempt: self.queue.claim(attempt.tr, lease=3))
        if claim is not None:
            self._claims.append(claim)

    def settle(self) -> None:
        """Move an amount from a claimed account to the first one; or give it back."""
        if not self._claims:
            return
        claim, fails = self._claims.pop(0), self.random.random() < 0.3

        def body(attempt: Attempt) -> None:
            if fails:
                self.queue.nack(attempt.tr, claim, delay=1)
                return
            self.queue.ack(attempt.tr, claim)
            other = self.queue.pop(attempt.tr)
            self._move(attempt, [] if other is None else [other], claim.items)

        with suppress(LeaseLost):  # another client may have the account, with its old balance
            run(self._db, body)


class Keeper(Clerk):
    """The thread that keeps the queues up."""

    def step(self) -> None:
        """Do something at random."""
        steps = [self.back_up, self.copy, self.rename, self.move]
        (step,) = self.random.choices(steps, [3, 3, 2, 2])
        step()

    def _version(self) -> int:
        version: int = run(self._db, lambda attempt: attempt.tr.get_read_version().wait())
        return version

    def back_up(self) -> None:
        """Back the queue up and restore it under another name, perhaps in two attempts."""
        file = io.BytesIO()
        begun = self._version()
        try:
            fdbqueue.admin.backup(self._db, file, [self.name])
        except QueueChanged:
            return  # it took more than five seconds
        ended = self._version()
        data = file.getvalue()
        read = _Torn(data, self.random.randrange(2 * data.count(b"\n")))
        with suppress(InterruptedError):
            fdbqueue.admin.restore(self._db, read, new_name=_COPY)
        if read.is_torn:
            fdbqueue.admin.restore(self._db, io.BytesIO(data), new_name=_COPY)
        self._note("backup", begun, ended)

    def copy(self) -> bool:
        """Copy the queue, perhaps while it is paused; return false if it has changed."""
        pauses = self.random.random() < 0.7
        if pauses:
            self._set_paused(self.name, True)
        begun = self._version()
        try:
            fdbqueue.admin.copy(self._db, self._db, [self.name], new_name=_COPY)
        except QueueChanged:
            return False
        finally:
            if pauses:
                self._set_paused(self.name, False)
        copy = fdbqueue.existing_queue(self._db, _COPY)
        if copy.options(self._db).paused != pauses:
            self._client.problem("the copy of a paused queue is not paused")
        self._note("copy", begun, self._version())
        return True

    def _set_paused(self, name: str, is_paused: bool) -> None:
        queue = fdbqueue.PriorityQueue.named(self._db, name)

        def body(attempt: Attempt) -> None:
            queue.configure(attempt.tr, paused=is_paused)
            attempt.note("set_paused", is_paused=is_paused)

        run(self._db, body)

    def _note(self, what: str, begun: int, ended: int) -> None:
        """Note the balances of the new queue, check it, and drop it."""
        queue = fdbqueue.existing_queue(self._db, _COPY)
        report = fdbqueue.admin.check(self._db, queue)
        if not report.ok:
            self._client.problem(f"fdbqueue.admin.check of a {what}: {report.problems}")
        values = values_of(self._db, queue)
        if repeated := _repeated(name for name, _ in values):
            self._client.problem(f"a {what} has {repeated} twice: {values}")
        _saved.append(Saved(what, begun, ended, dict(values)))
        fdbqueue.admin.drop(self._db, _COPY)

    def rename(self) -> None:
        """Give the queue its other name; all clients go on using it."""
        (new_name,) = {*_NAMES} - {self.name}
        fdbqueue.admin.rename(self._db, self.name, new_name)
        self.name = new_name


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, n in Counter(names).items() if n > 1]
