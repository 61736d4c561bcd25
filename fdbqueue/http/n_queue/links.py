"""Links of the OpenAPI description, between the operations below `/queue`."""

from __future__ import annotations

from fdbqueue.http.routing import SAME_QUEUE, Links, links_to

__all__ = ["of_item", "of_queue"]

_QUEUE = "/queue/{name}"

# The functions of the routes, with their methods and the rest of their paths.
_OF_QUEUE = {
    "push": "POST /push",
    "push_batch": "POST /batch",
    "pop": "POST /pop",
    "peek": "GET /peek",
    "counts": "GET /counts",
    "stats": "GET /stats",
    "items": "GET /items",
    "drop": "DELETE",
}


def of_queue(*only: str, name: str = SAME_QUEUE) -> Links:
    """Return links to the operations of a queue, by default all."""
    return links_to(_QUEUE, {each: _OF_QUEUE[each] for each in only or _OF_QUEUE}, name=name)


def of_item(item_id: str) -> Links:
    """Return a link to the operation that removes an item."""
    routes = {"remove": "DELETE /items/{item_id}"}
    return links_to(_QUEUE, routes, name=SAME_QUEUE, item_id=item_id)
