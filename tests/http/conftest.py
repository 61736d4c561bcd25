"""Servers for one test: in the process of the test, and as users start them."""

from tests.support.chromium import browser
from tests.support.server import client, serve

__all__ = ["browser", "client", "serve"]
