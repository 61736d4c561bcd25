"""The way along one link of the OpenAPI description, with the requests that it needs before."""

from __future__ import annotations

import re
from typing import Any

from tests.http.api import Api
from tests.http.description import Link, Sent

NAME = "mail/out 50%"
"""The name of the queue, which a path has to encode."""

NEXT = "mail/sent"
"""The name of the queue of the jobs that follow."""

ITEM = {"subject": "hello"}
BODIES: dict[str, Any] = {
    "PUT /v1/queues/{name}": {"kind": "task"},
    "PATCH /v1/queues/{name}": {"max_size": 7},
    "PATCH /v1/queues/{name}/items/{item_id}": {"priority": 2},
    "POST /v1/queues/{name}/ack": {"result": 1},
    "POST /v1/queues/{name}/batch": {"items": [{"item": ITEM}]},
    "POST /v1/queues/{name}/change": {"change": "remove", "state": "ready"},
    "POST /v1/queues/{name}/check": {"repair": True},
    "POST /v1/queues/{name}/claim": {"lease": 60},
    "POST /v1/queues/{name}/extend": {"lease": 60},
    "POST /v1/queues/{name}/nack": {"error": "refused"},
    "POST /v1/queues/{name}/pop": {"n": 2},
    "POST /v1/queues/{name}/push": {"item": ITEM},
    "POST /v1/queues/{name}/release": {},
    "POST /v1/queues/{name}/rename": {"name": "mail/in"},
    "POST /queue/{name}/push": {"item": ITEM},
    "POST /queue/{name}/batch": {"items": [{"item": ITEM}]},
}
"""The bodies that operations need, apart from what a link gives them."""

STATES = {
    "/items/{item_id}/retry": "dead",
    "/items/{item_id}/run-now": "delayed",
    "/items/{item_id}/release": "claimed",
    "/items/{item_id}/cancel": "claimed",
    "/items/{item_id}/result": "done",
}
"""The state that an item must be in for an operation; it is `ready` for the others."""


class Walk:
    """The way along one link: the request from whose response it goes out, and the one it leads to.

    Args:
        client: A client of a server without queues.
        link: The link.
    """

    def __init__(self, client: Any, link: Link) -> None:
        self.client = client
        self.link = link
        self.path = link.source.path
        self.has_item = "item_id" in link.source.locations
        self.state = next(
            (
                state
                for operation in (link.source, link.target)
                for end, state in STATES.items()
                if operation.path.endswith(end)
            ),
            "ready",
        )
        self.delay = {"delay": 60} if self.state == "delayed" else {}
        self.api = Api(client, NAME)
        self.next = Api(client, NEXT)

    def send(self) -> Sent:
        """Send the request from whose response the link goes out, after those that it needs."""
        parameters: dict[str, Any] = {}
        if "name" in self.link.source.locations:
            parameters["name"] = NAME
        if self.link.source.label != "PUT /v1/queues/{name}":
            self._create()
        body: Any = BODIES.get(self.link.source.label)
        if self.path.endswith(("/push", "/batch")):
            body = self._with_delay(body)
        elif re.search(r"/(ack|nack|extend|v1/queues/\{name\}/release)$", self.path):
            self.api.push(ITEM)
            body = {**body, "token": self.api.claim()[0]["token"]}
            if self.path.endswith("/ack"):
                body["then"] = [{"queue": NEXT, "item": ITEM, **self.delay}]
        elif self.has_item or self.path.endswith(("/items", "/peek", "/claim")):
            parameters |= self._item()
        if self.link.name == "next_page":
            parameters["limit"] = 1
        request = self.link.source.request(parameters, body)
        response = self.client.request(**request)
        assert response.status_code == self.link.status, response.text
        return Sent(parameters, body, response)

    def _create(self) -> None:
        for api in (self.api, self.next):
            response = api.send("PUT", "", {"max_attempts": 1, "keep_number": 10})
            assert response.status_code == 201

    def _with_delay(self, body: Any) -> Any:
        if "items" in body:
            return {"items": [{**each, **self.delay} for each in body["items"]]}
        return {**body, **self.delay}

    def _item(self) -> dict[str, str]:
        """Store an item in the state that the link needs; return the parameters that find it."""
        id = self.api.push(ITEM, **self.delay)
        if self.path.endswith("/claim"):
            return {}
        self._bring(self.api)
        if self.has_item:
            return {"item_id": id}
        self.api.push(ITEM, **self.delay)
        return {"state": self.state} if "state" in self.link.source.locations else {}

    def _bring(self, api: Api) -> None:
        """Bring an item from `ready` to the state that the link needs."""
        if self.state in ("ready", "delayed"):
            return
        (claim,) = api.claim()
        if self.state == "done":
            api.post("/ack", {"token": claim["token"], "result": 1})
        elif self.state == "dead":
            api.post("/nack", {"token": claim["token"]})

    def follow(self, sent: Sent) -> Any:
        """Send the request of the link, once the item is in the state that it needs."""
        if self.path.endswith("/claim"):
            if self.state == "done":
                (claim,) = sent.response.json()["claims"]
                self.api.post("/ack", {"token": claim["token"]})
        elif self.path.endswith(("/push", "/batch")):
            self._bring(self.api)
        elif self.path.endswith("/ack"):
            self._bring(self.next)
        body = BODIES.get(self.link.target.label, {})
        if self.path.endswith("/rename") and "name" in body:
            body = {"name": NAME}  # rename it back
        return self.client.request(**self.link.request(sent, body))
