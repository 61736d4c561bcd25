"""Pushes and pops with the database, when many threads and processes make them at the same time."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from fdbqueue.coordination.combiner import Combiner, Perform
from fdbqueue.coordination.contention.process import Kind
from fdbqueue.coordination.contention.pushes import Pushes
from fdbqueue.coordination.contention.requests import Pop, Requests
from fdbqueue.coordination.contention.sharing import Host
from fdbqueue.coordination.contention.staged_pops import Pops
from fdbqueue.database.guard import Guard
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.operations.items import Items
from fdbqueue.operations.push import Pusher, PushRequest
from fdbqueue.types import Database, Options

_T = TypeVar("_T")


class Contention(Generic[_T]):
    """The pushes and pops of one queue, each of them in the order of all clients.

    - The threads of a process share transactions (`Combiner`).
    - The processes of a host share transactions while they contend (`Host`).
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
        self._layout = layout
        # What a leader checks for other processes has to be what they would check themselves.
        self._given = repr((options.kind, options.codec, options.priorities, options.ageing))
        pushes, pops = Pushes(layout, items, pusher), Pops(layout, items, codec)
        self._kinds: tuple[Kind, ...] = pushes, pops
        self.pushes: Combiner[PushRequest, list[bytes]] = self._combiner(pushes)
        self.pops: Combiner[Pop, list[_T]] = self._combiner(pops)
        self._guard = Guard()
        self._hosts: WeakKeyDictionary[Database, Host] = WeakKeyDictionary()
        _all.add(self)

    def _combiner(self, kind: Kind) -> Combiner[Any, Any]:
        return Combiner(partial(self._perform_on, kind), kind.cost, kind.budget)

    def _perform_on(self, kind: Kind, db: Database) -> Perform[Any, Any]:
        """Return the function that performs batches of requests of a kind on a database."""
        host = self.host(db)
        if host.is_shared:
            return partial(host.perform, kind)
        return host.process.performers[kind.name].perform

    def host(self, db: Database) -> Host:
        """Return this process among those that work on a database."""
        with self._guard:
            if db not in self._hosts:
                self._hosts[db] = Host(db, self._layout, self._given, self._kinds)
            return self._hosts[db]

    def forget(self) -> None:
        """Drop all state in a forked child: the sockets belong to its parent."""
        for host in self._hosts.values():
            host.close()
        self._hosts = WeakKeyDictionary()


_all: WeakSet[Contention[Any]] = WeakSet()


def _forget_all() -> None:
    for contention in _all:
        contention.forget()


os.register_at_fork(after_in_child=_forget_all)
