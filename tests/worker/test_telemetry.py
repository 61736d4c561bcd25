"""Telemetry that raises an error is logged once; jobs, workers and pushes go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest
from opentelemetry import trace
from opentelemetry.trace.propagation import tracecontext

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.jobs import App, Discard, Retry, Snooze
from fdbqueue.worker import telemetry
from tests.support.spans import span_exporter

CALLS = [
    (prometheus_client.Counter, "labels"),
    (trace, "get_tracer"),
    (tracecontext.TraceContextTextMapPropagator, "inject"),
]


def fail(*_: object, **__: object) -> Any:
    raise OSError("no metrics")


@pytest.fixture(autouse=True)
def nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(telemetry, "_failed", set())
    telemetry._module.cache_clear()
    yield
    telemetry._module.cache_clear()


@pytest.mark.parametrize(("where", "name_of_call"), CALLS)
def test_a_call_that_raises_hurts_nothing(
    db: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: Any,
    name_of_call: str,
) -> None:
    monkeypatch.setattr(where, name_of_call, fail)
    app = App(db)
    job: Any = app.job(queue=name, name="job")(lambda: None)
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))):
        job.push()
        job.push()
    assert app.work(name, drain=True) == WorkerReport(done=2)
    told = [each for each in caplog.records if "only its first one" in each.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("library", "error"),
    [("prometheus_client", OSError("broken")), ("opentelemetry.trace", ImportError("broken"))],
)
def test_an_import_that_raises_is_logged_once(
    db: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    library: str,
    error: Exception,
) -> None:
    imported = telemetry.importlib.import_module

    def broken(module: str) -> Any:
        if module == library:
            raise error
        return imported(module)

    monkeypatch.setattr(telemetry.importlib, "import_module", broken)
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, range(3))
    with caplog.at_level(logging.WARNING, "fdbqueue.worker"):
        assert Worker(db, queue, lambda _: None).run(drain=True) == WorkerReport(done=3)
    assert caplog.text.count("only its first one is logged") == 1


def test_metrics_and_spans_have_the_names_of_jobs_and_all_outcomes(db: Any, name: str) -> None:
    app = App(db)
    errors = {"snoozed": Snooze("1h"), "discarded": Discard(), "dead": OSError(), "done": None}

    @app.job(queue=name, name="end", retry=Retry(attempts=1))
    def end(outcome: str) -> None:
        if (error := errors[outcome]) is not None:
            raise error

    exporter, ids = span_exporter(), {outcome: end.push(outcome).id for outcome in errors}
    app.work(name, drain=True)
    PriorityQueue.named(db, f"{name}items").push(db, "an item without a job")
    Worker(db, PriorityQueue.named(db, f"{name}items"), print).run(drain=True)
    text = prometheus_client.generate_latest().decode()
    assert f'fdbqueue_jobs_total{{job="",outcome="done",queue="{name}items"}} 1.0' in text
    for outcome in errors:
        labels = f'{{job="end",outcome="{outcome}",queue="{name}"}}'
        assert f"fdbqueue_jobs_total{labels} 1.0" in text
    spans = [each for each in exporter.get_finished_spans() if each.name == f"process {name}"]
    attributes: list[Any] = [span.attributes for span in spans]
    assert {each["messaging.operation.type"] for each in attributes} == {"process"}
    by_id = {of["messaging.message.id"]: span for of, span in zip(attributes, spans)}
    assert by_id.keys() == {*ids.values()}
    assert by_id[ids["done"]].status.status_code.name == "UNSET"
    assert by_id[ids["dead"]].status.status_code.name == "ERROR"
