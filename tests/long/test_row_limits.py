"""No item exceeds a limit of FoundationDB in any state, whatever belongs to it."""

from __future__ import annotations

from typing import Any

import pytest
from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Queue
from fdbqueue.errors import PushTooLarge, error_text
from fdbqueue.layout.batches import Membership, encode_membership
from fdbqueue.layout.keys import MAX_PREFIX, Layout
from fdbqueue.layout.priorities import MAX_LEVEL
from fdbqueue.layout.values import MAX_INLINE, MAX_LOG, Header, encode_metadata, with_header
from fdbqueue.queue.arguments import MAX_INTEGER, MAX_TEXT
from fdbqueue.queue.batches import Members, push_after
from fdbqueue.testing import Clock
from tests.support.idempotency import push_once
from tests.support.keys import layout_of
from tests.support.kinds import KINDS, push

TEXT = "\0" * MAX_TEXT
"""The longest name: the tuple layer stores a zero in two bytes."""

NAME = "é" * (MAX_TEXT // 2)
"""The longest name of a client, which has to be printable."""

ERRORS = ["\0" * 2_000, "\udc80" * 2_000, "😀" * 2_000]


def largest_header() -> Header:
    """Return a header whose fields are all as large as they can be."""
    position = fdb_tuple.pack(("\0" * ((MAX_LEVEL - 5) // 2), TEXT, 2**63, bytes(16)))
    wait = Layout.signal_wait(TEXT, TEXT, TEXT, position)
    other = fdb_tuple.pack(("", TEXT, 2**63, bytes(16)))
    batch = encode_membership(Membership(bytes(MAX_PREFIX), other, True, TEXT))
    largest: dict[str, Any] = {"origin": position, "waits": wait, "batch": batch, "cost": 0.001}
    fields: list[Any] = [
        largest.get(name, TEXT if "str" in str(kind) else MAX_INTEGER)
        for name, kind in Header.__annotations__.items()
    ]
    return Header(*fields)


@pytest.mark.parametrize("error", [*map(error_text, ERRORS)])
def test_the_largest_item_has_room_in_every_state(error: str) -> None:
    value = with_header(largest_header(), b"x" * MAX_INLINE)
    token, n = bytes(16) + b"9" * 20, MAX_INTEGER
    slots = (Layout.slot_of_queue,)
    done = (n, n, "discarded", error, n, NAME, "\0" * MAX_LOG, TEXT)
    for stored in (
        value,
        encode_metadata((n,), value),
        encode_metadata((token, n, n, slots), value),
        encode_metadata((n, n, error, error), value),
        encode_metadata(done, value),
    ):
        assert len(stored) <= 100_000


def claims_of_all(db: Any, queue: Any, n: int) -> list[Any]:
    """Claim `n` items, as many as possible at a time."""
    claims: list[Any] = []
    while (left := n - sum(map(len, claims))) > 0:
        claims.append(queue.claim(db, n=left, lease=60))
    return claims


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [60_000, 89_990])
def test_hundreds_of_large_items_move_together(
    db: Any, name: str, clock: Clock, kind: Any, size: int
) -> None:
    """They are due at once, are claimed at once, and their leases end at once."""
    queue = kind.named(db, name)
    ids = [push(db, queue, f"{number}" + "x" * size) for number in range(300)]
    claim = queue.claim(db, n=300, lease=60)
    assert len(claim) == 300
    queue.release(db, claim, delay=1)
    clock.advance(2)
    for claim in claims_of_all(db, queue, 300):
        queue.extend(db, claim, 60, log="\0" * MAX_LOG)
    clock.advance(61)
    for claim in claims_of_all(db, queue, 300):
        queue.nack(db, claim, delay=0, error=ValueError("no"), log="\0" * MAX_LOG)
    assert sorted(item.id for item in queue.pop_many(db, 300)) == sorted(ids)


@pytest.mark.parametrize("size", [MAX_INLINE + 1, 89_990, 99_999, 100_000])
def test_a_row_that_another_client_has_written_goes_through_every_state(
    db: Any, name: str, clock: Clock, size: int
) -> None:
    """A client in another language stores any payload in the row, as the recipe does."""
    queue = Queue.named(db, name, codec="bytes", keep=10)
    queue.enqueue(db, b"first")
    layout, value = layout_of(queue), bytes([size % 256]) * size
    key = layout.item_key(layout.items, 2**60, b"r")
    db[key] = value
    db.add(layout.total_in, (1).to_bytes(8, "little"))
    found = list(queue.items(db))[1]
    push_after(db, Members(queue, {"values": [b"next"]}), [(queue, found.id)], "continue")
    claim = queue.claim(db, n=10)
    assert [item.value for item in claim.items] == [b"first", value]
    queue.nack(db, claim, delay=0, dead=True, error="\0" * 1_000, log="\0" * MAX_LOG)
    for each in (found.id, claim.items[0].id):
        assert queue.retry(db, each)
    claim = queue.claim(db, n=3)
    assert [item.value for item in claim.items][:2] == [b"first", value]
    queue.ack(db, claim, log="\0" * MAX_LOG)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (46_000, {}),
        (25_000, {"delay": 5}),
        (17_000, {"group": "g" * 255}),
        (9_000, {"unique_for": 9}),
    ],
)
def test_a_push_of_more_than_one_transaction_holds_is_refused(
    db: Any, jobs: Any, n: int, options: dict[str, Any]
) -> None:
    if "unique_for" in options:
        options = {**options, "unique": [f"{number:0255}" for number in range(n)]}
    with pytest.raises(PushTooLarge, match=f"a push of {n:,} items takes"):
        jobs.push_many(db, range(n), **options)
    with pytest.raises(PushTooLarge):
        jobs.push_many(db, ["x" * 60_000] * 200)
    assert jobs.is_empty(db)
    assert len(jobs.push_many(db, ["x" * 60_000] * 150)) == 150


def test_schedules_with_large_values_push_the_ticks_that_they_missed(
    db: Any, jobs: Any, clock: Clock
) -> None:
    for number in range(60):
        jobs.schedules.add(db, f"{number}", "x" * 89_000, every="1h", missed="all", overlap="allow")
    clock.advance("6h")
    while jobs.claim(db, n=200) is not None:
        pass
    assert {each.pushed for each in jobs.schedules.all(db)} == {6}


def test_an_idempotency_key_has_a_limited_number_of_long_ids(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, priorities=(str,))
    priorities = [("p" * 400,)] * 200
    with pytest.raises(PushTooLarge, match="a push of 200 items"):
        push_once(db, queue, "key", range(200), priorities)
    assert queue.is_empty(db)
    assert len(push_once(db, queue, "key", range(100), priorities[:100])) == 100


def test_a_subspace_with_a_long_prefix_is_refused() -> None:
    Queue(Subspace(rawPrefix=b"x" * MAX_PREFIX))
    with pytest.raises(ValueError, match="at most 4,900 bytes"):
        Queue(Subspace(rawPrefix=b"x" * (MAX_PREFIX + 1)))
