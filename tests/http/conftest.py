"""Servers for one test: in the process of the test, and as users start them."""

from tests.support.http import client, serve

__all__ = ["client", "serve"]
