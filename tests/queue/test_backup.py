"""Backups, restores and copies: whole queues in files and in other databases."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, admin
from fdbqueue.admin import backup, check, restore
from fdbqueue.errors import (
    InvalidBackup,
    InvalidQueueName,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    RestoreRunning,
)
from fdbqueue.layout.names import unfinished_key
from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.queue import backup as rows
from fdbqueue.testing import FaultyDatabase
from tests.support.interrupted import Cut
from tests.support.kinds import KINDS, STATES, in_each_state, push

SCOPES: list[dict[str, Any]] = [
    {"unique": "ended"},
    {"unique": "claimed", "unique_until": "claimed"},
    {"unique": "period", "unique_for": "1h"},
]


def filled(db: Any, name: str, kind: Any = PriorityQueue) -> Any:
    """Return a queue with items in each state, among them large, unique and expiring ones."""
    queue = kind.named(db, name)
    in_each_state(db, queue, n=3)
    push(db, queue, "x" * 200_000, ttl=1000)
    for scope in SCOPES:
        push(db, queue, "unique", **scope)
    queue.configure(db, max_size=1000, max_attempts=2, concurrency=100)
    return queue


def saved(db: Any, *names: str) -> tuple[io.BytesIO, Any]:
    """Return a backup, and what it says of its queues."""
    file = io.BytesIO()
    return file, backup(db, file, names or None)


def contents(db: Any, name: str) -> Any:
    """Return everything that a user can see of a queue. An item's key, and its queue, differ."""
    queue = fdbqueue.existing_queue(db, name)
    infos = [info for state in STATES for info in queue.items(db, state=state)]
    return [(str(info), str(queue.get(db, info.id))) for info in infos], queue.stats(db)


