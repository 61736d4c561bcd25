"""Access control: tokens, body sizes and browser origins."""

from __future__ import annotations

import functools
import hmac
import logging
import re
import time
from collections.abc import Iterable
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.http.responses import GRANT, refuse
from fdbqueue.queue.overview import looks_write

_READS = frozenset({"GET", "HEAD"})

_LOOK = 1.0  # seconds between looks at a file of tokens

_log = logging.getLogger("fdbqueue.http")

_TOKEN = re.compile(r"(?!#)[!-~]+")

# These routes only match: they read a path exactly as the application's own routes do.
_NOTHING = Router()
_OPEN: tuple[BaseRoute, ...] = (
    *(Route(path, _NOTHING) for path in ("/", "/health", "/ready")),
    Mount("/dashboard", _NOTHING),
)
"""The paths that reveal nothing about the queues."""

_OF_QUEUES = (Mount("/v1", _NOTHING), Mount("/queue", _NOTHING))
"""The paths below which each route calls `authorize` with the queue of its own path."""

Role: TypeAlias = Literal["read", "write", "admin"]
"""The requests that a token allows; each role includes the ones before it.

`write` pushes, takes and ends items. `admin` changes queues, and items in bulk.
"""

_ROLES: tuple[Role, ...] = get_args(Role)


class Grant(NamedTuple):
    """A token, and what it allows.

    Attributes:
        token: The token.
        role: The requests that it allows.
        queues: The queues that it allows: `*` for all, a name, or the beginning of names and `*`.
    """

    token: bytes
    role: Role
    queues: str = "*"

    def allows(self, role: Role, queue: str | None) -> bool:
        """Return whether it allows requests of a role, on a queue; `None` for the whole server.

        >>> grant = Grant(b"secret", "write", "mail/*")
        >>> grant.allows("read", "mail/out"), grant.allows("admin", "mail/out")
        (True, False)
        >>> grant.allows("read", "jobs"), grant.allows("read", None)
        (False, False)
        """
        if _ROLES.index(role) > _ROLES.index(self.role):
            return False
        return self.queues == "*" or (queue is not None and self.includes(queue))

    def includes(self, queue: str) -> bool:
        """Return whether a queue is one of those that it allows."""
        if self.queues.endswith("*"):
            return queue.startswith(self.queues[:-1])
        return queue == self.queues


class Tokens:
    """The tokens that a request may carry as `Authorization: Bearer ...`.

    Without tokens every request is allowed. A token is printable ASCII without spaces and does not
    start with `#`. Tokens are compared in constant time.

    Args:
        full: Tokens that allow all requests.
        read_only: Tokens that allow requests without effects.
        files: Files of further tokens. A line is a token, which may be followed by its role and its
            queues; empty lines and those that start with `#` are skipped. A file that has changed
            is read again within a second. If it has become invalid, its former tokens stay.

    Raises:
        ValueError: One of them is not a valid token, or a file has none.

    Example:
        >>> Tokens(["secret"]).find(b"Bearer secret").role
        'admin'
    """

    def __init__(
        self,
        full: Iterable[str] = (),
        read_only: Iterable[str] = (),
        files: Iterable[TokenFile] = (),
    ) -> None:
        self._fixed = [Grant(_validate_token(token), "admin") for token in full]
        self._fixed += [Grant(_validate_token(token), "read") for token in read_only]
        self._files = list(files)

    def __bool__(self) -> bool:
        return bool(self._fixed or self._files)

    def find(self, authorization: bytes) -> Grant | None:
        """Return the grant of the token in this header; `None` if there is none."""
        scheme, _, given = authorization.partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        found: Grant | None = None
        # Every token is compared, so that the duration does not reveal which one matched.
        for grant in chain(self._fixed, *(file.grants() for file in self._files)):
            if hmac.compare_digest(given, grant.token):
                found = grant
        return found


