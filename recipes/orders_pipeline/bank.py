"""A bank that can be called again.

It takes an idempotency key: a worker can die after the bank has charged a card, and before it has
stored the answer. The bank then gets the same call again. These are stand-ins, which fail as often
as services do on a bad day: before they have done anything, or with an answer that gets lost.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager


class CardDeclined(Exception):
    """The bank does not charge this card, however often it is asked."""


@contextmanager
def unreliable(service: str) -> Generator[None]:
    """Fail before or after a call, one time in ten each."""
    luck = random.random()
    if luck < 0.1:
        raise ConnectionError(f"{service} does not answer")
    yield
    if luck > 0.9:
        raise ConnectionError(f"the answer of {service} was lost")


class Bank:
    """A bank with the key of each charge, which a refund ends for good."""

    def __init__(self, path: str) -> None:
        self._guard = threading.Lock()
        self._db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._run("CREATE TABLE IF NOT EXISTS charges (key PRIMARY KEY, cents, refunded)")

    def charge(self, key: str, cents: int) -> str:
        """Charge a card, once for each key; return the number of the charge."""
        with unreliable("the bank"):
            if cents > 50_000:
                raise CardDeclined("the card has a limit of 500.00")
            self._run("INSERT INTO charges VALUES (?, ?, 0) ON CONFLICT DO NOTHING", key, cents)
            ((refunded,),) = self._run("SELECT refunded FROM charges WHERE key = ?", key)
            if refunded:
                raise CardDeclined("it was refunded")
        return f"charge of {key}"

    def refund(self, key: str) -> None:
        """Refund a charge if there is one, and refuse it if it comes later."""
        with unreliable("the bank"):
            self._run(
                "INSERT INTO charges VALUES (?, 0, 1) ON CONFLICT (key) DO UPDATE SET refunded = 1",
                key,
            )

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _run(self, statement: str, *values: object) -> list[tuple[int]]:
        with self._guard:
            return self._db.execute(statement, values).fetchall()


class MailServer:
    """A server that has no idempotency keys: a mail may be sent twice."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, to: str, text: str) -> None:
        """Send a mail."""
        with unreliable("the mail server"), open(self._path, "a") as file:
            file.write(json.dumps([to, text]) + "\n")
