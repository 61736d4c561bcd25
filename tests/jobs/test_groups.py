"""Jobs in groups: each group gets its share of the workers."""

from __future__ import annotations

import pytest

from fdbqueue.jobs import App, InvalidArguments


def test_jobs_of_groups_share_the_worker(app: App, name: str) -> None:
    ran: list[str] = []

    @app.job(queue=name, group=lambda to, **_: to)
    def send(to: str, *, subject: str = "hi") -> None:
        ran.append(to)

    send.push_many([send.bind("ada") for _ in range(20)])
    send.push("bob", subject="late")
    send.using(group="vip").push("eve")
    app.work(drain=True, concurrency=1)
    assert len(ran) == 22
    assert {"bob", "eve"} <= {*ran[:4]}


def test_a_job_counts_by_its_cost(app: App, name: str) -> None:
    @app.job(queue=name, group=str)
    def work(of: str) -> None: ...

    work.using(cost=3).push_many([work.bind("ada") for _ in range(8)])
    work.using(cost=1).push_many([work.bind("bob") for _ in range(8)])
    claims = [app.queue(name).claim(app.db) for _ in range(8)]
    begun = [claim.item.value["args"] for claim in claims if claim is not None]
    assert (begun.count(["ada"]), begun.count(["bob"])) == (2, 6)
    with pytest.raises(ValueError, match="cost"):
        work.using(cost=0)


@pytest.mark.parametrize("option", ["group", "unique"])
def test_a_function_of_the_arguments_gets_no_wrong_ones_and_must_return_text(
    app: App, name: str, option: str
) -> None:
    options: dict[str, object] = {option: lambda user: user["id"]}

    @app.job(queue=name, **options)
    def send(user: dict[str, str]) -> None: ...

    for args in ((7,), ({"id": 7},), ()):
        with pytest.raises(InvalidArguments):
            send.push(*args)
    with pytest.raises(ValueError, match="is text"):
        send.push({"id": ""})
    with pytest.raises(ValueError, match="is text"):
        send.using(**{option: ""})
