"""The errors that fdbqueue raises. Each message says what is wrong and what to do.

The tree of their classes::

    FdbqueueError
    ├── FDBError                    an error with FoundationDB's code
    │   ├── CommitUnknownResult
    │   ├── DatabaseClosed
    │   └── LockTimeout
    ├── StorageError                a fault in the files
    │   ├── CorruptDatabase, FormatVersionMismatch, NotADatabase, UnsafeDirectory
    │   └── DiskFull, FilesReplaced, ReadOnlyDatabase, SyncFailed
    ├── ClusterUnavailable
    ├── QueueNotFound, QueueExists, QueueFull, OptionsMismatch, LeaseLost, ...
    └── InvalidPriority, InvalidValue, InvalidTask, InvalidItemId, ...      also of type ValueError

`fdbqueue.jobs` and `fdbqueue.admin` have further errors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast, dataclass_transform

__all__ = [
    "ClusterUnavailable",
    "CommitUnknownResult",
    "CorruptDatabase",
    "FDBError",
    "FdbqueueError",
    "ForeignClaim",
    "InvalidItemId",
    "InvalidPriority",
    "InvalidQueueName",
    "InvalidTask",
    "InvalidValue",
    "LayoutVersionMismatch",
    "LeaseLost",
    "LockTimeout",
    "NoResult",
    "NotADatabase",
    "OptionsMismatch",
    "PayloadTooLarge",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "StorageError",
    "TimedOut",
    "WrongState",
    "error_classes",
]


# FoundationDB's codes and names (flow/error_definitions.h), limited to the errors that the embedded
# engine, or a wrapper that injects faults, can raise.
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
    1039: "The protocol version of the cluster has changed",
    1101: "Asynchronous operation cancelled",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2017: "Operation issued while a commit was outstanding",
    2020: "Transaction does not have a valid commit version",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2210: "Exact streaming mode requires limits, but none were given",
    4000: "An unknown error occurred",
}


@dataclass_transform(eq_default=False)
class FdbqueueError(Exception):
    """The base class of every error of this library. Pickling preserves all fields.

    In a class with a template, annotations declare the fields and the constructor's arguments.
    """

    _template: ClassVar[str] = ""
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = [name for name in cls.__annotations__ if name not in cls._fields]
        cls._fields = (*cls._fields, *own)

    def __init__(self, *values: object, **named: object) -> None:
        if not self._template:
            super().__init__(*values)
            return
        given = {**dict(zip(self._fields, values)), **named}
        for name in self._fields:
            self.__dict__[name] = given[name] if name in given else getattr(self, name)
        super().__init__(self._template.format(self=self))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is unpickled by calling its class with the message, which does not
        # match the constructors.
        return restored, (type(self), self.args, self.__dict__)


def restored(
    kind: type[FdbqueueError], args: tuple[Any, ...], fields: dict[str, Any]
) -> FdbqueueError:
    """Return an error of a class with this message and these fields."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class FDBError(FdbqueueError):
    """An error of the embedded engine, with FoundationDB's code and description.

    >>> print(FDBError(1020))
    Transaction not committed due to conflict with another transaction (1020)
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> str:
        """FoundationDB's description of the code."""
        return DESCRIPTIONS.get(self.code, "Unknown error")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


class CommitUnknownResult(FDBError):
    """A written commit that the disk did not confirm (1021). Others see it once it is on disk."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(1021)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.path}: the disk has not confirmed it: {self.reason}"


class DatabaseClosed(FDBError):
    """A call on a closed database (1025)."""

    def __init__(self) -> None:
        super().__init__(1025)

    @property
    def description(self) -> str:
        """The message, which is not FoundationDB's."""
        return "the database was closed; open it again with fdbqueue.open"


