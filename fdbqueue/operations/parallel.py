"""Reads in parallel: all begin before the first wait."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.types import ReadTransaction


def read_all(tr: ReadTransaction, keys: Iterable[bytes]) -> list[bytes | None]:
    """Return the values of keys, or `None`, in one round trip."""
    reads = [tr[key] for key in keys]
    return [read.value for read in reads]


def stored_at(
    tr: ReadTransaction, prefix: bytes, positions: Iterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """Return each position that has a row under `prefix`, with its value."""
    wanted = [*positions]
    values = read_all(tr, [prefix + position for position in wanted])
    return [(position, value) for position, value in zip(wanted, values) if value is not None]
