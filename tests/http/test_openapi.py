"""Requests generated from the OpenAPI description get the responses it describes."""

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
"""Examples per route; run 200 by hand."""

_app = create_app(fdbqueue.open("memory:"))
schema = schemathesis.openapi.from_asgi("/openapi.json", _app, headers={"host": "127.0.0.1"})


@schema.parametrize()
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_responses_match_the_openapi_description(case: Any) -> None:
    query = case.query or {}
    with suppress(TypeError, ValueError):  # an invalid wait is rejected at once
        if (wait := float(query.get("wait", 0))) > 0:
            query["wait"] = wait / 10_000
    # The server is stricter about names and ids than the description.
    case.call_and_validate(
        headers={"host": "127.0.0.1"}, excluded_checks=[positive_data_acceptance]
    )
