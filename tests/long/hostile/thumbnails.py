"""Run a thumbnail service while its processes are killed and stopped, and account for each job.

    python -m tests.long.hostile.thumbnails [--engine embedded|cluster] [--jobs 2000] [--kills 100]
        [--stops 20] [--seed N] [--directory PATH]

Four processes of `fdbq work --app` do jobs of three priorities on two queues: they draw JPEGs
small. Some jobs hang, some come back, some are cancelled while they run, some kill their process,
and commits lose their answers. In the end each picture was written at most once, by the attempt
that ended its job. Each job is in one final state, which the plan of the job and what happened to
its workers explain. No slot is lost: neither of a worker nor of the limit of a queue.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import fdbqueue
from fdbqueue.jobs import Discard
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.job import Job
from fdbqueue.operations.timers import DIED_ALONE, LEASE_OVER
from fdbqueue.types import FailedAttempt, ItemInfo
from tests.long.hostile import thumbnail_jobs
from tests.long.hostile.app_workers import Command, Process, Processes, run_directory, show_run
from tests.long.hostile.thumbnail_jobs import ATTEMPTS, Act, Picture, app, records
from tests.support.cluster import start_or_find_cluster
from tests.support.scan import assert_adds_up
from tests.support.waiting import MAX_WAIT, wait_until

PROCESSES = 4
CONCURRENCY = 4  # jobs at a time of each queue in a process
LIMIT = 12  # jobs at a time of each queue in all processes
LEASE = 3.0  # seconds
PRIORITIES = (0, 1, 2)
BACKLOG = 150
"""The number of unfinished jobs above which no others are pushed."""
_PUSH = 20  # jobs of one step
_CLOCK = 0.01  # seconds by which two looks at the clock may disagree

PLANS: dict[str, list[tuple[int, list[Act]]]] = {
    "thumbnail": [
        (40, [Act.DRAW]),
        (6, [Act.FAIL, Act.DRAW]),
        (2, [Act.FAIL, Act.AGAIN, Act.FAIL, Act.DRAW]),
        (1, [Act.FAIL]),
        (3, [Act.SNOOZE, Act.DRAW]),
        (3, [Act.HANG, Act.DRAW]),
        (3, [Act.LATE, Act.DRAW]),
        (2, [Act.SLOW, Act.DRAW]),
        (2, [Act.TARDY]),
        (2, [Act.DIE]),
        (1, [Act.BUG]),
        (1, [Act.KILL, Act.DRAW]),
    ],
    "patient": [(3, [Act.WAIT]), (3, [Act.FINISH])],
    "coroutine": [
        (12, [Act.DRAW]),
        (2, [Act.FAIL, Act.DRAW]),
        (2, [Act.HANG, Act.DRAW]),
        (1, [Act.LATE, Act.DRAW]),
        (1, [Act.BLOCK, Act.DRAW]),
        (1, [Act.SLOW, Act.DRAW]),
        (1, [Act.TARDY, Act.DRAW]),
        (1, [Act.DIE]),
    ],
    "transacted": [(12, [Act.DRAW]), (1, [Act.FAIL]), (1, [Act.DIE])],
}
"""The jobs by their names in `thumbnail_jobs`: what their attempts do, and how often each is."""

BROKEN = 0.04  # share of the files that are no JPEGs
CANCELLED = 0.04  # share of the jobs that are cancelled at any time

ERRORS = {
    Act.FAIL: r"OSError: the scanner is busy",
    Act.AGAIN: r"RetryIn: the scanner is warming up",
    Act.SLOW: r"OSError: stopped|TimedOut: .*",
    Act.TARDY: r"TimedOut: .*",
    Act.HANG: r"TimedOut: .*",
    Act.LATE: r"TimedOut: .*",
    Act.BLOCK: r"TimedOut: .*",
    Act.WAIT: r"OSError: stopped",
    Act.DIE: r"Dead: there is no such scanner",
    Act.BUG: r"TypeError: a mistake in the program",
}
"""The errors of attempts that fail by what they do."""

DRAWS = frozenset({Act.DRAW, Act.SNOOZE, Act.TARDY, Act.FINISH})


class Line(NamedTuple):
    """A line of a ledger."""

    attempt: int
    event: str
    time: float
    client: str


@dataclass
class Pushed:
    """A job that was pushed, and what is known of it."""

    picture: Picture
    job: str
    handle: Handle[Any]
    is_broken: bool
    lines: list[Line] = field(default_factory=list)
    cancels: list[tuple[float, bool]] = field(default_factory=list)
    """When it was cancelled, and whether that had an effect."""

    @property
    def was_cancelled(self) -> bool:
        return any(effect for _, effect in self.cancels)


@dataclass
class Records:
    """What the jobs have written about a picture."""

    written: int = 0
    indexed: int = 0
    attempt: int = -1
    digest: bytes = b""


@dataclass
class Service:
    """The service on a database, with queues and records whose names begin with a prefix."""

    url: str
    prefix: str
    seed: int
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    told: list[float] = field(default_factory=list)
    """The seconds from each cancellation until the job was told."""

    def run(self, jobs: int, kills: int, stops: int) -> list[str]:
        """Push jobs, kill and stop processes meanwhile; return what cannot be explained."""
        self._rng = random.Random(self.seed)
        self._db = fdbqueue.open(self.url)
        app.bind(self._db)
        self._queues = [f"{self.prefix}-small", f"{self.prefix}-large"]
        self._plans = self._each_plan()
        self._pushed: list[Pushed] = []
        self._seen = (0, 0)
        self._stops: list[tuple[float, float]] = []
        self._met: dict[int, Counter[str]] = defaultdict(Counter)
        for name in self._queues:
            app.queue(name).configure(self._db, concurrency=LIMIT)
        options = ["--concurrency", f"{CONCURRENCY}", "--lease", f"{LEASE}s"]
        options += ["--grace", f"{thumbnail_jobs.GRACE}s"]
        command = Command(
            "tests.long.hostile.thumbnail_jobs:app", self.url, self._queues, self.directory, options
        )
        self._processes = Processes(PROCESSES, command)
        try:
            self._storm(jobs, kills, stops)
            for number, name in enumerate(self._queues, -len(self._queues)):
                self._meet(number, name)
            self._processes.stop()
            self._read_ledgers()
            self._fill_limits()
            return [*self._problems()]
        finally:
            self.counts["processes started again"] = self._processes.restarts
            self._processes.kill()
            self._remove()

    # The storm

    def _storm(self, jobs: int, kills: int, stops: int) -> None:
        while len(self._pushed) < jobs:
            self._push(min(_PUSH, jobs - len(self._pushed)))
            share = len(self._pushed) / jobs
            if self.counts["kills"] < kills * share:
                self._rng.choice(self._processes.running()).kill()
                self.counts["kills"] += 1
            if self.counts["stops"] < stops * share:
                self._stop_for_a_while(self._rng.choice(self._processes.running()))
            while self._unfinished() > BACKLOG:
                self._look()
        while self._unfinished():
            self._look()

    def _push(self, n: int) -> None:
        """Push some jobs of one function to one queue with one priority."""
        rng = self._rng
        queue, priority = rng.choice(self._queues), rng.choice(PRIORITIES)
        chosen: dict[str, list[list[Act]]] = defaultdict(list)
        for name, plan in islice(self._plans, n):
            chosen[name].append(plan)
        for name, acts in chosen.items():
            broken = [rng.random() < BROKEN for _ in acts]
            begin = len(self._pushed)
            pictures = [
                Picture(number, self._draw(number, is_broken), queue, plan)
                for number, (plan, is_broken) in enumerate(zip(acts, broken), begin)
            ]
            job: Job[Any, Any, Any, Any] = getattr(thumbnail_jobs, name)
            pusher = job.using(queue=queue, priority=priority)
            handles = pusher.push_many([job.bind(picture) for picture in pictures])
            self._pushed += [
                Pushed(picture, name, handle, is_broken)
                for picture, handle, is_broken in zip(pictures, handles, broken)
            ]

    def _each_plan(self) -> Iterator[tuple[str, list[Act]]]:
        """Yield each plan once, with the name of its job, and then any of them at random."""
        plans = [(name, plan) for name, plans in PLANS.items() for _, plan in plans]
        weights = [weight for plans in PLANS.values() for weight, _ in plans]
        yield from self._rng.sample(plans, len(plans))
        while True:
            yield self._rng.choices(plans, weights)[0]

    def _draw(self, number: int, is_broken: bool) -> Path:
        file = self.directory / f"{number}.jpeg"
        pixels = self._rng.randbytes(12 * 9 * 3)
        Image.frombytes("RGB", (12, 9), pixels).resize((160, 120)).save(file)
        if is_broken:
            file.write_bytes(file.read_bytes()[:200])
        return file

    def _stop_for_a_while(self, process: Process) -> None:
        """Stop a process for longer than a lease."""
        began = time.time()
        process.send(signal.SIGSTOP)
        time.sleep(LEASE * self._rng.uniform(0.5, 2))
        process.send(signal.SIGCONT)
        self._stops.append((began, time.time()))
        self.counts["stops"] += 1

    def _unfinished(self) -> int:
        n = sum(app.queue(name).stats(self._db).unfinished for name in self._queues)
        state = n, sum(len(each.lines) for each in self._pushed)
        if state != self._seen:
            self._seen, self._seen_at = state, time.monotonic()
        assert time.monotonic() < self._seen_at + MAX_WAIT, f"{n} jobs neither begin nor end"
        return n

    def _look(self) -> None:
        """Cancel jobs that wait for it, and others; start processes instead of those that died."""
        self._processes.running()
        self._read_ledgers()
        for each in self._pushed:
            act = each.picture.act(each.lines[-1].attempt) if each.lines else None
            waits = act in (Act.WAIT, Act.FINISH) and each.lines[-1].event == "began"
            if waits and (not each.was_cancelled):
                self._cancel(each)
        for each in self._rng.choices(self._pushed[-BACKLOG:], k=1):
            if self._rng.random() < CANCELLED * 3:
                self._cancel(each)
        time.sleep(self._rng.uniform(0, 0.1))

    def _cancel(self, pushed: Pushed) -> None:
        now = time.time()
        pushed.cancels.append((now, pushed.handle.cancel()))

    def _read_ledgers(self) -> None:
        for process in self._processes.all:
            for number, attempt, event, at in process.lines():
                line = Line(attempt, event, at, process.name)
                if number >= 0:
                    self._pushed[number].lines.append(line)
                else:
                    self._met[number][line.client] += line.event == "began"

    # The slots

    def _meet(self, number: int, name: str) -> None:
        """Have each process run as many jobs of a queue at a time as it has slots."""
        queue = app.queue(name)
        queue.configure(self._db, concurrency=None)
        met = self._met[number]
        go = self.directory / f"{name}.go"
        picture = Picture(number, go, name, [Act.DRAW])

        def all_met() -> bool:
            self._read_ledgers()
            if not queue.size(self._db):  # a worker may have claimed some ahead
                thumbnail_jobs.meet.using(queue=name).push(picture)
            time.sleep(0.02)
            return [*met.values()] == [CONCURRENCY] * PROCESSES

        wait_until(all_met)
        self.counts["slots of processes that work in the end"] += met.total()
        go.touch()
        wait_until(lambda: not queue.stats(self._db).unfinished)

    def _fill_limits(self) -> None:
        """Claim as many items of each queue at a time as its limit allows."""
        for name in self._queues:
            queue = app.queue(name)
            queue.configure(self._db, concurrency=LIMIT)
            items = queue.push_many(self._db, range(LIMIT + 1))
            claims = [queue.claim(self._db) for _ in items]
            assert [claim is not None for claim in claims] == [*[True] * LIMIT, False]
            for item, claim in zip(items, claims):
                queue.ack(self._db, claim) if claim else queue.remove(self._db, item)

    # The account

    def _problems(self) -> Iterator[str]:
        for name in self._queues:
            queue = app.queue(name)
            report = fdbqueue.admin.check(self._db, queue)
            yield from report.problems
            assert_adds_up(queue.stats(self._db))
        found = self._records()
        self._blocked = {
            line.client
            for each in self._pushed
            for line in each.lines
            if each.picture.act(line.attempt) is Act.BLOCK
        }
        """The workers that had an event loop blocked."""
        for each in self._pushed:
            info = each.handle.info()
            state = "gone" if info is None else info.outcome or info.state
            self.counts[state] += 1
            for problem in self._account(each, info, found[each.picture.number]):
                yield f"{problem}\n    {each}\n    {info}\n    {found[each.picture.number]}"
            self._measure(each)

    def _records(self) -> dict[int, Records]:
        found: dict[int, Records] = defaultdict(Records)
        space = records(self.prefix)
        for row in self._db.get_range_startswith(space.key()):
            number, kind = space.unpack(row.key)
            value = bytes(row.value)
            if kind in ("written", "indexed"):
                setattr(found[number], kind, int.from_bytes(value, "little"))
            elif kind == "attempt":
                found[number].attempt = int(value)
            else:
                found[number].digest = value
        return found

    def _account(self, each: Pushed, info: ItemInfo | None, found: Records) -> Iterator[str]:
        """Yield what the plan of a job, and what happened, do not explain."""
        if found.written > 1 or found.indexed != found.written:
            yield f"the picture was written {found.written} times, and indexed {found.indexed}"
        if found.written and found.digest != digest_of(each):
            yield "the picture is another one"
        if info is None:
            if not each.was_cancelled or found.written:
                yield "it is gone"
            if any(self._could_end(each, line) for line in each.lines if line.event == "told"):
                yield "it was told that it is cancelled, and is gone"
            return
        ends = info.outcome or info.state
        if each.was_cancelled != (ends == "cancelled"):
            yield f"it was cancelled {each.cancels}, and is {ends}"
        last = info.attempts
        if found.written and found.attempt != (last if each.job != "transacted" else 0):
            yield f"attempt {found.attempt} has written the picture, and {last} ended the job"
        failed = [attempt.number for attempt in info.failed_attempts]
        waited = ends == "cancelled" and failed[-1:] == [last]  # for its next attempt
        if failed != [*range(1, last + (ends == "dead" or waited))]:
            yield f"its failed attempts are {failed}, and it is {ends} after {last}"
        for attempt in info.failed_attempts:
            yield from self._account_attempt(each, attempt)
        yield from self._account_beginnings(each)
        act = each.picture.act(last)
        is_drawn = not each.is_broken and act in DRAWS
        if ends == "done" and not (is_drawn and found.written):
            yield f"it is done by an attempt to {act.value}, written {found.written} times"
        elif ends in ("dead", "discarded") and found.written:
            yield f"it is {ends}, and the picture is written"
        elif ends == "discarded" and not (each.is_broken and "not a picture" in str(info.error)):
            yield "it is discarded"
        elif ends == "dead" and last < ATTEMPTS and act not in (Act.DIE, Act.BUG):
            yield f"it is dead after {last} attempts"
        elif ends not in ("done", "dead", "discarded", "cancelled"):
            yield f"it is {ends}"
        if ends == "done" and info.result != len(thumbnail_jobs.thumbnail_of(each.picture.file)):
            yield "its result is another one"

    def _could_end(self, each: Pushed, told: Line) -> bool:
        """Return whether nothing kept an attempt that was told to stop from ending its job."""
        process = self._processes.named(told.client)
        begin, end = told.time - LEASE, told.time + LEASE
        is_cancelled = each.picture.act(told.attempt) in (Act.WAIT, Act.FINISH)
        is_killed = process.ended_at < end or each.handle.id in self._lost(process)
        return is_cancelled and not is_killed and not self._was_stopped(begin, end)

    def _was_stopped(self, began: float, ended: float) -> bool:
        """Return whether a process was stopped meanwhile, which may hold up all others."""
        return any(start <= ended and began <= end for start, end in self._stops)

    def _account_attempt(self, each: Pushed, attempt: FailedAttempt) -> Iterator[str]:
        assert attempt.started_at is not None
        began, ended = attempt.started_at.timestamp(), attempt.ended_at.timestamp()
        if attempt.error in (LEASE_OVER, DIED_ALONE):
            process = self._processes.named(attempt.client)
            killed = began - _CLOCK <= process.ended_at <= ended + _CLOCK
            is_lost = killed or each.handle.id in self._lost(process)
            if not is_lost and not self._was_stopped(began, ended):
                yield f"attempt {attempt.number} lost its lease"
            self.counts["attempts that lost their lease"] += 1
            return
        act = each.picture.act(attempt.number)
        if each.job == "transacted":
            act = each.picture.act(1)
        expected = ERRORS.get(act, "no error")
        if each.job == "coroutine" and attempt.client in self._blocked:
            expected += "|TimedOut: .*|RuntimeError: another job blocks the event loop .*"
        error = attempt.error or ""
        # On a slow machine any job can run out of its time, but none before it.
        is_over = error.startswith("TimedOut: ") and ended - began > thumbnail_jobs.TIMEOUT - _CLOCK
        if not is_over and not re.fullmatch(expected, error):
            yield f"attempt {attempt.number}, to {act.value}, failed with {attempt.error}"
        self.counts[f"attempts that failed to {act.value}"] += 1
        if act in (Act.HANG, Act.LATE) and each.job == "thumbnail":
            where = "threading.Event().wait()" if act is Act.HANG else "time.sleep"
            if where not in (attempt.traceback or ""):
                yield f"attempt {attempt.number} has no stack of what hangs: {attempt.traceback}"
        begun = {(line.attempt, line.client) for line in each.lines if line.event == "began"}
        number = 0 if each.job == "transacted" else attempt.number
        if (number, attempt.client) not in begun:
            yield f"attempt {attempt.number} never began at {attempt.client}"

    def _account_beginnings(self, each: Pushed) -> Iterator[str]:
        """An attempt begins once, or once more after each time that it does not count."""
        if each.job == "transacted":
            return
        begun = Counter(line.attempt for line in each.lines if line.event == "began")
        snoozed = Counter(line.attempt for line in each.lines if line.event == "Snooze")
        for attempt, times in begun.items():
            if times > 1 + snoozed[attempt]:
                yield f"attempt {attempt} began {times} times"

    def _lost(self, process: Process) -> str:
        """Return the lines of a worker about jobs that it has lost, as a slow machine lets it."""
        lines = process.output.read_text().splitlines()
        signs = " lost, attempt", "cannot be returned"
        return "\n".join(line for line in lines if any(sign in line for sign in signs))

    def _measure(self, each: Pushed) -> None:
        first = next((at for at, effect in each.cancels if effect), None)
        told = next((line.time for line in each.lines if line.event == "told"), None)
        if first is not None and told is not None and told > first:
            self.told.append(told - first)

    def _remove(self) -> None:
        for name in self._queues:
            fdbqueue.admin.drop(self._db, name)
        self._db.clear_range_startswith(records(self.prefix).key())


def digest_of(each: Pushed) -> bytes | None:
    try:
        return hashlib.sha256(thumbnail_jobs.thumbnail_of(each.picture.file)).digest()
    except Discard:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description="A thumbnail service whose processes are killed.")
    parser.add_argument("--engine", choices=["embedded", "cluster"], default="embedded")
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--directory", type=Path, help="where pictures and ledgers stay")
    given = parser.parse_args()
    print(f"--seed={given.seed}", flush=True)
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory(given.directory, "thumbnails-"))
        url = f"embedded:{directory / 'db'}"
        if given.engine == "cluster":
            url = str(stack.enter_context(start_or_find_cluster(directory)).file)
        service = Service(url, f"thumbnails-{given.seed}", given.seed, directory)
        began = time.monotonic()
        problems = service.run(given.jobs, given.kills, given.stops)
    if service.told:
        median, longest = 1000 * statistics.median(service.told), 1000 * max(service.told)
        print(f"told after {median:.0f} ms in the median, {longest:.0f} at most")
    return show_run(service.counts, problems, began)


if __name__ == "__main__":
    sys.exit(main())
