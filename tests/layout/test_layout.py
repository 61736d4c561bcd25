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
from fdbqueue.database.clock import Since
from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.layout.jobs import StoredStep
from fdbqueue.layout.keys import Layout, unpack_priority
from fdbqueue.layout.names import default_subspace, name_key, renames_key
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import (
    NEVER,
    decode_metadata,
    decode_options,
    encode_deployed,
    encode_metadata,
    utc_time,
)
from fdbqueue.operations.items import Tail
from fdbqueue.queue.arguments import declared_settings
from fdbqueue.queue.base import store_of
from fdbqueue.queue.batches import Batches, Members, StoredAlert, encode_alert, push_after
from fdbqueue.queue.schedules import Declared, declare
from fdbqueue.queue.steps import ClaimedSteps, HeldLease, Suspended
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


GOLDEN = Path(__file__).with_name("golden.txt")
"""The keys, as tuples below the subspace, and the values that `store_everything` stores."""


def store_everything(db: Any, space: Subspace) -> None:
    """Store rows of each kind, except claims and leases, which hold versions and tokens."""
    plain: Any = PriorityQueue(space["plain"])
    first, _ = plain.push_many(db, [{"a": 1}, "é"], priorities=[5, -1])
    assert first.id == "FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA"
    plain.push(db, None, 5)
    plain.push(db, "dies", 9, ttl=3600)
    plain.nack(db, plain.claim(db, within=1), dead=True, error="broken")
    PriorityQueue(space["tuples"], priorities=(int, str)).push(db, 1, (3, "x"))
    Queue(space["fifo"], codec="bytes").enqueue(db, b"payload")
    fields: Any = {"priority": 2, "cost": 1, "agent_name": "ada", "payload": {"a": 1}}
    TaskQueue(space["tasks"]).push(db, **fields)
    PriorityQueue(space["pieces"], codec="bytes").push(db, b"x" * 90_001)

    unique: Any = PriorityQueue(space["unique"], codec="bytes")
    unique.push(db, b"x", unique="k")
    unique.push(db, b"x", unique="c", unique_until="claimed")
    unique.push(db, b"x", unique="p", unique_for="1h")

    jobs: Any = PriorityQueue(space["jobs"], codec="bytes", keep=5)
    jobs.schedules.add(db, "hourly", b"tick", 3, every="1h", group="ada", overlap="queue")
    for signal in ("parcel", "refund"):
        jobs.push(db, b"x")
        steps = ClaimedSteps(HeldLease(store_of(jobs), db, jobs.claim(db), 30, Since()))
        steps.add("charge", StoredStep("step", "done", 1000, 2000, 3, error="e", value=b'"paid"'))
        with pytest.raises(Suspended):
            steps.wait("sent", StoredStep("wait", "waiting", 3000, due=NEVER, key="k"), signal)
    jobs.steps.signal(db, "parcel", key="k", value={"n": 1}, keep="1h")
    jobs.push(db, b"done", -1)
    jobs.ack(db, jobs.claim(db, within=1), result={"n": 1})

    alerts, alert = (
        PriorityQueue[Any](space["alerts"]),
        StoredAlert("of", "alert", "ops", 2, "g", 3),
    )
    told = Members(alerts, {"values": [1], "priority": 5}, encode_alert(alert))
    told.push(db, told.items())
    schedule = Declared("hourly", "tick", 3, {"every": "1h"}, told.alert)
    declare(alerts.schedules, db, [schedule], is_declared=False)

    groups: Any = PriorityQueue(space["groups"], codec="bytes")
    groups.push_many(db, [b"x", b"y"], 5, group="g")
    groups.push_many(db, [b"z"], 5, group="idle")
    groups.set_group(db, "g", weight=2, concurrency=1, max_size=9)
    groups.set_group(db, None, weight=4)
    assert groups.pop(db) is not None
    rates: Any = PriorityQueue(space["rates"], codec="bytes")
    rates.set_group(db, "g", rate=(1, 60), in_order=False)
    rates.set_group(db, "s", concurrency=1)
    for group in ("g", "s"):
        rates.push_many(db, [b"x", b"y"], 5, group=group, cost=2)
    rates.nack(db, rates.claim(db, n=2, within=1), delay=60)

    settings = declared_settings({"rate": (10, "1m"), "max_size": None}, {"weight": 2})
    db[layout_of(PriorityQueue(space["deployed"])).deployed] = encode_deployed(settings)

    queue, others = PriorityQueue[Any](space["batch"]), PriorityQueue[Any](space["batch"]["others"])
    id = Batches(queue).open(db, {"job": "end"}, 0, "cancel").id
    pushes = [Members(each, {"values": [1], "priority": 5}) for each in (queue, others)]
    Batches(queue).add(db, id, "cancel", pushes)
    Batches(queue).close(db, id)
    follows = PriorityQueue[Any](space["follows"])
    before = follows.push(db, "first", priority=7).id
    push_after(
        db, Members(follows, {"values": ["next"], "priority": 5}), [(follows, before)], "cancel"
    )


