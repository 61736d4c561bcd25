"""Run jobs of groups with limits while processes are killed and stopped, and check each commit.

    python -m tests.long.hostile.tenants [--engine embedded|cluster] [--jobs 20000] [--seed N]
        [--kinds sequence limited rated bounded queue] [--directory PATH]

Four processes of `fdbq work --app`, with four workers each, do the jobs. Jobs fail, die, kill their
process, and commit their effect before they fail; commits lose their answers. About each second one
process is killed, and some are stopped for longer than a lease, and continued. Each commit of any
process writes to a log what it does with items, under a versionstamp. In the end:

- The effects of each group with a concurrency of 1 are in the order of the pushes, each once,
  without those of dead letters.
- At no version more items of a group were claimed than its concurrency, nor had it more items than
  its bound.
- No window has more starts than the rate of a group, or of the queue.
- No group was held back while it had jobs, and might go on: all jobs have ended.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database.retrying import run
from fdbqueue.errors import QueueFull
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.base import store_of
from tests.long.hostile.app_workers import Command, Processes, Trouble, run_directory, show_run
from tests.long.hostile.tenant_jobs import (
    GIVEN_BACK,
    QUEUES,
    Act,
    Job,
    LoggedDatabase,
    app,
    commits,
    effects,
    tell_workers,
    work,
)
from tests.long.simulation.groups.state import read_state
from tests.support.cluster import start_or_find_cluster
from tests.support.scan import assert_adds_up
from tests.support.waiting import MAX_WAIT

KINDS: dict[str, dict[str, Any]] = {
    "sequence": {"concurrency": 1},
    "limited": {"concurrency": 3},
    "rated": {"rate": (8, 0.5)},
    "bounded": {"max_size": 4, "concurrency": 2},
    "queue": {},
}
"""The settings of the groups of each kind; those of the last one are in the queue with a rate."""
QUEUE_RATE = (50, 1.0)
GROUPS = dict.fromkeys(KINDS, 6) | {"sequence": 12}
"""How many groups there are of each kind."""
PROCESSES, WORKERS = 4, 4
LEASE = 3.0  # seconds
BACKLOG = 600
"""The number of unfinished jobs of a queue above which no others are pushed."""
_PUSH = 50  # jobs between two looks at the backlog
_PLANS: list[tuple[int, list[Act]]] = [
    (800, [Act.WRITE]),
    (80, [Act.FAIL, Act.WRITE]),
    (10, [Act.FAIL, Act.FAIL, Act.FAIL, Act.WRITE]),
    (50, [Act.COMMIT]),
    (40, [Act.COMMIT_AND_FAIL, Act.FAIL, Act.COMMIT]),
    (15, [Act.DIE]),
    (2, [Act.KILL, Act.WRITE]),
]


@dataclass
class Log:
    """What the commits did with the items of a queue, in their order.

    Args:
        group_of: Returns the group of the item at a position.
        settings: The settings of a group.

    Attributes:
        problems: What must not be.
        events: How often something of interest happened.
    """

    group_of: Callable[[str], str]
    settings: Callable[[str], dict[str, Any]]
    problems: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    _states: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """The states of each item, with tokens."""
    _members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _starts: dict[str | None, list[int]] = field(default_factory=lambda: defaultdict(list))

    def note(
        self, version: int, moves: Iterable[tuple[str, str, str | None]], read: int | None = None
    ) -> None:
        """Note a commit: the states that items have reached, with tokens, or have left.

        Starts count from the read version, if that is given. The start of a job that a worker has
        given back before it began does not count.
        """
        started = version if read is None else read
        changed, tokens = set[str](), dict[str, str]()
        for state, position, token in moves:
            if state == GIVEN_BACK:
                self._starts[token].remove(int(position))
                continue
            group, states = self.group_of(position), self._states[position]
            if not states and position not in tokens:
                tokens[position] = ""
            tokens.setdefault(position, states.get("claimed", ""))
            changed.add(group)
            if token is None:
                states.pop(state, None)
            else:
                states[state] = token
        for position, before in tokens.items():
            group, states = self.group_of(position), self._states[position]
            if states.get("claimed", before) != before:
                self._starts[group].append(started)
                self._starts[None].append(started)
            if states:
                self._members[group].add(position)
            else:
                self._members[group].discard(position)
                del self._states[position]
        for group in changed:
            self._check(group, version)

    def _check(self, group: str, version: int) -> None:
        settings, members = self.settings(group), self._members[group]
        claimed = sum("claimed" in self._states[position] for position in members)
        for name, n in (("concurrency", claimed), ("max_size", len(members))):
            if name in settings:
                self.events[f"times as many as the {name}"] += n == settings[name]
                if n > settings[name]:
                    self.problems.append(f"{group}: {n} at {version}, with {settings}")

    def check_rate(self, group: str | None, rate: tuple[int, float]) -> None:
        """Check that no window has more starts than a rate."""
        starts, (n, seconds) = self._starts[group], rate
        self.events["starts under a rate"] += len(starts)
        for first, last in zip(starts, starts[n:]):
            if last - first < seconds * VERSIONS:
                self.problems.append(f"{group}: {n + 1} starts in {last - first} versions")
            self.events["windows that a rate has just filled"] += (
                last - first < 1.1 * seconds * VERSIONS
            )

    def check_rates(self) -> None:
        """Check the rates of all groups."""
        for group in [*self._starts]:
            if group is not None and (rate := self.settings(group).get("rate")):
                self.check_rate(group, rate)


@dataclass
class Tenants:
    """Groups of jobs on a database, in queues whose names begin with a prefix."""

    url: str
    prefix: str
    seed: int
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, jobs: int, kinds: Iterable[str] = KINDS) -> list[str]:
        """Push jobs, kill and stop processes meanwhile; return what must not be."""
        self._rng = random.Random(self.seed)
        self._kinds = [*kinds]
        self._db = fdbqueue.open(self.url)
        self._names = [f"{self.prefix}-{name}" for name in QUEUES]
        app.bind(LoggedDatabase(self._db, self.prefix))
        self._queues = [app.queue(name) for name in self._names]
        self._pushed: dict[str, list[Job]] = defaultdict(list)
        self._problems: list[str] = []
        self._seen: Any = None
        self._set_limits()
        tell_workers(self.prefix)
        options = ["--concurrency", f"{WORKERS}", "--lease", f"{LEASE}s"]
        module = "tests.long.hostile.tenant_jobs:app"
        command = Command(module, self.url, self._names, self.directory, options)
        self._processes = Processes(PROCESSES, command)
        self._trouble = Trouble(self._processes, LEASE, self._rng, self.counts)
        try:
            for begin in range(0, jobs, _PUSH):
                self._push([self._job(number) for number in range(begin, begin + _PUSH)])
                self._wait_for(BACKLOG)
            self._wait_for(0)
            self._processes.stop()
            return [*self._problems, *self._account()]
        finally:
            self._processes.kill()
            for name in self._names:
                fdbqueue.admin.drop(self._db, name)
            for space in (effects(self.prefix), commits(self.prefix)):
                self._db.clear_range_startswith(space.key())

    def _set_limits(self) -> None:
        self._queues[1].configure(self._db, rate=QUEUE_RATE)
        for kind in self._kinds:
            for number in range(GROUPS[kind] if KINDS[kind] else 0):
                self._queues[0].set_group(self._db, f"{kind} {number}", **KINDS[kind])

    def _job(self, number: int) -> Job:
        rng, kind = self._rng, self._rng.choice(self._kinds)
        (acts,) = rng.choices([acts for _, acts in _PLANS], [weight for weight, _ in _PLANS])
        group = f"{kind} {rng.randrange(GROUPS[kind])}"
        return Job(number, self.prefix, group, acts, rng.choice([0, 0, 0, 0.01, 0.1]))

    def _push(self, jobs: list[Job]) -> None:
        """Push some jobs; those that may be refused one by one."""
        shared, rated = self._names
        together: dict[str, list[Job]] = {shared: [], rated: []}
        for job in jobs:
            kind = job.group.partition(" ")[0]
            if kind != "bounded":
                together[rated if kind == "queue" else shared].append(job)
                continue
            try:
                work.using(queue=shared).push(job)
            except QueueFull:
                self.counts["pushes refused"] += 1
            else:
                self._pushed[job.group].append(job)
        for name, some in together.items():
            work.using(queue=name).push_many([work.bind(job) for job in some])
            for job in some:
                self._pushed[job.group].append(job)

    def _wait_for(self, n: int) -> None:
        """Wait until at most `n` jobs of a queue are unfinished; kill and stop processes."""
        while True:
            # In a transaction: a look at the database would sweep, which is not in the log.
            stats = [run(self._db, queue.stats) for queue in self._queues]
            left = [each.unfinished for each in stats]
            ended = sum(each.total_pushed for each in stats) - sum(left)
            if (left, ended) != self._seen:
                self._seen, self._seen_at = (left, ended), time.monotonic()
            assert time.monotonic() < self._seen_at + MAX_WAIT, f"{left} jobs are stuck"
            self._trouble.look(ended)
            self._look_at_groups()
            if max(left) <= n:
                return
            time.sleep(0.1)

    def _look_at_groups(self) -> None:
        """Look whether a group is held back at this version that may go on."""
        state = read_state(self._db.create_transaction(), self._queues[0])
        self.counts["looks at held groups"] += 1
        for group in {line.group for line in state.ready} & state.held:
            if state.room(group) > 0 and group not in state.held_until:
                self._problems.append(f"{group} is held back, and may go on")

    # The account

    def _account(self) -> Iterator[str]:
        for queue in self._queues:
            yield from fdbqueue.admin.check(self._db, queue).problems
            assert_adds_up(queue.stats(self._db))
        yield from self._check_effects()
        for name, queue in zip(QUEUES, self._queues):
            yield from self._check_log(name, queue)

    def _rows(self, space: Any) -> Iterator[tuple[bytes, bytes]]:
        """Yield the versionstamps and the values of a log."""
        prefix = begin = space.key()
        while rows := [*self._db.get_range(begin, prefix + b"\xff", limit=1_000)]:
            yield from ((row.key[len(prefix) : len(prefix) + 10], row.value) for row in rows)
            begin = rows[-1].key + b"\x00"

    def _check_effects(self) -> Iterator[str]:
        for group, jobs in self._pushed.items():
            kind = group.partition(" ")[0]
            got = [int(value) for _, value in self._rows(effects(self.prefix)[group])]
            self.counts[f"effects of the kind {kind}"] += len(got)
            expected = [job.number for job in jobs if Act.DIE not in job.acts]
            if (got if kind == "sequence" else sorted(got)) != expected:
                wrong = next((pair for pair in zip(got, expected) if pair[0] != pair[1]), None)
                yield f"{group} has {len(got)} effects of {len(expected)}; first wrong: {wrong}"

    def _check_log(self, name: str, queue: PriorityQueue[Any]) -> Iterator[str]:
        store = store_of(queue)

        def group_of(position: str) -> str:
            key = store.layout.items + bytes.fromhex(position)
            return store.levels.level_of(key).group or ""

        log = Log(group_of, lambda group: KINDS[group.partition(" ")[0]])
        for stamp, value in self._rows(commits(self.prefix)):
            read, all_moves = json.loads(value)
            moves = [(each[1], each[2], each[3]) for each in all_moves if each[0] == name]
            if moves:
                self.counts["commits in the log"] += 1
                log.note(int.from_bytes(stamp[:8], "big"), moves, read)
        log.check_rates()
        if name == QUEUES[1]:
            log.check_rate(None, QUEUE_RATE)
        self.counts += log.events
        yield from log.problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Groups whose processes are killed.")
    parser.add_argument("--engine", choices=["embedded", "cluster"], default="embedded")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--directory", type=Path, help="where ledgers stay")
    given = parser.parse_args()
    print(f"--seed={given.seed}", flush=True)
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory(given.directory, "tenants-"))
        url = f"embedded:{directory / 'db'}"
        if given.engine == "cluster":
            url = str(stack.enter_context(start_or_find_cluster(directory)).file)
        tenants = Tenants(url, f"tenants-{given.seed}", given.seed, directory)
        began = time.monotonic()
        problems = tenants.run(given.jobs, given.kinds)
    return show_run(tenants.counts, problems, began)


if __name__ == "__main__":
    sys.exit(main())
