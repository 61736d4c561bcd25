"""Each record of a queue is declared once: its codec follows from the declaration."""

from __future__ import annotations

from typing import Any

import fdb
import pytest

from fdbqueue.layout.batches import Membership, StoredBatch
from fdbqueue.layout.items import GroupSettings
from fdbqueue.layout.jobs import StoredSignal, StoredStep
from fdbqueue.layout.values import UNDECODABLE, Header, StoredAttempt, StoredWorker, record_codec

RECORDS: list[Any] = [
    Header(3, 1, "key", b"p", 2, 3, "key", 4, "nightly", 5, True, 6, b"w", b"", True, 2.5, 7, 1),
    StoredAttempt(1000, "host:7", "busy", "Traceback", 900, "log", 8, "ada"),
    StoredBatch("cancel", "closing", True, "run", b"job", ((b"q", b"job"),)),
    Membership(b"q", b"id", True, "resize"),
    StoredStep("wait", "waiting", 1, 2, 3, 4, "key", "busy", b"[]", 5),
    StoredSignal(1, 2, b"{}"),
    GroupSettings(2.5, 3, True, (4, 1000), False, 5),
    StoredWorker("a", "b", 1, (("c", 2), ("d", 20)), 20, 3, 4, 5, 6),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_fields_that_differ_from_their_defaults_are_stored_by_their_numbers(record: Any) -> None:
    kind = type(record)
    encode, decode = record_codec(kind)
    for changed in (record, record._replace(**kind._field_defaults)):
        stored = fdb.tuple.unpack(encode(changed))
        expected = {
            number: value
            for number, (name, value) in enumerate(zip(kind._fields, changed))
            if name not in kind._field_defaults or value != kind._field_defaults[name]
        }
        assert dict(zip(stored[::2], stored[1::2])) == expected
        assert decode(encode(changed)) == changed
    if len(kind._field_defaults) < len(kind._fields):
        with pytest.raises(ValueError, match=f"{kind.__name__} has no "):
            decode(b"")


@pytest.mark.parametrize("stored", [b"\xff", fdb.tuple.pack((99, 1)), fdb.tuple.pack(("a", 1))])
def test_bytes_of_another_record_are_undecodable(stored: bytes) -> None:
    with pytest.raises(UNDECODABLE):
        record_codec(Header)[1](stored)
