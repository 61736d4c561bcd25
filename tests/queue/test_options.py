"""HTTP, `fdbq` and the reference have the options that `fdbqueue.options` declares."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files
from typing import Any

import pytest
from fdbq.limit import FLAGS

import fdbqueue
from fdbqueue import options
from fdbqueue.http import create_app
from fdbqueue.options import (
    Filters,
    GroupSettings,
    PushManyOptions,
    PushOptions,
    QueueSettings,
    ScheduleOptions,
    TaskOptions,
)
from tests.support.pages import DOCS
from tests.support.shell import commands

DECLARED = [
    each
    for name, each in vars(options).items()
    if hasattr(each, "__total__") and not name.startswith("_")
]

REQUESTS: dict[str, tuple[type, set[str]]] = {
    "post /v1/queues/{}/push": (TaskOptions, set()),
    "put /v1/queues/{}/schedules/{}": (ScheduleOptions, set()),
    "get /v1/queues/{}/items": (Filters, set()),
    "get /v1/queues/{}/count": (Filters, set()),
    "post /v1/queues/{}/change": (Filters, set()),
    "patch /v1/queues/{}": (QueueSettings, {"keep"}),
    "patch /v1/queues/{}/groups/{}": (GroupSettings, set()),
}
"""The options that a request takes, and others of this kind that it has by other names."""

COMMANDS: dict[str, tuple[type, set[str]]] = {
    "push": (PushOptions, set()),
    "task push": (TaskOptions, set()),
    "schedule add": (ScheduleOptions, set()),
    "items": (Filters, set()),
    "limit": (QueueSettings, {"keep", "paused"}),
    "group set": (GroupSettings, {"max_size", "paused"}),
}
"""The options that a command takes, and others of this kind that it has by other names."""


def names_in(schema: Any, schemas: dict[str, Any]) -> set[str]:
    """Return the names of the properties of a schema, and of those that it consists of."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    parts = [part for key in ("anyOf", "allOf", "oneOf") for part in schema.get(key, [])]
    return {*schema.get("properties", {})}.union(*(names_in(part, schemas) for part in parts))


@pytest.fixture(scope="module")
def requests() -> dict[str, set[str]]:
    """Return the names of the fields and of the parameters of each request."""
    openapi = create_app(fdbqueue.open("memory:")).openapi()
    named: dict[str, set[str]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            fields = names_in(body.get("schema", {}), openapi["components"]["schemas"])
            parameters = {
                each["name"] for each in operation.get("parameters", []) if "name" in each
            }
            named[f"{method} {re.sub(r'{.*?}', '{}', path)}"] = fields | parameters
    return named


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_has_the_options(requests: dict[str, set[str]], request_: str) -> None:
    kind, others = REQUESTS[request_]
    missing = {*kind.__annotations__} - others - requests[request_]
    assert not missing, f"{request_} lacks these of {kind.__name__}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options(name: str) -> None:
    kind, others = COMMANDS[name]
    missing = {*kind.__annotations__} - others - {each.name for each in commands()[name].params}
    assert not missing, f"fdbq {name} lacks these of {kind.__name__}"


def test_fdbq_limit_shows_each_option_of_a_queue() -> None:
    others = COMMANDS["limit"][1]
    assert {*FLAGS} == {*QueueSettings.__annotations__} - others


def test_the_dashboard_edits_each_option_of_a_queue() -> None:
    script = files("fdbqueue.http") / "static" / "options.js"
    edited = set(re.findall(r"\{ name: \"(\w+)\"", script.read_text()))
    assert edited == {*QueueSettings.__annotations__} - {"keep", "paused"}


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.__name__)
def test_the_reference_describes_each_option(kind: type) -> None:
    described = "\n".join(inspect.getdoc(each) or "" for each in DECLARED)
    for name in kind.__annotations__:
        assert re.search(rf"^ {{4}}{name}: ", described, re.M), f"{name} is not described"


@pytest.mark.parametrize(
    ("kind", "title"),
    [(PushManyOptions, "Options of a push"), (QueueSettings, "Options of a queue")],
)
def test_the_tables_of_the_reference_have_each_option(kind: type, title: str) -> None:
    page = (DOCS / "reference" / "queues.md").read_text().partition(f"## {title}\n")[2]
    missing = {name for name in kind.__annotations__ if not re.search(rf"`{name}=?`", page)}
    assert not missing - {"keep", "groups"}, f"{title} lacks these of {kind.__name__}"
