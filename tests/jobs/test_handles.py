"""Handles of jobs are results of steps, arguments and results, and come back as handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import PriorityQueue, TaskQueue, aio
from fdbqueue.jobs import App, Context, Handle, InvalidArguments, Retry


class Mails:
    """A job, and jobs that push it in a step in each way; each runs twice."""

    def __init__(self, app: App, name: str) -> None:
        self.app, self.name = app, name

        @app.job(queue=f"{name} mail", name="mail")
        def mail(to: str) -> str:
            return f"to {to}"

        self.mail = mail

    def twice(self, step: Callable[[Context], Any]) -> Any:
        """Return what a step returns in the first run of its job, and again in the second."""
        runs: list[Any] = []

        @self.app.job(queue=self.name, name="order", retry=Retry(first=0, jitter=0))
        def order(context: Context) -> None:
            runs.append(step(context))
            if len(runs) == 1:
                raise OSError

        handle = order.push()
        while len(runs) < 2:
            assert handle.state() not in ("dead", "done"), handle.info()
            self.app.work(self.name, drain=True)
        assert runs[0] == runs[1]
        return runs[1]

    def results(self, *handles: Handle[str]) -> list[str]:
        """Run the jobs, and return the results of handles."""
        self.app.work(f"{self.name} mail", drain=True)
        return [handle.result() for handle in handles]


@pytest.fixture
def mails(app: App, name: str) -> Mails:
    return Mails(app, name)


@pytest.mark.parametrize(
    "step",
    [
        lambda mail, context: context.step("mail", mail.push, "ada"),
        lambda mail, context: context.step("mail", partial(mail.using(priority=1).push, "ada")),
        lambda mail, context: context.step("mail", mail.push_many, [mail.bind("ada")])[0],
        lambda mail, context: context.step("mail", lambda: {"a": [mail.push("ada")]})["a"][0],
        lambda mail, context: context.commit("mail", lambda tr: mail.using(tr).push("ada")),
    ],
)
def test_handles_come_back_from_each_kind_of_step(mails: Mails, step: Any) -> None:
    handle = mails.twice(partial(step, mails.mail))
    assert isinstance(handle, Handle)
    assert mails.results(*{handle, handle}) == ["to ada"]
    assert mails.app.queue(f"{mails.name} mail").stats(mails.app.db).done == 1


def test_a_step_may_push_an_item_to_a_queue(mails: Mails, name: str) -> None:
    db = mails.app.db
    queue, tasks = PriorityQueue.named(db, f"{name} items"), TaskQueue.named(db, f"{name} tasks")

    def run(context: Context) -> Any:
        return [
            context.step("push", queue.push, db, {"a": 1}, ttl="1h", group="g", unique="k"),
            context.commit("commit", queue.push, {"b": 1}),
            *context.step("many", queue.push_many, db, [1]),
            context.step("task", tasks.push, db, priority=1, payload={"c": 1}),
        ]

    *items, task = mails.twice(run)
    assert {item.id for item in items} == {item.id for item in queue.peek_many(db, 9)}
    assert task == tasks.peek(db).id


def test_a_handle_is_an_argument_and_a_result_also_of_a_coroutine_and_its_steps(
    mails: Mails, name: str
) -> None:
    @mails.app.job(queue=name, name="follow")
    async def follow(context: Context, mail: Handle[str], untyped=None) -> list[Handle[str]]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        one = await context.aio.step("one", aio.run, mails.mail.push, "eve")
        return [mail, untyped, one]

    handle = follow.push(mails.mail.push("ada"), mails.mail.push("bob"))
    mails.app.work(name, drain=True)
    assert mails.results(*handle.result()) == ["to ada", "to bob", "to eve"]


def test_a_handle_of_another_app_and_what_looks_like_stored_handles_are_refused(
    mails: Mails, name: str
) -> None:
    @App(mails.app.db).job(queue=name, name="other")
    def stranger() -> None: ...

    @mails.app.job(queue=name)
    def take(value: Any) -> None: ...

    for value, message in (
        (stranger.push(), r"'value' .* 'other', which the app does not declare"),
        ({"fdbqueue.handles": 1}, "'value' of the job"),
        ({"fdbqueue.handles": {}, "b": 1}, "'value' of the job"),
    ):
        with pytest.raises(InvalidArguments, match=message):
            take.push(value)


@pytest.mark.parametrize("way", ["step", "commit"])
def test_a_result_of_a_step_that_cannot_be_stored_names_the_step(
    app: App, name: str, way: str
) -> None:
    """At once: another attempt would repeat the work in vain."""

    def wrong(*_: object) -> int:
        return "three"  # type: ignore[return-value]

    def large(*_: object) -> str:
        return 100_000 * "x"

    @app.job(queue=name)
    def order(context: Context, number: int) -> None:
        function: Any = [lambda *_: {1, 2}, wrong, large][number]
        getattr(context, way)("connect", function)

    handles = [order.push(number) for number in range(3)]
    app.work(name, drain=True)
    errors = [str(info.error) for handle in handles if (info := handle.info())]
    assert [handle.state() for handle in handles] == ["dead"] * 3
    assert all("the result of the step connect: " in error for error in errors[:2]), errors
    assert "a value of type set cannot be JSON" in errors[0]
    assert "Expected `int`, got `str`" in errors[1]
    assert "100,002 bytes" in errors[2]
    assert app.queue(name).steps.all(app.db, handles[0].id) == []
