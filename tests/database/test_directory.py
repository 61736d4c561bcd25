"""The binding's directory layer runs on every engine."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.support.programs import python


@pytest.fixture
def directories(space: Subspace) -> Any:
    """Return a directory layer within the subspace of the test."""
    return fdbqueue.DirectoryLayer(space["nodes"], space["contents"])


def test_directories_are_created_listed_moved_and_removed(db: Any, directories: Any) -> None:
    jobs = directories.create_or_open(db, ("app", "jobs"))
    directories.create(db, ("app", "logs"))
    assert list(directories.list(db, ("app",))) == ["jobs", "logs"]
    moved = directories.move(db, ("app", "jobs"), ("app", "tasks"))
    assert moved.key() == jobs.key()
    assert directories.open(db, ("app", "tasks")).key() == jobs.key()
    directories.remove(db, ("app", "tasks"))
    assert not directories.exists(db, ("app", "tasks"))
    with pytest.raises(ValueError, match="does not exist"):
        directories.open(db, ("app", "tasks"))


def test_directories_need_no_client_library() -> None:
    program = """if True:
        import ctypes

        def missing(*_, **__):
            raise OSError

        ctypes.CDLL = missing
        import fdbqueue
        print(fdbqueue.directory.create_or_open(fdbqueue.open("memory:"), "jobs").get_path())
    """
    done = python(program)
    assert done.stdout == "('jobs',)\n", done.stderr
