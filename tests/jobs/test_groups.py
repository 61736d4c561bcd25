"""Jobs in groups: each group gets its share of the workers."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue.jobs import InvalidArguments


def test_jobs_of_groups_share_the_worker(db: Any, name: str) -> None:
    app = fdbqueue.App(db)
    ran: list[str] = []

    @app.job(name="send", queue=f"{name}mail", group=lambda to, **_: to)
    def send(to: str, *, subject: str = "hi") -> None:
        ran.append(to)

    send.push_many([send.bind("ada") for _ in range(20)])
    send.push("bob", subject="late")
    send.using(group="vip").push("eve")
    app.work(drain=True, concurrency=1)
    assert len(ran) == 22
    assert {"bob", "eve"} <= {*ran[:4]}


def test_wrong_arguments_reach_neither_the_group_nor_the_unique_key(db: Any, name: str) -> None:
    app = fdbqueue.App(db)

    def of(user: dict[str, str]) -> str:
        return user["id"]

    @app.job(name="grouped", queue=f"{name}jobs", group=of)
    def grouped(user: dict[str, str]) -> None: ...

    @app.job(name="unique", queue=f"{name}jobs", unique=of)
    def unique(user: dict[str, str]) -> None: ...

    for job in (grouped, unique):
        send: Any = job
        for args in ((7,), ({"id": 7},), ()):
            with pytest.raises(InvalidArguments):
                send.push(*args)


def test_a_job_counts_by_its_cost(db: Any, name: str) -> None:
    app = fdbqueue.App(db)

    @app.job(name="work", queue=f"{name}jobs", group=str)
    def work(of: str) -> None: ...

    @app.job(name="end", queue=f"{name}ends")
    def end(*, done: int, dead: int, cancelled: int) -> None: ...

    work.using(cost=3).push_many([work.bind("ada") for _ in range(8)])
    with app.batch(then=end) as batch:
        for _ in range(8):
            batch.push(work.using(cost=1), "bob")
    queue: Any = app.queue(f"{name}jobs")
    begun = [queue.claim(db).item.value["args"] for _ in range(8)]
    assert (begun.count(["ada"]), begun.count(["bob"])) == (2, 6)
    with pytest.raises(ValueError, match="cost"):
        work.using(cost=0)


def test_a_group_of_a_job_is_a_name_or_a_function(db: Any, name: str) -> None:
    app = fdbqueue.App(db)
    with pytest.raises(ValueError, match="a group is text"):
        app.job(queue=f"{name}jobs", group="")

    @app.job(queue=f"{name}jobs", group=lambda: 5)
    def run() -> None: ...

    with pytest.raises(ValueError, match="a group is text"):
        run.push()
