"""`fdbq signal`, the steps in `fdbq show`, and `fdbq retry --step`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fdbqueue.jobs import App, Context, Dead
from tests.support.shell import Shell, error_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'db'}"


@pytest.fixture
def fdbq(tmp_path: Path, url: str) -> Shell:
    return Shell(tmp_path, url)


@pytest.fixture
def app(url: str) -> App:
    app = App(url)

    @app.job(queue="orders", name="fulfil")
    def fulfil(context: Context, order: str) -> str:
        context.step("charge", order.upper)
        tracking = context.wait("shipped", key=order).value
        if tracking == "lost":
            raise Dead("the parcel is lost")
        return str(tracking)

    return app


def test_a_waiting_job_is_shown_and_goes_on_with_a_signal(fdbq: Shell, app: App) -> None:
    handle = app.jobs["fulfil"].push("order 7")
    app.work(drain=True)
    charge, shipped = fdbq.output("show", "orders", handle.id).splitlines()[-2:]
    assert charge.startswith("step 'charge', step done, 20")
    assert charge.endswith('"ORDER 7"')
    assert shipped == "step 'shipped', wait waiting, key 'order 7'"
    (shown,) = map(json.loads, fdbq.output("show", "orders", handle.id, "--json").splitlines())
    assert [step["state"] for step in shown["steps"]] == ["done", "waiting"]

    signal = ("signal", "orders", "shipped", '"1Z999"', "--key", "order 7")
    assert fdbq.output(*signal) == "1 job waited for it\n"
    assert json.loads(fdbq.output(*signal, "--json")) == {"signalled": 0}
    app.work(drain=True)
    assert handle.result() == "1Z999"


def test_a_dead_letter_goes_on_from_a_step(fdbq: Shell, app: App) -> None:
    handle = app.jobs["fulfil"].push("order 7")
    fdbq.output("push", "orders", "1")
    fdbq.output("signal", "orders", "shipped", '"lost"', "--key", "order 7")
    app.work(drain=True)
    assert handle.state() == "dead"
    done = fdbq("retry", "orders", handle.id, "--step", "nope")
    assert done.returncode == 1
    assert "takes one ID" in error_of(fdbq("retry", "orders", "--state", "dead", "--step", "a"))
    fdbq.output("retry", "orders", handle.id, "--step", "shipped")
    fdbq.output("signal", "orders", "shipped", '"found"', "--key", "order 7")
    app.work(drain=True)
    assert handle.result() == "found"


def test_the_failure_of_another_job_is_no_failure_of_the_step(fdbq: Shell, app: App) -> None:
    @app.job(queue="orders", name="broken")
    def broken() -> None:
        raise Dead("no disk")

    @app.job(queue="orders")
    def parent(context: Context) -> None:
        context.run("child", broken)

    handle = parent.push()
    app.work(drain=True)
    lines = fdbq.output("show", "orders", handle.id).splitlines()
    (step,) = (line for line in lines if line.startswith("step 'child', run failed, 20"))
    assert step.endswith("+00:00, Dead: no disk")


def test_mistakes(fdbq: Shell) -> None:
    fdbq.output("push", "orders", "1")
    assert "not JSON" in error_of(fdbq("signal", "orders", "shipped", "{"))
    assert "text of 0 to 255" in error_of(fdbq("signal", "orders", "a", "--key", "x" * 300))
    assert "nope" in error_of(fdbq("signal", "nope", "shipped"))


def test_a_job_that_no_worker_knows_says_so_and_is_retried_by_its_name(
    fdbq: Shell, app: App
) -> None:
    item = app.queue("orders").push(app.db, {"job": "shop.send"})
    app.work("orders", drain=True)
    why = "no worker knows the job 'shop.send'"
    shown = fdbq.output("show", "orders", item.id)
    assert ["waits_for", why] in [line.split(maxsplit=1) for line in shown.splitlines()]
    assert "Nobody works on this queue." in shown
    assert why in fdbq.output("items", "orders", "--state", "delayed")
    assert fdbq.output("ls").splitlines()[1].endswith("  1 unknown job")
    assert re.search("unknown_jobs +1\n", fdbq.output("stats", "orders"))
    assert json.loads(fdbq.output("stats", "orders", "--json"))["unknown_jobs"] == 1
    fdbq.output("pause", "orders")
    assert "orders (paused, 1 unknown job) " in fdbq.output("top", "-n", "1")
    fdbq.output("resume", "orders")
    assert json.loads(fdbq.output("show", "orders", item.id, "--json"))["waits_for"]["why"] == why
    retried = fdbq.output("retry", "orders", "--state", "delayed", "--job", "send")
    assert retried == "1 retried\n"
