"""Pushes and pops with the database, when many threads and processes make them at the same time."""

from __future__ import annotations

from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from fdbqueue.coordination.batches import MAX_ITEMS, Batches
from fdbqueue.coordination.combiner import Combiner
from fdbqueue.coordination.contention.messages import PopMessages, PushMessages
from fdbqueue.coordination.contention.process import Kind
from fdbqueue.coordination.contention.requests import Pop, Requests
from fdbqueue.coordination.contention.sharing import Sharing
from fdbqueue.coordination.contention.staged_pops import StagedPops
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.layout.keys import Layout
from fdbqueue.operations.items import BATCH_BYTES, Items
from fdbqueue.operations.push import Pusher, PushRequest
from fdbqueue.types import Options

_T = TypeVar("_T")

_size_of, _n_of = attrgetter("size"), itemgetter(0)


class Contention(Generic[_T]):
    """The pushes and pops of one queue, each of them in the order of all clients.

    - The threads of a process share transactions (`Combiner`).
    - The processes of a host share transactions while they contend (`Sharing`).
    - On a cluster, processes that still conflict when they pop let one of them serve the others
      (`StagedPops`).

    Claims need none of this: they take any of the first few items.

    Args:
        layout: The keys of the queue.
        items: The items of the queue within a transaction.
        codec: The conversion between items and rows.
        pusher: The pushes within a transaction.
        options: The options that the client opened the queue with.
    """

    def __init__(
        self, layout: Layout, items: Items, codec: RowCodec[_T], pusher: Pusher, options: Options
    ) -> None:
        self.seconds_to_sweep = Requests(layout, items).seconds_to_sweep
        self.sharing = Sharing(layout, options)
        new_pushes = partial(Batches[Any, Any], pusher.push, layout.receipts)
        push_messages = PushMessages(layout, items, pusher)
        pop_messages = PopMessages(layout, items, codec)
        self.pushes: Combiner[PushRequest, list[bytes]] = self.sharing.combiner(
            Kind(new_pushes, push_messages, _size_of, BATCH_BYTES)
        )
        self.pops: Combiner[Pop, list[_T]] = self.sharing.combiner(
            Kind(lambda _: StagedPops(layout, items, codec), pop_messages, _n_of, MAX_ITEMS)
        )