def everything(db: Any) -> list[Any]:
    return [*db[b"":b"\xff"]]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a restore write, and a backup read, ten rows in a transaction."""
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    monkeypatch.setattr(rows, "_PAGE", 10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_and_a_copy_keep_every_state_id_order_attempt_and_option(
    db: Any, other: Any, name: str, kind: Any
) -> None:
    unique = [info.id for info in filled(db, name, kind).items(db, state="ready") if info.unique]
    before = contents(db, name)
    file, written = saved(db, name)
    copied = written[name]
    assert [getattr(copied, state) for state in STATES] == [7, 3, 3, 3, 3]
    assert restore(other, file) == written
    assert saved(other, name)[1] == written
    assert admin.copy(other, db, [name], new_name=f"{name}back") == written
    assert contents(db, name) == contents(other, name) == contents(db, f"{name}back") == before

    queue: Any = fdbqueue.existing_queue(other, name)
    assert [push(other, queue, "again", **scope) for scope in SCOPES] == unique
    for state, change in zip(STATES[1:], (queue.retry, queue.release, queue.retry)):
        assert all(change(other, info.id) for info in [*queue.items(other, state=state)])
    while (claim := queue.claim(other)) is not None:
        queue.ack(other, claim)
    stats = queue.stats(other)
    assert [getattr(stats, state) for state in STATES] == [0, 0, 0, 0, 19]
    assert check(other, queue).ok


def test_a_queue_is_not_copied_onto_itself(db: Any, url: str, name: str) -> None:
    PriorityQueue.named(db, name).push(db, "job")
    same = db if url == "memory:" else fdbqueue.open(url)
    for options in ({}, {"new_name": name}):
        with pytest.raises(QueueExists, match="choose another name"):
            admin.copy(db, same, [name], **options)
    assert admin.copy(db, same, [name], new_name=f"{name}2")[name].ready == 1
    assert PriorityQueue.existing(db, f"{name}2").size(db) == 1


@pytest.mark.parametrize("then", ["another file", "drop", "a new queue"])
def test_an_interrupted_restore_begins_again_or_is_dropped(
    db: Any, other: Any, name: str, small_batches: None, then: str
) -> None:
    queue = filled(db, name)
    file, written = saved(db, name)
    with pytest.raises(KeyboardInterrupt):
        restore(Cut(other, 5), file)
    assert name not in admin.queue_names(other)
    assert everything(other)
    if then == "another file":
        queue.pop_many(db, 9)
        file, written = saved(db, name)
        assert restore(other, file) == written
        assert contents(other, name) == contents(db, name)
        assert len(everything(other)) == written[name].rows + 1  # and its name
    elif then == "drop":
        admin.drop(other, name)
        assert not everything(other)
        with pytest.raises(QueueNotFound):
            admin.drop(other, name)
    else:  # is not stored where the rows are
        PriorityQueue.named(other, name).push(other, "new")
        with pytest.raises(QueueExists):
            restore(other, file)
        assert [item.value for item in PriorityQueue.existing(other, name).items(other)] == ["new"]


class Interrupted(io.BytesIO):
    """A backup; a function is called once when a restore reads its first row after the check."""

    def __init__(self, data: bytes, call: Callable[[], object]) -> None:
        super().__init__(data)
        self._call = iter([call])

    def readline(self, size: int | None = -1, /) -> bytes:
        if size == -1:
            for call in self._call:
                call()
        return super().readline(size)


def test_a_restore_ends_if_another_one_begins_or_its_name_is_taken(
    db: Any, other: Any, name: str, small_batches: None
) -> None:
    filled(db, name)
    file, written = saved(db, name)
    data = file.getvalue()
    with pytest.raises(RestoreRunning):
        restore(other, Interrupted(data, lambda: restore(other, io.BytesIO(data))))
    assert contents(other, name) == contents(db, name)
    assert len(everything(other)) == written[name].rows + 1
    admin.drop(other, name)
    take = lambda: PriorityQueue.named(other, name).push(other, "first")  # noqa: E731
    with pytest.raises(QueueExists):
        restore(other, Interrupted(data, take))
    assert [item.value for item in PriorityQueue.existing(other, name).items(other)] == ["first"]
    admin.drop(other, name)
    assert not everything(other)


def test_backups_restores_and_copies_survive_errors_of_the_database(
    db: Any, other: Any, name: str, small_batches: None, rng: random.Random
) -> None:
    filled(other, name)
    faults = {"before": 0.1, "after": 0.1, "conflict": 0.1, "too_old": 0.1}
    source, target = (
        FaultyDatabase(each, **faults, lost_as=(1021, 1039), seed=rng.randrange(99))
        for each in (other, db)
    )
    file, written = saved(source)
    assert restore(target, file) == written
    assert admin.copy(source, target, [name], new_name=f"{name}copy") == written
    for restored in (name, f"{name}copy"):
        assert saved(db, restored)[1][restored] == written[name]
    assert target.lost > 0


# Names


def test_queues_are_restored_by_their_names_or_under_another_one(
    db: Any, other: Any, name: str
) -> None:
    a, b = names = [f"{name}{suffix}" for suffix in "ab"]
    for each in names:
        PriorityQueue.named(other, each).push(other, each)
    file, written = saved(other)
    assert restore(db, file, [a]) == {a: written[a]}
    with pytest.raises(QueueExists):
        restore(db, file)
    assert b not in admin.queue_names(db)  # nothing was restored
    restore(db, file, [b], new_name=f"{name}c")
    assert PriorityQueue.existing(db, f"{name}c").pop(db).value == b
    wrong: Any = a
    for error, words, call in (
        (ValueError, "only one queue can get a new", lambda: restore(db, file, new_name=b)),
        (QueueNotFound, f"did you mean '{a}'", lambda: restore(db, file, [f"{a}a"])),
        (QueueNotFound, "no queue", lambda: saved(db, f"{name}nope")),
        (TypeError, "list of names", lambda: backup(other, io.BytesIO(), wrong)),
        (TypeError, "list of names", lambda: restore(db, file, wrong)),
        (InvalidQueueName, "cannot be the name", lambda: admin.copy(other, db, [b], new_name="")),
    ):
        with pytest.raises(error, match=words):
            call()


# Queues that change meanwhile


class Changing(io.BytesIO):
    """A file; a function is called when a line is written that it is waiting for."""

    def __init__(
        self, is_awaited: Callable[[Any, int], object], change: Callable[[], object]
    ) -> None:
        super().__init__()
        self._is_awaited, self._change, self._lines = is_awaited, change, 0

    def write(self, data: Any, /) -> int:
        self._lines += 1
        if self._is_awaited(json.loads(data), self._lines):
            self._change()
        return super().write(data)


def test_a_queue_in_use_is_backed_up_as_it_was_at_one_moment(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change keeps the number of items, so a mix of two moments would show."""
    monkeypatch.setattr(rows, "_PAGE", 10)
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(60), priorities=range(60))

    @fdbqueue.transactional
    def rotate(tr: Any) -> None:
        popped = queue.pop(tr)
        queue.push(tr, popped.value, popped.priority + 60)

    file = Changing(lambda _, n: n % 7 == 0, lambda: rotate(db))
    backup(db, file, [name])
    restore(other, file)
    restored = PriorityQueue.existing(other, name)
    assert [item.value for item in restored.items(other)] == [*range(60)]
    assert check(other, restored).ok


