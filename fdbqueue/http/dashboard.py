"""The dashboard: one page, and the events that update it."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from fdbqueue.database.binding import error_classes
from fdbqueue.errors import FdbqueueError
from fdbqueue.types import QueueStats, State

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_log = logging.getLogger("fdbqueue.http")

_INTERVAL = 1.0  # seconds between events

_QUEUES = 100  # of an event

_STATES: tuple[State, ...] = ("ready", "delayed", "claimed", "dead")

_HTML = files("fdbqueue.http").joinpath("dashboard.html").read_text(encoding="utf-8")


@router.get("/")
async def dashboard() -> HTMLResponse:
    """Return the page, which by itself contains nothing of the queues."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(_HTML.replace("NONCE", nonce), headers=headers)


@router.get("/events")
async def events(request: Request, after: str | None = None) -> StreamingResponse:
    """Send the state of a page of queues every second, as server-sent events."""
    await _event(request, after)  # an error is an answer with its status
    headers = {"Cache-Control": "no-store"}
    content = _events(request, after)
    return StreamingResponse(content, media_type="text/event-stream", headers=headers)


async def _events(request: Request, after: str | None) -> AsyncIterator[str]:
    stopping = request.app.state.stopping
    while not stopping.is_set():
        unavailable: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
        try:
            event = await _event(request, after)
        except unavailable as error:
            _log.error("/events: %s", error)
            return  # the page reconnects
        yield f"data: {json.dumps(event)}\n\n"
        try:
            await asyncio.wait_for(stopping.wait(), _INTERVAL)
        except asyncio.TimeoutError:
            continue


async def _event(request: Request, after: str | None) -> dict[str, Any]:
    """Return the queues whose names follow `after`, and the name that leads to the next page."""
    found = list((await request.app.state.served.recent_numbers(after, _QUEUES + 1)).items())
    page = found[:_QUEUES]
    return {
        "time": time.time(),
        "queues": [_shown(name, stats) for name, stats in page],
        "next": page[-1][0] if len(found) > _QUEUES else None,
    }


def _shown(name: str, stats: QueueStats) -> dict[str, Any]:
    age = None
    if stats.oldest is not None:
        age = max(0.0, (datetime.now(timezone.utc) - stats.oldest).total_seconds())
    return {
        "name": name,
        "states": [[state, getattr(stats, state)] for state in _STATES],
        "paused": stats.paused,
        "counts": [[str(priority), count] for priority, count in stats.by_priority.items()],
        "total_pushed": stats.total_pushed,
        "total_completed": stats.total_completed,
        "age": age,
    }
