"""Configuration of uvicorn for `fdbq serve`."""

from __future__ import annotations

import gc
import socket
from collections.abc import Sequence
from ipaddress import ip_network

import uvicorn
from starlette.types import ASGIApp

_KEEP_ALIVE = 65
"""Seconds for which an idle connection stays open: longer than in proxies."""

_STOP_WITHIN = 30
"""Seconds for requests in progress when the server stops."""


def server_config(
    app: ASGIApp,
    *,
    connections: int = 1000,
    forwarded_allow_ips: Sequence[str] = (),
    verbose: bool = False,
    certfile: str | None = None,
    keyfile: str | None = None,
) -> uvicorn.Config:
    """Return the configuration of a `uvicorn.Server` that serves an application.

    Args:
        app: The ASGI application.
        connections: Maximum number of connections; further requests are answered 503.
        forwarded_allow_ips: Addresses and networks of trusted proxies; `*` for any.
        verbose: Whether to log clients' errors, too.
        certfile: A PEM file with the server's certificate, for TLS.
        keyfile: A file with its private key, unless `certfile` has it.

    Raises:
        ValueError: `forwarded_allow_ips` has an invalid address or network.
        OSError: The certificate or its key cannot be used.
    """
    for each in forwarded_allow_ips:
        if each != "*":
            ip_network(each)
    config = uvicorn.Config(
        app,
        # It answers the requests of a connection one after the other, and refuses a head that is
        # incomplete after 64 KiB. uvicorn's other parser has no limit before the token is checked.
        http="h11",
        h11_max_incomplete_event_size=65_536,
        ws="none",
        log_config=None,
        # Errors of clients are logged only on request: they could fill a disk.
        log_level=None if verbose else "error",
        access_log=False,
        server_header=False,
        proxy_headers=bool(forwarded_allow_ips),
        forwarded_allow_ips=",".join(forwarded_allow_ips),
        limit_concurrency=connections,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_STOP_WITHIN,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    config.load()
    # The routes and models are a large part of all objects, which each full collection would visit.
    gc.collect()
    gc.freeze()
    return config


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, or raise `OSError`."""
    # With the protocol, asyncio knows that it is TCP, and does not delay small answers.
    found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    return listening
