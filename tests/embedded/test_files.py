"""Database directories that are foreign, damaged, of another format, full or read-only."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import fdbqueue
from fdbqueue.database import clock as clock_of_queues
from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import DATABASE_FILE, INDEX_FILE, LOCK_FILE, LOG_FILE
from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    FilesReplaced,
    FormatVersionMismatch,
    NotADatabase,
)
from tests.support.programs import python
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory of a database with one key."""
    with Database(tmp_path / "db") as db:
        db[b"k"] = b"v"
    return tmp_path / "db"


def test_data_and_versions_survive_a_reopen(path: Path) -> None:
    with Database(path) as db:
        before = db.create_transaction().get_read_version().wait()
    with Database(path) as db:
        assert db[b"k"] == b"v"
        assert db.create_transaction().get_read_version().wait() >= before


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_database_with_a_missing_file_is_not_created_again(path: Path, lost: str) -> None:
    (path / DATABASE_FILE).unlink()
    if lost == "empty":
        (path / DATABASE_FILE).touch()
    before = sorted(path.iterdir())
    with pytest.raises(CorruptDatabase, match="is missing or empty"):
        Database(path)
    assert sorted({*path.iterdir(), path / LOCK_FILE}) == before


def test_a_directory_with_foreign_files_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(NotADatabase, match="holds other files"):
        Database(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "new" / "lost+found").mkdir(parents=True)  # as on a separate file system
    with Database(tmp_path / "new") as db:
        db[b"k"] = b"v"


def test_open_creates_a_database_unless_creation_is_disabled(path: Path, tmp_path: Path) -> None:
    for nowhere in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotADatabase, match="there is no database here"):
            fdbqueue.open(nowhere, create=False)
    assert not (tmp_path / "nowhere").exists()
    with fdbqueue.open(path, create=False) as db:
        assert db[b"k"] == b"v"
    with fdbqueue.open("memory:", create=False) as db:
        assert db[b"k"] is None


def test_versions_do_not_decrease_after_a_reset_of_the_clock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions come from a clock that starts at zero after a reboot."""
    with Database(path) as db:
        before = db.create_transaction().get_read_version().wait()
        db[b"k"] = b"2"
    clock = time.monotonic_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() - 10**15)
    with Database(path) as db:
        first = db.create_transaction().get_read_version().wait()
        assert first > before
        tr = db.create_transaction()
        tr[b"k"] = b"3"
        tr.commit().wait()
        assert tr.get_committed_version() > first


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the clock that versions come from; return a function that adds seconds to it."""
    now = time.monotonic_ns()

    def advance(seconds: float) -> None:
        nonlocal now
        now += int(1e9 * seconds)

    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    return advance


def test_a_lease_outlives_a_reopening_with_a_wrong_clock(
    path: Path, stopped_clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fdbqueue.open(path) as db:
        jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        jobs.push(db, "job")
        claim = jobs.claim(db, lease=5)
        assert claim is not None
    clock = time.time_ns
    for module in (time, clock_of_queues):
        monkeypatch.setattr(module, "time_ns", lambda: clock() + 3600 * 10**9)
    for _ in range(3):
        with fdbqueue.open(path) as db:
            assert jobs.claim(db) is None
    stopped_clock(10)
    with fdbqueue.open(path) as db:
        assert jobs.claim(db) is not None


def test_a_path_to_a_regular_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for url in (f"embedded:{file}", f"embedded:{file}/below"):
        with pytest.raises(NotADatabase, match=str(file)) as error:
            fdbqueue.open(url)
        assert "directory that fdbqueue created" in str(error.value)
    assert file.read_text() == "text"


def test_a_foreign_file_with_the_name_of_the_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"something else entirely\n" * 100)
    with pytest.raises(NotADatabase, match=str(tmp_path)):
        Database(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / DATABASE_FILE)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(NotADatabase, match=str(other)):
        Database(other)


@pytest.mark.parametrize("found", [2, 99])
def test_another_format_version_is_reported(path: Path, found: int) -> None:
    connection = sqlite3.connect(path / DATABASE_FILE)
    connection.execute(f"PRAGMA user_version = {found}")
    connection.close()
    message = f"format {found} and this release reads .*fdbq backup .*fdbq restore"
    with pytest.raises(FormatVersionMismatch, match=message) as error:
        Database(path)
    assert (error.value.path, error.value.found) == (str(path), found)


def test_a_full_disk_loses_no_acknowledged_commit(path: Path) -> None:
    with Database(path) as db:
        tr = db.create_transaction()
        tr[b"k"].wait()
        pages = tr._attempt.snapshot.execute("PRAGMA page_count").fetchone()[0]
        tr._attempt.snapshot.execute(f"PRAGMA max_page_count = {pages + 2}")
        tr.reset()
        with pytest.raises(DiskFull, match=str(path)) as error:
            db[b"large"] = b"x" * 50_000
        assert "free some space" in str(error.value)
        assert db[b"large"] is None
        assert db[b"k"] == b"v"
        db[b"k"] = b"small things still fit"
    with Database(path) as db:
        assert db[b"k"] == b"small things still fit"


ON_A_FULL_DISK = """
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
import fdbqueue

root = Path(sys.argv[1])
with fdbqueue.open(f"embedded:{root}/db") as db:
    db[b"k"] = b"v"
try:
    with open(root / "fill", "wb", buffering=0) as fill:
        while fill.write(bytes(4096)):
            pass
except OSError:
    pass
for name in ("db", "new"):
    try:
        fdbqueue.open(f"embedded:{root}/{name}")[b"k"]
    except fdbqueue.FdbqueueError as error:
        print(type(error).__name__, error)
(root / "fill").unlink()
print(fdbqueue.open(f"embedded:{root}/db")[b"k"])
"""


