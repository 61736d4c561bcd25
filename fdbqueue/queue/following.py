"""Following an item in an event loop: everything about it, each time that it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fdbqueue.coordination.event_loop import perform
from fdbqueue.coordination.event_loop import run as run
from fdbqueue.errors import NoResult
from fdbqueue.types import ENDED, ItemInfo

_NEXT_LOOK = 1.0  # seconds between looks, unless the item ends: workers store reports as often


async def follow(queue: Any, db: Any, item: Any) -> AsyncIterator[ItemInfo]:
    """Yield everything about an item now and when it changes, until it has ended or is gone."""
    async for info in looks(queue, db, item):
        if info is not None:
            yield info


async def looks(queue: Any, db: Any, item: Any) -> AsyncIterator[ItemInfo | None]:
    """Look at an item each second and at its end; yield `None` if it has not changed."""
    kind: Any = queue.__class__
    info: ItemInfo | None
    last: object = None
    while (info := await perform(kind.get, queue, db, item)) is not None:
        shown = info.state, info.progress, info.log
        yield None if shown == last else info
        if info.state in ENDED:
            return
        last = shown
        with suppress(NoResult):  # returns at once if it has ended meanwhile
            await perform(kind.result, queue, db, item, wait=_NEXT_LOOK)
