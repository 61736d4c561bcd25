"""Overwritten pages of a database are reported as damage, and repairs never hide them."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import DATABASE_FILE
from fdbqueue.errors import CorruptDatabase

PAGE = 4096
LEAF, INTERIOR = 10, 2  # the first byte of a page of a table without row ids
ITEMS = 3000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a closed database with 3,000 items."""
    path = tmp_path_factory.mktemp("sound") / "db"
    with Database(path, "os") as db:
        queue = PriorityQueue.named(db, "jobs")

        @fdbqueue.transactional
        def push(tr: fdbqueue.Transaction, first: int) -> None:
            for number in range(first, first + 500):
                queue.push(tr, f"{number} " + "x" * 50, number % 7)

        for first in range(0, ITEMS, 500):
            push(db, first)
    return path


def page(content: bytes, number: int) -> bytes:
    return content[number * PAGE : (number + 1) * PAGE]


def put(content: bytes, number: int, new: bytes) -> bytes:
    return content[: number * PAGE] + new + content[(number + 1) * PAGE :]


def numbers(content: bytes, kind: int) -> list[int]:
    """Return the numbers of all pages of this kind."""
    return [number for number in range(1, len(content) // PAGE) if content[number * PAGE] == kind]


def zeros(content: bytes, kind: int, rng: random.Random) -> bytes:
    return put(content, rng.choice(numbers(content, kind)), bytes(PAGE))


def noise(content: bytes, kind: int, rng: random.Random) -> bytes:
    return put(content, rng.choice(numbers(content, kind)), rng.randbytes(PAGE))


def copied(content: bytes, kind: int, rng: random.Random) -> bytes:
    """Overwrite a page with a leaf."""
    target = rng.choice(numbers(content, kind))
    source = rng.choice([number for number in numbers(content, LEAF) if number != target])
    return put(content, target, page(content, source))


def swapped(content: bytes, kind: int, rng: random.Random) -> bytes:
    one, two = rng.sample(numbers(content, kind), 2)
    return put(put(content, one, page(content, two)), two, page(content, one))


def copied_items(content: bytes, kind: int, rng: random.Random) -> bytes:
    """Overwrite a leaf of items with another one, which holds no counters either."""

    def has_only_items(number: int) -> bool:
        leaf = page(content, number)
        return leaf.count(b"x" * 50) == int.from_bytes(leaf[3:5], "big")  # the number of rows

    one, two = rng.sample([*filter(has_only_items, numbers(content, LEAF))], 2)
    return put(content, one, page(content, two))


def shortened(content: bytes, kind: int, rng: random.Random) -> bytes:
    return content[: rng.choice(numbers(content, kind)) * PAGE]


Damage = Callable[[bytes, int, random.Random], bytes]


def overwritten(sound: Path, path: Path, damage: Damage, kind: int, rng: random.Random) -> Path:
    shutil.copytree(sound, path)
    file = path / DATABASE_FILE
    file.write_bytes(damage(file.read_bytes(), kind, rng))
    return path


@pytest.mark.parametrize("kind", [LEAF, INTERIOR], ids=["leaf", "interior"])
@pytest.mark.parametrize("damage", [zeros, noise, copied, swapped, shortened])
def test_the_integrity_check_finds_each_kind_of_damage(
    sound: Path, tmp_path: Path, rng: random.Random, damage: Damage, kind: int
) -> None:
    damaged = overwritten(sound, tmp_path / "db", damage, kind, rng)
    with pytest.raises(CorruptDatabase, match=str(damaged)), Database(damaged) as db:
        db.check_integrity()


def test_a_damaged_database_never_returns_an_incomplete_list(
    sound: Path, tmp_path: Path, rng: random.Random
) -> None:
    """With a leaf in place of another page, SQLite silently skips the rows of that page."""
    damaged = overwritten(sound, tmp_path / "db", copied, rng.choice([LEAF, INTERIOR]), rng)
    backup = tmp_path / "jobs.jsonl"
    backup.write_text("the last good one")
    commands = [["items", "jobs"], ["export", "jobs"], ["export", "jobs", str(backup)], ["ls"]]
    for command in [*commands, ["counts", "jobs"], ["check"], ["check", "jobs", "--repair"]]:
        done = fdbq(*command, "--db", str(damaged))
        assert done.returncode == 2, done
        assert "fdbqueue.sqlite: " in done.stderr, done
        assert ".recover" in done.stderr, done
        assert "Traceback" not in done.stderr, done
    assert backup.read_text() == "the last good one"


def fdbq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fdbq", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("repair", [False, True])
def test_check_reports_damage_and_does_not_repair_counters_over_it(
    sound: Path, tmp_path: Path, rng: random.Random, repair: bool
) -> None:
    """With a leaf in place of another one, items are missing but their counters are right."""
    path = overwritten(sound, tmp_path / "db", copied_items, LEAF, rng)
    before = (path / DATABASE_FILE).read_bytes()
    with Database(path) as db:
        queue = PriorityQueue.named(db, "jobs")
        for tr in (db, db.create_transaction()):
            with pytest.raises(CorruptDatabase, match="order"):
                check(tr, queue, repair=repair)
        assert queue.size(db) == ITEMS
    after = (path / DATABASE_FILE).read_bytes()
    for number in numbers(before, LEAF):
        assert page(after, number) == page(before, number)


def test_a_sound_database_passes_the_integrity_check(sound: Path) -> None:
    with Database(sound) as db:
        assert db.check_integrity()
        assert check(db, PriorityQueue.named(db, "jobs"), repair=True).ok
    assert fdbq("check", "--db", str(sound)).stdout == f"jobs: {ITEMS:,} ready, ok\n"


def test_an_integrity_check_ends_at_its_timeout(tmp_path: Path) -> None:
    with Database(tmp_path / "db", "os") as db:
        for number in range(5):
            tr = db.create_transaction()
            for part in range(90):
                tr[b"%d/%d" % (number, part)] = b"x" * 90_000
            tr.commit().wait()
        assert not db.check_integrity(0.0)
        assert db.check_integrity()
        assert db[b"0/0"] == b"x" * 90_000


def test_a_file_from_sqlite_recover_is_a_valid_database(sound: Path, tmp_path: Path) -> None:
    """`.recover` writes the rows, the application id and the version, but not the WAL mode."""
    (tmp_path / "db").mkdir()
    new = sqlite3.connect(tmp_path / "db" / DATABASE_FILE)
    with closing(sqlite3.connect(sound / DATABASE_FILE)) as old, closing(new):
        new.executescript("\n".join(old.iterdump()))
        for pragma in ("application_id", "user_version"):
            (value,) = old.execute(f"PRAGMA {pragma}").fetchone()
            new.execute(f"PRAGMA {pragma} = {value}")
    with Database(tmp_path / "db") as db:
        assert PriorityQueue.named(db, "jobs").size(db) == ITEMS
        db[b"k"] = b"v"
