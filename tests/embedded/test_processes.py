"""Many threads and processes use one directory; some processes are killed."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.embedded import Database, FDBError
from fdbqueue.embedded.storage.lock import lock_owners
from fdbqueue.embedded.storage.names import DATABASE_FILE, LOCK_FILE
from tests.support.threads import in_threads
from tests.support.waiting import wait_until

PROC_LOCKS = Path("/proc/locks")
linux = pytest.mark.skipif(not PROC_LOCKS.exists(), reason="only Linux lists locks")

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


def test_processes_that_increment_one_counter_lose_nothing(tmp_path: Path) -> None:
    processes = [start(tmp_path / "db", str(number), 100) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    with Database(tmp_path / "db") as db:
        assert db[b"shared"] == b"400"


def test_threads_that_increment_one_counter_lose_nothing(db: Any) -> None:
    def work() -> None:
        for _ in range(50):
            tr = db.create_transaction()
            while True:
                try:
                    tr[b"n"] = b"%d" % (int(tr[b"n"].value or b"0") + 1)
                    tr.commit().wait()
                    break
                except FDBError as error:
                    tr.on_error(error).wait()

    in_threads([work] * 8)
    assert db[b"n"] == b"400"


@pytest.mark.parametrize("durability", ["full", "os"])
def test_a_killed_process_loses_no_acknowledged_commit_and_blocks_no_process(
    tmp_path: Path, durability: str, rng: random.Random
) -> None:
    """Writers are killed at random moments; the last number each printed must be stored."""
    path = tmp_path / "db"
    survivor = start(path, "survivor", 1_000_000, durability, subprocess.DEVNULL)
    for round_number in range(8):
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


def test_a_forked_child_opens_its_own_connections(tmp_path: Path, fdb_error: Any) -> None:
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"parent"
        open_in_parent = db.create_transaction()
        open_in_parent[b"k"].wait()
        child = os.fork()
        if child == 0:
            try:
                assert db[b"k"] == b"parent"
                db[b"k"] = b"child"
                try:
                    open_in_parent[b"k"].wait()
                except FDBError as error:
                    os._exit(0 if error.code == 1007 else 2)
                os._exit(3)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with fdb_error(1007):
            open_in_parent[b"k"].wait()
        open_in_parent.on_error(1007).wait()
        assert open_in_parent[b"k"] == b"child"
        assert db[b"k"] == b"child"
        db[b"k"] = b"parent again"
        assert db[b"k"] == b"parent again"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_databases_whose_files_are_gone_keep_no_other_one_closed_after_a_fork(
    tmp_path: Path,
) -> None:
    opened = [Database(tmp_path / str(number)) for number in range(8)]  # in any order at a fork
    for number in range(0, 8, 2):
        shutil.rmtree(tmp_path / str(number))
    others = opened[1::2]
    child = os.fork()
    if child == 0:
        try:
            for db in others:
                db[b"k"] = b"child"
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [db[b"k"] for db in others] == [b"child"] * 4


def test_a_forked_child_does_not_remove_a_database_in_memory(tmp_path: Path) -> None:
    with Database(None) as db:
        db[b"k"] = b"1"
        child = os.fork()
        if child == 0:
            db.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert db[b"k"] == b"1"
        db[b"k"] = b"2"


def test_no_other_process_removes_a_database_in_memory_after_a_fork() -> None:
    with Database(None) as db:
        db[b"k"] = b"1"
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.utime(db.path, (0, 0))  # as if it had been abandoned long ago
        other = [sys.executable, "-c", "from fdbqueue.embedded import Database; Database(None)"]
        subprocess.run(other, check=True)
        assert db[b"k"] == b"1"


def test_writes_of_a_child_survive_the_close_of_its_parent(tmp_path: Path) -> None:
    """SQLite tracks its locks per process; a child must not inherit this state."""
    path = tmp_path / "db"
    db = Database(path)
    db[b"k"] = b"parent"
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            db[b"early"] = b"1"
            os.write(ready_write, b"x")
            os.read(go_read, 1)
            for number in range(10):
                db[b"late/%d" % number] = b"1"
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.read(ready_read, 1)
    db.close()
    with Database(path) as other:
        other[b"in between"] = b"1"
    os.write(go_write, b"x")
    assert os.waitpid(child, 0)[1] == 0
    with Database(path) as db:
        assert len(db[:]) == 13


def test_a_process_can_fork_while_other_threads_commit(tmp_path: Path) -> None:
    with Database(tmp_path / "db", "os") as db:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                db.add(b"n", b"\x01" + bytes(7))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                child = os.fork()
                if child == 0:
                    try:
                        db[b"child/%d" % number] = b"1"
                        os._exit(0)
                    except BaseException:
                        os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(db.get_range_startswith(b"child/")) == 10


def test_closing_a_database_ends_busy_threads_with_1025(db: Any) -> None:
    tr = db.create_transaction()
    for number in range(2000):
        tr[b"k%05d" % number] = b"x" * 50
    tr.commit().wait()
    ends: list[int] = []
    turns = [0] * 6

    def work(number: int) -> None:
        writes = number % 2 == 0
        try:
            while True:
                turns[number] += 1
                if writes:
                    db.add(b"n", b"\x01")
                else:
                    list(db.create_transaction().snapshot[b"k":b"l"])
        except FDBError as error:
            ends.append(error.code)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(turns) > 3)
    db.close()
    for thread in threads:
        thread.join(60)
    assert ends == [1025] * 6


def test_slow_readers_fail_only_with_transaction_too_old(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads expire snapshots, but never during a read."""
    monkeypatch.setattr("fdbqueue.embedded.storage.connection.TRANSACTION_LIFETIME", 0.2)
    monkeypatch.setattr("fdbqueue.embedded.storage.storage._LOOK", 0.01)
    tr = db.create_transaction()
    for number in range(3000):
        tr[b"k%05d" % number] = b"x" * 20
    tr.commit().wait()
    ends: list[int] = []

    def work() -> None:
        tr = db.create_transaction()
        try:
            while True:
                assert len(list(tr.snapshot.get_range(b"k", b"l", limit=3000))) == 3000
        except FDBError as error:
            ends.append(error.code)

    in_threads([work] * 4)
    assert ends == [1007] * 4


