"""Backups, restores and copies: whole queues in files and in other databases."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskPriority, TaskQueue, admin
from fdbqueue.admin import backup, restore
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
from fdbqueue.types import State
from tests.support.keys import layout_of
from tests.support.threads import in_threads

STATES: tuple[State, ...] = ("ready", "delayed", "claimed", "dead", "done")
KINDS = ("priority", "fifo", "task")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A second database, of the embedded engine."""
    with fdbqueue.open(f"embedded:{tmp_path / 'other'}") as database:
        yield database


def filled(db: Any, name: str, kind: str = "priority", n: int = 8) -> Any:
    """Return a queue with items in each state, among them large, unique and expiring ones."""
    queue: Any
    if kind == "task":
        queue = TaskQueue.named(db, name)
        deadline = datetime.now(timezone.utc) + timedelta(hours=1)
        push = lambda value, **options: queue.push(  # noqa: E731
            db,
            payload=value,
            priority=TaskPriority.HIGH,
            agent_name="ada",
            client_id="c",
            cost=2.5,
            deadline=deadline,
            **options,
        )
    elif kind == "fifo":
        queue = Queue.named(db, name)
        push = lambda value, **_: queue.enqueue(db, value)  # noqa: E731
    else:
        queue = PriorityQueue.named(db, name, max_size=1000)
        push = lambda value, **options: queue.push(  # noqa: E731
            db, value, value % 300 if isinstance(value, int) else 5, **options
        )
    for number in range(n):  # become dead letters
        push(number)
    queue.configure(db, max_attempts=2)
    for _ in range(2):
        while (claim := queue.claim(db, n=100)) is not None:
            queue.nack(db, claim, delay=0, error=ValueError("broken"))
            if claim.attempts == (2,) * len(claim.attempts):
                break
    queue.configure(db, keep=100)
    for number in range(3):  # are done
        push(50 + number)
    for number, claim in enumerate(queue.claim(db) for _ in range(3)):
        queue.ack(db, claim, discarded="not needed" if number else None, result={"n": 1})
    for number in range(n):  # wait for another attempt
        push(100 + number)
    queue.nack(db, queue.claim(db, n=n), delay=1000, error="busy")
    for number in range(n):
        push(200 + number)
    queue.claim(db, n=n, lease=1000)
    for number in range(n - 2):
        push(300 + number, **({"ttl": 1000} if number % 2 and kind == "priority" else {}))
    push("x" * 200_000)
    push("unique", **({"unique": "key"} if kind != "fifo" else {}))
    queue.configure(db, concurrency=100)
    return queue


def contents(db: Any, name: str) -> Any:
    """Return everything that a user can see of a queue. An item's key, and its queue, differ."""
    queue = fdbqueue.existing_queue(db, name)
    infos = [info for state in STATES for info in queue.items(db, state=state)]
    return [(str(info), str(queue.get(db, info.id))) for info in infos], queue.stats(db)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_restores_every_state_id_order_attempt_and_option(
    db: Any, other: Any, name: str, kind: str
) -> None:
    filled(db, name, kind)
    before = contents(db, name)
    file = io.BytesIO()
    written = backup(db, file, [name])
    copied = written[name]
    assert (copied.ready, copied.delayed, copied.claimed, copied.dead) == (8, 8, 8, 8)
    assert restore(other, file) == written
    assert backup(other, io.BytesIO(), [name]) == written
    assert contents(other, name) == before
    assert contents(db, name) == before
    restored = fdbqueue.existing_queue(other, name)
    assert fdbqueue.admin.check(other, restored).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_to_another_database_and_back_is_equal(
    db: Any, other: Any, name: str, kind: str
) -> None:
    filled(db, name, kind)
    before = contents(db, name)
    there = admin.copy(db, other, [name])
    back = admin.copy(other, db, [name], new_name=f"{name}back")
    assert there == back
    assert contents(db, f"{name}back") == before
    assert fdbqueue.admin.check(db, fdbqueue.existing_queue(db, f"{name}back")).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_queue_can_be_used_to_its_end(db: Any, other: Any, name: str, kind: str) -> None:
    filled(db, name, kind, 4)
    admin.copy(db, other, [name])
    queue: Any = fdbqueue.existing_queue(other, name)
    for state in ("delayed", "claimed", "dead"):
        for info in [*queue.items(other, state=state)]:
            change = {
                "delayed": queue.retry,
                "claimed": queue.release,
                "dead": queue.retry,
            }
            assert change[state](other, info.id)
    claims = []
    while (claim := queue.claim(other)) is not None:
        claims.append(claim)
        queue.ack(other, claim)
    assert len(claims) == 16
    stats = queue.stats(other)
    assert (stats.ready, stats.delayed, stats.claimed, stats.dead) == (0, 0, 0, 0)
    assert fdbqueue.admin.check(other, queue).ok