class LockTimeout(FDBError):
    """A timeout (1031) while another process held the writers' lock. Nothing was stored.

    Attributes:
        process: The id of that process; `None` if unknown.
        is_stopped: Whether it is stopped, for example by a debugger.
    """

    def __init__(self, path: str, process: int | None, is_stopped: bool) -> None:
        super().__init__(1031)
        self.path = path
        self.process = process
        self.is_stopped = is_stopped

    @property
    def reason(self) -> str:
        """The process that holds the lock, and what to do about it."""
        if self.process is None:
            return f"another process holds the lock {self.path}"
        if not self.is_stopped:
            return f"process {self.process} holds the lock {self.path}"
        return (
            f"process {self.process} is stopped and holds the lock {self.path}; "
            f"resume it (kill -CONT {self.process}) or end it"
        )

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.reason}"


class StorageError(FdbqueueError):
    """A fault in the files of an embedded database.

    Attributes:
        path: The file or directory.
        problem: What is wrong.
        advice: What to do.
    """

    path: str
    problem: str = "the storage failed"
    advice: str = "check the system log for disk errors"

    _template = "{self.path}: {self.problem}; {self.advice}"


class NotADatabase(StorageError):
    """A path that holds something other than an fdbqueue database."""

    problem = "this is not an fdbqueue database"
    advice = "name a directory that fdbqueue created, or one that does not exist yet"


class CorruptDatabase(StorageError):
    """A database whose files are damaged or incomplete."""

    problem = "the database is damaged"
    advice = "restore a backup; sqlite3's `.recover` extracts what is still readable"


class FormatVersionMismatch(StorageError):
    """A database directory written by a release with another format."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            path,
            f"the database has format {found} and this release reads format {expected}",
            "back it up with the release that wrote it (fdbq backup --all FILE), and restore that "
            "into a new directory (fdbq restore FILE)",
        )


class DiskFull(StorageError):
    """A write that failed because the disk is full. Acknowledged commits are safe."""

    problem = "the disk is full"
    advice = "free some space and retry; nothing of this transaction was stored"


class ReadOnlyDatabase(StorageError):
    """A database whose directory or files cannot be written."""

    problem = "the database cannot be written"
    advice = "make the directory and its files writable for this user, or name another directory"


class UnsafeDirectory(StorageError):
    """A database directory through which other users could redirect this user to other files.

    A file is a link, every user can write to the directory, or another user owns it and does not
    share it with this user's groups.
    """

    problem = "the directory is not safe from other users"
    advice = "name a directory of your own"


class FilesReplaced(StorageError):
    """An open file that was removed, replaced or truncated. This transaction stored nothing."""

    advice = "close the database in every process, then open it again"

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        super().__init__(
            path, f"the file {name} was removed, replaced or truncated while it was in use"
        )


class SyncFailed(StorageError):
    """A database whose last commits the disk did not confirm. This transaction stored nothing.

    After all processes have closed the database, the next to open it copies it to new files.
    """

    problem = "the disk did not confirm a write"
    advice = (
        "check the system log for disk errors; then end every process that has the database open "
        "and start them again, with room on the disk for a copy of it"
    )


class ClusterUnavailable(FdbqueueError):
    """A FoundationDB cluster that this process cannot use."""

    reason: str

    _template = "{self.reason}"


class LayoutVersionMismatch(FdbqueueError):
    """A queue written by a release with another key layout, or with options unknown to this one."""

    found: object
    expected: int

    _template = (
        "the queue has layout {self.found} and this release uses layout {self.expected}; use the "
        "release that wrote it, or export the queue with that release and import it here"
    )


class InvalidPriority(FdbqueueError, ValueError):
    """A priority that the queue does not accept. Nothing was stored."""

    priority: object
    expected: str

    _template = (
        "priority {self.priority!r:.100} ({self.priority.__class__.__name__}) must be "
        "{self.expected}"
    )


class InvalidValue(FdbqueueError, ValueError):
    """A value that the queue's codec cannot encode. Nothing was stored."""

    value: object
    reason: str

    _template = "{self.reason}"


class InvalidTask(FdbqueueError, ValueError):
    """A task with an invalid field. Nothing was stored."""

    field: str
    value: object
    expected: str

    _template = (
        "{self.field} {self.value!r:.100} ({self.value.__class__.__name__}) must be {self.expected}"
    )


