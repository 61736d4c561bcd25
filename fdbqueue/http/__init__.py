"""Queues over HTTP, for any language: `create_app(db)` is an ASGI application.

    fdbq serve                                  # http://127.0.0.1:8080, OpenAPI at /docs

Needs `pip install 'fdbqueue[server]'`.
"""

from fdbqueue.http.app import create_app
from fdbqueue.http.security import Limits, Tokens

__all__ = ["Limits", "Tokens", "create_app"]
