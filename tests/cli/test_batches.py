"""`fdbq batch`: how far the batches of a job are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fdbqueue.jobs import App, Context
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

    @app.job(queue="mail", name="send")
    def send(address: str) -> str:
        return address

    @app.job(queue="reports", name="report")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    @app.job(queue="pages", name="publish")
    def publish(context: Context) -> None:
        context.run("cover", send, "ada")

    return app


def only_item(app: App, queue: str) -> str:
    (item,) = app.queue(queue).items(app.db)
    return item.id


def test_a_batch_is_shown_from_the_job_at_its_end_and_from_each_of_its_jobs(
    fdbq: Shell, app: App
) -> None:
    with app.batch(then=app.jobs["report"]) as batch:
        batch.push(app.jobs["send"], "ada")
        batch.flush()
        line = "open: 1 job, 0 done, 0 dead, 0 cancelled, 1 left"
        assert fdbq.output("batch", "reports", batch.id) == f"{line}\n"
    line, job = line.replace("open", "closed"), only_item(app, "mail")
    assert fdbq.output("batch", "mail", job) == f"{line}; then {batch.id} in reports\n"
    shown = json.loads(fdbq.output("batch", "mail", job, "--json"))
    assert (shown["kind"], shown["queue"], shown["id"]) == ("then", "reports", batch.id)
    assert (shown["pushed"], shown["left"], shown["is_member"]) == (1, 1, True)
    assert re.search("^in_batch +yes$", fdbq.output("show", "mail", job), re.M)
    app.work("mail", drain=True)
    line = "ended: 1 job, 1 done, 0 dead, 0 cancelled, 0 left"
    assert fdbq.output("batch", "reports", batch.id) == f"{line}\n"


def test_a_batch_that_was_left_open_is_closed(fdbq: Shell, app: App) -> None:
    batch = app.batch(then=app.jobs["report"])
    batch.push(app.jobs["send"], "ada")
    batch.flush()
    app.work("mail", drain=True)
    line = "ended: 1 job, 1 done, 0 dead, 0 cancelled, 0 left\n"
    for _ in range(2):
        assert fdbq.output("batch", "reports", batch.id, "--close") == line
    assert batch.handle.state() == "ready"
    item = app.queue("mail").push(app.db, 1)
    assert "there is no batch" in error_of(fdbq("batch", "mail", item.id, "--close"))


def test_what_waits_for_a_job_is_named(fdbq: Shell, app: App) -> None:
    parent = app.jobs["publish"].push()
    app.work("pages", drain=True)
    line = fdbq.output("batch", "mail", only_item(app, "mail"))
    assert line.endswith(f"1 left; for step 'cover' of {parent.id} in pages\n")
    before = app.jobs["send"].push("ada")
    after = app.jobs["send"].using(after=[before]).push("bob")
    line = fdbq.output("batch", "mail", before.id)
    assert line.endswith(f"1 left; before {after.id} in mail\n")
    assert fdbq.output("batch", "mail", after.id).endswith("1 left\n")


def test_mistakes(fdbq: Shell) -> None:
    item = fdbq.output("push", "mail", "1", "--json")
    done = fdbq("batch", "mail", json.loads(item)["id"])
    assert done.returncode == 1
    assert "has no item" in done.stderr
    assert "no queue named 'nope'" in error_of(fdbq("batch", "nope", "nope"))
    assert "not the id of an item" in error_of(fdbq("batch", "mail", "nope"))
