"""Every key and every value of a queue. Only this package packs and unpacks keys.

`coordination/contention/` packs those of its requests, beneath prefixes that this package returns.

One queue is one subspace, and its keys are packed by FoundationDB's tuple layer. `Space` is the
table of its keys: it numbers the key spaces and describes what their keys hold. `key_table` renders
it for the documentation.

Items follow FoundationDB's recipe for priority queues. `count` is higher than the count of the last
item of the priority. A snapshot read finds that item, so pushes never conflict. `count` is also at
least the read version, and therefore higher than the counts of claimed and delayed items. `random`
makes the key unique. It is a UUID of version 7, which contains the time of its creation. A client
that implements only the recipe, with any bytes for `random`, can use the key space `ITEMS` as its
queue.

The value of an item is its payload, or a reference to the payload's pieces. A header may precede
it: how often the item was claimed, when it expires, its unique key, and when it became ready.

Any change to the keys needs a new layout version. `tests/layout/test_layout.py` pins the bytes.
"""

from fdbqueue.layout.items import Counters, counters_range, totals_range
from fdbqueue.layout.keys import MAX_PAYLOAD, Layout, receipt_key, receipts_before
from fdbqueue.layout.names import (
    NAME_RECEIPTS,
    NAMES,
    RENAMES,
    decode_name,
    decode_subspace,
    decode_unfinished,
    default_subspace,
    encode_unfinished,
    name_key,
    names_with,
    renames_key,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.layout.spaces import Space, key_table, name_table
from fdbqueue.layout.values import (
    LAYOUT_VERSION,
    MINUS_ONE,
    NO_HEADER,
    ONE,
    SAMPLED,
    TALLIES,
    UNDECODABLE,
    WAIT_BOUNDS,
    ZERO,
    ClaimedItem,
    Header,
    Lease,
    decode_attempt,
    decode_claim,
    decode_count,
    decode_expiry,
    decode_lease,
    decode_level,
    decode_metadata,
    decode_options,
    decode_receipt,
    decode_sample,
    decode_tallies,
    decode_waits,
    encode_attempt,
    encode_claim,
    encode_count,
    encode_expiry,
    encode_lease,
    encode_level,
    encode_metadata,
    encode_options,
    encode_receipt,
    encode_sample,
    encode_tallies,
    encode_waits,
    header_of,
    with_header,
)

__all__ = [
    "LAYOUT_VERSION",
    "MAX_PAYLOAD",
    "MINUS_ONE",
    "NAMES",
    "NAME_RECEIPTS",
    "NO_HEADER",
    "ONE",
    "RENAMES",
    "SAMPLED",
    "TALLIES",
    "UNDECODABLE",
    "WAIT_BOUNDS",
    "ZERO",
    "ClaimedItem",
    "Counters",
    "Header",
    "Layout",
    "Lease",
    "Space",
    "counters_range",
    "decode_attempt",
    "decode_claim",
    "decode_count",
    "decode_expiry",
    "decode_lease",
    "decode_level",
    "decode_metadata",
    "decode_name",
    "decode_options",
    "decode_receipt",
    "decode_sample",
    "decode_subspace",
    "decode_tallies",
    "decode_unfinished",
    "decode_waits",
    "default_subspace",
    "encode_attempt",
    "encode_claim",
    "encode_count",
    "encode_expiry",
    "encode_lease",
    "encode_level",
    "encode_metadata",
    "encode_options",
    "encode_receipt",
    "encode_sample",
    "encode_tallies",
    "encode_unfinished",
    "encode_waits",
    "header_of",
    "key_table",
    "name_key",
    "name_table",
    "names_with",
    "receipt_key",
    "receipts_before",
    "renames_key",
    "restored_subspace",
    "totals_range",
    "unfinished_key",
    "with_header",
]
