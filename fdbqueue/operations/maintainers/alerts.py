"""Alerts: the transaction that makes a dead letter also pushes a job, if its push said so.

An alert has none itself, takes no place of a bound, and exists once for each time an item dies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from fdbqueue.errors import FdbqueueError
from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.jobs import StoredAlert, decode_alert
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import MAX_INLINE, UNDECODABLE, as_uuid, at_time, text_room
from fdbqueue.operations.items import Items, NewItem, Tail
from fdbqueue.operations.names import location, name_of
from fdbqueue.operations.transitions import Change
from fdbqueue.types import DeadJob, Options, StoredJob, Transaction, stored_job


class Alerts:
    """The alerts of one queue's items, which may go to another queue."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    def follow(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Push the alerts of items that become dead letters."""
        died = [
            after
            for _, before, after, _ in changes
            if after is not None and after.state == "dead" and after.item.header.alert
            if before is not None and before.state != "dead"
        ]
        if not died:
            return
        name, room = name_of(tr, self._layout.subspace.key()), text_room(len(died))
        of_queue: dict[str, list[tuple[StoredAlert, ItemRow]]] = {}
        for row in died:
            alert = decode_alert(row.item.header.alert)
            of_queue.setdefault(alert.queue, []).append((alert, row))
        for queue, alerts in of_queue.items():
            items = self._items_of(tr, queue)
            levels, new, tails = items.levels, list[NewItem](), dict[bytes, Tail]()
            for alert, row in alerts:
                level = levels.in_group(levels.level(alert.priority), alert.group)
                # No identity is invented here: the alert follows from the death of its item.
                digest = hashlib.sha256(row.key + b"%d" % row.died_at).digest()
                payload = self._payload(alert, row, name, room)
                new.append(NewItem(level, payload, at_time(as_uuid(digest), now)))
                tails.setdefault(level.prefix, Tail(tr.snapshot, level))
            items.append(tr, now, new, tails)
            items.waiters.wake(tr, len(new))

    def _items_of(self, tr: Transaction, queue: str) -> Items:
        """Return the items of an alert's queue, which may be new; or the own, if it takes no jobs.

        The death of an item must not fail because of another queue.
        """
        if not queue:
            return self._items
        own = self._items.options.read(tr.snapshot) or self._items.options.agreed
        given = Options("priority", "json", int)
        given = replace(given, keep_seconds=own.keep_seconds, keep_number=own.keep_number)
        layout = Layout(location(tr, queue), queue)
        items = Items(layout, Priorities(layout, int), given)
        try:
            items.options.agree(tr)
        except FdbqueueError:
            return self._items
        return items

    def _payload(self, alert: StoredAlert, row: ItemRow, name: str | None, room: int) -> bytes:
        item, value = row.item, dict[str, Any]()
        call: StoredJob | None = None
        if len(item.content) <= min(room, MAX_INLINE) and not item.is_in_pieces:
            with suppress(*UNDECODABLE):  # another client may have pushed it
                found = json.loads(item.content)
                call = stored_job(found)
                value = found if call else value
        dead = DeadJob(
            alert.of,
            call and call.args,
            call and call.kwargs,
            row.error,
            item.header.earlier_attempts + row.attempts,
            self._layout.item_id(item.key, item.header.origin),
            name,
        )
        traced = {each: value[each] for each in ("traceparent", "tracestate") if each in value}
        pushed = StoredJob(alert.job, [asdict(dead)], {}, alert.version)
        return json_bytes(traced | pushed.value)
