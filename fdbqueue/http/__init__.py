"""Queues over HTTP, for any language: `create_app(db)` returns an ASGI application.

    fdbq serve                                  # http://127.0.0.1:8080, OpenAPI at /openapi.json

The server needs the packages of the extra `server`: `pip install '.[server]'` in a clone.
"""

from fdbqueue.http.app import create_app
from fdbqueue.http.security import Limits, TokenFile, Tokens
from fdbqueue.http.server import ConnectionLimits, Listener, ServerConfig

__all__ = [
    "ConnectionLimits",
    "Limits",
    "Listener",
    "ServerConfig",
    "TokenFile",
    "Tokens",
    "create_app",
]
