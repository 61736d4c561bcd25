"""The errors of backups and restores."""

from __future__ import annotations

from fdbqueue.errors import FdbqueueError, QueueExists

__all__ = ["KeyExists", "QueueDiffers"]


class KeyExists(FdbqueueError):
    """A key of a backup that the database has with another value, which stays."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        super().__init__(
            f"the database has another value than the backup under the key {key!r}; clear the key, "
            "or restore only the queues and prefixes that you name"
        )


class QueueDiffers(QueueExists):
    """A queue to restore or copy that the database has already, with other rows."""

    def __init__(self, name: str) -> None:
        advice = "drop it, choose another name, or name the other queues to restore only these"
        differs = "it differs from the one to restore or copy, so nothing was written"
        super().__init__(name, f"{differs}; {advice}")