def test_a_queue_is_not_copied_onto_itself(db: Any, url: str, name: str) -> None:
    PriorityQueue.named(db, name).push(db, "job")
    same = db if url == "memory:" else fdbqueue.open(url)
    with pytest.raises(QueueExists, match="choose another name"):
        admin.copy(db, same, [name])
    with pytest.raises(QueueExists):
        admin.copy(db, same, [name], new_name=name)
    assert admin.copy(db, same, [name], new_name=f"{name}2")[name].ready == 1
    assert fdbqueue.admin.overview(db)[f"{name}2"].ready == 1
    if same is not db and hasattr(same, "close"):
        same.close()


def test_an_item_that_was_claimed_is_claimed_in_the_copy(db: Any, other: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, "job")
    claim = queue.claim(db, lease=1000)
    admin.copy(db, other, [name])
    copied = PriorityQueue.existing(other, name)
    assert copied.claim(other) is None
    assert copied.state(other, claim.item.id) == "claimed"


def test_a_lease_in_a_copy_ends_by_the_clock(db: Any, other: Any, name: str) -> None:
    """Versions of another database are higher or lower; the clock is the same."""
    for _ in range(3):  # versions differ in both directions: there, and back again
        queue = PriorityQueue.named(db, name)
        queue.push(db, "job")
        assert queue.claim(db, lease=0.5) is not None
        admin.copy(db, other, [name])
        copied = PriorityQueue.existing(other, name)
        claim = copied.claim(other, wait=30)
        assert claim.attempt >= 2
        copied.ack(other, claim)
        fdbqueue.admin.drop(other, name)
        fdbqueue.admin.drop(db, name)
        db, other = other, db


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


def cut(db: Any, commits: int) -> FaultyDatabase:
    """Return a database that fails for good after this many commits that wrote something."""

    class Cut(FaultyDatabase):
        left = commits

        def commit(self, transaction: Any) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            super().commit(transaction)
            self.left -= transaction.wrapped.get_committed_version() != -1

    return Cut(db)


