"""Metrics and traces of jobs for Prometheus and OpenTelemetry, if these are installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from fdbqueue.database.guard import Guard

_TRACE = "opentelemetry.trace"

_guard = Guard()


@cache
def _module(name: str) -> Any:
    """Return a module of an optional dependency; `None` if that is not installed.

    Imported late, because a program that only pushes needs none of them.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def _metrics() -> tuple[Any, Any]:
    """Return the counter and the histogram, in the default registry of `prometheus_client`."""
    prometheus = _module("prometheus_client")
    labels = ["queue", "outcome"]
    return (
        prometheus.Counter("fdbqueue_jobs", "Jobs that ended, by outcome.", labels),
        prometheus.Histogram("fdbqueue_job_seconds", "Duration of jobs in seconds.", labels),
    )


def inject(value: dict[str, Any]) -> None:
    """Add the current span of OpenTelemetry, if there is one, to the value of a job.

    The fields are those of W3C's Trace Context, `traceparent` and perhaps `tracestate`.

    >>> value = {"job": "shop.send"}
    >>> inject(value)
    >>> value
    {'job': 'shop.send'}
    """
    if _TRACE in sys.modules:  # or else the program has no span
        _module(f"{_TRACE}.propagation.tracecontext").TraceContextTextMapPropagator().inject(value)


def _extracted(value: Mapping[str, Any]) -> Any:
    """Return the context of the span that has pushed a job; `None` if the value has none."""
    if not isinstance(value.get("traceparent"), str):
        return None
    fields = {name: value.get(name) for name in ("traceparent", "tracestate")}
    carrier = {name: text for name, text in fields.items() if isinstance(text, str)}
    propagation = _module(f"{_TRACE}.propagation.tracecontext")
    return propagation.TraceContextTextMapPropagator().extract(carrier)


class Telemetry:
    """Metrics and traces of the jobs of one queue.

    >>> with Telemetry("jobs").span("id", attempt=1):
    ...     Telemetry("jobs").count("done", seconds=0.1)
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._tracer: Any = None
        self._metrics: dict[str, tuple[Any, Any]] = {}

    def count(self, outcome: str, seconds: float) -> None:
        """Count a job that ended, in the default registry of `prometheus_client`."""
        if _module("prometheus_client") is None:
            return
        if outcome not in self._metrics:
            labels = self._queue, outcome
            with _guard:  # two of the same name would be an error
                counter, histogram = _metrics()
            self._metrics[outcome] = counter.labels(*labels), histogram.labels(*labels)
        jobs, durations = self._metrics[outcome]
        jobs.inc()
        durations.observe(seconds)

    @contextmanager
    def span(
        self, item_id: str, attempt: int, job: str = "", pushed: Mapping[str, Any] | None = None
    ) -> Generator[Callable[[], AbstractContextManager[Any]]]:
        """Open a span for one job, by OpenTelemetry's messaging conventions.

        Run the handler within `with result():`, which makes the span the current one. It is not
        current for the whole job, because other jobs may run on this thread in between.

        Args:
            item_id: The id of the item.
            attempt: The number of the attempt.
            job: The name of the job, if it has one.
            pushed: The value of the job, to which `inject` has added the span of its push: the span
                of the job is a child of that one.
        """
        trace = _module(_TRACE)
        if trace is None:
            yield nullcontext
            return
        if self._tracer is None:
            self._tracer = trace.get_tracer("fdbqueue")
        attributes: dict[str, Any] = {
            "messaging.system": "fdbqueue",
            "messaging.destination.name": self._queue,
            "messaging.operation.type": "process",
            "messaging.message.id": item_id,
            "fdbqueue.attempt": attempt,
        }
        if job:
            attributes["fdbqueue.job"] = job
        span = self._tracer.start_span(
            f"process {self._queue}",
            context=_extracted(pushed) if pushed and "traceparent" in pushed else None,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        if not span.get_span_context().is_valid:  # the program has set no provider of traces
            yield nullcontext
            return
        try:
            yield partial(
                trace.use_span, span, record_exception=False, set_status_on_exception=False
            )
        except Exception as error:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
            raise
        finally:
            span.end()
