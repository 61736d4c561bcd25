"""The options of databases and transactions, under the binding's names.

Options that change results take effect; all others are accepted and ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fdb import fdboptions

from fdbqueue.embedded.arguments import (
    MAX_BACKOFF,
    MAX_WATCHES,
    MAX_WATCHES_LIMIT,
    TRANSACTION_SIZE_LIMIT,
)
from fdbqueue.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.transaction.attempt import Attempt
    from fdbqueue.embedded.transaction.transaction import Transaction

_INT_MAX = 2**31 - 1


@dataclass(slots=True)
class Settings:
    """The options that change results, as of a new transaction.

    Times are in milliseconds, the timeout from the creation or reset of the transaction. `timeout`
    0 and `retry_limit` -1 mean no limit. Snapshot reads see own writes if `snapshot_ryw` is
    positive.
    """

    timeout: int = 0
    retry_limit: int = -1
    max_retry_delay: int = round(MAX_BACKOFF * 1000)
    max_watches: int = MAX_WATCHES
    size_limit: int = TRANSACTION_SIZE_LIMIT
    snapshot_ryw: int = 1

    def deadline(self, created: float) -> float:
        """Return when the timeout from `created` ends."""
        return created + self.timeout / 1000


_RANGES = {
    "max_watches": (0, MAX_WATCHES_LIMIT),
    "timeout": (0, _INT_MAX),
    "retry_limit": (-1, _INT_MAX),
    "max_retry_delay": (0, _INT_MAX),
    "size_limit": (32, TRANSACTION_SIZE_LIMIT),
}
"""The lowest and the highest value of each setting that is a number."""


class _Options(ABC):
    """A `set_...` method for every option of the binding in this scope."""

    _scope: dict[str, Any]
    _counted: Settings | Attempt

    def set_snapshot_ryw_enable(self) -> None:
        """Let snapshot reads see own writes. Undoes one disable."""
        self._counted.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        """Hide own writes from snapshot reads. Undoes one enable."""
        self._counted.snapshot_ryw -= 1

    def __getattr__(self, name: str) -> Callable[..., None]:
        option = name.removeprefix("set_")
        if option == name or option not in self._scope:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}")
        setting = option.removeprefix("transaction_")
        return partial(self._set, setting) if setting in _RANGES else _accept

    @abstractmethod
    def _set(self, name: str, value: int) -> None:
        """Change a setting."""


def _accept(value: object = None) -> None:
    """Accept an option without an effect here."""


def _number(name: str, value: int) -> int:
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise FDBError(2006)
    return value


class DatabaseOptions(_Options):
    """The defaults of new transactions."""

    _scope = fdboptions.DatabaseOption

    def __init__(self, defaults: Settings) -> None:
        self._counted = defaults

    def _set(self, name: str, value: int) -> None:
        setattr(self._counted, name, _number(name, value))


class TransactionOptions(_Options):
    """The options of one transaction, with FoundationDB's semantics.

    Timeout, retry limit and maximum delay persist through `on_error`. The next read or the commit
    reports an invalid value. After a write's error, options have no effect until the next attempt.
    """

    _scope = fdboptions.TransactionOption

    def __init__(self, transaction: Transaction, attempt: Attempt) -> None:
        self._transaction = transaction
        self._attempt = self._counted = attempt

    def _set(self, name: str, value: int) -> None:
        if self._attempt.deferred:
            return
        try:
            self._transaction.change_settings(**{name: _number(name, value)})
        except FDBError as error:
            self._attempt.fail(error.code)

    def set_read_your_writes_disable(self) -> None:
        """Hide own writes from reads. Too late (2000) after a read or a write."""
        attempt = self._attempt
        wrote = attempt.mutations or attempt.writes
        if attempt.has_read or (wrote and not attempt.ryw_disabled):
            attempt.fail(2000)  # too late
        else:
            attempt.ryw_disabled = True

    def set_next_write_no_write_conflict_range(self) -> None:
        """Let the next write add no conflict range."""
        self._attempt.skip_next_write_conflict = True
