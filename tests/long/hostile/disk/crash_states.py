"""Enumerate the states that a power cut may leave of a database, and open each of them.

`record_run` records processes that commit, read, close, open, make checkpoints, replace the files
and are killed. `choose` cuts the record at many places and picks states of the disk at each cut.
`examine` opens a state and compares it with what the processes knew at the cut:

- refused: the database does not open, although no file was ever damaged
- lost: a commit is missing that had been acknowledged
- taken back: a commit is missing that a read had shown
- torn: a commit is there in part, or rows are there that nobody wrote
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from fdbqueue.embedded import Database
from tests.long.hostile.disk.crash_model import Directory
from tests.long.hostile.disk.shim import Disk, Entry, read_record
from tests.long.hostile.disk.workload import CLIENTS, Torn, numbers_of

ROOT = Path(__file__).parents[4]
_SLOW = 0.002  # seconds that a sync of the log takes, so that others write in the meantime
_HANGS = 0.2  # seconds, in which a read that does not wait for a sync ends


# The run


class Process:
    """A process of the recorded run."""

    def __init__(self, disk: Disk, number: int) -> None:
        self.disk = disk
        self.is_open = False
        program = ["-m", "tests.long.hostile.disk.workload", str(disk.root), str(CLIENTS * number)]
        self.process = subprocess.Popen(
            [sys.executable, *program],
            cwd=ROOT,
            env=disk.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self, command: str) -> None:
        """Give a command without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until a command has ended."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "done\n":
            raise AssertionError(self.process.communicate()[1])

    def do(self, *commands: str) -> None:
        for command in commands:
            self.begin(command)
            self.end()

    def kill(self) -> None:
        self.disk.kill(self.process)
        self.process.communicate()


def record_run(disk: Disk, rng: random.Random) -> None:
    """Let two processes use a database in an empty directory, and record it."""
    with ExitStack() as stack:
        slow = disk.slow_syncs("-wal", _SLOW)
        stack.callback(slow.end)

        def start(number: int) -> Process:
            process = Process(disk, number)
            stack.callback(process.kill)
            return process

        first, second = start(0), start(1)
        _use(disk, first, second, rng)
        for process in (first, second):
            process.kill()
        start(0).do("open 1000", "push 1", "close")  # after the kills
    _compare(disk)


def _use(disk: Disk, first: Process, second: Process, rng: random.Random) -> None:
    pages = [str(rng.choice([1000, 1000, 12])) for _ in range(3)]
    # One process: closed and opened again
    for _ in range(2):
        first.do(f"open {pages[0]}", f"push {rng.randrange(1, 4)}", "close")
    # Two processes: commits and reads at the same time, the last one closes
    first.do("open 12")
    second.do(f"open {pages[1]}")
    for _ in range(2):
        first.begin(f"push {rng.randrange(2, 5)}")
        second.do("read", f"push {rng.randrange(1, 4)}", "read")
        first.end()
    # A read while nothing gets onto the disk; it may wait for that
    with disk.hanging_syncs("-wal") as fault:
        first.begin("push 1")
        fault.wait_until_met()
        second.begin("read")
        time.sleep(_HANGS)  # nothing tells that a read waits
    first.end()
    second.end()
    first.do("close")
    second.do("push 1", "close")
    # The disk fails a few times
    first.do(f"open {pages[0]}")
    second.do(f"open {pages[1]}")
    for _ in range(2):
        if rng.random() < 0.7:
            fault = disk.fail_syncs(rng.choice(["", "-wal"]), times=rng.randrange(1, 4))
        else:
            fault = disk.fail_writes(rng.choice(["-wal", ".sqlite"]), times=rng.randrange(1, 4))
        first.begin(f"push {rng.randrange(2, 5)}")
        second.do(f"push {rng.randrange(1, 4)}", "read")
        first.end()
        if rng.random() < 0.5:
            first.do("close")
            second.do("close")
            fault.end()
        else:
            fault.end()
            second.do("close")
            first.do("close")
        first.do(f"open {pages[0]}")
        second.do(f"open {pages[1]}")
    first.do("close")
    second.do("push 1", "close")
    # A long log, which is shortened
    first.do("open 1000", f"push {rng.randrange(8, 14)}")
    # A longer one, which a reader keeps
    second.do(f"open {pages[2]}", "hold")
    first.do("push 10")
    second.do("release", "push 2")
    first.do("push 1")
    if rng.random() < 0.5:
        first.do("close")
        second.do("push 1", "close")
        second.do("open 1000", "push 1")
        first.do("open 1000")
    # Then both are killed, one of them while it commits
    first.begin("push 1000")
    second.do(f"push {rng.randrange(1, 5)}")


def _compare(disk: Disk) -> None:
    """Compare the record with the real directory, which shows that nothing is missing in it."""
    directory = Directory()
    for entry in read_record(disk.record):
        directory.apply(entry)
    state = directory.state("posix/all")
    found = {str(path.relative_to(disk.root)) for path in disk.root.rglob("*") if path.is_file()}
    assert found == {*state.sizes}, (found, {*state.sizes})
    for name in found:
        if not name.endswith("-shm"):  # is written through a mapping
            assert (disk.root / name).read_bytes() == state.read(name), name


# What is known at each moment


