"""Backups and restores of the keys that users keep beside their queues."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, admin
from fdbqueue.admin import KeyExists, backup, restore
from fdbqueue.errors import InvalidBackup, QueueExists
from fdbqueue.layout.names import ROOT, unfinished_key
from fdbqueue.queue import backup as rows
from tests.support.interrupted import Cut

FOREIGN = {b"": b"empty", b"\x00": b"", b"\x01\xff": b"1", b"\xfe\xff" * 9: b"x" * 100_000}


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


@pytest.fixture
def source(db: Any, other: Any, name: str, own: dict[bytes, bytes]) -> Any:
    """Return another database with a queue and the keys."""
    store(other, own)
    PriorityQueue.named(other, name).push(other, "a")
    return other


@pytest.fixture
def file(source: Any, name: str) -> io.BytesIO:
    """Return a backup of the queue and of the keys."""
    file = io.BytesIO()
    backup(source, file, [name], prefixes=[name.encode()])
    return file


def test_keys_with_a_prefix_are_backed_up_and_restored_with_the_named_queues(
    db: Any, source: Any, name: str, own: dict[bytes, bytes]
) -> None:
    source[name.encode() + b"/stock"] = b"7"
    prefix = name.encode() + b"/sold/"
    file = io.BytesIO()
    saved = backup(source, file, [name], prefixes=[prefix, prefix + b"00", prefix])
    assert (saved.prefixes, saved.moments) == ({prefix: 1200}, 1)
    restored = restore(db, file)
    assert (restored, restored.prefixes) == (saved, {prefix: 1200})
    assert found(db, name.encode()) == own
    assert PriorityQueue.existing(db, name).pop(db).value == "a"


def test_the_empty_prefix_stands_for_all_keys_but_no_queue_is_written_twice(other: Any) -> None:
    source = fdbqueue.open("memory:")
    store(source, FOREIGN)
    PriorityQueue(Subspace(("mine",))).push(source, "without a name")
    for number in range(3):
        PriorityQueue.named(source, f"jobs {number}").push(source, number)
    file = io.BytesIO()
    saved = backup(source, file, prefixes=[b"", b"a"])
    expected = outside(source)
    assert saved.prefixes == {b"": len(expected)}
    assert restore(other, file) == saved
    assert outside(other) == expected
    for queue in admin.queue_names(other):
        assert admin.check(other, PriorityQueue.existing(other, queue)).ok
    assert backup(other, io.BytesIO(), prefixes=[b""]) == saved


def test_only_what_is_named_is_restored(
    db: Any, file: io.BytesIO, name: str, own: dict[bytes, bytes]
) -> None:
    prefix = name.encode()
    assert restore(db, file, [name]).prefixes == {}
    assert not found(db, prefix)
    part = prefix + b"/sold/000"
    assert restore(db, file, prefixes=[part]).prefixes == {part: 10}
    PriorityQueue.existing(db, name).pop(db)
    with pytest.raises(QueueExists):
        restore(db, file, [name], prefixes=[prefix])
    assert len(found(db, prefix)) == 10
    assert restore(db, file, prefixes=[prefix]).prefixes == {prefix: 1190}
    assert found(db, prefix) == own
    with pytest.raises(InvalidBackup, match="no keys of the prefix b'z'"):
        restore(db, file, prefixes=[b"z"])
    with pytest.raises(ValueError, match="no key"):
        restore(db, file, new_name=f"{name}x")


def test_a_key_with_another_value_is_named_and_nothing_is_changed(
    db: Any, file: io.BytesIO, name: str, own: dict[bytes, bytes]
) -> None:
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


@pytest.mark.parametrize("commits", [0, 5])
def test_an_interrupted_restore_of_keys_is_run_again(
    db: Any, file: io.BytesIO, name: str, own: dict[bytes, bytes], commits: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_BATCH_ROWS", 100)
        with pytest.raises(KeyboardInterrupt):
            restore(Cut(db, 2 + commits), file)  # the first ones begin and write the queue
    assert len(found(db, name.encode())) == 100 * commits
    assert restore(db, file).prefixes == {name.encode(): 1200 - 100 * commits}
    assert found(db, name.encode()) == own


def test_a_client_that_writes_a_key_during_the_restore_keeps_its_value(
    db: Any, file: io.BytesIO, own: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, (key, *_) = rows.count_missing, own

    def then_write(*args: Any) -> int:
        n = counted(*args)
        db[key] = b"new"
        return n

    monkeypatch.setattr(rows, "count_missing", then_write)
    with pytest.raises(KeyExists):
        restore(db, file, prefixes=[key])
    assert db[key] == b"new"


def test_prefixes_of_other_keys_than_the_users_are_refused() -> None:
    db = fdbqueue.open("memory:")
    for wrong in ([b"\xff/x"], [ROOT.key()], [ROOT["jobs"].key()]):
        with pytest.raises(ValueError, match="belong to"):
            backup(db, io.BytesIO(), prefixes=wrong)
    for unfit in (b"sold/", "sold/", ["sold/"]):
        with pytest.raises(TypeError, match="prefix"):
            backup(db, io.BytesIO(), prefixes=unfit)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_backup_says_whether_it_shows_one_moment(
    db: Any, name: str, own: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr(rows, "_LIFETIME", 60.0)
    store(db, own)
    first, *_, last = own

    class File(io.BytesIO):
        lines = 0

        def write(self, data: Any, /) -> int:
            self.lines += 1
            if self.lines == 1002:  # between two pages
                store(db, {first: b"changed", last: b"changed"})
                monkeypatch.setattr(rows, "_LIFETIME", -1.0 if is_long else 60.0)
            return super().write(data)

    file = File()
    assert (backup(db, file, [], prefixes=[name.encode()]).moments > 1) is is_long
    other = fdbqueue.open("memory:")
    restore(other, file)
    assert other[first] == own[first]
    assert other[last] == (b"changed" if is_long else own[last])
