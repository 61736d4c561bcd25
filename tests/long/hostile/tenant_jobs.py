"""Jobs of groups with limits, declared as a user declares them; a log tells what commits claim."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import fdb.tuple

from fdbqueue import PriorityQueue, Subspace, Transaction
from fdbqueue.jobs import App, Context, Dead, Retry
from fdbqueue.layout.values import MINUS_ONE, decode_metadata
from fdbqueue.testing import FaultyDatabase
from fdbqueue.testing.faults import FaultyTransaction
from tests.long.hostile.app_workers import bind_worker, write_line
from tests.support.keys import layout_of

POLICY = Retry(attempts=None, first="400ms", longest="1s")
QUEUES = ("shared", "rated")
"""The ends of the names of the queues; the second one has a rate."""
GIVEN_BACK = "given back"
"""The state, in the log, of the start of a job that a worker has given back before it began."""
_RUN = "HOSTILE_TENANTS"  # the variable with the beginning of the names of the queues


class Act(str, Enum):
    """What one attempt of a job does."""

    WRITE = "write"
    """It writes in the transaction that ends it."""
    COMMIT = "commit"
    """It writes in a transaction before."""
    COMMIT_AND_FAIL = "commit and fail"
    FAIL = "fail"
    DIE = "die"
    KILL = "kill"
    """It kills its process."""


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        number: Its number, in the order of the pushes.
        tenants: The beginning of the names of the queues.
        group: Its group.
        acts: What its attempts do; the last one of them as often as needed.
        seconds: How long each attempt takes.
    """

    number: int
    tenants: str
    group: str
    acts: list[Act]
    seconds: float


def effects(tenants: str) -> Subspace:
    """Return where the jobs write their numbers, by group, in the order of the commits."""
    return Subspace(("tenants", tenants, "effects"))


def commits(tenants: str) -> Subspace:
    """Return where the log of the commits is."""
    return Subspace(("tenants", tenants, "commits"))


def stamped(prefix: bytes, end: bytes = b"") -> bytes:
    """Return a key in which the commit writes its versionstamp behind a prefix."""
    return prefix + bytes(10) + end + struct.pack("<L", len(prefix))


class LoggedDatabase(FaultyDatabase):
    """A database whose commits write what they do with the items of some queues to a log."""

    def __init__(self, db: Any, tenants: str, **faults: Any) -> None:
        super().__init__(db, **faults)
        self.spaces: dict[bytes, tuple[str, str]] = {}
        """The names of a queue and of a state, by the prefix of the items that are in it."""
        self.starts: dict[bytes, str] = {}
        """The names of the queues, by the prefix of the starts that their rates count."""
        for name in QUEUES:
            layout = layout_of(PriorityQueue.named(db, f"{tenants}-{name}"))
            for state in ("ready", "delayed", "claimed"):
                self.spaces[layout.prefix_of[state]] = name, state
            self.starts[layout.starts] = name
        self._log = commits(tenants)

    def create_transaction(self) -> FaultyTransaction:
        return _LoggedTransaction(self, self.db.create_transaction())

    def commit(self, transaction: FaultyTransaction) -> None:
        assert isinstance(transaction, _LoggedTransaction)
        if transaction.moves:
            version = transaction.get_read_version().wait()
            value = json.dumps([version, transaction.moves]).encode()
            transaction.wrapped.set_versionstamped_key(stamped(self._log.key()), value)
        super().commit(transaction)


class _LoggedTransaction(FaultyTransaction):
    """A transaction that knows which items it has stored (with their tokens) and deleted."""

    _db: LoggedDatabase

    def __init__(self, db: LoggedDatabase, wrapped: Any) -> None:
        super().__init__(db, wrapped)
        self.moves: list[tuple[str, str, str, str | None]] = []

    def _note(self, key: bytes, value: bytes | None) -> None:
        for prefix, (queue, state) in self._db.spaces.items():
            if key.startswith(prefix):
                token = None if value is None else ""
                if value is not None and state == "claimed":
                    token = decode_metadata(value)[0][0].hex()
                self.moves.append((queue, state, key[len(prefix) :].hex(), token))

    def _note_starts(self, key: bytes, n: bytes) -> None:
        """Note a start that is given back: its read version, and the group whose rate counts it."""
        for prefix, queue in self._db.starts.items():
            if key.startswith(prefix) and n == MINUS_ONE:
                group, _, version = fdb.tuple.unpack(key[len(prefix) :])
                self.moves.append((queue, GIVEN_BACK, str(version), group))

    def on_error(self, error: Any) -> Any:
        self.moves.clear()
        return super().on_error(error)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note(key, value)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._note(key, None)
        super().__delitem__(key)

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name == "add":

            def noted_add(key: Any, n: Any) -> None:
                self._note_starts(key, n)
                method(key, n)

            return noted_add
        if name not in ("set", "clear"):
            return method

        def noted(key: Any, value: Any = None) -> None:
            self._note(key, value)
            method(key, value) if name == "set" else method(key)

        return noted


def record(tr: Transaction, job: Job) -> None:
    """Write that a job has taken effect, behind all effects so far."""
    # Jobs of one group may end in one transaction.
    key = stamped(effects(job.tenants)[job.group].key(), job.number.to_bytes(4, "big"))
    tr.set_versionstamped_key(key, b"%d" % job.number)


app = App()
bind_worker(app, lambda db, **faults: LoggedDatabase(db, os.environ[_RUN], **faults))


def tell_workers(tenants: str) -> None:
    """Tell the processes that will be started the beginning of the names of the queues."""
    os.environ[_RUN] = tenants


def _by_group(job: Job) -> str:
    return job.group


@app.job(retry=POLICY, group=_by_group)
def work(context: Context, job: Job) -> None:
    """Do what an attempt has to do."""
    act = job.acts[min(context.attempt, len(job.acts)) - 1]
    write_line(job.number, context.attempt)  # a process that has written one may be stopped
    time.sleep(job.seconds)
    if act is Act.FAIL:
        raise OSError("a job that fails")
    if act is Act.DIE:
        raise Dead("a job that dies")
    if act is Act.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if act is Act.WRITE:
        context.at_end(record, job)
        return
    context.commit("write", record, job)
    if act is Act.COMMIT_AND_FAIL:
        raise OSError("a job that fails after its effect")
