"""The log of workers; metrics for Prometheus and traces for OpenTelemetry, if installed.

An error of a library is logged the first time, and stops nothing.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue.database.binding import Guard
from fdbqueue.errors import error_text

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

_T = TypeVar("_T")

_TRACE = "opentelemetry.trace"


class Log(_Adapter):
    """A logger that raises nothing: errors of its filters and handlers go to standard error."""

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
_failed: set[str] = set()


def _using(library: str, function: Callable[..., _T], *args: Any) -> _T | None:
    """Call `function(module, ...)`; return `None` without the library, or after an error."""
    try:
        module = _module(library)
        return None if module is None else function(module, *args)
    except Exception as error:
        if library not in _failed:
            _failed.add(library)
            text = "%s raised an error, and only its first one is logged: %s"
            _log.warning(text, library.partition(".")[0], error_text(error), exc_info=True)
        return None


@cache
def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@cache
def _metrics(prometheus: Any) -> tuple[Any, Any]:
    labels = ["queue", "job", "outcome"]
    return (
        prometheus.Counter("fdbqueue_jobs", "Attempts that ended, by outcome.", labels),
        prometheus.Histogram("fdbqueue_job_seconds", "Duration of attempts in seconds.", labels),
    )


def _propagator() -> Any:
    return _module(f"{_TRACE}.propagation.tracecontext").TraceContextTextMapPropagator()


def inject(value: dict[str, Any]) -> None:
    """Add the current span of OpenTelemetry, if there is one, to the value of a job."""
    if _TRACE in sys.modules:  # or else the program has no span
        _using(_TRACE, _inject, value)


def _inject(_: object, value: dict[str, Any]) -> None:
    _propagator().inject(value)


def _extracted(value: Mapping[str, Any]) -> Any:
    fields = {name: value.get(name) for name in ("traceparent", "tracestate")}
    carrier = {name: text for name, text in fields.items() if isinstance(text, str)}
    return _propagator().extract(carrier)


def count(queue: str, job: str, outcome: str, seconds: float) -> None:
    """Count an attempt that ended, in the default registry of `prometheus_client`."""
    _using("prometheus_client", _count, (queue, job, outcome), seconds)


def _count(prometheus: Any, labels: tuple[str, ...], seconds: float) -> None:
    with _guard:  # two of the same name would be an error
        jobs, durations = _metrics(prometheus)
    jobs.labels(*labels).inc()
    durations.labels(*labels).observe(seconds)


def span(
    queue: str, item_id: str, attempt: int, job: str = "", pushed: Mapping[str, Any] | None = None
) -> AbstractContextManager[None]:
    """Open a span for one job, and make it current.

    Its parent is the span that `inject` has added to `pushed`, the value of the job.
    """
    current = _using(_TRACE, _entered, queue, item_id, attempt, job, pushed or {})
    return nullcontext() if current is None else _left(current)


def _entered(
    trace: Any, queue: str, item_id: str, attempt: int, job: str, pushed: Mapping[str, Any]
) -> AbstractContextManager[object] | None:
    attributes: dict[str, Any] = {
        "messaging.system": "fdbqueue",
        "messaging.destination.name": queue,
        "messaging.operation.type": "process",
        "messaging.message.id": item_id,
        "fdbqueue.attempt": attempt,
    }
    if job:
        attributes["fdbqueue.job"] = job
    span = trace.get_tracer("fdbqueue").start_span(
        f"process {queue}",
        context=_extracted(pushed) if "traceparent" in pushed else None,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    )
    if not span.get_span_context().is_valid:
        return None
    current: AbstractContextManager[object] = trace.use_span(span, end_on_exit=True)
    current.__enter__()
    return current


@contextmanager
def _left(current: AbstractContextManager[object]) -> Generator[None]:

    def leave(_: object, *raised: Any) -> bool:
        try:
            return bool(current.__exit__(*raised))
        except Exception:
            raise
        except BaseException as error:  # of a method of the error that ends the block
            raise RuntimeError("the error of a job cannot be recorded") from error

    with ExitStack() as stack:
        stack.push(partial(_using, _TRACE, leave))
        yield