@pytest.mark.parametrize("commits", [1, 2, 5, 9])
def test_an_interrupted_restore_begins_again_and_leaves_no_rows(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    filled(db, name)
    file = io.BytesIO()
    written = backup(db, file, [name])
    with pytest.raises(KeyboardInterrupt):
        restore(cut(other, commits), file)
    assert name not in fdbqueue.admin.queue_names(other)
    assert restore(other, file) == written
    assert contents(other, name) == contents(db, name)
    assert len([*other[b"":b"\xff"]]) == written[name].rows + 1  # and its name


def test_a_restore_of_another_file_begins_again(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    queue = filled(other, name)
    old, new = io.BytesIO(), io.BytesIO()
    backup(other, old)
    with pytest.raises(KeyboardInterrupt):
        restore(cut(db, 4), old)
    while queue.pop(other) is not None:
        pass
    written = backup(other, new)
    assert restore(db, new) == written
    assert backup(db, io.BytesIO(), [name]) == written


def test_backups_restores_and_copies_survive_errors_of_the_database(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    monkeypatch.setattr(rows, "_PAGE", 10)
    filled(other, name)
    faults = {"before": 0.2, "after": 0.2, "conflict": 0.1, "too_old": 0.2}
    lost_as = (1021, 1039)
    source = FaultyDatabase(other, **faults, lost_as=lost_as, seed=rng.randrange(99))
    target = FaultyDatabase(db, **faults, lost_as=lost_as, seed=rng.randrange(99))
    file = io.BytesIO()
    written = backup(source, file)
    assert restore(target, file) == written
    assert admin.copy(source, target, [name], new_name=f"{name}copy") == written
    for restored in (name, f"{name}copy"):
        assert backup(db, io.BytesIO(), [restored])[restored] == written[name]
    assert target.lost > 0


def test_two_restores_at_the_same_time_store_the_queue_once(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 3)
    filled(other, name)
    file = io.BytesIO()
    written = backup(other, file)
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(restore(db, io.BytesIO(file.getvalue())))
        except (RestoreRunning, QueueExists) as error:
            results.append(error)

    in_threads([run] * 3)
    while name not in fdbqueue.admin.queue_names(db):  # each may have stopped for another
        run()
    assert backup(db, io.BytesIO(), [name]) == written


def test_a_dropped_name_leaves_nothing_of_an_unfinished_restore(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    filled(db, name)
    file = io.BytesIO()
    backup(db, file, [name])
    with pytest.raises(KeyboardInterrupt):
        restore(cut(other, 3), file)
    assert len([*other[b"":b"\xff"]]) > 20
    fdbqueue.admin.drop(other, name)
    assert not [*other[b"":b"\xff"]]
    with pytest.raises(QueueNotFound):
        fdbqueue.admin.drop(other, name)


# Names


def test_a_restore_of_a_name_that_is_taken_restores_nothing(db: Any, other: Any, name: str) -> None:
    for suffix in ("a", "b"):
        PriorityQueue.named(other, name + suffix).push(other, suffix)
    file = io.BytesIO()
    written = backup(other, file)
    assert restore(db, file, [f"{name}a"]) == {f"{name}a": written[f"{name}a"]}
    with pytest.raises(QueueExists):
        restore(db, file)
    assert f"{name}b" not in fdbqueue.admin.queue_names(db)  # nothing was restored


def test_a_queue_is_restored_under_another_name(db: Any, other: Any, name: str) -> None:
    PriorityQueue.named(other, "jobs").push(other, "a")
    PriorityQueue.named(other, "mail").push(other, "b")
    file = io.BytesIO()
    backup(other, file)
    restore(db, file, ["mail"], new_name=name)
    assert PriorityQueue.existing(db, name).pop(db).value == "b"
    with pytest.raises(ValueError, match="only one queue can get a new name, not 2"):
        restore(db, file, new_name=name)
    with pytest.raises(QueueNotFound, match="did you mean 'mail'"):
        restore(db, file, ["mai"])
    with pytest.raises(QueueNotFound):
        backup(db, io.BytesIO(), [f"{name}nope"])


def test_a_queue_that_other_clients_open_during_a_restore_stays_apart(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are not where a new queue with this name is stored."""
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    filled(other, name)
    file = io.BytesIO()
    backup(other, file)
    with pytest.raises(KeyboardInterrupt):
        restore(cut(db, 4), file)
    queue = PriorityQueue.named(db, name)
    queue.push(db, "new")
    with pytest.raises(QueueExists):
        restore(db, file)
    assert [item.value for item in queue.items(db)] == ["new"]
    assert fdbqueue.admin.check(db, queue).ok


# Queues that change meanwhile


def test_a_queue_in_use_is_backed_up_as_it_was_at_one_moment(
    db: Any, other: Any, name: str
) -> None:
    """Each change keeps the number of items, so a mix of two moments would show."""
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(1500), priorities=range(1500))
    stopped = threading.Event()

    @fdbqueue.transactional
    def rotate(tr: Any) -> None:
        popped = queue.pop(tr)
        queue.push(tr, popped.value, popped.priority + 1500)

    def use() -> None:
        while not stopped.is_set():
            rotate(db)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for number in range(5):
            file = io.BytesIO()
            assert backup(db, file, [name])[name].ready == 1500
            restore(other, file, new_name=f"copy{number}")
            restored = PriorityQueue.existing(other, f"copy{number}")
            assert sorted(item.value for item in restored.items(other)) == [*range(1500)]
            assert fdbqueue.admin.check(other, restored).ok
    finally:
        stopped.set()
        thread.join()


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "push": lambda queue, db: queue.push(db, "new"),
    "pop": lambda queue, db: queue.pop(db),
    "claim": lambda queue, db: queue.claim(db),
    "pause": lambda queue, db: queue.configure(db, paused=True),
    "limit": lambda queue, db: queue.configure(db, max_size=99_999),
    "retry": lambda queue, db: queue.retry(db, next(iter(queue.items(db, state="dead"))).id),
    "extend": lambda queue, db: queue.extend(db, queue.held, lease=500),
    "reprioritize": lambda queue, db: queue.reprioritize(db, queue.peek(db), 7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_queue_that_changes_is_not_backed_up(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With no time for a read version, each page of rows has another one."""
    queue = filled(db, name)
    queue.held = queue.claim(db, lease=1000)
    monkeypatch.setattr(rows, "_LIFETIME", -1.0)
    monkeypatch.setattr(rows, "_PAGE", 5)
    unchanged = backup(db, io.BytesIO(), [name])[name]
    assert unchanged.ready == 7
    lines: list[bytes] = []

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            lines.append(data)
            if len(lines) == unchanged.rows:
                CHANGES[change](queue, db)
            return len(data)

    with pytest.raises(QueueChanged, match="fdbq pause"):
        backup(db, File(), [name])


def test_a_group_that_is_paused_between_two_reads_of_a_large_backup_is_noticed(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn was read before, its settings are read after it."""
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(3), group="ada")
    monkeypatch.setattr(rows, "_LIFETIME", -1.0)
    monkeypatch.setattr(rows, "_PAGE", 1)
    assert backup(db, io.BytesIO(), [name])[name].ready == 3  # it did not change
    turns = layout_of(queue).turns[len(queue.subspace.key()) :]

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            row = json.loads(data)
            if "key" in row and base64.b64decode(row["key"]).startswith(turns):
                queue.set_group(db, "ada", paused=True)
            return super().write(data)

    with pytest.raises(QueueChanged):
        backup(db, File(), [name])


def test_a_second_restore_of_a_queue_ends_the_first(db: Any, other: Any, name: str) -> None:
    filled(db, name)
    file = io.BytesIO()
    written = backup(db, file, [name])

    def begin_another() -> None:
        restore(other, io.BytesIO(file.getvalue()))

    with pytest.raises(RestoreRunning):
        restore(other, Interrupted(file.getvalue(), begin_another))
    assert contents(other, name) == contents(db, name)
    assert len([*other[b"":b"\xff"]]) == written[name].rows + 1


# Files


def damaged(data: bytes, how: str, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    number = rng.randrange(2, len(lines) - 1)
    if how == "cut":
        return data[: rng.randrange(len(data))]
    if how == "lost":
        return b"".join(lines[:number] + lines[number + 1 :])
    if how == "twice":
        return b"".join(lines[:number] + lines[number : number + 1] + lines[number:])
    if how == "swapped":
        lines[2], lines[number] = lines[number], lines[2]
        return b"".join(lines) if number != 2 else b"".join(lines[:2] + lines[3:])
    if how == "longer":
        return data + rng.choice(lines)
    row = json.loads(lines[number])
    value = bytearray(base64.b64decode(row["value"]) or b"?")
    value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    row["value"] = base64.b64encode(value).decode()
    lines[number] = json.dumps(row).encode() + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize("how", ["cut", "lost", "twice", "swapped", "longer", "flipped"])
def test_a_damaged_backup_changes_nothing(db: Any, name: str, rng: random.Random, how: str) -> None:
    source = fdbqueue.open("memory:")
    filled(source, name, n=3)
    file = io.BytesIO()
    backup(source, file)
    for _ in range(20):
        with pytest.raises(InvalidBackup, match=r"line [\d,]+: .*nothing was restored"):
            restore(db, io.BytesIO(damaged(file.getvalue(), how, rng)))
    assert db[unfinished_key(name)] is None
    assert name not in fdbqueue.admin.queue_names(db)


@pytest.mark.parametrize("layout", [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1])
def test_a_backup_of_another_layout_changes_nothing(db: Any, name: str, layout: int) -> None:
    source = fdbqueue.open("memory:")
    PriorityQueue.named(source, name).push(source, 1)
    file = io.BytesIO()
    backup(source, file)
    here, there = (b'"layout":%d}' % version for version in (LAYOUT_VERSION, layout))
    lines = file.getvalue().replace(here, there).splitlines(keepends=True)[:-1]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    lines.append(b'{"sha256":"%b"}\n' % digest.encode())
    with pytest.raises(InvalidBackup, match=f"line 1: .*restores layout {LAYOUT_VERSION}"):
        restore(db, io.BytesIO(b"".join(lines)))
    assert name not in fdbqueue.admin.queue_names(db)


def test_an_unfinished_restore_that_cannot_be_read_is_dropped(db: Any, name: str) -> None:
    db[unfinished_key(name)] = b"\xff"
    fdbqueue.admin.drop(db, name)
    assert db[unfinished_key(name)] is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"[]\n",
        b"[" * 300_000 + b"\n",
        b'{"format":"fdbqueue backup"}\n',
        b'{"format":"fdbqueue backup","version":2,"layout":1}\n',
        b'{"format":"fdbqueue backup","version":1,"layout":1}\n',
        b'{"format":"fdbqueue backup","version":1,"layout":1}\n{"queue":7}\n',
        b'{"format":"fdbqueue backup","version":1,"layout":1}\n{"sha256":"x"}\n',
        b"\xff\xfe\n",
    ],
)
def test_another_file_is_not_a_backup(text: bytes) -> None:
    db = fdbqueue.open("memory:")
    with pytest.raises(InvalidBackup):
        restore(db, io.BytesIO(text))
    assert not [*db[b"":b"\xff"]]


def test_the_file_has_one_json_object_in_each_line(name: str) -> None:
    """The format, which later releases must go on to read."""
    db = fdbqueue.open("memory:")
    PriorityQueue.named(db, "jobs").push(db, "a")
    file = io.BytesIO()
    copied = backup(db, file)["jobs"]
    header, begin, *stored, end = map(json.loads, file.getvalue().splitlines())
    assert header == {"format": "fdbqueue backup", "version": 1, "layout": LAYOUT_VERSION}
    assert begin == {"queue": "jobs"}
    assert base64.b64decode(stored[0]["value"]) == b'"a"'
    *before, _ = file.getvalue().splitlines(keepends=True)
    assert end == {"sha256": hashlib.sha256(b"".join(before)).hexdigest()}
    assert copied.rows == len(stored)


class SlowDatabase(FaultyDatabase):
    """A database whose first reads take longer than a transaction lives."""

    slow = 3

    def before_call(self, name: str) -> None:
        if name == "get_range" and self.slow:
            self.slow -= 1
            raise fdbqueue.FDBError(1007)


def test_a_backup_goes_on_after_a_recovery_in_which_nothing_could_be_read(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(db, name)
    monkeypatch.setattr(rows, "_LIFETIME", -1.0)
    slow = SlowDatabase(db)
    assert backup(slow, io.BytesIO(), [name])[name].ready == 8
    assert slow.slow == 0


@pytest.mark.parametrize("how", ["clear", "drop"])
def test_a_queue_that_was_emptied_and_filled_again_has_changed(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its counters are the same."""
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(40))
    monkeypatch.setattr(rows, "_LIFETIME", -1.0)
    monkeypatch.setattr(rows, "_PAGE", 5)
    lines: list[bytes] = []

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            lines.append(data)
            if len(lines) == 10:
                queue.clear(db) if how == "clear" else fdbqueue.admin.drop(db, name)
                queue.push_many(db, range(40))
            return len(data)

    with pytest.raises(QueueChanged):
        backup(db, File(), [name])


def test_a_queue_that_is_dropped_during_a_backup_is_not_written_as_empty(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in ("a", "b"):
        PriorityQueue.named(db, name + suffix).push(db, suffix)

    class File(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if json.loads(data).get("queue") == f"{name}b":
                fdbqueue.admin.drop(db, f"{name}b")
            return super().write(data)

    copies = backup(db, File(), [f"{name}a", f"{name}b"])
    assert copies[f"{name}b"].ready == 1  # both show one moment
    PriorityQueue.named(db, f"{name}b").push(db, "b")
    monkeypatch.setattr(rows, "_SHARED", -1.0)
    with pytest.raises(QueueNotFound):
        backup(db, File(), [f"{name}a", f"{name}b"])


def test_a_restore_whose_name_was_taken_leaves_no_rows(
    db: Any, other: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 10)
    filled(db, name)
    file = io.BytesIO()
    backup(db, file, [name])
    empty = [*other[b"":b"\xff"]]

    def take() -> None:
        PriorityQueue.named(other, name).push(other, "first")

    with pytest.raises(QueueExists):
        restore(other, Interrupted(file.getvalue(), take))
    assert [item.value for item in PriorityQueue.existing(other, name).items(other)] == ["first"]
    fdbqueue.admin.drop(other, name)
    assert [*other[b"":b"\xff"]] == empty == []


def test_names_must_be_a_list_of_names(db: Any, other: Any, name: str) -> None:
    PriorityQueue.named(other, "jobs").push(other, 1)
    file = io.BytesIO()
    backup(other, file)
    wrong: Any = "jobs"
    with pytest.raises(TypeError, match="list of names"):
        backup(other, io.BytesIO(), wrong)
    with pytest.raises(TypeError, match="list of names"):
        restore(db, file, wrong)
    with pytest.raises(InvalidQueueName):
        restore(db, file, ["jobs"], new_name="")
    with pytest.raises(InvalidQueueName):
        admin.copy(other, db, ["jobs"], new_name="")


@pytest.mark.parametrize("kind", KINDS)
def test_unique_keys_of_every_scope_go_where_their_queue_goes(
    db: Any, other: Any, name: str, kind: str
) -> None:
    queue: Any = {"task": TaskQueue, "fifo": Queue}.get(kind, PriorityQueue).named(db, name)
    scopes: list[dict[str, Any]] = [
        {"unique": "ended"},
        {"unique": "claimed", "unique_until": "claimed"},
        {"unique": "period", "unique_for": "1h"},
    ]

    def push(db: Any, queue: Any, scope: dict[str, Any]) -> str:
        if kind == "task":
            return str(queue.push(db, payload=1, **scope))
        return str(queue.push(db, 1, **scope).id)

    ids = [push(db, queue, scope) for scope in scopes]
    claim = queue.claim(db, n=3)
    queue.ack(db, next(each for each in claim if each.item.id == ids[2]))
    waiting = push(db, queue, scopes[1])
    assert waiting != ids[1]
    expected = [ids[0], waiting, ids[2]]
    file = io.BytesIO()
    backup(db, file, [name])
    restore(other, file)
    admin.copy(db, other, [name], new_name=f"{name}copy")
    admin.rename(db, name, f"{name}new")
    for database, found in ((other, name), (other, f"{name}copy"), (db, f"{name}new")):
        there = fdbqueue.existing_queue(database, found)
        assert [push(database, there, scope) for scope in scopes] == expected
        assert fdbqueue.admin.check(database, there).ok
    admin.drop(db, f"{name}new")
    again = type(queue).named(db, f"{name}new")
    assert push(db, again, scopes[2]) not in expected
