"""Arguments and results survive JSON, by their annotations, and wrong ones are refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue.jobs.arguments import Arguments
from fdbqueue.jobs.errors import InvalidArguments, UndecodableArguments, UnsupportedAnnotation
from fdbqueue.queue.arguments import validate_json


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Other:
    id: UUID


class Address(TypedDict):
    street: str
    since: date


class Point(NamedTuple):
    x: int
    y: int


class User(pydantic.BaseModel):
    name: str
    born: date


Number = Annotated[float, st.floats(allow_nan=False, allow_infinity=False)]
Money = Annotated[Decimal, st.decimals(allow_nan=False, allow_infinity=False)]
Moment = Annotated[datetime, st.datetimes(timezones=st.sampled_from([None, UTC]))]
Json = Annotated[
    Any,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda values: st.lists(values) | st.dictionaries(st.text(), values),
        max_leaves=4,
    ),
]


@dataclass
class Order:
    id: UUID
    total: Money
    placed: Moment
    lines: list[tuple[str, int]] = field(default_factory=list)
    note: str | None = None


def typed(annotation: Any) -> Arguments:
    """Return the arguments of a job with one parameter, and a result, of a type."""

    def job(x: Any) -> None: ...

    job.__annotations__ = {"x": annotation, "return": annotation}
    if annotation is None:
        job.__annotations__.clear()
    return Arguments("typed", job)


KINDS: list[Any] = [bool, int, Number, str, bytes, Moment, date, time, timedelta, UUID, Money]
KINDS += [Color, Annotated[Path, st.builds(Path, st.text("a/.", min_size=1))], Json]
KINDS += [Order, Address, Point, User, set[int], dict[date, Money], int | str | None]
KINDS += [Literal["a", "b"]]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_arguments_and_results_survive_json_with_their_types(kind: Any, data: Any) -> None:
    value, arguments = data.draw(st.from_type(kind)), typed(kind)
    (again,), _ = arguments.decode(*json.loads(json.dumps(arguments.encode((value,), {}))))
    assert (again, type(again)) == (value, type(value))
    stored = json.loads(json.dumps(arguments.encode_result(value)))
    assert arguments.decode_result(stored) == value


def test_the_stored_form_is_what_other_languages_expect() -> None:
    def job(*values: Any, **named: Any) -> None: ...

    def typed(a: datetime, b: timedelta, c: Decimal, d: bytes, e: Color, f: Point) -> None: ...

    moment = datetime(2030, 1, 31, 8, 30, tzinfo=UTC)
    given = moment, timedelta(hours=36), Decimal("1.50"), b"ab", Color.RED, Point(1, 2)
    stored, _ = Arguments("typed", typed).encode(given, {})
    expected = ["2030-01-31T08:30:00Z", "P1DT43200S", "1.50", "YWI=", "red", [1, 2]]
    assert json.loads(json.dumps(stored)) == expected
    assert Arguments("job", job).encode((1, "a"), {"x": [2]}) == ([1, "a"], {"x": [2]})


def send(
    to: str, /, *copies: PurePosixPath, subject: str, when: date | None = None, **x: int
) -> None:
    """Take parameters of each kind."""


SEND = Arguments("mail.send", send)


def test_parameters_of_each_kind_are_converted() -> None:
    given = ("ada", PurePosixPath("/a"), PurePosixPath("b"))
    named = {"subject": "hi", "when": date(2030, 1, 31), "priority": 3, "to": 4}
    stored = SEND.encode(given, named)
    assert stored == (
        ["ada", "/a", "b"],
        {"subject": "hi", "when": "2030-01-31", "priority": 3, "to": 4},
    )
    assert SEND.decode(*stored) == (given, named)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("ada",), {}, "the arguments of the job mail.send: missing a required .*'subject'"),
        ((1,), {"subject": "hi"}, "'to' of the job mail.send: Expected `str`, got `int`: 1"),
        (("ada",), {"subject": "hi", "when": "today"}, "'when'.*Invalid RFC3339 encoded date"),
        (("ada",), {"subject": "hi", "size": True}, "'size'.*Expected `int`, got `bool`"),
        (("ada", object()), {"subject": "hi"}, "'copies'.*object has no JSON form"),
    ],
)
def test_what_does_not_fit_is_refused_at_push(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidArguments, match=message):
        SEND.encode(args, kwargs)
    assert issubclass(InvalidArguments, TypeError)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([], {}, "the arguments of the job mail.send, as stored: missing a required argument"),
        (["ada", 3], {"subject": "a"}, "'copies' of the job mail.send, as stored: "),
    ],
)
def test_what_another_client_stored_wrongly_is_named(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(UndecodableArguments, match=message):
        SEND.decode(args, kwargs)


NAN, INFINITY = float("nan"), float("inf")


class Mixed(Enum):
    """Texts and integers, which msgspec does not support."""

    ONE = 1
    TWO = "two"


class Gift(Order):
    """A subclass of a dataclass."""


class Login(pydantic.BaseModel):
    """A model with what JSON leaves out."""

    token: pydantic.SecretStr = pydantic.SecretStr("")
    hidden: str = pydantic.Field(default="", exclude=True)
    tags: Sequence[str] = ()
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        """Return the number of tags."""
        return len(self.tags)


class Level(Login):
    """A model with one more field."""

    level: int = 3


@dataclass
class Parcel:
    """A dataclass whose equality says nothing."""

    weight: int
    note: str = field(default="", compare=False)
    parts: Sequence[int] = ()
    extra: Any = None
    cost: int = field(default=1, init=False)

    def __eq__(self, other: object) -> bool:
        """Raise an error."""
        raise RuntimeError

    __hash__ = object.__hash__


@dataclass
class Heavy(Parcel):
    """A dataclass with one more field."""

    tons: int = 2


class Liar(str):
    """A text whose own text is another one."""

    def __str__(self) -> str:
        """Return another text."""
        return "another"


class One(IntEnum):
    ONE = 1


PARIS = ZoneInfo("Europe/Paris")
LOGIN = Login(tags=("a", "b"))
SECRET = pydantic.SecretStr("hunter2")
SEEN = Login()
SEEN._seen = 7
NEW_YEAR = datetime(2030, 1, 1)
ODD_ZONE = timezone(timedelta(hours=1, seconds=3))


JSON_CHANGES = "^'x' of the job typed: it comes back from JSON as "
NO_JSON = "^'x' of the job typed: .*cannot be JSON"
NO_NUMBER = "^'x' of the job typed: .*not JSON compliant"


@pytest.mark.parametrize(
    ("annotation", "error", "values"),
    [
        (float, NO_NUMBER, [NAN, INFINITY]),
        (Any, NO_NUMBER, [NAN, {"a": [INFINITY]}]),
        (Any, NO_JSON, [(1,), [{1}], {"a": datetime(2030, 1, 31)}, date(2030, 1, 31), object()]),
        (None, NO_JSON, [(1,), object()]),  # without an annotation
        (Any, "keys .* must be text", [{1: 2}]),
        (list[Any] | None, NO_JSON, [[[date(2030, 1, 31)]], [(1, 2)]]),
        # The JSON form of a value does not pass for the value.
        (date | None, JSON_CHANGES, ["2030-01-31"]),
        (Decimal, JSON_CHANGES, ["1.50"]),
        (list[date], JSON_CHANGES, [[date(2030, 1, 31), "2030-01-31"]]),
        # Parts of a value would be lost.
        (Login, JSON_CHANGES, [Login(token=SECRET), Login(hidden="h"), Level(), SEEN]),
        (User, JSON_CHANGES, [{"name": "ada", "born": "2030-01-31"}]),
        (list[Parcel], JSON_CHANGES, [[Parcel(1), Heavy(1)], [Parcel(1, extra=NEW_YEAR)]]),
        (Address, JSON_CHANGES, [{"street": "Rua", "since": date(2030, 1, 31), "floor": 3}]),
        (dict[int | str, int], JSON_CHANGES, [{1: 1, "1": 2}, {"2": 0, 1: 1}]),
        (datetime, JSON_CHANGES, [datetime(1900, 1, 1, tzinfo=PARIS)]),
        (time, JSON_CHANGES, [time(8, tzinfo=PARIS), time(8, tzinfo=ODD_ZONE)]),
        (float, JSON_CHANGES, [2**53 + 1]),
    ],
)
def test_what_json_would_change_is_refused(annotation: Any, error: str, values: list[Any]) -> None:
    arguments = typed(annotation)
    for value in values:
        with pytest.raises(InvalidArguments, match=error):
            arguments.encode((value,), {})
        if annotation is not None:
            with pytest.raises(InvalidArguments, match="the result of the job typed"):
                arguments.encode_result(value)


def test_an_error_names_the_argument_once_and_tells_no_secret() -> None:
    with pytest.raises(InvalidArguments) as caught:
        typed(list[int]).encode(((["1"]),), {})
    assert str(caught.value) == "'x' of the job typed: Expected `int`, got `str` - at `$[0]`: ['1']"
    with pytest.raises(InvalidArguments) as caught:
        typed(Login).encode((Login(token=SECRET),), {})
    assert "hunter2" not in str(caught.value)


PARCEL = Parcel(1, "fragile", (1, 2), {"a": [None]})
PARCEL.cost = 9


@pytest.mark.parametrize(
    ("annotation", "value", "decoded"),
    [
        (Login, LOGIN, Login(tags=["a", "b"])),
        (Order, Gift(UUID(int=1), Decimal(1), NEW_YEAR), Order(UUID(int=1), Decimal(1), NEW_YEAR)),
        (datetime, datetime(2030, 10, 27, 2, 30, tzinfo=PARIS, fold=1), None),
        (Decimal, 3, Decimal(3)),
        (float | None, 3, 3.0),
        (str, Liar("red"), "red"),
        (Any, [Liar("red")], ["red"]),
        (int, One.ONE, 1),
        (dict[int, One], {One.ONE: One.ONE}, {1: One.ONE}),
        (tuple[date, ...], [date(2030, 1, 31)], (date(2030, 1, 31),)),
        (Iterable[date] | None, (date(2030, 1, 31),), [date(2030, 1, 31)]),
        (list[bytes], [bytearray(b"a")], [b"a"]),
        (Iterable, [1, "a"], [1, "a"]),
        (str | Iterable[str] | None, ("a", "b"), ["a", "b"]),
        (Annotated[Container[int], "any"], {2, 1}, [1, 2]),
        (list[object] | None, [1, "a", [2]], [1, "a", [2]]),
        (Collection[str], frozenset("ba"), ["a", "b"]),
        (list[Sequence[int]], [(1, 2), range(2)], [[1, 2], [0, 1]]),
        (Mapping[str, list[object]], {"a": ["b"]}, {"a": ["b"]}),
    ],
)
def test_what_comes_back_equal_is_accepted(annotation: Any, value: Any, decoded: Any) -> None:
    arguments = typed(annotation)
    stored = arguments.encode((value,), {})
    validate_json(stored[0])  # as it is: the codec of a queue refuses tuples
    (again,), _ = arguments.decode(*json.loads(json.dumps(stored)))
    if isinstance(value, datetime):
        assert again.utcoffset() == value.utcoffset()
        assert again.replace(tzinfo=None) == value.replace(tzinfo=None)
    else:
        assert (again, type(again)) == (decoded, type(decoded))


def test_fields_that_equality_ignores_come_back() -> None:
    arguments = typed(Parcel)
    (again,), _ = arguments.decode(*json.loads(json.dumps(arguments.encode((PARCEL,), {}))))
    assert vars(again) == vars(PARCEL) | {"parts": [1, 2]}


def test_a_decimal_that_is_no_number_comes_back() -> None:
    arguments = typed(Decimal)
    for text in ("NaN", "sNaN", "-Infinity"):
        (again,), _ = arguments.decode(*arguments.encode((Decimal(text),), {}))
        assert str(again) == text


@pytest.mark.parametrize("annotation", [Iterable[int], Iterator[int]])
def test_a_generator_is_refused_and_not_read(annotation: Any) -> None:
    numbers = (number for number in range(3))
    error = "'x' of the job typed: generator can be read only once; make a list of it"
    with pytest.raises(InvalidArguments, match=error):
        typed(annotation).encode((numbers,), {})
    assert next(numbers) == 0


@pytest.mark.parametrize("annotation", [Any, list[list[int]]])
def test_what_is_changed_after_it_was_bound_is_stored_as_it_was(annotation: Any) -> None:
    value = [[1]]
    (stored,), _ = typed(annotation).encode((value,), {})
    value[0].append(2)
    value.append([])
    assert stored == [[1]]


@pytest.mark.parametrize(
    "annotation",
    [date | str, Order | Other, Mixed, "x[", "datetime.nope", "Unknown", "1 / 0"],
)
def test_an_unsupported_annotation_is_named_before_any_value_is_looked_at(annotation: Any) -> None:
    for use in (typed(annotation).encode, typed(annotation).decode):
        for args in ([], ["a"], [object()]):
            with pytest.raises(UnsupportedAnnotation, match="'x' of the job typed: ") as caught:
                use(args, {})
            assert (caught.value.job, caught.value.parameter) == ("typed", "x")

    def result(): ...  # type: ignore[no-untyped-def]  # noqa: ANN202

    result.__annotations__["return"] = annotation
    with pytest.raises(UnsupportedAnnotation, match="the result of the job typed: "):
        Arguments("typed", result).encode((), {})


def test_the_types_that_a_worker_supplies_need_not_resolve() -> None:
    def job(context: NotImported, number: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert Arguments("job", job, skip=1).encode((3,), {}) == ([3], {})


@pytest.mark.parametrize("kind", [Any, list[bytes], dict[str, Any] | list[Any]])
def test_a_value_that_contains_itself_is_refused(kind: Any) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArguments, match="'x' of the job typed: it is nested too deeply"):
        typed(kind).encode((value,), {})
