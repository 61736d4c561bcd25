"""The dashboard: static pages that use `/v1` with the user's token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Cache-Control": "no-cache",  # browsers ask each time, and are answered 304
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Files(StaticFiles):
    """Files with headers that forbid loading anything from another host."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


_FILES = _Files(directory=Path(__file__).with_name("static"))


@router.get("/")
async def dashboard(request: Request) -> Response:
    """Return the page."""
    return await _FILES.get_response("index.html", request.scope)


@router.get("/dashboard/{name}")
async def file(request: Request, name: str) -> Response:
    """Return a stylesheet or module of the page."""
    return await _FILES.get_response(name, request.scope)
