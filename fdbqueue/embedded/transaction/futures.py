"""The results of a transaction's calls, in the shape of the official binding's futures.

A read of the embedded engine is complete when its call returns, so these futures are ready from the
start. The error of a read is kept and raised where the binding raises it, by `wait()` or by the
first use of the value. Only a durable commit, a watch and the delay after an error take time.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial, total_ordering
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from fdbqueue.errors import CommitUnknownResult, FDBError, FdbqueueError
from fdbqueue.types import KeyLike

if TYPE_CHECKING:
    from typing_extensions import Self

Callback: TypeAlias = Callable[["Future[Any]"], object]

_T = TypeVar("_T")


def fresh(error: BaseException) -> BaseException:
    """Return a copy of a stored error, to be raised.

    The traceback of a raised error refers to the future that stores it, and to the transaction,
    which would keep its snapshot until the next run of the cyclic garbage collector.
    """
    if not isinstance(error, FdbqueueError):
        return error  # one that the program passed to `on_error`
    raised = copy(error)
    if error.__cause__ is not None:
        raised.__cause__ = error.__cause__
    return raised


class Future(Generic[_T]):
    """A result that is ready, or an error that `wait()` raises."""

    __slots__ = ("_error", "_result")

    def __init__(self, result: _T, error: BaseException | None = None) -> None:
        self._result = result
        self._error = error

    def wait(self) -> _T:
        """Return the result once it is ready, or raise its error."""
        if self._error is not None:
            raise fresh(self._error)
        return self._result

    def is_ready(self) -> bool:
        """Return whether the result, or its error, is ready."""
        return True

    def block_until_ready(self) -> None:
        """Wait until the result, or its error, is ready."""

    def on_ready(self, callback: Callback) -> None:
        """Call `callback(self)` once ready. Print its exceptions, as the binding does."""
        try:
            callback(self)
        except Exception:
            print("Discarding uncaught exception from user FDB callback:", file=sys.stderr)
            traceback.print_exc(file=sys.stderr)

    def cancel(self) -> None:
        """Give up on a result that is not ready yet."""

    # The names of asyncio's futures, as in the binding.
    def done(self) -> bool:
        """Return whether the result, or its error, is ready."""
        return self.is_ready()

    def cancelled(self) -> bool:
        """Return whether the result was given up."""
        return self.done() and getattr(self.exception(), "code", 0) == 1101

    def result(self) -> _T:
        """Return the result, or raise its error; raise `RuntimeError` if not ready."""
        if not self.done():
            raise RuntimeError("Future result not available")
        return self.wait()

    def exception(self) -> BaseException | None:
        """Return the error, or `None`; raise `RuntimeError` if not ready."""
        if not self.done():
            raise RuntimeError("Future result not available")
        return self._error

    @staticmethod
    def wait_for_any(*futures: Future[Any]) -> int:
        """Return the index of a future that is ready, once there is one."""
        if not futures:
            raise ValueError("wait_for_any requires at least one future")
        ready: list[int] = []
        woken = threading.Lock()
        woken.acquire()
        for index, future in enumerate(futures):

            def note(_: Future[Any], index: int = index) -> None:
                ready.append(index)
                with suppress(RuntimeError):  # another future has released it
                    woken.release()

            future.on_ready(note)
        woken.acquire()
        return ready[0]


class _SlowFuture(Future[Any]):
    """A future that takes time."""

    __slots__ = ()

    def __init__(self) -> None:
        self._result = self._error = None

    def wait(self) -> Any:
        """Return the result once it is ready, or raise its error."""
        self.block_until_ready()
        return super().wait()


class CommitFuture(_SlowFuture):
    """The result of a commit that has to be on disk.

    The first call that asks for the result waits for the disk, even if that call is `is_ready`.
    """

    __slots__ = ("_end_unknown", "_wait_for_disk")

    def __init__(self, wait_for_disk: Callable[[], None], end_unknown: Callable[[], None]) -> None:
        super().__init__()
        self._wait_for_disk: Callable[[], None] | None = wait_for_disk
        # A method of the transaction, which keeps its database from being closed as garbage.
        self._end_unknown = end_unknown

    def is_ready(self) -> bool:
        """Wait until the commit is on disk, and return true."""
        self.block_until_ready()
        return True

    def block_until_ready(self) -> None:
        """Wait until the commit is on disk."""
        wait_for_disk = self._wait_for_disk
        if wait_for_disk is None:
            return
        try:
            wait_for_disk()
        except FdbqueueError as error:
            self._error = error.with_traceback(None)
            if isinstance(error, CommitUnknownResult):
                self._end_unknown()
        self._wait_for_disk = None

    def on_ready(self, callback: Callback) -> None:
        """Wait until the commit is on disk, and call `callback(self)`."""
        self.block_until_ready()
        super().on_ready(callback)


class Pause(_SlowFuture):
    """The delay of `on_error` before the next attempt."""

    __slots__ = ("_until",)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._until = time.monotonic() + seconds

    def is_ready(self) -> bool:
        """Return whether the delay is over."""
        return time.monotonic() >= self._until

    def block_until_ready(self) -> None:
        """Sleep until the delay is over."""
        while (left := self._until - time.monotonic()) > 0:
            time.sleep(left)

    def on_ready(self, callback: Callback) -> None:
        """Call `callback(self)` once the delay is over, in a thread of its own."""
        timer = threading.Timer(
            max(0.0, self._until - time.monotonic()), super().on_ready, [callback]
        )
        timer.daemon = True
        timer.start()


class _Promise(_SlowFuture):
    """A future that is ready once `finish` is called.

    A waiting thread uses a lock of its own instead of a `threading.Event`. An interrupt inside an
    event leaves the event's lock held, and the next thread that sets the event hangs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_ready = False
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []

    def finish(self, error: BaseException | None = None) -> None:
        """Make the future ready. Only the first call has an effect."""
        with self._lock:
            if self._is_ready:
                return
            self._error = error
            self._is_ready = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            super().on_ready(callback)

    def is_ready(self) -> bool:
        """Return whether the future was finished."""
        return self._is_ready

    def block_until_ready(self) -> None:
        """Wait until the future is finished."""
        woken = threading.Lock()
        woken.acquire()
        self.on_ready(lambda _: woken.release())
        # In slices: on some systems a main thread that waits for a lock receives no signals.
        while not woken.acquire(timeout=1.0):
            pass

    def on_ready(self, callback: Callback) -> None:
        """Call `callback(self)` once ready. Print its exceptions, as the binding does."""
        with self._lock:
            if not self._is_ready:
                self._callbacks.append(callback)
                return
        super().on_ready(callback)


