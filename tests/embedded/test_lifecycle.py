"""Versions, limits, errors, options and retries of a transaction."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from math import isfinite
from typing import Any

import pytest
from fdb.fdboptions import StreamingMode

from fdbqueue.embedded import FDBError
from fdbqueue.errors import DatabaseClosed
from tests.support.waiting import wait_until


def commit(tr: Any) -> int:
    tr.commit().wait()
    version: int = tr.get_committed_version()
    return version


def test_versions_grow_with_every_commit(db: Any) -> None:
    versions = []
    for number in range(20):
        tr = db.create_transaction()
        read = tr.get_read_version().wait()
        tr[b"k"] = b"%d" % number
        versions += [read, commit(tr)]
    assert versions == sorted(versions)
    assert len(set(versions[1::2])) == 20


def test_the_read_version_advances_about_a_million_per_second_without_commits(db: Any) -> None:
    began, before = time.monotonic(), db.create_transaction().get_read_version().wait()
    time.sleep(0.2)  # the time by which the versions should advance
    after, elapsed = db.create_transaction().get_read_version().wait(), time.monotonic() - began
    assert 200_000 * 0.9 <= after - before <= elapsed * 1_000_000 * 1.1


def test_a_read_version_is_at_least_that_of_every_commit_before_it(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    committed = commit(tr)
    assert db.create_transaction().get_read_version().wait() >= committed


def test_the_read_version_does_not_change_within_a_transaction(db: Any) -> None:
    tr = db.create_transaction()
    first = tr.get_read_version().wait()
    db[b"k"] = b"v"
    assert tr.get_read_version().wait() == first
    assert not tr[b"k"].present()


def test_reading_at_a_committed_version(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    committed = commit(tr)
    reader = db.create_transaction()
    reader.set_read_version(committed)
    assert reader[b"k"] == b"v"
    assert reader.get_read_version().wait() == committed


def test_a_future_version_is_1009_and_an_expired_version_is_1007(db: Any, fdb_error: Any) -> None:
    old = db.create_transaction().get_read_version().wait()
    db[b"k"] = b"v"
    tr = db.create_transaction()
    tr.set_read_version(old + 10**12)
    with fdb_error(1009):
        tr[b"k"].wait()
    tr = db.create_transaction()
    tr.set_read_version(old - 1)
    with fdb_error(1007):
        tr[b"k"].wait()


def test_a_read_version_is_set_once_and_is_positive(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.set_read_version(5)
    with fdb_error(2010):
        tr[b"k"].wait()
    tr = db.create_transaction()
    tr.set_read_version(0)
    with fdb_error(2011):
        tr[b"k"].wait()


def test_the_versionstamp_is_the_committed_version(db: Any) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_key(b"key-" + bytes(10) + (4).to_bytes(4, "little"), b"a")
    tr.set_versionstamped_value(b"value", b"<" + bytes(10) + b">" + (1).to_bytes(4, "little"))
    assert not stamp.is_ready()
    version = commit(tr)
    assert bytes(stamp)[:8] == version.to_bytes(8, "big")
    assert len(stamp.value) == 10
    assert db[b"key-" + stamp.value] == b"a"
    assert db[b"value"] == b"<" + stamp.value + b">"


@pytest.mark.parametrize("end", ["commit", "drop"])
def test_a_versionstamp_calls_back_once_its_transaction_has_ended(db: Any, end: str) -> None:
    trs = [db.create_transaction()]
    stamp = trs[0].get_versionstamp()
    trs[0][b"k"] = b"v"
    called: list[bool] = []  # not the stamp itself, whose repr waits for the end
    stamp.on_ready(lambda future: called.append(future is stamp))
    assert called == []
    if end == "commit":
        commit(trs[0])
    else:
        trs.clear()
    wait_until(lambda: called)
    stamp.on_ready(lambda future: called.append(future is stamp))
    assert called == [True, True]


def test_a_transaction_that_wrote_nothing_has_no_versionstamp(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    with fdb_error(2021):
        stamp.wait()


def test_a_pending_versionstamp_cannot_be_read_before_the_commit(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(b"v", bytes(10) + bytes(4))
    with fdb_error(1036):
        tr[b"v"].wait()
    tr = db.create_transaction()
    tr[b"a"] = b"before"
    tr.set_versionstamped_key(b"k" + bytes(10) + (1).to_bytes(4, "little"), b"")
    assert [row.key for row in tr.get_range(b"", b"\xff", limit=1)] == [b"a"]
    with fdb_error(1036):
        list(tr[b"":b"\xff"])


@pytest.mark.parametrize(
    "bad", [b"", b"123", bytes(9) + bytes(4), bytes(10) + b"\1\0\0\0", bytes(10) + b"\xff" * 4]
)
def test_a_template_without_room_for_the_versionstamp_is_2000(
    db: Any, fdb_error: Any, bad: bytes
) -> None:
    for method in ("key", "value"):
        tr = db.create_transaction()
        if method == "key":
            tr.set_versionstamped_key(bad, b"")
        else:
            tr.set_versionstamped_value(b"k", bad)
        with fdb_error(2000):
            tr.commit().wait()


LIMITS: list[tuple[str, int, Any]] = [
    ("key", 2102, lambda tr: tr.set(b"k" * 10_001, b"")),
    ("value", 2103, lambda tr: tr.set(b"k", b"v" * 100_001)),
    ("atomic key", 2102, lambda tr: tr.add(b"k" * 10_001, b"\1")),
    ("atomic parameter", 2103, lambda tr: tr.add(b"k", b"v" * 100_001)),
    ("system key", 2004, lambda tr: tr.set(b"\xff", b"")),
    ("system range", 2004, lambda tr: tr.clear_range(b"a", b"\xff\x01")),
    ("inverted range", 2005, lambda tr: tr.clear_range(b"b", b"a")),
]


@pytest.mark.parametrize(("code", "action"), [c[1:] for c in LIMITS], ids=[c[0] for c in LIMITS])
def test_a_write_over_a_limit_fails_at_the_commit_and_stores_nothing(
    db: Any, fdb_error: Any, code: int, action: Any
) -> None:
    tr = db.create_transaction()
    tr[b"good"] = b"1"
    action(tr)
    with fdb_error(code):
        tr[b"good"].wait()
    with fdb_error(code):
        tr.commit().wait()
    with fdb_error(code):
        tr.on_error(code).wait()
    assert db[b"good"] is None


def test_keys_and_values_at_the_limit_are_stored(db: Any) -> None:
    db[b"k" * 10_000] = b"v" * 100_000
    assert len(db[b"k" * 10_000]) == 100_000
    assert db.create_transaction()[b"k" * 10_001].value is None


def test_there_are_no_system_keys(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    with fdb_error(2004):
        tr[b"\xff/x"].wait()
    with fdb_error(2004):
        list(tr[b"a":b"\xff\x00"])
    tr.clear(b"\xff" + bytes(40_000))
    with fdb_error(2004):
        tr.commit().wait()


def test_a_transaction_over_ten_megabytes_is_2101(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    for number in range(101):
        tr[b"%d" % number] = b"v" * 100_000
    assert tr.get_approximate_size().wait() > 10_000_000
    with fdb_error(2101):
        tr.commit().wait()
    tr = db.create_transaction()
    tr.options.set_size_limit(1000)
    tr[b"k"] = b"v" * 1000
    with fdb_error(2101):
        tr.commit().wait()
    assert db[:] == []


def test_a_transaction_used_after_its_commit_is_2017(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"1"
    tr.commit().wait()
    with fdb_error(2017):
        tr[b"k"].wait()
    tr[b"k"] = b"2"
    with fdb_error(2017):
        tr.commit().wait()
    assert db[b"k"] == b"1"


def test_reset_makes_a_transaction_new(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"1"
    tr.commit().wait()
    tr.reset()
    tr[b"k2"] = b"2"
    tr.reset()
    assert not tr[b"k2"].present()
    tr[b"k3"] = b"3"
    tr.commit().wait()
    assert [row.key for row in db[:]] == [b"k", b"k3"]


def test_the_committed_version_stays_until_the_next_commit(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"1"
    committed = commit(tr)
    tr.reset()
    assert tr.get_committed_version() == committed
    tr.on_error(1020).wait()
    assert tr.get_committed_version() == committed
    tr.set_read_version(1)
    with fdb_error(1007):
        tr[b"k"].wait()
    with fdb_error(1007):
        tr.commit().wait()
    assert tr.get_committed_version() == committed
    tr.on_error(1007).wait()
    assert commit(tr) == -1


def test_after_a_mistake_the_use_after_a_commit_goes_unnoticed(db: Any, fdb_error: Any) -> None:
    """FoundationDB skips what a program does after a mistake, so the retry begins a new attempt."""
    tr = db.create_transaction()
    tr.commit().wait()
    tr.clear_range(b"b", b"a")
    tr[b"k"] = b"1"
    tr.add_write_conflict_key(b"k")
    with fdb_error(2005):
        tr.commit().wait()
    tr.on_error(1020).wait()
    tr[b"k"] = b"2"
    tr.commit().wait()
    assert db[b"k"] == b"2"


@pytest.mark.parametrize(("version", "code"), [(1, 1007), (1 << 60, 1009)])
@pytest.mark.parametrize("writes", [False, True])
def test_a_commit_after_a_failed_read_fails_with_its_error(
    db: Any, fdb_error: Any, version: int, code: int, writes: bool
) -> None:
    db[b"k"] = b"1"
    tr = db.create_transaction()
    tr.set_read_version(version)
    with fdb_error(code):
        tr.get_range(b"a", b"z").to_list()
    if writes:
        tr[b"other"] = b"2"
    with fdb_error(code):
        tr.commit().wait()
    assert [row.key for row in db[:]] == [b"k"]


def test_a_cancelled_transaction_is_1025(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"1"
    watch = tr.watch(b"w")
    tr.cancel()
    for call in (lambda: tr[b"k"].wait(), lambda: tr.commit().wait()):
        with fdb_error(1025):
            call()
    with fdb_error(1025):
        tr.on_error(1020).wait()
    tr.reset()
    with fdb_error(1025):
        watch.wait()
    assert db[b"k"] is None


def test_a_transaction_older_than_five_seconds_is_1007(
    db: Any, fdb_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = db.create_transaction(), db.create_transaction()
    reader[b"k"].wait(), writer[b"k"].wait()
    writer[b"k"] = b"late"
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 5.1)
    with fdb_error(1007):
        reader[b"k"].wait()
    with fdb_error(1007):
        writer.commit().wait()
    reader.on_error(1007).wait()
    assert not reader[b"k"].present()


def test_a_transaction_that_only_writes_is_never_too_old(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"late"
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 60)
    db[b"other"] = b""
    tr.commit().wait()
    assert db[b"k"] == b"late"


def test_a_timeout_ends_the_transaction_with_1031(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(20)
    tr[b"k"] = b"1"
    later = db.create_transaction()
    later.options.set_timeout(20)

    def is_over() -> bool:
        try:
            return later[b"k"].present() is None
        except FDBError as error:
            return error.code == 1031

    wait_until(is_over)  # and with it the timeout that began before
    with fdb_error(1031):
        tr.commit().wait()
    with fdb_error(1031):
        tr.on_error(1020).wait()
    assert db[b"k"] is None


def test_the_timeout_spans_all_tries(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(60)
    began = time.monotonic()
    with fdb_error(1031):
        while True:
            tr.on_error(1020).wait()
    assert time.monotonic() - began < 30


def test_the_retry_limit_raises_the_last_error(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(2)
    tr.options.set_max_retry_delay(0)
    tr.on_error(1020).wait()
    tr.on_error(1021).wait()
    with fdb_error(1020):
        tr.on_error(1020).wait()
    with fdb_error(1025):
        tr[b"k"].wait()


def test_options_of_the_database_are_defaults_of_its_transactions(db: Any, fdb_error: Any) -> None:
    db.options.set_transaction_retry_limit(0)
    db.options.set_transaction_size_limit(100)
    db.options.set_snapshot_ryw_disable()
    tr = db.create_transaction()
    tr[b"k"] = b"v" * 200
    assert not tr.snapshot[b"k"].present()
    with fdb_error(2101):
        tr.commit().wait()
    with fdb_error(1020):
        db.create_transaction().on_error(1020).wait()


def test_options_have_their_types_and_ranges(db: Any, fdb_error: Any) -> None:
    for name, value in [("set_timeout", -1), ("set_size_limit", 10**8), ("set_retry_limit", -2)]:
        tr = db.create_transaction()
        getattr(tr.options, name)(value)
        with fdb_error(2006):
            tr[b"k"].wait()
    with fdb_error(2006):
        db.options.set_transaction_timeout(-1)
    with fdb_error(2006):
        db.options.set_max_watches(1_000_001)
    tr = db.create_transaction()
    options = tr.options
    with pytest.raises(TypeError):
        options.set_timeout("soon")
    with pytest.raises(AttributeError):
        options.set_no_such_option()
    options.set_priority_batch()
    options.set_debug_transaction_identifier("accepted")


def test_reads_of_unreadable_keys_cannot_be_allowed(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_bypass_unreadable()
    tr.set_versionstamped_value(b"k", bytes(14))
    with fdb_error(1036):
        tr[b"k"].wait()


RETRIED = (1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223)
NOT_RETRIED = (1025, 1031, 1036, 2000, 2004, 2005, 2017, 2101, 2102, 2103)


@pytest.mark.parametrize("code", RETRIED + NOT_RETRIED)
def test_on_error_retries_the_errors_that_foundationdb_retries(db: Any, code: int) -> None:
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(0)
    tr[b"k"] = b"1"
    if code in RETRIED:
        tr.on_error(FDBError(code)).wait()
        assert not tr[b"k"].present()
    else:
        with pytest.raises(FDBError) as error:
            tr.on_error(code).wait()
        assert error.value.code == code


def test_on_error_raises_errors_of_other_types(db: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        db.create_transaction().on_error(ZeroDivisionError())


def test_the_retry_delay_grows_and_is_bounded(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(50)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for _ in range(5):
        tr.on_error(1020).wait()
    assert pauses == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_inverted_conflict_ranges_are_2005_at_once(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    with fdb_error(2005):
        tr.add_read_conflict_range(b"b", b"a")
    with fdb_error(2005):
        tr.add_write_conflict_range(b"b", b"a")
    tr.add_read_conflict_range(b"a", b"\xff\xff")
    with fdb_error(2004):
        tr.commit().wait()


def test_a_range_read_with_wrong_arguments_is_refused(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    for limit in (-2, 1 << 31):
        with fdb_error(2012):
            list(tr.get_range(b"a", b"b", limit=limit))
    for mode in (-3, 5, 9):
        with fdb_error(2000):
            list(tr.get_range(b"a", b"b", streaming_mode=mode))
    tr.commit().wait()
    db[b"a"] = b"1"
    assert len(db.get_range(b"a", b"b", limit=-1)) == 1


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_transaction_lives_as_long_as_the_reads_of_its_rows(db: Any, snapshot: bool) -> None:
    for n in range(20):
        db[b"%02d" % n] = bytes(1000)

    def rows() -> Any:
        tr = db.create_transaction()
        return (tr.snapshot if snapshot else tr).get_range(b"", b"\xff")

    assert len(list(rows())) == 20
    tr = db.create_transaction().snapshot
    assert len(list(tr[:])) == 20


def snapshots(db: Any) -> list[Any]:
    """Return the connections that are in use."""
    return [each for each in db.storage._open_connections() if isfinite(each.expires)]


def has_no_snapshot(db: Any) -> bool:
    """Return whether no snapshot is in use besides that of the next transaction."""
    tr = db.create_transaction()
    tr[b"k"].wait()
    return snapshots(db) == [tr._attempt.snapshot]


def test_a_deleted_transaction_releases_its_snapshot(db: Any) -> None:
    for _ in range(50):
        db.create_transaction()[b"k"].wait()
    gc.collect()  # a connection refers to itself
    assert has_no_snapshot(db)
    assert len(db.storage._idle) <= 2


def _exact_without_limit(tr: Any) -> None:
    list(tr.get_range(b"a", b"b", streaming_mode=StreamingMode["exact"][0]))


def _read_after_a_deferred_error(tr: Any) -> None:
    tr.clear_range(b"b", b"a")
    tr[b"k"].wait()


def _commit_after_a_deferred_error(tr: Any) -> None:
    tr.clear_range(b"b", b"a")
    tr.commit().wait()


def _held_read_of_a_system_key(tr: Any) -> None:
    held = tr[b"\xff/x"]
    assert held == b""


def _read_after_cancel(tr: Any) -> None:
    tr.cancel()
    tr[b"k"].wait()


def _watch_of_a_long_key(tr: Any) -> None:
    tr.watch(b"x" * 10_001).wait()


def _unreadable_key(tr: Any) -> None:
    tr.set_versionstamped_value(b"k", bytes(14))
    tr[b"k"].wait()


@pytest.mark.parametrize(
    "fail",
    [
        _exact_without_limit,
        _read_after_a_deferred_error,
        _commit_after_a_deferred_error,
        _held_read_of_a_system_key,
        _read_after_cancel,
        _watch_of_a_long_key,
        _unreadable_key,
    ],
)
def test_a_deleted_transaction_releases_its_snapshot_after_an_error(
    db: Any, fail: Callable[[Any], None]
) -> None:
    def use() -> weakref.ref[Any]:
        tr = db.create_transaction()
        tr[b"k"].wait()
        with pytest.raises(FDBError):
            fail(tr)
        return weakref.ref(tr._attempt)

    gc.disable()  # which releases whatever refers to itself
    try:
        attempt = use()
        assert attempt() is None
    finally:
        gc.enable()


def test_a_closed_database_is_1025(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"].wait()
    db.close()
    with fdb_error(1025):
        tr[b"k"].wait()
    with pytest.raises(DatabaseClosed, match="open it again"):
        db[b"k"]
    db.close()
