"""Bugs to plant into the library, each against a rule that matters, to see that they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.long.simulation.groups.mutations import MUTATIONS as BUGS_OF_GROUPS


@dataclass(frozen=True)
class Mutation:
    """A bug.

    Attributes:
        plant: Plants it, before the first queue is opened.
        workload: The workload that is to find it.
        finds: What the problem says. Any other problem is one of the mutation itself.
    """

    plant: Callable[[], None]
    workload: str
    finds: tuple[str, ...]

    def has_found(self, problem: str) -> bool:
        """Return whether a problem is that of the bug."""
        return any(text in problem for text in self.finds)


MUTATIONS: dict[str, Mutation] = {}
"""All bugs by name."""


def _found_by(workload: str, *finds: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__.strip("_").replace("_", "-")
        MUTATIONS[name] = Mutation(plant, workload, finds)
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


class _Snapshot:
    """A transaction whose reads conflict with nothing."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def __getitem__(self, key: Any) -> Any:
        return self._tr.snapshot[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._tr[key]

    def get(self, key: Any) -> Any:
        return self._tr.snapshot.get(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        pass

    def add_read_conflict_key(self, key: bytes) -> None:
        pass


# What is taken


@_found_by("queues", "was taken, but it is gone", "fdbqueue.admin.check", "are counted as")
def _pop_by_snapshot() -> None:
    """Two clients pop the same item."""
    from fdbqueue.operations.items import Items

    def first(first: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr, *args: first(self, getattr(tr, "snapshot", tr), *args)

    _change(Items, "first", first)


@_found_by("queues", "was claimed for attempt")
def _claim_by_snapshot() -> None:
    """Two clients claim the same item."""
    from fdbqueue.operations.claims import ClaimedItems

    def take(take: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr, *rest: take(self, _Snapshot(tr), *rest)

    _change(ClaimedItems, "take", take)


@_found_by("databases", "is before the items of")
def _second_before_first() -> None:
    """Now and then a pop takes the second item."""
    from fdbqueue.operations.items import Items

    def first(first: Callable[..., Any]) -> Callable[..., Any]:
        def any_of_two(self: Any, tr: Any, n: int, at_max: bool = False) -> Any:
            items = first(self, tr, 2 if n == 1 else n, at_max)
            return items[-1:] if n == 1 else items

        return any_of_two

    _change(Items, "first", first)


@_found_by("queues", "is not behind", "is before", "not in order")
def _order_by_chance() -> None:
    """Items of a priority are in random order."""
    from fdbqueue.operations.items import Tail

    def take_count(take_count: Callable[..., int]) -> Callable[..., int]:
        return lambda self, version: take_count(self, version) * 2_654_435_761 % 2**32

    _change(Tail, "take_count", take_count)


@_found_by("databases", "woken late", "got nothing")
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


# Claims


@_found_by("queues", "was held, but it is", "was lost, but it is")
def _ack_without_token() -> None:
    """A client ends a claim that another one has made since."""
    from fdbqueue.operations.claims import ClaimedItems, LeaseLost

    def claimed(_: object) -> Callable[..., Any]:
        def without_token(self: Any, claim: Any, begun: Any) -> Any:
            rows = begun()
            if None in rows:
                raise LeaseLost(claim.items[0].id)
            return rows

        return without_token

    _change(ClaimedItems, "_claimed", claimed)


@_found_by("queues", "but it is claimed")
def _lease_by_version() -> None:
    """A recovery ends a lease, because it advances the versions."""
    from fdbqueue.layout.values import Lease

    _change(Lease, "left", lambda _: lambda self, now: 0)


@_found_by("queues", "but it is claimed", " is before ")
def _extension_in_vain() -> None:
    """An extended lease ends when it would have ended without the extension."""
    from fdbqueue.operations.claims import ClaimedItems

    def extend(extend: Callable[..., None]) -> Callable[..., None]:
        def check_only(
            self: Any, tr: Any, now: int, extension: Any, reads: Any = None, *, lease: float
        ) -> None:
            claim, _ = extension
            self._claimed(claim, self._begin(tr, claim) if reads is None else reads)

        return check_only

    _change(ClaimedItems, "extend", extend)


@_found_by("queues", "was claimed for attempt", "and should be")
def _uncounted_attempt() -> None:
    """An attempt that failed does not count."""
    from fdbqueue.operations.changes import Changes

    def fail(fail: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
        def without_count(
            self: Any, tr: Any, now: int, failed: Any, *args: Any, **options: Any
        ) -> list[bytes]:
            uncounted = [
                each._replace(row=each.row._replace(attempts=each.row.attempts - 1))
                for each in failed
            ]
            return fail(self, tr, now, uncounted, *args, **options)

        return without_count

    _change(Changes, "fail", fail)


# Timers


@_found_by("queues", "but it is", "and should be", "are counted as", "fdbqueue.admin.check")
def _sweep_without_conflict() -> None:
    """Two clients end the same lease, or the same delay."""
    from fdbqueue.operations.claims import ClaimedItems
    from fdbqueue.operations.sweep import Sweep

    def by_snapshot(sweep: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
        return lambda self, tr, *args: sweep(self, _Snapshot(tr), *args)

    _change(Sweep, "_end_timers", by_snapshot)
    _change(ClaimedItems, "end_over", by_snapshot)


@_found_by("queues", "but it is delayed", "and should be delayed")
def _short_delay() -> None:
    """A delay ends a fifth too early."""
    from fdbqueue.queue import base

    _change(base, "due_time", _earlier)


def _earlier(due_time: Callable[..., int | None]) -> Callable[..., int | None]:
    def due(delay: Any, at: Any) -> int | None:
        return due_time(delay and delay * 0.8, at)

    return due


@_found_by("queues", "was taken, but it is gone", "and should be gone")
def _unexpired() -> None:
    """An item that has expired is handed out."""
    from fdbqueue.operations.sweep import Sweep

    def end_timers(end: Callable[..., None]) -> Callable[..., None]:
        def of_delays(self: Any, tr: Any, now: int, state: str, timers: Any) -> None:
            if state == "delayed":
                end(self, tr, now, state, timers)

        return of_delays

    _change(Sweep, "_end_timers", end_timers)


# Bounds and unique keys


@_found_by("queues", "the queue has room for")
def _unbounded() -> None:
    """Two pushes take the last place."""
    from fdbqueue.operations.limits.places import Places

    _change(Places, "take", lambda _: lambda *args: None)


@_found_by("queues", "the queue was full, with")
def _full_by_snapshot() -> None:
    """A push finds the queue full, although an item is taken before it commits."""
    from fdbqueue.operations.limits.bounds import Bounds

    _change(Bounds, "_rely_on_full", lambda _: lambda *args: None)


@_found_by("queues", "was ended, but it is", "was unfinished, but it is")
def _unique_by_snapshot() -> None:
    """Two pushes with the same unique key both store an item."""
    from fdbqueue.operations.push import Pusher

    def push_unique(push_unique: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr, *rest: push_unique(self, _Snapshot(tr), *rest)

    _change(Pusher, "push_unique", push_unique)


# Counters, receipts, other queues


@_found_by("queues", "the totals do not add up", "the queue was full, with", "fdbqueue.admin.check")
def _forgotten_counter() -> None:
    """A removed item is not counted."""
    from fdbqueue.operations import transitions

    def without_removed(table: dict[Any, dict[str, int]]) -> dict[Any, dict[str, int]]:
        return {kind: {**tallies, "removed": 0} for kind, tallies in table.items()}

    _change(transitions, "TABLE", without_removed)


@_found_by("queues", "but it is", "and should be", "are counted as", "fdbqueue.admin.check")
def _put_back_unseen() -> None:
    """An item is put back although it is in the queue."""
    from fdbqueue.operations.items import Items

    _change(Items, "begin_look", lambda _: lambda self, tr, key, header: [])


@_found_by("databases", "lost: ", "doubled: ", "not every outcome is known")
def _receipt_unread() -> None:
    """After an unknown result, an operation runs again although it has committed."""
    from fdbqueue.database.exactly_once import _Operation

    def committed_attempt(read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, tr: None if self.receipt is not None else read(self, tr)

    _change(_Operation, "_committed_attempt", committed_attempt)


@_found_by(
    "upkeep", "these balances there never were", "fdbqueue.admin.check of a backup", "twice: "
)
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


@_found_by("upkeep", "popped from a paused queue")
def _pause_by_snapshot() -> None:
    """A pop goes on although the queue has been paused before it commits."""
    from fdbqueue.operations.options import StoredOptions

    def is_paused(is_paused: Callable[..., bool]) -> Callable[..., bool]:
        return lambda self, tr: is_paused(self, tr.snapshot)

    _change(StoredOptions, "is_paused", is_paused)


# Workers and processes


@_found_by("workers", "effects, and was ended by")
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


@_found_by("workers", "was taken from a live worker")
def _unextended() -> None:
    """A worker does not extend the leases of its jobs."""
    from fdbqueue.database.clock import Since
    from fdbqueue.worker.timeouts import Upkeep

    def renew(self: Any) -> None:
        self._extended = Since()

    _change(Upkeep, "_renew", lambda _: renew)


@_found_by("workers", "the row of a worker is left")
def _dead_workers_stay() -> None:
    """A worker does not delete the rows of those that were killed."""
    from fdbqueue.worker.presence import Presence

    def init(init: Callable[..., None]) -> Callable[..., None]:
        def has_looked(self: Any) -> None:
            init(self)
            self._has_looked = True

        return has_looked

    _change(Presence, "__post_init__", init)


@_found_by("queues", "but it is gone", "and should be gone", "was not cancelled")
def _uncancelled() -> None:
    """An item that was cancelled returns with its claim."""
    from fdbqueue.operations.claims import ClaimedItems

    def all_of(_: object) -> Callable[..., Any]:
        return lambda self, tr, now, claim: self._claimed(claim, self._begin(tr, claim))

    _change(ClaimedItems, "_uncancelled", all_of)


@_found_by("workers", "an idle worker sleeps on")
def _no_wake_up() -> None:
    """A push wakes nobody, and nobody looks whether others were woken in vain."""
    from fdbqueue.layout.keys import Layout
    from fdbqueue.operations.waking import Waiters

    def init(init: Callable[..., None]) -> Callable[..., None]:
        def without_waiters(self: Any, *args: Any, **facts: Any) -> None:
            init(self, *args, **facts)
            self.waiters_and_options = self.options, self.options + b"\x00"

        return without_waiters

    def wait(wait: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **facts: wait(*args, **facts)._replace(
            neighbours=[], is_sentinel=False
        )

    _change(Layout, "__init__", init)
    _change(Waiters, "wait", wait)
    _change(Waiters, "wake", lambda _: lambda *args: None)


@_found_by("processes", "lost: ", "the number of claimed items is")
def _staged_for_the_dead() -> None:
    """The items that were staged for a killed process are gone with it."""
    from fdbqueue.coordination.pops import PopRequests

    _change(PopRequests, "unstage", lambda _: lambda *args: 0)


# Schedules, steps and batches


_TWICE = ("ticks were pushed twice", "were pushed, and should be")


@_found_by("durable", *_TWICE)
def _tick_by_snapshot() -> None:
    """Two clients push the same tick."""
    from fdbqueue.operations.jobs.schedules import Schedules

    def tick(tick: Callable[..., bool]) -> Callable[..., bool]:
        return lambda self, tr, *args: tick(self, _Snapshot(tr), *args)

    _change(Schedules, "_tick", tick)


@_found_by("durable", *_TWICE, "the next tick is not")
def _tick_apart() -> None:
    """The transaction that pushes a tick leaves it to the next one to go on."""
    from fdbqueue.operations.jobs.schedules import Schedules

    def store(store: Callable[..., None]) -> Callable[..., None]:
        def half(self: Any, tr: Any, name: str, before: Any, after: Any) -> None:
            if before is not None and after is not None and after.next is not None:
                # Once for each tick: otherwise it would be pushed for ever.
                is_first = after.pushed > before.pushed and after.last != before.last
                after = after._replace(next=before.next) if is_first else after
            store(self, tr, name, before, after)

        return half

    _change(Schedules, "_store", store)


@_found_by("durable", *_TWICE, "the next tick is not")
def _resumed_by_clock() -> None:
    """A client with a slow clock resumes a schedule, which pushes a tick again."""
    from fdbqueue.operations.jobs import schedules
    from fdbqueue.operations.jobs.schedules import next_tick

    def first_tick(_: object) -> Callable[..., int | None]:
        return lambda schedule, now: next_tick(schedule.definition.timing, now)

    _change(schedules, "_first_tick", first_tick)


@_found_by("durable", "the last item of")
def _overlapping() -> None:
    """A tick is pushed although the item of the last one has not ended."""
    from fdbqueue.operations.jobs.schedules import Schedules, StoredSchedule

    _change(Schedules, "_is_held", lambda _: lambda *args: False)
    _change(StoredSchedule, "unique_key", lambda _: lambda self, name: None)


@_found_by("durable", "it does not go on", "fdbqueue.admin.check")
def _queued_for_ever() -> None:
    """The end of an item does not let a tick go on that waits for it."""
    from fdbqueue.operations.maintainers import unique_keys

    _change(unique_keys, "set_timer", lambda _: lambda *args: None)


@_found_by("durable", "its claim is over", "it is ")
def _step_without_token() -> None:
    """A client stores a step of a job that another one has claimed since."""
    from fdbqueue.errors import LeaseLost
    from fdbqueue.layout.values import decode_metadata
    from fdbqueue.operations.jobs.steps import DurableSteps

    def store(store: Callable[..., None]) -> Callable[..., None]:
        def without_token(
            self: Any, tr: Any, now: int, extension: Any, steps: Any, *, lease: float
        ) -> None:
            claim, _ = extension
            position = self._layout.position(claim.keys[0])
            stored = tr[self._layout.claims + position].value
            if stored is None:
                raise LeaseLost(claim.item.id)
            if decode_metadata(stored)[0][0] == claim.token:
                store(self, tr, now, extension, steps, lease=lease)
            else:
                item = self._items.levels.row("claimed", claim.keys[0], stored)
                self._put(tr, position, item, steps)

        return without_token

    _change(DurableSteps, "store", store)


@_found_by("durable", "runs again, and is")
def _step_unseen() -> None:
    """A job does not find the steps that an earlier run of it has stored."""
    from fdbqueue.queue.steps import ClaimedSteps

    def find(find: Callable[..., Any]) -> Callable[..., Any]:
        def unless_done(self: Any, name: str) -> Any:
            found = find(self, name)
            return None if found is not None and found.kind == "step" else found

        return unless_done

    _change(ClaimedSteps, "find", find)


@_found_by("durable", "takes effect again", "and the effects")
def _commit_apart() -> None:
    """A commit takes effect in one transaction, and is stored as a step in the next one."""
    from fdbqueue.database.retrying import run
    from fdbqueue.queue.steps import ClaimedSteps

    def commit(_: object) -> Callable[..., Any]:
        def apart(self: Any, name: str, body: Callable[..., bytes], begun: Any) -> Any:
            step = begun._replace(state="done", due=None, value=run(self._db, body))
            self.store(name, step)
            return step

        return apart

    _change(ClaimedSteps, "commit", commit)


@_found_by("durable", "nothing has woken it", "fdbqueue.admin.check")
def _timer_left_by_signal() -> None:
    """A signal wakes a job, and leaves the timer of its wait."""
    from fdbqueue.operations.changes import Changes

    def run_now(run_now: Callable[..., bool]) -> Callable[..., bool]:
        def and_later(self: Any, tr: Any, now: int, found: Any) -> bool:
            is_changed = run_now(self, tr, now, found)
            layout = self._items.layout
            tr[layout.timer_key(layout.dues, found.due, layout.position(found.key))] = b""
            return is_changed

        return and_later

    _change(Changes, "run_now", run_now)


@_found_by("durable", " was done with ")
def _signal_ignored() -> None:
    """A wait times out once its time is over, although a signal has ended it."""
    from fdbqueue.database.clock import milliseconds
    from fdbqueue.layout.jobs import NamedStep
    from fdbqueue.operations.jobs.steps import DurableSteps
    from fdbqueue.queue.steps import ClaimedSteps

    def is_late(step: Any, now: int) -> bool:
        return step is not None and step.due is not None and step.due <= now

    def find(find: Callable[..., Any]) -> Callable[..., Any]:
        def still_waiting(self: Any, name: str) -> Any:
            found = find(self, name)
            is_wait = found is not None and (found.kind, found.state) == ("wait", "done")
            is_lost = is_wait and is_late(found, milliseconds())
            return found._replace(state="waiting") if is_lost else found

        return still_waiting

    def wait(wait: Callable[..., Any]) -> Callable[..., Any]:
        def by_time(
            self: Any, tr: Any, now: int, extension: Any, steps: Any, signal: str, *, lease: float
        ) -> Any:
            ended = wait(self, tr, now, extension, steps, signal, lease=lease)
            if not is_late(ended, now):
                return ended
            late = ended._replace(state="timed out")
            self.store(tr, now, extension, [NamedStep(steps[-1].name, late)], lease=lease)
            return late

        return by_time

    _change(ClaimedSteps, "find", find)
    _change(DurableSteps, "wait", wait)


@_found_by("durable", "jobs wait for")
def _wait_left_by_timeout() -> None:
    """A signal ends a wait that has timed out."""
    from fdbqueue.operations.jobs.steps import DurableSteps

    def wait(wait: Callable[..., Any]) -> Callable[..., Any]:
        def and_again(
            self: Any, tr: Any, now: int, extension: Any, steps: Any, signal: str, *, lease: float
        ) -> Any:
            ended = wait(self, tr, now, extension, steps, signal, lease=lease)
            if ended is not None and ended.state == "timed out":
                layout, position = self._layout, self._layout.position(extension[0].keys[0])
                key = layout.signal_wait(signal, ended.key, steps[-1].name, position)
                tr[layout.signal_waits + key] = b""
            return ended

        return and_again

    _change(DurableSteps, "wait", wait)


_EARLY_OR_NEVER = (
    "before all jobs of its batch have ended",
    "after the job that follows its batch",
    "jobs of its batch have ended",
    "does not end",
    "has not ended",
)


@_found_by("durable", *_EARLY_OR_NEVER)
def _counted_twice() -> None:
    """Whatever changes the counts of a batch does so twice."""
    from fdbqueue.operations.maintainers import batches

    def encode_counts(encode_counts: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda counts: encode_counts(counts.plus(counts))

    _change(batches, "encode_counts", encode_counts)


@_found_by("durable", *_EARLY_OR_NEVER)
def _follows_an_open_batch() -> None:
    """The job that follows a batch begins as soon as its present jobs have ended."""
    from fdbqueue.layout.batches import BatchCounts, encode_counts
    from fdbqueue.queue import batches

    def put_batch(put_batch: Callable[..., None]) -> Callable[..., None]:
        return lambda tr, layout, id, batch: put_batch(
            tr, layout, id, batch._replace(stage="closed")
        )

    def count_pushed(_: object) -> Callable[..., None]:
        return lambda tr, layout, position, id, n, queues: tr.add(
            layout.batch_counts + position, encode_counts(BatchCounts(pushed=n))
        )

    _change(batches, "put_batch", put_batch)
    _change(batches, "count_pushed", count_pushed)


@_found_by("durable", *_EARLY_OR_NEVER)
def _closed_at_once() -> None:
    """A batch is closed in one step: its last end and its closing may miss each other."""
    from fdbqueue.layout.batches import BatchCounts
    from fdbqueue.operations.maintainers import batches as within
    from fdbqueue.queue import batches

    def close(_: object) -> Callable[..., bool]:
        def at_once(tr: Any, layout: Any, now: int, position: bytes) -> bool:
            batch = within.get_batch(tr, layout, position)
            if batch is not None and batch.stage != "closed":
                counts = within.get_counts(tr.snapshot, layout, position)
                within._end_some(tr, layout, now, position, batch, counts, BatchCounts())
                within.put_batch(tr, layout, position, batch._replace(stage="closed"))
            return False

        return at_once

    _change(batches, "close", close)


@_found_by("durable", "before the jobs that it follows have ended", "does not end")
def _follows_at_once() -> None:
    """A job that is to run after others is ready from the beginning."""
    from fdbqueue.queue import batches

    _change(batches, "NEVER", lambda _: None)


@_found_by("durable", "it follows a job that has died", "jobs of its batch have ended")
def _cancelled_in_vain() -> None:
    """A job runs although its batch was cancelled, or one was not done before it."""
    from fdbqueue.queue import batches

    _change(batches, "is_cancelled", lambda _: lambda *args: False)


# Groups


@_found_by("groups", "they are stuck")
def _leases_that_never_end() -> None:
    """A sweep leaves the leases that are over."""
    from fdbqueue.operations.claims import ClaimedItems

    _change(ClaimedItems, "end_over", lambda _: lambda *args: None)


class _Patch:
    """What plants the bugs of groups, instead of a `pytest.MonkeyPatch`."""

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        _change(owner, name, lambda _: value)


_OF_GROUPS = (
    "turns-are-read-by-snapshot",
    "taking-conflicts-with-nothing",
    "pushes-conflict-with-nothing",
    "settings-may-change-meanwhile",
    "starts-conflict-with-nothing",
    "clocks-decide-what-is-over",
    "versions-decide-what-is-over",
    "two-pushes-take-the-last-place",
    "bounds-may-change-meanwhile",
    "nobody-hands-the-slot-over",
)
"""Bugs that need clients which meet, or a recovery. The simulation of groups finds the others."""

for _name in _OF_GROUPS:
    _bug = BUGS_OF_GROUPS[_name]
    MUTATIONS[_name] = Mutation(partial(_bug.plant, _Patch()), "groups", _bug.finds)
