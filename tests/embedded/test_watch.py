"""A watch fires when its value changes, and only then."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from fdbqueue.embedded.transaction import watcher
from tests.support.programs import python

NOTICES = pytest.param(
    "notices", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux offers notices")
)


@pytest.fixture(autouse=True, params=[NOTICES, "polls"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Find changes by notices alone, without a look each second, or by polls as elsewhere."""
    if request.param == "notices":
        monkeypatch.setattr(watcher, "_MAX_WAIT", 600.0)
    else:
        monkeypatch.setattr(watcher, "_begin_notices", lambda path: None)
    return str(request.param)


def ready_within(watch: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not watch.is_ready() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(watch.is_ready())


def test_a_watch_fires_when_the_value_changes(db: Any) -> None:
    db[b"k"] = b"1"
    value, watch = db.get_and_watch(b"k")
    assert value == b"1"
    db[b"other"] = b"x"
    db[b"k"] = b"1"
    assert not ready_within(watch, 0.1)
    db[b"k"] = b"2"
    watch.wait()


def test_a_watch_fires_when_its_key_is_created_or_cleared(db: Any) -> None:
    _, watch = db.get_and_watch(b"k")
    db[b"k"] = b""
    assert ready_within(watch, 60)
    _, watch = db.get_and_watch(b"k")
    del db[b"k"]
    assert ready_within(watch, 60)


def test_a_watch_compares_with_the_value_written_by_its_own_transaction(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"1"
    watch = tr.watch(b"k")
    tr.commit().wait()
    assert not ready_within(watch, 0.1)
    db[b"k"] = b"2"
    watch.wait()


def test_a_watch_fires_for_a_change_made_before_it_was_registered(db: Any) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    db[b"k"] = b"changed"
    tr.commit().wait()
    assert ready_within(watch, 60)


def test_a_watch_fires_for_a_change_that_other_watches_have_noticed_before(db: Any) -> None:
    unchanged, other = db.get_and_watch(b"unchanged")[1], db.get_and_watch(b"other")[1]
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    change = db.create_transaction()
    change[b"k"] = change[b"other"] = b"changed"
    change.commit().wait()
    other.wait()
    tr.commit().wait()
    assert ready_within(watch, 60)
    assert not unchanged.is_ready()


def test_a_process_that_waits_for_a_watch_sleeps(
    db: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "polls":
        pytest.skip("polls are what this avoids")
    look, looks = watcher.Watcher._look, []
    monkeypatch.setattr(watcher.Watcher, "_look", lambda *given: (looks.append(1), look(*given)))
    _, watch = db.get_and_watch(b"k")
    time.sleep(0.5)  # so that it would wake, if it did; nothing else tells that it does not
    assert len(looks) <= 3  # one in this thread, and the watch's own commit may be noticed late
    db[b"k"] = b"1"
    watch.wait()


def test_a_cancelled_watch_is_1101(db: Any, fdb_error: Any) -> None:
    _, watch = db.get_and_watch(b"k")
    watch.cancel()
    with fdb_error(1101):
        watch.wait()
    assert watch.is_ready()


def test_a_watch_calls_back_once_it_is_ready(db: Any) -> None:
    watches = [db.get_and_watch(key)[1] for key in (b"a", b"b", b"c")]
    called = threading.Event()
    watches[1].on_ready(lambda _: called.set())
    db[b"b"] = b"1"
    assert called.wait(60)
    assert [watch.is_ready() for watch in watches] == [False, True, False]


def test_closing_the_database_ends_its_watches(db: Any, fdb_error: Any) -> None:
    _, watch = db.get_and_watch(b"k")
    db.close()
    with fdb_error(1025):
        watch.wait()


def test_a_watch_fires_for_a_write_by_another_process(db: Any) -> None:
    if db.in_memory:
        pytest.skip("a database in memory is of one process")
    _, watch = db.get_and_watch(b"k")
    program = "import sys, fdbqueue; fdbqueue.open(sys.argv[1])[b'k'] = b'1'"
    assert python(program, f"embedded:{db.path}").returncode == 0
    watch.wait()
