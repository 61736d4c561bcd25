"""Every error that fdbqueue raises, each a sentence that says what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "DESCRIPTIONS",
    "ClockOutOfRange",
    "ClusterUnavailable",
    "CorruptDatabase",
    "DiskFull",
    "FDBError",
    "FdbqueueError",
    "FilesReplaced",
    "ForeignKey",
    "FormatVersionMismatch",
    "HandlerTooSlow",
    "IdempotencyKeyReused",
    "ImportMismatch",
    "ImportRunning",
    "InvalidIdempotencyKey",
    "InvalidItemId",
    "InvalidLine",
    "InvalidPriority",
    "InvalidQueueName",
    "InvalidTask",
    "InvalidUniqueKey",
    "InvalidValue",
    "LayoutVersionMismatch",
    "LeaseLost",
    "LockTimeout",
    "NotADatabase",
    "OptionsMismatch",
    "PayloadTooLarge",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "QueueRenamed",
    "QueueTooLargeToCheck",
    "ReadOnlyDatabase",
    "StorageError",
    "UndecodableItem",
    "UnknownCodec",
]

# The codes and names are FoundationDB's (flow/error_definitions.h); only those that the embedded
# engine, or a wrapper that injects faults, can produce.
DESCRIPTIONS = {
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1039: "The protocol version of the cluster has changed",
    1042: "CommitProxy commit memory limit exceeded",
    1051: "Batch GRV request rate limit exceeded",
    1078: "GetReadVersion proxy memory limit exceeded",
    1079: "Blob granule request failed",
    1101: "Asynchronous operation cancelled",
    1213: "Transaction tag is being throttled",
    1223: "Transaction tag is being throttled by a proxy",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2007: "Option not valid in this context",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2017: "Operation issued while a commit was outstanding",
    2018: "Unrecognized atomic mutation type",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2108: "Operation is not supported",
    2210: "Exact streaming mode requires limits, but none were given",
}


class FdbqueueError(Exception):
    """The base of every error of this library; one that is pickled comes back as it was."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By itself an exception is made anew from its text, which is not what these are made from.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[FdbqueueError], args: tuple[Any, ...], fields: dict[str, Any]
) -> FdbqueueError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class FDBError(FdbqueueError):
    """An error of the embedded engine, with FoundationDB's code and words for it.

    >>> FDBError(1020)
    FDBError(1020)
    >>> print(FDBError(1020))
    Transaction not committed due to conflict with another transaction (1020)
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> str:
        return DESCRIPTIONS.get(self.code, "Unknown error")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


class StorageError(FdbqueueError):
    """The files of an embedded database cannot be used; `path` says which, `advice` what to do."""

    problem = "the storage failed"
    advice = "look at the system's log for errors of the disk"

    def __init__(self, path: str, problem: str | None = None, advice: str | None = None) -> None:
        self.path = path
        self.problem = problem or self.problem
        self.advice = advice or self.advice
        super().__init__(f"{path}: {self.problem}; {self.advice}")


class NotADatabase(StorageError):
    """The path holds something that is no fdbqueue database."""

    problem = "this is not an fdbqueue database"
    advice = "name a directory that fdbqueue made, or one that does not exist yet"


class CorruptDatabase(StorageError):
    """The file was a database and is damaged."""

    problem = "the database is damaged"
    advice = "restore it from a copy; what can still be read comes out with sqlite3's `.recover`"


class FormatVersionMismatch(StorageError):
    """The directory was written by a release with another format."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            path,
            f"the database has format {found} and this release reads format {expected}",
            "use the release that wrote it, or export its queues there and import them here",
        )


class DiskFull(StorageError):
    """Nothing more can be written; what was acknowledged is safe."""

    problem = "the disk is full"
    advice = "free some space and try again; nothing of this transaction was stored"


class ReadOnlyDatabase(StorageError):
    """The directory or its files cannot be written."""

    problem = "the database cannot be written"
    advice = "make the directory and its files writable for this user, or name another directory"


class FilesReplaced(StorageError):
    """A file of the database is not the one that this process opened.

    Something removed, replaced or truncated it, or moved the directory. Nothing of this transaction
    was stored. `name` is the file's.
    """

    advice = "close the database, and open it again once no process has the old files open"

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        super().__init__(
            path, f"the file {name} was removed, replaced or truncated while it was in use"
        )


