"""Access control: tokens, body sizes and browser origins."""

from __future__ import annotations

import functools
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.http.responses import GRANT, answer
from fdbqueue.queue.overview import looks_write

_READS = frozenset({"GET", "HEAD"})

_LOOK = 1.0  # seconds between looks at a file of tokens

_log = logging.getLogger("fdbqueue.http")

_TOKEN = re.compile(r"(?!#)[!-~]+")

# These routes only match: they read a path exactly as the application's own routes do.
_NOTHING = Router()
_CHECKS = (Route("/health", _NOTHING), Route("/ready", _NOTHING))
_PAGES = (Route("/", _NOTHING), Mount("/dashboard", _NOTHING))
_OPEN: tuple[BaseRoute, ...] = (*_CHECKS, *_PAGES)
"""Paths that reveal nothing about the queues."""

_OF_QUEUES = (Mount("/v1", _NOTHING), Mount("/queue", _NOTHING))
"""Paths below which each route calls `authorize`."""

Role: TypeAlias = Literal["read", "write", "admin"]
"""The rights of a token. Each role includes the ones before it.

`write` pushes, takes and ends items. `admin` changes queues, and items in bulk.
"""

_ROLES: tuple[Role, ...] = get_args(Role)


class Grant(NamedTuple):
    """The rights of a request. `queues` is `*` for all, a name, or a prefix and `*`."""

    role: Role
    queues: str = "*"

    def allows(self, role: Role, queue: str | None) -> bool:
        """Return whether it allows a role's requests on a queue, or with `None` on the server.

        >>> grant = Grant("write", "mail/*")
        >>> grant.allows("read", "mail/out"), grant.allows("admin", "mail/out")
        (True, False)
        """
        if _ROLES.index(role) > _ROLES.index(self.role):
            return False
        return self.queues == "*" or (queue is not None and self.includes(queue))

    def includes(self, queue: str) -> bool:
        """Return whether `queues` includes a queue."""
        if self.queues.endswith("*"):
            return queue.startswith(self.queues[:-1])
        return queue == self.queues


_Refusal: TypeAlias = tuple[int, str, dict[str, str]]
"""The status, the detail and the headers of a response."""

Authorize: TypeAlias = Callable[[Request], Grant | Awaitable[Grant | None] | None]


class Tokens:
    """The tokens that a request may carry as `Authorization: Bearer ...`.

    Without tokens, every request is allowed. Comparisons take constant time.

    Args:
        lines: Tokens, each with an optional role (`read`, `write` or `admin`, the default) and
            queues: printable ASCII without spaces.
        file: A file of more such lines; empty lines and comments (`#`) are skipped. A changed
            file is read again within a second. If it is invalid, the former tokens stay.

    Raises:
        ValueError: A token or role is invalid, or the file has no token.
        OSError: The file cannot be read.

    Example:
        >>> Tokens(["secret read"]).find(b"Bearer secret").role
        'read'
    """

    open_paths = _OPEN
    refusal: _Refusal = (
        401,
        "a token is required: send it as `Authorization: Bearer TOKEN`",
        {"www-authenticate": "Bearer"},
    )

    def __init__(self, lines: Iterable[str] = (), file: Path | None = None) -> None:
        self._fixed = [_grant(line.split(), "") for line in lines]
        self._file = file
        self._in_file: list[tuple[bytes, Grant]] = []
        self._looked_at = time.monotonic()
        self._read_file()

    def __bool__(self) -> bool:
        return bool(self._fixed or self._file)

    async def grant(self, scope: Scope) -> Grant | None:
        """Return the grant of a request."""
        return self.find(dict(scope["headers"]).get(b"authorization", b""))

    def find(self, authorization: bytes) -> Grant | None:
        """Return the grant of the header's token, if any."""
        scheme, _, given = authorization.partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        found: Grant | None = None
        now = time.monotonic()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            try:
                self._read_file()
            except (OSError, ValueError) as error:
                _log.error("%s cannot be used, and its former tokens stay: %s", self._file, error)
        # Every token is compared, so that the duration does not reveal which one matched.
        for token, grant in (*self._fixed, *self._in_file):
            if hmac.compare_digest(given, token):
                found = grant
        return found

    def _read_file(self) -> None:
        if self._file is None:
            return
        try:
            text = self._file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._file} is not UTF-8 text") from error
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
        grants = [
            _grant(words, f"{self._file}, line {number}: ")
            for number, words in lines
            if words and words[0][0] != "#"
        ]
        if not grants:
            raise ValueError(f"{self._file} contains no token")
        if self._in_file and grants != self._in_file:
            _log.info("read %s again: %d tokens", self._file, len(grants))
        self._in_file = grants


