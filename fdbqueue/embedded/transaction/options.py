"""The options of databases and transactions, under the binding's names.

Options that change results take effect; all others are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    Times are in milliseconds. `timeout` 0 and `retry_limit` -1 mean no limit. Snapshot reads see
    own writes if `snapshot_ryw` is positive.
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


def _number(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise FDBError(2006)
    return value


class _Options:
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
        if name.startswith("set_") and name[4:] in self._scope:
            return _accept
        raise AttributeError(f"{type(self).__name__} has no option {name!r}")


def _accept(value: object = None) -> None:
    """Accept an option without an effect here."""


class DatabaseOptions(_Options):
    """The defaults of new transactions."""

    _scope = fdboptions.DatabaseOption

    def __init__(self, defaults: Settings) -> None:
        self._settings = self._counted = defaults

    def set_max_watches(self, watches: int) -> None:
        """Set the number of outstanding watches; existing watches are unaffected."""
        self._settings.max_watches = _number(watches, 0, MAX_WATCHES_LIMIT)

    def set_transaction_timeout(self, milliseconds: int) -> None:
        """Set the timeout, in milliseconds; 0 for none."""
        self._settings.timeout = _number(milliseconds, 0, _INT_MAX)

    def set_transaction_retry_limit(self, retries: int) -> None:
        """Set the number of retries; -1 for no limit."""
        self._settings.retry_limit = _number(retries, -1, _INT_MAX)

    def set_transaction_max_retry_delay(self, milliseconds: int) -> None:
        """Set the maximum delay between attempts, in milliseconds."""
        self._settings.max_retry_delay = _number(milliseconds, 0, _INT_MAX)

    def set_transaction_size_limit(self, size: int) -> None:
        """Set the size limit, in bytes, from 32 to 10,000,000."""
        self._settings.size_limit = _number(size, 32, TRANSACTION_SIZE_LIMIT)


class TransactionOptions(_Options):
    """The options of one transaction, with FoundationDB's semantics.

    Timeout, retry limit and maximum delay persist through `on_error`; the others last for one
    attempt. The next read or the commit reports an invalid value. After a write's error, options
    have no effect until the next attempt.
    """

    _scope = fdboptions.TransactionOption

    def __init__(self, transaction: Transaction, attempt: Attempt) -> None:
        self._transaction = transaction
        self._attempt = self._counted = attempt

    def _set(self, name: str, value: int, low: int, high: int) -> None:
        if self._attempt.deferred:
            return
        try:
            self._transaction.change_settings(**{name: _number(value, low, high)})
        except FDBError as error:
            self._attempt.fail(error.code)

    def set_timeout(self, milliseconds: int) -> None:
        """Set the timeout, in milliseconds from creation or reset; 0 for none."""
        self._set("timeout", milliseconds, 0, _INT_MAX)

    def set_retry_limit(self, retries: int) -> None:
        """Set the number of retries; -1 for no limit."""
        self._set("retry_limit", retries, -1, _INT_MAX)

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """Set the maximum delay between attempts, in milliseconds."""
        self._set("max_retry_delay", milliseconds, 0, _INT_MAX)

    def set_size_limit(self, size: int) -> None:
        """Set the size limit, in bytes, from 32 to 10,000,000."""
        self._set("size_limit", size, 32, TRANSACTION_SIZE_LIMIT)

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
