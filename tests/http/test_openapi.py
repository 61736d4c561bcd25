"""Requests generated from the OpenAPI description get the responses it describes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import positive_data_acceptance, use_after_free

import fdbqueue
from fdbqueue.http import create_app

CASES = int(os.environ.get("FDBQ_OPENAPI_CASES", "5"))
"""Examples per route: the same 5 in each run, or another number of random ones."""

_app = create_app(fdbqueue.open("memory:"))
schema = schemathesis.openapi.from_asgi("/openapi.json", _app, headers={"host": "127.0.0.1"})


# A few names, so that requests meet the queues of other requests.
schemathesis.openapi.format("queue-name", st.sampled_from(("a", "b", "mail/out", "50%", "ünï c")))

EXCLUDED = [positive_data_acceptance, use_after_free]
"""Checks that expect of a schema what it cannot say: which ids exist, what a kind of queue takes,
and that a push creates a queue."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Shorten waits."""
    for given in (case.query or {}, case.body if isinstance(case.body, dict) else {}):
        with suppress(TypeError, ValueError):  # an invalid wait is refused at once
            if (wait := float(given.get("wait", 0))) > 0:
                given["wait"] = wait / 10_000


OPERATIONS = {each.ok().label: each.ok() for each in schema.get_all_operations()}


@settings(
    max_examples=CASES,
    derandomize="FDBQ_OPENAPI_CASES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
def call_and_validate(case: Any) -> None:
    case.call_and_validate(headers={"host": "127.0.0.1"}, excluded_checks=EXCLUDED)


@pytest.mark.parametrize("route", OPERATIONS)
def test_responses_match_the_openapi_description(route: str) -> None:
    """One that does not raises an error in `call_and_validate`.

    The examples are made here: `schema.parametrize()` makes all of them for the list of tests, and
    each process of xdist lists all tests.
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


def test_names_of_queues_are_described() -> None:
    for path, methods in _app.openapi()["paths"].items():
        for operation in methods.values() if "{name}" in path else ():
            (name,) = (each for each in operation["parameters"] if each["name"] == "name")
            assert name["schema"].items() >= {"minLength": 1, "maxLength": 255}.items()
            assert name["schema"]["format"] == "queue-name"
