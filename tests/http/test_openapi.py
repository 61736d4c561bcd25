"""Requests made from the OpenAPI description: all answers are as that says."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import fdbqueue
from fdbqueue.http import create_app

CASES = int(os.environ.get("FDBQ_OPENAPI_CASES", "30"))
"""For each route; by hand 200."""

_app = create_app(fdbqueue.open("memory:"))
schema = schemathesis.openapi.from_asgi("/openapi.json", _app, headers={"host": "127.0.0.1"})


@schema.parametrize()
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: Any) -> None:
    query = case.query or {}
    with suppress(TypeError, ValueError):  # what is no time is refused at once
        if (wait := float(query.get("wait", 0))) > 0:
            query["wait"] = wait / 10_000
    # Of names and ids the description says less than the server wants.
    case.call_and_validate(
        headers={"host": "127.0.0.1"}, excluded_checks=[positive_data_acceptance]
    )
