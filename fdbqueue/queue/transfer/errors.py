"""The errors of backups and restores."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError

__all__ = ["KeyExists"]


class KeyExists(FdbqueueError):
    """A key of a backup that the database has with another value, which stays."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        super().__init__(
            f"the database has another value than the backup under the key {key!r}; clear the key, "
            "or restore only the queues and prefixes that you name"
        )
