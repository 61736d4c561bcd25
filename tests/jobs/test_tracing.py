"""The span of a job continues the trace of the span that has pushed it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from fdbqueue import Transaction, aio, transactional
from fdbqueue.jobs import App
from tests.support.spans import span_exporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer() -> trace.Tracer:
    span_exporter()
    return trace.get_tracer("program")


def spans_of(name: str) -> list[ReadableSpan]:
    """Return the spans of the jobs of a queue, in the order in which they ended."""
    spans = span_exporter().get_finished_spans()
    return [span for span in spans if span.name == f"process {name}"]


@pytest.mark.parametrize("way", ["push_many", "transaction", "asyncio"])
def test_a_job_belongs_to_the_trace_of_its_push(
    app: App, name: str, tracer: trace.Tracer, way: str
) -> None:
    def plain() -> None:
        with tracer.start_as_current_span(f"part of {name}"):
            pass

    def body(tr: Transaction) -> None:
        plain()

    work: Any = app.job(queue=name, name="work")(body if way == "transaction" else plain)
    with tracer.start_as_current_span("request") as request:
        if way == "push_many":
            work.push_many([work.bind()])
        elif way == "asyncio":
            asyncio.run(aio.run(work.push))
        else:
            transactional(lambda tr: work.using(tr).push())(app.db)
    work.push()
    first, second = (item.value for item in app.queue(name).items(app.db))
    assert {*first} - {*second} == {"traceparent"}  # nothing is stored without a span
    app.work(drain=True)
    continued, alone = sorted(spans_of(name), key=lambda span: span.parent is None)
    assert continued.parent.span_id == request.get_span_context().span_id
    assert continued.context.trace_id == request.get_span_context().trace_id
    assert dict(continued.attributes or {})["fdbqueue.job"] == "work"
    assert alone.parent is None
    parts = [s for s in span_exporter().get_finished_spans() if s.name == f"part of {name}"]
    assert {part.parent.span_id for part in parts} == {
        continued.context.span_id,
        alone.context.span_id,
    }


@pytest.mark.parametrize(
    ("fields", "is_child"),
    [
        ({"traceparent": PARENT, "tracestate": 5}, True),
        ({"traceparent": 5, "tracestate": "vendor=1"}, False),
    ],
)
def test_every_client_can_say_which_span_has_pushed_a_job(
    app: App, name: str, tracer: trace.Tracer, fields: dict[str, Any], is_child: bool
) -> None:
    app.job(queue=name, name="work")(lambda: None)
    app.queue(name).push(app.db, {"job": "work", **fields})
    assert app.work(drain=True).done == 1
    (span,) = spans_of(name)
    assert is_child == (span.parent is not None)
    if span.parent is not None:
        assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" in PARENT


def test_a_push_imports_neither_telemetry_nor_a_server_nor_pydantic() -> None:
    program = """
import sys, fdbqueue
print(*[name for name in sys.modules if name.startswith("fdbqueue.jobs")])
from fdbqueue.jobs import App
app = App("memory:")
@app.job()
def work() -> None: ...
work.push()
print(*{"opentelemetry", "prometheus_client", "http.server", "pydantic"} & {*sys.modules})
app.work(drain=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n\n", "")
