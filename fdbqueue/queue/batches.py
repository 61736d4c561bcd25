"""The batches of a queue: items at whose ends another item becomes ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeAlias

from fdbqueue.coordination.sans_io import drive
from fdbqueue.database.pages import in_batches
from fdbqueue.database.retrying import read
from fdbqueue.errors import PayloadTooLarge
from fdbqueue.layout.batches import (
    BatchCounts,
    Membership,
    StoredBatch,
    encode_membership,
    memberships_of,
)
from fdbqueue.layout.batches import BatchKind as BatchKind
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.jobs import BatchNotFound as BatchNotFound
from fdbqueue.layout.jobs import StoredAlert as StoredAlert
from fdbqueue.layout.jobs import TooManyFollowing as TooManyFollowing
from fdbqueue.layout.jobs import decode_alert as decode_alert
from fdbqueue.layout.jobs import encode_alert as encode_alert
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import name_key
from fdbqueue.layout.values import NEVER, Header, header_of_item
from fdbqueue.operations.items import BATCH_BYTES, ITEM_BYTES, NewItem
from fdbqueue.operations.maintainers.batches import (
    all_memberships,
    begin_closed,
    close,
    count_pushed,
    get_batch,
    get_counts,
    is_cancelled,
    make_ready,
    put_batch,
)
from fdbqueue.operations.names import name_of
from fdbqueue.queue.arguments import validate_group
from fdbqueue.queue.base import BaseQueue, change_once, new_items, store_of
from fdbqueue.types import (
    ENDED,
    Database,
    Item,
    OnDead,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
)

MAX_FOLLOWING = 100
"""How many jobs and batches may wait for one job."""

_MAX_VALUE = 80_000  # bytes of the item, which is stored again with the counts


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is.

    Attributes:
        pushed: The number of its jobs.
        done: Jobs that were done or discarded.
        dead: Jobs that became dead letters.
        cancelled: Jobs that were cancelled, were removed, or have expired.
        is_open: Whether jobs can be added.
        is_cancelled: Whether its other jobs will not begin.
    """

    pushed: int
    done: int
    dead: int
    cancelled: int
    is_open: bool
    is_cancelled: bool

    @property
    def left(self) -> int:
        """Jobs that have not ended."""
        return self.pushed - self.done - self.dead - self.cancelled

    @property
    def has_ended(self) -> bool:
        """True if it is closed, and all jobs have ended."""
        return not self.is_open and not self.left


@dataclass(frozen=True, slots=True)
class ItemBatch(BatchProgress):
    """A batch, seen from one of its jobs, or from the job that waits for it.

    Attributes:
        kind: What waits: a job at its end (`"then"`), a job that follows its jobs (`"after"`), or a
            step of a job that runs them (`"run"`).
        queue: The name of the queue of the job that waits, or `None`.
        id: The id of that job.
        step: The step of that job that gets the result, or `None`.
        is_member: Whether it is seen from one of its jobs.
        on_dead: What happens to its other jobs when one becomes a dead letter.
    """

    kind: BatchKind
    queue: str | None
    id: str
    step: str | None
    is_member: bool
    on_dead: OnDead


class Members(NamedTuple):
    """Items to push to one queue, given the arguments of its `push_many`.

    `alert` is the header field of that name.
    """

    queue: BaseQueue[Any]
    arguments: Mapping[str, Any]
    alert: bytes = b""

    def items(self, batch: bytes = b"") -> list[NewItem]:
        """Return the items, perhaps as members of a batch."""
        options: Any = {**self.arguments}
        values, priority = options.pop("values"), options.pop("priority", None)
        priorities = options.pop("priorities", [priority] * len(values))
        new = new_items(store_of(self.queue), values, priorities, **options)
        if not (batch or self.alert):
            return new
        return [
            item._replace(header=item.header._replace(batch=batch, alert=self.alert))
            for item in new
        ]

    def join(self, owner: bytes, id: bytes, *, step: str, job: bytes) -> list[NewItem]:
        """Return the items as members of a batch of the queue `owner`."""
        return self.items(membership_in(self.queue, owner, id, step=step, job=job))

    def push(self, tr: Transactor, new: list[NewItem]) -> list[Item[Any]]:
        """Push items to the queue."""
        return push_members(tr, self.queue, new)


def new_alert(queue: BaseQueue[Any], alert: StoredAlert) -> bytes:
    """Return the `alert` of `Members` of a queue; refuse what their deaths could not push."""
    store_of(queue).levels.level(alert.priority)
    validate_group(alert.group)
    if alert.queue:
        name_key(alert.queue)  # raises for a text that cannot be a name
    return encode_alert(alert)