def shown(space: Subspace, row: Any) -> str:
    """Return a row as text: its key as a tuple, and its value, which has many zeros."""
    key: list[Any] = [*space.unpack(row.key)]
    if key[1:3] == [37, 8]:
        key[-1] = "READ VERSION"
    text = f"{key} {bytes(row.value[:300])!r}".replace(repr(RANDOM), "RANDOM")
    return re.sub(r"(\\x00){7,}", lambda found: rf"\x00*{len(found[0]) // 4}", text)


def test_golden_bytes(db: Any, fixed_random: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kind of row is a new line; a line that changes is a new layout."""
    monkeypatch.setattr("fdbqueue.database.clock.time_ns", lambda: 1_900_800_000 * 10**9)
    monkeypatch.setattr("fdbqueue.database.clock._host", "host")
    monkeypatch.setattr("os.getpid", lambda: 7)
    space = Subspace(("golden",))
    try:
        store_everything(db, space)
        rows = [*db.get_range_startswith(space.key())]
    finally:
        db.clear_range_startswith(space.key())
    unlike = re.compile(r"\['[a-z]+', ('others', )?(4|29)\b")  # receipts, history
    lines = [line for line in (shown(space, row) for row in rows) if not unlike.match(line)]
    assert lines == GOLDEN.read_text().splitlines()


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


def test_a_queue_stored_without_the_mark_for_groups_may_have_some() -> None:
    stored = fdb_tuple.pack((1, "kind", "fifo", "codec", "bytes"))
    assert decode_options(stored).has_groups
    assert not decode_options(stored + fdb_tuple.pack(("has_groups", False))).has_groups


def test_a_queue_with_an_option_of_a_newer_release_is_refused() -> None:
    stored = fdb_tuple.pack((1, "kind", "fifo", "codec", "bytes"))
    with pytest.raises(LayoutVersionMismatch, match="the unknown option 'newer'"):
        decode_options(stored + fdb_tuple.pack(("newer", 1)))


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
    assert layout.unpack_count(key, prefix) == count
    assert Priorities(layout, int).level_of(key).prefix == prefix
    assert unpack_priority(layout.position(prefix)) == priority
    assert layout.unpack_item_id(layout.item_id(key), 3) == key
    assert layout.timer_key(prefix, count, b"") == prefix + fdb_tuple.pack((count,))
    position = layout.position(key)
    timer = layout.timer_key(prefix, count, position)
    assert layout.unpack_timer_key(prefix, timer) == (count, position)


@pytest.mark.parametrize("slots", [(), (Layout.slot_of_queue,)])
def test_golden_bytes_of_a_claim(slots: tuple[bytes, ...]) -> None:
    stored = encode_metadata((RANDOM, 300, 2, slots), b"value")
    packed = fdb_tuple.pack((RANDOM, 300, 2, slots))
    assert stored == len(packed).to_bytes(2, "big") + packed + b"value"
    assert decode_metadata(stored) == ((RANDOM, 300, 2, slots), b"value")


def test_golden_bytes_of_references(space: Subspace) -> None:
    layout = Layout(space)
    position = fdb_tuple.pack((5, 0, RANDOM))
    references = {
        layout.schedule_reference("nightly"): (b"\x00\x02nightly\x00", ("nightly", None)),
        layout.group_reference("ada"): (b"\x00\x00\x02ada\x00", (None, "ada")),
        layout.queue_reference: (b"\x00\x00\x02\x00", (None, "")),
        position: (position, (None, None)),
    }
    for reference, (stored, names) in references.items():
        assert reference == stored
        assert layout.unpack_reference(reference) == names


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


@pytest.mark.damaged
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
