"""Each verb gives the same answer, and leaves the same state, through every door to a queue.

What a verb means in all its cases is tested in `tests/queue` and `tests/operations`. What only one
door has, such as exit codes or status codes, is tested with that door.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.jobs import App, Context, Dead
from fdbqueue.types import STATES
from tests.support.doors import DOORS, Door, Refused, open_door
from tests.support.scan import assert_views_agree

Open = Callable[[str], Door]
LATER = "2100-01-01T00:00:00+01:00"


@pytest.fixture(params=DOORS)
def opened(
    request: pytest.FixtureRequest, db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Open:
    """Return a function that opens a door to the queue of a name."""
    return lambda name: open_door(request.param, db, name, tmp_path, monkeypatch)


@pytest.fixture
def door(opened: Open, name: str) -> Door:
    return opened(name)


def in_all_states(db: Any, jobs: PriorityQueue) -> dict[str, str]:
    """Push an item for each state; return the ids."""
    jobs.configure(db, keep=10, max_attempts=1)
    ids: dict[str, str] = {
        state: jobs.push(db, state, number).id for number, state in enumerate(STATES)
    }
    claims = {claim.item.value: claim for claim in (jobs.claim(db, lease=600) for _ in STATES)}
    jobs.release(db, claims["ready"])
    jobs.release(db, claims["delayed"], delay=600)
    jobs.nack(db, claims["dead"], error="ValueError: no such address")
    jobs.ack(db, claims["done"], result={"sent": 3})
    return ids


# Items


def test_items_are_pushed_and_popped_in_order(door: Door, db: Any, jobs: PriorityQueue) -> None:
    door.push({"to": "ada"}, priority=5)
    door.push("urgent", priority=-1)
    door.push([1, None])
    assert door.counts() == {-1: 1, 0: 1, 5: 1}
    assert door.pop() == ["urgent"]
    assert door.pop(2) == [[1, None], {"to": "ada"}]
    assert door.pop() == []
    assert door.history() == [(300, 3, 3), (3600, 3, 3), (86400, 3, 3)]
    assert_views_agree(db, jobs)


def test_a_push_takes_every_option(door: Door, db: Any, jobs: PriorityQueue) -> None:
    id = door.push(1, priority=7, delay=600, ttl=3600, group="ada", cost=2.5, unique="k")
    assert door.push(2, unique="k") == id
    info = jobs.get(db, id)
    assert info is not None
    assert (info.state, info.unique, info.group, info.item.priority) == ("delayed", "k", "ada", 7)
    assert info.expires_at is not None
    assert jobs.state(db, door.push(3, at=LATER)) == "delayed"
    first = door.push(4, unique="c", unique_until="claimed")
    door.pop()
    assert door.push(5, unique="c", unique_until="claimed") != first
    hourly = door.push(6, unique="h", unique_for="1h")
    door.pop(9)
    assert door.push(7, unique="h", unique_for="1h") == hourly
    cart = door.push(8, unique="cart", replace=True, delay=60, at_most="5m")
    assert door.push(9, unique="cart", replace=True, delay=60, at_most="5m") == cart
    assert jobs.get(db, cart).item.value == 9


@pytest.mark.parametrize(
    "options",
    [
        {"priority": [1]},
        {"delay": -1},
        {"ttl": 0},
        {"group": ""},
        {"cost": 0},
        {"unique": ""},
        {"unique_for": 60},
        {"unique": "k", "unique_until": "claimed", "unique_for": 60},
        {"delay": 1, "at": LATER},
        {"replace": True},
        {"unique": "k", "at_most": 60},
        {"unique": "k", "replace": True, "unique_for": 60},
        {"unique": "k", "replace": True, "unique_until": "ended"},
    ],
    ids=str,
)
def test_a_refused_push_stores_nothing(door: Door, db: Any, name: str, options: Any) -> None:
    with pytest.raises(Refused, match="ValueError"):
        door.push(1, **options)
    assert not fdbqueue.admin.overview(db, prefix=name) or door.stats()["total_pushed"] == 0


def test_a_full_queue_and_an_unknown_one_refuse(door: Door, db: Any, name: str) -> None:
    for call in (door.pop, door.stats, lambda: door.configure(max_size=3), lambda: door.find("x")):
        with pytest.raises(Refused, match="QueueNotFound"):
            call()
    assert name not in fdbqueue.admin.queue_names(db)
    door.push(1)
    door.configure(max_size=1)
    with pytest.raises(Refused, match="QueueFull"):
        door.push(2)
    assert door.pop(2) == [1]


def test_items_are_listed_and_found_in_every_state(
    door: Door, db: Any, jobs: PriorityQueue
) -> None:
    ids = in_all_states(db, jobs)
    assert {state: door.items(state) for state in STATES} == {
        state: [id] for state, id in ids.items()
    }
    for state, id in ids.items():
        found = door.find(id)
        assert found is not None
        assert (found["state"], found["priority"]) == (state, [*STATES].index(state))
        assert (found["error"] is not None) == (state == "dead")
    dead = door.find(ids["dead"])
    assert dead is not None
    assert dead["failed_attempts"][0]["error"] == "ValueError: no such address"
    assert {state: door.stats()[state] for state in STATES} == dict.fromkeys(STATES, 1)
    assert door.result(ids["done"]) == {"sent": 3}
    with pytest.raises(Refused, match="NoResult"):
        door.result(ids["ready"])
    jobs.remove(db, ids["ready"])
    assert door.find(ids["ready"]) is None
    with pytest.raises(Refused, match="ValueError"):
        door.find("nonsense")


def test_items_are_listed_by_filters(door: Door, db: Any, jobs: PriorityQueue) -> None:
    jobs.configure(db, max_attempts=1)
    values = [{"job": "shop.send"}, {"job": "shop.resend"}, 3, 4]
    ids = [item.id for item in jobs.push_many(db, values, groups=["a", "b", "a", "b"])]
    assert door.items("ready", job="send") == [ids[0]]
    assert door.items("ready", group="a") == [ids[0], ids[2]]
    assert door.items("ready", id=ids[3][-16:]) == [ids[3]]
    assert door.items("ready", after=ids[0], limit=1) == [ids[2]]
    for error in ("TimeoutError: smtp", "KeyError: 'email'"):
        jobs.nack(db, jobs.claim(db), error=error)
    jobs.claim(db, client="mail-1")
    assert len(door.items("dead", error="timeout")) == 1
    assert len(door.items("claimed", client="MAIL")) == 1
    assert door.items("claimed", client="other") == []
    for state, which in (
        ("ready", {"client": "mail"}),
        ("dead", {"agent": "ada"}),
        ("done", {"error": "x"}),
        ("ready", {"after": "nonsense"}),
    ):
        with pytest.raises(Refused, match="ValueError"):
            door.items(state, **which)


CHANGES: dict[str, set[str]] = {
    "retry": {"dead", "delayed"},
    "release": {"claimed"},
    "remove": {"ready", "delayed", "dead", "done"},
}
"""The states of the items that a change is for."""


@pytest.mark.parametrize("verb", CHANGES)
def test_a_change_of_an_item_needs_its_state(
    door: Door, db: Any, jobs: PriorityQueue, verb: str, request: pytest.FixtureRequest
) -> None:
    ids = in_all_states(db, jobs)
    for state, id in ids.items():
        # POST .../retry is for dead letters alone; a delayed item has .../run-now.
        called = "run-now" if (verb, state) == ("retry", "delayed") else verb
        if "http" not in request.node.callspec.id:
            called = verb
        assert door.change(called, id) == (state in CHANGES[verb]), state
        expected = state if state not in CHANGES[verb] else {"remove": None}.get(verb, "ready")
        assert jobs.state(db, id) == expected
    jobs.remove(db, ids["ready"])
    assert not door.change(verb, ids["ready"])
    with pytest.raises(Refused, match="ValueError"):
        door.change(verb, "nonsense")
    assert_views_agree(db, jobs)


def test_items_that_wait_are_updated(door: Door, db: Any, jobs: PriorityQueue) -> None:
    ids = in_all_states(db, jobs)
    for state in ("ready", "delayed"):
        assert door.change("update", ids[state], priority=9, value={"to": "bob"}, group="b")
        info = jobs.get(db, ids[state])
        assert (info.state, info.item.priority, info.group) == (state, 9, "b")
        assert info.item.value == {"to": "bob"}
    assert door.change("update", ids["ready"], at=LATER, group=None)
    assert door.change("update", ids["delayed"], delay=0)
    assert [jobs.state(db, ids[each]) for each in ("ready", "delayed")] == ["delayed", "ready"]
    assert jobs.get(db, ids["ready"]).group is None
    for state in ("claimed", "dead", "done"):
        assert not door.change("update", ids[state], priority=9)
    jobs.remove(db, ids["done"])
    assert not door.change("update", ids["done"], value=1)
    for wrong in ({"priority": [1]}, {"delay": -1}, {"delay": 1, "at": LATER}, {"group": ""}):
        with pytest.raises(Refused, match="ValueError"):
            door.change("update", ids["ready"], **wrong)
    assert_views_agree(db, jobs)


def test_items_are_cancelled(door: Door, db: Any, jobs: PriorityQueue) -> None:
    ids = in_all_states(db, jobs)
    assert [door.change("cancel", ids[state]) for state in ("ready", "claimed", "done")] == [
        *(True, True, False)
    ]
    assert jobs.get(db, ids["ready"]).outcome == "cancelled"
    assert jobs.get(db, ids["claimed"]).cancelling
    assert door.change("cancel", ids["claimed"], force=True, children=True)
    assert jobs.get(db, ids["claimed"]).outcome == "cancelled"
    assert_views_agree(db, jobs)


def test_all_items_in_a_state_are_changed(door: Door, db: Any, jobs: PriorityQueue) -> None:
    jobs.configure(db, max_attempts=1, max_size=3)
    jobs.push_many(db, range(3))
    for error in ("busy", "busy", "timeout"):
        jobs.nack(db, jobs.claim(db), error=error)
    assert door.change_all("retry", "dead", error="TIMEOUT") == 1
    jobs.push(db, 4, 5)
    assert door.change_all("retry", "dead") == 1  # of two: the queue is full again
    assert jobs.stats(db).dead == 1
    assert door.change_all("update", "ready", to={"priority": 5}) == 3
    assert door.change_all("remove", "ready", priority=5) == 3
    jobs.push_many(db, [5, 6])
    jobs.claim(db, n=2)
    assert door.change_all("release", "claimed") == 2
    assert door.change_all("remove", "dead") == 1
    assert door.change_all("remove", "dead") == 0
    with pytest.raises(Refused, match="ValueError"):
        door.change_all("retry", "ready")
    assert_views_agree(db, jobs)


# Queues


def test_a_queue_is_configured_and_paused(door: Door, db: Any, jobs: PriorityQueue) -> None:
    jobs.push(db, 1)
    unset = dict.fromkeys(("max_size", "max_attempts", "concurrency", "keep_seconds", "rate"))
    assert door.configure() == {**unset, "keep_number": None, "paused": False}
    given = {"max_size": 9, "max_attempts": 3, "concurrency": 2, "keep_number": 5, "rate": (9, 60)}
    assert door.configure(**given) == {**given, "keep_seconds": None, "paused": False}
    assert door.configure(keep_seconds=60, max_size=None)["keep_seconds"] == 60
    assert door.configure(rate=None)["rate"] is None
    for wrong in ({"max_size": 0}, {"concurrency": 20_000}, {"rate": (0, 60)}):
        with pytest.raises(Refused, match="ValueError"):
            door.configure(**wrong)
    assert door.configure()["concurrency"] == 2
    door.configure(paused=True)
    assert (door.pop(), door.stats()["paused"]) == ([], True)
    door.configure(paused=False)
    assert door.pop() == [1]


def test_a_queue_is_cleared_renamed_checked_and_dropped(
    opened: Open, db: Any, jobs: PriorityQueue, name: str
) -> None:
    in_all_states(db, jobs)
    door, renamed = opened(name), opened(f"{name}/2 ü")
    door.rename(f"{name}/2 ü")
    assert renamed.check() == []
    with pytest.raises(Refused, match="QueueNotFound"):
        opened(name).stats()
    renamed.clear()
    assert [renamed.stats()[state] for state in STATES] == [0] * 5
    assert renamed.configure()["max_attempts"] == 1
    renamed.drop()
    assert not fdbqueue.admin.overview(db, prefix=name)


# Groups


def test_groups_are_listed_limited_and_paused(door: Door, db: Any, jobs: PriorityQueue) -> None:
    jobs.push_many(db, [1, 2, 3, 4], groups=["a/b", "a/b", "bob", None])
    door.set_group("a/b", weight=2, concurrency=1, rate=(3, 60), max_size=9)
    door.set_group("a/b", paused=True)
    door.set_group(None, concurrency=7)
    door.set_group("", weight=4)
    ada, bob = door.groups()
    assert ada == {
        **{"name": "a/b", "ready": 2, "claimed": 0, "delayed": 0, "weight": 2, "concurrency": 1},
        **{"rate": [3, 60], "max_size": 9, "paused": True, "in_order": True},
        **{"held_by": "paused", "held_until": None},
    }
    assert (bob["concurrency"], bob["weight"], bob["held_by"]) == (7, 1, None)
    assert jobs.group_settings(db, "") == {"weight": 4}
    (first, _) = door.items("ready", group="a/b")
    assert (door.find(first) or {})["held_by"] == "group_paused"
    assert door.pop(9) == [4, 3]
    door.set_group("a/b", paused=False, concurrency=None)
    assert door.pop(9) == [1, 2]
    before = door.groups()
    wrong = ({"weight": 0}, {"concurrency": 0}, {"rate": (0, 1)})
    for group, settings in [*(("a/b", each) for each in wrong), ("", {"concurrency": 1})]:
        with pytest.raises(Refused, match="ValueError"):
            door.set_group(group, **settings)
    assert door.groups() == before


def test_one_group_is_retried_cancelled_and_cleared(
    door: Door, db: Any, jobs: PriorityQueue
) -> None:
    jobs.configure(db, max_attempts=1)
    jobs.push(db, 1, group="a/b")
    jobs.nack(db, jobs.claim(db))
    jobs.push_many(db, [2, 3], group="bob")
    assert [door.change_group(verb, "a/b") for verb in ("retry", "cancel", "clear")] == [1, 1, 0]
    assert door.change_group("clear", "bob") == 2
    door.set_group("bob", max_size=1)
    door.push(4, group="bob")
    with pytest.raises(Refused, match="QueueFull"):
        door.push(5, group="bob")
    assert_views_agree(db, jobs)


# Schedules


def test_a_schedule_is_added_run_paused_and_removed(
    door: Door, db: Any, jobs: PriorityQueue
) -> None:
    nightly = {"cron": "0 3 * * *", "tz": "Europe/Lisbon", "overlap": "skip"}
    door.add_schedule("every/night", {"of": 1}, priority=5, group="ada", **nightly)
    door.add_schedule("hourly", 2, every=3600)
    first, second = door.schedules()
    assert first.items() >= {"name": "every/night", "value": {"of": 1}, "every": None}.items()
    assert first.items() >= {"priority": 5, "group": "ada", "pushed": 0, **nightly}.items()
    assert first["next_tick"] == min(first["next_ticks"])
    assert (second["every"], second["cron"], second["overlap"]) == (3600, None, "allow")
    id = door.run_schedule("every/night")
    assert (jobs.get(db, id).item.priority, jobs.get(db, id).group) == (5, "ada")
    assert door.run_schedule("every/night") is None  # its last item has not ended
    for verb, paused in (("pause", True), ("resume", False)):
        assert door.change_schedule(verb, "hourly")
        assert door.schedules()[1]["paused"] is paused
    jobs.configure(db, max_size=1)
    with pytest.raises(Refused, match="QueueFull"):
        door.run_schedule("hourly")
    assert [door.change_schedule("remove", "hourly") for _ in range(2)] == [True, False]
    assert not door.change_schedule("pause", "hourly")
    assert door.run_schedule("hourly") is None
    assert len(door.schedules()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cron": "61 * * * *"},
        {"every": 0.5},
        {"every": 60, "cron": "* * * * *"},
        {"every": 60, "missed": "some"},
        {"cron": "* * * * *", "tz": "Mars"},
        {"every": 60, "priority": [1]},
        {"every": 60, "group": ""},
    ],
    ids=str,
)
def test_an_invalid_schedule_stores_nothing(
    door: Door, db: Any, jobs: PriorityQueue, options: dict[str, Any]
) -> None:
    jobs.push(db, 1)
    with pytest.raises(Refused, match="ValueError"):
        door.add_schedule("bad", 1, **options)
    assert door.schedules() == []


# Batches and steps


def test_a_batch_is_shown_from_each_of_its_jobs_and_closed(
    opened: Open, db: Any, name: str
) -> None:
    app = App(db)

    @app.job(queue=name)
    def send(address: str) -> str:
        return address

    @app.job(queue=f"{name}reports")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    batch = app.batch(then=report)
    for each in ("ada", "bob"):
        batch.push(send, each)
    batch.flush()
    mail, reports = opened(name), opened(f"{name}reports")
    app.work(name, drain=True, max_jobs=1, concurrency=1)
    (left,) = mail.items("ready")
    shown = {
        **{"kind": "then", "queue": f"{name}reports", "id": batch.id, "step": None},
        **{"on_dead": "continue", "is_open": True, "is_cancelled": False, "has_ended": False},
        **{"pushed": 2, "done": 1, "dead": 0, "cancelled": 0, "left": 1},
    }
    assert mail.batches(left) == [{**shown, "is_member": True}]
    assert reports.batches(batch.id) == [{**shown, "is_member": False}]
    app.work(name, drain=True)
    assert batch.handle.state() == "delayed"
    for _ in range(2):
        reports.finish_batch(batch.id)
    assert batch.handle.state() == "ready"
    assert mail.batches(mail.push(1)) == []


def test_a_signal_lets_a_job_go_on_and_a_dead_letter_goes_on_from_a_step(
    door: Door, db: Any, name: str
) -> None:
    app, ran = App(db), list[str]()

    @app.job(queue=name)
    def fulfil(context: Context, order: str) -> str:
        context.step("charge", ran.append, "charge")
        tracking = str(context.wait("shipped", key=order).value)
        context.step("send", ran.append, tracking)
        if tracking == "lost":
            raise Dead("the parcel is lost")
        return tracking

    handle = fulfil.push("order 7")
    app.work(drain=True)
    charge, shipped = door.steps(handle.id)
    assert (charge["name"], charge["state"], shipped["kind"]) == ("charge", "done", "wait")
    assert (shipped["state"], shipped["key"]) == ("waiting", "order 7")
    assert door.signal("shipped", "lost", "order 7") == 1
    app.work(drain=True)
    assert handle.state() == "dead"
    assert not door.retry_from(handle.id, "nothing")
    assert door.retry_from(handle.id, "shipped")
    assert [step["name"] for step in door.steps(handle.id)] == ["charge"]
    assert door.signal("shipped", "found", "order 7") == 0
    app.work(drain=True)
    assert (handle.result(), ran) == ("found", ["charge", "lost", "found"])
    assert datetime.fromisoformat(charge["ended_at"]) < datetime.now(UTC)
