"""Clients of a queue with groups: each of their random calls is an act of the ledger."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import LeaseLost, QueueFull, WrongState
from tests.long.simulation.groups.ledger import Act, Ledger
from tests.long.simulation.groups.recording import RecordedDatabase, Recording, Rows
from tests.long.simulation.groups.state import read_state
from tests.support.keys import layout_of

KINDS = {
    **{"push": 9, "claim at once": 4, "claim inside": 4, "pop inside": 2},
    **{"ack": 7, "nack": 3, "release": 2, "extend": 1, "set": 4},
    **{"cancel": 1, "move": 1, "retry": 1, "clear": 0.2, "configure": 0.5, "check": 1},
}
GROUPS = ["ada", "bob", "eve", "kim", None]
COSTS = [1.0, 1.0, 0.5, 3.0]
IF_FULL: list[dict[str, Any]] = [{}, {"as_many_as_fit": True}]
"""What a push of several items may do if the queue or their group is full."""
WEIGHTS: list[dict[str, Any]] = [{"weight": weight} for weight in (None, 0.5, 1, 2, 3)]
BOUNDS: list[dict[str, Any]] = [{"max_size": bound} for bound in (None, 1, 2, 2, 4)]
_LIMITS = [
    *WEIGHTS,
    *({"concurrency": limit} for limit in (None, 1, 1, 2, 3)),
    *({"paused": paused} for paused in (True, False, False)),
    *({"rate": rate} for rate in (None, (1, 1.0), (2, 4.0), (3, 20.0))),
    {"weight": 2, "concurrency": 2, "paused": False},
]
RATES = [None, None, None, (3, 1.0), (10, 5.0)]
"""The rates that the queue may have."""
SETTINGS = [WEIGHTS, _LIMITS, _LIMITS, [*_LIMITS, *BOUNDS], [*_LIMITS, *2 * BOUNDS]]
"""The changes of settings of groups that clients make: one of these lists in each simulation."""
LONGEST = 20.0
"""Seconds after which each rate allows more."""
_DELAYS = [0.0, 0.0, 0.5, 4.0]
_LEASES = [1.0, 1.0, 3.0, 20.0]
_KEPT = 10


@dataclass
class Storm:
    """What all clients of one simulation share.

    Attributes:
        space: Where everything is stored.
        settings: The changes of settings that clients choose from.
        is_exact: Whether all items are taken in the order of their turns.
        recording: What their transactions have written.
        groups: The groups that clients use.
        acts: What all clients have done.
        items: The ids and groups of the items that they pushed last.
        pushed: How many items they have pushed, or tried to.
        pops: How often clients pop at once, compared with other calls.
        events: How often calls were of use.
        problems: What `fdbqueue.admin.check` has found.
        shards: The number of shards. A queue with several has no rate.
    """

    space: Subspace
    settings: list[dict[str, Any]]
    is_exact: bool
    recording: Recording
    groups: Sequence[str | None] = tuple(GROUPS)
    acts: list[Act] = field(default_factory=list)
    items: list[tuple[str, str | None]] = field(default_factory=list)
    pushed: int = 0
    pops: float = 1
    events: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    shards: int = 1

    def queue(self) -> PriorityQueue[Any]:
        """Return the queue, as a new process opens it."""
        return PriorityQueue(self.space["queue"])

    def replay(
        self,
        db: Any,
        ledger: Ledger,
        version_of: Callable[[int], int] = lambda version: version,
    ) -> list[str]:
        """Show the queue after each commit to a ledger, once all has ended; return all commits.

        At the end compare the last state with the database. Receipts are left out: the ledger needs
        none of them, and they are most of the rows. So is the row of a process that serves the pops
        of others: it goes on for a moment.
        """
        queue = self.queue()
        space, layout = queue.subspace.key(), layout_of(queue)
        unused, rejected = (layout.receipts.key(), layout.leader), None
        rows = Rows(lambda key: key.startswith(space) and not key.startswith(unused))
        lines: list[str] = []
        for (act, _, now, _), commit in self.recording.replay(db, rows, version_of):
            lines.append(f"{commit} {act}")
            ledger.note(act, commit, read_state(rows, queue), now)
            if rejected != (rejected := rows.values.get(layout.total_rejected)):
                ledger.note_outcome(act, commit.read)
        ledger.look_at_results(self.acts)
        ledger.account(self.acts)
        ledger.problems += self.problems
        if left := [each for each in ledger.state.places.values() if each.state != "dead"]:
            ledger.problems.append(f"they are stuck: {left}")
        stored = {row.key: row.value for row in db[queue.subspace.range()] if rows.keeps(row.key)}
        if wrong := rows.values.items() ^ stored.items():
            ledger.problems.append(f"nobody has written these rows: {wrong}")
        return lines


class Client:
    """A process.

    Args:
        storm: What all clients share.
        db: A database.
        chance: The source of its randomness.
        number: Its number.
    """

    def __init__(self, storm: Storm, db: Any, chance: random.Random, number: int) -> None:
        self._storm = storm
        self._db = RecordedDatabase(db, storm.recording)
        self._chance = chance
        self._number = number
        self._queue = storm.queue()
        self._held: list[Claim] = []

    def configure(self, rate: tuple[int, float] | None) -> None:
        """Give the queue a rate, or none, or its shards."""
        is_sharded = self._storm.shards > 1
        settings = {"shards": self._storm.shards} if is_sharded else {"rate": rate}
        self._perform(Act("configure", settings=settings))

    def bound(self) -> None:
        """Give each group a bound, or none."""
        for group in filter(None, self._storm.groups):
            self._perform(Act("set", group=group, settings=self._chance.choice(BOUNDS)))

    def collect(self, body: Callable[[Any], object]) -> None:
        """Return what is staged for clients that were killed: `body(db)` does so."""
        self._db.act = Act("pop, of a client that was killed")
        body(self._db)

    def act(self) -> None:
        """Make a random call."""
        kinds = KINDS | {"pop at once": self._storm.pops}
        (kind,) = self._chance.choices([*kinds], [*kinds.values()])
        act = self._perform(self._drawn(kind))
        if act.verb == "claim" and act.result is not None:
            self._held.append(act.result)

    def drain(self, pause: Callable[[float], object]) -> None:
        """Let every group go on, and end all items; `pause(seconds)` lets time pass."""
        for group in filter(None, GROUPS):
            self._perform(Act("set", group=group, settings={"paused": False}))
        in_vain = 0.0
        while in_vain < 1.5 * LONGEST:  # versions and clocks differ a little
            # Only pops at once find what was staged for killed processes.
            kind = self._chance.choice(["claim inside", "pop inside", "pop at once"])
            act = self._perform(Act(kind, lease=max(_LEASES)))
            if act.result is None:
                pause(1)
                in_vain += 1
                continue
            in_vain = 0
            if act.verb == "claim":
                self._perform(Act("ack", claim=act.result))

    def _drawn(self, kind: str) -> Act:
        """Return a random call of this kind, or the one that it needs before."""
        draw, storm = self._chance, self._storm
        if not self._held and kind in ("ack", "nack", "release", "extend"):
            kind = "claim at once"
        elif not storm.items and kind in ("cancel", "move", "retry"):
            kind = "push"
        act = Act(kind, n=draw.choice([1, 1, 1, 2, 3]), lease=draw.choice(_LEASES))
        act.within = act.n if storm.is_exact else draw.choice([act.n, 2 * act.n, 256])
        act.delay = draw.choice(_DELAYS)
        act.priority = draw.choice([0, 0, 0, 1, 200])
        act.group = draw.choice(storm.groups)
        if kind == "push":
            act.n = draw.choice([1, 1, 2, 4])
            act.cost, act.options = draw.choice(COSTS), draw.choice(IF_FULL)
            act.delay = draw.choice([0, 0, 0, act.delay])
            storm.pushed += act.n
            act.values = [f"item {value}" for value in range(storm.pushed - act.n, storm.pushed)]
        elif kind == "set":
            act.group = draw.choice([*storm.groups, ""])
            act.settings = draw.choice(WEIGHTS if act.group == "" else storm.settings)
            if act.group is None:
                act.settings = {k: v for k, v in act.settings.items() if k != "paused"}
        elif kind == "configure":
            act.settings = {"rate": draw.choice(RATES if storm.shards == 1 else [None])}
        elif kind in ("cancel", "move", "retry"):
            id, act.group = draw.choice(storm.items[-_KEPT:])
            act.values = [id]
        elif kind in ("ack", "nack", "release", "extend"):
            act.claim = draw.choice(self._held)
            act.dead = draw.random() < 0.2
            # Some claims are used again after their end; some are used only in part.
            if kind != "extend" and draw.random() < 0.7:
                self._held.remove(act.claim)
            if draw.random() < 0.3:
                act.claim = draw.choice(list(act.claim))
        return act

    def _perform(self, act: Act) -> Act:
        """Perform an act and record its outcome."""
        act.client, act.begun = self._number, milliseconds()
        act.at = self._storm.recording.now()
        self._storm.acts.append(act)
        self._db.act = act
        try:
            act.result = getattr(self, f"_{act.verb}")(act)
        except LeaseLost:
            self._storm.events["lost"] += 1
        except (QueueFull, WrongState):
            act.refused = True
        except fdbqueue.error_classes() as error:
            if error.code not in (1021, 1031):
                raise
            # The database could not be reached. What was claimed returns when its lease is over.
        else:
            act.returned = True
            self._storm.events[act.verb] += 1
        return act

    def _inside(self, body: Callable[[Any], Any]) -> Any:
        """Run a function in a transaction that takes effect exactly once."""
        return fdbqueue.transactional(receipts=self._storm.space["receipts"])(
            lambda tr: body(tr)  # which has a parameter of this name
        )(self._db)

    def _push(self, act: Act) -> list[str]:
        options = {"delay": act.delay, "group": act.group, "cost": act.cost, **act.options}
        items = self._queue.push_many(self._db, act.values, act.priority, **options)
        self._storm.items += [(item.id, act.group) for item in items]
        return [item.value for item in items]

    def _pop(self, act: Act) -> list[str] | None:
        def pop(tr: Any) -> list[str] | None:
            return [item.value for item in self._queue.pop_many(tr, act.n)] or None

        return pop(self._db) if act.kind == "pop at once" else self._inside(pop)

    def _claim(self, act: Act) -> Claim | None:
        def claim(tr: Any) -> Claim | None:
            return self._queue.claim(tr, lease=act.lease, n=act.n, within=act.within)

        return claim(self._db) if act.kind == "claim at once" else self._inside(claim)

    def _ack(self, act: Act) -> None:
        self._inside(lambda tr: self._queue.ack(tr, act.claim))

    def _nack(self, act: Act) -> None:
        self._queue.nack(self._db, act.claim, delay=act.delay, dead=act.dead)

    def _release(self, act: Act) -> None:
        self._queue.release(self._db, act.claim)

    def _extend(self, act: Act) -> None:
        self._queue.extend(self._db, act.claim, act.lease)

    def _set(self, act: Act) -> None:
        self._queue.set_group(self._db, act.group, **act.settings)

    def _configure(self, act: Act) -> None:
        self._queue.configure(self._db, **act.settings)

    def _clear(self, act: Act) -> None:
        self._queue.clear(self._db)

    def _cancel(self, act: Act) -> None:
        self._queue.cancel(self._db, act.values[0])

    def _move(self, act: Act) -> None:
        self._queue.update(self._db, act.values[0], priority=act.priority)

    def _retry(self, act: Act) -> None:
        self._queue.retry(self._db, act.values[0])

    def _check(self, act: Act) -> None:
        report = fdbqueue.admin.check(self._db, self._queue)
        if not report.ok:
            self._storm.problems.append(f"fdbqueue.admin.check: {report.problems}")
