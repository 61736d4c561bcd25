"""Requests generated from the OpenAPI description get the responses it describes.

`python -m tests.hostile.http_fuzz` generates thousands of them, and follows the links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.stateful import collect_transitions
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue.http import create_app
from tests.http.api import Api
from tests.http.description import Link, Sent, links_of
from tests.http.openapi_checks import REPLACED
from tests.http.walk import ITEM, NAME, Walk

CASES = int(os.environ.get("FDBQ_OPENAPI_CASES", "15"))
"""Examples per route: the same 15 in each run, or another number of random ones."""

_app = create_app(fdbqueue.open("memory:"))
schema = schemathesis.openapi.from_asgi("/openapi.json", _app, headers={"host": "127.0.0.1"})
LINKS = list(links_of(_app.openapi()))


OPERATIONS = {each.ok().label: each.ok() for each in schema.get_all_operations()}


@settings(
    max_examples=CASES,
    derandomize="FDBQ_OPENAPI_CASES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def call_and_validate(case: Any) -> None:
    case.call_and_validate(headers={"host": "127.0.0.1"}, excluded_checks=REPLACED)


@pytest.mark.parametrize("route", OPERATIONS)
def test_responses_match_the_openapi_description(route: str) -> None:
    """The examples are made here: `schema.parametrize()` makes all of them for the list of tests.

    Each process of xdist lists all tests.
    """
    load_all_checks()
    test = build_operation_test(
        config=schema.config,
        operation=OPERATIONS[route],
        test_func=call_and_validate,
        given_kwargs={},
        feedback=FeedbackSources(constants_value_source=make_constants_value_source(schema)),
    )
    test()


def test_limits_that_may_be_null_are_described() -> None:
    for method, path in (("put", "/v1/queues/{name}"), ("patch", "/v1/queues/{name}")):
        operation = _app.openapi()["paths"][path][method]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        options = _app.openapi()["components"]["schemas"][reference.rpartition("/")[2]]
        number, null = options["properties"]["max_size"]["anyOf"]
        # A float, as which JSON readers may read it, is the same number.
        assert (number["minimum"], number["maximum"]) == (1, 2**53 - 1)
        assert null == {"type": "null"}


def test_names_of_queues_are_described() -> None:
    for path, methods in _app.openapi()["paths"].items():
        for operation in methods.values() if "{name}" in path else ():
            (name,) = (each for each in operation["parameters"] if each["name"] == "name")
            assert name["schema"].items() >= {"minLength": 1, "maxLength": 255}.items()
            assert name["schema"]["format"] == "queue-name"


def test_schemathesis_understands_every_link() -> None:
    operations = [each.ok() for each in schema.get_all_operations()]
    transitions = collect_transitions(operations).operations  # raises an error if it does not
    assert sum(len(each.outgoing) for each in transitions.values()) == len(LINKS)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_app(fdbqueue.open("memory:")), "http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_the_request_of_a_link_succeeds(client: TestClient, link: Link) -> None:
    walk = Walk(client, link)
    response = walk.follow(walk.send())
    assert 200 <= response.status_code < 300, response.text


@pytest.mark.parametrize("link", [each for each in LINKS if each.name == "next_page"], ids=str)
def test_the_next_page_has_the_rest(client: TestClient, link: Link) -> None:
    walk = Walk(client, link)
    sent = walk.send()
    (field,) = {"items", "queues"} & sent.response.json().keys()
    key = "id" if field == "items" else "name"
    (first,) = sent.response.json()[field]
    page = walk.follow(sent).json()
    (second,) = page[field]
    assert (second[key] != first[key], page["next"]) == (True, None)


def test_the_next_page_lists_items_of_the_same_state(client: TestClient) -> None:
    (link,) = (
        each
        for each in LINKS
        if each.name == "next_page" and each.source.path == "/v1/queues/{name}/items"
    )
    api = Api(client, NAME)
    ids = [api.push(ITEM, delay=60, priority=priority) for priority in (2, 1, 0)]
    api.push(ITEM)
    parameters = {"name": NAME, "state": "delayed", "reverse": "true", "limit": 2}
    response = client.request(**link.source.request(parameters))
    following = client.request(**link.request(Sent(parameters, None, response), {}))
    shown = [*response.json()["items"], *following.json()["items"]]
    assert sorted(each["id"] for each in shown) == sorted(ids)
    assert {each["state"] for each in shown} == {"delayed"}


def test_options_that_have_changed_meanwhile_are_not_changed(client: TestClient) -> None:
    (link,) = (
        each
        for each in LINKS
        if each.source.label == "PUT /v1/queues/{name}"
        and each.target.label == "PATCH /v1/queues/{name}"
    )
    parameters = {"name": NAME}
    response = client.request(**link.source.request(parameters, {}))
    sent = Sent(parameters, {}, response)
    assert client.request(**link.request(sent, {"max_size": 1})).status_code == 200
    assert client.request(**link.request(sent, {"max_size": 2})).status_code == 412
