"""Links of the OpenAPI description: the requests that can follow a response, with its values."""

from __future__ import annotations

from fdbqueue.http.routing import SAME_QUEUE, Links, links_to, operation_id

SAME_ITEM = "$request.path.item_id"
SAME_TOKEN = "$request.body#/token"

_QUEUE = "/v1/queues/{name}"
_ITEM = f"{_QUEUE}/items/{{item_id}}"

# The functions of the routes, with their methods and the rest of their paths.
_OF_QUEUE = {
    "get": "GET",
    "change": "PATCH",
    "drop": "DELETE",
    "push_one": "POST /push",
    "push_batch": "POST /batch",
    "pop": "POST /pop",
    "claim": "POST /claim",
    "items": "GET /items",
    "count": "GET /count",
    "change_all": "POST /change",
    "pause": "POST /pause",
    "resume": "POST /resume",
    "clear": "POST /clear",
    "rename": "POST /rename",
    "check": "POST /check",
    "stats": "GET /stats",
    "history": "GET /history",
    "scale": "GET /scale",
    "workers_of_queue": "GET /workers",
}
_CREATE = {"create": "PUT"}
_OF_ITEM = {
    "get": "GET",
    "remove": "DELETE",
    "move": "PATCH",
    "position": "GET /position",
    "result": "GET /result",
    "retry": "POST /retry",
    "run_now": "POST /run-now",
    "release": "POST /release",
}
_OF_CLAIM = {each: f"POST /{each}" for each in ("ack", "nack", "extend", "release")}


def of_queue(*only: str, name: str = SAME_QUEUE, etag: str | None = None) -> Links:
    """Return links to the operations of a queue.

    Args:
        only: The functions of the operations; all but `create` by default.
        name: The expression for the name of the queue.
        etag: The expression for the ETag of its options, if the response has it.

    Example:
        >>> of_queue("stats", name="$request.body#/name")["stats_v1_queues__name__stats_get"]
        {'operationId': 'stats_v1_queues__name__stats_get', \
'parameters': {'name': '$request.body#/name'}}
    """
    routes = {**_OF_QUEUE, **_CREATE}
    found = links_to(_QUEUE, {each: routes[each] for each in only or _OF_QUEUE}, name=name)
    if etag is not None:
        change = operation_id(_QUEUE, "change", _OF_QUEUE["change"])
        found[change]["parameters"]["if-match"] = etag
    return found


def of_item(item_id: str, *only: str, name: str = SAME_QUEUE) -> Links:
    """Return links to the operations of an item, by default all.

    An operation may have to wait for the state that it needs: a result, until the item is done.
    """
    routes = {each: _OF_ITEM[each] for each in only or _OF_ITEM}
    return links_to(_ITEM, routes, name=name, item_id=item_id)


def of_claim(token: str) -> Links:
    """Return links to the operations that end or extend a claim."""
    found = links_to(_QUEUE, _OF_CLAIM, name=SAME_QUEUE)
    return {each: {**link, "requestBody": {"token": token}} for each, link in found.items()}
