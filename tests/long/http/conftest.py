"""The fixtures of `tests/http`."""

from tests.http.conftest import client, serve

__all__ = ["client", "serve"]
