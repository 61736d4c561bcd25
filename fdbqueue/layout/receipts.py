"""The keys and values of receipts, which tell whether a commit took place.

A receipt is in a subspace of receipts: of a queue Q (4,), of the names R (2,), or the caller's own.
"""

from __future__ import annotations

from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

__all__ = ["decode_receipt", "encode_receipt", "receipt_key", "receipts_before"]


def receipt_key(receipts: Subspace, hour: int, client_id: bytes) -> bytes:
    """Return the key of the receipt of a client that began in this hour since 1970."""
    key: bytes = receipts.pack((hour, client_id))
    return key


def receipts_before(receipts: Subspace, hour: int) -> tuple[bytes, bytes]:
    """Return the range of the receipts of clients that began before an hour."""
    return receipts.range().start, receipts.pack((hour,))


def encode_receipt(sequence: int, attempt: int) -> bytes:
    """Return the receipt of an attempt of a client's operation with this number.

    >>> decode_receipt(encode_receipt(7, 0))
    (7, 0)
    """
    value: bytes = fdb_tuple.pack((sequence, attempt))
    return value


def decode_receipt(value: bytes) -> tuple[int, int]:
    """Return the number of the operation and of the attempt that left a receipt."""
    sequence, attempt = fdb_tuple.unpack(value)
    return sequence, attempt
