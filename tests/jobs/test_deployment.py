"""Queues that an app declares: code and database agree, and what was set by hand stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue, admin
from fdbqueue.errors import FDBError, FdbqueueError, QueueNotFound
from fdbqueue.jobs import App
from fdbqueue.options import GroupOptions, QueueLimits
from fdbqueue.queue import deployment
from fdbqueue.testing import FaultyDatabase
from fdbqueue.types import Database
from tests.support.threads import in_threads


def app_of(db: Any, name: str, groups: GroupOptions | None = None, **options: Any) -> App:
    """Return an app with one job, whose queue has these options."""
    app = App(db)
    app.queue(name, groups=groups or {}, **options)
    app.job(queue=name, name="report")(print)
    return app


def work(app: App) -> list[Any]:
    app.work(drain=True)
    return []


DOORS: dict[str, Callable[[App], list[Any]]] = {"deploy": App.deploy, "a worker starts": work}


def stored(db: Any, name: str) -> dict[str, Any]:
    """Return the settings of a queue that differ from the defaults, and those of its groups."""
    queue = PriorityQueue.existing(db, name)
    options = queue.options(db)
    names = [*QueueLimits.__annotations__, "keep_seconds", "keep_number"]
    found = {each: getattr(options, each, None) for each in names}
    return {each: value for each, value in found.items() if value is not None} | {
        "groups": queue.group_settings(db)
    }


DEFAULTS = {"kept_attempts": 10, "traceback_bytes": 8000}


@pytest.mark.parametrize("door", DOORS)
def test_the_options_of_the_code_are_stored(db: Database, name: str, door: str) -> None:
    groups: GroupOptions = {"concurrency": 1, "rate": (5, "1s"), "in_order": False, "weight": 2}
    options: Any = {"max_size": 10_000, "max_attempts": 3, "concurrency": 20, "keep": ("7d", 9)}
    options |= {"rate": (100, "1m"), "kept_attempts": 4, "traceback_bytes": 0}
    DOORS[door](app_of(db, name, groups, **options))
    expected = {**options, "rate": (100, 60), "keep_seconds": 604_800, "keep_number": 9}
    del expected["keep"]
    assert stored(db, name) == {**expected, "groups": {**groups, "rate": (5, 1)}}


def test_a_deployment_says_what_it_changes(db: Database, name: str) -> None:
    app = app_of(db, name, {"rate": (5, "1s")}, concurrency=20, keep="7d")
    app.cron("0 3 * * *", name="nightly")(app.jobs["report"])
    changes = [
        "keep_seconds 1d -> 7d",
        "concurrency none -> 20",
        "groups.rate none -> 5/1s",
        'schedules.nightly none -> {"value":{"job":"report","args":[],"kwargs":{}},"priority":0,'
        '"cron":"0 3 * * *","tz":"UTC","missed":"latest","overlap":"allow"}',
    ]
    told = [f"{name}: {change}" for change in changes]
    assert [*map(str, app.deploy(check=True))] == told
    with pytest.raises(QueueNotFound):
        PriorityQueue.existing(db, name)
    app.queue(name).push(db, "pushed between a check and the deployment")
    assert [*map(str, app.deploy())] == told
    assert app.deploy() == app.deploy(check=True) == []
    later = app_of(db, name, {"rate": (5, "1s")}, concurrency=30, keep="7d")
    later.cron("0 4 * * *", name="nightly")(later.jobs["report"])
    assert [*map(str, later.deploy())] == [
        f"{name}: concurrency 20 -> 30",
        f'{name}: schedules.nightly {{"cron":"0 3 * * *"}} -> {{"cron":"0 4 * * *"}}',
    ]
    assert [each.next_tick.hour for each in app.schedules.all() if each.next_tick] == [4]


@pytest.mark.parametrize("door", DOORS)
def test_what_was_set_by_hand_stays_until_it_is_forced(db: Database, name: str, door: str) -> None:
    deploy = DOORS[door]
    deploy(app_of(db, name, {"concurrency": 2}, concurrency=20, max_size=100))
    queue = PriorityQueue.existing(db, name)
    queue.configure(db, concurrency=5)
    queue.set_group(db, None, concurrency=1)
    later = app_of(db, name, {"concurrency": 3}, concurrency=30, max_size=200)
    for _ in range(2):  # the next deployment does not forget it
        deploy(later)
        by_hand = {"concurrency": 5, "max_size": 200, "groups": {"concurrency": 1}}
        assert stored(db, name).items() >= by_hand.items()
    assert [*map(str, later.deploy(check=True))] == [
        f"{name}: concurrency stays 5, set by hand; the code has 30",
        f"{name}: groups.concurrency stays 1, set by hand; the code has 3",
    ]
    assert [each.reason for each in later.deploy(force=True)] == [None, None]
    assert stored(db, name).items() >= {"concurrency": 30, "groups": {"concurrency": 3}}.items()
    assert later.deploy() == []


def test_what_was_set_before_the_first_deployment_stays(db: Database, name: str) -> None:
    """The defaults of the app, and of a queue that another program has created, are nobody's."""
    PriorityQueue.named(db, name).push(db, "from another program")
    app = app_of(db, name, keep="7d", concurrency=20, max_attempts=3)
    app.queue(name).configure(db, concurrency=5)
    app.deploy()
    after = {"concurrency": 5, "max_attempts": 3, "keep_seconds": 604_800}
    assert stored(db, name).items() >= after.items()


