"""The request log, and metrics for Prometheus."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.aio import overview, run
from fdbqueue.http.responses import REQUEST_ID, is_v1
from fdbqueue.queue.overview import retries
from fdbqueue.types import Database, QueueStats

_access = logging.getLogger("fdbqueue.http.access")

_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

_GAUGES = {
    "queue_unknown": "1 if the numbers of the queue cannot be decoded.",
    "queue_paused": "1 if the queue is paused.",
    "unknown_jobs": "Ready and delayed jobs that a worker did not know.",
    "backlog": "Ready and claimed items: the jobs that need a worker now.",
    "oldest_item_age_seconds": (
        "Time since the push of the oldest ready item, or since a delayed item was due that no "
        "client has made ready; by the clocks of this server and of the pusher."
    ),
}
_TOTALS = {
    "items_pushed": ("total_pushed", "Items pushed. A retry is not a push."),
    "items_completed": ("total_completed", "Items popped or acknowledged."),
    "attempts_failed": ("total_failed", "Failed attempts, and leases that ran out."),
    "items_retried": ("total_retried", "Items returned for another attempt."),
    "items_expired": ("total_expired", "Items that expired before they were taken."),
    "items_removed": ("total_removed", "Items removed, and dead letters dropped."),
    "items_died": ("total_died", "Items that became dead letters."),
    "items_put_back": ("total_put_back", "Popped items that were put back."),
    "items_rejected": ("total_rejected", "Items for which the queue had no room."),
}


class Metrics:
    """The counters of this server, and its queues."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # The totals of each queue at the first call of `text`. A later queue had none.
        self._first_totals: dict[str, tuple[int, int]] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_Retries())
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

    async def text(self, all_queues: bool = False) -> bytes:
        """Return all metrics in Prometheus' text format.

        Without `all_queues`, omit empty queues that were unused since the first call.
        """
        found = await overview(self._db)
        totals = {name: (each.total_pushed, each.total_completed) for name, each in found.items()}
        first = totals if self._first_totals is None else self._first_totals
        self._first_totals = {name: first.get(name, (0, 0)) for name in totals}
        reported = {
            name: stats
            for name, stats in found.items()
            if all_queues or not stats.is_empty or totals[name] != self._first_totals[name]
        }
        return await run(self._render, _Queues(len(found), reported))

    def _render(self, queues: _Queues) -> bytes:
        return generate_latest(queues) + generate_latest(self._registry)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and time a request; unknown paths and methods share a label."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)


class _Queues(NamedTuple):
    number: int
    reported: dict[str, QueueStats]

    def collect(self) -> Iterator[Any]:
        yield GaugeMetricFamily(
            "fdbqueue_queues", "Queues, including those not reported.", self.number
        )
        items = GaugeMetricFamily(
            "fdbqueue_items", "Items in each state.", labels=["queue", "state"]
        )
        families: dict[str, Any] = {
            name: GaugeMetricFamily(f"fdbqueue_{name}", text, labels=["queue"])
            for name, text in _GAUGES.items()
        }
        for name, (_, text) in _TOTALS.items():
            families[name] = CounterMetricFamily(f"fdbqueue_{name}", text, labels=["queue"])
        for queue, stats in self.reported.items():
            for name, number in _numbers(stats).items():
                families[name].add_metric([queue], number)
            for state, number in stats.by_state.items() if stats.error is None else ():
                items.add_metric([queue, state], number)
        yield from (items, *families.values())


def _numbers(stats: QueueStats) -> dict[str, float]:
    if stats.error is not None:
        return {"queue_unknown": 1}
    numbers = {name: getattr(stats, field) for name, (field, _) in _TOTALS.items()}
    numbers["queue_paused"] = stats.paused
    numbers["unknown_jobs"] = stats.unknown_jobs
    numbers["backlog"] = stats.ready + stats.claimed
    now = datetime.now(UTC)
    since = stats.waiting_since(now)
    if since is not None:
        numbers["oldest_item_age_seconds"] = (now - since).total_seconds()
    return numbers


class _Retries:
    def collect(self) -> Iterator[Any]:
        again = CounterMetricFamily(
            "fdbqueue_transaction_retries",
            "Transactions that this server retried, by error code: 1020 is a conflict.",
            labels=["code"],
        )
        for code, number in dict(retries).items():
            again.add_metric([str(code)], number)
        yield again


class RequestLog:
    """ASGI middleware that logs and counts requests.

    A response below `/v1` has the request's `X-Request-Id`, or a new one.
    """

    def __init__(self, app: ASGIApp, observe: Callable[[Scope, int, float], None]) -> None:
        self._app = app
        self._observe = observe
        # A random part for the server, because a random id would cost more than its request.
        self._server = secrets.token_hex(6).encode()
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        headers: list[tuple[bytes, bytes]] = []
        if is_v1(scope):
            id = dict(scope["headers"]).get(_HEADER, b"")
            if not _REQUEST_ID.fullmatch(id):
                id = b"%b-%x" % (self._server, next(self._numbers))
            scope[REQUEST_ID] = id.decode()
            headers.append((_HEADER, id))
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begin
            self._observe(scope, status, seconds)
            if _access.isEnabledFor(logging.INFO):
                client = (scope.get("client") or ("-",))[0]
                path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
                _access.info(
                    "%s %s %s %d %.1f ms %s",
                    client,
                    scope["method"],
                    path,
                    status,
                    1000 * seconds,
                    scope.get(REQUEST_ID, "-"),
                )