def _grant(words: list[str], place: str) -> tuple[bytes, Grant]:
    """Return the token of a line, with its grant; an error begins with its place."""
    token, *rest = words or [""]
    role = rest[0] if rest else "admin"
    for known in _ROLES:
        if role == known and _TOKEN.fullmatch(token):
            return token.encode(), Grant(known, " ".join(rest[1:]) or "*")
    # The message omits the words, which may be parts of a mistyped secret.
    raise ValueError(
        f"{place}a token is printable ASCII without spaces that does not start with #, and what "
        f"follows it is its role: {', '.join(_ROLES)}"
    )


class Login:
    """The rights of requests by the login of the application that mounts this one."""

    open_paths = _CHECKS
    refusal: _Refusal = (403, "the application does not allow this request: log in first", {})

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    async def grant(self, scope: Scope) -> Grant | None:
        """Return the grant of a request."""
        request = Request(scope)
        if iscoroutinefunction(self._authorize):
            found: Any = await self._authorize(request)
        else:
            found = await run_in_threadpool(self._authorize, request)
        if not isinstance(found, Grant | None):
            raise TypeError(f"authorize returns a Grant or None, not {found!r}")
        return found


def grant_of(scope: Scope) -> Grant:
    """Return a request's grant, for everything if every request is allowed."""
    grant: Grant = scope.get(GRANT, Grant("admin"))
    return grant


def authorize(request: Request, role: Role, queue: str) -> None:
    """Raise 403 unless the request's grant allows this."""
    grant = grant_of(request.scope)
    if not grant.allows(role, queue):
        only = "; only reads are allowed" if grant.role == "read" else ""
        raise HTTPException(403, f"no rights for {role} requests of {queue!r}{only}")


class Guard:
    """ASGI middleware that refuses foreign pages, missing rights and large bodies."""

    def __init__(
        self, app: ASGIApp, access: Tokens | Login, max_body: int, origins: frozenset[str]
    ) -> None:
        self._app = app
        self._origins = origins
        self._access = access
        self._max_body = max_body
        self._too_large: _Refusal = 413, f"the body has more than {max_body:,} bytes", {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is not None:
            await answer(Request(scope), *refusal)(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_body:
                raise HTTPException(*self._too_large)
            return message

        may_write = looks_write.set(grant_of(scope).role != "read")
        try:
            await self._app(scope, counted, send)
        finally:
            looks_write.reset(may_write)

    async def _refusal(self, scope: Scope) -> _Refusal | None:
        """Return why a request is refused, or note its grant."""
        headers = dict(scope["headers"])
        foreign = self._foreign(headers, scope["method"])
        if foreign is not None:
            return 403, foreign, {}
        if self._access:
            grant = await self._access.grant(scope)
            if grant is None and not _matches(self._access.open_paths, scope):
                return self._access.refusal
            if grant is not None:
                of_server = not _matches((*_OPEN, *_OF_QUEUES), scope)
                if of_server and not grant.allows("read", None):
                    return 403, "this needs rights on all queues", {}
                scope[GRANT] = grant
        length = headers.get(b"content-length", b"0")
        is_short = length.isdigit() and int(length) <= self._max_body
        return None if is_short else self._too_large

    def _foreign(self, headers: dict[bytes, bytes], method: str) -> str | None:
        """Return why a request may come from another site's page, or `None`."""
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        is_own = not origin or origin in self._origins or origin.partition("://")[2] == host
        if method not in _READS and not is_own:
            return f"a page of {origin} must not change the queues"
        # Without tokens the server serves only this machine, under any of its names.
        if not self._access and not is_loopback(host):
            return f"this server is not {host}; without tokens it serves only this machine"
        return None


def _matches(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in routes)


@functools.lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Return whether a Host header or address is the local machine's."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
