"""Telemetry that raises an error is logged once; jobs, workers and pushes go on."""

from __future__ import annotations

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

CALLS = {
    "metrics": (prometheus_client.Counter, "labels"),
    "spans": (trace, "get_tracer"),
    "propagation": (tracecontext.TraceContextTextMapPropagator, "inject"),
    "import": (telemetry.importlib, "import_module"),
}


def fail(*_: object, **__: object) -> Any:
    raise ImportError("broken")


@pytest.fixture(autouse=True)
def nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(telemetry, "_failed", set())
    telemetry._module.cache_clear()
    yield
    telemetry._module.cache_clear()


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_raises_hurts_nothing_and_is_logged_once(
    db: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    monkeypatch.setattr(*CALLS[what], fail)
    app = App(db)
    job: Any = app.job(queue=name, name="job")(lambda: None)
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))):
        job.push()
        job.push()
    assert app.work(name, drain=True) == WorkerReport(done=2)
    told = [each for each in caplog.records if "only its first one" in each.getMessage()]
    assert len(told) == (2 if what == "import" else 1)  # once for each library


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
