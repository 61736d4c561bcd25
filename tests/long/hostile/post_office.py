"""Run a post office while its processes are killed, stopped and ended, and account for each job.

    python -m tests.long.hostile.post_office [--jobs 10000] [--batch 100000] [--seed N]
        [--cluster FILE] [--directory PATH]

Four processes of `fdbq work --app` carry parcels: jobs of six steps, among them two commits, a
sleep, a wait for a signal and another job. They also send the letters of a batch: some fail, hang,
come back, die, are cancelled while they run, or kill their process; the letters of a street are
sent one after the other. Commits lose their answers. About each second a process is killed, if 20
jobs have ended since the last kill; some get SIGTERM; some are stopped for longer than a lease. In
the end:

- The effects of commits are there exactly once, with the pushes and the signals of their
  transactions. The functions of steps were called, and by no run that began after their result was
  stored. All runs got the same result of a step.
- No job is stranded, and nothing that was stored for the waits and the batches is left.
- Each wait has ended with the signal or with its time-out, as the transaction that sent the signal
  has found it.
- Each letter has ended as its fate says, and took effect exactly once if it was sent. Its fate, or
  what happened to a process, explains each attempt that failed: no SIGTERM has cost one.
- The letters of a street took effect in the order of the pushes.
- The job at the end of the batch ran once, after all others, and was told how these have ended.

It has caught each of these bugs, planted on purpose: the token of a claim is not compared; a step
that is stored is not found; a commit runs in a transaction other than the one that stores its step;
a sleep ends early; a signal leaves the row of the wait; the job at the end of a batch is made ready
by the last but one end, or is pushed twice; a dead letter counts as done.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import QueueTooLargeToCheck
from fdbqueue.jobs.handle import Handle
from fdbqueue.operations.timers import DIED_ALONE, LEASE_OVER
from fdbqueue.types import FailedAttempt, ItemInfo, State
from tests.long.hostile.app_workers import Command, Processes
from tests.long.hostile.post_office_jobs import (
    REPORTS,
    STEPS,
    TIMEOUT,
    Fate,
    Letter,
    Parcel,
    Shipping,
    app,
    carry,
    letters,
    parcels,
    records,
    report,
    send,
)
from tests.support.keys import layout_of
from tests.support.scan import assert_adds_up
from tests.support.waiting import MAX_WAIT

PROCESSES = 4
LEASE = 3.0  # seconds
BACKLOG = 2_000
"""The number of unfinished jobs of a queue above which no others are pushed."""
_PUSH = 50  # parcels that one transaction pushes
_CANCELS = 0.1  # seconds between them
_CLOCK = 0.01  # seconds by which two looks at the clock may disagree
FATES = {
    Fate.SENT: 950,
    Fate.AGAIN: 10,
    Fate.SNOOZES: 5,
    Fate.TOLD: 4,
    Fate.HANGS: 4,
    Fate.KILLS: 1,
    Fate.DISCARDED: 10,
    Fate.DEAD: 10,
    Fate.WAITS: 3,
}
"""The fates of letters, and how often each is."""
STREETS = 12
ERRORS = {
    Fate.AGAIN: (2, ("OSError: the letter box is full",)),
    Fate.TOLD: (1, ("OSError: stopped", "TimedOut: ")),
    Fate.HANGS: (1, ("TimedOut: ",)),
    Fate.DEAD: (1_000, ("Dead: no such address",)),
    Fate.WAITS: (1_000, ("OSError: stopped", "TimedOut: ")),
}
"""How many attempts of a letter fail by its fate, and how their errors begin."""
_REPORTED = ("done", "dead", "cancelled", "left", "times")


@dataclass
class Run:
    """What one run of the job of a parcel has noted."""

    done: list[str] = field(default_factory=list)
    """The steps that were done before it began."""
    called: list[str] = field(default_factory=list)
    got: dict[str, Any] = field(default_factory=dict)
    got_at: dict[str, float] = field(default_factory=dict)


@dataclass
class Carried:
    """A parcel, its job, and what is known of it."""

    parcel: Parcel
    handle: Handle[str]
    runs: dict[str, Run] = field(default_factory=lambda: defaultdict(Run))
    stamps: set[str] = field(default_factory=set)
    """The ids of the jobs that it has run."""
    records: dict[str, bytes] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Return a number among its records."""
        return int.from_bytes(self.records.get(name, b""), "little")


