"""Bugs to plant into the library, to see that the simulations find them.

One for each transition of items and each maintainer, which follow from the library's own tables,
and one for each further rule that matters: what conflicts with what, tokens, leases, receipts,
timers, turns, limits and rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from typing import Any

from fdbqueue.operations.transitions import TABLE


@dataclass(frozen=True)
class Mutation:
    """A bug.

    Attributes:
        plant: Plants it, before the first queue is opened.
        workload: The workload that is to find it.
    """

    plant: Callable[[], object]
    workload: str

    @staticmethod
    def has_found(problem: str) -> bool:
        """Return whether a problem is that of a bug.

        An error is one of the mutation itself, and one of the server says nothing.
        """
        others = ("the workload was not checked", "the server does not say")
        return "Traceback" not in problem and not problem.startswith(others)


MUTATIONS: dict[str, Mutation] = {}
"""All bugs by name."""


def _found_by(workload: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(plant: Callable[[], object]) -> Callable[[], object]:
        MUTATIONS[plant.__name__.strip("_").replace("_", "-")] = Mutation(plant, workload)
        return plant

    return add


_changed: list[tuple[Any, str, Any]] = []


def _change(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    before = getattr(owner, name)
    _changed.append((owner, name, before))
    setattr(owner, name, change(before))


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug in this process for the time of a block."""
    MUTATIONS[name].plant()
    try:
        yield
    finally:
        while _changed:
            setattr(*_changed.pop())


