"""The dashboard: its files, which contain nothing of the queues.

The pages are modules of JavaScript without a build step. They read and change the queues through
`/v1`, with the token that the user enters.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePath
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_HEADERS = {
    "Cache-Control": "no-cache",  # browsers ask each time, and are answered 304
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def _read() -> dict[str, _File]:
    """Return the files of the dashboard by name."""
    found: dict[str, _File] = {}
    for path in files("fdbqueue.http").joinpath("static").iterdir():
        media_type = _TYPES.get(PurePath(path.name).suffix)
        if media_type is not None:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.name] = _File(content, media_type, etag)
    return found


_FILES = _read()


@router.get("/")
async def dashboard(request: Request) -> Response:
    """Return the page."""
    return _answer(request, _FILES["index.html"])


@router.get("/dashboard/{name}")
async def file(request: Request, name: str) -> Response:
    """Return a file of the page: its stylesheet, or one of its modules."""
    if name not in _FILES:
        raise HTTPException(404, f"the dashboard has no file {name}")
    return _answer(request, _FILES[name])


def _answer(request: Request, found: _File) -> Response:
    headers = {**_HEADERS, "ETag": found.etag}
    known = request.headers.get("if-none-match", "")
    if found.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
