"""Metrics and traces of jobs for Prometheus and OpenTelemetry, if these are installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    import prometheus_client
except ImportError:  # an optional dependency
    prometheus_client = None  # type: ignore[assignment]
try:
    from opentelemetry import trace
except ImportError:  # an optional dependency
    trace = None  # type: ignore[assignment]

__all__ = ["Telemetry"]

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

    def count(self, outcome: str, seconds: float) -> None:
        """Count a job that ended, in the default registry of `prometheus_client`."""
        if _jobs is not None:
            _jobs.labels(self._queue, outcome).inc()
            _seconds.labels(self._queue, outcome).observe(seconds)

    def span(self, item_id: str, attempt: int) -> AbstractContextManager[Any]:
        """Return a span for one job, by OpenTelemetry's messaging conventions."""
        if trace is None:
            return nullcontext()
        attributes: dict[str, Any] = {
            "messaging.system": "fdbqueue",
            "messaging.destination.name": self._queue,
            "messaging.operation.type": "process",
            "messaging.message.id": item_id,
            "fdbqueue.attempt": attempt,
        }
        tracer = trace.get_tracer("fdbqueue")
        span: AbstractContextManager[Any] = tracer.start_as_current_span(
            f"process {self._queue}", kind=trace.SpanKind.CONSUMER, attributes=attributes
        )
        return span
