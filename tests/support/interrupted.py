"""A client that is interrupted."""

from __future__ import annotations

from typing import Any

from fdbqueue.testing import FaultyDatabase


class Cut(FaultyDatabase):
    """A database whose client is interrupted after this many commits that wrote something."""

    def __init__(self, db: Any, commits: int) -> None:
        super().__init__(db)
        self._left = commits

    def commit(self, transaction: Any) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        super().commit(transaction)
        self._left -= transaction.wrapped.get_committed_version() != -1
