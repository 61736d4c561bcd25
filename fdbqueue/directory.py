"""The queues that have a name: where each is, and which there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database import is_database, read, run_once
from fdbqueue.errors import QueueExists, QueueNotFound, QueueRenamed
from fdbqueue.layout import (
    NAMES,
    RENAMES,
    ROOT,
    Layout,
    decode_count,
    default_subspace,
    encode_count,
    name_key,
    renames_key,
)
from fdbqueue.rows import WANT_ALL

__all__ = [
    "drop_queue",
    "find",
    "place",
    "queue_names",
    "queues",
    "read_pages",
    "register",
    "rename_queue",
    "subspaces",
]

_T = TypeVar("_T")

_PAGE = 200
"""How many queues one transaction reads."""

MOST_TRACES = 16
"""How many names have a number of their own at most."""

_RECEIPTS = ROOT[2]


def find(tr: Any, name: str) -> Subspace | None:
    """The subspace of the queue of this name; `None` if there is none."""
    prefix = tr[name_key(name)].value
    return None if prefix is None else Subspace(rawPrefix=prefix)


def place(tr: Any, name: str) -> Subspace:
    """The subspace of the queue of this name, or that in which its first push makes it."""
    return find(tr, name) or _next_subspace(tr, name)[0]


def _next_subspace(tr: Any, name: str) -> tuple[Subspace, int]:
    """Return the subspace in which the next queue of this name is made, and its number."""
    own, common = tr[renames_key(name)], tr[renames_key(None)]
    number = max(decode_count(own.value), decode_count(common.value))
    return default_subspace(name, number), number


def _leave(tr: Any, name: str, subspace: Subspace) -> None:
    """Let no other queue be made in the subspace of a queue that is given another name.

    Some client may have it open for as long as it runs, so this is for ever. It takes a trace only
    if the next queue of the name would be made there. Of many traces, which name has which number
    is forgotten: from then on the highest number is that of all names.
    """
    next_subspace, number = _next_subspace(tr, name)
    if subspace.key() != next_subspace.key():
        return
    tr[renames_key(name)] = encode_count(number + 1)
    traces = RENAMES.range()
    if len(list(tr.snapshot[traces])) > MOST_TRACES + 1:  # that of all names is one more
        highest = max(decode_count(row.value) for row in tr[traces])
        del tr[traces]
        tr[renames_key(None)] = encode_count(highest)


def register(tr: Any, name: str, subspace: Subspace) -> None:
    """Note where the queue of this name is; raises `QueueRenamed` if it is elsewhere."""
    if find(tr, name) not in (None, subspace):
        raise QueueRenamed(name)
    tr[name_key(name)] = subspace.key()


def queue_names(tr: Any) -> list[str]:
    """The names of all queues that were ever pushed to, in order.

    Cost: a range read, one row for each queue, whatever their lengths.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> for name in ["mail", "jobs"]:
    ...     _ = fdbqueue.PriorityQueue.named(db, name).push(db, "x")
    >>> queue_names(db)
    ['jobs', 'mail']
    """
    return list(subspaces(tr))


def queues(tr: Any) -> dict[str, int]:
    """The names of all queues and how many items each has, in order of the names.

    Given a database in pages of 200 queues, each its own transaction. Cost: for each page a range
    read, and the reads of two counters for each queue, all at once.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push_many(db, ["x", "y"])
    >>> queues(db)
    {'mail': 2}
    """

    def sizes(tr: Any, page: dict[str, Subspace]) -> list[tuple[str, int]]:
        begun = {name: Layout(subspace).begin_size(tr) for name, subspace in page.items()}
        return [(name, max(0, size())) for name, size in begun.items()]

    return dict(read_pages(tr, sizes))


def rename_queue(tr: Any, name: str, new_name: str) -> None:
    """Give a queue another name; its items stay where they are.

    Clients that have the queue open go on using it, and no other queue is ever made in its place:
    a rename leaves a small row behind, of which there are at most 17 in a database. Given a
    database it takes effect exactly once; in a transaction the caller's own retry rules hold. Cost:
    two to five reads, two or three keys written.

    Raises `QueueNotFound`, `QueueExists`, `InvalidQueueName`; nothing is changed then.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
    >>> rename_queue(db, "mail", "e-mail")
    >>> queue_names(db)
    ['e-mail']
    """
    keys = name_key(name), name_key(new_name)

    def body(tr: Any) -> None:
        found = find(tr, name)
        if found is None:
            raise QueueNotFound(name)
        if find(tr, new_name) is not None:
            raise QueueExists(new_name)
        del tr[keys[0]]
        tr[keys[1]] = found.key()
        _leave(tr, name, found)

    _change(tr, body)


def drop_queue(tr: Any, name: str) -> None:
    """Drop a queue: its items, its options and its name.

    A push by who has it open makes it anew, empty. Given a database it takes effect exactly once;
    in a transaction the caller's own retry rules hold. Conflicts with all reads of the queue. Cost:
    a read and two clears, whatever the number of items.

    Raises `QueueNotFound` and `InvalidQueueName`.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
    >>> drop_queue(db, "mail")
    >>> queue_names(db)
    []
    """
    key = name_key(name)

    def body(tr: Any) -> None:
        found = find(tr, name)
        if found is None:
            raise QueueNotFound(name)
        del tr[found.range()]
        del tr[key]

    _change(tr, body)


def subspaces(tr: Any) -> dict[str, Subspace]:
    """Return where each named queue is, in order of the names; in pages, as `queues`."""
    return dict(read_pages(tr, lambda tr, page: list(page.items())))


def read_pages(tr: Any, read_page: Callable[[Any, dict[str, Subspace]], list[_T]]) -> list[_T]:
    """Read something of all named queues, in order of the names, by snapshot reads.

    `read_page(tr, page)` reads it of some of them. Given a database, each page is its own
    transaction: a queue that is renamed meanwhile may be read twice, or not at all.
    """
    whole = NAMES.range()
    begin, results = whole.start, list[_T]()

    def body(tr: Any) -> tuple[bytes, list[_T]]:
        rows = list(tr.snapshot.get_range(begin, whole.stop, limit=_PAGE, streaming_mode=WANT_ALL))
        page = {NAMES.unpack(row.key)[0]: Subspace(rawPrefix=row.value) for row in rows}
        end = rows[-1].key + b"\x00" if len(rows) == _PAGE else whole.stop
        return end, read_page(tr.snapshot, page)

    while begin < whole.stop:
        begin, page = read(tr, body)
        results += page
    return results


def _change(tr: Any, body: Callable[[Any], None]) -> None:
    if is_database(tr):
        run_once(tr, body, _RECEIPTS)
    else:
        body(tr)
