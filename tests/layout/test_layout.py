"""The stored bytes of the layout are fixed, and shared with the recipes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue
from fdbqueue.database import clock
from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.layout.jobs import StoredStep
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import default_subspace, name_key, renames_key
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import (
    NO_REPORT,
    SLOT_OF_QUEUE,
    decode_metadata,
    decode_options,
    encode_metadata,
    utc_time,
)
from fdbqueue.operations.items import Tail
from fdbqueue.queue.base import store_of
from fdbqueue.queue.batches import Batches, Members, push_after
from fdbqueue.queue.steps import ClaimedSteps
from fdbqueue.testing import FaultyDatabase
from recipes.priority_queue import PriorityQueue as PriorityRecipe
from recipes.queue import Queue as QueueRecipe
from tests.support.keys import layout_of

RANDOM = bytes(range(16))


@pytest.fixture
def fixed_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.queue.base.uuids", lambda count: [RANDOM] * count)
    take_count = Tail.take_count
    monkeypatch.setattr(Tail, "take_count", lambda tail, _: take_count(tail, 0))


def rows(db: Any, space: Subspace) -> dict[bytes, bytes]:
    """Return all rows of a queue except receipts and its history, without their prefix."""
    found = db.get_range_startswith(space.key())
    return {
        row.key.removeprefix(space.key()): row.value
        for row in found
        if not space[4].contains(row.key) and not space[29].contains(row.key)
    }


LAYOUT = b"\x15\x01"
"""The version of the layout, packed."""

NO_GROUPS = b"\x02has_groups\x00\x26"
"""The mark that no group of a queue has had items, packed."""

NUMBERS = (b"\x14", b"\x15\x01", b"\x15\x02")
"""The numbers of the first three items of a level, packed."""

PACKED_RANDOM = b"\x01\x00\xff" + RANDOM[1:] + b"\x00"


def test_golden_bytes_of_a_priority_queue(db: Any, space: Subspace, fixed_random: None) -> None:
    queue = PriorityQueue(space)
    first, _ = queue.push_many(db, [{"a": 1}, "é"], priorities=[5, -1])
    assert first.id == "FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA"
    queue.push(db, None, 5)
    assert rows(db, space) == {
        b"\x14\x13\xfe\x14" + PACKED_RANDOM: b'"\xc3\xa9"',
        b"\x14\x15\x05\x14" + PACKED_RANDOM: b'{"a":1}',
        b"\x14\x15\x05\x15\x01" + PACKED_RANDOM: b"null",
        b"\x15\x01\x13\xfe": b"\x01" + bytes(7),
        b"\x15\x01\x15\x05": b"\x02" + bytes(7),
        b"\x15\x02\x14": b"\x03" + bytes(7),
        b"\x15\x05\x02layout\x00": LAYOUT
        + b"\x02kind\x00\x02priority\x00\x02codec\x00\x02json\x00\x02priorities\x00\x02int\x00"
        + NO_GROUPS,
    }


def test_an_emptied_level_continues_its_positions(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    keys = []
    for number in range(3):
        keys.append(queue.push(db, number).key)
        queue.pop(db)
    keys.append(queue.push(db, 3).key)
    counts = [layout_of(queue).unpack_item_key(key)[1] for key in keys]
    assert counts == sorted(set(counts))
    assert counts[3] <= db.create_transaction().get_read_version().wait()


def test_golden_bytes_of_a_tuple_priority_and_of_a_fifo_queue(
    db: Any, space: Subspace, fixed_random: None
) -> None:
    PriorityQueue(space, priorities=(int, str)).push(db, 1, (3, "x"))
    assert b"\x14\x05\x15\x03\x02x\x00\x00\x14" + PACKED_RANDOM in rows(db, space)
    fifo = space["fifo"]
    Queue(fifo, codec="bytes").enqueue(db, b"payload")
    assert rows(db, fifo) == {
        b"\x14\x14" + PACKED_RANDOM: b"payload",
        b"\x15\x02\x14": b"\x01" + bytes(7),
        b"\x15\x05\x02layout\x00": LAYOUT
        + b"\x02kind\x00\x02fifo\x00\x02codec\x00\x02bytes\x00"
        + NO_GROUPS,
    }


def test_golden_bytes_of_a_task_queue(db: Any, space: Subspace, fixed_random: None) -> None:
    TaskQueue(space).push(db, priority=2, cost=1, agent_name="ada", payload={"a": 1})
    level = b"\x05\x15\x02\x1c\x7f" + b"\xff" * 7 + b"\x21\xbf\xf0" + bytes(6) + b"\x00"
    assert rows(db, space) == {
        b"\x14" + level + b"\x14" + PACKED_RANDOM: b'["ada",null]\n{"a":1}',
        b"\x15\x01\x15\x02": b"\x01" + bytes(7),
        b"\x15\x02\x14": b"\x01" + bytes(7),
        b"\x15\x05\x02layout\x00": (
            LAYOUT + b"\x02kind\x00\x02task\x00\x02codec\x00\x02task\x00"
            b"\x02priorities\x00\x05\x02int\x00\x02int\x00\x02float\x00\x00" + NO_GROUPS
        ),
    }


def test_a_queue_stored_without_the_mark_for_groups_may_have_some() -> None:
    stored = LAYOUT + b"\x02kind\x00\x02fifo\x00\x02codec\x00\x02bytes\x00"
    assert decode_options(stored).has_groups
    assert not decode_options(stored + NO_GROUPS).has_groups


def test_a_queue_with_an_option_of_a_newer_release_is_refused() -> None:
    stored = LAYOUT + b"\x02kind\x00\x02fifo\x00\x02codec\x00\x02bytes\x00"
    with pytest.raises(LayoutVersionMismatch, match="the unknown option 'newer'"):
        decode_options(stored + b"\x02newer\x00\x15\x01")


def test_golden_bytes_of_the_history(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_900_800_000]
    monkeypatch.setattr("fdbqueue.database.clock.nanoseconds", lambda: now[0] * 10**9)
    monkeypatch.setattr("fdbqueue.layout.keys.time_of", lambda _: utc_time(1_900_799_999_985))
    queue = PriorityQueue(space)
    queue.push(db, 1)
    queue.pop(db)
    waits = [0, 0, 1] + [0] * 51  # 15 ms are more than 10 * sqrt(2), and less than 20
    assert {
        key: value
        for row in db[space[29].range()]
        for key, value in [(space.unpack(row.key), row.value)]
    } == {
        (29, 0): b"".join(wait.to_bytes(8, "little") for wait in waits),
        (29, 1, 30, 63_360_000): b"",
        (29, 1, 900, 2_112_000): b"",
    }
    now[0] += 30
    queue.push(db, 2)
    sample = db[space.pack((29, 1, 30, 63_360_001))]
    assert bytes(sample) == fdb_tuple.pack((1, 1, 1, 0, 0, 0, 0, 1))


def test_golden_bytes_of_unique_keys(
    db: Any, space: Subspace, fixed_random: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.database.clock.time_ns", lambda: 1_900_800_000 * 10**9)
    queue = PriorityQueue(space, codec="bytes")
    queue.push(db, b"x", unique="k")
    queue.push(db, b"x", unique="c", unique_until="claimed")
    queue.push(db, b"x", unique="p", unique_for="1h")
    stored = rows(db, space)
    keys = [b"\x15\x16\x02" + key + b"\x00" for key in (b"c", b"k", b"p")]
    ends = b"\x1a\x01\xba\x90\xb9\x2e\x80"  # milliseconds
    positions = [b"\x14" + number + PACKED_RANDOM for number in (b"\x15\x01", b"\x14", b"\x15\x02")]
    packed = [b"\x01" + each.replace(b"\x00", b"\x00\xff") + b"\x00" for each in positions]
    assert [stored[key] for key in keys] == [
        packed[0] + b"\x00",
        packed[1] + b"\x00",
        packed[2] + ends,
    ]
    assert stored[b"\x15\x1e" + ends + b"\x02p\x00"] == stored[keys[2]]
    headers = [b"\x15\x02\x02k\x00", b"\x15\x02\x02c\x00\x15\x06\x02c\x00"]
    headers.append(b"\x15\x06\x02p\x00\x15\x07" + ends)
    assert [stored[b"\x14\x14" + number + PACKED_RANDOM] for number in NUMBERS] == [
        b"\xffheader:" + len(header).to_bytes(2, "big") + header + b"x" for header in headers
    ]


NOW = b"\x1a\x01\xba\x90\x82\x40\x00"
"""The time 1,900,800,000,000 in milliseconds, packed."""


def with_header(header: bytes, payload: bytes) -> bytes:
    """Return the value of an item with a packed header: the number and value of each field."""
    return b"\xffheader:" + len(header).to_bytes(2, "big") + header + payload


def escaped(text: bytes) -> bytes:
    """Return bytes as the tuple layer packs them."""
    return b"\x01" + text.replace(b"\x00", b"\x00\xff") + b"\x00"


@pytest.fixture
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.database.clock.time_ns", lambda: 1_900_800_000 * 10**9)


def test_golden_bytes_of_steps_and_signals(
    db: Any, space: Subspace, fixed_random: None, fixed_time: None
) -> None:
    queue = PriorityQueue(space, codec="bytes")
    position = b"\x14\x14" + PACKED_RANDOM
    queue.push(db, b"x")
    claim: Any = queue.claim(db)
    steps = ClaimedSteps(store_of(queue), db, claim, 30, lambda: NO_REPORT)
    steps.store("charge", StoredStep("step", "done", 1000, 2000, 3, error="e", value=b'"paid"'))
    steps.wait("parcel", StoredStep("wait", "waiting", 3000, due=5000, key="k"), "shipped")
    stored = rows(db, space)
    step = b"\x15\x20" + PACKED_RANDOM
    assert stored[step + b"\x02charge\x00"] == (
        b"\x14\x02step\x00\x15\x01\x02done\x00\x15\x02\x16\x03\xe8\x15\x03\x16\x07\xd0"
        b"\x15\x04\x15\x03\x15\x07\x02e\x00"
        b'\x15\x08\x01"paid"\x00'
    )
    waiting = b"\x14\x02wait\x00\x15\x01\x02waiting\x00\x15\x02\x16\x0b\xb8"
    after, number = b"\x15\x05\x16\x13\x88\x15\x06\x02k\x00", b"\x15\x09\x15\x01"
    assert stored[step + b"\x02parcel\x00"] == waiting + after + number
    wait = b"\x02shipped\x00\x02k\x00\x02parcel\x00" + position
    assert stored[b"\x15\x23" + wait] == b""
    header = b"\x15\x0b\x15\x02\x15\x0c" + escaped(wait) + b"\x15\x14\x02parcel\x00"
    due = b"\x00\x03\x16\x13\x88"
    assert stored[b"\x15\x12" + position] == due + with_header(header, b"x")

    queue.steps.signal(db, "shipped", key="k", value={"n": 1}, keep="1h")
    stored = rows(db, space)
    signal, ends = b"\x02shipped\x00\x02k\x00", b"\x1a\x01\xba\x90\xb9\x2e\x80"
    sent = b"\x14" + NOW + b"\x15\x01" + ends + b'\x15\x02\x01{"n":1}\x00'
    assert stored[b"\x15\x21" + signal] == stored[b"\x15\x22" + ends + signal] == sent
    assert b"\x15\x23" + wait not in stored
    ended = waiting.replace(b"waiting", b"done") + b"\x15\x03" + NOW + after
    value = b'\x15\x08\x01{"n":1}\x00'
    assert stored[step + b"\x02parcel\x00"] == ended + value + number


def test_golden_bytes_of_groups(db: Any, space: Subspace, fixed_random: None) -> None:
    queue = PriorityQueue(space, codec="bytes")
    queue.push_many(db, [b"x", b"y"], 5, group="g")
    queue.push_many(db, [b"z"], 5, group="idle")
    queue.set_group(db, "g", weight=2, concurrency=1)
    queue.set_group(db, None, weight=4)
    g, idle, priority = b"\x02g\x00", b"\x02idle\x00", b"\x15\x05"
    stored = rows(db, space)
    assert stored[b"\x14" + priority + g + b"\x14" + PACKED_RANDOM] == b"x"
    of_groups = {key: value for key, value in stored.items() if key.startswith(b"\x15\x25")}
    own = fdb_tuple.pack((0, 2.0, 1, 1))
    assert of_groups == {
        b"\x15\x25\x14" + priority + b"\x14" + g: own,
        b"\x15\x25\x14" + priority + b"\x14" + idle: b"",
        b"\x15\x25\x15\x01" + g + priority: b"",
        b"\x15\x25\x15\x01" + idle + priority: b"",
        b"\x15\x25\x15\x02" + g + priority: bytes(12),
        b"\x15\x25\x15\x02" + idle + priority: bytes(12),
        b"\x15\x25\x15\x05\x00": fdb_tuple.pack((0, 4.0)),
        b"\x15\x25\x15\x05" + g: own,
        b"\x15\x25\x15\x07" + g: b"\x02" + bytes(7),
        b"\x15\x25\x15\x07" + idle: b"\x01" + bytes(7),
    }
    assert queue.claim(db, within=1) is not None
    assert queue.pop(db) is not None
    stored = rows(db, space)
    passes = [(1 << 20) // weight for weight in (2, 4)]
    assert stored[b"\x15\x17\x15\x03" + g] == b"\x01" + bytes(7)
    assert {key: value for key, value in stored.items() if key.startswith(b"\x15\x25")} == {
        b"\x15\x25\x15\x01" + g + priority: b"",
        b"\x15\x25\x15\x02" + g + priority: passes[0].to_bytes(12, "little"),
        b"\x15\x25\x15\x04" + priority: passes[1].to_bytes(12, "little"),
        b"\x15\x25\x15\x05\x00": fdb_tuple.pack((0, 4.0)),
        b"\x15\x25\x15\x05" + g: own,
        b"\x15\x25\x15\x06" + g: b"",
        b"\x15\x25\x15\x07" + g: b"\x01" + bytes(7),
    }


def test_golden_bytes_of_rates_and_sequences(
    db: Any, space: Subspace, fixed_random: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "time_ns", lambda: 1_000_000 * 10**6)
    queue = PriorityQueue(space, codec="bytes")
    queue.set_group(db, "g", rate=(1, 60), in_order=False)
    queue.set_group(db, "s", concurrency=1)
    for group in ("g", "s"):
        queue.push_many(db, [b"x", b"y"], 5, group=group, cost=2)
    claim = queue.claim(db, n=2, within=1)
    assert claim is not None
    queue.nack(db, list(claim)[1], delay=60)
    g, s, priority = b"\x02g\x00", b"\x02s\x00", b"\x15\x05"
    stored = rows(db, space)
    (start,) = (key for key in stored if key.startswith(b"\x15\x25\x15\x08"))
    of_group = b"\x15\x25\x15\x08" + g
    assert start.startswith(of_group)
    assert fdb_tuple.unpack(start[len(of_group) :])[0] == 1_000_000  # the read version follows
    due = 1_060_000
    assert {key: stored[key] for key in stored if key[2:4] >= b"\x15\x05" and key[1] == 37} == {
        b"\x15\x25\x15\x05" + g: fdb_tuple.pack((3, (1, 60_000), 4, False)),
        b"\x15\x25\x15\x05" + s: fdb_tuple.pack((1, 1)),
        b"\x15\x25\x15\x06" + g: due.to_bytes(8, "little"),
        b"\x15\x25\x15\x06" + s: b"",
        b"\x15\x25\x15\x07" + g: b"\x01" + bytes(7),
        b"\x15\x25\x15\x07" + s: b"\x01" + bytes(7),
        start: b"\x01" + bytes(7),
        b"\x15\x25\x15\x09" + g: b"\x01" + bytes(7),
        b"\x15\x25\x15\x0a" + s: next(
            key[2:] for key in stored if key.startswith(b"\x15\x12" + priority)
        ),
        b"\x15\x25\x15\x0b" + s: b"\x01" + bytes(7),
    }
    assert stored[b"\x15\x13" + fdb_tuple.pack((due, None, None, "g"))] == b""


def test_golden_bytes_of_batches(db: Any, space: Subspace, fixed_random: None) -> None:
    queue, others = PriorityQueue(space), PriorityQueue(space["others"])
    batches, own = Batches(queue), b"\x14\x14" + PACKED_RANDOM
    id = batches.open(db, {"job": "end"}, 0, "cancel").id
    pushes = [Members(each, {"values": [1], "priority": 5}) for each in (queue, others)]
    batches.add(db, id, "cancel", pushes)
    stored = rows(db, space)
    batch = b"\x14\x02cancel\x00"
    assert stored[b"\x15\x24\x14" + own] == batch
    assert stored[b"\x15\x24\x15\x01" + own] == b"\x02" + bytes(31)
    never = b"\x00\x07\x1a\xe6\x77\xd2\x1f\xdc\x00"
    assert stored[b"\x15\x12" + own] == never + with_header(b"\x15\x0e\x27", b'{"job":"end"}')
    for owner, prefix in ((b"", b""), (space.key(), b"\x02others\x00")):
        membership = b"\x14" + escaped(owner) + b"\x15\x01" + escaped(own) + b"\x15\x02\x27"
        key = prefix + b"\x14\x15\x05\x14" + PACKED_RANDOM
        assert stored[key] == with_header(b"\x15\x0d" + escaped(membership), b"1"), prefix
    batches.close(db, id)
    closed = b"\x15\x01\x02closed\x00"
    assert rows(db, queue.subspace)[b"\x15\x24\x14" + own] == batch + closed


def test_golden_bytes_of_a_job_that_follows_another(
    db: Any, space: Subspace, fixed_random: None
) -> None:
    queue = PriorityQueue(space)
    first = queue.push(db, "first", priority=7).id
    push_after(db, Members(queue, {"values": ["next"], "priority": 5}), [(queue, first)], "cancel")
    stored = rows(db, space)
    id = escaped(b"\x15\x05\x14" + PACKED_RANDOM)
    membership = b"\x14" + escaped(b"") + b"\x15\x01" + id
    assert stored[b"\x15\x24\x15\x03" + PACKED_RANDOM + b"\x14"] == membership
    followers = b"\x15\x11\x15\x01"
    assert stored[b"\x14\x15\x07\x14" + PACKED_RANDOM] == with_header(followers, b'"first"')


def test_golden_bytes_of_a_payload_in_pieces(db: Any, space: Subspace, fixed_random: None) -> None:
    queue = PriorityQueue(space, codec="bytes")
    queue.push(db, b"x" * 90_001)
    stored = rows(db, space)
    pieces = b"\x15\x03" + PACKED_RANDOM
    assert stored[b"\x14\x14\x14" + PACKED_RANDOM] == b"\xffpieces:\x00\x01\x5f\x91" + RANDOM
    assert stored[pieces + b"\x14"] == b"x" * 90_000
    assert stored[pieces + b"\x15\x01"] == b"x"


@given(
    priority=st.integers(-(2**63), 2**63 - 1),
    count=st.integers(0, 2**63 - 1),
    random=st.binary(min_size=1, max_size=20),
)
def test_keys_equal_those_of_the_tuple_layer(priority: int, count: int, random: bytes) -> None:
    """The layout packs and unpacks them itself, for speed."""
    space = Subspace(("any",))
    layout = Layout(space)
    prefix = layout.level_prefix(priority)
    key = layout.item_key(prefix, count, random)
    assert key == space.pack((0, priority, count, random))
    assert layout.is_item_key(key, prefix)
    assert layout.unpack_count(key, prefix) == count
    assert Priorities(layout, int).level_of(key).prefix == prefix
    assert layout.unpack_level_prefix(prefix) == priority
    assert layout.unpack_item_id(layout.item_id(key), 3) == key
    assert layout.timer_key(prefix, count, b"") == prefix + fdb_tuple.pack((count,))
    assert layout.unpack_timer_key(prefix, layout.timer_key(prefix, count, random)) == (
        count,
        random,
    )


@pytest.mark.parametrize("slots", [(), (SLOT_OF_QUEUE,)])
def test_golden_bytes_of_a_claim(slots: tuple[bytes, ...]) -> None:
    stored = encode_metadata((RANDOM, 300, 2, slots), b"value")
    packed = fdb_tuple.pack((RANDOM, 300, 2, slots))
    assert stored == len(packed).to_bytes(2, "big") + packed + b"value"
    assert decode_metadata(stored) == ((RANDOM, 300, 2, slots), b"value")


def test_an_exactly_once_commit_leaves_a_receipt_under_four(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    queue.push(FaultyDatabase(db), 1)
    whole = layout_of(queue).receipts.range()
    (receipt,) = [row.key for row in db[whole.start : whole.stop]]
    hour, client = layout_of(queue).receipts.unpack(receipt)
    assert receipt.startswith(space.key() + b"\x15\x04")
    assert hour > 400_000
    assert len(client) == 16


def test_golden_bytes_of_a_name(db: Any, name: str) -> None:
    assert default_subspace("mail", 0).key() == b"\x02fdbqueue\x00\x02mail\x00"
    assert default_subspace("mail", 2).key() == b"\x02fdbqueue\x00\x15\x01\x02mail\x00\x15\x02"
    assert name_key("mail") == b"\x02fdbqueue\x00\x14\x02mail\x00"
    assert renames_key("mail") == b"\x02fdbqueue\x00\x15\x03\x02mail\x00"
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    assert db[name_key(name)] == queue.subspace.key() == default_subspace(name, 0).key()


def test_golden_bytes_of_places_and_slots(space: Subspace) -> None:
    layout = Layout(space)
    begin, end = layout.places_between(layout.places, 1, 0, 258)
    assert begin == space.key() + b"\x15\x0a\x15\x01\x14"
    assert end == space.key() + b"\x15\x0a\x15\x01\x16\x01\x02"
    begin, _ = layout.places_between(layout.slot_places + layout.slot_of_queue, 0, 0, 1)
    assert begin == space.key() + b"\x15\x17\x15\x02\x14\x14\x14"
    assert layout.slots + layout.slot_of_queue == space.key() + b"\x15\x17\x14"


def test_the_page_of_keys_names_each_kind_of_key() -> None:
    page = Path("docs/reference/keys.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| `\((.+?)\)` \|", page, re.MULTILINE)
    keys = dict(rows)
    names = {name for name in vars(Layout) if isinstance(getattr(Layout, name), bytes)}
    names -= {"slot_of_queue", "totals", "history", "waiters"}  # the last three have parts
    assert names == keys.keys() - {"receipts"}
    for name in names:
        begin = json.dumps(fdb_tuple.unpack(getattr(Layout, name)))[1:-1]
        assert f"{keys[name]}, ".startswith(f"{begin},"), name


def test_another_layout_version_is_rejected(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    db[layout_of(queue).options] = b"\x15\x63"
    with pytest.raises(LayoutVersionMismatch, match="this release uses layout 1"):
        PriorityQueue.named(db, name)


# The recipe and the library


@pytest.mark.parametrize("kind", [PriorityQueue, Queue])
def test_the_library_and_the_recipe_share_a_queue(db: Any, space: Subspace, kind: Any) -> None:
    queue: Any = kind(space, codec="bytes")
    items = Subspace(rawPrefix=layout_of(queue).items)
    recipe: Any = PriorityRecipe(items) if kind is PriorityQueue else QueueRecipe(items)
    add = partial(recipe.push, priority=0) if kind is PriorityQueue else recipe.enqueue
    take = recipe.pop_min if kind is PriorityQueue else recipe.dequeue
    values = [b"%02d" % number for number in range(20)]
    for number, value in enumerate(values):
        add(db, value) if number % 2 else queue.push(db, value)
    assert [item.value for item in queue.items(db)] == values
    problems = [problem[:9] for problem in fdbqueue.admin.check(db, queue).problems]
    assert problems == (["the count"] if kind is PriorityQueue else []) + ["the total"]
    assert fdbqueue.admin.check(db, queue, repair=True).repaired
    assert queue.size(db) == 20
    taken = [queue.pop(db).value if number % 2 else take(db) for number in range(20)]
    assert taken == values
    assert take(db) is queue.pop(db) is None
