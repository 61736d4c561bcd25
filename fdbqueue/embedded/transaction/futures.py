"""The results of a transaction's calls, as the official binding's futures.

A read is complete when its call returns. Only durable commits, watches and delays after errors take
time.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial, total_ordering
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeyLike

if TYPE_CHECKING:
    from typing import Self

Callback: TypeAlias = Callable[[Any], object]

_T = TypeVar("_T")


def fresh(error: BaseException) -> BaseException:
    """Return a copy of a stored error; a traceback in it would keep the transaction alive."""
    raised = copy(error)
    raised.__cause__ = error.__cause__
    return raised


class Future(Generic[_T]):
    """A result that is ready, or an error that `wait()` raises."""

    __slots__ = ("_error", "_result")

    def __init__(self, result: _T, error: BaseException | None = None) -> None:
        self._result = result
        self._error = error

    def wait(self) -> _T:
        """Return the result or raise the error."""
        if self._error is not None:
            raise fresh(self._error)
        return self._result

    def is_ready(self) -> bool:
        """Return whether the result or error is ready."""
        self.block_until_ready()
        return True

    def takes_time(self) -> bool:
        """Return whether `wait` would block. Unlike `is_ready`, this never blocks."""
        return False

    def block_until_ready(self) -> None:
        """Wait until ready."""

    def on_ready(self, callback: Callback) -> None:
        """Call `callback(self)` once ready. Print its exceptions, as the binding does."""
        self.block_until_ready()
        try:
            callback(self)
        except Exception:
            print("Discarding uncaught exception from user FDB callback:", file=sys.stderr)
            traceback.print_exc(file=sys.stderr)

    def cancel(self) -> None:
        """Give up on a result."""


class _Pending(Future[_T]):
    __slots__ = ()

    def wait(self) -> _T:
        self.block_until_ready()
        return super().wait()


class Blocking(_Pending[None]):
    """A future that is ready once a function has returned.

    The first call that asks for the result, even `is_ready`, calls the function.
    """

    __slots__ = ("_block",)

    def __init__(self, block: Callable[[], object]) -> None:
        super().__init__(None)
        self._block: Callable[[], object] | None = block

    def takes_time(self) -> bool:
        """Return whether `wait` would block. Unlike `is_ready`, this never blocks."""
        return self._block is not None

    def block_until_ready(self) -> None:
        """Wait until ready."""
        if self._block is not None:
            try:
                self._block()
            except FdbqueueError as error:
                self._error = error.with_traceback(None)
            self._block = None


class _Promise(_Pending[Any]):
    def __init__(self) -> None:
        self._result = self._error = None
        self._is_ready = False
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []

    def finish(self, error: BaseException | None = None) -> None:
        """Make the future ready, once."""
        with self._lock:
            if self._is_ready:
                return
            self._error = error
            self._is_ready = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            super().on_ready(callback)

    def is_ready(self) -> bool:
        return self._is_ready

    def block_until_ready(self) -> None:
        if self._is_ready:
            return
        # Not a `threading.Event`: an interrupt inside it would leave its lock held.
        waiting = threading.Lock()
        waiting.acquire()
        self.on_ready(lambda _: waiting.release())
        while not self._is_ready:
            # In slices: on some systems a main thread that waits for a lock receives no signals.
            waiting.acquire(timeout=1.0)

    def on_ready(self, callback: Callback) -> None:
        with self._lock:
            if not self._is_ready:
                self._callbacks.append(callback)
                return
        super().on_ready(callback)


class WatchFuture(_Promise):
    """A future that is ready once the watched key changes or the watch ends."""

    def __init__(self, database: object) -> None:
        super().__init__()
        self._database = database  # must stay open while a thread waits

    def cancel(self) -> None:
        """End the watch: waiting threads get the error 1101."""
        self.finish(FDBError(1101))


@total_ordering
class _Bytes(Future[Any]):
    __slots__ = ("value",)

    value: Any
    """The bytes, or `None`. Unset after an error, which `__getattr__` raises."""

    def __init__(self, value: bytes | None, error: BaseException | None = None) -> None:
        self._error = error
        if error is None:
            self.value = value

    # Makes `isinstance(value, bytes)` true, by the same means as the binding.
    __class__ = property(lambda _: bytes)  # pyright: ignore[reportIncompatibleMethodOverride]

    def wait(self) -> Self:
        _ = self.value
        return self

    def __bytes__(self) -> bytes:
        return self.value  # type: ignore[no-any-return]

    as_foundationdb_key = as_foundationdb_value = __bytes__

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
        if name == "value":  # not ready yet, or an error
            self.block_until_ready()
            super().wait()
            return self.value
        # Delegates the methods of bytes: `tr[key].startswith(...)`.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __add__(self, other: bytes | _Bytes) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: bytes | _Bytes) -> Any:
        return _plain(other) + self.value

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
    """The key of a key selector, or a versionstamp."""

    __slots__ = ()
    value: bytes


class VersionstampFuture(_Promise, Key):
    """The versionstamp of a transaction, ready after its commit."""

    def finish_with(self, version: int) -> None:
        """Make it ready; -1 for a commit without writes."""
        if version < 0:
            self.finish(FDBError(2021))
        else:
            self.value = version.to_bytes(8, "big") + b"\0\0"
            self.finish()


class KeyValue(NamedTuple):
    """One row of a range read, which unpacks into key and value.

    >>> key, value = KeyValue(b"k", b"v")
    >>> key, value
    (b'k', b'v')
    """

    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"


as_row: Callable[[tuple[bytes, bytes]], KeyValue] = partial(tuple[bytes, bytes].__new__, KeyValue)
"""Return a pair as a `KeyValue`, without a call of Python code."""


@dataclass(frozen=True, slots=True)
class KeySelector:
    """A key described by an offset in keys from a reference key.

    Source: FoundationDB, Developer Guide, "Key selectors".

    >>> KeySelector.first_greater_or_equal(b"k") + 2
    KeySelector(key=b'k', or_equal=False, offset=3)
    """

    key: KeyLike
    or_equal: bool
    offset: int

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: KeyLike) -> KeySelector:
        """Select the last key before `key`."""
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: KeyLike) -> KeySelector:
        """Select the last key up to and including `key`."""
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: KeyLike) -> KeySelector:
        """Select the first key after `key`."""
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: KeyLike) -> KeySelector:
        """Select the first key from `key` on."""
        return cls(key, False, 1)
