"""Every key and every value of a queue. Only this package builds keys or takes them apart.

One queue is one subspace, and its keys are packed by FoundationDB's tuple layer. `Space` is the
table of its keys: it numbers the key spaces and describes what their keys hold. `key_table` renders
it for the documentation.

Items follow FoundationDB's recipe for priority queues. `count` is above that of the last item of
the priority, by a snapshot read, so that pushes never conflict. It is also at least the read
version, so that it is above the counts of claimed and delayed items. `random` makes the key unique.
It is a UUID of version 7, which contains the time of its creation. A client that knows only the
recipe, with any bytes for `random`, can use the key space `ITEMS` as its queue.

The value of an item is its payload, unless that is in pieces. A header may precede it: how often
the item was claimed, when it expires, and its unique key.

The `version` of a pop request is the read version of the transaction that wrote it, so requests are
in order of arrival, approximately; `name` makes the key unique. The result has the same version and
name, in pieces if it is too large for one value.

Any change to the keys is a new layout version. `tests/layout/test_layout.py` pins the bytes.
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
    decode_metadata,
    decode_options,
    encode_count,
    encode_metadata,
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
    "decode_metadata",
    "decode_name",
    "decode_options",
    "decode_subspace",
    "default_subspace",
    "encode_count",
    "encode_metadata",
    "encode_options",
    "header_of",
    "key_table",
    "name_key",
    "name_table",
    "renames_key",
    "with_header",
]
