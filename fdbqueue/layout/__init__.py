"""Every key and every value of a queue. Nobody else builds one or takes one apart.

One queue is one subspace Q. Keys are packed by FoundationDB's tuple layer:

| key | value | written by |
| --- | --- | --- |
| Q (0, priority, count, random) | payload | push |
| Q (0, index, random), in a FIFO queue | payload | enqueue |
| Q (1, priority) | int64 LE: how many items of that priority; no key at zero | push, pop |
| Q (2, 0) and Q (2, 1) | int64 LE: how many items ever came, and how many went | push, pop |
| Q (2, 2) | int64 LE: of both, how many only changed their places | reprioritize, put_back |
| Q (2, 3 to 6) | int64 LE: how many were removed, found no room, expired, died | remove, nack |
| Q (3, random, number) | a piece of a payload too large for one value | push |
| Q (4, hour, client id) | (sequence, attempt) of the client's last operation | `run_once` |
| Q (5, "layout") | (3, the version of this table; the options of the queue) | first push |
| Q (6, source) | (lines, sha256) of an import: what is stored of it | fdbq import |
| Q (6, week, source) | empty: the import was run in this week since 1970 | fdbq import |
| Q (7, version, name) | (is next, n, at max, ...): pops that wait | a pop that met contention |
| Q (8, version, name, number) | what such pops get: keys and values of items | who serves them |
| Q (9,) | the name of who serves the others at present | who does |
| Q (9, "ends"), Q (10, 0 or 1, number) | never written, only conflicted on | pop; a bounded push |
| Q (11, key) | (hour, digest, id, ...): what a push with an idempotency key stored | push_once |
| Q (12, hour, key) | that there is such a key since this hour | push_once |
| Q (16, place) | (token, version, attempt, slots) and the item's value: whose it is | claim |
| Q (17, version, place) | empty: at which version its lease runs out | claim, extend |
| Q (18, place) | (time,) and the value of an item that comes then, in milliseconds | push, nack |
| Q (19, time, place) | empty: that there is such an item | push, nack |
| Q (20, place) | (attempts, time, error) and the value of an item that failed too often | nack |
| Q (21, time, place) | empty: when an item expires | push |
| Q (22, key) | the place of the unfinished item with this unique key | push |
| Q (23, 0, slot) and Q (23, 1, agent, slot) | place: which claimed item holds it | claim |
| Q (5, "scheduled") | empty: something was ever claimed, delayed, limited and so on | claim, push |
| Q (5, "freed") | int64 LE: how often a slot came free, or the queue was resumed | ack, resume |

`place` is the rest of the item's key, where it was and will be. A task queue keeps of each task,
whose `random` is its id, besides:

| key | value | written by |
| --- | --- | --- |
| Q (13, 0, random) | the rest of the task's key, while it waits | push, pop |
| Q (13, 1, random) | the same, while it is claimed, delayed or dead | push, claim |
| Q (14, 0, agent or null) and Q (14, 1, client), with the rest of the key | empty | push, pop |
| Q (15, agent) | int64 LE: how many tasks of that agent wait; no key at zero | push, pop |

Items are the FoundationDB recipe: `count` is above that of the last item of the priority, by a
snapshot read, so that pushes never conflict, and at least the read version, so that it is above
those of items that are claimed or delayed, too; `random` makes the key unique. It is a UUID of
version 7, which holds when it was made. A client that speaks only the recipe, with any bytes in its
place, can be pointed at Q (0,).

The value of an item is its payload, unless that is in pieces. A header may stand before it: how
often the item was claimed, when it expires, under which key it is unique.

A request's `version` is the read version at which it was made, so that they stand in the order in
which they came, nearly; `name` makes it unique. Its result has the same version and name, in pieces
where it is too large for one value.

The queues that have a name are in the subspace R = ("fdbqueue",):

| key | value | written by |
| --- | --- | --- |
| R (name, ...) | the queue of this name | as above |
| R (0, name) | the prefix of the queue of this name | first push, rename |
| R (1, name, number, ...) | the same, if the number was above 0 when the queue was made | |
| R (2, hour, client id) | as Q (4, ...) | rename, drop |
| R (3, name) | int64 LE: the number under which the next queue of this name is made | rename |
| R (3, null) | int64 LE: the same for all names whose own number is lower or not there | rename |

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
    "name_key",
    "renames_key",
    "with_header",
]
