"""What is told of jobs to Prometheus and OpenTelemetry, where those are installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    import prometheus_client
except ImportError:  # an extra
    prometheus_client = None  # type: ignore[assignment]
try:
    from opentelemetry import trace
except ImportError:  # nobody's traces
    trace = None  # type: ignore[assignment]

__all__ = ["Telemetry"]

_jobs: Any = None
_seconds: Any = None
if prometheus_client is not None:
    _jobs = prometheus_client.Counter(
        "fdbqueue_jobs", "Jobs that ended, and how.", ["queue", "outcome"]
    )
    _seconds = prometheus_client.Histogram(
        "fdbqueue_job_seconds", "How long jobs took.", ["queue", "outcome"]
    )


class Telemetry:
    """What is told of the jobs of one queue.

    >>> with Telemetry("jobs").span("id", attempt=1):
    ...     Telemetry("jobs").count("done", seconds=0.1)
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def count(self, outcome: str, seconds: float) -> None:
        """Count a job that ended: in the default registry of `prometheus_client`."""
        if _jobs is not None:
            _jobs.labels(self._queue, outcome).inc()
            _seconds.labels(self._queue, outcome).observe(seconds)

    def span(self, item_id: str, attempt: int) -> AbstractContextManager[Any]:
        """A span for the time of a job, by the conventions for messaging."""
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
