"""Metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.database.retrying import retries
from fdbqueue.queue.overview import overview
from fdbqueue.types import Database

__all__ = ["Metrics"]


class Metrics:
    """The counters of this server, and the state of the queues at the time of a scrape."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests = Counter(
            "fdbqueue_http_requests",
            "Requests that this server answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "fdbqueue_http_request_seconds",
            "Duration of requests in seconds.",
            ["method", "route"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Any]:
        """Return nothing: no metric is known before it is collected."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield retries and the state of the queues. Cost: a few reads per queue of any length."""
        size = GaugeMetricFamily("fdbqueue_queue_size", "Items in the queue.", labels=["queue"])
        pushed = CounterMetricFamily(
            "fdbqueue_items_pushed", "Items added or returned.", labels=["queue"]
        )
        popped = CounterMetricFamily(
            "fdbqueue_items_popped", "Items popped, claimed or ended.", labels=["queue"]
        )
        age = GaugeMetricFamily(
            "fdbqueue_oldest_item_age_seconds",
            "Age of the oldest item, by the clocks of this server and the client that pushed it.",
            labels=["queue"],
        )
        now = datetime.now(timezone.utc)
        for status in overview(self._db):
            size.add_metric([status.name], status.size)
            pushed.add_metric([status.name], status.total_in)
            popped.add_metric([status.name], status.total_out)
            if status.oldest is not None:
                age.add_metric([status.name], (now - status.oldest).total_seconds())
        again = CounterMetricFamily(
            "fdbqueue_transaction_retries",
            "Transactions that this server retried, by error code: 1020 is a conflict.",
            labels=["code"],
        )
        for code, number in retries.counts().items():
            again.add_metric([str(code)], number)
        yield from (size, pushed, popped, age, again)

    def middleware(self, app: ASGIApp) -> Any:
        """Return ASGI middleware that counts and times requests."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = time.perf_counter()
            status = 500

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                # The route's template, because clients can invent any number of paths.
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"]
                self._requests.labels(method, route, status).inc()
                self._seconds.labels(method, route).observe(time.perf_counter() - began)

        return counting
