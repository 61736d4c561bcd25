"""Every key and every value of a queue. No other package packs or unpacks one.

One queue is one subspace, and its keys are packed by FoundationDB's tuple layer. `Space` is the
table of its keys: it numbers the key spaces and describes what their keys hold. `key_table` renders
it for the documentation.

Items follow FoundationDB's recipe for priority queues. `count` is above that of the last item of
the priority, by a snapshot read, so that pushes never conflict. It is at least the read version, so
that it is also above the counts of items that are claimed or delayed. `random` makes the key
unique: a UUID of version 7, which holds the time of the push. A client that speaks only the recipe,
with any bytes in place of `random`, can be pointed at the key space `ITEMS`.

The value of an item is its payload, unless that is in pieces. A header may precede it: how often
the item was claimed, when it expires, and its unique key.

The `version` of a request is the read version at which it was made, so that requests are nearly in
the order of their pops; `name` makes it unique. Its result has the same version and name, in pieces
where it is too large for one value.

A change to any of this is a new layout version; `tests/layout/test_layout.py` pins the bytes.
"""

from fdbqueue.layout.keys import MAX_PAYLOAD, Layout
from fdbqueue.layout.names import (
    NAMES,
    RENAMES,
    ROOT,
    decode_name,
    decode_subspace,
    default_subspace,
    name_key,
    renames_key,
)
from fdbqueue.layout.spaces import Space, key_table, name_table
from fdbqueue.layout.values import (
    LAYOUT_VERSION,
    MINUS_ONE,
    NO_HEADER,
    ONE,
    ZERO,
    Header,
    decode_count,
    decode_facts,
    decode_options,
    encode_count,
    encode_facts,
    encode_options,
    header_of,
    with_header,
)

__all__ = [
    "LAYOUT_VERSION",
    "MAX_PAYLOAD",
    "MINUS_ONE",
    "NAMES",
    "NO_HEADER",
    "ONE",
    "RENAMES",
    "ROOT",
    "ZERO",
    "Header",
    "Layout",
    "Space",
    "decode_count",
    "decode_facts",
    "decode_name",
    "decode_options",
    "decode_subspace",
    "default_subspace",
    "encode_count",
    "encode_facts",
    "encode_options",
    "header_of",
    "key_table",
    "name_key",
    "name_table",
    "renames_key",
    "with_header",
]
