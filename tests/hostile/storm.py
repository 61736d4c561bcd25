"""The controller of a storm: it kills, stops and starts clients and servers, and checks the sum.

A seed determines what the processes try, but not their speed and so not their interleaving. The
storm lasts until the requested number of kills, stops, cancelled calls and vanished clients is
reached, so a slow machine only changes its duration.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.queue.base import store_of
from tests.hostile.clients import KINDS, QUEUES, WORLDS, open_queue
from tests.hostile.ledger import Verdict, account, read_ledger
from tests.support.server import serving

__all__ = ["Amount", "Storm"]

ROOT = Path(__file__).parent.parent.parent
STOPPED = (0.6, 1.0)  # seconds: longer than a lease
MAX_ATTEMPTS = 2
SERVER_SHARE = 0.1  # share of the kills and stops that hit the HTTP server
QUIET = 300.0  # seconds without any operation after which a storm has failed
REST = 60.0  # seconds until leases, delays and requests of dead processes must have expired


@dataclass(frozen=True)
class Amount:
    """The number of events after which a storm is over."""

    operations: int
    kills: int
    stops: int
    cancelled: int
    vanished: int

    def is_reached(self, so_far: Amount) -> bool:
        return all(getattr(so_far, name) >= most for name, most in vars(self).items())


class Client:
    """A process of the storm and its output."""

    def __init__(
        self, kind: str, world: str, client: str, setting: list[str], directory: Path
    ) -> None:
        self.kind, self.world = kind, world
        self.killed_at = float("inf")
        self.ledger = directory / f"{client}.ledger"
        self.errors = directory / f"{client}.stderr"
        self._read = 0
        self._is_read = False  # to the end, so no further lines follow
        with self.errors.open("wb") as errors:
            command = [sys.executable, "-m", "tests.hostile.clients", kind, world, *setting]
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=errors)

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
        self.process.kill()
        self.process.wait()
        self.killed_at = time.monotonic()


class HttpServer:
    """`fdbq serve`, with its address in a file; its output is kept."""

    def __init__(self, url: str, world: str, directory: Path) -> None:
        self.world = world
        self._stack = ExitStack()
        self.process, address = self._stack.enter_context(serving(url))
        self._output = (directory / f"{world}.stderr").open("ab")
        self._reader = threading.Thread(target=self._keep, daemon=True)
        self._reader.start()
        file = directory / f"{world}.server"
        temporary = file.with_suffix(".new")
        temporary.write_text(address.removeprefix("http://").replace(":", " "))
        temporary.replace(file)

    def _keep(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._output.write(line.encode())

    def kill(self) -> None:
        self.process.kill()
        self._reader.join()
        self._output.close()
        self._stack.close()


@dataclass
class Storm:
    """A storm on the queues whose names start with a prefix, in the database at `url`."""

    url: str
    prefix: str
    seed: int
    directory: Path
    kinds: Sequence[str] = KINDS
    clients: list[Client] = field(default_factory=list)
    server_kills: list[tuple[float, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, amount: Amount) -> Verdict:
        """Run the storm until `amount` is reached, then account for every value."""
        self._rng = random.Random(self.seed)
        self.db = fdbqueue.open(self.url)
        self._stopped: dict[int, tuple[float, Any]] = {}
        for name in QUEUES:
            open_queue(self.db, self.prefix, name).set_max_attempts(self.db, MAX_ATTEMPTS)
        self._servers: dict[str, Future[HttpServer]] = {}
        with ThreadPoolExecutor(len(WORLDS)) as self._pool:
            try:
                for world in WORLDS if "http" in self.kinds else ():
                    self._start_server(world)
                for kind, world in itertools.product(self.kinds, WORLDS):
                    self._start(kind, world)
                self._storm(amount)
                self._end()
            finally:
                for each in [*self.clients, *(each.result() for each in self._servers.values())]:
                    each.kill()
        return self._account()

    # The storm

    def _start(self, kind: str, world: str) -> None:
        client = f"{world}-{kind}-{len(self.clients)}"
        seed = str(self._rng.randrange(2**32))
        setting = [self.url, self.prefix, str(self.directory), client, seed]
        self.clients.append(Client(kind, world, client, setting, self.directory))

    def _start_server(self, world: str) -> None:
        """Start a server in a thread, because that takes a while and the storm continues."""
        self._servers[world] = self._pool.submit(HttpServer, self.url, world, self.directory)

    def _storm(self, amount: Amount) -> None:
        last_progress = time.monotonic()
        while not amount.is_reached(self.so_far):
            time.sleep(self._rng.uniform(0, 0.2))
            if self._read_outputs():
                last_progress = time.monotonic()
            assert time.monotonic() < last_progress + QUIET, f"nothing goes on: {self.counts}"
            self._continue(time.monotonic())
            self._hit(amount)
            for client in self.clients:
                client.raise_if_failed()

    @property
    def so_far(self) -> Amount:
        return Amount(**{each.name: self.counts[each.name] for each in fields(Amount)})

    def _read_outputs(self) -> bool:
        """Count the lines that the clients have written; return whether there were any."""
        lines = [line for client in self.clients for line in client.new_lines()]
        self.counts["operations"] += sum('"ended"' in line for line in lines)
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
        victim.process.send_signal(signal.SIGSTOP)
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
        self._continue(float("inf"))
        (self.directory / "stop").touch()
        for client in self.clients:
            if client.killed_at == float("inf"):
                client.process.wait(QUIET)
                client.raise_if_failed()
        # The server puts back the items of vanished HTTP clients before it ends.
        for each in self._servers.values():
            each.result().process.send_signal(signal.SIGTERM)
            each.result().process.wait(QUIET)

    # Accounting

    def _account(self) -> Verdict:
        self._read_outputs()
        problems: list[str] = []
        left = {name: self._drain(name, problems) for name in QUEUES}
        operations = [
            operation
            for client in self.clients
            if client.ledger.exists()
            for operation in read_ledger(client.ledger, client.killed_at)
        ]
        verdict = account(operations, left, self.server_kills)
        verdict.problems[:0] = problems
        return verdict

    def _drain(self, name: str, problems: list[str]) -> list[str]:
        """Empty a queue, including claimed, delayed and staged items; return its values."""
        pushed = "payload" if name.endswith("tasks") else "value"
        values = []
        deadline = time.monotonic() + REST
        self._check(name, problems)
        while True:
            # A new handle immediately sweeps the requests of dead processes.
            queue = open_queue(self.db, self.prefix, name)
            while items := queue.pop_many(self.db, 100):
                values += [getattr(item, pushed)["id"] for item in items]
            layout = store_of(queue).layout
            elsewhere = [layout.claims, layout.delayed, layout.results]
            if not any(list(self.db[slice(*layout.range_of(prefix))]) for prefix in elsewhere):
                break
            if time.monotonic() > deadline:
                problems.append(f"{name} does not come to rest")
                break
            time.sleep(0.1)
        letters = list(queue.dead_letters(self.db))
        values += [getattr(letter.item, pushed)["id"] for letter in letters]
        self._check(name, problems)
        return values

    def _check(self, name: str, problems: list[str]) -> None:
        report = fdbqueue.check(self.db, open_queue(self.db, self.prefix, name))
        problems += [f"check of {name}: {problem}" for problem in report.problems]
