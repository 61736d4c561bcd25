"""A client of the routes below `/v1` of one queue."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx


class Api:
    """A queue behind a client; each method returns the content of a successful response."""

    def __init__(self, client: httpx.Client, name: str, **headers: str) -> None:
        self.client, self.name = client, name
        self.path = f"/v1/queues/{quote(name, safe='')}"
        self.headers = headers

    def send(self, method: str, route: str = "", body: Any = None, **query: Any) -> Any:
        """Send a request and return the response."""
        return self.client.request(
            method, self.path + route, json=body, params=query, headers=self.headers
        )

    def post(self, route: str, body: Any = None) -> Any:
        answer = self.send("POST", route, {} if body is None else body)
        assert answer.status_code in (200, 201, 204), answer.text
        return answer.json() if answer.content else None

    def get(self, route: str = "", **query: Any) -> Any:
        answer = self.send("GET", route, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def push(self, item: Any, **fields: Any) -> str:
        """Push an item and return its id."""
        id: str = self.post("/push", {"item": item, **fields})["id"]
        return id

    def claim(self, **fields: Any) -> list[Any]:
        claims: list[Any] = self.post("/claim", fields)["claims"]
        return claims

    def problem(self, method: str, route: str, body: Any = None, **query: Any) -> Any:
        """Return the problem with which a request fails."""
        answer = self.send(method, route, body, **query)
        assert answer.status_code >= 400, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["request_id"] == answer.headers["x-request-id"]
        return problem
