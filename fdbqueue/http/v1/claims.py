"""Claims as text, so that any client that has the text can end them."""

from __future__ import annotations

from typing import NamedTuple

from fdbqueue.http.served import Handle
from fdbqueue.http.v1.values import layout_of
from fdbqueue.layout.values import decode_claim_text, encode_claim_text
from fdbqueue.types import Claim

__all__ = ["claim_from_text", "claim_text"]


class _Id(NamedTuple):
    """An item of which only the id is known."""

    id: str


def claim_text(queue: Handle, claim: Claim) -> str:
    """Return the text of a claim of one item.

    It contains the fencing token, the position, the attempt, the name of the client, and the id if
    that does not follow from the position. A client that has the text has the claim.
    """
    layout, key = layout_of(queue.queue), claim.keys[0]
    id = "" if claim.item.id == layout.item_id(key) else claim.item.id
    position = layout.position(key)
    return encode_claim_text(claim.token, position, claim.attempt, claim.client, id)


def claim_from_text(queue: Handle, text: str) -> Claim:
    """Return the claim with this text, of whose item it has the id; raise `InvalidClaimToken`."""
    layout = layout_of(queue.queue)
    token, position, attempt, client, id = decode_claim_text(text)
    key = layout.items + position
    return Claim((_Id(id or layout.item_id(key)),), (attempt,), (key,), token, client)
