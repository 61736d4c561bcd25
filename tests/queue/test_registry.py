"""Named queues are created, listed, renamed and dropped; all handles share their options."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue, admin
from fdbqueue.admin import check
from fdbqueue.errors import (
    OptionsMismatch,
    QueueExists,
    QueueNotFound,
    QueueRenamed,
    UndecodableItem,
    UnknownCodec,
)
from fdbqueue.layout.names import RENAMES
from fdbqueue.queue.base import store_of
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of
from tests.support.kinds import KINDS, push


def sizes(db: Any, name: str) -> dict[str, int]:
    """Return the sizes of the queues of this test by name."""
    return {each: stats.ready for each, stats in admin.overview(db, prefix=name).items()}


class Reversed:
    """A custom codec."""

    def encode(self, value: bytes, /) -> bytes:
        return value[::-1]

    def decode(self, payload: bytes, /) -> bytes:
        return payload[::-1]


def test_the_first_push_creates_a_queue_and_reads_do_not(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, f"{name}new", max_size=5)
    assert queue.pop(db) is None
    assert queue.counts(db) == {}
    assert sizes(db, name) == {}
    with pytest.raises(QueueNotFound, match="new'"):
        PriorityQueue.existing(db, f"{name}new")
    assert queue.push(db, 1).value == 1
    assert PriorityQueue.existing(db, f"{name}new").options(db).max_size == 5
    queue.clear(db)
    assert sizes(db, name) == {f"{name}new": 0}


def test_a_renamed_queue_keeps_its_items_and_open_handles_still_work(db: Any, name: str) -> None:
    old, new, other = f"{name}old", f"{name}new", f"{name}other"
    queue = PriorityQueue.named(db, old, max_size=3)
    queue.push_many(db, ["a", "b"])
    admin.rename(db, old, new)
    assert sizes(db, name) == {new: 2}
    assert queue.push(db, "c").value == "c"
    renamed = PriorityQueue.existing(db, new)
    assert [renamed.pop(db).value for _ in range(2)] == ["a", "b"]
    assert renamed.options(db).max_size == 3
    with pytest.raises(QueueNotFound):
        PriorityQueue.existing(db, old)
    PriorityQueue.named(db, old).push_many(db, ["x", "y"])  # the name is free
    assert sizes(db, name) == {old: 2, new: 1}
    with pytest.raises(QueueExists, match="already"):
        admin.rename(db, old, new)
    with pytest.raises(QueueNotFound):
        admin.rename(db, other, f"{name}4")
    assert sizes(db, name) == {old: 2, new: 1}
    admin.drop(db, new)
    with pytest.raises(QueueRenamed, match="open it again"):
        queue.push(db, "d")  # which is not for the queue that took its name
    assert sizes(db, name) == {old: 2}


def test_a_dropped_queue_is_created_again_by_the_next_push(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, f"{name}x", codec="bytes", max_size=1)
    queue.push(db, b"x" * 100_000)
    admin.drop(db, f"{name}x")
    assert list(db.get_range_startswith(queue.subspace.key())) == []
    assert sizes(db, name) == {}
    with pytest.raises(QueueNotFound):
        admin.drop(db, f"{name}x")
    PriorityQueue.named(db, f"{name}x").push(db, "another codec")
    with pytest.raises(OptionsMismatch, match="codec 'json' and was opened with 'bytes'"):
        queue.push(db, b"y")


def traces(db: Any) -> dict[bytes, bytes]:
    """Read the traces of renames in the whole database."""
    return {row.key: row.value for row in db[RENAMES.range()]}


def test_repeated_renames_of_a_queue_leave_one_trace(db: Any, name: str) -> None:
    before = traces(db)
    queue = PriorityQueue.named(db, f"{name}0")
    queue.push(db, "kept")
    for number in range(20):
        admin.rename(db, f"{name}{number}", f"{name}{number + 1}")
    assert len(traces(db).keys() - before.keys()) <= 1
    assert sizes(db, name) == {f"{name}20": 1}
    assert PriorityQueue.named(db, f"{name}10").push(db, "another").value == "another"
    assert queue.pop(db).value == "kept"
    assert sizes(db, name) == {f"{name}20": 0, f"{name}10": 1}


def test_a_subspace_is_never_reused_for_another_queue(
    db: Any, name: str, rng: random.Random
) -> None:
    names = [f"{name}{letter}" for letter in "abcde"]
    subspaces: dict[str, bytes] = {}  # of the existing queues
    names_of: dict[bytes, set[str]] = {}  # all names that each subspace has had
    for _ in range(150):
        each, other = rng.sample(names, 2)
        if each not in subspaces:
            queue = PriorityQueue.named(db, each)
            queue.push(db, each)
            subspace = queue.subspace.key()
            assert names_of.get(subspace, {each}) == {each}, "it was another queue's"
            assert subspace not in subspaces.values()
            subspaces[each], names_of[subspace] = subspace, {each}
        elif rng.random() < 0.3:
            admin.drop(db, each)
            del subspaces[each]
        elif other not in subspaces:
            admin.rename(db, each, other)
            subspaces[other] = subspaces.pop(each)
            names_of[subspaces[other]].add(other)
    existing = {*names}.intersection(admin.queue_names(db))
    opened = {each: PriorityQueue.existing(db, each) for each in existing}
    assert {each: queue.subspace.key() for each, queue in opened.items()} == subspaces


def test_names_change_with_the_callers_transaction(db: Any, name: str) -> None:
    PriorityQueue.named(db, f"{name}a").push(db, 1)

    @fdbqueue.transactional
    def exchange(tr: Any) -> dict[str, int]:
        admin.rename(tr, f"{name}a", f"{name}b")
        listed = sizes(tr, name)
        admin.drop(tr, f"{name}b")
        return listed

    assert exchange(db) == {f"{name}b": 1}
    assert sizes(db, name) == {}


def test_an_unknown_name_suggests_similar_ones_near_it(db: Any, name: str) -> None:
    for number in range(12):
        PriorityQueue.named(db, f"{name}{number:03}").push(db, 1)
    with pytest.raises(QueueNotFound) as caught:
        PriorityQueue.existing(db, f"{name}006x")
    assert caught.value.similar[0] == f"{name}006"
    assert repr(f"{name}006") in str(caught.value)
    with pytest.raises(QueueNotFound, match="`fdbq ls` lists all") as caught:
        PriorityQueue.existing(db, "?")
    assert caught.value.similar == ()
    assert len(caught.value.others) == 5
    assert repr(caught.value.others[0]) in str(caught.value)
    with pytest.raises(QueueNotFound, match="there are no queues in this database"):
        PriorityQueue.existing(fdbqueue.open("memory:"), "jobs")


def test_a_handle_uses_the_stored_options_and_rejects_different_ones(db: Any, name: str) -> None:
    full = f"{name}tuples"
    PriorityQueue.named(db, full, codec="tuple", priorities=(int, str), max_size=9).push(
        db, (1, b"x"), (0, "a")
    )
    again = PriorityQueue.named(db, full)
    assert again.options(db) == fdbqueue.types.Options("priority", "tuple", (int, str), 9)
    assert again.pop(db).value == (1, b"x")
    for option, given, said in [
        ("codec", "json", r"codec 'tuple' and was opened with 'json'"),
        ("priorities", int, r"priorities \(int, str\) and was opened with int"),
    ]:
        options: dict[str, Any] = {option: given}
        with pytest.raises(OptionsMismatch, match=said) as caught:
            PriorityQueue.named(db, full, **options)
        assert caught.value.option == option


def test_a_custom_codec_is_identified_by_its_class_name(db: Any, name: str) -> None:
    full = f"{name}own"
    PriorityQueue.named(db, full, codec=Reversed()).push(db, b"ab")
    without = PriorityQueue.named(db, full)
    with pytest.raises(UnknownCodec, match="'Reversed'"):
        without.push(db, b"cd")
    with pytest.raises(UndecodableItem, match="'Reversed'"):
        without.pop(db)
    assert (without.size(db), without.counts(db), check(db, without).ok) == (1, {0: 1}, True)
    assert PriorityQueue.named(db, full, codec=Reversed()).pop(db).value == b"ab"
    with pytest.raises(OptionsMismatch, match="codec 'Reversed'"):
        PriorityQueue.named(db, full, codec="bytes")


def test_a_queue_in_a_directory_of_the_cluster(cluster: Any, db: Any, name: str) -> None:
    import fdb

    directory = fdb.directory.create_or_open(db, (name, "jobs"))
    try:
        queue = PriorityQueue.named(db, directory, max_size=2)
        queue.push_many(db, ["a", "b"])
        assert PriorityQueue.named(db, fdb.directory.open(db, (name, "jobs"))).pop(db).value == "a"
    finally:
        fdb.directory.remove(db, (name,))
        db.clear_range_startswith(b"\xfe")


@pytest.mark.parametrize("kind", KINDS)
def test_opening_a_queue_takes_one_transaction_and_uses_its_stored_options(
    db: Any, name: str, kind: Any
) -> None:
    codec = {} if kind is TaskQueue else {"codec": "tuple"}
    queue = kind.named(db, name, max_size=7, **codec)
    push(db, queue, (1,) if codec else 1)
    counting = CountingDatabase(db)
    opened = [
        kind.named(counting, name),
        kind.existing(counting, name),
        kind.named(counting, queue.subspace),
        fdbqueue.existing_queue(counting, name),
    ]
    assert counting.transactions == len(opened)
    for each in opened:
        assert type(each) is kind
        assert each.subspace.key() == queue.subspace.key()
        assert store_of(each).given_options == replace(each.options(db), max_size=None)
        assert each.options(db).max_size == 7
        assert each.peek(db) == queue.peek(db)
    for other in {*KINDS} - {kind}:
        for open_it in (other.named, other.existing):
            with pytest.raises(OptionsMismatch):
                open_it(db, name)


def test_a_queue_whose_options_are_lost_keeps_its_name(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name)
    jobs.push(db, 1)
    del db[layout_of(jobs).options]
    assert PriorityQueue.named(db, name).push(db, 2).value == 2
    assert [item.value for item in PriorityQueue.existing(db, name).items(db)] == [1, 2]
