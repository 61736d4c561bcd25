"""A job is pushed once for each unique key, by its arguments, and for as long as it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest

from fdbqueue.jobs import App, InvalidArguments
from fdbqueue.jobs.arguments import Arguments


def test_a_job_may_be_unique_by_its_arguments(app: App, name: str) -> None:
    @app.job(queue=name, name="report", unique=True)
    def report(month: date, *pages: int, user: str = "ada", **more: Any) -> None: ...

    @app.job(queue=name, name="other", unique=True)
    def other(month: date) -> None: ...

    @app.job(
        queue=name, name="report 2", unique=lambda month, note="a": f"{month:%Y}" if note else None
    )
    def yearly(month: date, note: str = "a") -> None: ...

    month = date(2030, 1, 1)
    first = report.push(month, user="bob", b=1, a=2)
    assert not report.push(month=month, a=2, b=1, user="bob").is_new
    assert report.push(month, user="bob", b=1, a=2).id == first.id
    for different in (
        report.push(month),
        report.push(month, 1),
        report.push(date(2030, 1, 2), user="bob", b=1, a=2),
        other.push(month),
        yearly.push(month),
        *yearly.push_many([yearly.bind(month, "")] * 2),
        report.using(unique=False).push(month),
        report.using(unique="k").push(month),
        report.using(queue=f"{name} 2").push(month),
    ):
        assert different.is_new
    assert not yearly.push(date(2030, 5, 1), note="the same year").is_new
    assert not other.using(unique="k").push(month).is_new  # a key of one's own is shared by jobs
    info = first.info()
    assert str(info.unique).startswith("report ")


class Number(IntEnum):
    """A number with a name."""

    ONE = 1


@dataclass
class Order:
    """A value with a number and a set."""

    total: Decimal
    tags: frozenset[str] = frozenset()


class Post(pydantic.BaseModel):
    """A model with a set."""

    tags: set[int]


UNSET = object()
PARIS = ZoneInfo("Europe/Paris")
EAST, FAR_EAST = (timezone(timedelta(hours=hours)) for hours in (1, 2))
FOLD = datetime(2030, 10, 27, 2, 30, tzinfo=PARIS)
SET, SAME_SET = {0, 8}, {8, 0}
assert [*SET] != [*SAME_SET]
INSTANT = datetime(2030, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "one", "two", "are_equal"),
    [
        (Any, 1, 1.0, True),
        (Any, 10**20, 10**20 + 1, False),
        (Any, 1, Number.ONE, True),
        (Any, 1, True, False),
        (Any, 1, "1", False),
        (Any, {"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, True),
        (Any, [1, 2], [2, 1], False),
        (Decimal, Decimal(1), Decimal("1.0"), True),
        (Decimal, Decimal("1E+999999"), Decimal("1E+999998"), False),
        (Decimal, Decimal("0.1"), Decimal("0.10000000000000000000000000000000000001"), False),
        (list[Order], [Order(Decimal(1))], [Order(Decimal("1.0"), frozenset())], True),
        (Order, Order(Decimal(1), frozenset("ab")), Order(Decimal(1), frozenset("ba")), True),
        (datetime, INSTANT, datetime(2030, 7, 1, 14, tzinfo=PARIS), True),
        (datetime, INSTANT, INSTANT.replace(tzinfo=None), False),
        (dict[datetime, int], {INSTANT: 1}, {INSTANT.astimezone(PARIS): 1}, True),
        (datetime, FOLD, FOLD.replace(fold=1), False),
        (datetime, datetime.min.replace(tzinfo=EAST), datetime.min.replace(tzinfo=FAR_EAST), False),
        (time, time(8, tzinfo=UTC), time(9, tzinfo=EAST), True),
        (Iterable[int], (1, 2), [1, 2], True),
        # Whatever the order of sets, which other processes have in another one.
        (set[int] | None, SET, SAME_SET, True),
        (Iterable[int], SET, SAME_SET, True),
        (Post, Post(tags=SET), Post(tags=SAME_SET), True),
        (set[frozenset[int]], {frozenset(SET)}, {frozenset(SAME_SET)}, True),
        (tuple[int, ...] | None, None, (), False),
    ],
)
def test_equal_arguments_have_one_key(kind: Any, one: Any, two: Any, are_equal: bool) -> None:
    def job(x: Any) -> None: ...

    job.__annotations__["x"] = kind
    arguments = Arguments("job", job)
    keys = {arguments.key_of(*arguments.encode((value,), {})) for value in (one, two)}
    assert (len(keys) == 1) is are_equal


def test_a_default_has_the_same_key_whether_it_is_given_or_left_out(app: App, name: str) -> None:
    @app.job(queue=name, name="mail", unique=True)
    def mail(
        user: int, ratio: float = 1, tags: frozenset[str] = frozenset("ab"), no: Any = UNSET
    ) -> None: ...

    assert mail.push(3).is_new
    assert not mail.push(3, tags=frozenset("ba"), ratio=1.0).is_new
    assert mail.push(3, no=None).is_new  # its default is no value that a call can pass
    assert mail.push(3, ratio=2).is_new

    later = App(app.db)

    @later.job(queue=name, name="mail", unique=True)
    def mail_with_more(user: int, copies: int = 1) -> None: ...

    assert not mail_with_more.push(3).is_new


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"unique_for": "1h"}, "unique_for needs a key"),
        ({"unique": True, "unique_for": "1h", "unique_until": "claimed"}, "not both"),
        ({"unique": True, "unique_until": "start"}, "one of 'claimed', 'ended', not 'start'"),
        ({"unique": ""}, "unique is text"),
        ({"unique": 7}, "unique is a key, True, or a function"),
    ],
)
def test_a_wrong_scope_is_refused_where_it_is_given(app: App, wrong: Any, error: str) -> None:
    @app.job(queue="never created")
    def job(n: int) -> None: ...

    for use in (app.job, job.using):
        with pytest.raises((TypeError, ValueError), match=error):
            use(**wrong)
    with pytest.raises(ValueError, match="unique is text of 1 to 255 bytes"):
        job.using(unique=lambda n: n).push(0)


def test_a_declaration_and_using_take_the_same_options(app: App, name: str) -> None:
    @app.job(queue=name, delay="1h", ttl="2h", cost=2, group=lambda site: site)
    def build(site: str) -> None: ...

    declared: Any = build.push("a.example").info()
    assert (declared.state, declared.group) == ("delayed", "a.example")
    assert declared.expires_at is not None
    by_site = build.using(unique=lambda site: site, unique_for="1h", delay=0, group="builds")
    first, again, other = map(by_site.push, ("a.example", "a.example", "b.example"))
    assert (first.is_new, again.is_new, other.is_new) == (True, False, True)
    changed: Any = first.info()
    assert (changed.state, changed.group) == ("ready", "builds")


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
    with pytest.raises(ValueError, match="cost"):
        send.using(cost=0)
