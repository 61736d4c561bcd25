"""The log of workers; metrics for Prometheus and traces for OpenTelemetry, if installed.

A library that raises an error, at its import or later, is logged once and switched off: no push,
job or worker depends on it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue.database.guard import Guard
from fdbqueue.errors import error_text

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

_T = TypeVar("_T")

_TRACE = "opentelemetry.trace"
_PROMETHEUS = "prometheus_client"


class Log(_Adapter):
    """A logger that raises nothing: no end of a job depends on its line in a log.

    Errors of the logger's filters and handlers are printed to standard error.

    >>> Log("fdbqueue.worker").warning("%s has ended", "a job")
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a line."""
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **options)
        except BaseException:
            with suppress(BaseException):  # standard error may be closed
                print(f"cannot log to {self.logger.name}: {msg}", file=sys.stderr)
                traceback.print_exc()


_log = Log("fdbqueue.worker")

_guard = Guard()
_off: set[str] = set()
"""The libraries that are not installed, or switched off."""


def _using(library: str, function: Callable[..., _T], *args: Any) -> _T | None:
    """Call a function that uses a library, unless it is off; return `None` if it is."""
    if library in _off:
        return None
    try:
        if _module(library) is None:
            _off.add(library)
            return None
        return function(*args)
    except BaseException as error:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(error, KeyboardInterrupt):  # it is meant for the program
            raise
        with _guard:
            is_first = library not in _off
            _off.add(library)
        if is_first:
            text = "%s is switched off in this process, because it raised an error: %s"
            _log.warning(text, library.partition(".")[0], error_text(error), exc_info=True)
        return None


@cache
def _module(name: str) -> Any:
    """Return a module of an optional dependency; `None` if that is not installed.

    Imported late, because a program that only pushes needs none of them.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


@cache
def _metrics() -> tuple[Any, Any]:
    """Return the counter and the histogram, in the default registry of `prometheus_client`."""
    prometheus = _module(_PROMETHEUS)
    labels = ["queue", "job", "outcome"]
    return (
        prometheus.Counter("fdbqueue_jobs", "Attempts that ended, by outcome.", labels),
        prometheus.Histogram("fdbqueue_job_seconds", "Duration of attempts in seconds.", labels),
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
        value.update(_using(_TRACE, _injected) or {})


def _injected() -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagation = _module(f"{_TRACE}.propagation.tracecontext")
    propagation.TraceContextTextMapPropagator().inject(carrier)
    return carrier


def _extracted(value: Mapping[str, Any]) -> Any:
    """Return the context of the span that has pushed a job; `None` if the value has none."""
    if not isinstance(value.get("traceparent"), str):
        return None
    fields = {name: value.get(name) for name in ("traceparent", "tracestate")}
    carrier = {name: text for name, text in fields.items() if isinstance(text, str)}
    propagation = _module(f"{_TRACE}.propagation.tracecontext")
    return propagation.TraceContextTextMapPropagator().extract(carrier)


def _enter(span: Any) -> None:
    """Make a span the current one, in this copy of the context variables."""
    trace = _module(_TRACE)
    _module("opentelemetry.context").attach(trace.set_span_in_context(span))


_NO_SPAN = nullcontext[Callable[[], object]](lambda: None)
"""Leaves the current span as it is."""


@contextmanager
def _opened(span: Any) -> Generator[Callable[[], object]]:
    try:
        yield partial(_using, _TRACE, _enter, span)
    except Exception as error:
        _using(_TRACE, _note_error, span, error)
        raise
    finally:
        _using(_TRACE, lambda: span.end())


def _note_error(span: Any, error: Exception) -> None:
    with suppress(BaseException):  # its text may be unreadable, which the status says
        span.record_exception(error)
    span.set_status(_module(_TRACE).StatusCode.ERROR, error_text(error))


class Telemetry:
    """Metrics and traces of the jobs of one queue.

    >>> with Telemetry("jobs").span("id", attempt=1):
    ...     Telemetry("jobs").count("shop.send", "done", seconds=0.1)
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._tracer: Any = None
        self._metrics: dict[tuple[str, str], tuple[Any, Any]] = {}

    def count(self, job: str, outcome: str, seconds: float) -> None:
        """Count an attempt that ended, in the default registry of `prometheus_client`.

        Args:
            job: The name of a declared job; an empty text for any other one.
            outcome: How it ended.
            seconds: How long it took.
        """
        _using(_PROMETHEUS, self._count, job, outcome, seconds)

    def _count(self, job: str, outcome: str, seconds: float) -> None:
        found = self._metrics.get((job, outcome))
        if found is None:
            labels = self._queue, job, outcome
            with _guard:  # two of the same name would be an error
                counter, histogram = _metrics()
            found = counter.labels(*labels), histogram.labels(*labels)
            self._metrics[job, outcome] = found
        jobs, durations = found
        jobs.inc()
        durations.observe(seconds)

    def span(
        self, item_id: str, attempt: int, job: str = "", pushed: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Callable[[], object]]:
        """Open a span for one job, by OpenTelemetry's messaging conventions.

        Call the result where the handler runs, in a copy of the context variables of its own: it
        makes the span the current one there.

        Args:
            item_id: The id of the item.
            attempt: The number of the attempt.
            job: The name of the job, if it has one.
            pushed: The value of the job, to which `inject` has added the span of its push: the span
                of the job is a child of that one.
        """
        span = _using(_TRACE, self._begun, item_id, attempt, job, pushed)
        return _NO_SPAN if span is None else _opened(span)

    def _begun(self, item_id: str, attempt: int, job: str, pushed: Mapping[str, Any] | None) -> Any:
        """Return a new span; `None` if the program has set no provider of traces."""
        trace = _module(_TRACE)
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
        return span if span.get_span_context().is_valid else None