class ClockOutOfRange(FdbqueueError):
    """A machine clock outside the range that item ids and times can hold."""

    _template = "this machine's clock is before 1970 or after 2262; set it and try again"


class PayloadTooLarge(FdbqueueError, ValueError):
    """A payload larger than its holder, such as an item, accepts. Nothing was stored."""

    size: int
    limit: int
    holder: str = "an item"

    _template = (
        "the payload has {self.size:,} bytes and {self.holder} holds at most {self.limit:,}; "
        "store it elsewhere, and a reference to it instead"
    )


class PushTooLarge(FdbqueueError, ValueError):
    """A push that does not fit in one transaction. A caller's transaction must not commit."""

    n: int
    size: int
    limit: int

    _template = (
        "a push of {self.n:,} items takes {self.size:,} bytes, over the limit of {self.limit:,}; "
        "push them in several calls"
    )


class UnknownCodec(FdbqueueError, ValueError):
    """A codec name that this program does not know."""

    def __init__(self, codec: str, known: Iterable[str]) -> None:
        self.codec = codec
        self.known = tuple(known)
        super().__init__(
            f"no codec is named {codec!r}; the built-in codecs are {', '.join(self.known)}. Open a "
            "queue that was created with a custom codec with that codec"
        )


class UndecodableItem(FdbqueueError):
    """An item that the queue's codec cannot decode. It is still in the queue."""

    item_id: str
    reason: str

    _template = (
        "item {self.item_id} cannot be decoded: {self.reason}; it is still in the queue. Open the "
        "queue with the codec that encoded the item, or remove the item by its id"
    )


class UndecodableQueue(FdbqueueError):
    """A queue with keys or values that this library cannot have written."""

    reason: str

    _template = (
        "the queue holds bytes that cannot be read ({self.reason}): another program has written "
        "to it. `fdbq drop` removes it"
    )


class ForeignKey(FdbqueueError):
    """A key among a queue's items that belongs to no item. Nothing was changed."""

    key: bytes

    _template = (
        "the key {self.key!r} does not belong to an item of this queue; another program writes to "
        "the queue's subspace, or the queue was opened with other priorities. `fdbq check` "
        "lists all such keys"
    )


class InvalidItemId(FdbqueueError, ValueError):
    """A text that is not the id of an item of this queue."""

    item_id: object

    _template = "{self.item_id!r} is not the id of an item; `items` lists the ids"


class InvalidQueueName(FdbqueueError, ValueError):
    """A text that cannot name a queue."""

    name: object
    reason: str

    _template = "{self.name!r} cannot be the name of a queue: {self.reason}"


class QueueNotFound(FdbqueueError, LookupError):
    """An unknown queue name.

    Attributes:
        similar: Similar names, the most similar first.
        others: Other names, if none is similar.

    >>> print(QueueNotFound("jbos", ("jobs",)))
    there is no queue named 'jbos'; did you mean 'jobs'?
    """

    def __init__(self, name: str, similar: Sequence[str] = (), others: Sequence[str] = ()) -> None:
        self.name = name
        self.similar = tuple(similar)
        self.others = tuple(others)
        hint = "there are no queues in this database"
        if similar:
            hint = f"did you mean {' or '.join(map(repr, similar))}?"
        elif others:
            hint = f"existing queues: {', '.join(map(repr, others))} (`fdbq ls` lists all)"
        super().__init__(f"there is no queue named {name!r}; {hint}")


class WrongState(FdbqueueError):
    """An item in a state in which it cannot be changed. Nothing was changed.

    Attributes:
        state: Its state; `"begun"` if its job has stored steps, `"waiting"` if it waits for jobs
            or a signal, `"gone"` if it has left the queue.
    """

    id: str
    state: str

    _template = "item {self.id} {self._why}"

    @property
    def _why(self) -> str:
        return _REFUSED.get(self.state) or f"is {self.state}; push a new item"


_REFUSED = {
    "claimed": "is claimed; wait until its claim ends, or end the claim with `release`",
    "begun": "has begun: its steps need its value and its time as they are; cancel it instead",
    "waiting": "waits for other jobs or a signal, and not for a time; cancel it instead",
    "gone": "is not in the queue, or no longer; push a new item",
}