class LockTimeout(FDBError):
    """A transaction timed out (1031) while another process held the writers' lock.

    Nothing was stored. `process` is the holder's id, `None` if it is not known; `is_stopped` tells
    whether that process is stopped, by Ctrl-Z or a debugger for example.
    """

    def __init__(self, path: str, process: int | None, is_stopped: bool) -> None:
        super().__init__(1031)
        self.path = path
        self.process = process
        self.is_stopped = is_stopped

    @property
    def reason(self) -> str:
        """Which process holds the lock, and what to do about it."""
        if self.process is None:
            return f"another process holds the lock {self.path}"
        if not self.is_stopped:
            return f"process {self.process} holds the lock {self.path}"
        return (
            f"process {self.process} is stopped and holds the lock {self.path}; "
            f"continue it (kill -CONT {self.process}) or end it"
        )

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.reason}"


class ClusterUnavailable(FdbqueueError):
    """A FoundationDB cluster cannot be used from here."""


class LayoutVersionMismatch(FdbqueueError):
    """A queue was written by a release with another layout of keys."""

    def __init__(self, found: object, expected: int) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"the queue has layout {found!r} and this release writes layout {expected}; use the "
            "release that wrote it, or export the queue there and import it here"
        )


class InvalidPriority(FdbqueueError, ValueError):
    """A priority that this queue does not take; nothing was stored."""

    def __init__(self, priority: object, expected: str) -> None:
        self.priority = priority
        self.expected = expected
        super().__init__(f"priority {priority!r} ({type(priority).__name__}) is not {expected}")


class InvalidValue(FdbqueueError, ValueError):
    """A value that the queue's codec cannot store; nothing was stored."""

    def __init__(self, value: object, reason: str) -> None:
        self.value = value
        self.reason = reason
        super().__init__(reason)


class InvalidTask(FdbqueueError, ValueError):
    """A task that cannot be; nothing was stored. `field` and `value` say what of it."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field} {value!r} ({type(value).__name__}) is not {expected}")


class ClockOutOfRange(FdbqueueError):
    """This machine's clock shows a time that ids and times of items cannot hold."""

    def __init__(self) -> None:
        super().__init__("this machine's clock is before 1970 or after 2262; set it and try again")


class PayloadTooLarge(FdbqueueError, ValueError):
    """A payload over the limit of one item; nothing was stored."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the payload has {size:,} bytes and an item holds at most {limit:,}; "
            "store it elsewhere and push where it is"
        )


class UnknownCodec(FdbqueueError, ValueError):
    """A codec that this program does not have."""

    def __init__(self, codec: str, known: Iterable[str]) -> None:
        self.codec = codec
        self.known = tuple(known)
        super().__init__(
            f"no codec is named {codec!r}; there are {', '.join(self.known)}, and a queue that was "
            "made with another one has to be opened with that"
        )


class UndecodableItem(FdbqueueError):
    """An item whose bytes the queue's codec cannot read; it is still in the queue."""

    def __init__(self, item_id: str, reason: str) -> None:
        self.item_id = item_id
        self.reason = reason
        super().__init__(
            f"item {item_id} cannot be read: {reason}; it is still in the queue, "
            "open the queue with the codec that wrote it or remove the item by its id"
        )


class ForeignKey(FdbqueueError):
    """A key in the place of the items that is no item's; nothing was changed."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        super().__init__(
            f"the key {key!r} is no item of this queue; somebody else writes to its subspace, "
            "or it was opened with other priorities: `fdbq check` shows all such keys"
        )


class InvalidItemId(FdbqueueError, ValueError):
    """A text that is no id of an item of this queue."""

    def __init__(self, item_id: object) -> None:
        self.item_id = item_id
        super().__init__(f"{item_id!r} is not the id of an item; `items` shows the ids")


class InvalidQueueName(FdbqueueError, ValueError):
    """A text that cannot be the name of a queue."""

    def __init__(self, name: object, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name!r} cannot be the name of a queue: {reason}")


class QueueNotFound(FdbqueueError, LookupError):
    """No queue of that name was ever pushed to."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no queue named {name!r}; `fdbq ls` shows those that there are")


