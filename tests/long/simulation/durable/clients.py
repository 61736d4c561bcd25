"""Clients that add schedules, run jobs with steps, send signals and fill batches, at random.

A client is one process. Whatever it changes, it does in transactions that write entries to the log;
those of the library's own calls included. It may be killed between two calls of the database, and
its clock may differ from those of others.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.database.clock import Since, milliseconds
from fdbqueue.errors import LeaseLost, QueueNotFound, error_classes
from fdbqueue.jobs import Context, Dead
from fdbqueue.layout.jobs import BatchClosed, JobCancelled, StoredSchedule, StoredStep
from fdbqueue.operations.jobs.schedules import PUNCTUAL
from fdbqueue.queue.base import end_cancelled, store_of
from fdbqueue.queue.batches import (
    Batches,
    Members,
    StoredAlert,
    encode_alert,
    push_after,
    was_cancelled,
)
from fdbqueue.queue.steps import ClaimedSteps, HeldLease, Suspended
from fdbqueue.types import Claim, ItemInfo, OnDead, State, Transaction
from tests.long.simulation.durable.programs import (
    SHARED_KEYS,
    SIGNAL,
    ChildJob,
    Interpreter,
    program,
    undo,
)
from tests.long.simulation.durable.ticks import SCHEDULES
from tests.long.simulation.log import Log

ACTS = {
    **{"work": 20, "push": 3, "signal": 8, "sweep": 2, "schedule": 6, "batch": 8},
    **{"follow": 2, "cancel": 4},
}
_RECEIPTS, _LOG = "receipts", "log"
_KEPT = 100_000
_KEPT_OUT = {"batch_of", "schedule", "args"}
"""Marks of jobs that nobody cancels: those that follow a batch, those of a schedule, and alerts."""
_ALERT = encode_alert(StoredAlert("", "alert"))
# Time makes items ready, perhaps between two lists: so the ready ones come last.
_UNFINISHED: tuple[State, ...] = ("delayed", "claimed", "ready")


@dataclass
class Storm:
    """What all clients of one simulation share.

    Attributes:
        space: Where everything but the queue is stored.
        scale: The length of a short sleep, in seconds.
        leases: The lengths of leases, in seconds; the longest one is the last.
        intervals: The seconds between two ticks. No two clocks differ by a thousand ticks.
        shards: The number of shards of the queue.
        pushed: The names of all jobs, and whether their pushes have returned.
        batches: The batches whose ids a client has learned, and whether their jobs cancel them.
        seen: What steps have returned, by the id of the item and the name of the step.
        lost: How many attempts have lost their lease.
    """

    space: Subspace
    scale: float
    leases: tuple[float, ...]
    intervals: tuple[int, ...] = (1, 2)
    shards: int = 1
    pushed: dict[str, bool] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    seen: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    lost: int = 0

    @property
    def log(self) -> Log:
        """The log."""
        return Log(self.space[_LOG])

    def queue(self) -> fdbqueue.PriorityQueue[Any]:
        """Return the queue, as a new process opens it."""
        return fdbqueue.PriorityQueue(self._subspace)

    def begin(self, db: Any) -> None:
        """Create the queue."""
        self._name = f"durable {self.space.key().hex()}"
        with suppress(QueueNotFound):
            fdbqueue.admin.drop(db, self._name)
        queue = fdbqueue.PriorityQueue.named(db, self._name)
        self._subspace = queue.subspace
        queue.configure(db, keep=_KEPT, shards=self.shards)

    def carry(self, db: Any) -> None:
        """Back the queue up, drop it, and restore it, while no client runs."""
        file = io.BytesIO()
        fdbqueue.admin.backup(db, file, [self._name])
        fdbqueue.admin.drop(db, self._name)
        fdbqueue.admin.restore(db, file)
        self._subspace = fdbqueue.PriorityQueue.named(db, self._name).subspace


class _LoggedStore:
    """The store of a queue whose changes also write an entry to the log.

    The entry has the facts that are set before a change, and what `results` adds for its result; or
    the step at which a job learns that it is cancelled.
    """

    def __init__(self, store: Any, log: Log, owner: dict[str, Any]) -> None:
        self._store = store
        self._log = log
        self._owner = owner
        self.facts: dict[str, Any] = {}
        self.result: Callable[[Any], dict[str, Any]] = lambda _: {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def change(self, db: Any, body: Callable[..., Any], *options: Any) -> Any:
        """Run a change exactly once, with its entry."""

        def logged(tr: Transaction, now: int) -> Any:
            result = body(tr, now=now)
            self._log.note(tr, "steps", now=now, **self.facts, **self.result(result))
            return result

        return self._store.change(db, logged, *options)

    def extend(self, db: Any, extension: Any, *, cancelled_step: str) -> None:
        """Store the step at which a job learns that it is cancelled."""

        def told(tr: Transaction, now: int) -> None:
            self._store.claimed.extend(tr, now, extension, cancelled_step=cancelled_step)
            self._log.note(tr, "told", step=cancelled_step, **self._owner)

        self._store.change(db, told)


def _shown(name: str, step: StoredStep) -> list[Any]:
    value = step.value.decode() if step.state == "done" else ""
    return [name, step.kind, step.state, value, step.due, step.key]


class LoggedLease(HeldLease):
    """A lease that is not extended, and whose steps write entries to the log."""

    def __init__(self, log: Log, store: Any, db: Any, claim: Claim, *fields: Any) -> None:
        self.owner = {"item": claim.item.id, "token": claim.token.hex()}
        self.logged = _LoggedStore(store, log, self.owner)
        super().__init__(self.logged, db, claim, *fields)

    def extend(self, **fields: Any) -> None:
        """Store the step at which a job learns that it is cancelled; otherwise do nothing."""
        if fields:
            super().extend(**fields)

    def steps(self, is_told: Callable[[], bool]) -> ClaimedSteps:
        """Return the steps of the job."""
        return LoggedSteps(self, is_told)


class LoggedSteps(ClaimedSteps):
    """The steps of a claimed job, each change of which writes an entry to the log."""

    def __init__(self, lease: LoggedLease, is_told: Callable[[], bool]) -> None:
        super().__init__(lease, is_told)
        self._logged = lease.logged
        self._owner = lease.owner

    def _note(self, result: Callable[[Any], dict[str, Any]], **facts: Any) -> None:
        before = [_shown(*each) for each in self._unstored.items()]
        self._logged.facts = {**self._owner, "before": before, **facts}
        self._logged.result = result

    def store(self, name: str, begun: StoredStep, value: bytes) -> StoredStep:
        """Store the result of a step."""
        self._note(lambda step: {"steps": [_shown(name, step)]}, call="store")
        return super().store(name, begun, value)

    def commit(self, name: str, body: Any, begun: StoredStep) -> StoredStep:
        """Run a function in the transaction that stores the step."""
        self._note(lambda step: {"steps": [_shown(name, step)]}, call="commit")
        return super().commit(name, body, begun)

    def suspend(self, name: str, step: StoredStep) -> NoReturn:
        """Store a step that waits."""
        self._note(lambda _: {"steps": [_shown(name, step)], "suspended": True}, call="suspend")
        super().suspend(name, step)

    def wait(self, name: str, step: StoredStep, signal: str) -> StoredStep:
        """End a wait for a signal, or suspend the job."""
        self._note(
            lambda ended: {"steps": [_shown(name, ended or step)], "suspended": ended is None},
            call="wait",
        )
        return super().wait(name, step, signal)

    def run(self, names: list[str], batch: bytes, push: Any) -> Any:
        """Return the steps that run other jobs, or suspend the job."""
        self._note(
            lambda ended: {
                "steps": [_shown(*each) for each in (ended or {}).items()],
                "waiting": names,
                "suspended": ended is None,
            },
            call="run",
        )
        return super().run(names, batch, push)


class _Attempt:
    """What an attempt of a job tells of its steps."""

    def __init__(self, client: Client, claim: Claim) -> None:
        self._client = client
        self._owner = {"item": claim.item.id, "token": claim.token.hex()}

    def begin(self, step: str, run: str) -> None:
        """Note that the function of a step begins."""
        self._client.change(lambda tr: self._client.log.note(tr, "run", step=step, **self._owner))
        self._client.dawdle()

    def effect(self, tr: Transaction, step: str, run: str) -> None:
        """Make the effect of a commit."""
        self._client.log.note(tr, "effect", step=step, run=run, **self._owner)

    def saw(self, step: str, result: object) -> None:
        """Note what a step has returned."""
        self._client.storm.seen.setdefault((self._owner["item"], step), []).append(result)


class Client:
    """A process.

    Args:
        storm: What all clients share.
        db: A database.
        name: Its name, which no other client has.
        chance: The source of its randomness.
        pause: `pause(seconds)` lets other clients go on for some time.
        is_calm: Whether no job fails.
    """

    def __init__(
        self,
        storm: Storm,
        db: Any,
        name: str,
        chance: random.Random,
        pause: Callable[[float], object],
        is_calm: bool = False,
    ) -> None:
        self.storm = storm
        self.log = storm.log
        self._db = db
        self._name = name
        self._chance = chance
        self._pause = pause
        self._is_calm = is_calm
        self._n = 0
        self._queue = storm.queue()
        self._batches = Batches(self._queue)

    def change(self, body: Callable[[Transaction], Any]) -> Any:
        """Run a function in a transaction that takes effect exactly once."""
        return fdbqueue.transactional(receipts=self.storm.space[_RECEIPTS])(
            lambda tr: body(tr)  # which has a parameter of this name
        )(self._db)

    def act(self) -> None:
        """Do something."""
        (act,) = self._chance.choices([*ACTS], [*ACTS.values()])
        try:
            getattr(self, act)()
        except error_classes() as error:
            if error.code not in (1021, 1031):
                raise
            # The database could not be reached. What was claimed returns when its lease is over.

    def dawdle(self) -> None:
        """Take longer than a lease, now and then, in the function of a step."""
        if not self._is_calm and self._chance.random() < 0.25:
            self._pause(2 * self._chance.choice(self.storm.leases[:-1]))

    # Jobs

    def _payload(self, **facts: Any) -> dict[str, Any]:
        self._n += 1
        job = f"{self._name}-{self._n}"
        self.storm.pushed[job] = False
        programs = {
            "program": program(self._chance, self.storm.scale),
            "undo": undo(self._chance, self.storm.scale),
        }
        return {"job": job, **programs, **facts}

    def _know(self, payloads: list[dict[str, Any]]) -> None:
        self.storm.pushed.update((each["job"], True) for each in payloads)

    def push(self) -> None:
        """Push jobs."""
        facts = self._chance.choice([{}, {"alerts": True}])
        payloads = [self._payload(**facts) for _ in range(self._chance.choice([1, 1, 3]))]
        delay = self._chance.choice([0, 0, self.storm.scale])
        arguments = {"values": payloads, "priority": 0, "delay": delay}
        new = Members(self._queue, arguments, _ALERT if facts else b"")
        new.push(self._db, new.items())
        self._know(payloads)

    def work(self) -> bool:
        """Claim a job and run it; return false if there is none."""
        lease = self._chance.choice(self.storm.leases)
        within = self._chance.choice([1, 8])

        def take(tr: Transaction) -> Claim | None:
            claim: Claim | None = self._queue.claim(tr, lease=lease, within=within)
            if claim is not None:
                item = claim.item
                tick = None if item.tick is None else round(1000 * item.tick.timestamp())
                facts = {"attempt": claim.attempt, "tick": tick, "payload": _shown_payload(item)}
                token = claim.token.hex()
                self.log.note(tr, "claim", item=item.id, token=token, now=milliseconds(), **facts)
            return claim

        claim = self.change(take)
        if claim is None:
            return False
        if self._chance.random() < 0.05 and not self._is_calm:
            return True  # the process has forgotten it
        try:
            self._run(claim, lease)
        except LeaseLost:
            self.storm.lost += 1
        except Suspended:
            pass
        return True

    def _run(self, claim: Claim, lease: float) -> None:
        """Run a job and end its attempt."""
        payload = claim.item.value
        held = LoggedLease(self.log, store_of(self._queue), self._db, claim, lease, Since())
        context = Context(held, None)
        attempt = _Attempt(self, claim)
        jobs = ChildJob(self._queue)
        interpreter = Interpreter(
            context, jobs, attempt, self._chance, self.storm.scale, self._is_calm
        )
        try:
            if was_cancelled(self._queue, self._db, claim.item):
                raise JobCancelled
            program = payload.get("program") or [["commit", "alert"]]
            interpreter.perform(program, payload.get("undo", []))
            if context.has_learned:
                raise JobCancelled
        except JobCancelled:
            self._end(claim, "cancelled", lambda tr: self._cancel_claimed(tr, claim))
        except (Dead, ValueError) as error:
            is_dead = isinstance(error, Dead)
            nack = partial(self._queue.nack, claim=claim, delay=self.storm.scale, dead=is_dead)
            self._end(claim, "dead" if is_dead else "failed", nack)
        else:
            result = self._chance.getrandbits(48)
            self._end(
                claim, "done", partial(self._queue.ack, claim=claim, result=result), result=result
            )

    def _cancel_claimed(self, tr: Transaction, claim: Claim) -> None:
        end_cancelled(self._queue, tr, claim, "")

    def _end(
        self, claim: Claim, how: str, end: Callable[[Transaction], object], **facts: Any
    ) -> None:
        def body(tr: Transaction) -> None:
            end(tr)
            token = claim.token.hex()
            self.log.note(tr, "end", item=claim.item.id, token=token, how=how, **facts)

        self.change(body)

    def cancel(self) -> None:
        """Cancel any job, perhaps with those that it runs."""
        others = self._unfinished()
        if not others:
            return
        item = self._chance.choice(others).item
        options = {name: self._chance.random() < 0.3 for name in ("force", "children")}

        def body(tr: Transaction) -> None:
            told = self._with_children(tr, item.id) if options["children"] else [item.id]
            infos = [self._queue.get(tr, id) for id in told]
            if self._queue.cancel(tr, item, **options):
                for info in filter(None, infos):
                    facts = {"state": info.state, "payload": _shown_payload(info.item), **options}
                    self.log.note(tr, "cancel", item=info.id, **facts)

        self.change(body)

    def _with_children(self, tr: Transaction, id: str) -> list[str]:
        """Return the ids of the jobs that a job runs, one in the other, and its own."""
        steps = self._queue.steps.all(tr, id)
        runs = [step.key for step in steps if (step.kind, step.state) == ("run", "waiting")]
        return [*chain.from_iterable(self._with_children(tr, each) for each in runs), id]

    def _all(self) -> list[ItemInfo]:
        """Return all jobs that have not ended."""
        return [info for state in _UNFINISHED for info in self._queue.items(self._db, state=state)]

    def _unfinished(self) -> list[ItemInfo]:
        """Return the jobs that have not ended and may be cancelled."""
        return [info for info in self._all() if not _KEPT_OUT & info.item.value.keys()]

    def follow(self) -> None:
        """Push a job that is to run after others."""
        others = self._unfinished()
        if not others:
            return
        ids = [info.id for info in self._chance.sample(others, min(2, len(others)))]
        on_dead: OnDead = self._chance.choice(["continue", "cancel"])
        payload = self._payload(after=ids, on_dead=on_dead)
        new = Members(self._queue, {"values": [payload], "priority": 0})
        push_after(self._db, new, [(self._queue, id) for id in ids], on_dead)
        self._know([payload])

    def sweep(self) -> None:
        """Do what timers say, as every client that takes items."""
        store_of(self._queue).sweeper.sweep(self._db)

    # Signals

    def signal(self, key: str | None = None) -> None:
        """Send a signal, with any key or this one."""
        chosen = key or self._chance.choice([*SHARED_KEYS, *self._waiting()])
        keep = self.storm.scale * self._chance.choice([1, 10, 100])
        value = f"{self._name} {self._chance.getrandbits(32)}"

        def body(tr: Transaction) -> None:
            begun = milliseconds()
            n = self._queue.steps.signal(tr, SIGNAL, key=chosen, value=value, keep=keep)
            times = {"begun": begun, "ended": milliseconds(), "keep": round(1000 * keep)}
            self.log.note(tr, "signal", key=chosen, value=value, n=n, **times)

        self.change(body)

    def _waiting(self) -> list[str]:
        """Return the ids of some jobs that may wait."""
        infos = self._unfinished()
        return [info.id for info in self._chance.sample(infos, min(5, len(infos)))]

    # Schedules

    def schedule(self) -> None:
        """Add, change, pause, resume or run a schedule."""
        name = self._chance.choice([*SCHEDULES])
        known = self._queue.schedules.get(self._db, name)
        if known is None:
            acts = ["add"]
        elif known.paused:
            acts = ["resume", "resume", "resume", "add", "run"]
        else:
            acts = ["pause", "pause", "resume", "add", "run"]
        self.change_schedule(name, self._chance.choice(acts))

    def change_schedule(self, name: str, act: str) -> None:
        """Make a change of a schedule, and log its state before and after it."""
        schedules, known = self._queue.schedules, store_of(self._queue).schedules
        every, options = (
            self._chance.choice(choices) for choices in (self.storm.intervals, SCHEDULES[name])
        )
        payload = {"job": f"tick {name}", "program": [["commit", "tick"]], "schedule": name}

        def body(tr: Transaction) -> None:
            before, begun = known.get(tr, name), milliseconds()
            pushed = None
            if act == "add":
                schedules.add(tr, name, payload, 0, every=every, **options)
            elif act == "run":
                pushed = schedules.run_now(tr, name)
            else:
                getattr(schedules, act)(tr, name)
            after, ended = known.get(tr, name), milliseconds()
            states = {"before": _state(before), "after": _state(after)}
            times = {"begun": begun, "ended": ended}
            self.log.note(tr, "schedule", name=name, act=act, item=pushed, **states, **times)

        self.change(body)

    # Batches

    def batch(self) -> None:
        """Begin a batch, add jobs to one, or close it."""
        act = self._chance.choice(["open", "add", "add", "close", "close"])
        if act == "open" or not self.storm.batches:
            payload = self._payload(batch_of="", kwargs={})
            payload["program"] = [["commit", "report"]]
            payload["batch_of"] = payload["job"]
            on_dead = self._chance.choice(["continue", "continue", "cancel"])
            item = self._batches.open(self._db, payload, 0, on_dead)
            self._know([payload])
            self.storm.batches[item.id] = on_dead
            return
        id = [*self.storm.batches][-1]  # of all clients, so that they race
        if act == "close":
            self._batches.close(self._db, id)
            return
        on_dead = self.storm.batches[id]
        payloads = [self._payload(batch=id) for _ in range(self._chance.choice([1, 2, 4]))]
        members = [Members(self._queue, {"values": payloads, "priority": 0})]
        try:
            self._batches.add(self._db, id, on_dead, members)
        except BatchClosed:
            self.storm.batches.pop(id, None)  # unless another client has
        else:
            self._know(payloads)

    # The end

    def drain(self) -> list[str]:
        """End everything, when no other client runs any more; return what does not end."""
        if stuck := self._look_at_schedules():
            return stuck
        for name in SCHEDULES:
            self.change_schedule(name, "pause")
        for _ in range(60):
            while self.work():
                pass
            left = self._all()
            if not left:
                return []
            for info in left:
                if "batch_of" in info.item.value:
                    self._batches.close(self._db, info.id)
                for step in self._queue.steps.all(self._db, info.item):
                    if step.kind == "wait" and step.state == "waiting":
                        self.signal(step.key)
            self._pause(10 * self.storm.scale)
        return [f"it does not end: {info}" for info in left]

    def _look_at_schedules(self) -> list[str]:
        """Return which schedules do not go on, those that are paused after they are resumed."""
        before = self._queue.schedules.all(self._db)
        for schedule in before:
            self.change_schedule(schedule.name, "resume")
        for _ in range(20):
            while self.work():
                pass
            after = self._queue.schedules.all(self._db)
            stuck = [new for old, new in zip(before, after) if new.pushed == old.pushed]
            if not stuck:
                break
            # A client that came once in each interval, always a minute after the tick, would push
            # none of a schedule with `missed="skip"`.
            self._pause(min(max(self.storm.intervals), PUNCTUAL / 2000))
        return [f"it does not go on: {schedule}" for schedule in stuck]


def _shown_payload(item: Any) -> dict[str, Any]:
    """Return the value of an item without its program."""
    return {name: value for name, value in item.value.items() if name != "program"}


def _state(stored: StoredSchedule | None) -> dict[str, Any] | None:
    """Return the state of a schedule for the log."""
    if stored is None:
        return None
    facts = {"every": stored.definition.timing.every, **stored._asdict()}
    return {name: facts[name] for name in ("every", "next", "last", "paused", "pushed")}
