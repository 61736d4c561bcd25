"""How others see a worker: in the list of running workers, and by health checks."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from fdbqueue.database.clock import Since, client_name, milliseconds, uuids
from fdbqueue.database.retrying import read, run
from fdbqueue.layout.names import worker_key, workers_range
from fdbqueue.layout.values import StoredWorker, decode_worker, encode_worker, utc_time
from fdbqueue.queue.arguments import validate_address
from fdbqueue.types import Database, ReadTransaction, ReadTransactor, Transaction
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

_log = Log("fdbqueue.worker")

LOOK = 1.0
"""Seconds between looks at whether to renew the row."""

_BUSY = 20.0  # seconds after which one that has jobs, or had some, does so at the latest
_IDLE = 60.0  # seconds after which one without jobs does so
_MAX_ROWS = 10_000  # of workers, among which the start of another one looks for dead ones
_IDLE_LIFE = 150.0  # seconds for which that row counts
_DATABASE = 2_000  # milliseconds in which the database has to answer
_REQUEST = 5.0  # seconds in which a client has to send its request


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that runs, or was killed a moment ago.

    Attributes:
        name: Its name, also in the `ItemInfo.claimed_by` of its items.
        host: The name of its host.
        pid: The id of its process.
        queues: The maximum number of running jobs of each queue, by its name, or its key as text.
        concurrency: The number of jobs that run at a time.
        jobs: The number of jobs that it held at the time `seen`.
        since: When it started, by its clock.
        seen: When it last renewed its entry, by its clock.
    """

    name: str
    host: str
    pid: int
    queues: dict[str, int]
    concurrency: int
    jobs: int
    since: datetime
    seen: datetime = field(compare=False)


def workers(tr: ReadTransactor) -> list[WorkerInfo]:
    """Return the workers of all queues of a database, in the order in which they started.

    A `Worker` or `fdbq work` is listed from a second after its start until it stops. It renews its
    entry at least every 20 seconds while it has jobs, otherwise once a minute. A killed worker
    stays listed until the leases of its jobs are over, or for up to two and a half minutes if it
    had none. Cost: one read.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "job")
        >>> def look(item):
        ...     while not (found := workers(db)):
        ...         pass
        ...     print(found[0].queues)
        >>> _ = fdbqueue.Worker(db, jobs, look).run(drain=True)
        {'jobs': 1}
    """
    now = milliseconds()

    def body(tr: ReadTransaction) -> list[WorkerInfo]:
        rows = [decode_worker(row.value) for row in tr.get_range(*workers_range())]
        return [
            WorkerInfo(
                name=row.name,
                host=row.host,
                pid=row.pid,
                queues=dict(row.queues),
                concurrency=row.concurrency,
                jobs=row.jobs,
                since=utc_time(row.since),
                seen=utc_time(row.seen),
            )
            for row in filter(None, rows)
            if row.end > now
        ]

    return read(tr, body)


@dataclass(eq=False)
class Presence:
    """The row of one worker, which says that it is there."""

    name: str | None
    queues: Mapping[str, int]
    concurrency: int
    lease: float
    check_names: Callable[[ReadTransaction], None]
    _key: bytes | None = None  # of the row, if there is one
    _jobs: int = 0
    _renewed: Since = field(init=False)
    _since: int = field(default_factory=milliseconds)
    _has_looked: bool = False  # for rows of workers that were killed

    def is_due(self, jobs: int) -> bool:
        """Return whether to renew the row now."""
        if self._key is None or (jobs and not self._jobs):
            return True
        return self._renewed.seconds() >= (min(self.lease / 3, _BUSY) if self._jobs else _IDLE)

    def write(self, db: Database, jobs: int) -> None:
        """Write the row; the first time, also delete the rows of killed workers.

        Raises:
            QueueRenamed: Another queue has the name of one of the worker's.
        """
        self._jobs, self._renewed = jobs, Since()
        key = self._key = self._key or worker_key(*uuids(1))
        now = milliseconds()
        life = self.lease if jobs else _IDLE_LIFE
        row = StoredWorker(
            name=self.name or client_name(),
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=(*self.queues.items(),),
            concurrency=self.concurrency,
            jobs=jobs,
            since=self._since,
            seen=now,
            end=now + int(1000 * life),
        )
        value = encode_worker(row)

        def body(tr: Transaction) -> None:
            self.check_names(tr.snapshot)
            tr[key] = value
            if self._has_looked:
                return
            for row in tr.snapshot.get_range(*workers_range(), limit=_MAX_ROWS):
                worker = decode_worker(row.value)
                if worker is None or worker.end <= now:
                    tr.clear(row.key)

        run(db, body)
        self._has_looked = True

    def end(self, db: Database) -> None:
        """Delete the row, if it was written."""
        key, self._key = self._key, None
        if key is not None:
            run(db, lambda tr: tr.clear(key))


@contextmanager
def serving_health(address: int | str | None, trouble: Callable[[], str | None]) -> Generator[int]:
    """Answer health checks in a thread; yield the port.

    `/live` answers 200 while the process runs. `/ready` answers 200, or 503 with the `trouble`.
    """
    if address is None:
        yield 0
        return
    server = _listening(address, trouble)
    host = str(server.server_address[0])
    thread = threading.Thread(target=server.serve_forever, name="fdbqueue-health", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    _log.info("answering /live and /ready on http://%s:%d", shown, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def check_address(address: int | str | None) -> None:
    """Raise an error if this process cannot listen on the address."""
    if address is not None:
        _listening(address, lambda: None).server_close()


def ask_database(check_names: Callable[[ReadTransaction], None], tr: Transaction) -> None:
    """Check the names of a worker's queues, or fail if the database does not answer in time."""
    tr.options.set_timeout(_DATABASE)
    list(tr.get_range(*workers_range(), limit=1))
    check_names(tr)


def _listening(address: int | str, trouble: Callable[[], str | None]) -> ThreadingHTTPServer:
    # Imported late: a program that only pushes jobs needs no server.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    host, port = validate_address(address)

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        block_on_close = False  # a client that sends nothing does not hold up the end

    class Request(BaseHTTPRequestHandler):
        timeout = _REQUEST

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/live":
                self._answer(200, "ok")
            elif path == "/ready":
                found = trouble()
                self._answer(503 if found else 200, found or "ok")
            else:
                self._answer(404, "the paths are /live and /ready")

        def _answer(self, code: int, status: str) -> None:
            body = json.dumps({"status": status}).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: checks come every few seconds."""

    try:
        return Server((host, port), Request)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen: {error.strerror}", f"{host}:{port}") from None
