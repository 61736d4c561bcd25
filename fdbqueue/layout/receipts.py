"""The keys and values of receipts, which show whether a commit took effect.

Receipts have a separate subspace: Q (4,) of a queue, R (2,) of the names, or one of the caller's.
"""

from __future__ import annotations

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

__all__ = ["decode_receipt", "encode_receipt", "receipt_key", "receipts_before"]


def receipt_key(receipts: Subspace, hour: int, client_id: bytes) -> bytes:
    """Return the key of a client's receipt; `hour` since 1970 is when the client started."""
    key: bytes = receipts.pack((hour, client_id))
    return key


def receipts_before(receipts: Subspace, hour: int) -> tuple[bytes, bytes]:
    """Return the range of the receipts of clients that started before an hour."""
    return receipts.range().start, receipts.pack((hour,))


def encode_receipt(sequence: int, try_number: int) -> bytes:
    """Return the receipt of one try of a client's operation with this sequence number.

    >>> decode_receipt(encode_receipt(7, 0))
    (7, 0)
    """
    value: bytes = fdb_tuple.pack((sequence, try_number))
    return value


def decode_receipt(value: bytes) -> tuple[int, int]:
    """Return the sequence number of the operation and the number of the try."""
    sequence, try_number = fdb_tuple.unpack(value)
    return sequence, try_number
