"""Backups and restores of the keys that users keep beside their queues."""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, admin
from fdbqueue.admin import KeyExists, backup, restore
from fdbqueue.errors import InvalidBackup, QueueExists
from fdbqueue.layout.names import ROOT, unfinished_key
from fdbqueue.queue import backup as rows
from fdbqueue.testing import FaultyDatabase

FOREIGN = {b"": b"empty", b"\x00": b"", b"\x01\xff": b"1", b"\xfe\xff" * 9: b"x" * 100_000}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A second database, of the embedded engine."""
    with fdbqueue.open(f"embedded:{tmp_path / 'other'}") as database:
        yield database


@pytest.fixture
def own(name: str) -> dict[bytes, bytes]:
    """Keys of a user, more than one page of them."""
    return {b"%s/sold/%04d" % (name.encode(), n): b"order %d" % n for n in range(1200)}


def store(db: Any, pairs: dict[bytes, bytes]) -> None:
    tr = db.create_transaction()
    for key, value in pairs.items():
        tr[key] = value
    tr.commit().wait()


def found(db: Any, prefix: bytes) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in db.get_range_startswith(prefix)}


def outside(db: Any) -> dict[bytes, bytes]:
    """Return all keys that are not the library's."""
    every = {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}
    return {key: value for key, value in every.items() if not key.startswith(ROOT.key())}


def written(db: Any, *names: str, prefixes: Any) -> io.BytesIO:
    file = io.BytesIO()
    backup(db, file, names, prefixes=prefixes)
    return file


def test_keys_with_a_prefix_are_backed_up_and_restored_with_the_named_queues(
    db: Any, other: Any, name: str, own: dict[bytes, bytes]
) -> None:
    store(db, {**own, name.encode() + b"/stock": b"7"})
    PriorityQueue.named(db, name).push(db, "a")
    prefix = name.encode() + b"/sold/"
    file = io.BytesIO()
    saved = backup(db, file, [name], prefixes=[prefix, prefix + b"00", prefix])
    assert saved.prefixes == {prefix: 1200}
    assert saved.moments == 1
    restored = restore(other, file)
    assert (restored, restored.prefixes) == (saved, {prefix: 1200})
    assert outside(other) == own
    assert fdbqueue.existing_queue(other, name).pop(other).value == "a"


@pytest.mark.parametrize("target", ["memory", "embedded"])
def test_the_empty_prefix_stands_for_all_keys_but_no_queue_is_written_twice(
    other: Any, own: dict[bytes, bytes], target: str
) -> None:
    source = fdbqueue.open("memory:")
    store(source, {**own, **FOREIGN})
    PriorityQueue(Subspace(("mine",))).push(source, "without a name")
    for number in range(3):
        PriorityQueue.named(source, f"jobs {number}").push(source, number)
    file = io.BytesIO()
    saved = backup(source, file, prefixes=[b"", b"a"])
    expected = outside(source)
    assert saved.prefixes == {b"": len(expected)}
    there = other if target == "embedded" else fdbqueue.open("memory:")
    assert restore(there, file) == saved
    assert outside(there) == expected
    for queue in admin.queue_names(there):
        assert admin.check(there, fdbqueue.existing_queue(there, queue)).ok
    assert backup(there, io.BytesIO(), prefixes=[b""]) == saved


def test_only_what_is_named_is_restored(
    db: Any, other: Any, name: str, own: dict[bytes, bytes]
) -> None:
    store(other, {**own, b"stock": b"7"})
    PriorityQueue.named(other, name).push(other, "a")
    file = written(other, name, prefixes=[b""])
    prefix = name.encode()
    assert restore(db, file, [name]).prefixes == {}
    assert not found(db, prefix)
    part = prefix + b"/sold/000"
    assert restore(db, file, prefixes=[part]).prefixes == {part: 10}
    assert len(found(db, prefix)) == 10
    fdbqueue.existing_queue(db, name).pop(db)
    with pytest.raises(QueueExists):
        restore(db, file, [name], prefixes=[prefix])
    assert len(found(db, prefix)) == 10
    assert restore(db, file, prefixes=[prefix]).prefixes == {prefix: 1190}
    assert found(db, prefix) == own
    with pytest.raises(InvalidBackup, match="no keys of the prefix b'z'"):
        restore(db, written(other, prefixes=[b"stock"]), prefixes=[b"z"])
    with pytest.raises(ValueError, match="no key"):
        restore(db, file, new_name=f"{name}x")


def test_a_key_with_another_value_is_named_and_nothing_is_changed(
    db: Any, other: Any, name: str, own: dict[bytes, bytes]
) -> None:
    store(other, own)
    PriorityQueue.named(other, name).push(other, "a")
    file = written(other, name, prefixes=[name.encode()])
    *_, before_last, last = own
    there = {last: b"other", before_last: own[before_last], name.encode() + b"/new": b""}
    store(db, there)
    with pytest.raises(KeyExists) as caught:
        restore(db, file)
    assert caught.value.key == last
    assert found(db, name.encode()) == there
    assert name not in admin.queue_names(db)
    assert db[unfinished_key(name)] is None
    del db[last]
    assert restore(db, file).prefixes == {name.encode(): 1199}
    assert found(db, name.encode()) == {**own, name.encode() + b"/new": b""}