class WatchFuture(_Promise):
    """A future that is ready once the watched key has changed, or the watch is given up."""

    database: object
    """The database, which must stay open while a thread waits."""
    is_ahead: bool
    """True if it may be ready before the change is on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ahead = False
        self._on_cancel: Callable[[WatchFuture], object] | None = None

    def when_cancelled(self, action: Callable[[WatchFuture], object]) -> None:
        """Call `action` when the watch is given up."""
        self._on_cancel = action

    def cancel(self) -> None:
        """Give up the watch: waiting threads get the error 1101."""
        self.finish(FDBError(1101))
        if self._on_cancel is not None:
            self._on_cancel(self)


@total_ordering
class _Bytes(Future[Any]):
    """A future that behaves like the bytes it holds: comparison, methods and `bytes(...)`."""

    __slots__ = ("value",)

    value: Any
    """The bytes; `None` if there is no value. Unset after an error, which `__getattr__` raises."""

    def __init__(self, value: bytes | None, error: BaseException | None = None) -> None:
        self._error = error
        if error is None:
            self.value = value

    # Makes `isinstance(value, bytes)` true, by the same means as the binding.
    @property
    def __class__(self) -> type:
        return bytes

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("the class of a future cannot be changed")

    def wait(self) -> Self:
        if self._error is not None:
            raise fresh(self._error)
        return self

    def as_foundationdb_key(self) -> Any:
        return self.value

    def as_foundationdb_value(self) -> Any:
        return self.value

    def __bytes__(self) -> bytes:
        return self.value  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[int]:
        return iter(self.value)

    def __contains__(self, part: int | bytes) -> bool:
        return part in self.value

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> bytes: ...

    def __getitem__(self, index: int | slice) -> int | bytes:
        return self.value[index]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            return self.wait().value
        # Delegates the methods of bytes: `tr[key].startswith(...)`.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __add__(self, other: bytes | _Bytes) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: bytes | _Bytes) -> Any:
        return _plain(other) + self.value

    def __mul__(self, count: int) -> Any:
        return self.value * count

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __lt__(self, other: bytes | _Bytes) -> bool:
        return bool(self.value < _plain(other))


def _plain(value: Any) -> Any:
    return value.value if type(value) in (Value, Key) else value


class Value(_Bytes):
    """The value of a key, which may be absent.

    >>> Value(b"x") == b"x", Value(None).present(), Value(None) == None
    (True, False, True)
    """

    __slots__ = ()
    value: bytes | None

    def present(self) -> bool:
        """Return whether the key has a value."""
        return self.value is not None


class Key(_Bytes):
    """A key that a key selector resolved to, or a versionstamp."""

    __slots__ = ()
    value: bytes


class VersionstampFuture(_Promise, Key):
    """The versionstamp of a transaction, ready once it is committed. `value` is set before that."""


class KeyValue(NamedTuple):
    """One row of a range read. It unpacks into its key and its value.

    >>> key, value = KeyValue(b"k", b"v")
    >>> key, value
    (b'k', b'v')
    """

    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"


as_row: Callable[[tuple[bytes, bytes]], KeyValue] = partial(tuple[bytes, bytes].__new__, KeyValue)
"""Return a pair as a `KeyValue`, without a call of Python code per row."""


class KeySelector:
    """A key described by an offset in keys from a reference key.

    Source: FoundationDB, Developer Guide, "Key selectors".

    >>> KeySelector.first_greater_or_equal(b"k") + 2
    KeySelector(b'k', False, 3)
    """

    __slots__ = ("key", "offset", "or_equal")

    def __init__(self, key: KeyLike, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: KeyLike) -> KeySelector:
        """Return the selector of the last key before `key`."""
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: KeyLike) -> KeySelector:
        """Return the selector of the last key up to and including `key`."""
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: KeyLike) -> KeySelector:
        """Return the selector of the first key after `key`."""
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: KeyLike) -> KeySelector:
        """Return the selector of the first key from `key` on."""
        return cls(key, False, 1)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"