def test_an_option_that_the_code_names_no_more_gets_its_default(db: Database, name: str) -> None:
    app_of(db, name, {"weight": 2, "max_size": 9}, keep=5, max_size=7, concurrency=3).deploy()
    queue = PriorityQueue.existing(db, name)
    queue.configure(db, max_size=8)
    app_of(db, name, {"max_size": 9}, concurrency=None).deploy()
    assert stored(db, name) == {
        **DEFAULTS,
        **{"max_size": 8, "keep_seconds": 86_400, "groups": {"max_size": 9}},
    }
    queue.configure(db, concurrency=1)  # "none" is declared, so this is by hand, too
    (difference,) = app_of(db, name, {"max_size": 9}, concurrency=None).deploy()
    assert (difference.setting, difference.stored) == ("concurrency", 1)
    assert difference.reason == "set by hand"
    App(db).deploy()  # a queue that the code does not name stays as it is
    assert stored(db, name)["concurrency"] == 1


def sharded(db: Any, name: str) -> PriorityQueue:
    """Return a queue with eight shards, all of which hold items."""
    app_of(db, name, shards=8).deploy()
    queue = PriorityQueue.existing(db, name)
    queue.push_many(db, range(30), delay=600)
    return queue


@pytest.mark.parametrize("door", DOORS)
def test_the_number_of_shards_stays_while_the_higher_ones_hold_items(
    db: Database, name: str, door: str
) -> None:
    """So that workers of the previous release, which declares fewer, still start."""
    deploy = DOORS[door]
    queue = sharded(db, name)
    for previous in app_of(db, name, shards=2), app_of(db, name, max_attempts=3):
        deploy(previous)
        (difference,) = previous.deploy(force=True)
        assert (difference.setting, difference.stored) == ("shards", 8)
        assert str(difference.reason).startswith("a higher shard still holds items, such as ")
    queue.clear(db)
    deploy(app_of(db, name, shards=2))
    assert stored(db, name)["shards"] == 2


