"""The pushes of a queue, as processes perform them and send them to each other."""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.coordination.batches import Batches
from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.leading import SharedBatch
from fdbqueue.coordination.contention.process import Pairs
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NO_HEADER, UUID_SIZE, pack_staged, unpack_staged
from fdbqueue.operations.items import BATCH_BYTES, Items, NewItem
from fdbqueue.operations.push import Pusher, PushRequest
from fdbqueue.types import Database, Transaction

# A new item travels as the prefix of its level; and as the last part of its key, the time at which
# it is due (0 for now), and its payload.
_DUE_SIZE = 8
_HEAD_SIZE = UUID_SIZE + _DUE_SIZE


class _SharedPushes(Batches[PushRequest, list[bytes]]):
    """Performs pushes, and gives other processes the results of those that joined a batch."""

    contended_until = 0.0
    """A push conflicts with nothing."""

    def perform_in(self, tr: Transaction, now: int, batch: Batch[PushRequest]) -> list[list[bytes]]:
        """Perform the pushes that have arrived, in a transaction."""
        results = super().perform_in(tr, now, batch)
        if isinstance(batch, SharedBatch):
            batch.settle(tr, results)
        return results

    def join(self, tr: Transaction, batch: Batch[PushRequest]) -> None:
        """Add the pushes that have arrived, and depend on the guests among them."""
        super().join(tr, batch)
        if isinstance(batch, SharedBatch):
            batch.depend(tr)


class Pushes:
    """Pushes. The result of a push is the keys of its items."""

    name = b"+"
    budget = BATCH_BYTES

    def __init__(self, layout: Layout, items: Items, pusher: Pusher) -> None:
        self._layout = layout
        self._levels = items.levels
        self._pusher = pusher

    def cost(self, request: PushRequest) -> int:
        """Return the bytes that a push takes of a transaction."""
        return request.size

    def performer(self, db: Database) -> _SharedPushes:
        """Return a new performer of pushes on a database."""
        return _SharedPushes(self._pusher.push, self._layout.receipts, db)

    def encode(self, requests: Sequence[PushRequest]) -> bytes | None:
        """Return the content; `None` if a push may store a part, has a header or meets a bound."""
        pushes: list[Pairs] = []
        for items, as_many_as_fit, _ in requests:
            if as_many_as_fit or self._pusher.may_refuse(items):
                return None
            if any(item.header is not NO_HEADER for item in items):
                return None
            pushes.append([(item.level.prefix, self._value_of(item)) for item in items])
        return pack_staged(pushes)

    def _value_of(self, item: NewItem) -> bytes:
        return item.random + (item.due or 0).to_bytes(_DUE_SIZE, "big") + item.payload

    def decode(self, content: bytes) -> list[PushRequest]:
        """Return the pushes of a message."""
        pushes = unpack_staged(content)
        return [PushRequest([self._new_item(*pair) for pair in push]) for push in pushes]

    def _new_item(self, prefix: bytes, value: bytes) -> NewItem:
        random, due = value[:UUID_SIZE], int.from_bytes(value[UUID_SIZE:_HEAD_SIZE], "big")
        level = self._levels.level_of(self._layout.item_key(prefix, 0, random))
        return NewItem(level, value[_HEAD_SIZE:], random, due or None)

    def pairs(self, result: list[bytes]) -> Pairs:
        """Return the keys, without values."""
        return [(key, b"") for key in result]

    def result(self, pairs: Pairs) -> list[bytes] | None:
        """Return the keys; `None` if the queue was full, which the process has to see itself."""
        return [key for key, _ in pairs] or None

    def undo(self, db: Database, results: list[Pairs]) -> None:
        """Leave the items where they are, as after an interrupted commit."""
