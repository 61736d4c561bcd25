"""The server of `fdbq serve`: uvicorn with limits on the resources that a client can use.

A token is checked once the head of a request is complete. These limits apply before that: the size
of the head, the time a client may take, and the number of open connections.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import select
import socket
from asyncio import BaseTransport, TimerHandle, Transport
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from fdbqueue.http.responses import CONNECTION, refuse

_MAX_CONNECTIONS = 1000
_OTHER_FILES = 128
"""Descriptors reserved for the database, of which each thread opens files."""

_FOR_HEALTH = 8
"""Connections reserved for health checks, and for telling other clients that the server is busy."""

_HEALTH = frozenset({"/health", "/ready"})

_DISCONNECTED: int = getattr(select, "POLLRDHUP", 0)
"""The event that a client has disconnected, which Linux reports before all its bytes are read."""

_CONTINUE = b"HTTP/1.1 100 "
"""The beginning of what precedes the head of a response if the client waits to send the body."""

_MAX_YOUNG = 10_000
"""The objects that may be created before a garbage collection, beyond those that were deleted."""

_MAX_PIPELINED = 100
"""The most requests that one connection may send ahead of their responses."""


def available_connections() -> int:
    """Return the number of connections for which `ulimit -n` has room beside the database."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if files == resource.RLIM_INFINITY else files - _OTHER_FILES


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on the resources that a client can use before its token is checked.

    Args:
        connections: The most open connections, from 16. By default 1,000, or fewer if `ulimit -n`
            has no room for these and 128 other files.
        header_bytes: The size of a request line and its headers, in bytes; 431 above it.
        header_count: The number of headers; 431 above it.
        header_timeout: Seconds for a client to send the head of a request; 408 after it.
        body_timeout: Seconds for a client to send the body; 408 after it. A client that reads
            nothing of a response for as long is disconnected.
        keep_alive_timeout: Seconds for which a connection stays open without a request. The
            default exceeds the minute for which common proxies keep their connections.

    Raises:
        ValueError: `connections` is below 16, or `ulimit -n` has no room for that many.

    Example:
        >>> ConnectionLimits(connections=100).header_count
        100
    """

    connections: int = field(default_factory=lambda: min(_MAX_CONNECTIONS, available_connections()))
    header_bytes: int = 65_536
    header_count: int = 100
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    keep_alive_timeout: float = 65.0

    def __post_init__(self) -> None:
        least = 2 * _FOR_HEALTH
        needed = max(self.connections, least)
        if needed > available_connections():
            raise ValueError(
                f"{needed:,} connections need {needed + _OTHER_FILES:,} open files; raise the"
                " limit of `ulimit -n`, or accept fewer connections"
            )
        if self.connections < least:
            raise ValueError(f"a server needs at least {least} connections, not {self.connections}")


class Connections:
    """The open connections of a server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open = 0
        self._idle: dict[_LimitedProtocol, None] = {}  # longest idle first
        self._closing: set[_LimitedProtocol] = set()

    def mark_idle(self, connection: _LimitedProtocol) -> None:
        """Note that a connection has no request in progress."""
        self._idle[connection] = None

    def mark_busy(self, connection: _LimitedProtocol) -> None:
        """Note that the head of a request is complete."""
        self._idle.pop(connection, None)

    def remove(self, connection: _LimitedProtocol) -> None:
        """Note that a connection is closed."""
        self.open -= 1
        self._idle.pop(connection, None)
        self._closing.discard(connection)

    @property
    def is_making_room(self) -> bool:
        """True while a connection is being closed for another one."""
        return bool(self._closing)

    def make_room(self) -> bool:
        """Close the connection that has been idle longest; return false if all are busy.

        A client that does not read its response also counts as idle, but goes last.
        """
        if not self._idle:
            return False
        has_read = (each for each in self._idle if not each.flow.write_paused)
        oldest = next(has_read, next(iter(self._idle)))
        del self._idle[oldest]
        self._closing.add(oldest)
        oldest.transport.abort()
        return True


