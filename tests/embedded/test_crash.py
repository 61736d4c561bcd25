"""Opening a database after a crash recovers it or reports the damage."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.disk.commit_log import COMMITS_FILE, CommitLog
from fdbqueue.embedded.disk.generations import DATABASE_FILE
from fdbqueue.embedded.disk.write_ahead_log import Extent
from fdbqueue.errors import CorruptDatabase

LOG = f"{DATABASE_FILE}-wal"
FRAME = 24 + 4096
HEADER = 32
COMMITS = 60
PROGRAM = """
import os, sys
from fdbqueue.embedded import Database
db = Database(sys.argv[1], sys.argv[2])
for number in range(int(sys.argv[3])):
    db[b"%04d" % number] = b"x" * 500
print(db.storage.log.synced.frames)
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


def killed(path: Path, durability: str = "full", commits: int = COMMITS) -> Path:
    """Create a database whose only process is killed after its last commit; return its path."""
    arguments = [str(path), durability, str(commits)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9, done
    frames = ((path / LOG).stat().st_size - HEADER) // FRAME
    assert int(done.stdout) == (frames if durability == "full" else 0)
    return path


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("crashed") / "db")


def cut(log: bytes, rng: random.Random) -> bytes:
    return log[: rng.randrange(HEADER, len(log) - FRAME) // FRAME * FRAME + HEADER]


def cut_in_a_frame(log: bytes, rng: random.Random) -> bytes:
    return log[: rng.randrange(HEADER, len(log) - 1)]


def last_commit_cut(log: bytes, rng: random.Random) -> bytes:
    return log[:-FRAME]


def bit_flipped(log: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(HEADER, len(log))
    return log[:at] + bytes([log[at] ^ 1 << rng.randrange(8)]) + log[at + 1 :]


def end_zeroed(log: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(HEADER, len(log) - 1)
    return log[:at] + bytes(len(log) - at)


def header_zeroed(log: bytes, rng: random.Random) -> bytes:
    return bytes(HEADER) + log[HEADER:]


def emptied(log: bytes, rng: random.Random) -> bytes:
    return b""


Damage = Callable[[bytes, random.Random], bytes]


@pytest.mark.parametrize(
    "damage",
    [cut, cut_in_a_frame, last_commit_cut, bit_flipped, end_zeroed, header_zeroed, emptied, None],
)
def test_acknowledged_commits_missing_from_the_log_are_reported(
    crashed: Path, tmp_path: Path, rng: random.Random, damage: Damage | None
) -> None:
    path = tmp_path / "db"
    shutil.copytree(crashed, path)
    if damage is None:
        (path / LOG).unlink()
    else:
        (path / LOG).write_bytes(damage((path / LOG).read_bytes(), rng))
    (path / (f"{DATABASE_FILE}-shm")).unlink()
    evidence = contents(path)
    for _ in range(2):
        with pytest.raises(CorruptDatabase, match="acknowledged commits") as error:
            Database(path)
        assert contents(path) == evidence
    assert f"delete {COMMITS_FILE}" in str(error.value)

    (path / COMMITS_FILE).unlink()
    if (path / DATABASE_FILE).stat().st_size > 4096:
        with Database(path) as db:
            keys = [row.key for row in db[:]]
            assert keys == [b"%04d" % number for number in range(len(keys))]
            assert len(keys) < COMMITS


def contents(path: Path) -> dict[str, bytes]:
    """Return the contents of the files that a failed open must not change."""
    return {
        name: (path / name).read_bytes()
        for name in (DATABASE_FILE, LOG, COMMITS_FILE)
        if (path / name).exists()
    }


def test_the_log_of_an_emptied_database_is_kept(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "db"
    shutil.copytree(crashed, path)
    os.truncate(path / DATABASE_FILE, 0)
    evidence = contents(path)
    with pytest.raises(CorruptDatabase, match="the database file is empty"):
        Database(path)
    assert contents(path) == evidence


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


def test_a_note_of_a_log_that_had_ended_before_is_no_evidence(tmp_path: Path) -> None:
    """A sync may end, and take its note, just after SQLite began its log again or removed it."""
    with Database(tmp_path) as db:
        db[b"k"] = b"v"
    commits = CommitLog(tmp_path / COMMITS_FILE)
    commits.committed, commits.synced = Extent(1, 2), Extent(7, 30)
    commits.close()
    with Database(tmp_path) as db:
        assert db[b"k"] == b"v"


def test_unsynced_commits_are_not_reported_as_missing(tmp_path: Path) -> None:
    """`durability="os"` does not promise that they survive a crash."""
    path = killed(tmp_path / "db", "os")
    os.truncate(path / LOG, HEADER + 20 * FRAME)
    with Database(path) as db:
        assert len(db[:]) < COMMITS


def test_pages_are_checked_after_a_crash(tmp_path: Path) -> None:
    """By then, only the keys of the last process are not yet in the main file."""
    path = killed(tmp_path / "db", "os", 1500)
    with Database(path):
        pass
    killed(path, "os", 1)
    file = path / DATABASE_FILE
    content = file.read_bytes()
    leaves = [at for at in range(4096, len(content), 4096) if content[at] == 10]
    one, two = leaves[20], leaves[40]
    damaged = bytearray(content)
    damaged[one : one + 4096] = content[two : two + 4096]
    file.write_bytes(damaged)
    evidence = contents(path)
    with pytest.raises(CorruptDatabase, match="damaged"):
        Database(path)
    assert contents(path) == evidence


def test_an_orderly_shutdown_reports_no_missing_commits(tmp_path: Path) -> None:
    """The last connection that closes the database removes the log, also before a fork."""
    path = tmp_path / "db"
    for _ in range(2):
        with Database(path) as one, Database(path) as two:
            one[b"k"] = two[b"l"] = b"v"
        assert not (path / LOG).exists()
    program = (
        "import os, sys; from fdbqueue.embedded import Database; db = Database(sys.argv[1]);"
        "db[b'k'] = b'v'; db.storage.before_fork(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], timeout=60)
    assert not (path / LOG).exists()
    with Database(path) as db:
        assert db[b"k"] == b"v"


def test_a_log_checkpointed_by_another_program_is_reported(crashed: Path, tmp_path: Path) -> None:
    """`sqlite3` does so after a crash. Following the advice in the error restores all data."""
    path = tmp_path / "db"
    shutil.copytree(crashed, path)
    connection = sqlite3.connect(path / DATABASE_FILE)
    assert connection.execute("SELECT count(*) FROM kv").fetchone() == (COMMITS,)
    connection.close()
    with pytest.raises(CorruptDatabase, match="another program"):
        Database(path)
    (path / COMMITS_FILE).unlink()
    with Database(path) as db:
        assert len(db[:]) == COMMITS


def test_the_synced_position_follows_the_log_across_processes_and_resets(tmp_path: Path) -> None:
    """It equals the end of the last commit in SQLite's own index."""
    with Database(tmp_path / "db") as one, Database(tmp_path / "db") as two:
        generations = set()
        for number in reversed(range(40)):  # shorter generations after longer ones
            for db in (one, two):
                tr = db.create_transaction()
                for part in range(number):
                    tr[b"%d/%d" % (part, number)] = b"x" * 4000
                tr[b"k"] = b"%d" % number
                tr.commit().wait()
            synced = one.storage.log.synced
            generations.add(synced.salt)
            if number % 5 == 0:
                with closing(sqlite3.connect(tmp_path / "db" / DATABASE_FILE)) as connection:
                    checkpoint = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    assert synced.frames == checkpoint.fetchone()[1]
        assert len(generations) > 1
