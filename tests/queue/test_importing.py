"""Imports store each line once, despite interruptions and lost replies."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.errors import InvalidLine
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.queue import repeatable
from fdbqueue.queue.repeatable import ImportReport, import_lines
from fdbqueue.testing import Clock
from tests.support.keys import layout_of

WEEK = 7 * 86_400.0  # seconds


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an import store 100 lines in a transaction."""
    monkeypatch.setattr(repeatable, "_BATCH_LINES", 100)


def lines(numbers: Any) -> list[bytes]:
    return [json.dumps({"n": n, "level": n % 4}).encode() + b"\n" for n in numbers]


def numbers(db: Any, queue: PriorityQueue) -> list[int]:
    return [item.value["n"] for item in queue.items(db)]


def test_lines_are_imported_in_order_with_the_priority_of_their_field(
    db: Any, queue: PriorityQueue
) -> None:
    report = import_lines(db, queue, lines(range(220)), "f", priority_field="level")
    assert report == ImportReport(220, 0)
    assert numbers(db, queue) == sorted(range(220), key=lambda n: (n % 4, n))
    queue.clear(db)  # forgets the import
    given = [b'{"v": [1], "level": 5}\r\n', b"\n", b"  \n", b'{"v": 2, "level": 3}']
    fields: Any = {"priority_field": "level", "value_field": "v"}
    assert import_lines(db, queue, given, "f", **fields) == ImportReport(2, 0)
    assert [(item.value, item.priority) for item in queue.items(db)] == [(2, 3), ([1], 5)]
    assert import_lines(db, queue, given, "f", **fields) == ImportReport(0, 2)


def test_lines_have_the_group_of_their_field_or_the_one_of_all(
    db: Any, queue: PriorityQueue
) -> None:
    given = [b'{"n": 1, "g": "ada"}', b'{"n": 2, "g": null}', b'{"n": 3}', b"4"]
    assert import_lines(db, queue, given, "f", group_field="g").stored == 4
    assert import_lines(db, queue, given, "g", group="all", group_field="g").stored == 4
    numbers = {info.name: info.ready for info in queue.groups(db)}
    assert numbers == {"ada": 2, "all": 3}
    for wrong in (b'{"g": ""}', b'{"g": 7}'):
        with pytest.raises(InvalidLine, match="a group is text of 1 to 255 bytes"):
            import_lines(db, queue, [wrong], None, group_field="g")


def test_an_import_stores_the_lines_that_are_new(db: Any, queue: PriorityQueue) -> None:
    """After an interruption, an end of the items, and a change of the file."""

    def breaks() -> Any:
        yield from lines(range(110))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_lines(db, queue, breaks(), "f")
    assert queue.size(db) == 100
    queue.pop_many(db, 90)
    assert import_lines(db, queue, lines(range(115)), "f") == ImportReport(15, 100)
    assert numbers(db, queue) == list(range(90, 115))
    changed = lines([-1, *range(1, 117)])
    assert import_lines(db, queue, changed, "f") == ImportReport(3, 114)
    assert import_lines(db, queue, lines(range(10)), "another") == ImportReport(10, 0)
    stored = keys(db, queue)
    for _ in range(2):
        assert import_lines(db, queue, lines(range(3)), None) == ImportReport(3, 0)
    assert keys(db, queue) == stored


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b'{"level": 1, "n": NaN}', "cannot be stored"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"n": 1}', "not an object with a field 'level'"),
        (b'{"level": "high"}', "must be a 64-bit integer"),
        (b'{"level": true}', "must be a 64-bit integer"),
    ],
)
def test_a_bad_line_is_reported_and_the_lines_before_it_are_stored(
    db: Any, queue: PriorityQueue, bad: bytes, words: str
) -> None:
    good = lines(range(3))
    with pytest.raises(InvalidLine, match=r"^line 1: .*nothing was stored"):
        import_lines(db, queue, [bad], "another", priority_field="level")
    with pytest.raises(InvalidLine, match=r"^line 4: .*run the import again") as error:
        import_lines(db, queue, [*good, bad, *lines([9])], "f", priority_field="level")
    assert words in str(error.value)
    assert numbers(db, queue) == [0, 1, 2]
    corrected = [*good, *lines([4]), *lines([9])]
    assert import_lines(db, queue, corrected, "f", priority_field="level") == ImportReport(2, 3)


@pytest.mark.parametrize("source", ["f", None])
def test_an_import_fills_a_bounded_queue_or_group_and_resumes_later(
    db: Any, queue: PriorityQueue, source: str | None
) -> None:
    queue.configure(db, max_size=10)
    everything = [b"\n", *lines(range(20))]
    assert import_lines(db, queue, everything, source) == ImportReport(10, 0, full=True)
    assert numbers(db, queue) == list(range(10))
    assert import_lines(db, queue, everything, source).full
    queue.pop_many(db, 5)
    queue.configure(db, max_size=16)
    report = import_lines(db, queue, everything, source)
    assert report == (ImportReport(10, 10) if source else ImportReport(11, 0, full=True))
    assert numbers(db, queue)[5:] == [*(range(10, 20) if source else range(11))]
    queue.clear(db)
    queue.set_group(db, "ada", max_size=2)
    given = [b'{"n": %d, "g": "ada"}' % n for n in range(3)] + [b'{"n": 3}']
    assert import_lines(db, queue, given, source, group_field="g") == ImportReport(2, 0, True)


def test_an_import_reads_tuples_as_priorities(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space, priorities=(int, float, bytes))
    given = [(1, -math.inf, b""), (1, 0.5, b"\x00"), (1, 2.0, b"x"), (1, math.inf, b"")]
    exported = [
        json.dumps({"p": priority_as_json(priority)}, allow_nan=False).encode()
        for priority in given
    ]
    import_lines(db, queue, [*exported, b"\n", b'{"p": [1, 3, ""]}'], "f", priority_field="p")
    assert list(queue.counts(db)) == [*given[:3], (1, 3.0, b""), given[3]]
    for bad in ([1, 2.0], [1, 2.0, "x", 1], [1, 2.0, "no base64"], [1, "high", ""], 1, "1"):
        line = json.dumps({"p": bad}).encode()
        with pytest.raises(InvalidLine, match="must be a tuple"):
            import_lines(db, queue, [line], None, priority_field="p")
    assert queue.size(db) == 5


# The keys of lines


def keys(db: Any, queue: PriorityQueue) -> int:
    """Count the unique keys."""
    return len(list(db.get_range_startswith(layout_of(queue).unique_keys)))


def test_an_import_is_remembered_for_four_weeks(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    import_lines(db, queue, lines([1]), "f")
    assert queue.pop(db) is not None
    clock.advance(4 * WEEK - 1)
    assert import_lines(db, queue, lines([1]), "f") == ImportReport(0, 1)
    clock.advance(2)
    assert import_lines(db, queue, lines([1]), "f") == ImportReport(1, 0)
    assert keys(db, queue) == 1