@dataclass
class Known:
    """What the processes of a run know at a moment."""

    tried: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    moment: str = "create"
    _began: str = "create"

    def apply(self, entry: Entry) -> None:
        """Take the next entry of the record."""
        if entry.kind == "M":
            self._learn(json.loads(entry.data))
        elif entry.name.startswith("fdbqueue.cop"):
            self.moment = "copy"
        elif self._began == "push":
            self._look(entry)
        elif entry.kind == "U" and entry.name.endswith("-wal"):
            self.moment = "closed"

    def _learn(self, knowledge: dict[str, object]) -> None:
        match knowledge:
            case {"moment": str(moment)}:
                self.moment = self._began = moment
            case {"tried": [int(client), int(number)]}:
                self.tried[client] = number
            case {"acknowledged": [int(client), int(number)]}:
                self.acknowledged[client] = number
            case {"seen": dict(numbers)}:
                for client, number in numbers.items():
                    self.seen[int(client)] = max(number, self.seen.get(int(client), 0))

    def _look(self, entry: Entry) -> None:
        """Tell checkpoints from mere commits."""
        name = entry.name
        is_log = name.endswith("-wal")
        if is_log and entry.kind == "W":
            self.moment = "push"
        elif (is_log and entry.kind == "T") or (name.endswith(".sqlite") and entry.kind == "W"):
            self.moment = "checkpoint"

    def compare(self, numbers: dict[int, int]) -> str | None:
        """Return what is wrong with the numbers of the clients' last commits, if anything is."""
        for problem, known in (("lost", self.acknowledged), ("taken back", self.seen)):
            for client, number in known.items():
                if numbers.get(client, 0) < number:
                    return f"{problem}: client {client} has {numbers.get(client, 0)}, not {number}"
        for client, number in numbers.items():
            if number > self.tried.get(client, 0):
                return f"torn: client {client} has {number}, which it has never tried"
        return None


# The states


@dataclass(frozen=True, order=True)
class Pick:
    """A state of the disk: the number of entries before the cut, and the name of a state there."""

    cut: int
    name: str

    def __str__(self) -> str:
        return f"{self.cut}/{self.name}"


def choose(record: Path, states: int, rng: random.Random) -> list[Pick]:
    """Pick different states, of each kind of moment about as many."""
    cuts: dict[str, list[int]] = defaultdict(list)
    turns: dict[str, list[int]] = defaultdict(list)
    known = Known()
    for cut, entry in enumerate(read_record(record), 1):
        known.apply(entry)
        (cuts if entry.kind in "WM" else turns)[known.moment].append(cut)
    share = -(-states // len({*cuts, *turns}))
    per_cut: Counter[int] = Counter()
    # Half of the states after syncs and changes of names and sizes, which are rarer than writes.
    for each in chain(cuts.values(), turns.values()):
        rng.shuffle(each)
        for number in range(2 * share):  # more than necessary, because many are equal
            per_cut[each[number % len(each)]] += 1
    picks: dict[str, list[Pick]] = defaultdict(list)
    seen: set[int] = set()
    directory, known = Directory(), Known()
    for cut, entry in enumerate(read_record(record), 1):
        directory.apply(entry)
        known.apply(entry)
        if cut not in per_cut:
            continue
        for name in islice(_shuffled(directory, rng), 5 * per_cut[cut]):
            identity = hash(repr((directory.state(name).identity, known)))
            if identity not in seen:
                seen.add(identity)
                picks[known.moment].append(Pick(cut, name))
                per_cut[cut] -= 1
                if not per_cut[cut]:
                    break
    for each in picks.values():
        rng.shuffle(each)
    chosen = [*chain(*(each[:share] for each in picks.values()))]
    others = [*chain(*(each[share:] for each in picks.values()))]
    rng.shuffle(others)
    return sorted([*chosen, *others][:states])


def _shuffled(directory: Directory, rng: random.Random) -> Iterator[str]:
    """Yield the names of states in a random order, of each kind about as many."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in directory.names():
        kinds[name.partition(":")[0]].append(name)
    while kinds:
        kind = rng.choice([*kinds])
        names = kinds[kind]
        yield names.pop(rng.randrange(len(names)))
        if not names:
            del kinds[kind]


def examine(path: Path, known: Known) -> str | None:
    """Open a database and return what is wrong with it, if anything is."""
    try:
        with Database(path) as db:
            rows = [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
            problem = known.compare(numbers_of(rows))
            db[b"after"] = b"the power cut"
        if problem is not None:
            return problem
        with Database(path) as db:
            again = [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
            db.check_integrity()
    except Torn as error:
        return f"torn: {error}"
    except Exception as error:
        return f"refused: {type(error).__name__}: {error}"
    if again != sorted([*rows, (b"after", b"the power cut")]):
        return "lost: the first commit after the power cut, or one before it, after closing"
    return None


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a temporary directory, in memory if that is possible."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="crash-states-", dir=parent) as path:
        yield Path(path)


def examine_all(record: Path, picks: Sequence[Pick]) -> dict[str, str]:
    """Examine states, sorted by their cuts; return what is wrong by how to open it again."""
    problems: dict[str, str] = {}
    directory, known = Directory(), Known()
    ahead = iter(picks)
    pick = next(ahead, None)
    with in_memory() as scratch:
        for cut, entry in enumerate(read_record(record), 1):
            if pick is None:
                break
            directory.apply(entry)
            known.apply(entry)
            while pick is not None and pick.cut == cut:
                path = scratch / "db"
                directory.state(pick.name).write(path)
                if problem := examine(path, known):
                    problems[f"python -m tests.long.hostile.disk {record} {pick}"] = problem
                shutil.rmtree(path)
                pick = next(ahead, None)
    return problems