class NoResult(FdbqueueError, LookupError):
    """A job without a result: unfinished, failed for good, or unknown.

    Attributes:
        state: Its state, `"discarded"` or `"cancelled"`; `None` if unknown.
        error: The last error of a dead letter, or why the job was discarded.
    """

    def __init__(self, id: str, state: str | None, error: str | None = None) -> None:
        self.id = id
        self.state = state
        self.error = error
        reason = f"it is {state}, not done yet; wait longer"
        if state is None:
            reason = (
                "the queue does not know it; it may have been removed, or be done and no longer "
                "kept (`configure(db, keep=...)` sets which done items the queue keeps)"
            )
        elif state == "dead":
            reason = f"it is a dead letter: {error or 'no error was given'}"
        elif state in ("discarded", "cancelled"):
            reason = f"it was {state}" if error is None else f"it was {state}: {error}"
        super().__init__(f"item {id} has no result: {reason}")


class QueueExists(FdbqueueError):
    """A queue name that is already taken. Nothing was changed."""

    name: str

    _template = (
        "a queue named {self.name!r} already exists; choose another name, or drop that queue if "
        "nobody needs it"
    )


class QueueRenamed(FdbqueueError):
    """A queue whose name now belongs to another queue."""

    name: str

    _template = (
        "the queue that was opened as {self.name!r} was renamed or dropped, and another queue now "
        "has that name; open it again"
    )


_USE_OWN = "omit the option to use the queue's own"
_REMEDIES = {
    "kind": "`existing_queue` opens a queue of any kind",
    "codec": _USE_OWN,
    "priorities": _USE_OWN,
}


class OptionsMismatch(FdbqueueError):
    """A queue opened with options other than its stored ones. Nothing was stored."""

    def __init__(self, option: str, given: object, stored: object) -> None:
        self.option = option
        self.given = given
        self.stored = stored
        super().__init__(
            f"the queue has {option} {_named(stored)} and was opened with {_named(given)}; "
            + _REMEDIES.get(
                option, f"omit the option, or change it with `configure(db, {option}=...)`"
            )
        )


def _named(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_named, cast('tuple[object, ...]', value)))})"
    return value.__name__ if isinstance(value, type) else repr(value)


class QueueFull(FdbqueueError):
    """A push or a retry for which the queue or a group has no room. Nothing was changed."""

    def __init__(self, max_size: int, wanted: int, group: str | None = None) -> None:
        self.max_size = max_size
        self.wanted = wanted
        self.group = group
        full = "the queue" if group is None else f"the group {group!r}"
        super().__init__(
            f"{full} holds at most {max_size:,} item{'' if max_size == 1 else 's'} and has no "
            f"room for {wanted:,} more; "
            "delayed and claimed items count. Retry after some were popped or acknowledged"
        )


class InvalidShards(FdbqueueError, ValueError):
    """A queue cannot have this number of shards now, or not with its other options."""

    def __init__(self, shards: int, why: str) -> None:
        super().__init__(f"shards={shards}: {why}")
        self.shards = shards
        self.why = why


class LeaseLost(FdbqueueError):
    """A claim that is over; another worker may have its item. Nothing was changed."""

    item_id: str

    _template = (
        "the claim of item {self.item_id} is over: its lease expired, or it was already "
        "acknowledged or returned; another worker may have the item"
    )


class ForeignClaim(FdbqueueError, ValueError):
    """A claim of another queue. Nothing was changed."""

    def __init__(self, queue: str | None, key: bytes) -> None:
        self.queue = queue
        self.key = key
        name = "this queue" if queue is None else f"the queue {queue!r}"
        super().__init__(
            f"the claim is not one of {name}: its item has the key {key!r}; pass a claim to the "
            "queue that returned it"
        )


class InvalidClaimToken(FdbqueueError, ValueError):
    """A text that is not a claim's token. Nothing was changed."""

    text: str

    _template = (
        "{self.text!r:.100} is not the token of a claim; send the `token` that `claim` returned"
    )