@pytest.mark.parametrize("door", DOORS)
def test_options_that_exclude_shards_wait_until_the_higher_shards_are_empty(
    db: Database, name: str, door: str
) -> None:
    deploy = DOORS[door]
    queue = sharded(db, name)
    later = app_of(db, name, rate=(5, "1s"), max_attempts=3)
    differences = {each.setting: each for each in later.deploy(check=True)}
    assert str(differences["shards"].reason).startswith("a higher shard still holds items")
    assert differences["rate"].reason == "a queue with several shards has no rate"
    assert differences["max_attempts"].reason is None
    deploy(later)
    assert stored(db, name).items() >= {"shards": 8, "max_attempts": 3}.items()
    queue.clear(db)
    deploy(later)
    assert (stored(db, name)["rate"], "shards" in stored(db, name)) == ((5, 1), False)
    queue.configure(db, max_size=9)
    reasons = {each.setting: each.reason for each in app_of(db, name, shards=8).deploy()}
    assert reasons["shards"] == "a queue with several shards has no max_size"


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": ({"size": 3}, TypeError, "there is no option 'size'"),
    "a pause": ({"paused": True}, TypeError, "there is no option 'paused'"),
    "a limit": ({"max_size": 0}, ValueError, "max_size is a number from 1, or None, not 0"),
    "a rate": ({"rate": "100/1m"}, ValueError, "rate is a number and a time"),
    "a time": ({"keep": "soon"}, ValueError, "keep is a timedelta or a text"),
    "a group's": ({"groups": {"paused": True}}, TypeError, "there is no option 'paused'"),
    "a group's limit": ({"groups": {"concurrency": 0}}, ValueError, "concurrency is a number"),
    "another time": ({"concurrency": 9}, ValueError, "declares other options"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_where_it_is_declared(db: Database, name: str, mistake: str) -> None:
    options, error, text = MISTAKES[mistake]
    app = app_of(db, name, concurrency=1)
    app.queue(name, concurrency=1)  # its module is imported twice
    with pytest.raises(error, match=text):
        app.queue(name, **options)
    app.deploy()
    assert stored(db, name) == {**DEFAULTS, "concurrency": 1, "keep_seconds": 86_400, "groups": {}}


def test_declarations_do_not_open_the_database() -> None:
    app = App("/nowhere/fdb.cluster")
    app.queue("mail", concurrency=1)
    with pytest.raises(FdbqueueError):
        app.deploy()


def during(monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> None:
    """Let something happen once, between the reads and the writes of the next deployment."""
    decode, events = deployment.decode_deployed, [event]

    def then(stored: bytes | None) -> Any:
        if events:
            events.pop()()
        return decode(stored)

    monkeypatch.setattr(deployment, "decode_deployed", then)


def test_a_change_by_hand_during_a_deployment_stays(
    db: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_of(db, name, concurrency=1).deploy()
    queue = PriorityQueue.existing(db, name)
    during(monkeypatch, lambda: queue.configure(db, concurrency=5))
    (difference,) = app_of(db, name, concurrency=2).deploy()
    assert difference.reason == "set by hand"
    assert stored(db, name)["concurrency"] == 5


def test_two_deployments_at_once_are_one_after_the_other(
    db: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = app_of(db, name, concurrency=1), app_of(db, name, concurrency=2)
    during(monkeypatch, lambda: second.deploy())
    told = [(each.stored, each.declared) for each in first.deploy()]
    assert (told, stored(db, name)["concurrency"]) == ([(2, 1)], 1)
    apps = [app_of(db, name, concurrency=n, max_size=n) for n in range(1, 5)]
    for app in apps:
        app.queue(f"{name} 2", concurrency=apps.index(app) + 1)
    in_threads(app.deploy for app in apps)
    (n,) = {stored(db, each)["concurrency"] for each in (name, f"{name} 2")}
    assert stored(db, name)["max_size"] == n
    assert apps[n - 1].deploy(check=True) == []
    assert not any(each.reason for each in apps[n - 2].deploy())


def test_a_deployment_with_a_lost_answer_takes_effect_once(db: Database, name: str) -> None:
    class Lost(FaultyDatabase):
        """A database whose first commit is answered with an error, once another client has run."""

        def commit(self, transaction: Any) -> None:
            super().commit(transaction)
            if not self.lost and name in admin.queue_names(db):
                self.lost += 1
                PriorityQueue.existing(db, name).configure(db, concurrency=5)
                raise FDBError(1021)

    app = app_of(Lost(db), name, concurrency=20)
    (difference,) = app.deploy()
    assert (difference.stored, difference.declared) == (None, 20)
    assert stored(db, name)["concurrency"] == 5


def test_a_deployment_that_changes_nothing_conflicts_with_no_push(db: Database, name: str) -> None:
    app = app_of(db, name, concurrency=20)
    app.deploy()
    tr = db.create_transaction()
    app.queue(name).push(tr, "a push under way")
    app.deploy()
    tr.commit().wait()
    assert app.queue(name).size(db) == 1
