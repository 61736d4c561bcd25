"""Opening a database after a crash recovers it or reports the damage."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import DATABASE_FILE

LOG = f"{DATABASE_FILE}-wal"
FRAME = 24 + 4096
HEADER = 32
COMMITS = 60
PROGRAM = """
import os, sys
from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import DATABASE_FILE
db = Database(sys.argv[1], sys.argv[2])
for number in range(int(sys.argv[3])):
    db[b"%04d" % number] = b"x" * 500
os.kill(os.getpid(), 9)
"""


def killed(path: Path, durability: str = "full", commits: int = COMMITS) -> Path:
    """Create a database whose only process is killed after its last commit; return its path."""
    arguments = [str(path), durability, str(commits)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9, done
    return path


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("crashed") / "db")


@pytest.mark.parametrize("tail", ["half a frame", "no commit", "old frames"])
def test_a_torn_tail_of_the_log_is_not_damage(
    crashed: Path, tmp_path: Path, rng: random.Random, tail: str
) -> None:
    """A killed writer or an older generation may leave any bytes behind the last commit."""
    path = tmp_path / "db"
    shutil.copytree(crashed, path)
    log = (path / LOG).read_bytes()
    frame = log[HEADER : HEADER + FRAME]
    torn = {
        "half a frame": frame[:1000],
        "no commit": rng.randbytes(4) + bytes(4) + log[16:24] + rng.randbytes(8 + 4096),
        "old frames": (frame[:8] + rng.randbytes(FRAME - 8)) * 3,
    }[tail]
    (path / LOG).write_bytes(log + torn)
    with Database(path) as db:
        assert len(db[:]) == COMMITS


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_an_interrupted_creation_is_completed(tmp_path: Path, mode: str) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
    (tmp_path / LOG).write_bytes(bytes(1000))
    for value in (b"first", b"second"):
        with Database(tmp_path) as db:
            db[b"k"] = value
    with Database(tmp_path) as db:
        assert db[b"k"] == b"second"


def test_an_interrupted_creation_is_completed_although_its_journal_is_left(tmp_path: Path) -> None:
    """A power cut may keep SQLite's rollback journal, which says that the file was empty."""
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    (tmp_path / LOG).write_bytes(bytes(1000))
    magic = bytes.fromhex("d9d505f920a163d7")
    numbers = struct.pack(">5I", 0, 0, 0, 512, 4096)  # no records, no pages before
    (tmp_path / f"{DATABASE_FILE}-journal").write_bytes((magic + numbers).ljust(512, b"\0"))
    with Database(tmp_path) as db:
        db[b"k"] = b"v"
    with Database(tmp_path) as db:
        assert db[b"k"] == b"v"


def test_an_orderly_shutdown_reports_no_missing_commits(tmp_path: Path) -> None:
    """The last connection that closes the database removes the log."""
    path = tmp_path / "db"
    for _ in range(2):
        with Database(path) as one, Database(path) as two:
            one[b"k"] = two[b"l"] = b"v"
        assert not (path / LOG).exists()
    with Database(path) as db:
        assert (db[b"k"], db[b"l"]) == (b"v", b"v")
