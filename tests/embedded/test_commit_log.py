"""The log of recent commits detects conflicts, also after a writer was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.disk.commit_log import CommitLog


@pytest.fixture
def log(tmp_path: Path) -> Any:
    log = CommitLog(tmp_path / "log")
    assert log.is_first()
    log.begin_anew(100, 1000)
    yield log
    log.close()


def write(log: CommitLog, version: int, *keys: bytes) -> None:
    log.publish(
        log.append(log.published[0], version, [part for key in keys for part in (key, b"")]),
        version,
    )


def test_since_returns_the_entries_after_an_offset(log: CommitLog) -> None:
    begin, version = log.published
    assert version == 100
    write(log, 101, b"a", b"b")
    middle = log.published[0]
    log.publish(log.append(middle, 102, [b"c", b"e"]), 102)
    assert list(log.between(middle, log.published[0])) == [(b"c", b"e")]
    assert list(log.between(begin, log.published[0])) == [
        (b"a", b"a\0"),
        (b"b", b"b\0"),
        (b"c", b"e"),
    ]
    assert log.published[1] == 102
    assert log.state() == (log.published[0], 102, 0, 0, 1000, 0)


def test_a_complete_entry_of_a_killed_writer_is_published(tmp_path: Path, log: CommitLog) -> None:
    write(log, 101, b"a")
    tail, _ = log.published
    log.begin(200)
    assert log.state() == (tail, 101, 0, 200, 1000, 0)
    end = log.append(tail, 201, [b"b" * 100, b""])
    assert log.published == (tail, 101)
    with (tmp_path / "log").open("rb+") as file:
        file.seek(64 + end - 9)
        last = file.read(9)
        file.seek(64 + end - 9)
        file.write(bytes(9))  # as if the kill had come before these bytes
    assert log.recover() == (tail, 101, 0, 1000)
    assert log.state() == (tail, 101, 0, 0, 1000, 0)
    with (tmp_path / "log").open("rb+") as file:
        file.seek(64 + end - 9)
        file.write(last)
    log.begin(200)
    assert log.recover() == (end, 201, 0, 1000)
    assert list(log.between(tail, log.published[0])) == [(b"b" * 100, b"b" * 100 + b"\0")]


def test_old_bytes_behind_the_tail_are_not_an_entry(log: CommitLog) -> None:
    tail, _ = log.published
    log.append(tail, 150, [b"old", b""])
    log.begin(200)
    assert log.recover() == (tail, 100, 0, 1000)


def test_remains_of_older_entries_at_the_tail_are_not_an_entry(log: CommitLog, rng: Any) -> None:
    """Whatever bytes are left there by an earlier use of the ring, none is taken for a commit."""
    tail, _ = log.published
    for _ in range(300):
        shift = rng.randrange(1, 40)
        for start in (0, rng.randrange(200)):
            offset = log.append(tail + start - shift if start > shift else tail, 2**40, [b"k", b""])
            log.append(offset, rng.randrange(2**62), [rng.randbytes(rng.randrange(60)), b""])
        # An entry that lies at another offset than the tail.
        garbage = rng.randrange(1, 12)
        log.append(tail + garbage, 2**41, [bytes(40), b""])
        log.begin(200)
        assert log.recover()[:2] == (tail, 100)


def test_the_ring_wraps_around_and_rejects_overwritten_offsets(
    log: CommitLog, fdb_error: Any
) -> None:
    begin, _ = log.published
    offsets = []
    for number in range(3000):
        offsets.append(log.published[0])
        write(log, 101 + number, b"%05d" % number + b"x" * 5000)
    assert [key[:5] for key, _ in log.between(offsets[-500], log.published[0])] == [
        b"%05d" % number for number in range(2500, 3000)
    ]
    with fdb_error(1007):
        list(log.between(begin, log.published[0]))


def test_a_large_entry_is_stored_as_one_covering_range(log: CommitLog) -> None:
    begin, _ = log.published
    keys = (b"%06d" % number for number in range(100_000))
    log.publish(log.append(begin, 101, [part for key in keys for part in (key, b"")]), 101)
    assert list(log.between(begin, log.published[0])) == [(b"000000", b"099999\0")]


def test_only_a_handle_without_other_users_is_first(tmp_path: Path) -> None:
    one, two = CommitLog(tmp_path / "log"), CommitLog(tmp_path / "log")
    assert one.is_first()
    one.begin_anew(100, 1000)
    one.join()
    assert not two.is_first()
    one.close()
    two.close()
    three = CommitLog(tmp_path / "log")
    assert three.is_first()
    three.close()


DIES = """
import os, sys
import fdbqueue.embedded.disk.commit_log as log, fdbqueue.embedded.storage.sql_writer as writer
from fdbqueue.embedded import Database
path, step = sys.argv[1:]
db = Database(path)
die = lambda *_: os.kill(os.getpid(), 9)
def after(method):
    return lambda *arguments: (method(*arguments), die())
steps = {
    "before the entry": (log.CommitLog, "append", die),
    "after the entry": (log.CommitLog, "append", after(log.CommitLog.append)),
    "after the commit": (log.CommitLog, "publish", die),
    "after publishing": (log.CommitLog, "publish", after(log.CommitLog.publish)),
}
owner, name, replacement = steps[step]
setattr(owner, name, replacement)
db[b"k"] = b"by the killed one"
"""


@pytest.mark.parametrize(
    ("step", "took_place"),
    [
        ("before the entry", False),
        ("after the entry", False),
        ("after the commit", True),
        ("after publishing", True),
    ],
)
def test_a_writer_killed_at_any_step_hides_no_commits(
    tmp_path: Path, fdb_error: Any, step: str, took_place: bool
) -> None:
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"before"
        reader = db.create_transaction()
        assert reader[b"k"] == b"before"
        reader[b"seen"] = b"before"
        done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "db"), step])
        assert done.returncode == -9
        assert db[b"k"] == (b"by the killed one" if took_place else b"before")
        if took_place:
            with fdb_error(1020):
                reader.commit().wait()
            reader.on_error(1020).wait()
        db.add(b"n", b"\x01")
        db[b"k"] = b"after"
        assert db[b"k"] == b"after"


def test_a_cached_counter_includes_changes_by_other_processes(
    tmp_path: Path, fdb_error: Any
) -> None:
    """An engine caches counters that it wrote, but must not miss changes by others."""
    with Database(tmp_path / "db") as one, Database(tmp_path / "db") as two:

        def value() -> int:
            return int.from_bytes(one[b"n"] or b"", "little")

        up = b"\x01" + bytes(3)
        one.add(b"n", up), one.add(b"n", up)
        assert value() == 2
        two.add(b"n", up), one.add(b"n", up)
        assert value() == 4
        one[b"n"] = b"\x09" + bytes(3)
        one.add(b"n", up)
        assert value() == 10
        del one[b"n"]
        one.add(b"n", up)
        assert value() == 1
        one.clear_range(b"a", b"z")
        one.add(b"n", up)
        assert value() == 1
        tr = one.create_transaction()
        tr.add(b"n", up)
        tr.clear_range(b"a", b"z")
        tr.commit().wait()
        one.add(b"n", up)
        assert value() == 1
        tr = one.create_transaction()
        tr.add(b"n", up)
        tr[b"n"] = b"\x20" + bytes(3)
        tr.commit().wait()
        one.add(b"n", up)
        assert value() == 33
        tr = one.create_transaction()
        tr[b"read"].wait()
        tr.add(b"n", up)
        one[b"read"] = b""
        with fdb_error(1020):
            tr.commit().wait()
        one.add(b"n", up)
        assert value() == 34
