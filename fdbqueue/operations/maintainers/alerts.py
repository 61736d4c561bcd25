"""Alerts: the transaction that makes a dead letter also pushes a job, if its push said so.

An alert has none itself, and takes no place of a bound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from fdbqueue.errors import FdbqueueError
from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.jobs import StoredAlert, decode_alert
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.values import MAX_INLINE, as_uuid, at_time, text_room
from fdbqueue.operations.items import Items, NewItem
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
        room = text_room(len(died))
        for row in died:
            alert = decode_alert(row.item.header.alert)
            items = self._items_of(tr, alert.queue)
            level = items.levels.in_group(items.levels.level(alert.priority), alert.group)
            # No identity is invented here: the alert follows from the death of its item.
            digest = hashlib.sha256(row.key + b"%d" % row.died_at).digest()
            payload = self._payload(tr, alert, row, room)
            new = NewItem(level, payload, at_time(as_uuid(digest), now))
            items.append_one(tr, now, new)

    def _items_of(self, tr: Transaction, queue: str) -> Items:
        """Return the items of an alert's queue, which may be new; or the own, if it takes no jobs.

        The death of an item must not fail because of another queue.
        """
        if not queue:
            return self._items
        layout, given = Layout(location(tr, queue), queue), Options("priority", "json", int)
        if not tr[layout.options].present():  # keep done jobs as the own queue does
            own = self._items.options.read(tr.snapshot)
            given = replace(given, keep_seconds=own.keep_seconds, keep_number=own.keep_number)
        items = Items(layout, Priorities(layout, int), given)
        try:
            items.options.agree(tr)
        except FdbqueueError:
            return self._items
        return items

    def _payload(self, tr: Transaction, alert: StoredAlert, row: ItemRow, room: int) -> bytes:
        layout, item, value = self._layout, row.item, None
        if len(item.content) <= min(room, MAX_INLINE) and not item.is_in_pieces:
            with suppress(ValueError, RecursionError):  # another client may have pushed it
                value = json.loads(item.content)
        call = stored_job(value)
        dead = DeadJob(
            call.name if call else alert.of,
            call and call.args,
            call and call.kwargs,
            row.error,
            item.header.earlier_attempts + row.attempts,
            layout.item_id(item.key, item.header.origin),
            name_of(tr, layout.subspace.key()),
        )
        return json_bytes(StoredJob(alert.job, [asdict(dead)], {}, alert.version).value)