class _Unseen:
    """A transaction whose reads conflict with nothing."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr
        self._reads = getattr(tr, "snapshot", tr)

    def __getattr__(self, name: str) -> Any:
        is_read = name.startswith("get") and name != "get_read_version"
        return getattr(self._reads if is_read else self._tr, name)

    def __getitem__(self, key: Any) -> Any:
        return self._reads[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._tr[key]

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        pass

    def add_read_conflict_key(self, key: bytes) -> None:
        pass


# Transitions: each is left out of the counters


_ELSEWHERE: dict[str, list[Any]] = {
    "durable": [
        *(("acked", "claimed", "done"), ("returned", "claimed", "delayed")),
        *(("cancelled", "ready", "done"), ("cancelled", "delayed", "done")),
    ],
    "groups": [("staged", "ready", "claimed"), ("collected", "claimed", None)],
    "databases": [("unstaged", "claimed", "ready")],
    # No workload does that.
    "": [("buried", "claimed", "dead"), ("removed", "done", None), ("trimmed", "done", None)],
}
"""The transitions that another workload than `queues` makes."""


def _uncounted(transition: Any) -> None:
    from fdbqueue.operations import transitions

    _change(transitions, "TABLE", lambda table: {**table, transition: {}})


for _transition, _tallies in TABLE.items():
    _workloads = [name for name, its in _ELSEWHERE.items() if _transition in its]
    _workload = _workloads[0] if _workloads else "queues"
    if _tallies.keys() - {"moved"} and _workload:
        _name = " ".join(state or "gone" for state in _transition)
        MUTATIONS[f"uncounted {_name}"] = Mutation(partial(_uncounted, _transition), _workload)


# Rules that are left out: a method that does nothing and returns this


_LEFT_OUT: dict[str, tuple[str, Any, list[str]]] = {
    # The maintainers, except the history: nothing depends on it
    "without unique keys": ("queues", None, ["operations.items:UniqueKeys.follow"]),
    "without groups": ("groups", None, ["operations.items:Groups.begin"]),
    "without owned rows": ("durable", None, ["operations.items:OwnedRows.follow"]),
    "without batches": ("durable", None, ["operations.items:note_ends"]),
    "without alerts": ("durable", None, ["coordination.store:Alerts.follow"]),
    # Queues, and the processes that serve each other
    "a recovery ends a lease": ("queues", 0, ["layout.values:Lease.left"]),
    "the value of a push is lost": ("queues", None, ["operations.push:Pusher._replaced"]),
    "two pushes take the last place": ("queues", None, ["operations.limits.bounds:take_places"]),
    "staged for the dead": ("databases", 0, ["coordination.pops:PopRequests.unstage"]),
    # Schedules and batches
    "ticks overlap": (
        *("durable", False),
        [
            "operations.jobs.schedules:Schedules._is_held",
            "operations.jobs.schedules:StoredSchedule.unique_key",
        ],
    ),
    "queued for ever": ("durable", None, ["operations.maintainers.unique_keys:set_timer"]),
    "cancelled in vain": ("durable", False, ["queue.batches:is_cancelled"]),
    # Groups
    "the last one is not noticed": ("groups", None, ["operations.items:Groups._note_removed"]),
    "nobody hands the slot over": ("groups", False, ["operations.items:Groups._goes_on"]),
    "no timer ends a hold": ("groups", 0, ["operations.items:Groups.end_holds"]),
    "starts are not noted": ("groups", None, ["operations.limits.rates:QueueRate.note"]),
    "no timer for the queue": ("groups", None, ["operations.limits.rates:QueueRate._set_timer"]),
    "two pushes fill a group": ("groups", None, ["operations.limits.bounds:Bounds._take"]),
}

_UNSEEN: dict[str, tuple[str, list[str]]] = {
    "two pops take an item": ("queues", ["operations.items:Items.first"]),
    "two claims take an item": ("queues", ["operations.claims:ClaimedItems.take"]),
    "two sweeps end a timer": (
        "queues",
        ["operations.sweep:Sweep._end_timers", "operations.claims:ClaimedItems.end_over"],
    ),
    "an update passes a claim": (
        "queues",
        ["operations.sweep:Sweep.find", "operations.changes:Changes._rely_on"],
    ),
    "two items have a unique key": ("queues", ["operations.push:Pusher.push_unique"]),
    "two pops take a turn": ("groups", ["operations.limits.turns:Turns.first"]),
    "groups change meanwhile": ("groups", ["operations.items:Groups.begin_taking"]),
    "two clients start the last one": ("groups", ["operations.limits.rates:Starts.room"]),
}
"""Methods that conflict with nothing."""


def _leave_out(paths: list[str], result: Any) -> None:
    for path in paths:
        _change(*_found(path), lambda _: lambda *args, **options: result)


def _by_snapshot(paths: list[str]) -> None:
    def unseen(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr, *args, **options: method(self, _Unseen(tr), *args, **options)

    for path in paths:
        _change(*_found(path), unseen)


def _found(path: str) -> tuple[Any, str]:
    module, _, names = path.partition(":")
    *classes, name = names.split(".")
    return reduce(getattr, classes, import_module(f"fdbqueue.{module}")), name


for _name, (_workload, _result, _paths) in _LEFT_OUT.items():
    MUTATIONS[_name] = Mutation(partial(_leave_out, _paths, _result), _workload)
for _name, (_workload, _paths) in _UNSEEN.items():
    MUTATIONS[_name] = Mutation(partial(_by_snapshot, _paths), _workload)


# Queues


@_found_by("queues")
def _order_by_chance() -> None:
    """Items of a priority are in random order."""
    from fdbqueue.operations.items import Tail

    def take_count(take_count: Callable[..., int]) -> Callable[..., int]:
        return lambda self, version: take_count(self, version) * 2_654_435_761 % 2**32

    _change(Tail, "take_count", take_count)


@_found_by("queues")
def _ack_without_token() -> None:
    """A client ends a claim that another one has made since."""
    from fdbqueue.operations.claims import ClaimedItems, LeaseLost

    def without_token(self: Any, claim: Any, reads: Any) -> Any:
        values = [read.value for read in reads]
        if None in values:
            raise LeaseLost(claim.items[values.index(None)].id)
        return [self._row("claimed", key, value) for key, value in zip(claim.keys, values)]

    _change(ClaimedItems, "_claimed", lambda _: without_token)


@_found_by("queues")
def _unexpired() -> None:
    """An item that has expired is handed out."""
    from fdbqueue.operations.sweep import Sweep

    def end_timers(end: Callable[..., None]) -> Callable[..., None]:
        def of_delays(self: Any, tr: Any, now: int, state: str, timers: Any) -> None:
            if state == "delayed":
                end(self, tr, now, state, timers)

        return of_delays

    _change(Sweep, "_end_timers", end_timers)


@_found_by("queues")
def _unswept_shard() -> None:
    """Sweeps look at the first shard only."""
    from fdbqueue.operations.sweep import Sweep

    _change(Sweep, "_shards", lambda _: lambda *_: [b""])


@_found_by("queues")
def _unranked_shard() -> None:
    """A client takes from any shard, whatever the priority of its first item."""
    from fdbqueue.operations import shards

    _change(shards, "_rank", lambda _: lambda *_: b"")


# Calls with the database, workers, processes, backups


@_found_by("databases")
def _receipt_unread() -> None:
    """After an unknown result, an operation runs again although it has committed."""
    from fdbqueue.database.exactly_once import _Operation

    def committed_attempt(read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr: None if self.receipt is not None else read(self, tr)

    _change(_Operation, "_committed_attempt", committed_attempt)


@_found_by("databases")
def _unwoken() -> None:
    """A push wakes none of the clients that wait."""
    from fdbqueue.coordination.store import Store
    from fdbqueue.layout.keys import Layout

    def keys_to_watch(keys_to_watch: Callable[..., Any]) -> Callable[..., Any]:
        def of_options(self: Any, tr: Any, *args: Any, **kwargs: Any) -> list[bytes]:
            return [self.layout.options for _ in keys_to_watch(self, tr, *args, **kwargs)]

        return of_options

    def init(init: Callable[..., None]) -> Callable[..., None]:
        def without_waiters(self: Any, *args: Any) -> None:
            init(self, *args)
            self.waiters_and_options = self.options, self.options + b"\x00"

        return without_waiters

    _change(Store, "keys_to_watch", keys_to_watch)
    _change(Layout, "__init__", init)


@_found_by("queues")
def _torn_backup() -> None:
    """Each part of a backup is read at a version of its own."""
    from fdbqueue.queue.backup import Moment

    def read(read: Callable[..., Any]) -> Callable[..., Any]:
        def anew(self: Any, body: Any) -> Any:
            self._renew()
            self.versions -= 1  # so it does not read again
            return read(self, body)

        return anew

    _change(Moment, "read", read)


@_found_by("workers")
def _effect_outside() -> None:
    """A handler writes in a transaction of its own, which commits before the job ends."""
    from fdbqueue.database.retrying import run
    from fdbqueue.worker.invocation import Handler

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def outside(self: Any, call: Any, job: Any, *tr: Any) -> Any:
            if not tr:
                return original(self, call, job)
            return run(tr[0].db, lambda own: original(self, call, job, own))

        return outside

    _change(Handler, "run", change)


@_found_by("workers")
def _unextended() -> None:
    """A worker does not extend the leases of its jobs."""
    from fdbqueue.database.clock import Since
    from fdbqueue.worker.timeouts import Upkeep

    def renew(self: Any) -> None:
        self._extended = Since()

    _change(Upkeep, "_renew", lambda _: renew)


# Schedules, steps and batches


@_found_by("durable")
def _resumed_by_clock() -> None:
    """A client with a slow clock resumes a schedule, which pushes a tick again."""
    from fdbqueue.operations.jobs import schedules
    from fdbqueue.operations.jobs.ticks import next_tick

    def first_tick(_: object) -> Callable[..., int | None]:
        return lambda schedule, now: next_tick(schedule.definition.timing, now)

    _change(schedules, "_first_tick", first_tick)


@_found_by("durable")
def _step_without_token() -> None:
    """A client stores a step of a job that another one has claimed since."""
    from fdbqueue.errors import LeaseLost
    from fdbqueue.layout.values import decode_metadata
    from fdbqueue.operations.jobs.steps import DurableSteps

    def store(store: Callable[..., None]) -> Callable[..., None]:
        def without_token(self: Any, tr: Any, now: int, extension: Any, steps: Any) -> None:
            claim = extension[0]
            position = self._layout.position(claim.keys[0])
            stored = tr[self._layout.claims + position].value
            if stored is None:
                raise LeaseLost(claim.item.id)
            if decode_metadata(stored)[0][0] == claim.token:
                store(self, tr, now, extension, steps)
            else:
                item = self._items.levels.row("claimed", claim.keys[0], stored)
                self._put(tr, item, steps)

        return without_token

    _change(DurableSteps, "store", store)


@_found_by("durable")
def _step_unseen() -> None:
    """A job does not find the steps that an earlier run of it has stored."""
    from fdbqueue.queue.steps import ClaimedSteps

    def find(find: Callable[..., Any]) -> Callable[..., Any]:
        def unless_done(self: Any, name: str) -> Any:
            found = find(self, name)
            return None if found is not None and found.kind == "step" else found

        return unless_done

    _change(ClaimedSteps, "find", find)


@_found_by("durable")
def _commit_apart() -> None:
    """A commit takes effect in one transaction, and is stored as a step in the next one."""
    from fdbqueue.database.retrying import run
    from fdbqueue.queue.steps import ClaimedSteps

    def commit(_: object) -> Callable[..., Any]:
        def apart(self: Any, name: str, body: Callable[..., bytes], begun: Any) -> Any:
            return self.store(name, begun, run(self._lease.db, body))

        return apart

    _change(ClaimedSteps, "commit", commit)


@_found_by("durable")
def _follows_at_once() -> None:
    """A job that is to run after others is ready from the beginning."""
    from fdbqueue.queue import batches

    _change(batches, "NEVER", lambda _: None)


@_found_by("durable")
def _uncompensated() -> None:
    """A cancelled job ends with its claim, although it has begun."""
    from fdbqueue.layout.values import Header

    ends = property(lambda self: self.cancelled is not None)
    _change(Header, "ends_with_claim", lambda _: ends)


@_found_by("groups")
def _weights_do_not_count() -> None:
    from fdbqueue.layout.items import GroupSettings

    _change(GroupSettings, "step", lambda step: lambda _, cost: step(GroupSettings(), cost))


# Groups


@_found_by("groups")
def _limits_are_off_by_one() -> None:
    from fdbqueue.operations.limits.turns import Turn

    _change(Turn, "claimed_left", lambda left: property(lambda self: left.fget(self) + 1))


@_found_by("groups")
def _rates_are_off_by_one() -> None:
    from fdbqueue.operations.limits.rates import Starts

    def room(room: Any) -> Any:
        return lambda self, tr, now, group, rate, n=0: room(
            self, tr, now, group, (rate[0] + 1, rate[1]), n
        )

    _change(Starts, "room", room)


@_found_by("groups")
def _versions_decide_what_is_over() -> None:
    """All starts before a recovery are forgotten."""
    from fdbqueue.operations.limits.rates import Starts

    def forget_old(of: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
        def forget(self: Any, tr: Any, now: int, *others: Any) -> tuple[int, int]:
            number, due = of(self, tr, now + later, *others)
            return number, due - later

        later = 10**12  # milliseconds; so all starts are old by the clock
        return forget

    _change(Starts, "_forget_old", forget_old)
