"""A watch fires when its value changes, and only then."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from fdbqueue.embedded import Future


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
    assert not ready_within(watch, 0.1)
    db[b"k"] = b"2"
    watch.wait()


def test_a_watch_does_not_fire_for_a_write_of_the_same_value(db: Any) -> None:
    db[b"k"] = b"1"
    _, watch = db.get_and_watch(b"k")
    db[b"k"] = b"1"
    assert not ready_within(watch, 0.1)


def test_a_watch_fires_when_its_key_is_created_or_cleared(db: Any) -> None:
    _, watch = db.get_and_watch(b"k")
    db[b"k"] = b""
    watch.wait()
    _, watch = db.get_and_watch(b"k")
    del db[b"k"]
    watch.wait()


def test_a_watch_compares_with_the_value_written_by_its_own_transaction(db: Any) -> None:
    watch = db.set_and_watch(b"k", b"1")
    assert not ready_within(watch, 0.1)
    db[b"k"] = b"2"
    watch.wait()
    assert ready_within(db.clear_and_watch(b"k"), 0.05) is False


def test_a_watch_fires_for_a_change_made_before_it_was_registered(db: Any) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    db[b"k"] = b"changed"
    tr.commit().wait()
    watch.wait()


def test_a_watch_fires_for_a_later_change_by_its_own_transaction(db: Any) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr[b"k"] = b"changed"
    tr.commit().wait()
    assert watch.is_ready()


def test_a_watch_of_a_transaction_that_does_not_commit_is_1025(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.reset()
    with fdb_error(1025):
        watch.wait()


def test_a_cancelled_watch_is_1101(db: Any, fdb_error: Any) -> None:
    _, watch = db.get_and_watch(b"k")
    watch.cancel()
    with fdb_error(1101):
        watch.wait()
    assert watch.cancelled()


def test_callbacks_and_wait_for_any(db: Any) -> None:
    watches = [db.get_and_watch(key)[1] for key in (b"a", b"b", b"c")]
    called = threading.Event()
    watches[1].on_ready(lambda _: called.set())
    db[b"b"] = b"1"
    assert Future.wait_for_any(*watches) == 1
    assert called.wait(60)


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
    subprocess.run([sys.executable, "-c", program, f"embedded:{db.path}"], check=True)
    watch.wait()
