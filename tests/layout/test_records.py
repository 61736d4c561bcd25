"""Each record of a queue is declared once: its codec and its check follow from the declaration."""

from __future__ import annotations

from typing import Any, get_type_hints

import fdb
import pytest

from fdbqueue.layout.batches import BatchCounts, Membership, StoredBatch, encode_batch
from fdbqueue.layout.items import GroupSettings
from fdbqueue.layout.records import RowCheck, check_record
from fdbqueue.layout.schedules import Definition, StoredSchedule, Timing
from fdbqueue.layout.steps import StoredSignal, StoredStep
from fdbqueue.layout.values import (
    ClaimedItem,
    Dead,
    Delayed,
    Done,
    Header,
    Lease,
    Report,
    StoredAttempt,
    StoredWorker,
)

TIMING = Timing("* * * * *")
RECORDS: list[Any] = [
    Header(3, 1, "key", b"p", 2, 3, "key", 4, "nightly", 5, True, 6, b"w", b"", True, 2.5, 7, 1),
    Delayed(1000),
    ClaimedItem(b"token", 300, 1, (b"slot",), b"value"),
    Dead(2, 1000, "busy"),
    Done(1000, 1, "discarded", None, 900, "host:7", "log"),
    Lease(1000, 5000, "host:7", Report(0.5, "half", 1000, "log")),
    StoredAttempt(1000, "host:7", "busy", "Traceback", 900, "log", 8, "ada"),
    StoredBatch("cancel", "closing", True, "run", b"job", ((b"q", b"job"),), (b"q",)),
    BatchCounts(4, 1, 2, 1),
    Membership(b"q", b"id", True, "resize"),
    StoredSchedule(Definition(TIMING, b"{}", b"", "latest", "skip", "ada"), 1, 2, True, 3, b"p"),
    StoredStep("wait", "waiting", 1, 2, 3, 4, "key", "busy", b"null", 5),
    StoredSignal(1, 2, b"{}"),
    GroupSettings(2.5, 3, True, (4, 1000), False, 5, True),
    StoredWorker("a", "b", 1, (("c", 2), ("d", 20)), 20, 3, 4, 5, 6),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_fields_that_a_record_cannot_have_are_refused(record: Any) -> None:
    """A field of another type, a missing field and one too many."""
    kind = type(record)
    check_record(kind, fdb.tuple.unpack(fdb.tuple.pack(record)))
    for name in get_type_hints(kind):
        for wrong in (object(), -1, float("nan"), ("x", "y", "z", 1, 2, 3, 4)):
            with pytest.raises(ValueError, match=r"field|has 7 fields"):
                check_record(kind, record._replace(**{name: wrong}))
    with pytest.raises(ValueError, match="fields"):
        check_record(kind, (*record, 1))
    required = len(kind._fields) - len(kind._field_defaults)
    check_record(kind, record[:required])
    if required:
        with pytest.raises(ValueError, match="fields"):
            check_record(kind, record[: required - 1])


def test_the_id_of_a_batch_may_be_any_bytes() -> None:
    """The id of a batch of a step is a UUID."""
    for byte in range(256):
        key = fdb.tuple.pack((36, 0)) + b"\x01" + bytes([byte] * 15)
        assert RowCheck().problem(key, encode_batch(StoredBatch("cancel", kind="run"))) is None