@linux
def test_a_child_forked_while_other_threads_read_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """Without one, the last connection of the parent would remove the log that the child uses."""
    path = tmp_path / "db"
    with Database(path, "os") as db:
        db[b"k"] = b"v"
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                assert db[b"k"] == b"v"

        def is_locked() -> bool:
            return os.getpid() in lock_owners(path / DATABASE_FILE, "POSIX", "READ", range(1 << 62))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    try:
                        assert db[b"k"] == b"v"
                        # The list may miss a lock while others come and go.
                        wait_until(is_locked, 10)
                        os._exit(0)
                    except BaseException:
                        os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@linux
def test_a_child_forked_while_a_thread_waits_to_commit_does_not_keep_its_lock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "db"
    with Database(path, "os") as db:
        db[b"k"] = b"v"
        with (path / LOCK_FILE).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting = threading.Thread(target=db.set, args=(b"k", b"new"))
            waiting.start()
            wait_until(lambda: "->" in flocks(path / LOCK_FILE))
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            waiting.join(60)
            assert db[b"k"] == b"new"
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_fork_does_not_wait_forever_for_a_reading_thread_that_closes_a_database(
    tmp_path: Path,
) -> None:
    """The garbage collector may close an abandoned database wherever a thread is."""
    with Database(tmp_path / "db", "os") as db:
        other = Database(tmp_path / "other", "os")
        tr = db.create_transaction()
        tr[b"k"].wait()
        is_reading = threading.Event()

        def read() -> None:
            with tr._attempt.snapshot.busy:
                is_reading.set()
                time.sleep(0.2)  # the fork waits
                other.close()

        reading = threading.Thread(target=read)
        reading.start()
        is_reading.wait()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        reading.join(30)
        assert not reading.is_alive()
        db[b"k"] = b"v"
        assert db[b"k"] == b"v"


def flocks(path: Path) -> str:
    inode = f":{path.stat().st_ino} "
    return "\n".join(line for line in PROC_LOCKS.read_text().splitlines() if inode in line)
