"""Access control: tokens, body sizes, request rates and browser origins."""

from __future__ import annotations

import hmac
import json
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import limits
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Guard", "Limits", "Tokens", "refuse"]


_READS = frozenset({"GET", "HEAD"})

_TOKEN = re.compile(r"(?!#)[!-~]+")

_OPEN = frozenset({"/", "/health", "/ready"})
"""Paths that reveal nothing about the queues."""


class Tokens:
    """The tokens that a request may carry as `Authorization: Bearer ...`.

    Without tokens every request is allowed. A token is printable ASCII without spaces and does not
    start with `#`. Tokens are compared in constant time.

    Args:
        full: Tokens that allow all requests.
        read_only: Tokens that allow requests without effects.

    Raises:
        ValueError: One of them is not a valid token.

    Example:
        >>> Tokens(["secret"]).allow(b"Bearer secret", changes=True)
        True
    """

    def __init__(self, full: Iterable[str] = (), read_only: Iterable[str] = ()) -> None:
        self._full = [_validate_token(token) for token in full]
        self._read_only = [_validate_token(token) for token in read_only]

    def __bool__(self) -> bool:
        return bool(self._full or self._read_only)

    def allow(self, authorization: bytes, changes: bool) -> bool:
        """Return whether this header allows a request."""
        full, read_only = self._matches(authorization)
        return full or (read_only and not changes)

    def knows(self, authorization: bytes) -> bool:
        """Return whether this header contains a valid token."""
        return any(self._matches(authorization))

    def _matches(self, authorization: bytes) -> tuple[bool, bool]:
        scheme, _, given = authorization.partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        # Every token is compared, so that the duration does not reveal which one matched.
        full = [hmac.compare_digest(given, token) for token in self._full]
        read_only = [hmac.compare_digest(given, token) for token in self._read_only]
        return any(full), any(read_only)


@dataclass(frozen=True)
class Limits:
    """The limits of requests.

    Args:
        body: The largest body, in bytes.
        rate: The requests allowed per client address, such as `"100/second"`; `None` for any.

    Raises:
        ValueError: `rate` is not such a text.
    """

    body: int = 9_000_000
    rate: str | None = None
    _window: MovingWindowRateLimiter = field(
        default_factory=lambda: MovingWindowRateLimiter(MemoryStorage()), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.rate is not None:
            try:
                amount = limits.parse(self.rate).amount
            except ValueError:
                amount = 0
            if amount < 1:
                raise ValueError(f"rate must be like '100/second', not {self.rate!r}")

    def wait(self, address: str) -> int | None:
        """Count a request; return the seconds to wait if there were too many, else `None`."""
        if self.rate is None:
            return None
        rate = limits.parse(self.rate)
        if self._window.hit(rate, address):
            return None
        reset = self._window.get_window_stats(rate, address).reset_time
        return max(1, math.ceil(reset - time.time()))


def _validate_token(token: str) -> bytes:
    if not _TOKEN.fullmatch(token):
        # The message omits the token, which may be a mistyped secret.
        raise ValueError(
            f"a token of {len(token)} characters is invalid: it must be printable ASCII without"
            " spaces and must not start with #"
        )
    return token.encode()


class Guard:
    """ASGI middleware that refuses requests beyond the tokens and limits."""

    def __init__(self, app: ASGIApp, tokens: Tokens, limits: Limits) -> None:
        self._app = app
        self._tokens = tokens
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        seconds = self._limits.wait((scope.get("client") or ("",))[0])
        if seconds is not None:
            retry = [(b"retry-after", b"%d" % seconds)]
            await refuse(send, 429, f"too many requests; try again in {seconds} s", retry)
            return
        foreign = self._foreign(headers, scope["method"])
        if foreign is not None:
            await refuse(send, 403, foreign)
            return
        if self._tokens and scope["path"] not in _OPEN:
            given = headers.get(b"authorization", b"")
            if not self._tokens.knows(given):
                challenge = [(b"www-authenticate", b"Bearer")]
                sentence = "a token is required: send it as `Authorization: Bearer TOKEN`"
                await refuse(send, 401, sentence, challenge)
                return
            if not self._tokens.allow(given, scope["method"] not in _READS):
                await refuse(send, 403, "this token allows only reads")
                return
        most = self._limits.body
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            await refuse(send, 413, f"the body has more than {most:,} bytes")
            return
        await self._within(most, scope, receive, send)

    def _foreign(self, headers: dict[bytes, bytes], method: str) -> str | None:
        """Return why a request may be sent by another site's page; `None` if it is not."""
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if method not in _READS and origin and origin.partition("://")[2] != host:
            return f"a page of {origin} must not change the queues"
        # Without tokens the server serves only this machine, under any of its names.
        if not self._tokens and not _is_loopback(host):
            return f"this server is not {host}; without tokens it serves only this machine"
        return None

    async def _within(self, most: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, and count the bytes of its body, which may come in many pieces."""
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, f"the body has more than {most:,} bytes")
            return message

        await self._app(scope, counted, send)


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names the local machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def refuse(
    send: Send, status: int, detail: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer a request with a status and a message, in the format of the application."""
    body = json.dumps({"detail": detail}).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
