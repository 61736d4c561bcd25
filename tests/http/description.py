"""The OpenAPI description: its operations, and the links between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

MISSING = object()
"""The value of an expression that a request or its response does not have."""


@dataclass(frozen=True)
class Operation:
    """An operation: its id, method, path, and the locations of its parameters."""

    id: str
    method: str
    path: str
    locations: Mapping[str, str] = field(compare=False)

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"

    def request(self, parameters: Mapping[str, Any], body: Any = None) -> dict[str, Any]:
        """Return the request with these parameters and this body, for httpx."""
        chosen: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
        for name, value in parameters.items():
            chosen[self.locations[name]][name] = value
        path = {name: quote(value, safe="") for name, value in chosen["path"].items()}
        return {
            "method": self.method,
            "url": self.path.format(**path),
            "params": chosen["query"],
            "headers": chosen["header"],
            "json": body,
        }


@dataclass(frozen=True)
class Sent:
    """A request that was sent, and its response."""

    parameters: Mapping[str, Any]
    body: Any
    response: Any

    def value(self, expression: Any) -> Any:
        """Return the value of a runtime expression, also of those inside a constant."""
        if isinstance(expression, dict):
            return {name: self.value(each) for name, each in expression.items()}
        if not isinstance(expression, str) or not expression.startswith("$"):
            return expression
        source, _, pointer = expression.partition("#")
        side, kind, *name = source.split(".", 2)
        if kind == "body":
            return _at(self.body if side == "$request" else self.response.json(), pointer)
        given = self.parameters if side == "$request" else self.response.headers
        return given.get(name[0], MISSING)


def _at(document: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer."""
    for step in pointer.split("/")[1:]:
        try:
            document = document[int(step) if isinstance(document, list) else step]
        except (KeyError, IndexError):
            return MISSING
    return document


@dataclass(frozen=True)
class Link:
    """A link from the response of an operation to another operation."""

    name: str
    source: Operation
    status: int
    target: Operation
    definition: Mapping[str, Any] = field(compare=False)

    def __str__(self) -> str:
        return f"{self.source.label} -> {self.name}"

    def request(self, sent: Sent, body: Any) -> dict[str, Any]:
        """Return the request that follows; a parameter without a value is left out."""
        parameters = {
            name: value
            for name, expression in self.definition["parameters"].items()
            if (value := sent.value(expression)) is not MISSING
        }
        linked = sent.value(self.definition.get("requestBody", {}))
        assert MISSING not in linked.values(), f"{self}: {json.dumps(self.definition)}"
        return self.target.request(parameters, {**body, **linked} if body or linked else None)


def operations_of(description: Mapping[str, Any]) -> dict[str, Operation]:
    """Return the operations by their ids."""
    return {
        each["operationId"]: Operation(
            each["operationId"],
            method.upper(),
            path,
            {parameter["name"]: parameter["in"] for parameter in each.get("parameters", ())},
        )
        for path, methods in description["paths"].items()
        for method, each in methods.items()
    }


def links_of(description: Mapping[str, Any]) -> Iterator[Link]:
    """Yield the links of all responses."""
    operations = operations_of(description)
    for methods in description["paths"].values():
        for operation in methods.values():
            source = operations[operation["operationId"]]
            for status, response in operation["responses"].items():
                for name, link in response.get("links", {}).items():
                    yield Link(name, source, int(status), operations[link["operationId"]], link)
