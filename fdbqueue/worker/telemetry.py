"""Metrics and traces of jobs for Prometheus and OpenTelemetry, if these are installed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

try:
    import prometheus_client
except ImportError:  # an optional dependency
    prometheus_client = None  # type: ignore[assignment]
try:
    from opentelemetry import trace
except ImportError:  # an optional dependency
    trace = None  # type: ignore[assignment]

_jobs: Any = None
_seconds: Any = None
if prometheus_client is not None:
    _jobs = prometheus_client.Counter(
        "fdbqueue_jobs", "Jobs that ended, by outcome.", ["queue", "outcome"]
    )
    _seconds = prometheus_client.Histogram(
        "fdbqueue_job_seconds", "Duration of jobs in seconds.", ["queue", "outcome"]
    )


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
        if _jobs is None:
            return
        if outcome not in self._metrics:
            labels = self._queue, outcome
            self._metrics[outcome] = _jobs.labels(*labels), _seconds.labels(*labels)
        jobs, durations = self._metrics[outcome]
        jobs.inc()
        durations.observe(seconds)

    @contextmanager
    def span(
        self, item_id: str, attempt: int
    ) -> Generator[Callable[[], AbstractContextManager[Any]]]:
        """Open a span for one job, by OpenTelemetry's messaging conventions.

        Run the handler within `with result():`, which makes the span the current one. It is not
        current for the whole job, because other jobs may run on this thread in between.
        """
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
        span = self._tracer.start_span(
            f"process {self._queue}", kind=trace.SpanKind.CONSUMER, attributes=attributes
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