class Listener(socket.socket):
    """A listening socket that does not run out of descriptors.

    At the limit it closes the connection that has been idle longest, as nginx does: clients that
    merely hold connections open make room for clients with requests. If all are busy, `_Overload`
    immediately answers 503, except to health checks. Behind a load balancer this is better than not
    accepting: connections would wait in the kernel, where the balancer cannot tell a busy server
    from a dead one, while a 503 makes the balancer try another server.
    """

    def __init__(self, host: str, port: int, connections: Connections) -> None:
        """Bind to an address; raise `OSError` if that fails."""
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags
        )
        family, kind, protocol, _, address = found[0]
        super().__init__(family, kind, protocol)
        self._connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise `BlockingIOError` if there is none, or no room yet."""
        if self._connections.is_making_room:
            raise BlockingIOError  # the event loop retries once the descriptor is free
        try:
            accepted = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not self._connections.make_room():
                self._turn_away()
            raise BlockingIOError from error
        if self._connections.open >= self._connections.limit and not self._connections.make_room():
            accepted[0].close()
            raise BlockingIOError
        self._connections.open += 1
        return accepted

    def _turn_away(self) -> None:
        """Close the next connection immediately, using the spare descriptor to accept it."""
        os.close(self._spare)
        try:
            super().accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)


class _Overload:
    """ASGI middleware that answers 503 while the maximum number of requests is in progress."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            await refuse(
                scope, send, 503, "the server is busy; retry later", [(b"retry-after", b"1")]
            )
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class ServerConfig(uvicorn.Config):
    """The configuration of a `uvicorn.Server` that serves an application within limits.

    The server must accept its connections from a `Listener`.

    Args:
        app: The ASGI application.
        limits: The limits.
        forwarded_allow_ips: Addresses and networks of trusted proxies, whose `X-Forwarded-For` and
            `X-Forwarded-Proto` are used; `*` for any. Other clients cannot choose their address by
            a header.
        verbose: Whether to log each request.
        stop_within: Seconds for requests in progress to finish when the server stops.
        certfile: A file in PEM format with the certificate of the server, for TLS; `None` for HTTP.
        keyfile: A file with its private key; by default `certfile` has it, too.

    Raises:
        ValueError: One of `forwarded_allow_ips` is not an address or network.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        *,
        forwarded_allow_ips: Sequence[str] = (),
        verbose: bool = False,
        stop_within: int = 30,
        certfile: str | None = None,
        keyfile: str | None = None,
    ) -> None:
        for each in forwarded_allow_ips:
            if each != "*":
                ip_network(each)
        self.limits = limits
        self.connections = Connections(limits.connections)
        super().__init__(
            _Overload(app, limits.connections - _FOR_HEALTH),
            # A WebSocket, or another event loop's way of accepting, would bypass the limits.
            http=_LimitedProtocol,
            ws="none",
            loop="asyncio",
            log_config=None,
            # Errors of clients are logged only on request: they could fill a disk.
            log_level=None if verbose else "error",
            access_log=False,
            server_header=False,
            proxy_headers=bool(forwarded_allow_ips),
            forwarded_allow_ips=",".join(forwarded_allow_ips),
            timeout_keep_alive=cast("int", limits.keep_alive_timeout),  # fractions work as well
            timeout_graceful_shutdown=stop_within,
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
        )

    def load(self) -> None:
        """Load the application, exempt it from garbage collection, and collect less often.

        Its routes and models are a large part of all objects. To visit them in each full collection
        took about a sixth of the time of a request.
        """
        super().load()
        gc.collect()
        gc.freeze()
        # A collection visits the objects of all requests in progress, and finds nothing: requests
        # leave no cycles, and a connection that was closed leaves 14 objects.
        gc.set_threshold(_MAX_YOUNG)


class _Response(Transport):
    """The transport of one response, which sends its head together with the bytes that follow.

    The scope of a request holds it under the key `CONNECTION`, for `Delivered`.

    uvicorn writes the head and the body one after the other. Each write would be a system call that
    wakes the client, and takes a tenth of the time of a request.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head: bytes | None = None  # until the head is written; empty once it is sent

    def write(self, data: Any) -> None:
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
        elif self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def has_left(self) -> bool:
        """Return whether the client has disconnected, even if the event loop has not noticed."""
        if self._transport.is_closing():
            return True
        events = select.poll()
        events.register(self._transport.get_extra_info("socket"), _DISCONNECTED)
        return bool(events.poll(0))

    def close(self) -> None:
        self.write(b"")
        self._transport.close()