class QueueChanged(FdbqueueError):
    """A queue that changed while it was backed up. Nothing was copied."""

    name: str

    _template = (
        "queue {self.name!r} changed while it was read; pause it (`fdbq pause`), stop the clients "
        "that push, pop or hold claims, and start again"
    )


class InvalidBackup(FdbqueueError, ValueError):
    """A file that is not a complete backup, or is damaged. Nothing was restored.

    Attributes:
        line: The number of the first wrong line, from 1.
    """

    line: int
    reason: str

    _template = "line {self.line:,}: {self.reason}; nothing was restored"


class RestoreRunning(FdbqueueError):
    """A restore or copy of a queue, overtaken by another. The queue has no name yet."""

    name: str

    _template = (
        "another restore or copy of queue {self.name!r} has begun, or its rows were dropped; run "
        "this one again, once the other has ended"
    )


class QueueTooLargeToCheck(FdbqueueError):
    """A check that did not finish within the five seconds of a transaction."""

    scanned: int

    _template = (
        "the check read {self.scanned:,} items before the five seconds of a transaction were over; "
        "check a shorter queue, or retry when the machine is less busy"
    )


class HandlerTooSlow(FdbqueueError):
    """A handler or a function of `at_end` that outlived its transaction. Nothing was written."""

    seconds: float

    _template = (
        "the function took {self.seconds:.1f} seconds, but a transaction lives five; move the slow "
        "part into a handler without a transaction"
    )


class TimedOut(FdbqueueError):
    """A job that ran for too long."""

    seconds: float

    _template = "the job ran for more than {self.seconds:g} seconds"


class InvalidSchedule(FdbqueueError, ValueError):
    """An invalid schedule. Nothing was stored."""

    name: str
    reason: str

    _template = "the schedule {self.name!r}: {self.reason}"


class IdempotencyKeyReused(FdbqueueError, ValueError):
    """An idempotency key used again for a different push. Nothing was stored."""

    key: str

    _template = (
        "the idempotency key {self.key!r} was already used for another push; "
        "choose a new key for each push"
    )


class InvalidLine(FdbqueueError, ValueError):
    """A line of an import that cannot be stored. The lines before it are stored.

    Attributes:
        number: The line, from 1.
        source: The name of the import; `None` if its lines have no keys.
    """

    def __init__(self, number: int, reason: str, source: str | None) -> None:
        self.number = number
        self.reason = reason
        self.source = source
        done = "the lines before it are stored; correct it and run the import again to continue"
        if number == 1:
            done = "nothing was stored"
        elif source is None:
            done = "the lines before it are stored; correct it and import the remaining lines"
        super().__init__(f"line {number:,}: {reason}; {done}")


def error_classes() -> tuple[type[FDBError], ...]:
    """Return the classes of errors with a FoundationDB code, for an `except` clause.

    The binding's own class exists only after its C library is loaded.

    >>> error_classes()[0].__name__
    'FDBError'
    """
    binding = sys.modules.get("fdb.impl")
    return (FDBError,) if binding is None else (FDBError, binding.FDBError)


_MAX_TEXT = 1_000  # characters of an error that a queue stores


def error_text(error: object, reason: str = "") -> str | None:
    """Return the text to store for an error, cut to 1,000 characters.

    `reason` precedes it, unless the error contains it. Raise `TypeError` for an error of another
    type.

    >>> error_text(ValueError("no such address"), "cannot send")
    'cannot send: ValueError: no such address'
    """
    if isinstance(error, BaseException):
        name = type.__dict__["__name__"].__get__(type(error))  # its metaclass may raise an error
        try:
            error = f"{name}: {error}"
        except BaseException:  # raised by its `__str__`
            error = f"{name} (its text cannot be read)"
    if error is not None and not isinstance(error, str):
        raise TypeError(f"an error must be a text or an exception, not {error!r}")
    if reason not in (error or ""):
        error = f"{reason}: {error}"
    return error and error[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def unknown_job(name: str, version: int) -> str:
    """Return why a job that no worker knows waits or has died."""
    return f"no worker knows the job {name!r}" + (f" in version {version}" if version > 1 else "")
