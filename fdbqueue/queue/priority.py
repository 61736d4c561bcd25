"""The priority queue, and the FIFO queue, which has one priority."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.store import Store
from fdbqueue.layout.codecs import codec_name, codec_named
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Levels, Priorities
from fdbqueue.layout.rows import ItemCodec
from fdbqueue.operations.items import Items
from fdbqueue.options import PushManyOptions, PushOptions, QueueOptions, UpdateOptions
from fdbqueue.queue.arguments import (
    given_options,
    of_each,
    validate_most,
    validate_options,
    validate_wait,
)
from fdbqueue.queue.base import BaseQueue, new_item, new_items, update_item
from fdbqueue.queue.schedules import Schedules
from fdbqueue.queue.steps import JobSteps
from fdbqueue.types import (
    Codec,
    Duration,
    Item,
    OfCodec,
    Priority,
    PriorityKind,
    ReadTransactor,
    Transactor,
    V,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


_SAME: Any = object()


class ValueQueue(BaseQueue[Item[V]]):
    """A queue whose items have values, and perhaps priorities."""

    _stored: ClassVar[tuple[str, ...]] = ("codec",)

    def __init__(
        self,
        kind: str,
        layout: Layout,
        levels: Levels,
        codec: str | Codec[V] | None,
        priorities: PriorityKind | None,
        options: QueueOptions,
    ) -> None:
        codec = "json" if codec is None else codec
        given = given_options(kind, codec_name(codec), priorities, options)
        items, rows = Items(layout, levels, given), ItemCodec(layout, levels, codec_named(codec))
        super().__init__(Store(items, rows, given))

    @property
    def schedules(self) -> Schedules[V]:
        """The schedules that push items to this queue."""
        return Schedules(self._store)

    @property
    def steps(self) -> JobSteps[V]:
        """The steps of its jobs, and the signals that they wait for."""
        return JobSteps(self._store)

    def update(
        self,
        tr: Transactor,
        item: Item[V] | str,
        *,
        value: V = _SAME,
        **changes: Unpack[UpdateOptions],
    ) -> Item[V]:
        """Change an item that waits: its value, priority, group, or when it is ready; return it.

        It keeps its id, its unique key and its failed attempts; also its place, unless its priority
        or group changes. A job with stored steps keeps its value and time, a job that waits for
        others its time. Conflicts with a claim of the item. Cost: one read more than to find it,
        and the writes of a push.

        The `changes` are `fdbqueue.options.UpdateOptions`.

        Raises:
            WrongState: The item is claimed, dead, done or gone, or its job has begun or waits.
            QueueFull: The new group is full; the other errors are as for `push`.

        Example:
            >>> item = jobs.push(db, {"to": "ada"}, priority=9, delay=60)
            >>> changed = jobs.update(db, item, value={"to": "bob"}, priority=1, delay=0)
            >>> changed.value, changed.priority, changed.id == item.id, jobs.state(db, item)
            ({'to': 'bob'}, 1, True, 'ready')
        """
        validate_options(UpdateOptions, changes)
        payload = None if value is _SAME else self._store.codec.encode(value)
        new = self._store.levels.level(changes["priority"]) if "priority" in changes else None
        return update_item(self._store, tr, item, changes, lambda _, level: (new or level, payload))

    def _push(
        self, tr: Transactor, value: V, priority: Priority | None, options: PushOptions
    ) -> SansIO[Item[V]]:
        new = new_item(self._store, value, priority, PushOptions, options)
        pushed: list[Item[V]] = yield from self._store.push(tr, [new])
        return pushed[0]


class PriorityQueue(ValueQueue[V]):
    """A queue ordered by priority, and by time of arrival within a priority.

    **Transactions.** A method takes a transaction or a database (`tr`), or only a database (`db`).
    In a transaction, the caller's retry loop repeats the call;
    `fdbqueue.transactional(receipts=...)` also settles an unknown commit result (1021). Given a
    database, the call takes effect exactly once, or raises an error; after 1021, it may have taken
    effect.

    **Arguments** that several methods have:

    - `item`: an `Item` (in a task queue, a `Task`) or its id. A text that is no id raises
      `InvalidItemId`.
    - `claim`: a result of `claim`. Once it has ended, the call raises `LeaseLost`, and its
      transaction must not commit. A claim of another queue raises `ForeignClaim`.
    - `log`: text of which the last 8,000 bytes are kept with the attempt.
    - `group`: a name; an empty text for the items without a group.
    - `by`: the client, for `FailedAttempt.retried_by`: text of up to 255 bytes, by default its host
      and process id.
    - Times, such as `lease`: seconds, a `timedelta`, or a text such as `"1h30m"`, with the units
      `ms`, `s`, `m`, `h`, `d` and `w`. `wait` needs a database; `math.inf` waits for ever.

    **Reads.** Given a database, a method that shows or counts items first sweeps, unless this
    process has just done so: it ends leases that are over, makes due items ready, and drops expired
    ones, up to 256 of each. In a transaction it shows what is stored.

    **Conflicts.** Pushes conflict with each other only near a limit, over a unique key, and at the
    start of a queue or a group. Pops conflict, because they want the same item. A change or a read
    of one item conflicts with changes of this item; `size`, `counts`, `stats` and `history`
    conflict with every change of the queue. A read of `tr.snapshot` conflicts with nothing. Given a
    database, threads that share a queue object share transactions.

    **Costs.** To find an item takes one read if it is ready, otherwise five to seven, and twice as
    many once it was moved to another priority.

    **Options.** The first push stores them. A client with another codec or other priorities gets
    `OptionsMismatch`; other options that differ are ignored, with a warning in the log.

    `PriorityQueue[Page]` is a queue of pages. In the examples of methods, `db` is a database, and
    `jobs`, `mail` and `tasks` are new queues.

    Args:
        subspace: The subspace of the queue; nothing else may be in it.
        codec: `"json"` (default), `"bytes"`, `"tuple"`, or a `fdbqueue.types.Codec`.
        priorities: `int` (64 bits, default), or a tuple of `int`, `float`, `str` and `bytes`, such
            as `(int, float)`.
        options: See `fdbqueue.options.QueueOptions`. Without an option, its stored value holds.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues" and its Extensions.

    Example:
        >>> db = fdbqueue.open("memory:")
        >>> jobs = PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "later", 5), jobs.push(db, "soon", 1)
        >>> jobs.pop(db).value
        'soon'
    """

    kind: ClassVar[Literal["priority"]] = "priority"
    """The kind of the queue, as its options have it."""

    _stored = ("codec", "priorities")

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec[V] | None = None,
        priorities: PriorityKind | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        layout, ranks = Layout(subspace), int if priorities is None else priorities
        super().__init__(self.kind, layout, Priorities(layout, ranks), codec, ranks, options)

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str | Subspace,
        *,
        codec: str | Codec[OfCodec] | None = None,
        priorities: PriorityKind | None = None,
        **options: Unpack[QueueOptions],
    ) -> PriorityQueue[OfCodec]:
        """Return the queue of this name, which its first push creates, with its stored options.

        The name is printable text of at most 255 bytes, without spaces at its ends, or the
        `Subspace` of a queue without a name, such as a directory. A queue with a codec object can
        be opened without it, to count or clear it. Cost: three reads.

        Raises:
            InvalidQueueName: A queue cannot have this name.
            OptionsMismatch: The queue has other options, or is of another kind.
            LayoutVersionMismatch: Another release of this library stored the queue.
            UnknownCodec: There is no codec of this name.

        Example:
            >>> PriorityQueue.named(db, "e-mails").size(db)
            0
        """
        queue: PriorityQueue[OfCodec]
        queue = cls._open(db, name, codec=codec, priorities=priorities, **options)
        return queue

    # Push

    @driven
    def push(
        self,
        tr: Transactor,
        value: V,
        priority: Priority = 0,
        **options: Unpack[PushOptions],
    ) -> SansIO[Item[V]]:
        """Put a value behind the last item of its priority.

        With a `max_size`, pushes conflict more often the fewer places are left.

        Cost: two reads at once (three with a `max_size`), and three keys written; one more for each
        90,000 bytes of a payload over 10,000 bytes, and one to wake a client.

        The value has up to 8,000,000 bytes when encoded, and up to 100 levels of lists and objects.
        The `options` are `fdbqueue.options.PushOptions`.

        Raises:
            InvalidValue: The codec does not accept the value.
            PayloadTooLarge: The encoded value is too large.
            InvalidPriority: The priority is not of the queue's type.
            QueueFull: The queue or the group is full.

        Example:
            >>> jobs.push(db, {"to": "ada@example.com"}, priority=2).priority
            2
        """
        return self._push(tr, value, priority, options)

    @driven
    def push_many(
        self,
        tr: Transactor,
        values: Iterable[V],
        priority: Priority = 0,
        *,
        priorities: Iterable[Priority] | None = None,
        **options: Unpack[PushManyOptions],
    ) -> SansIO[list[Item[V]]]:
        """Push several values in one transaction: all of them or none; return their items.

        Conflicts, costs and errors are as for `push`. `priorities` has one for each value; options
        are `fdbqueue.options.PushManyOptions`.

        Raises:
            PushTooLarge: The payloads, with 250 bytes for each, exceed the 10,000,000 bytes of a
                transaction.
            ValueError: The numbers of values, priorities and keys differ.

        Example:
            >>> _ = jobs.push_many(db, ["b", "a"], priorities=[2, 1])
            >>> jobs.pop(db).value
            'a'
        """
        values = list(values)
        given = [priority] * len(values) if priorities is None else priorities
        each = of_each(len(values), "priorities", given)
        new = new_items(self._store, values, each, **options)
        return self._store.push(tr, new, options.get("as_many_as_fit", False))

    # Both ends

    pop_min = BaseQueue[Item[V]].pop

    @driven
    def pop_max(self, tr: Transactor, *, wait: Duration = 0) -> SansIO[Item[V] | None]:
        """Remove and return the oldest item of the highest priority, or `None` if there is none.

        FoundationDB's recipe takes the newest item there. In a transaction, it also conflicts with
        a push of the same priority. Cost: two reads of one row.

        Example:
            >>> _ = jobs.push_many(db, ["low", "first", "second"], priorities=[1, 9, 9])
            >>> jobs.pop_max(db).value
            'first'
        """
        taken = yield from self._store.pop(tr, 1, True, validate_wait(tr, wait))
        return next(iter(taken), None)

    @driven
    def pop_many(
        self, tr: Transactor, n: int, max: bool = False, *, wait: Duration = 0
    ) -> SansIO[list[Item[V]]]:
        """Remove and return up to `n` of the first items, as `pop` or with `max` as `pop_max`.

        Cost: one read of `n` rows; with `max`, two for each priority. Their keys must fit into the
        10,000,000 bytes of a transaction.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b", "c"])
            >>> [item.value for item in jobs.pop_many(db, 2)]
            ['a', 'b']
        """
        return self._store.pop(tr, validate_most(n), max, validate_wait(tr, wait))

    peek_min = BaseQueue[Item[V]].peek

    def peek_max(self, tr: ReadTransactor) -> Item[V] | None:
        """Return the item that `pop_max` would take.

        Example:
            >>> jobs.peek_max(db) is None
            True
        """
        return next(iter(self.peek_many(tr, 1, max=True)), None)

    def peek_many(self, tr: ReadTransactor, n: int, max: bool = False) -> list[Item[V]]:
        """Return the items that `pop_many` would take.

        Example:
            >>> _ = jobs.push_many(db, ["a", "b"], priorities=[1, 2])
            >>> [item.value for item in jobs.peek_many(db, 2, max=True)]
            ['b', 'a']
        """
        return self._store.reads.peek(tr, validate_most(n), max)


class Queue(ValueQueue[V]):
    """A queue in order of arrival: first in, first out.

    It works as a `PriorityQueue` with one priority. `enqueue` and `dequeue` are other names of
    `push` and `pop`.

    Source: FoundationDB documentation, Design Recipes, "Queues".

    Example:
        >>> mail = Queue(fdbqueue.Subspace(("mail",)))
        >>> _ = mail.push_many(db, ["first", "second"])
        >>> mail.pop(db).value
        'first'
    """

    kind: ClassVar[Literal["fifo"]] = "fifo"
    """The kind of the queue, as its options have it."""

    def __init__(
        self,
        subspace: Subspace,
        *,
        codec: str | Codec[V] | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        layout = Layout(subspace)
        super().__init__(self.kind, layout, Levels(layout), codec, None, options)

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str | Subspace,
        *,
        codec: str | Codec[OfCodec] | None = None,
        **options: Unpack[QueueOptions],
    ) -> Queue[OfCodec]:
        """Return the FIFO queue of this name, as `PriorityQueue.named` does.

        Example:
            >>> Queue.named(db, "mail").size(db)
            0
        """
        queue: Queue[OfCodec] = cls._open(db, name, codec=codec, **options)
        return queue

    @driven
    def push(self, tr: Transactor, value: V, **options: Unpack[PushOptions]) -> SansIO[Item[V]]:
        """Put a value at the end of the queue, as `PriorityQueue.push` does.

        Example:
            >>> mail.push(db, ["any", "JSON"]).value
            ['any', 'JSON']
        """
        return self._push(tr, value, None, options)

    @driven
    def push_many(
        self, tr: Transactor, values: Iterable[V], **options: Unpack[PushManyOptions]
    ) -> SansIO[list[Item[V]]]:
        """Put several values at the end of the queue, as `PriorityQueue.push_many` does.

        Example:
            >>> [item.value for item in mail.push_many(db, ["a", "b"])]
            ['a', 'b']
        """
        values = list(values)
        new = new_items(self._store, values, [None] * len(values), **options)
        return self._store.push(tr, new, options.get("as_many_as_fit", False))

    enqueue, enqueue_many = push, push_many
    dequeue, dequeue_many = BaseQueue[Item[V]].pop, BaseQueue[Item[V]].pop_many