def membership_in(queue: BaseQueue[Any], owner: bytes, id: bytes, **fields: Any) -> bytes:
    """Return the header field of an item that is in a batch of the queue `owner`."""
    subspace = b"" if queue.subspace.key() == owner else owner
    return encode_membership(Membership(subspace, id, **fields))


def push_members(
    tr: Transactor, queue: BaseQueue[Any], new: list[NewItem], as_many_as_fit: bool = False
) -> list[Item[Any]]:
    """Push items of a batch; return each, or the holder of its unique key; raise `QueueFull`."""
    return drive(store_of(queue).push(tr, new, as_many_as_fit))


_Member: TypeAlias = tuple[BaseQueue[Any], NewItem]


def _size(member: _Member) -> int:
    return len(member[1].payload) + ITEM_BYTES


class Batches:
    """The batches whose last end makes an item of this queue ready."""

    def __init__(self, queue: BaseQueue[Any]) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._layout = self._store.layout

    def open(
        self,
        db: Database,
        value: Any,
        priority: int,
        on_dead: OnDead,
        group: str | None = None,
        alert: bytes = b"",
    ) -> Item[Any]:
        """Begin a batch; return the item that is ready once its jobs have ended.

        Raises `QueueFull`, and `PayloadTooLarge` for a value of over 80,000 bytes.
        """
        (new,) = new_items(self._store, [value], [priority], group=group)
        if len(new.payload) > _MAX_VALUE:
            raise PayloadTooLarge(len(new.payload), _MAX_VALUE, "the last job of a batch")

        waiting = new._replace(due=NEVER, header=Header(awaits=True, alert=alert))

        def body(tr: Transaction) -> Item[Any]:
            (item,) = push_members(tr, self._queue, [waiting])
            put_batch(tr, self._layout, self._position(item.id), StoredBatch(on_dead))
            return item

        return change_once(self._queue, db, body)

    def add(self, db: Database, id: str, on_dead: OnDead, pushes: Sequence[Members]) -> None:
        """Push members, in one transaction if it has room; raise `BatchClosed` or `QueueFull`.

        An item whose unique key is in use is not a member.
        """
        position, own = self._position(id), self._layout.subspace.key()
        members: list[_Member] = []
        for each in pushes:
            batch = membership_in(each.queue, own, position, cancels=on_dead == "cancel")
            members += zip(repeat(each.queue), each.items(batch))
        for some in in_batches(members, _size, len(members), BATCH_BYTES):
            change_once(self._queue, db, partial(self._push, id=id, members=some))

    def _push(self, tr: Transaction, id: str, members: list[_Member]) -> bool:
        of_queue: dict[BaseQueue[Any], list[NewItem]] = {}
        for queue, new in members:
            of_queue.setdefault(queue, []).append(new)
        n = 0
        for queue, some in of_queue.items():
            n += sum(each.is_new for each in push_members(tr, queue, some))
        count_pushed(tr, self._layout, self._position(id), id, n)
        return True

    def close(self, db: Database, id: str) -> None:
        """Let no more members in, if the batch is open."""
        position = self._position(id)

        def body(tr: Transaction, now: int) -> bool:
            return close(tr, self._layout, now, position)

        while self._store.change(db, body, lambda _: True):  # the last step writes, too
            pass

    def finish(self, db: Database, id: str) -> BatchProgress:
        """Close a batch, and return how far it is; raise `BatchNotFound`."""
        self.close(db, id)
        return self.progress(db, id)

    def progress(self, db: Database, id: str) -> BatchProgress:
        """Return how far a batch is; raise `BatchNotFound`."""

        def body(tr: ReadTransaction) -> BatchProgress:
            stored = self.stored(tr, id)
            if stored is None:
                raise BatchNotFound(id)
            return BatchProgress(*_progress(tr, self._layout, self._position(id), stored))

        return read(db, body)

    def on_dead(self, db: Database, id: str) -> OnDead | None:
        """Return what happens when a job dies; `None` if the queue has no such batch."""
        stored = read(db, lambda tr: self.stored(tr, id))
        return stored and stored.on_dead

    def stored(self, tr: ReadTransaction, id: str) -> StoredBatch | None:
        """Return the definition of a batch, or `None`."""
        return get_batch(tr, self._layout, self._position(id))

    def _position(self, id: str) -> bytes:
        return self._store.codec.reference(id)


def _progress(
    tr: ReadTransaction, layout: Layout, id: bytes, batch: StoredBatch
) -> tuple[int, int, int, int, bool, bool]:
    pushed, done, dead, cancelled = get_counts(tr, layout, id)
    return pushed, done, dead, cancelled, batch.stage != "closed", batch.cancelled


