"""The request log, and metrics for Prometheus."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.aio import overview, run
from fdbqueue.http.responses import REQUEST_ID, is_v1
from fdbqueue.http.served import SharedReads
from fdbqueue.queue.overview import retries
from fdbqueue.types import Database, QueueStats

_access = logging.getLogger("fdbqueue.http.access")

_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")

_SCAN_KEPT = 1.0  # seconds

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

_PAGE = 1000
_TOTALS = {
    "total_pushed": ("items_pushed", "Items pushed. A retry is not a push."),
    "total_completed": ("items_completed", "Items popped or acknowledged."),
    "total_failed": ("attempts_failed", "Failed attempts, and leases that ran out."),
    "total_retried": ("items_retried", "Items returned for another attempt."),
    "total_expired": ("items_expired", "Items that expired before they were taken."),
    "total_removed": ("items_removed", "Items removed, and dead letters dropped."),
    "total_died": ("items_died", "Items that became dead letters."),
    "total_put_back": ("items_put_back", "Popped items that were put back."),
    "total_rejected": ("items_rejected", "Items for which the queue had no room."),
}


class Metrics:
    """The counters of this server, and the queues at a scrape."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._scans = SharedReads(_SCAN_KEPT)
        # The totals of each queue at the first scan. A queue that is created later had none.
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

        Without `all_queues`, omit empty queues that were unused since the first scan.
        """
        scan = await self._scans.get(self._scan, all_queues)
        return await run(self._render, scan)

    async def _scan(self, all_queues: bool) -> _Scan:
        totals: dict[str, tuple[int, int]] = {}
        reported: dict[str, QueueStats] = {}
        after: str | None = None
        while page := await overview(self._db, after=after, limit=_PAGE):
            for name, stats in page.items():
                total = first = stats.total_pushed, stats.total_completed
                if self._first_totals is not None:
                    first = self._first_totals.get(name, (0, 0))
                totals[name] = first
                if all_queues or not stats.is_empty or total != first:
                    reported[name] = stats
            after = next(reversed(page))
            if len(page) < _PAGE:
                break
        self._first_totals = totals
        return _Scan(len(totals), reported)

    def _render(self, scan: _Scan) -> bytes:
        return generate_latest(scan) + generate_latest(self._registry)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and time a request; unknown paths and methods share a label."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)


class _Scan(NamedTuple):
    """The number of queues, and the state of each to report."""

    number: int
    reported: dict[str, QueueStats]

    def collect(self) -> Iterator[Any]:
        number = GaugeMetricFamily("fdbqueue_queues", "Queues, including those not reported.")
        number.add_metric([], self.number)
        items = GaugeMetricFamily(
            "fdbqueue_items", "Items in each state.", labels=["queue", "state"]
        )
        of_queue = partial(GaugeMetricFamily, labels=["queue"])
        paused = of_queue("fdbqueue_queue_paused", "1 if the queue is paused.")
        age = of_queue(
            "fdbqueue_oldest_item_age_seconds",
            "Age of the oldest ready item, by the clocks of this server and of its pusher.",
        )
        unknown = of_queue(
            "fdbqueue_queue_unknown",
            "1 if the numbers of the queue cannot be decoded.",
        )
        unknown_jobs = of_queue(
            "fdbqueue_unknown_jobs", "Ready and delayed jobs that a worker did not know."
        )
        backlog = of_queue(
            "fdbqueue_backlog", "Ready and claimed items: the jobs that need a worker now."
        )
        totals = {
            field: CounterMetricFamily(f"fdbqueue_{name}", help_text, labels=["queue"])
            for field, (name, help_text) in _TOTALS.items()
        }
        now = datetime.now(timezone.utc)
        for name, stats in self.reported.items():
            if stats.error is not None:
                unknown.add_metric([name], 1)
                continue
            for state, number_in_state in stats.by_state.items():
                items.add_metric([name, state], number_in_state)
            paused.add_metric([name], stats.paused)
            unknown_jobs.add_metric([name], stats.unknown_jobs)
            backlog.add_metric([name], stats.ready + stats.claimed)
            for field, total in totals.items():
                total.add_metric([name], getattr(stats, field))
            if stats.oldest is not None:
                age.add_metric([name], (now - stats.oldest).total_seconds())
        gauges = (number, items, paused, unknown, unknown_jobs, backlog)
        yield from (*gauges, *totals.values(), age)


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
        header: tuple[bytes, bytes] | None = None
        if is_v1(scope):
            given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
            id = (
                given
                if _REQUEST_ID.fullmatch(given)
                else b"%b-%x" % (self._server, next(self._numbers))
            )
            scope[REQUEST_ID] = id.decode()
            header = (_HEADER, id)
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if header is not None:
                    message = {**message, "headers": [*message["headers"], header]}
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