@pytest.mark.parametrize("commits", [0, 1, 5])
def test_an_interrupted_restore_of_keys_is_run_again(
    db: Any, other: Any, name: str, own: dict[bytes, bytes], commits: int
) -> None:
    store(other, own)
    PriorityQueue.named(other, name).push(other, "a")
    file = written(other, name, prefixes=[name.encode()])

    class Cut(FaultyDatabase):
        left = 2 + commits  # the first ones begin and write the queue

        def commit(self, transaction: Any) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            super().commit(transaction)
            self.left -= transaction.wrapped.get_committed_version() != -1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_BATCH_ROWS", 100)
        with pytest.raises(KeyboardInterrupt):
            restore(Cut(db), file)
    assert len(found(db, name.encode())) == 100 * commits
    assert restore(db, file).prefixes == {name.encode(): 1200 - 100 * commits}
    assert found(db, name.encode()) == own
    assert name in admin.queue_names(db)


def test_a_client_that_writes_a_key_during_the_restore_keeps_its_value(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = name.encode() + b"/key"
    store(other, {key: b"old"})
    file = written(other, prefixes=[key])
    counted = rows.count_missing

    def then_write(*args: Any) -> int:
        n = counted(*args)
        db[key] = b"new"
        return n

    monkeypatch.setattr("fdbqueue.queue.backup.count_missing", then_write)
    with pytest.raises(KeyExists):
        restore(db, file)
    assert db[key] == b"new"


def change_value(lines: list[Any], n: int) -> None:
    lines[n]["value"] = base64.b64encode(b"changed").decode()


DAMAGES: dict[str, Callable[[list[Any], int], object]] = {
    "lost": lambda lines, n: lines.pop(n),
    "twice": lambda lines, n: lines.insert(n, lines[n]),
    "flipped": change_value,
    "cut": lambda lines, n: lines.__delitem__(slice(n, None)),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_section_of_keys_changes_nothing(
    db: Any, other: Any, name: str, own: dict[bytes, bytes], rng: random.Random, how: str
) -> None:
    store(other, own)
    PriorityQueue.named(other, name).push(other, "a")
    file = written(other, name, prefixes=[name.encode()])
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    DAMAGES[how](lines, rng.randrange(len(lines) - len(own) - 1, len(lines) - 1))
    dump = partial(json.dumps, separators=(",", ":"))
    damaged = b"".join(dump(line).encode() + b"\n" for line in lines)
    with pytest.raises(InvalidBackup, match=r"line [\d,]+: .*nothing was restored"):
        restore(db, io.BytesIO(damaged))
    assert not found(db, name.encode())
    assert name not in admin.queue_names(db)


def test_prefixes_of_other_keys_than_the_users_are_refused() -> None:
    db = fdbqueue.open("memory:")
    for wrong in ([b"\xff/x"], [ROOT.key()], [ROOT["jobs"].key()]):
        with pytest.raises(ValueError, match="belong to"):
            backup(db, io.BytesIO(), prefixes=wrong)
    for unfit in (b"sold/", "sold/", ["sold/"]):
        with pytest.raises(TypeError, match="prefix"):
            backup(db, io.BytesIO(), prefixes=unfit)


def test_a_long_backup_says_that_it_shows_more_than_one_moment(
    db: Any, name: str, own: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(db, own)
    first, *_, last = own

    class File(io.BytesIO):
        lines = 0

        def write(self, data: Any, /) -> int:
            self.lines += 1
            if self.lines == 1002:  # between two pages, after the read version is over
                store(db, {first: b"changed", last: b"changed"})
                monkeypatch.setattr(rows, "_LIFETIME", -1.0)
            return super().write(data)

    file = File()
    saved = backup(db, file, [], prefixes=[name.encode()])
    assert saved.moments > 1
    other = fdbqueue.open("memory:")
    restore(other, file)
    assert other[first] == own[first]
    assert other[last] == b"changed"


def test_a_short_backup_shows_queues_and_keys_at_one_moment(
    db: Any, name: str, own: dict[bytes, bytes]
) -> None:
    store(db, own)
    queue = PriorityQueue.named(db, name)
    queue.push(db, "a")
    (last,) = [*own][-1:]

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if b"prefix" in data:
                db[last] = b"changed"
            return super().write(data)

    file = File()
    begun = time.monotonic()
    saved = backup(db, file, [name], prefixes=[name.encode()])
    assert saved.moments == 1 or time.monotonic() - begun > 1
    other = fdbqueue.open("memory:")
    restore(other, file)
    assert saved.moments > 1 or other[last] == own[last]