def batches_of(tr: ReadTransactor, queue: BaseQueue[Any], item: Item[Any] | str) -> list[ItemBatch]:
    """Return the batch that a job waits for, and those in which it counts, unless they have ended.

    Cost: two reads of the item, three of each batch, and a range read of all names if a queue was
    renamed, restored or copied.
    """
    store = store_of(queue)
    own, reference = store.layout, store.codec.reference(item)

    def body(tr: ReadTransaction) -> list[ItemBatch]:
        found = store.items.at(tr, reference)
        if found is None:
            return []
        header = found.item.header
        places = [Membership(b"", header.origin or own.position(found.key))] * header.awaits
        shown: list[ItemBatch] = []
        for place in places + all_memberships(tr, own, own.position(found.key), header):
            layout = place.layout(own)
            batch = get_batch(tr, layout, place.id)
            if batch is not None:
                waiting = layout.items + (batch.job or place.id)
                shown.append(
                    ItemBatch(
                        *_progress(tr, layout, place.id, batch),
                        kind=batch.kind,
                        queue=name_of(tr, layout.subspace.key()),
                        id=layout.item_id(waiting),
                        step=place.step or None,
                        is_member=place not in places,
                        on_dead=batch.on_dead,
                    )
                )
        return shown

    return read(tr, body)


def batch_as_json(batch: ItemBatch) -> dict[str, Any]:
    """Return a batch of an item as a JSON object."""
    return {**asdict(batch), "left": batch.left, "has_ended": batch.has_ended}


def push_after(
    tr: Transactor,
    new: Members,
    after: Iterable[tuple[BaseQueue[Any], str]],
    on_dead: OnDead,
) -> list[Item[Any]]:
    """Push items that are ready once others have ended; `Job.using` describes it.

    Raises `QueueFull`, and `TooManyFollowing`, after which the transaction must not commit.
    """
    store, owner = store_of(new.queue), new.queue.subspace.key()
    items = new.items()
    others = {id: queue for queue, id in after}
    references = {id: store_of(queue).codec.reference(id) for id, queue in others.items()}

    def locate(tr: Transaction) -> tuple[dict[str, ItemRow], bool]:
        """Return the unfinished others, and whether an ended one cancels the items."""
        known = {id: store_of(others[id]).items.at(tr, references[id]) for id in others}
        found = {id: item for id, item in known.items() if item is not None}
        left = {id: item for id, item in found.items() if item.state not in ENDED}
        return left, on_dead == "cancel" and any(map(_has_failed, found.values()))

    def body(tr: Transaction, now: int) -> list[Item[Any]]:
        if not any(locate(tr)):
            return push_members(tr, new.queue, items)
        waiting = [
            item._replace(due=NEVER, header=item.header._replace(awaits=True)) for item in items
        ]
        pushed = push_members(tr, new.queue, waiting)
        ids = [store.codec.reference(item) for item in pushed if item.is_new]
        # The push may have ended or moved some, of its groups or with its unique keys.
        left, is_cancelled = locate(tr)
        prefixes = {id: others[id].subspace.key() for id in left}
        jobs = tuple(
            (b"" if prefixes[id] == owner else prefixes[id], references[id])
            for id in islice(left, MAX_FOLLOWING)
        )
        batch = StoredBatch(on_dead, cancelled=is_cancelled, kind="after", jobs=jobs)
        for id in ids:
            begin_closed(tr, store.layout, id, batch, len(left))
            if not left:
                make_ready(tr, store.layout, now, id, batch, BatchCounts())
        for other, item in left.items():
            header, queue = item.item.header, others[other]
            if bool(header.batch) + header.followers + len(ids) > MAX_FOLLOWING:
                raise TooManyFollowing(other, MAX_FOLLOWING)
            batches = [membership_in(queue, owner, id) for id in ids]
            store_of(queue).changes.join(tr, now, item, batches)
        return pushed

    return store_of(new.queue).change(tr, body)


def _has_failed(found: ItemRow) -> bool:
    return found.state == "dead" or found.outcome == "cancelled"


def was_cancelled(queue: BaseQueue[Any], db: Database, item: Item[Any]) -> bool:
    """Return whether an item that was claimed is not to begin, because of a batch.

    Cost: a read, if a dead letter cancels its batch or it has waited for others; else none.
    """
    header = header_of_item(item)
    cancels = header.awaits or any(each.cancels for each in memberships_of(header.batch))
    if header.has_begun or not cancels:
        return False
    store = store_of(queue)
    first = store.codec.reference(item)
    return read(db, lambda tr: is_cancelled(tr, store.layout, header, first))