@dataclass
class PostOffice:
    """The post office on a database, with queues and records whose names begin with a prefix."""

    url: str
    prefix: str
    seed: int
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, jobs: int, batch: int) -> list[str]:
        """Carry parcels and send letters; return what is not as it has to be."""
        self._rng = random.Random(self.seed)
        self._db = fdbqueue.open(self.url)
        app.bind(self._db)
        self._names = [parcels(self.prefix), letters(self.prefix), REPORTS]
        self._queues = [app.queue(name) for name in self._names]
        self._carried: list[Carried] = []
        self._seen: Any = None
        self._ended = 0
        options = ["--concurrency", "8", "--lease", f"{LEASE}s", "--grace", "500ms"]
        command = Command(
            "tests.long.hostile.post_office_jobs:app",
            self.url,
            self._names,
            self.directory,
            options,
        )
        self._processes = Processes(PROCESSES, command, LEASE, self._rng, self.counts)
        self._cancels_at = 0.0
        self._queues[1].set_group(self._db, None, concurrency=1)
        try:
            self._storm(jobs, batch)
            self._processes.end()
            self._read()
            return [*self._problems(batch)]
        finally:
            self.counts["processes"] = len(self._processes.all)
            self._processes.kill()
            for name in self._names:
                fdbqueue.admin.drop(self._db, name)
            self._db.clear_range_startswith(records(self.prefix).key())

    # The storm

    def _storm(self, jobs: int, n_letters: int) -> None:
        with app.batch(then=report, args=[self.prefix]) as batch:
            sent = 0
            while len(self._carried) < jobs or sent < n_letters:
                self._push(min(_PUSH, jobs - len(self._carried)))
                share = len(self._carried) / jobs if jobs else 1.0
                more = range(sent, max(sent, round(n_letters * share)))
                fates = self._rng.choices([*FATES], [*FATES.values()], k=len(more))
                for number, fate in zip(more, fates):
                    ttl = "1s" if self._rng.random() < 0.01 else None
                    street = f"street {number % STREETS}" if self._rng.random() < 0.2 else ""
                    pusher = send.using(queue=letters(self.prefix), ttl=ttl)
                    batch.push(pusher, Letter(number, self.prefix, fate, street))
                sent = more.stop
                while self._unfinished() > BACKLOG:
                    self._look()
        self._batch = batch
        while self._unfinished():
            self._look()

    def _push(self, n: int) -> None:
        """Push some parcels."""
        begin = len(self._carried)
        some = [self._parcel(number) for number in range(begin, begin + n)]
        pusher = carry.using(queue=parcels(self.prefix))
        handles = pusher.push_many([carry.bind(parcel) for parcel in some])
        self._carried += map(Carried, some, handles)

    def _parcel(self, number: int) -> Parcel:
        rng = self._rng
        shipping = rng.choices([*Shipping], [1, 3, 1])[0]
        work = rng.uniform(0.2, 1.5) if rng.random() < 0.3 else 0.0
        rest, timeout = rng.uniform(0.2, 2), rng.uniform(0.5, 3)
        delay = rng.uniform(0, rest + timeout + 1)
        is_stamped = rng.random() < 0.95
        return Parcel(number, self.prefix, work, rest, shipping, delay, timeout, is_stamped)

    def _look(self) -> None:
        """Do what is due, and read what jobs have written."""
        self._processes.disturb(self._ended)
        if time.monotonic() > self._cancels_at:
            self._cancel_letter()
            self._cancels_at = time.monotonic() + _CANCELS
        self._read()
        time.sleep(0.05)

    def _cancel_letter(self) -> None:
        """Cancel a letter, whether it runs or not."""
        queue = self._queues[1]
        state: State = self._rng.choice(["ready", "claimed", "delayed"])
        for info in queue.search(self._db, state=state, limit=1).items:
            self.counts["letters cancelled"] += queue.cancel(self._db, info.item)

    def _unfinished(self) -> int:
        stats = [queue.stats(self._db) for queue in self._queues]
        n = [each.unfinished for each in stats]
        self._ended = sum(each.total_pushed for each in stats) - sum(n)
        state = n, sum(len(each.runs) for each in self._carried)
        if state != self._seen:
            self._seen, self._seen_at = state, time.monotonic()
        assert time.monotonic() < self._seen_at + MAX_WAIT, f"{n} jobs neither begin nor end"
        return max(n)

    def _read(self) -> None:
        """Read the new lines of all ledgers."""
        for process in self._processes.all:
            for number, run_id, event, value, at in process.lines():
                if number < 0:
                    continue
                carried = self._carried[number]
                if event == "stamped":
                    carried.stamps.add(run_id)
                    continue
                run = carried.runs[run_id]
                if event == "began":
                    run.done = value
                elif event == "called":
                    run.called.append(value)
                else:
                    step, got = value
                    run.got[step], run.got_at[step] = got, at

    # The account

    def _problems(self, n_letters: int) -> Iterator[str]:
        for queue in self._queues:
            try:
                yield from fdbqueue.admin.check(self._db, queue).problems
            except QueueTooLargeToCheck:
                self.counts["queues too large to check"] += 1
            assert_adds_up(queue.stats(self._db))
        yield from self._account_letters(n_letters)
        yield from self._account_streets()
        infos = {info.item.id: info for info in self._items(self._queues[0], "done")}
        for each in self._carried:
            space = records(self.prefix)[each.parcel.number]
            for row in self._db.get_range_startswith(space.key()):
                (name,) = space.unpack(row.key)
                each.records[name] = row.value
            for problem in self._account(each, infos.get(each.handle.id)):
                yield f"{problem}\n    {each}"
        yield from self._left_behind()

    def _items(self, queue: PriorityQueue[Any], state: State) -> Iterator[ItemInfo]:
        after: Any = None
        while True:
            page = queue.search(self._db, state=state, after=after, limit=1_000)
            yield from page.items
            after = page.next
            if after is None:
                return

    def _account(self, each: Carried, info: ItemInfo | None) -> Iterator[str]:
        parcel = each.parcel
        if info is None or info.outcome != "done" or info.result != "delivered":
            yield f"the job is {info}"
            return
        self.counts["runs"] += len(each.runs)
        self.counts["attempts that failed"] += len(info.failed_attempts)
        stored = {step.name: step for step in self._queues[0].steps.all(self._db, each.handle.id)}
        if tuple(stored) != STEPS:
            yield f"it has the steps {[*stored]}"
            return
        is_shipped = parcel.shipping is not Shipping.NEVER
        expected = {"book": 1, "deliver": 1, "acknowledge": 1, "ship": int(is_shipped)}
        for event, times in expected.items():
            if each.number(event) != times:
                yield f"{event} has taken effect {each.number(event)} times"
        for step in ("weigh", "book", "deliver"):
            calls = sum(run.called.count(step) for run in each.runs.values())
            self.counts[f"calls of {step!r}"] += calls
            if not calls:
                yield f"{step} was never called"
        for run in each.runs.values():
            for step in {*run.done} & {*run.called}:
                yield f"{step} was called by a run that began after its result was stored"
            self.counts["runs that lost their job at a step"] += "lost" in run.got
            for step, value in run.got.items():
                if step != "lost" and value != stored[step].value:
                    yield f"{step} has returned {value}, and {stored[step].value} is stored"
        yield from self._account_times(each, stored)
        yield from self._account_wait(each, stored["shipped"].state)
        if len(each.stamps) != 1:
            yield f"it has run {len(each.stamps)} other jobs"
        expected_state = "done" if parcel.is_stamped else "failed"
        if stored["stamp"].state != expected_state:
            yield f"the other job is {stored['stamp'].state}"

    def _account_times(self, each: Carried, stored: dict[str, Any]) -> Iterator[str]:
        """No sleep is shorter than it has to be, and neither is a wait that times out."""
        for name, seconds in (("rest", each.parcel.rest), ("shipped", each.parcel.timeout)):
            step = stored[name]
            is_timed = name == "rest" or step.state == "timed out"
            first = min(run.got_at[name] for run in each.runs.values() if name in run.got_at)
            due = step.began_at.timestamp() + seconds
            if is_timed and first < due - _CLOCK:
                yield f"{name} has ended {due - first:.3f} seconds early"

    def _account_wait(self, each: Carried, state: str) -> Iterator[str]:
        """A wait ends with the signal, unless it has timed out before that was sent."""
        found, ended = each.records.get("found", b"never sent").decode(), each.number("ended")
        self.counts[f"waits {state}, signal found: {found}"] += 1
        if (ended == 1) != (found == "waiting"):
            yield f"the signal has ended {ended} waits, and found: {found}"
        expected = "done" if found in ("nothing", "waiting") else "timed out"
        if state != expected:
            yield f"the wait is {state}, and the signal found: {found}"

    def _account_letters(self, n: int) -> Iterator[str]:
        queue = self._queues[1]
        space = records(self.prefix)
        outcomes: Counter[str] = Counter()
        for state in ("done", "dead"):
            for info in self._items(queue, state):
                outcome = info.outcome or "dead"
                if outcome != "cancelled" or info.claimed_at:  # else it counts as removed
                    outcomes[outcome] += 1
                assert info.job is not None
                fields = info.job.args[0]
                letter = Letter(**fields | {"fate": Fate(fields["fate"])})
                expected = {Fate.DISCARDED: "discarded", Fate.DEAD: "dead"}.get(letter.fate, "done")
                if outcome not in (expected, "cancelled"):
                    yield f"{letter} is {outcome}"
                times = self._number(space["letters"][letter.number])
                # What a letter does after it was cancelled counts, unless it ran no more.
                if times > 1 or (times != (outcome == "done") and outcome != "cancelled"):
                    yield f"{letter} is {outcome}, and was sent {times} times"
                for problem in self._account_attempts(letter, outcome, info):
                    yield f"{letter}, {outcome}: {problem}\n    {info}"
        stats = queue.stats(self._db)
        outcomes["cancelled"] += stats.total_removed + stats.total_expired
        done = outcomes["done"] + outcomes["discarded"]
        expected_counts = [done, outcomes["dead"], outcomes["cancelled"], 0, 1]
        reported = [self._number(space["report"][name]) for name in _REPORTED]
        self.counts.update(
            {f"letters {name}": count for name, count in zip(_REPORTED[:3], reported)}
        )
        if reported != expected_counts:
            yield f"the batch reports {reported} as {_REPORTED}, not {expected_counts}"
        progress = self._batch.progress()
        if [progress.pushed, progress.done, progress.dead, progress.cancelled] != [
            n,
            *reported[:3],
        ]:
            yield f"{n} letters, and {progress}"
        if sum(reported[:3]) != n:
            yield f"{n} letters, and {reported[:3]} have ended"

    def _number(self, space: Any) -> int:
        """Return a number among the records."""
        return int.from_bytes(self._db[space.key()] or b"", "little")

    def _account_attempts(self, letter: Letter, outcome: str, info: ItemInfo) -> Iterator[str]:
        """Yield the attempts that neither its fate nor what happened to processes explains."""
        most, errors = ERRORS.get(letter.fate, (0, ()))
        numbers = [attempt.number for attempt in info.failed_attempts]
        ends = {*range(1, info.attempts + (outcome == "dead"))}, {*range(1, info.attempts + 1)}
        if len(numbers) != len({*numbers}) or {*numbers} not in ends[: 1 + (outcome != "done")]:
            yield f"its failed attempts are {numbers}, and {info.attempts} have begun"
        for attempt in info.failed_attempts:
            error = attempt.error or ""
            if error in (LEASE_OVER, DIED_ALONE):
                is_explained = self._was_hit(attempt)
                self.counts["attempts that lost their lease"] += 1
            elif error.startswith("TimedOut: "):  # as any may on a slow machine
                assert attempt.started_at is not None
                seconds = (attempt.ended_at - attempt.started_at).total_seconds()
                is_explained = seconds > TIMEOUT - _CLOCK
            else:
                is_explained = attempt.number <= most and error.startswith(errors)
            if not is_explained:
                yield f"attempt {attempt.number} failed: {error}"

    def _was_hit(self, attempt: FailedAttempt) -> bool:
        """Return whether its process was killed during an attempt, or any process was stopped."""
        assert attempt.started_at is not None
        began, ended = attempt.started_at.timestamp(), attempt.ended_at.timestamp()
        process = next(each for each in self._processes.all if each.name == attempt.client)
        if process.killed_at <= ended + _CLOCK or " lost, attempt" in process.output.read_text():
            return True
        return any(start <= ended and began <= end for start, end in self._processes.stops)

    def _account_streets(self) -> Iterator[str]:
        for number in range(STREETS):
            space = records(self.prefix)["streets"][f"street {number}"]
            rows = self._db.get_range_startswith(space.key())
            got = [int(row.value) for row in rows]
            self.counts["letters of streets"] += len(got)
            if got != sorted({*got}):
                yield f"the letters of a street were sent in another order: {got}"

    def _left_behind(self) -> Iterator[str]:
        """Name the rows that no job needs any more."""
        for queue in self._queues[:2]:
            layout = layout_of(queue)
            unneeded = {"waits": layout.signal_waits, "delayed": layout.delayed}
            unneeded |= {"batches": layout.batches, "counts of batches": layout.batch_counts}
            for name, prefix in unneeded.items():
                rows = [*self._db.get_range(*layout.range_of(prefix), limit=1_000)]
                if rows:
                    yield f"{len(rows)} rows of {name} are left"
        stats = self._queues[0].stats(self._db)
        self.counts["jobs of parcels"] = stats.total_pushed


def main() -> int:
    parser = argparse.ArgumentParser(description="A post office whose processes are killed.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--cluster", type=Path, help="a cluster file, instead of embedded")
    parser.add_argument("--directory", type=Path, help="where the ledgers stay")
    given = parser.parse_args()
    print(f"--seed={given.seed}", flush=True)
    began = time.monotonic()
    with ExitStack() as stack:
        directory = given.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="post-")))
        directory.mkdir(parents=True, exist_ok=True)
        directory = directory.resolve()  # the processes have another working directory
        url = str(given.cluster) if given.cluster else f"embedded:{directory / 'db'}"
        office = PostOffice(url, f"post-office-{given.seed}", given.seed, directory)
        problems = office.run(given.jobs, given.batch)
    for name, number in sorted(office.counts.items()):
        print(f"{name:50}{number:>10,}")
    print(*problems[:20], sep="\n")
    print(f"{len(problems)} problems, {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
