"""What schemathesis has to know about the server that its OpenAPI description cannot say."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    RejectedPositiveData,
    UseAfterFree,
    positive_data_acceptance,
    use_after_free,
)

REPLACED = [positive_data_acceptance, use_after_free]
"""The checks of schemathesis in whose place are those of this module."""

# The reasons for which the server refuses a request that fits the description: a JSON schema cannot
# tell, or it depends on what is stored.
REASONS = re.compile(
    "|".join(
        (
            # Ids and tokens are opaque: only the server can tell which texts it has given out.
            "is not the id of an item",
            "is not the token of a claim",
            # The fields that a queue takes depend on its kind.
            "has no such field",
            "a task queue has no other end",
            "a FIFO queue has no priorities",
            "send the new `priority`, and no other field",
            "^agent: only the items of a task queue",
            "^client: only claimed items",
            "^error: done items have no error",
            "^priority: the items of a fifo queue have no priorities",
            # The priorities of a queue are integers, or tuples with elements of certain types.
            "^priority .* must be ",
            # To JSON Schema 1.0 is an integer; the routes below `/queue` have always refused it.
            "priority: Input should be a valid integer$",
            # Fields of one body that exclude each other.
            "give a delay or a time, not both",
            "give unique_until or unique_for, not both",
            "needs a key: give unique, too",
            "^the schedule .*: ",
            "a group is text of . to 255 bytes",
            "the jobs of a task queue have no steps",
            "is not a change of",
            "is the new priority, for 'reprioritize'",
            # A key belongs to one request.
            "^the idempotency key .* was already used",
            "the options have changed",
            # The library checks the ranges of options, and says them.
            "is a number ",
            "is text of at least one character",
            "keep is a timedelta or a text",
            "keep stands for keep_seconds",
            "the items without a group have only a weight",
            "^paused: give the name of a group",
            # Lengths are in bytes, and a name is printable in the sense of Unicode.
            "is printable text of 1 to 255 bytes",
            "of a signal is text of . to 255 bytes",
            # JSON within a parameter.
            "^priority: this is not JSON",
        )
    ),
    re.DOTALL,
)

NAMES = ("a", "b", "mail/out", "50%", "ünïcode name", "..x")


def is_queue_name(name: str) -> bool:
    """Return whether this can be the name of a queue."""
    return (
        name == name.strip()
        and name.isprintable()
        and 0 < len(name.encode("utf-8", "replace")) < 256
    )


# A few names, so that requests meet the queues of other requests, and any others.
schemathesis.openapi.format(
    "queue-name",
    st.one_of(*[st.sampled_from(NAMES)] * 4, st.text(max_size=60).filter(is_queue_name)),
)


@schemathesis.check
def valid_requests_are_accepted(ctx: Any, response: Any, case: Any) -> None:
    """Fail if a request that fits the description is refused for a reason it could have named."""
    try:
        positive_data_acceptance(ctx, response, case)
    except RejectedPositiveData:
        is_known = REASONS.search(response.json()["detail"])
        if response.status_code not in (400, 412, 422) or not is_known:
            raise


@schemathesis.check
def dropped_queues_are_gone(ctx: Any, response: Any, case: Any) -> None:
    """Fail if a queue is there after it was dropped, unless something has created it again.

    The check of schemathesis expects that only a `PUT` or `POST` of the same path creates a queue.
    Here a push does, the acknowledgement of a job with others that follow, and a rename.
    """
    try:
        use_after_free(ctx, response, case)
    except UseAfterFree:
        if (case.path_parameters or {}).get("name") not in Existing.names:
            raise


class Existing:
    """The names of the queues that successful requests have created, and none has dropped."""

    names: set[str] = set()

    @classmethod
    def add(cls, case: Any, status: int) -> None:
        """Add what a request did."""
        name = (case.path_parameters or {}).get("name")
        body = case.body if isinstance(case.body, dict) else {}
        end = case.operation.path.rpartition("/")[2]
        if not 200 <= status < 300:
            return
        if case.operation.path.endswith("/{name}") and case.method == "DELETE":
            cls.names.discard(name)
        elif status == 201 or (end != "{name}" and case.method == "PUT"):
            cls.names.add(name)
        elif end == "ack":
            cls.names.update(each["queue"] for each in body.get("then", ()))
        elif end == "rename":
            cls.names.discard(name)
            cls.names.add(body["name"])


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    Existing.add(case, response.status_code)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Shorten waits, and simplify most valid pushes and new queues.

    A field that not every kind of queue takes makes a push fail, and so what would follow it. A
    paused queue, or a full one, gives out or takes no items.
    """
    body = case.body if isinstance(case.body, dict) else {}
    for given in (case.query or {}, body):
        # An invalid wait is refused at once.
        with suppress(TypeError, ValueError):
            if (wait := float(given.get("wait", 0))) > 0:
                given["wait"] = wait / 10_000
    is_positive = case.meta is not None and case.meta.generation.mode.is_positive
    if is_positive and case.operation.path.startswith("/v1/") and len(repr(body)) % 4:
        items = [body, *body.get("items", ()), *body.get("then", ())]
        for each in items:
            if isinstance(each, dict):
                _simplify(each, case.method)


def _simplify(body: dict[str, Any], method: str) -> None:
    """Remove the fields that make other requests fail."""
    unwanted = {"cost", "deadline", "agent_name", "group", "client_id"}
    unwanted |= {"max", "at", "lease"}
    if method == "PATCH":
        unwanted |= {"max_size", "concurrency", "paused"}
    elif method == "PUT":
        unwanted = {"concurrency", "max_size", "paused", "kind"}
    if isinstance(body.get("priority"), list):
        unwanted.add("priority")
    for name in unwanted & body.keys():
        del body[name]
