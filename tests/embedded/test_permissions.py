"""Directories that other users can write to: no link is followed, and sharing works as documented.

Tests with other users need root, and say so where they are skipped.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdbqueue.embedded import Database
from fdbqueue.embedded.storage import files
from fdbqueue.errors import StorageError, UnsafeDirectory
from tests.support.programs import python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")

NAMES = (
    *("fdbqueue.lock", "fdbqueue.failed"),
    *(f"fdbqueue.{name}{end}" for name in ("sqlite", "copy") for end in ("", "-wal", "-shm")),
)
ANNA, BEN, TEAM = 54_321, 54_322, 54_400  # two users with groups of their own, and one of both


def contents(path: Path) -> dict[str, bytes | str]:
    """Return the names in a directory, with where links lead and what files contain."""
    return {
        each.name: os.readlink(each) if each.is_symlink() else each.read_bytes()
        for each in path.iterdir()
    }


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a file that must not change."""
    file = tmp_path / "precious"
    file.write_bytes(b"")
    return file


# Links


@pytest.mark.parametrize("there", ["nothing else", "a database"])
@pytest.mark.parametrize("name", NAMES)
def test_a_directory_with_a_link_for_a_file_is_not_opened(
    tmp_path: Path, precious: Path, name: str, there: str
) -> None:
    path = tmp_path / "db"
    path.mkdir(0o700)
    if there == "a database":
        Database(path).close()
        (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(precious)
    before = contents(path)
    with pytest.raises(UnsafeDirectory, match=rf"{path}/{name}: this is a link"):
        Database(path)
    assert contents(path) == before
    assert precious.read_bytes() == b""


@pytest.mark.parametrize("name", ["fdbqueue.lock", "fdbqueue.sqlite"])
def test_a_file_that_has_a_second_name_elsewhere_is_not_opened(
    tmp_path: Path, precious: Path, name: str
) -> None:
    path = tmp_path / "db"
    path.mkdir(0o700)
    os.link(precious, path / name)
    with pytest.raises(UnsafeDirectory):
        Database(path)
    assert precious.read_bytes() == b""


@pytest.mark.parametrize("name", ["fdbqueue.lock", "fdbqueue.sqlite"])
def test_a_link_that_appears_after_the_check_is_not_followed(
    tmp_path: Path, precious: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    Database(path).close()
    monkeypatch.setattr(files, "check_directory", lambda _: None)
    before = (path / name).read_bytes()
    precious.write_bytes(before)
    (path / name).unlink()
    (path / name).symlink_to(precious)
    with pytest.raises(StorageError, match=r"this is a link|symbolic links"):
        Database(path)
    assert precious.read_bytes() == before


def test_links_above_the_files_work(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with Database(tmp_path / "link" / "db") as db:
        db[b"k"] = b"v"
    (tmp_path / "db").symlink_to(tmp_path / "disk" / "db")
    with Database(tmp_path / "db") as db:
        assert db[b"k"] == b"v"


def test_a_pipe_with_the_name_of_an_abandoned_database_delays_no_one(tmp_path: Path) -> None:
    pipe = tmp_path / "fdbqueue-memory-x"
    os.mkfifo(pipe)
    os.utime(pipe, (0, 0))
    program = "import sys; from pathlib import Path; from fdbqueue.embedded.storage import files;"
    done = python(program + "files._remove_abandoned(Path(sys.argv[1]))", tmp_path)
    assert done.returncode == 0, done.stderr


# Directories of others


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_that_everybody_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "db"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UnsafeDirectory, match=r"every user .* \(chmod o-w\)"):
        Database(path)
    assert contents(path) == {}
    with Database(path / "below") as db:
        db[b"k"] = b"v"
    (path / "below").rename(tmp_path / "elsewhere")
    path.chmod(0o770)
    Database(path).close()


AS_USER = """
import os, sqlite3, sys
import urllib.parse  # by `Path.as_uri`, later, when the user perhaps cannot read root's Python
from pathlib import Path
sys.path[:0] = {paths!r}
from fdbqueue.embedded import Database
from fdbqueue.embedded.storage import sync
from fdbqueue.embedded.directory import create_like
from fdbqueue.errors import FdbqueueError
user, *groups = map(int, sys.argv[2].split())
os.setgroups(groups), os.setgid(user), os.setuid(user)
os.umask(0o077)
try:
    with Database(sys.argv[1]) as db:
        {body}
        print("done", flush=True)
        sys.stdin.read()
except FdbqueueError as error:
    print(type(error).__name__, error)
"""
WRITES = "db.add(b'n', bytes([1]))"
FAILS = """
        def fail(_: int) -> None:
            raise OSError(5, "Input/output error")
        sync._data_sync = fail
        try:
            db[b"n"] = bytes([7])
        except FdbqueueError:
            pass
"""


class Process(subprocess.Popen[str]):
    """A process of a user."""

    said = ""
    """Its first line."""


Start = Callable[..., Process]


@pytest.fixture
def everybody() -> Iterator[Path]:
    """Return a directory that every user can look into, unlike that of the tests."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process of a user, and waits until it has the database."""
    processes: list[Process] = []

    def start(path: Path, user: int, *groups: int, body: str = WRITES) -> Process:
        program = AS_USER.format(paths=sys.path, body=body)
        process = Process(
            [sys.executable, "-c", program, str(path), " ".join(map(str, (user, *groups)))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        process.said = process.stdout.readline().strip()
        return process

    yield start
    for process in processes:
        process.communicate()


def end(*processes: Process) -> None:
    """Let processes close the database."""
    for process in processes:
        process.communicate()
        assert (process.said, process.returncode) == ("done", 0)


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o2770])
def test_a_directory_of_another_user_is_opened_only_if_it_is_shared_with_a_group(
    everybody: Path, start: Start, mode: int
) -> None:
    path = everybody / "db"
    path.mkdir()
    os.chown(path, ANNA, TEAM)
    path.chmod(mode)
    stranger = start(path, BEN)
    assert stranger.said.startswith("UnsafeDirectory" if mode & stat.S_IROTH else "ReadOnly")
    member = start(path, BEN, TEAM)
    expected = "done" if mode & stat.S_IWGRP else "UnsafeDirectory"
    assert member.said.startswith(expected)


@needs_root
def test_a_directory_that_its_owner_opened_for_one_user_alone_is_refused(
    everybody: Path, start: Start
) -> None:
    """With an access control list: the group is not this user's."""
    path = everybody / "db"
    path.mkdir()
    os.chown(path, ANNA, ANNA)
    path.chmod(0o770)
    # Of the owner, of Ben, of the group, their mask, and of all others: tag, permissions, user.
    entries = ((1, 7, -1), (2, 7, BEN), (4, 5, -1), (16, 7, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except (AttributeError, OSError) as error:
        pytest.skip(f"no access control lists here: {error}")
    process = start(path, BEN)
    assert process.said.startswith("UnsafeDirectory")
    assert contents(path) == {}


@needs_root
def test_root_opens_the_database_of_a_user_and_leaves_it_to_that_user(
    everybody: Path, start: Start
) -> None:
    path = everybody / "db"
    path.mkdir()
    os.chown(path, ANNA, ANNA)
    end(start(path, ANNA))
    (path / "fdbqueue.lock").unlink()
    with Database(path) as db:
        assert db[b"n"] == bytes([1])
        assert {(each.stat().st_uid, each.stat().st_gid) for each in path.iterdir()} == {
            (ANNA, ANNA)
        }
        end(start(path, ANNA))
        assert db[b"n"] == bytes([2])


# Directories that two users share as documented


@pytest.fixture
def shared(everybody: Path, start: Start) -> Path:
    """Return a database that Anna has created and shares with Ben."""
    path = everybody / "db"
    path.mkdir()
    os.chown(path, ANNA, ANNA)
    end(start(path, ANNA, TEAM))
    subprocess.run(["chgrp", "-R", str(TEAM), path], check=True)
    subprocess.run(["chmod", "-R", "g+rwX", path], check=True)
    subprocess.run(["chmod", "g+s", path], check=True)
    return path


def are_shared(path: Path) -> bool:
    """Return whether the group can use every file."""
    found = [each.stat() for each in path.iterdir()]
    return all(each.st_gid == TEAM and stat.S_IMODE(each.st_mode) == 0o660 for each in found)


@needs_root
def test_two_users_of_a_group_have_a_database_open(shared: Path, start: Start) -> None:
    processes = [start(shared, user, TEAM) for user in (BEN, ANNA)]
    assert len(contents(shared)) == 4
    assert are_shared(shared)
    end(*processes)
    with Database(shared) as db:
        assert db[b"n"] == bytes([3])


@needs_root
def test_a_user_of_a_shared_database_copies_it_after_a_failed_sync_of_another_one(
    shared: Path, start: Start
) -> None:
    end(start(shared, ANNA, TEAM, body=FAILS))
    copies = start(shared, BEN, TEAM)
    after = start(shared, ANNA, TEAM)
    assert are_shared(shared)
    end(copies, after)
    with Database(shared) as db:
        assert db[b"n"] == bytes([9])
