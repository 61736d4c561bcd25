"""The controller of a storm: it kills, stops and starts clients and servers, and checks the sum.

On an embedded database it also lets the disk fail, fill up and hang, in bursts, through all
processes at once (`tests/long/hostile/disk/`).

A seed determines what the processes try, but not their speed and so not their interleaving. The
storm lasts until the requested number of kills, stops, cancelled calls and vanished clients is
reached, so a slow machine only changes its duration.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.embedded.directory import FAILED_FILE
from tests.long.hostile.clients import KINDS, QUEUES, WORLDS, effect_key, open_queue, value_of
from tests.long.hostile.disk.shim import Disk, Fault
from tests.long.hostile.http_client import JOBS
from tests.long.hostile.ledger import Verdict, account, account_effects, read_ledger
from tests.support.keys import layout_of
from tests.support.server import serving

ROOT = Path(__file__).parents[3]
STOPPED = (0.6, 1.0)  # seconds: longer than a lease
SERVER_SHARE = 0.1  # share of the kills and stops that hit the HTTP server
QUIET = 300.0  # seconds without any operation after which a storm has failed
FAULT = (0.05, 1.0)  # seconds that a fault of the disk lasts
FAULTS = ("eio", "eio", "enospc", "full", "unwritable", "hangs", "hangs")
WRITTEN = ["-wal", ".sqlite", ".copy"]
"""The files whose writes may fail."""
OPENING = 30.0  # seconds that processes may take to start and to open the database
REST = 60.0  # seconds until leases, delays and requests of dead processes must have expired


@dataclass(frozen=True)
class Amount:
    """The number of events after which a storm is over."""

    operations: int
    kills: int
    stops: int
    cancelled: int
    vanished: int
    faults: int = 0
    """The number of bursts in which the disk fails."""

    def is_reached(self, so_far: Amount) -> bool:
        return all(getattr(so_far, name) >= most for name, most in vars(self).items())

    def times(self, factor: int) -> Amount:
        """Return so many times as many events."""
        return Amount(**{name: factor * most for name, most in vars(self).items()})


class Client:
    """A process of the storm and its output."""

    def __init__(
        self,
        kind: str,
        world: str,
        client: str,
        setting: list[str],
        directory: Path,
        disk: Disk | None,
    ) -> None:
        self.kind, self.world = kind, world
        self.killed_at = float("inf")
        self.ledger = directory / f"{client}.ledger"
        self.errors = directory / f"{client}.stderr"
        self._read = 0
        self._is_read = False  # to the end, so no further lines follow
        with self.errors.open("wb") as errors:
            command = [sys.executable, "-m", "tests.long.hostile.clients", kind, world, *setting]
            environment = None if disk is None else disk.environment
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=errors, env=environment)
        self._disk = disk

    @property
    def is_running(self) -> bool:
        """Return whether the client has started to work and was not killed."""
        has_begun = self.ledger.exists() and self.ledger.stat().st_size > 0
        return has_begun and self.process.poll() is None

    def new_lines(self) -> list[str]:
        """Return the lines written since the last call."""
        if self._is_read or not self.ledger.exists():
            return []
        self._is_read = self.killed_at < float("inf")
        with self.ledger.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return whole.decode().split("\n") if whole else []

    def raise_if_failed(self) -> None:
        """Raise the output of a client that ended by itself with a failure."""
        code = self.process.poll()
        if code and self.killed_at == float("inf"):
            raise AssertionError(f"{self.ledger.stem}: {code}\n{self.errors.read_text()}")

    def kill(self) -> None:
        end(self.process, self._disk)
        self.killed_at = time.monotonic()


def end(process: Any, disk: Disk | None) -> None:
    """Kill a process."""
    if disk is None:
        process.kill()
        process.wait()
    else:
        disk.kill(process)


class HttpServer:
    """`fdbq serve`, with its address in a file; its output is kept."""

    def __init__(self, url: str, world: str, directory: Path, disk: Disk | None) -> None:
        self.world = world
        self._disk = disk
        self._stack = ExitStack()
        self.process, address = self._start(url)
        self._output = (directory / f"{world}.stderr").open("ab")
        self._reader = threading.Thread(target=self._keep, daemon=True)
        self._reader.start()
        file = directory / f"{world}.server"
        temporary = file.with_suffix(".new")
        temporary.write_text(address.removeprefix("http://").replace(":", " "))
        temporary.replace(file)

    def _start(self, url: str) -> tuple[Any, str]:
        environment = {} if self._disk is None else self._disk.environment
        deadline = time.monotonic() + QUIET
        while True:
            try:
                return self._stack.enter_context(serving(url, **environment))
            except AssertionError:  # a server does not start while the disk fails
                if self._disk is None or time.monotonic() > deadline:
                    raise

    def _keep(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._output.write(line.encode())

    def kill(self) -> None:
        end(self.process, self._disk)
        self._reader.join()
        self._output.close()
        self._stack.close()


@dataclass
class Burst:
    """A time in which the disk fails."""

    kind: str
    faults: list[Fault]
    stack: ExitStack
    began: float
    until: float


@dataclass
class Storm:
    """A storm on the queues whose names start with a prefix, in the database at `url`.

    With a `disk`, which records the directory of the database, the disk fails as well.
    """

    url: str
    prefix: str
    seed: int
    directory: Path
    disk: Disk | None = None
    clients: list[Client] = field(default_factory=list)
    server_kills: list[tuple[float, float]] = field(default_factory=list)
    disk_faults: list[tuple[float, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, amount: Amount) -> Verdict:
        """Run the storm until `amount` is reached, then account for every value."""
        self._rng = random.Random(self.seed)
        self._stopped: dict[int, tuple[float, Any]] = {}
        self._burst: Burst | None = None
        self._started_at = -math.inf
        self._recovers_since: float | None = None
        # Whatever this process wrote to the database itself would be missing in the record.
        setting = [self.url, self.prefix, str(self.directory), "prepare", "0"]
        preparing = Client("prepare", "spared", "prepare", setting, self.directory, self.disk)
        assert preparing.process.wait() == 0, preparing.errors.read_text()
        self._servers: dict[str, Future[HttpServer]] = {}
        with ThreadPoolExecutor(len(WORLDS)) as self._pool:
            try:
                for world in WORLDS:
                    self._start_server(world)
                for kind, world in itertools.product(KINDS, WORLDS):
                    self._start(kind, world)
                self._storm(amount)
                self._end()
            finally:
                self._end_burst()
                for each in [*self.clients, *(each.result() for each in self._servers.values())]:
                    each.kill()
        return self._account()

    # The storm

    def _start(self, kind: str, world: str) -> None:
        client = f"{world}-{kind}-{len(self.clients)}"
        seed = str(self._rng.randrange(2**32))
        setting = [self.url, self.prefix, str(self.directory), client, seed]
        self.clients.append(Client(kind, world, client, setting, self.directory, self.disk))

    def _start_server(self, world: str) -> None:
        """Start a server in a thread, because that takes a while and the storm continues."""
        self._servers[world] = self._pool.submit(
            HttpServer, self.url, world, self.directory, self.disk
        )

    def _storm(self, amount: Amount) -> None:
        last_progress = time.monotonic()
        while not amount.is_reached(self.so_far):
            time.sleep(self._rng.uniform(0, 0.2))
            if self._read_outputs():
                last_progress = time.monotonic()
            assert time.monotonic() < last_progress + QUIET, f"nothing goes on: {self.counts}"
            self._continue(time.monotonic())
            self._hit(amount)
            if self.disk is not None:
                self._disturb(self.disk, amount)
            for client in self.clients:
                client.raise_if_failed()

    @property
    def so_far(self) -> Amount:
        return Amount(**{each.name: self.counts[each.name] for each in fields(Amount)})

    def _read_outputs(self) -> bool:
        """Count the lines that the clients have written; return whether there were any."""
        lines = [line for client in self.clients for line in client.new_lines()]
        self.counts["operations"] += sum('"ended"' in line for line in lines)
        done = (json.loads(line)["ended"] for line in lines if '"outcome": "done"' in line)
        if any(at > (self._recovers_since or math.inf) for at in done):
            self._recovers_since = None
        self.counts["cancelled"] += sum('"why": "cancelled"' in line for line in lines)
        gone = ('"why": "half', '"why": "vanished', '"why": "cut')
        self.counts["vanished"] += sum(any(why in line for why in gone) for line in lines)
        return bool(lines)

    def _hit(self, amount: Amount) -> None:
        """Kill a running process or stop it for a while."""
        kinds = [kind for kind in ("kills", "stops") if self.counts[kind] < getattr(amount, kind)]
        if not kinds:
            return
        kind = self._rng.choice(kinds)
        worlds = ("killed",) if kind == "kills" else WORLDS
        victims: list[Client | HttpServer] = [
            each for each in self.clients if each.is_running and each.world in worlds
        ]
        if self._rng.random() < SERVER_SHARE:
            servers = [each for world in worlds if (each := self._servers.get(world))]
            victims = [each.result() for each in servers if each.done()]
        victims = [each for each in victims if each.process.pid not in self._stopped]
        if victims and kind == "kills":
            self._kill(self._rng.choice(victims))
        elif victims:
            self._stop(self._rng.choice(victims))

    def _disturb(self, disk: Disk, amount: Amount) -> None:
        """Begin or end a fault of the disk."""
        now = time.monotonic()
        if self._burst is not None:
            if now > self._burst.until:
                self._end_burst()
        elif self._must_start_again(disk):
            self._start_all_again()
        elif self._recovers_since is not None:
            assert now < self._recovers_since + QUIET, f"it does not recover: {self.counts}"
        elif self.counts["faults"] < amount.faults:
            self._burst = self._new_burst(disk, now)
            self.counts["faults"] += 1

    def _new_burst(self, disk: Disk, now: float) -> Burst:
        rng, stack = self._rng, ExitStack()
        kind, times = rng.choice(FAULTS), rng.choice([1, 1, 3, -1])
        is_log_only = rng.random() < 0.6
        name = "-wal" if is_log_only else ""
        if kind == "eio":
            faults = [disk.fail_syncs(name, errno.EIO, times)]
        elif kind == "enospc":
            faults = [disk.fail_syncs(name, errno.ENOSPC, times)]
        elif kind == "hangs":
            error = rng.choice([0, 0, errno.EIO])
            faults = [stack.enter_context(disk.hanging_syncs(name, times, error))]
        else:
            error = errno.ENOSPC if kind == "full" else errno.EIO
            names = ["-wal"] if is_log_only else WRITTEN
            faults = [disk.fail_writes(each, error, times) for each in names]
        for fault in faults:
            stack.callback(fault.end)
        return Burst(kind, faults, stack, now, now + rng.uniform(*FAULT))

    def _end_burst(self) -> None:
        burst, self._burst = self._burst, None
        if burst is not None:
            burst.stack.close()
            self._recovers_since = time.monotonic()
            self.disk_faults.append((burst.began, self._recovers_since))
            self.counts[burst.kind] += sum(fault.met for fault in burst.faults)

    def _must_start_again(self, disk: Disk) -> bool:
        """Return whether a sync has failed; the processes get the time to open the database."""
        is_failed = (disk.root / FAILED_FILE).exists()
        return is_failed and time.monotonic() > self._started_at + OPENING

    def _start_all_again(self) -> None:
        """End all processes, as an operator does after a failed sync, and start others."""
        self._continue(math.inf)
        began = time.monotonic()
        clients = [each for each in self.clients if each.process.poll() is None]
        # Others try to start until the database can be opened.
        servers = [each.result() for each in self._servers.values() if each.done()]
        for each in [*clients, *servers]:
            each.kill()
        self.server_kills += [(began, time.monotonic()) for _ in servers]
        self.counts["restarts"] += 1
        self._started_at = time.monotonic()
        self._recovers_since = time.monotonic()
        for client in clients:
            self._start(client.kind, client.world)
        for server in servers:
            self._start_server(server.world)

    def _kill(self, victim: Client | HttpServer) -> None:
        before = time.monotonic()
        victim.kill()
        self.counts["kills"] += 1
        if isinstance(victim, Client):
            self._start(victim.kind, victim.world)
        else:
            self.server_kills.append((before, time.monotonic()))
            self._start_server(victim.world)

    def _stop(self, victim: Client | HttpServer) -> None:
        if self.disk is None:
            victim.process.send_signal(signal.SIGSTOP)
        else:
            self.disk.stop(victim.process)
        until = time.monotonic() + self._rng.uniform(*STOPPED)
        self._stopped[victim.process.pid] = until, victim
        self.counts["stops"] += 1

    def _continue(self, now: float) -> None:
        """Continue processes that were stopped for long enough."""
        for pid, (until, stopped) in list(self._stopped.items()):
            if until <= now:
                stopped.process.send_signal(signal.SIGCONT)
                del self._stopped[pid]

    def _end(self) -> None:
        """Let every client finish its current operation."""
        self._end_burst()
        self._continue(float("inf"))
        (self.directory / "stop").touch()
        until = time.monotonic() + QUIET
        while any(client.process.poll() is None for client in self.clients):
            assert time.monotonic() < until, "a client does not end"
            if self.disk is not None and self._must_start_again(self.disk):
                self._start_all_again()
            time.sleep(0.1)
        for client in self.clients:
            client.raise_if_failed()
        # The server puts back the items of vanished HTTP clients before it ends.
        for each in self._servers.values():
            each.result().process.send_signal(signal.SIGTERM)
            each.result().process.wait(QUIET)

    # Accounting

    def _account(self) -> Verdict:
        self._read_outputs()
        operations = [
            operation
            for client in self.clients
            if client.ledger.exists()
            for operation in read_ledger(client.ledger, client.killed_at)
        ]
        db = fdbqueue.open(self.url)
        problems = list[str]()
        left = {name: self._drained(db, name, problems) for name in QUEUES}
        handled = [name for name in QUEUES if name.endswith(JOBS)]
        verdict = account(operations, left, self.server_kills, self.disk_faults, handled)
        for name in handled:
            verdict.problems += account_effects(
                [each for each in operations if each.queue == name],
                left[name],
                self._effects(db, name),
                exactly_once=not name.endswith("handled"),
                is_at_end=name.endswith("transacted"),
            )
        verdict.problems[:0] = problems
        return verdict

    def _effects(self, db: Any, name: str) -> dict[str, int]:
        """Return how often the handlers of a queue have counted each value, and forget it."""
        prefix = effect_key(self.prefix, name)
        rows = list(db.get_range_startswith(prefix))
        db.clear_range_startswith(prefix)
        return {
            row.key[len(prefix) :].decode(): int.from_bytes(row.value, "little") for row in rows
        }

    def _drained(self, db: Any, name: str, problems: list[str]) -> list[str]:
        """Empty a queue, including claimed, delayed and staged items; return its values."""
        values = list[str]()
        deadline = time.monotonic() + REST
        self._check(db, name, problems)
        while True:
            # A new handle immediately sweeps the requests of dead processes.
            queue = open_queue(db, self.prefix, name)
            while items := queue.pop_many(db, 100):
                values += map(value_of, items)
            layout = layout_of(queue)
            elsewhere = [layout.claims, layout.delayed, layout.results]
            if not any(list(db[slice(*layout.range_of(prefix))]) for prefix in elsewhere):
                break
            if time.monotonic() > deadline:
                problems.append(f"{name} does not come to rest")
                break
            time.sleep(0.1)
        values += [value_of(letter.item) for letter in queue.items(db, state="dead")]
        self._check(db, name, problems)
        return values

    def _check(self, db: Any, name: str, problems: list[str]) -> None:
        report = fdbqueue.admin.check(db, open_queue(db, self.prefix, name))
        problems += [f"check of {name}: {problem}" for problem in report.problems]