class TokenFile:
    """A file of tokens, which may change while the server runs.

    Args:
        path: The path of the file.
        role: The role of a token that is alone on its line.

    Raises:
        ValueError: The file has no token, or an invalid line.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, role: Role = "admin") -> None:
        self._path = path
        self._role: Role = role
        self._version = self._version_now()
        self._looked_at = time.monotonic()
        self._grants = self._read()

    def grants(self) -> list[Grant]:
        """Return the tokens of the file, as they were up to a second ago."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            try:
                version = self._version_now()
                if version != self._version:
                    self._grants = self._read()
                    self._version = version
                    _log.info("read %s again: %d tokens", self._path, len(self._grants))
            except (OSError, ValueError) as error:
                _log.error("%s cannot be used, and its former tokens stay: %s", self._path, error)
        return self._grants

    def _version_now(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> list[Grant]:
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._path} is not UTF-8 text") from error
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
        grants = [
            self._grant(number, words) for number, words in lines if words and words[0][0] != "#"
        ]
        if not grants:
            raise ValueError(f"{self._path} contains no token")
        return grants

    def _grant(self, number: int, words: list[str]) -> Grant:
        token, role = words[0], words[1] if len(words) > 1 else self._role
        queues = " ".join(words[2:]) or "*"
        for known in _ROLES:
            if role == known:
                return Grant(_validate_token(token), known, queues)
        # The message omits the word, which may be part of a mistyped secret.
        raise ValueError(
            f"{self._path}, line {number}: a token is printable ASCII without spaces, and what "
            f"follows it is its role: {', '.join(_ROLES)}"
        )


def grant_of(request: Request) -> Grant | None:
    """Return the grant of a request; `None` if the server has no tokens."""
    grant: Grant | None = request.scope.get(GRANT)
    return grant


def authorize(request: Request, role: Role, queue: str) -> None:
    """Raise an error with status 403 if the token of a request does not allow this."""
    grant = grant_of(request)
    if grant is not None and not grant.allows(role, queue):
        only = "; it allows only reads" if grant.role == "read" else ""
        raise HTTPException(403, f"this token does not allow {role} requests of {queue!r}{only}")


def _validate_token(token: str) -> bytes:
    if not _TOKEN.fullmatch(token):
        # The message omits the token, which may be a mistyped secret.
        raise ValueError(
            f"a token of {len(token)} characters is invalid: it must be printable ASCII without"
            " spaces and must not start with #"
        )
    return token.encode()


class Guard:
    """ASGI middleware that refuses requests of foreign pages, without a token, or too large."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens, max_body: int, origins: frozenset[str]
    ) -> None:
        self._app = app
        self._origins = origins
        self._tokens = tokens
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        foreign = self._foreign(headers, scope["method"])
        if foreign is not None:
            await refuse(scope, send, 403, foreign)
            return
        if self._tokens:
            grant = self._tokens.find(headers.get(b"authorization", b""))
            if grant is None and not _matches(_OPEN, scope):
                challenge = [(b"www-authenticate", b"Bearer")]
                sentence = "a token is required: send it as `Authorization: Bearer TOKEN`"
                await refuse(scope, send, 401, sentence, challenge)
                return
            if grant is not None:
                of_server = not _matches((*_OPEN, *_OF_QUEUES), scope)
                if of_server and not grant.allows("read", None):
                    await refuse(scope, send, 403, "this token does not allow all queues")
                    return
                scope[GRANT] = grant
        most = self._max_body
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            await refuse(scope, send, 413, f"the body has more than {most:,} bytes")
            return
        read = 0

        async def counted() -> Message:
            """Count the bytes of the body, which may come in many pieces."""
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, f"the body has more than {most:,} bytes")
            return message

        grant = scope.get(GRANT)
        may_write = looks_write.set(grant is None or grant.role != "read")
        try:
            await self._app(scope, counted, send)
        finally:
            looks_write.reset(may_write)

    def _foreign(self, headers: dict[bytes, bytes], method: str) -> str | None:
        """Return why a request may be sent by another site's page; `None` if it is not."""
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        is_own = not origin or origin in self._origins or origin.partition("://")[2] == host
        if method not in _READS and not is_own:
            return f"a page of {origin} must not change the queues"
        # Without tokens the server serves only this machine, under any of its names.
        if not self._tokens and not _is_loopback(host):
            return f"this server is not {host}; without tokens it serves only this machine"
        return None


def _matches(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in routes)


@functools.lru_cache(1024)
def _is_loopback(host: str) -> bool:
    """Return whether a Host header names the local machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