class _Refused(Exception):
    """Raised to stop the parser."""


class _LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the size of a head and on the time a client takes.

    A timer runs only while the client has to send or read something. A request that arrives in one
    piece starts none.
    """

    def __init__(self, config: ServerConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._limits = config.limits
        self._open = config.connections
        self._unparsed = 0  # bytes since a head, or a piece of a body, was complete
        self._part = ""  # the part of a request that the client is sending: "head" or "body"
        self._refusal = 400, "this is not an HTTP request"
        self._answering: deque[RequestResponseCycle] = deque()  # in the order of the requests
        self._timer: TimerHandle | None = None
        self._read_timer: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        assert isinstance(transport, Transport)
        super().connection_made(transport)
        # Writing counts as paused while any byte is unsent, so that its duration is known.
        # A TLS transport with a limit of 0 would never resume.
        is_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=int(is_tls), low=0)
        self._open.mark_idle(self)
        self._start_timer(self._limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disconnect()
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._open.remove(self)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed > self._limits.header_bytes:
            self._refuse(431, self._too_large())
        elif self._timer is None:
            if self._part:
                self._start_timer(self._timeout())
            elif not self._answering and self.timeout_keep_alive_task is None:
                self._start_timer(self._limits.keep_alive_timeout)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stop_timer()
        self._part = "head"

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes or len(self.headers) > self._limits.header_count:
            self._refusal = 431, self._too_large()
            raise _Refused
        if len(self._answering) > _MAX_PIPELINED:
            self._refusal = 429, f"more than {_MAX_PIPELINED} requests are waiting for responses"
            raise _Refused
        self._stop_timer()
        self._unparsed = 0
        self._part = "body"
        self._open.mark_busy(self)
        super().on_headers_complete()
        response = self.cycle.transport = _Response(self.transport)
        # A TLS transport of Python 3.10 does not say that a write failed.
        if _DISCONNECTED and self.scheme == "http":
            cast("dict[str, Any]", self.scope)[CONNECTION] = response
        self._answering.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._unparsed = 0
        self._part = ""

    def on_response_complete(self) -> None:
        self._answering.popleft().transport.write(b"")  # the head of a response without a body
        super().on_response_complete()
        is_lost = self.parser is None
        if not self._answering and not is_lost:
            self._open.mark_idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request. The parser's errors end here."""
        self._refuse(*self._refusal)

    def _timeout(self) -> float:
        return self._limits.body_timeout if self._part == "body" else self._limits.header_timeout

    def _too_large(self) -> str:
        limits = self._limits
        return (
            f"the request line and headers exceed {limits.header_bytes:,} bytes"
            f" or {limits.header_count} headers"
        )

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._time_is_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self) -> None:
        self._timer = None
        if self.flow.read_paused or (self._part == "head" and self._answering):
            # The server has stopped reading, or must answer an earlier request first.
            self._start_timer(self._timeout())
        elif self._part:
            seconds = self._timeout()
            self._refuse(408, f"the {self._part} of the request did not arrive in {seconds:g} s")
        else:
            self.transport.close()

    def _watch_reader(self, unread: int | None = None) -> None:
        """Close the connection if the client reads nothing of a response for too long."""
        left = self.transport.get_write_buffer_size()
        if left == unread:
            self.transport.abort()
        else:
            self._read_timer = self.loop.call_later(
                self._limits.body_timeout, self._watch_reader, left
            )

    def _refuse(self, status: int, detail: str) -> None:
        """Close the connection, after a response if the client expects this one next."""
        waiting = list(self._answering)
        if self._part == "body":
            is_next = waiting == [self.cycle] and not self.cycle.response_started
        else:
            is_next = not waiting
        if is_next:
            body = json.dumps({"detail": detail}).encode()
            head = b"content-type: application/json\r\nconnection: close\r\n"
            length = b"content-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + length + body)
        self._disconnect()
        self.transport.close()

    def _disconnect(self) -> None:
        """Notify the application of each request in progress; uvicorn notifies only the last."""
        for cycle in self._answering:
            cycle.disconnected = True
            cycle.message_event.set()