def test_opening_on_a_full_disk_says_so(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=20m tmpfs {tmp_path} || exit 77; "
    command = mount + f'exec {sys.executable} -c "$0" {tmp_path}'
    unshare = ["unshare", "-rm", "sh", "-c", command, ON_A_FULL_DISK]
    try:
        done = subprocess.run(unshare, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    *said, value = done.stdout.splitlines()
    expected = [f"DiskFull {tmp_path}/db", f"DiskFull {tmp_path}/new"]
    assert [line.split(": ")[0] for line in said] == expected, done
    assert value == "b'v'"


AS_NOBODY = """
import os, sys
import urllib.parse  # by `Path.as_uri`, later, when nobody perhaps cannot read root's Python
sys.path[:0] = {paths!r}
import fdbqueue
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    fdbqueue.open("embedded:" + sys.argv[1])[b"k"]
except fdbqueue.FdbqueueError as error:
    print(type(error).__name__, error)
"""


def test_a_read_only_directory_is_reported_by_name() -> None:
    with TemporaryDirectory() as parent:
        path = Path(parent, "db")
        Database(path).close()
        for each in (*path.iterdir(), path, Path(parent)):
            each.chmod(0o444 if each.is_file() else 0o555)
        for directory in (path, path / "below"):
            done = python(AS_NOBODY.format(paths=sys.path), directory)
            assert done.stdout.startswith(f"ReadOnlyDatabase {directory}"), done
            assert "writable" in done.stdout
        for each in (Path(parent), path):
            each.chmod(0o755)


def test_an_invalid_durability_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'full' or 'os'"):
        Database(tmp_path / "db", "sometimes")
    assert not (tmp_path / "db").exists()


def test_a_database_in_memory_is_private_and_leaves_no_files(tmp_path: Path) -> None:
    one, two = fdbqueue.open("memory:"), fdbqueue.open("memory:")
    one[b"k"] = b"v"
    assert two[b"k"] is None
    paths = [one.path, two.path]
    assert all(path.exists() for path in paths)
    one.close(), two.close()
    assert not any(path.exists() for path in paths)


def test_databases_in_memory_of_killed_processes_are_removed(tmp_path: Path) -> None:
    program = (
        "import os, fdbqueue; db = fdbqueue.open('memory:'); print(db.path, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = python(program)
    left = Path(done.stdout.strip())
    assert left.exists()
    os.utime(left, (0, 0))
    fdbqueue.open("memory:").close()
    wait_until(lambda: not left.exists())  # another process may be removing it


def test_an_idle_transaction_expires_and_lets_the_log_be_reset(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer must expire it, because the idle process may make no further call."""
    monkeypatch.setattr("fdbqueue.embedded.storage.storage.TRANSACTION_LIFETIME", 0.1)
    monkeypatch.setattr("fdbqueue.embedded.storage.connection.LONG_LOG", 1_000_000)
    monkeypatch.setattr("fdbqueue.embedded.storage.connection.CHECKPOINT", 100)
    log = path / f"{DATABASE_FILE}-wal"
    with Database(path, "os") as idle, Database(path, "os") as busy:
        transaction = idle.create_transaction()
        transaction[b"k"].wait()
        long = busy.create_transaction()
        for number in range(45):
            long[b"%d" % number] = b"x" * 50_000
        long.commit().wait()
        assert log.stat().st_size > 2_000_000
        wait_until(lambda: transaction._attempt.snapshot.expires < 0)

        def is_reset() -> bool:
            busy[b"k"] = b"short"
            return log.stat().st_size <= 1_000_000

        wait_until(is_reset)
        with pytest.raises(fdbqueue.FDBError, match="1007"):
            transaction[b"k"].wait()


# Files that were removed or replaced after open

ALL_FILES = (DATABASE_FILE, LOG_FILE, INDEX_FILE, LOCK_FILE)


@pytest.mark.parametrize("how", ["removed", "replaced by a copy"])
@pytest.mark.parametrize("name", ALL_FILES)
def test_commits_fail_once_a_file_is_removed_or_replaced(path: Path, name: str, how: str) -> None:
    with Database(path) as db:
        assert sorted(ALL_FILES) == sorted(each.name for each in path.iterdir())
        reader = db.create_transaction()
        assert reader[b"k"] == b"v"
        copy = path / f"{name}.copy"
        copy.write_bytes((path / name).read_bytes())
        if how == "removed":
            copy.unlink()
            (path / name).unlink()
        else:
            copy.rename(path / name)
        reader[b"k"] = b"after"
        with pytest.raises(FilesReplaced, match=rf"{path}: the file {name} was removed, repl"):
            reader.commit().wait()
        wait_until(lambda: db.storage.sync.failure)
        with pytest.raises(FilesReplaced, match="open it again"):
            db[b"k"]


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda path: path.rename(path / "../other")])
def test_commits_fail_once_the_directory_is_removed_or_moved(
    path: Path, remove: Callable[[Path], object]
) -> None:
    with Database(path) as db:
        db[b"k"] = b"before"
        remove(path)
        with pytest.raises(FilesReplaced):
            db[b"k"] = b"after"


def test_database_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "above" / "db"
    with Database(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
    (path / DATABASE_FILE).chmod(0o660)
    with Database(path) as db:
        db[b"k"] = b"v"
        assert stat.S_IMODE((path / f"{DATABASE_FILE}-wal").stat().st_mode) == 0o660
