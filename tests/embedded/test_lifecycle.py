"""Versions, limits, errors, options and retries of a transaction."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from math import isfinite
from typing import Any

import pytest

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


def test_reading_at_a_committed_version(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    committed = commit(tr)
    reader = db.create_transaction()
    reader.set_read_version(committed)
    assert reader[b"k"] == b"v"
    assert reader.get_read_version().wait() == committed


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


Use = Callable[[Any], Any]
FUTURE, PAST = 1 << 60, 1


def read(key: bytes = b"k") -> Use:
    return lambda tr: tr[key].wait()


def stamped(template: bytes) -> Use:
    return lambda tr: tr.set_versionstamped_value(b"s", template)


def option(name: str, value: int) -> Use:
    return lambda tr: getattr(tr.options, name)(value)


def at(version: int) -> Use:
    return lambda tr: tr.set_read_version(version)


def read_range(*arguments: Any, **options: Any) -> Use:
    return lambda tr: tr.get_range(*arguments, **options).to_list()


def fill(tr: Any) -> None:
    for number in range(101):
        tr[b"%d" % number] = b"v" * 100_000


MISTAKES: list[tuple[int, Use]] = [
    (2102, lambda tr: tr.set(b"k" * 10_001, b"")),
    (2103, lambda tr: tr.set(b"k", b"v" * 100_001)),
    (2102, lambda tr: tr.add(b"k" * 10_001, b"\1")),
    (2103, lambda tr: tr.add(b"k", b"v" * 100_001)),
    (2004, lambda tr: tr.set(b"\xff", b"")),
    (2004, lambda tr: tr.clear_range(b"a", b"\xff\x01")),
    (2005, lambda tr: tr.clear_range(b"b", b"a")),
    (2006, option("set_timeout", -1)),
    (2006, option("set_size_limit", 10**8)),
    (2006, option("set_retry_limit", -2)),
    (1009, at(FUTURE)),
    (1007, at(PAST)),
    (2011, at(0)),
    (2010, lambda tr: (tr.get_read_version().wait(), tr.set_read_version(5))),
]
"""Mistakes that the next read reports, and the commit."""


@pytest.mark.parametrize(("code", "mistake"), MISTAKES)
def test_after_a_mistake_reads_and_the_commit_fail_and_nothing_is_stored(
    db: Any, fdb_error: Any, code: int, mistake: Use
) -> None:
    db[b"before"] = b"1"
    tr = db.create_transaction()
    tr[b"good"] = b"1"
    mistake(tr)
    tr[b"later"] = b"1"
    for call in (read(b"before"), read_range(b"a", b"z"), commit):
        with fdb_error(code):
            call(tr)
    assert db[b"good"] is db[b"later"] is None


@pytest.mark.parametrize(
    ("code", "preparation", "call"),
    [
        (1036, stamped(bytes(14)), read(b"s")),
        (1036, stamped(bytes(14)), read_range(b"a", b"z")),
        (1036, lambda tr: (tr.options.set_bypass_unreadable(), stamped(bytes(14))(tr)), read(b"s")),
        (2000, stamped(bytes(9) + bytes(4)), commit),
        (2000, stamped(bytes(10) + b"\1\0\0\0"), commit),
        (2004, lambda tr: tr.clear(b"\xff" + bytes(40_000)), commit),
        (2101, fill, commit),
        (2101, lambda tr: (tr.options.set_size_limit(99), tr.set(b"k", bytes(99))), commit),
        (2017, lambda tr: tr.commit().wait(), read()),
        (2017, lambda tr: (tr.commit().wait(), tr.set(b"k", b"2")), commit),
        (2017, lambda tr: (tr.commit().wait(), tr.clear_range(b"a", b"b")), commit),
        (2004, id, read(b"\xff/x")),
        (2004, id, read_range(b"a", b"\xff\x00")),
        (2102, id, lambda tr: tr.watch(b"x" * 10_001).wait()),
        (2005, id, lambda tr: tr.add_read_conflict_range(b"b", b"a")),
        (2005, id, lambda tr: tr.add_write_conflict_range(b"b", b"a")),
        (2004, lambda tr: tr.add_read_conflict_range(b"a", b"\xff\xff"), commit),
        (2012, id, read_range(b"a", b"b", limit=-2)),
        (2012, id, read_range(b"a", b"b", limit=1 << 31)),
        (2000, id, read_range(b"a", b"b", streaming_mode=-3)),
        (2210, id, read_range(b"a", b"b", streaming_mode=0)),
    ],
)
def test_a_wrong_call_fails_with_the_code_of_foundationdb(
    db: Any, fdb_error: Any, code: int, preparation: Use, call: Use
) -> None:
    tr = db.create_transaction()
    preparation(tr)
    with fdb_error(code):
        call(tr)
    assert db[:] == []


def test_a_transaction_that_wrote_nothing_has_no_versionstamp(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    with fdb_error(2021):
        stamp.wait()


def test_options_have_their_types_and_ranges(db: Any, fdb_error: Any) -> None:
    with fdb_error(2006):
        db.options.set_transaction_timeout(-1)
    with fdb_error(2006):
        db.options.set_max_watches(1_000_001)
    options = db.create_transaction().options
    with pytest.raises(TypeError):
        options.set_timeout("soon")
    with pytest.raises(AttributeError):
        options.set_no_such_option()
    options.set_priority_batch()
    options.set_debug_transaction_identifier("accepted")


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


def test_the_timeout_spans_all_tries(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(60)
    with fdb_error(1031):
        while True:
            tr.on_error(1020).wait()


def test_keys_and_values_at_the_limit_are_stored(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k" * 10_000] = b"v" * 100_000
    assert tr.get_approximate_size().wait() > 110_000
    tr.commit().wait()
    assert len(db[b"k" * 10_000]) == 100_000
    assert db.create_transaction()[b"k" * 10_001].value is None


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


RETRIED = (1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223)
NOT_RETRIED = (1025, 1031, 1036, 2000, 2004, 2005, 2017, 2101, 2102, 2103)


def test_on_error_retries_the_errors_that_foundationdb_retries(db: Any) -> None:
    for code in RETRIED:
        tr = db.create_transaction()
        tr.options.set_max_retry_delay(0)
        tr[b"k"] = b"1"
        tr.on_error(FDBError(code)).wait()
        assert not tr[b"k"].present()
    for code in NOT_RETRIED:
        with pytest.raises(FDBError) as error:
            db.create_transaction().on_error(code).wait()
        assert error.value.code == code
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


def test_a_transaction_lives_as_long_as_the_reads_of_its_rows(db: Any) -> None:
    for n in range(20):
        db[b"%02d" % n] = bytes(1000)

    def rows(of: Callable[[Any], Any]) -> Any:
        return of(db.create_transaction()).get_range(b"", b"\xff")

    assert len(list(rows(lambda tr: tr))) == len(list(rows(lambda tr: tr.snapshot))) == 20


def test_a_deleted_transaction_releases_its_snapshot(db: Any) -> None:
    for _ in range(50):
        db.create_transaction()[b"k"].wait()

    def are_released() -> bool:
        gc.collect()  # a connection refers to itself; does nothing while another thread collects
        return not any(isfinite(each.expires) for each in db.storage._open_connections())

    wait_until(are_released)
    assert len(db.storage._idle) <= 2


def test_a_closed_database_is_1025(db: Any, fdb_error: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"].wait()
    db.close()
    db.storage.look_after()  # as its thread may have begun to do before the close
    with fdb_error(1025):
        tr[b"k"].wait()
    with pytest.raises(DatabaseClosed, match="open it again"):
        db[b"k"]
    db.close()
