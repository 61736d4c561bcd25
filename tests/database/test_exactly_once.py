"""`transactional`, and exactly one effect even when the reply to a commit is lost."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, admin, transactional
from fdbqueue.database.exactly_once import run_once
from fdbqueue.queue.batches import Batches, Members
from fdbqueue.queue.repeatable import import_lines
from fdbqueue.testing import FaultyDatabase
from tests.support.failing_disk import Disk
from tests.support.full import unless_full
from tests.support.idempotency import push_once
from tests.support.keys import layout_of
from tests.support.leases import lapse
from tests.support.scripted import Fault, ScriptedDatabase


@transactional
def append(tr: Any, key: Any, suffix: bytes) -> bytes:
    value: bytes = (tr[key].value or b"") + suffix
    tr[key] = value
    return value


def test_transactional_on_a_database_commits_and_returns_the_result(
    db: Any, space: Subspace
) -> None:
    class Counter:
        @transactional(parameter="transaction")
        def up(self, key: bytes, transaction: Any) -> Any:
            append(transaction, key, b"x")
            return append(tr=transaction, key=key, suffix=b"y")

    assert Counter().up(space["k"], db) == b"xy"
    assert Counter().up(space["k"], transaction=db) == b"xyxy"
    assert db[space["k"]] == b"xyxy"


def test_transactional_on_a_transaction_neither_commits_nor_retries(
    db: Any, space: Subspace, fdb_error: Any
) -> None:
    tr = db.create_transaction()
    append(tr, space["k"], b"a")
    append(tr, space["k"], b"b")
    assert db[space["k"]] is None
    tr.commit().wait()
    assert db[space["k"]] == b"ab"
    calls = []

    @transactional
    def fails(tr: Any) -> None:
        calls.append(tr)
        raise fdbqueue.FDBError(1020)

    with fdb_error(1020):
        fails(db.create_transaction())
    assert len(calls) == 1


def test_transactional_retries_after_a_conflict(db: Any, space: Subspace) -> None:
    calls = []

    @transactional
    def increment(tr: Any) -> None:
        value = int(tr[space["n"]].value or b"0")
        calls.append(value)
        if len(calls) == 1:
            db[space["n"]] = b"10"
        tr[space["n"]] = b"%d" % (value + 1)

    increment(db)
    assert calls == [0, 10]
    assert db[space["n"]] == b"11"


def test_a_function_without_a_transaction_argument_is_rejected(db: Any) -> None:
    with pytest.raises(ValueError, match="no positional argument 'tr'"):
        transactional(lambda transaction: None)
    with pytest.raises(TypeError, match="needs a database or transaction"):
        append()


def test_generators_and_coroutines_are_rejected(db: Any, space: Subspace) -> None:
    async def later(tr: Any) -> None:
        tr[space["k"]] = b"v"

    with pytest.raises(ValueError, match="coroutines"):
        transactional(later)

    with pytest.raises(ValueError, match="Generators"):

        @transactional
        def rows(tr: Any) -> Any:
            yield tr[space["k"]]

    with pytest.raises(ValueError, match="Generators"):
        transactional(lambda tr: (row for row in tr[:]))(db)


# Lost replies


def faulty(db: Any, rng: random.Random, share: float = 0.25) -> FaultyDatabase:
    db.options.set_transaction_max_retry_delay(1)
    return FaultyDatabase(
        db,
        before=share,
        after=share,
        lost_as=(1021, 1039),
        conflict=0.1,
        too_old=0.02,
        seed=rng.randrange(2**32),
    )


def test_invalid_faults_are_rejected() -> None:
    wrong: list[dict[str, Any]] = [{"before": share} for share in (-0.1, 2, float("nan"), "x")]
    wrong += [{"lost_as": codes} for codes in ((), (1020,), (9999,))]
    for faults in [*wrong, {"after": 0.6, "conflict": 0.6}]:
        with pytest.raises(ValueError, match=r"share|more than 1|lost_as"):
            FaultyDatabase(None, **faults)


def test_pushes_and_pops_neither_lose_nor_duplicate_items(
    db: Any, queue: PriorityQueue, rng: random.Random
) -> None:
    broken = faulty(db, rng)
    for number in range(100):
        queue.push(broken, number, number % 7)
    assert queue.size(db) == 100
    assert fdbqueue.admin.check(db, queue).ok
    popped = []
    while items := queue.pop_many(broken, rng.choice([1, 1, 3])):
        popped += [item.value for item in items]
    assert popped == sorted(range(100), key=lambda number: (number % 7, number))
    assert broken.lost > 50


def test_every_mutating_method_takes_effect_once(
    db: Any, queue: PriorityQueue, space: Subspace, rng: random.Random
) -> None:
    broken, fifo = faulty(db, rng, 0.35), Queue(space["fifo"])
    for _ in range(6):
        low, high = queue.push_many(broken, ["low", "high"], priorities=[1, 9])
        assert queue.update(broken, low, priority=5).priority == 5
        assert queue.remove(broken, high)
        assert queue.pop_max(broken).value == "low"
        queue.push(broken, "cleared")
        queue.clear(broken)
        assert queue.size(db) == 0
        fifo.enqueue(broken, 1)
        fifo.enqueue_many(broken, [2, 3])
        assert fifo.dequeue(broken).value == 1
        assert [item.value for item in fifo.dequeue_many(broken, 2)] == [2, 3]
        assert fifo.size(db) == 0
    assert fdbqueue.admin.check(db, queue).ok
    assert fdbqueue.admin.check(db, fifo).ok


def test_imports_bounds_batches_and_names_are_as_exact(
    db: Any, queue: PriorityQueue, name: str, rng: random.Random
) -> None:
    broken, named = faulty(db, rng, 0.35), PriorityQueue.named(db, name)
    for number in range(6):
        lines = [b'"%d"' % line for line in range(4)]
        assert import_lines(broken, named, lines, f"file {number}").stored == 4
        ids = push_once(broken, named, f"key {number}", ["once"], [9])
        assert push_once(broken, named, f"key {number}", ["once"], [9]) == ids
        named.configure(broken, max_size=8)
        assert sum(unless_full(named.push, broken, n) is not None for n in range(5)) == 3
        moved = named.change_all(broken, "update", state="ready", to={"priority": 7})
        assert (len(moved), {*moved.values()}) == (8, {True})
        assert len(named.pop_many(broken, 9)) == 8
        batches = Batches(named)
        id = batches.open(broken, {"job": "end"}, 0, "continue").id
        batches.add(broken, id, "continue", [Members(queue, {"values": [1, 2], "priority": 0})])
        for _ in range(2):
            queue.ack(broken, queue.claim(broken))
        batches.close(broken, id)
        assert named.pop(broken, wait=60).value["kwargs"] == {"done": 2, "dead": 0, "cancelled": 0}
        admin.rename(broken, name, f"{name}{number}")
        admin.rename(broken, f"{name}{number}", name)
    admin.drop(broken, name)
    assert name not in admin.queue_names(db)


def test_a_users_function_takes_effect_once_with_receipts(
    db: Any, space: Subspace, rng: random.Random
) -> None:
    @transactional(receipts=space["receipts"])
    def increment(tr: Any) -> int:
        value = int(tr[space["n"]].value or b"0") + 1
        tr[space["n"]] = b"%d" % value
        return value

    broken = faulty(db, rng)
    assert [increment(broken) for _ in range(100)] == list(range(1, 101))


def test_receipts_do_not_accumulate(db: Any, queue: PriorityQueue, rng: random.Random) -> None:
    """There is one receipt per client, in the section 4; those of yesterday are removed."""
    broken = faulty(db, rng)
    receipts = layout_of(queue).receipts
    stale = receipts.pack((1, b"a client of long ago"))
    db[stale] = b"\x15\x01\x14"
    from fdbqueue.database.exactly_once import _free_clients

    _free_clients.clear()
    for number in range(50):
        queue.push(broken, number)
    rows = db[receipts.range().start : receipts.range().stop]
    assert len(rows) == 1
    hour, client = receipts.unpack(rows[0].key)
    assert rows[0].key.startswith(queue.subspace.key() + b"\x15\x04")
    assert (hour > 400_000, len(client)) == (True, 16)


@pytest.mark.parametrize("took_place", [True, False])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_timeout_of_a_commit_that_took_place_returns_its_result(
    db: Any, queue: PriorityQueue, fdb_error: Any, took_place: bool, deaths: int
) -> None:
    """The search for the result may time out, too. Without a commit nothing is stored."""
    death = Fault("after" if took_place else "before", 1031)
    dying = ScriptedDatabase(db, dict.fromkeys(range(1, deaths + 1), death))
    with nullcontext() if took_place else fdb_error(1031):
        assert queue.push(dying, "item").value == "item"
    assert queue.size(db) == took_place


IN_FLIGHT = {1: Fault("last", 1021)}
"""The first commit is in flight while the client gets an unknown result."""

OVERTAKEN = {1: Fault("late", 1021)}
"""The first commit applies late, just before that of the second try."""


@pytest.mark.parametrize("retry", ["writes", "writes nothing", "raises"])
@pytest.mark.parametrize("how", ["receipt", "what it stored"])
def test_a_late_commit_is_fenced_by_the_retry(
    db: Any, space: Subspace, how: str, retry: str
) -> None:
    """The first commit is in flight during the retry; only one of the two applies.

    A caller must be able to rely on the answer that nothing was done. A retry learns of the commit
    by a receipt, or by what it stored.
    """

    def body(tr: Any) -> str | None:
        if not tr.snapshot[space["flag"]].present():
            if retry == "raises":
                raise LookupError
            return None
        tr.add_read_conflict_key(space["taken"])
        tr.add(space["n"], b"\x01")
        return "done"

    def is_stored(tr: Any, _: Any) -> bool:
        tr.add_write_conflict_key(space["taken"])
        return bool(tr[space["n"]].present())

    def meanwhile() -> None:
        if retry != "writes":
            del db[space["flag"]]

    db[space["flag"]] = b"1"
    delayed = ScriptedDatabase(db, IN_FLIGHT, meanwhile)
    options: Any = {} if how == "receipt" else {"is_stored": is_stored}
    with pytest.raises(LookupError) if retry == "raises" else nullcontext():
        result = run_once(delayed, body, space["receipts"], bool, **options)
        assert result == ("done" if retry == "writes" else None)
    assert delayed.deliver("last") == 0
    assert db[space["n"]] == (b"\x01" if retry == "writes" else None)


def test_an_unknown_result_stays_unknown_if_the_disk_breaks_before_the_retry(
    tmp_path: Path, disk: Disk, fdb_error: Any
) -> None:
    with fdbqueue.open(tmp_path / "db") as db:
        queue = PriorityQueue.named(db, "jobs")

        def break_disk() -> None:
            disk.breaks()
            with suppress(fdbqueue.FDBError):
                db[b"another"] = b"commit"

        with fdb_error(1021):
            queue.push(ScriptedDatabase(db, {1: Fault("after", 1021)}, break_disk), "job")
    disk.is_repaired()
    with fdbqueue.open(tmp_path / "db") as db:
        assert queue.size(db) == 1


def test_the_result_is_that_of_the_try_that_committed(db: Any, queue: PriorityQueue) -> None:
    """The second try chose another position; the item is where the first try put it."""
    overtaken = ScriptedDatabase(db, OVERTAKEN, lambda: queue.push(db, "other"))
    item = queue.push(overtaken, "mine")
    assert {each.value: each.id for each in queue.items(db)}["mine"] == item.id
    assert queue.size(db) == 2


def test_a_claim_is_that_of_the_try_that_committed(db: Any, queue: PriorityQueue) -> None:
    """It has no receipt: the second try finds the claim itself."""
    queue.push_many(db, ["first", "second"])
    before = len(receipts(db, queue))
    claim = queue.claim(ScriptedDatabase(db, OVERTAKEN), within=2)
    queue.ack(db, claim)
    assert queue.size(db) == 1
    assert queue.counts(db) == {0: 1}
    assert len(receipts(db, queue)) <= before + 1  # that of the acknowledgement


@pytest.mark.parametrize("group", [None, "g"])
def test_a_claim_still_in_flight_is_fenced_by_its_retry(
    db: Any, queue: PriorityQueue, group: str | None
) -> None:
    """The retry takes another item, and makes that of the first try impossible."""
    queue.push(db, "first", 5, group=group)
    delayed = ScriptedDatabase(db, IN_FLIGHT, lambda: queue.push(db, "other", 1))
    claim = queue.claim(delayed, within=1)
    assert claim.item.value == "other"
    assert delayed.deliver("last") == 0
    queue.ack(db, claim)
    assert queue.counts(db) == {5: 1}


def test_a_claim_is_not_mistaken_for_that_of_an_earlier_try(db: Any, space: Subspace) -> None:
    """Both tries have claimed the same task, and the first one has not committed."""
    tasks = TaskQueue(space)
    tasks.push_many(db, [{"payload": payload} for payload in "ab"])

    failing = ScriptedDatabase(db, {1: Fault("before", 1021), 2: Fault("after", 1021)})
    failing.before_commit[1] = lambda: tasks.pop(db)
    claim = tasks.claim(failing, n=2)
    assert [task.payload for task in claim.items] == ["b"]
    tasks.ack(db, claim)


def test_a_claim_that_is_over_before_its_retry_is_made_again(db: Any, queue: PriorityQueue) -> None:
    item = queue.push(db, "job")

    def end() -> None:
        lapse(db, queue)
        other = PriorityQueue(queue.subspace)
        other.release(db, other.claim(db))
        assert queue.state(db, item) == "ready"

    claim = queue.claim(ScriptedDatabase(db, {1: Fault("after", 1021)}, end))
    assert claim.attempt == 2
    queue.ack(db, claim)


def receipts(db: Any, queue: PriorityQueue) -> list[bytes]:
    return [row.key for row in db.get_range_startswith(layout_of(queue).receipts.key())]
