"""Opening a database, and running transactions on it: again after a conflict, never twice."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import fdb
import platformdirs
from fdb import tuple as fdb_tuple
from fdb.subspace_impl import Subspace

from fdbqueue.embedded import Database, KeySelector
from fdbqueue.errors import ClusterUnavailable, FDBError

__all__ = [
    "API_VERSION",
    "error_classes",
    "first_greater_or_equal",
    "is_database",
    "open",
    "read",
    "retries",
    "run",
    "run_once",
    "transactional",
]

API_VERSION = 730

_T = TypeVar("_T")


def open(
    url: str | os.PathLike[str] | None = None, *, durability: str = "full", create: bool = True
) -> Any:
    """Open a database: embedded in a directory, in memory, or a FoundationDB cluster.

    - `"embedded:/path"` or the path of a directory: the embedded engine there, made if missing;
    - `"memory:"`: a private one in memory, gone when closed;
    - the path of a cluster file: that cluster; API version 730 is selected if the program has not
      selected one;
    - nothing: what `$FDBQ_DB` names, else the cluster of `$FDB_CLUSTER_FILE`, else the embedded
      engine in the user's data directory.

    `durability` is the embedded engine's: `"full"`, where a commit that returned is on disk, or
    `"os"`, where it survives the process but the last moments may be lost with the machine.
    `create=False` makes no directory: `NotADatabase` where the embedded engine has none.

    Raises `StorageError` (see its subclasses) for a directory that cannot be used and
    `ClusterUnavailable` where there is no client library or no cluster file.

    >>> db = open("memory:")
    >>> db[b"k"] = b"v"
    >>> db[b"k"]
    b'v'
    """
    named = os.environ.get("FDBQ_DB") or None if url is None else os.fspath(url)
    if not isinstance(named, (str, type(None))):
        raise TypeError(f"a database is named by text or a path, not by {url!r}")
    if named is None:
        if cluster_file := os.environ.get("FDB_CLUSTER_FILE"):
            return _open_cluster(cluster_file)
        return Database(platformdirs.user_data_path("fdbqueue"), durability, create=create)
    if not named:
        raise ValueError("an empty text names no database; leave it out for the default one")
    if named == "memory:":
        return Database(None, durability)
    if named.startswith("embedded:"):
        if not (path := named.removeprefix("embedded:")):
            raise ValueError("'embedded:' needs a path behind it: 'embedded:/var/lib/jobs'")
        return Database(path, durability, create=create)
    if re.match(r"\w\w+:", named):
        raise ValueError(
            f"{named!r} is no database: write 'embedded:/path', 'memory:' or a cluster file's path"
        )
    if Path(named).is_file() or named.endswith(".cluster"):
        return _open_cluster(named)
    return Database(named, durability, create=create)


# The network thread of FoundationDB's client does not survive a fork, and what a child asks of it
# hangs, in the parent too.
_client_was_forked = False


def _note_fork() -> None:
    global _client_was_forked
    if getattr(sys.modules.get("fdb.impl"), "_network_thread", None) is not None:
        _client_was_forked = True


os.register_at_fork(after_in_child=_note_fork)


def _check_fork(db: Any = None) -> None:
    """Raise in a process that was forked after a cluster was opened, unless `db` is no cluster."""
    if _client_was_forked and (db is None or type(db).__module__ == "fdb.impl"):
        raise ClusterUnavailable(
            "this process was forked from one that had a cluster open, and FoundationDB's client "
            "does not work in it; open clusters after the fork, or start processes by 'spawn'"
        )


def _open_cluster(cluster_file: str) -> Any:
    _check_fork()
    if not Path(cluster_file).is_file():
        raise ClusterUnavailable(f"there is no cluster file {cluster_file}")
    lines = Path(cluster_file).read_text(errors="replace").splitlines()
    if not any(re.match(r"\s*\w+:\w+@\S+", line) for line in lines):
        raise ClusterUnavailable(
            f"{cluster_file} is no cluster file: it has no line 'description:id@host:port'"
        )
    try:
        if not fdb.is_api_version_selected():
            fdb.api_version(API_VERSION)
    except Exception as error:
        # The binding raises a bare Exception without the library, a RuntimeError with an old one.
        raise ClusterUnavailable(
            f"the FoundationDB client library 7.3 (libfdb_c) cannot be used: {error}; install the "
            "package foundationdb-clients of the cluster's release"
        ) from error
    try:
        return fdb.open(cluster_file)
    except error_classes() as error:
        raise ClusterUnavailable(f"{cluster_file} cannot be opened: {error}") from error


def error_classes() -> tuple[type[FDBError], ...]:
    """The classes of errors that have a FoundationDB code, for an `except` clause.

    The binding's own class exists only once its C library is loaded.

    >>> error_classes()[0].__name__
    'FDBError'
    """
    binding = sys.modules.get("fdb.impl")
    return (FDBError,) if binding is None else (FDBError, binding.FDBError)


def first_greater_or_equal(key: bytes, offset: int) -> Any:
    """The key selector of the first key from `key` on, and so many keys further.

    It is of the binding's own class once its C library is loaded, else of the engine's.

    >>> first_greater_or_equal(b"k", 2).key
    b'k'
    """
    binding = sys.modules.get("fdb.impl")
    selectors: Any = KeySelector if binding is None else binding.KeySelector
    return selectors.first_greater_or_equal(key) + offset


def is_database(db_or_tr: Any) -> bool:
    """Whether this makes transactions, rather than being one; `TypeError` if it does neither.

    >>> is_database(open("memory:"))
    True
    """
    if hasattr(db_or_tr, "create_transaction"):
        return True
    if hasattr(db_or_tr, "get_range"):
        return False
    raise TypeError(f"a database or a transaction is needed here, not {db_or_tr!r}")


def transactional(
    function: Callable[..., Any] | None = None,
    *,
    parameter: str = "tr",
    receipts: Subspace | None = None,
) -> Any:
    """Decorate a function whose argument `tr` is a transaction, so that it takes a database too.

    The rules are those of `fdb.transactional`, on either engine. Given a database, it makes a
    transaction, runs the function, commits, and does it again after an error that allows it: the
    function may run several times, and must not sleep, commit, or make identities in its body.
    Given a transaction, it just runs: whoever made the transaction commits it and tries again.
    Generators and coroutines are refused. A transaction lives five seconds: a function that takes
    longer is tried again without end (1007), unless the transaction has a retry limit or a time-out
    (`db.options.set_transaction_retry_limit`).

    On a cluster the answer to a commit can get lost (1021), and then the function would take effect
    twice. With `receipts=` a subspace of the caller's, each commit leaves a receipt there, and the
    next attempt finds it: the effect takes place exactly once, and the result of the attempt that
    committed is returned. The embedded engine always knows, and needs no receipts.

    Source: FoundationDB documentation, Python API, "Transactional decoration"; Developer Guide,
    "Transactions with unknown results".

    >>> @transactional
    ... def increment(tr, key):
    ...     tr.add(key, b"\\x01")
    ...     return tr[key][0]
    >>> db = open("memory:")
    >>> increment(db, b"n"), increment(db, b"n")
    (1, 2)
    """
    if receipts is not None and not isinstance(receipts, Subspace):
        raise TypeError(f"receipts is a Subspace of the caller's, not {receipts!r}")
    if function is None:
        return functools.partial(transactional, parameter=parameter, receipts=receipts)
    wrapped = inspect.unwrap(function)
    if inspect.isgeneratorfunction(wrapped) or inspect.iscoroutinefunction(wrapped):
        raise ValueError("Generators and coroutines cannot be wrapped with fdbqueue.transactional")
    arguments = inspect.getfullargspec(wrapped).args
    if parameter not in arguments:
        raise ValueError(
            f"{wrapped.__name__}() has no positional argument {parameter!r} for the transaction; "
            "give its name by transactional(parameter=...)"
        )
    index = arguments.index(parameter)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if parameter not in kwargs and index >= len(args):
            raise TypeError(f"{wrapped.__name__}() needs a database or transaction {parameter!r}")
        given = kwargs[parameter] if parameter in kwargs else args[index]
        if not is_database(given):
            return function(*args, **kwargs)

        def body(tr: Any) -> Any:
            if parameter in kwargs:
                result = function(*args, **{**kwargs, parameter: tr})
            else:
                result = function(*args[:index], tr, *args[index + 1 :], **kwargs)
            if inspect.isgenerator(result) or inspect.iscoroutine(result):
                raise ValueError(
                    "Generators and coroutines cannot be wrapped with fdbqueue.transactional"
                )
            return result

        return run(given, body) if receipts is None else run_once(given, body, receipts)

    return wrapper


class _Retries:
    """How often this process tried a transaction again, by the code of the error: 1020 conflicts.

    For metrics. Of transactions that a caller runs by itself it knows nothing.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin with none, in a forked child too."""
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()

    def note(self, code: int) -> None:
        with self._lock:
            self._counts[code] += 1

    def counts(self) -> dict[int, int]:
        with self._lock:
            return dict(self._counts)


retries = _Retries()
os.register_at_fork(after_in_child=retries.clear)


def read(tr: Any, body: Callable[[Any], _T]) -> _T:
    """Run a read in the caller's transaction, or, given a database, in one of its own.

    >>> read(open("memory:"), lambda tr: tr[b"k"].present())
    False
    """
    return run(tr, body) if is_database(tr) else body(tr)


def run(db: Any, body: Callable[[Any], _T]) -> _T:
    """Run `body(tr)` in a transaction and commit it, again and again until it goes through.

    After an unknown commit result the body may take effect twice: for reads, and for bodies that
    may; `run_once` is for the others.

    >>> run(open("memory:"), lambda tr: tr[b"k"].present())
    False
    """
    _check_fork(db)
    transaction = db.create_transaction()
    while True:
        try:
            result = body(transaction)
            transaction.commit().wait()
            return result
        except error_classes() as error:
            _prepare_retry(transaction, error)


def _prepare_retry(transaction: Any, error: Any) -> None:
    """Wait until the next attempt of a transaction; raise the error if there is to be none."""
    try:
        transaction.on_error(error.code).wait()
    except error_classes() as final:
        if final.code == error.code:
            raise error from None  # it may say more than its code
        raise
    retries.note(error.code)


def run_once(
    db: Any,
    body: Callable[[Any], _T],
    receipts: Subspace,
    wrote: Callable[[Any], bool] = lambda _: True,
    committed: Callable[[Any], object] = lambda _: None,
) -> _T:
    """Like `run`, and the body takes effect exactly once, even if a commit's outcome is unknown.

    Each operation of a client (of this process; one operation at a time each) has a number. The
    commit writes it to the client's receipt and conflicts on it. After an unknown outcome the next
    attempt reads the receipt: it is there, and that attempt committed; or it is not, and then that
    attempt cannot commit any more, for this one overwrites the key on which it conflicts.

    `wrote(result)` is false where the body wrote nothing; such an attempt leaves no receipt.
    `committed(tr)` is called with a transaction that is known to have committed, unless the engine
    is one without any doubt about that.
    Receipts are kept for a day under the hour in which their client began, and dropped by clients
    that begin later. An error that cannot be tried again after an unknown outcome (a time-out,
    1031) is raised only once it is sure that nothing took effect; 1021 is raised only where the
    database cannot be asked any more.

    >>> run_once(open("memory:"), lambda tr: 7, Subspace(("receipts",)))
    7
    """
    if getattr(db, "commits_are_certain", False):
        return run(db, body)
    _check_fork(db)
    with _a_client() as client:
        result: _T = _Operation(db, body, receipts, wrote, committed, client).run()
        return result


# What the error of a commit leaves open: it may have taken place.
_MAYBE_COMMITTED = frozenset({1021, 1031, 1039})
_RECEIPT_HOURS = 24


class _Client:
    """An identity under which operations are numbered, for the hour in which it began."""

    def __init__(self) -> None:
        self.hour = int(time.time() // 3600)
        self.id = uuid.uuid4().bytes
        self.sequence = 0


_free_clients: list[_Client] = []
os.register_at_fork(after_in_child=_free_clients.clear)


@contextmanager
def _a_client() -> Iterator[_Client]:
    """An identity for one operation: one that is free, or a new one."""
    try:
        client = _free_clients.pop()
        if client.hour != int(time.time() // 3600):
            client = _Client()
    except IndexError:
        client = _Client()
    client.sequence += 1
    yield client
    # After an error the identity is not used again: its last operation may be on its way yet.
    _free_clients.append(client)


class _Operation:
    """One exactly-once operation: its attempts and the results that they would have."""

    def __init__(
        self,
        db: Any,
        body: Callable[[Any], Any],
        receipts: Subspace,
        wrote: Callable[[Any], bool],
        committed: Callable[[Any], object],
        client: _Client,
    ) -> None:
        self._db = db
        self._body = body
        self._wrote = wrote
        self._committed = committed
        self._client = client
        self._receipts = receipts
        self._key = receipts.pack((client.hour, client.id))
        self._results: list[Any] = []

    def run(self) -> Any:
        transaction = self._db.create_transaction()
        uncertain = False
        while True:
            committing = False
            try:
                if uncertain and (done := self._receipt(transaction)) is not None:
                    return self._results[done]
                result = self._body(transaction)
                # After an unknown outcome even an attempt that wrote nothing has to fence that one.
                if uncertain or self._wrote(result):
                    self._results.append(result)
                    self._write_receipt(transaction, len(self._results) - 1)
                    committing = True
                transaction.commit().wait()
            except error_classes() as error:
                uncertain = uncertain or (committing and error.code in _MAYBE_COMMITTED)
                try:
                    _prepare_retry(transaction, error)
                except error_classes():
                    if not uncertain:
                        raise
                    return self._settle(error)
            else:
                self._committed(transaction)
                return result

    def _receipt(self, transaction: Any) -> int | None:
        """Which attempt committed, if one did."""
        receipt = transaction[self._key].value
        if receipt is None:
            return None
        sequence, attempt = fdb_tuple.unpack(receipt)
        return attempt if sequence == self._client.sequence else None

    def _write_receipt(self, transaction: Any, attempt: int) -> None:
        transaction.add_read_conflict_key(self._key)
        transaction[self._key] = fdb_tuple.pack((self._client.sequence, attempt))
        if self._client.sequence == 1:
            outdated = self._receipts.pack((self._client.hour - _RECEIPT_HOURS,))
            transaction.clear_range(self._receipts.range().start, outdated)

    def _settle(self, error: Any) -> Any:
        """Find out what became of an attempt after which there is no other.

        Where there is no receipt, one that no attempt wrote takes its place, so that the attempt
        cannot commit later.
        """

        def fence(tr: Any) -> int | None:
            done = self._receipt(tr)
            if done is None:
                self._write_receipt(tr, -1)
            return done

        try:
            done = run(self._db, fence)
        except error_classes() as failure:
            raise FDBError(1021) from failure
        if done is None or done < 0:
            raise error
        return self._results[done]
