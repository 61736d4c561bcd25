"""The record of a directory's changes is complete, and faults happen on command."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long.hostile.disk.shim import Disk, Entry, need_shim, read_record

ROOT = Path(__file__).parents[3]
CALLS = """
import os, sys, threading
from tests.long.hostile.disk.shim import mark
os.chdir(sys.argv[1])
file = os.open("a", os.O_RDWR | os.O_CREAT)
os.write(file, b"one")
os.pwrite(file, b"two", 10)
os.writev(file, [b"th", b"ree"])
os.ftruncate(file, 5)
os.posix_fallocate(file, 0, 20)
mark(b"known")
os.fdatasync(file)
os.mkdir("b")
os.rename("a", "b/c")
directory = os.open("b", os.O_RDONLY)
os.fsync(directory)
os.unlink("c", dir_fd=directory)
os.pwrite(file, b"gone", 0)
open("d", "w").close()
open("d", "w").close()
open("/dev/null", "w").write("elsewhere")
"""
COMMITS = """
import sys
from fdbqueue.embedded import Database
db = Database(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    try:
        db[line.encode()] = b"v"
        print("done", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    need_shim()
    (tmp_path / "db").mkdir()
    return Disk(tmp_path / "db", tmp_path)


def run(disk: Disk, program: str) -> list[Entry]:
    command = [sys.executable, "-c", program, str(disk.root)]
    subprocess.run(command, env=disk.environment, cwd=ROOT, check=True, timeout=60)
    return list(read_record(disk.record))


class Committer:
    """A process that commits when told to."""

    def __init__(self, disk: Disk) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMITS, str(disk.root)],
            env=disk.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "open"

    def begin(self) -> None:
        self.process.stdin.write("key\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def commit(self) -> str:
        self.begin()
        return self.answer()

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def test_each_change_is_recorded_in_its_order(disk: Disk) -> None:
    entries = [(each.kind, each.name, each.at, each.data) for each in run(disk, CALLS)]
    assert entries == [
        ("C", "a", 0, b""),
        ("W", "a", 0, b"one"),
        ("W", "a", 10, b"two"),
        ("W", "a", 3, b"th"),
        ("W", "a", 5, b"ree"),
        ("T", "a", 5, b""),
        ("A", "a", 20, b""),
        ("M", "", 0, b"known"),
        ("B", "a", 0, b""),
        ("E", "a", 0, b""),
        ("D", "b", 0, b""),
        ("R", "a", 0, b"b/c"),
        ("B", "b", 0, b""),
        ("E", "b", 0, b""),
        ("U", "b/c", 0, b""),
        ("W", "b/c", 0, b"gone"),
        ("C", "d", 0, b""),
        ("T", "d", 0, b""),
    ]


def test_the_engine_s_writes_and_syncs_are_recorded(disk: Disk) -> None:
    with Committer(disk) as committer:
        before = disk.position
        assert committer.commit() == "done"
        after = disk.position
    entries = [each for each in read_record(disk.record) if before < each.end <= after]
    log = [each.kind for each in entries if each.name.endswith("-wal")]
    assert "W" in log
    assert log[-2:] == ["B", "E"]


def test_a_sync_fails_once(disk: Disk) -> None:
    with Committer(disk) as committer:
        assert committer.commit() == "done"
        fault = disk.fail_syncs("-wal", errno.EIO, times=1)
        assert [committer.commit(), committer.commit()] == ["CommitUnknownResult", "SyncFailed"]
        fault.end()
    assert fault.met == 1
    errors = [each.at for each in read_record(disk.record) if each.kind == "E"]
    assert errors.count(errno.EIO) == 1


def test_a_write_fails_until_the_fault_ends(disk: Disk) -> None:
    with Committer(disk) as committer:
        fault = disk.fail_writes("-wal")
        assert [committer.commit(), committer.commit()] == ["DiskFull", "DiskFull"]
        fault.end()
        assert committer.commit() == "done"


def test_a_sync_hangs_until_it_is_released(disk: Disk) -> None:
    with Committer(disk) as committer:
        with disk.hanging_syncs("-wal") as fault:
            committer.begin()
            fault.wait_until_met()
            assert fault.waiting >= 1
            ends = [each for each in read_record(disk.record) if each.kind == "E"]
        assert committer.answer() == "done"
    assert len([each for each in read_record(disk.record) if each.kind == "E"]) > len(ends)


def test_a_false_sync_is_not_one_in_the_record(disk: Disk) -> None:
    with Committer(disk) as committer:
        fault = disk.false_syncs("-wal", times=1)
        assert committer.commit() == "done"
        fault.end()
    assert -1 in [each.at for each in read_record(disk.record) if each.kind == "E"]