class QueueExists(FdbqueueError):
    """There is a queue of that name already; nothing was changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is a queue named {name!r} already; drop it or choose another name")


class QueueRenamed(FdbqueueError):
    """The name that a queue was opened by has come to be that of another one."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the queue that was opened as {name!r} is gone, and another one has that name now; "
            "open it again"
        )


class OptionsMismatch(FdbqueueError):
    """A queue was opened with other options than it has; nothing was stored."""

    def __init__(self, option: str, given: object, stored: object) -> None:
        self.option = option
        self.given = given
        self.stored = stored
        super().__init__(
            f"the queue has {option} {_named(stored)} and was opened with {_named(given)}; "
            "leave the option out to take what the queue has"
        )


def _named(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_named, value))})"
    return value.__name__ if isinstance(value, type) else repr(value)


class QueueFull(FdbqueueError):
    """There is no room for an item to push, or a dead letter to retry; nothing was changed."""

    def __init__(self, max_size: int, wanted: int) -> None:
        self.max_size = max_size
        self.wanted = wanted
        super().__init__(
            f"the queue holds at most {max_size:,} items and has no room for {wanted:,} more; "
            "delayed and claimed items count: try again when some were popped or acknowledged"
        )


class LeaseLost(FdbqueueError):
    """A claim whose lease ran out, so that others may have its item; nothing was changed."""

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        super().__init__(
            f"the claim of item {item_id} is over: its lease ran out, or it was acknowledged or "
            "given back before; another worker may have it"
        )


class QueueTooLargeToCheck(FdbqueueError):
    """The scan of a check did not end within the five seconds of a transaction."""

    def __init__(self, scanned: int) -> None:
        self.scanned = scanned
        super().__init__(
            f"the check read {scanned:,} items and ran out of a transaction's five seconds; "
            "check a shorter queue, or this one when the machine is less busy"
        )


class InvalidIdempotencyKey(FdbqueueError, ValueError):
    """A text that is no idempotency key; nothing was stored."""

    def __init__(self, key: object, longest: int) -> None:
        self.key = key
        super().__init__(f"an idempotency key is text of 1 to {longest} bytes, not {key!r}")


class HandlerTooSlow(FdbqueueError):
    """A handler that is part of a transaction took longer than one lives; nothing was written."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the handler took {seconds:.1f} seconds, and a transaction lives five; do what is "
            "slow in a handler that takes no transaction"
        )


class InvalidUniqueKey(FdbqueueError, ValueError):
    """A value under which no item can be unique; nothing was stored."""

    def __init__(self, key: object, longest: int) -> None:
        self.key = key
        super().__init__(f"unique is text of 1 to {longest} bytes in UTF-8, not {key!r}")


class IdempotencyKeyReused(FdbqueueError, ValueError):
    """An idempotency key came again, with something else to push; nothing was stored."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the idempotency key {key!r} was used for another push; choose a new key for each push"
        )


class ImportMismatch(FdbqueueError):
    """An input differs from what an earlier, unfinished import of the same source stored."""

    def __init__(self, source: str, lines: int) -> None:
        self.source = source
        self.lines = lines
        super().__init__(
            f"{source}: its first {lines:,} lines are not those that an earlier import stored; "
            "run with --again to import it from the start"
        )


class ImportRunning(FdbqueueError):
    """Another import of the same source went on at the same time; no line was stored twice."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"{source}: another import of it is running, or the queue was cleared; when that has "
            "ended, run this one again to go on from there"
        )


class InvalidLine(FdbqueueError, ValueError):
    """A line of an import that cannot be stored; the lines before it are.

    `source` is what the import is known by; one without can only be begun anew.
    """

    def __init__(self, number: int, reason: str, source: str | None) -> None:
        self.number = number
        self.reason = reason
        self.source = source
        done = "the lines before it are stored, correct it and run the import again to go on"
        if number == 1:
            done = "nothing was stored"
        elif source is None:
            done = "the lines before it are stored, import the others when it is corrected"
        super().__init__(f"line {number:,}: {reason}; {done}")