CHANGES: dict[str, Callable[[Any, Any, str], object]] = {
    "push": lambda queue, db, _: queue.push(db, "new"),
    "pop": lambda queue, db, _: queue.pop(db),
    "claim": lambda queue, db, _: queue.claim(db),
    "limit": lambda queue, db, _: queue.configure(db, max_size=99_999),
    "extend": lambda queue, db, _: queue.extend(db, queue.held, lease=500),
    # Then its counters are the same.
    "clear": lambda queue, db, _: (queue.clear(db), queue.push_many(db, range(40))),
    "drop": lambda queue, db, name: (admin.drop(db, name), queue.push_many(db, range(40))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_queue_that_changes_is_not_backed_up(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With no time for a read version, each page of rows has another one."""
    queue: Any = PriorityQueue.named(db, name)
    if change not in ("clear", "drop"):
        queue.push(db, "held")
        queue.held = queue.claim(db, lease=1000)
    queue.push_many(db, range(40))
    monkeypatch.setattr(rows, "_LIFETIME", -1.0)
    monkeypatch.setattr(rows, "_PAGE", 5)
    _, unchanged = saved(db, name)
    assert unchanged[name].ready == 40
    last = 10 if change in ("clear", "drop") else unchanged[name].rows
    file = Changing(lambda _, n: n == last, lambda: CHANGES[change](queue, db, name))
    with pytest.raises(QueueChanged, match="fdbq pause"):
        backup(db, file, [name])


def test_a_queue_that_is_dropped_during_a_backup_is_not_written_as_empty(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{name}{suffix}" for suffix in "ab"]
    b = names[-1]
    for each in names:
        PriorityQueue.named(db, each).push(db, 1)

    def dropping() -> io.BytesIO:
        return Changing(lambda row, _: row.get("queue") == b, lambda: admin.drop(db, b))

    assert backup(db, dropping(), names)[b].ready == 1  # both show one moment
    PriorityQueue.named(db, b).push(db, 1)
    monkeypatch.setattr(rows, "_SHARED", -1.0)
    with pytest.raises(QueueNotFound):
        backup(db, dropping(), names)


# Files


def damaged(data: bytes, how: str, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    number = rng.choice([n for n in range(3, len(lines) - 1) if b"value" in lines[n]])
    if how == "cut":
        return data[: rng.randrange(len(data))]
    if how == "lost":
        del lines[number]
    elif how == "twice":
        lines.insert(number, lines[number])
    elif how == "swapped":
        lines[2], lines[number] = lines[number], lines[2]
    else:
        row = json.loads(lines[number])
        value = bytearray(base64.b64decode(row["value"]) or b"?")
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        row["value"] = base64.b64encode(value).decode()
        lines[number] = json.dumps(row).encode() + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize("how", ["cut", "lost", "twice", "swapped", "flipped"])
def test_a_damaged_backup_changes_nothing(db: Any, name: str, rng: random.Random, how: str) -> None:
    """Neither rows of a queue nor keys beside them."""
    source = fdbqueue.open("memory:")
    filled(source, name)
    for number in range(30):
        source[b"%s/%02d" % (name.encode(), number)] = b"order"
    file = io.BytesIO()
    backup(source, file, prefixes=[name.encode()])
    for _ in range(10):
        with pytest.raises(InvalidBackup, match=r"line [\d,]+: .*nothing was restored"):
            restore(db, io.BytesIO(damaged(file.getvalue(), how, rng)))
    assert db[unfinished_key(name)] is None
    assert name not in admin.queue_names(db)
    assert not [*db.get_range_startswith(name.encode())]


@pytest.mark.parametrize("layout", [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1])
def test_a_backup_of_another_layout_changes_nothing(db: Any, name: str, layout: int) -> None:
    source = fdbqueue.open("memory:")
    PriorityQueue.named(source, name).push(source, 1)
    file, _ = saved(source)
    here, there = (b'"layout":%d}' % version for version in (LAYOUT_VERSION, layout))
    lines = file.getvalue().replace(here, there).splitlines(keepends=True)[:-1]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    lines.append(b'{"sha256":"%b"}\n' % digest.encode())
    with pytest.raises(InvalidBackup, match=f"line 1: .*restores layout {LAYOUT_VERSION}"):
        restore(db, io.BytesIO(b"".join(lines)))
    assert name not in admin.queue_names(db)


def test_an_unfinished_restore_that_cannot_be_read_is_dropped(db: Any, name: str) -> None:
    db[unfinished_key(name)] = b"\xff"
    admin.drop(db, name)
    assert db[unfinished_key(name)] is None


HEADER = b'{"format":"fdbqueue backup","version":1,"layout":1}\n'


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\n", b"[]\n", b"[" * 300_000 + b"\n", b"\xff\xfe\n"),
        *(b'{"format":"fdbqueue backup"}\n', HEADER.replace(b'"version":1', b'"version":2')),
        *(HEADER, HEADER + b'{"queue":7}\n', HEADER + b'{"sha256":"x"}\n'),
    ],
)
def test_another_file_is_not_a_backup(text: bytes) -> None:
    db = fdbqueue.open("memory:")
    with pytest.raises(InvalidBackup):
        restore(db, io.BytesIO(text))
    assert not everything(db)


def test_the_file_has_one_json_object_in_each_line() -> None:
    """The format, which later releases must go on to read."""
    db = fdbqueue.open("memory:")
    PriorityQueue.named(db, "jobs").push(db, "a")
    file, copies = saved(db)
    header, begin, *stored, end = map(json.loads, file.getvalue().splitlines())
    assert header == {"format": "fdbqueue backup", "version": 1, "layout": LAYOUT_VERSION}
    assert begin == {"queue": "jobs"}
    assert base64.b64decode(stored[0]["value"]) == b'"a"'
    *before, _ = file.getvalue().splitlines(keepends=True)
    assert end == {"sha256": hashlib.sha256(b"".join(before)).hexdigest()}
    assert copies["jobs"].rows == len(stored)
