"""Many threads and processes use one directory; some processes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.embedded import Database, FDBError
from fdbqueue.errors import StorageError
from tests.support.programs import python
from tests.support.waiting import wait_until

INCREMENT = """
import sys
from fdbqueue.embedded import Database, FDBError
db = Database(sys.argv[1], sys.argv[2])
name = sys.argv[3].encode()
for number in range(int(sys.argv[4])):
    tr = db.create_transaction()
    while True:
        try:
            shared = int(tr[b"shared"].value or b"0")
            tr[b"shared"] = b"%d" % (shared + 1)
            tr[b"own/" + name] = b"%d" % (number + 1)
            tr.commit().wait()
            break
        except FDBError as error:
            tr.on_error(error).wait()
    print(number + 1, flush=True)
"""


def start(
    path: Path, name: str, count: int, durability: str = "full", output: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INCREMENT, str(path), durability, name, str(count)],
        stdout=output,
        text=True,
    )


@pytest.mark.parametrize("durability", ["full", "os"])
def test_a_killed_process_loses_no_acknowledged_commit_and_blocks_no_process(
    tmp_path: Path, durability: str, rng: random.Random
) -> None:
    """Writers are killed at random moments; the last number each printed must be stored."""
    path = tmp_path / "db"
    survivor = start(path, "survivor", 1_000_000, durability, subprocess.DEVNULL)
    for round_number in range(4):
        victims = [start(path, f"{round_number}-{n}", 1_000_000, durability) for n in range(2)]
        time.sleep(0.3 + rng.random() * 0.3)
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        acknowledged = [_last(victim) for victim in victims]
        with Database(path, durability) as db:
            for number, count in enumerate(acknowledged):
                stored = int(db[b"own/%d-%d" % (round_number, number)] or b"0")
                assert count <= stored <= count + 1
            before = int(db[b"own/survivor"] or b"0")
    assert survivor.poll() is None
    with Database(path, durability) as db:
        wait_until(lambda: int(db[b"own/survivor"] or b"0") > before)
        survivor.kill()
        survivor.communicate()
        rows = {row.key: int(row.value) for row in db[:]}
        assert rows.pop(b"shared") == sum(rows.values())


def _last(process: subprocess.Popen[str]) -> int:
    """Return the last number that a process printed."""
    lines = process.communicate()[0].split("\n")[:-1]
    return int(lines[-1]) if lines else 0


def in_child(body: Callable[[], object]) -> bool:
    """Call a function in a forked child; return whether it ended without an error."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def is_refused(*uses: Callable[[], object]) -> None:
    for use in uses:
        with pytest.raises(StorageError, match=r"was forked .*; open databases after the fork"):
            use()


def test_a_forked_child_is_told_to_open_databases_after_the_fork(
    tmp_path: Path, fdb_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads of the parent commit meanwhile."""
    # A busy machine may take longer than a transaction lives.
    monkeypatch.setattr("fdbqueue.embedded.storage.storage.TRANSACTION_LIFETIME", 600.0)
    monkeypatch.setattr("fdbqueue.embedded.storage.tables.LIFETIME", 600_000_000)
    stop = threading.Event()

    def commit() -> None:
        while not stop.is_set():
            db.add(b"n", b"\x01" + bytes(7))

    with Database(tmp_path / "db", "os") as db, Database(None) as private:
        db[b"k"] = b"parent"
        tr, writer = db.create_transaction(), db.create_transaction()
        tr[b"k"].wait(), writer[b"k"].wait()
        writer[b"k"] = b"child"

        def child() -> None:
            is_refused(
                lambda: writer.commit().wait(),
                lambda: db[b"k"],
                lambda: db.set(b"k", b"child"),
                lambda: private[b"k"],
                lambda: Database(tmp_path / "db"),
                lambda: Database(None),
            )
            with fdb_error(1007):
                tr[b"k"].wait()
            db.close()
            private.close()

        threads = [threading.Thread(target=commit) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert all(in_child(child) for _ in range(5))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert tr[b"k"] == b"parent"
        tr[b"k"] = b"parent again"
        tr.commit().wait()
        assert db[b"k"] == b"parent again"
        assert private[b"k"] is None


FORKS = """
import os, sys
from fdbqueue.embedded import Database
def add():
    with Database(sys.argv[1]) as db:
        db.add(b"n", bytes([1]))
for _ in range(2):
    add()
    if (child := os.fork()) == 0:
        add()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_whose_parent_has_closed_its_databases_opens_them(tmp_path: Path) -> None:
    # In a process of its own: other tests may have left a database open in this one.
    assert python(FORKS, tmp_path / "db").returncode == 0
    with Database(tmp_path / "db") as db:
        assert db[b"n"] == b"\x04"


def test_no_other_process_removes_a_database_in_memory_after_a_fork() -> None:
    with Database(None) as db:
        db[b"k"] = b"1"
        assert in_child(lambda: None)
        os.utime(db.path, (0, 0))  # as if it had been abandoned long ago
        other = python("from fdbqueue.embedded import Database; Database(None)")
        assert other.returncode == 0, other.stderr
        assert db[b"k"] == b"1"


def test_closing_a_database_ends_busy_threads_with_1025(db: Any) -> None:
    tr = db.create_transaction()
    for number in range(2000):
        tr[b"k%05d" % number] = b"x" * 50
    tr.commit().wait()
    ends: list[int] = []
    turns = [0] * 6

    def work(number: int) -> None:
        while True:
            turns[number] += 1
            try:
                if number % 2 == 0:
                    db.add(b"n", b"\x01")
                else:
                    list(db.create_transaction().snapshot[b"k":b"l"])
            except FDBError as error:
                if error.code != 1007:  # too old: a slow machine has kept a reader waiting
                    ends.append(error.code)
                    return

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(turns) > 3)
    db.close()
    for thread in threads:
        thread.join(60)
    assert ends == [1025] * 6


KILLED = """
import os, sys, threading, time
from fdbqueue.embedded import Database
from fdbqueue.embedded.storage import tables

def apply(*_):
    if os.fork() == 0:
        os.closerange(0, 3)  # for which the test would wait
        time.sleep(60)
    os.kill(os.getpid(), 9)

db = Database(sys.argv[1], "os")
tables.apply = apply
db[b"k"] = b"v"
"""


def test_a_forked_child_keeps_no_lock_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "db"
    assert python(KILLED, path).returncode == -9
    with Database(path, "os") as db:
        db.options.set_transaction_timeout(20_000)
        db[b"k"] = b"other"
        assert db[b"k"] == b"other"
