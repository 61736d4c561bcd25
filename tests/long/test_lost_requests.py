"""Jobs pushed over connections that are lost 1,000 times are stored once each."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from fdbqueue import PriorityQueue, admin
from fdbqueue.jobs import App, remote
from tests.support.lossy import LOSSES, Loss, lossy
from tests.support.server import serve

__all__ = ["serve"]

_SHARE = 0.6  # of requests whose connection is lost


class Shop:
    """An app that pushes to a server through a lossy proxy, and the numbers that it has pushed."""

    def __init__(self, app: App, name: str, rng: random.Random) -> None:
        @app.job(queue=name, name="count")
        def count(number: int) -> None: ...

        self.app, self.count, self._rng = app, count, rng
        self.pushed: Counter[int] = Counter()
        self._next = 0

    def push(self) -> None:
        """Push one job, several, or one with a unique key that may wait already."""
        numbers = range(self._next, self._next + self._rng.choice([1, 1, 3]))
        self._next = numbers.stop
        if self._rng.random() < 0.2:
            push = self.count.using(unique=True)
            handles = [push.push(numbers[0]), push.push(numbers[0])]
            assert [handle.is_new for handle in handles] == [True, False]
            assert handles[0] == handles[1]
            numbers = numbers[:1]
        else:
            handles = self.count.push_many([self.count.bind(number) for number in numbers])
            assert all(handle.is_new for handle in handles)
        if self._rng.random() < 0.1:
            assert handles[0].cancel()
            numbers = numbers[1:]
        self.pushed.update(numbers)


@contextmanager
def pushing(
    serve: Any, name: str, rng: random.Random, lost: Counter[Loss], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    def next_loss() -> Loss | None:
        if rng.random() > _SHARE:
            return None
        loss = rng.choice(LOSSES)
        lost[loss] += 1
        return loss

    monkeypatch.setattr(remote, "sleep", lambda _: None)
    with serve() as (_, client), lossy(str(client.base_url), next_loss) as address:
        yield Shop(App(address, repeat_for="1h"), name, rng)


def stored(db: Any, name: str) -> Counter[int]:
    queue = PriorityQueue.existing(db, name)
    assert admin.check(db, queue).ok
    return Counter(item.value["args"][0] for item in queue.items(db))


def test_1000_lost_connections_lose_and_double_no_job(
    serve: Any, db: Any, name: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: Counter[Loss] = Counter()
    with pushing(serve, name, rng, lost, monkeypatch) as shop:
        while lost.total() < 1_000:
            shop.push()
    assert stored(db, name) == shop.pushed
    assert min(lost.values()) > 100


def test_a_client_with_a_new_key_for_each_attempt_is_found(
    serve: Any, db: Any, name: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug."""

    def plant(request: Any) -> None:
        request.headers["Idempotency-Key"] = uuid4().hex

    lost: Counter[Loss] = Counter()
    with pushing(serve, name, rng, lost, monkeypatch) as shop:
        client = shop.app.target(name)[1]._client(os.getpid())
        client.event_hooks = {"request": [plant]}
        with pytest.raises(AssertionError):  # noqa: PT012
            while lost.total() < 1_000:
                shop.push()
            assert stored(db, name) == shop.pushed
