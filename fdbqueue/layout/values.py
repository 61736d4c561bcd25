"""Values of counters, items and queue options. Times are in milliseconds since 1970.

Source: RFC 9562, section 5.7 (UUIDs of version 7).
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fdb import tuple as fdb_tuple

from fdbqueue.errors import InvalidClaimToken, LayoutVersionMismatch, UndecodableQueue
from fdbqueue.types import Options, PriorityKind, State

_R = TypeVar("_R", bound=tuple[Any, ...])

LAYOUT_VERSION = 1

Moment: TypeAlias = datetime
"""A time, for code that must not read a clock."""

HEADER_MARK = b"\xffheader:"
"""The first bytes of an item's value with a header."""

PIECES = b"\xffpieces:"
"""The first bytes of an item's content in pieces."""

MARKS = (PIECES, HEADER_MARK)
"""A payload that begins with one of these is split into pieces."""

MAX_PAYLOAD = 8_000_000  # bytes; a transaction of 10,000,000 has room for it

MAX_INLINE = 10_000
"""The largest payload in an item's row, in bytes."""

# The size of the metadata or the header of an item, which follows; and then its value.
_SIZE = struct.Struct(">H")

_RECEIPT = struct.Struct(">Qi")

UUID_SIZE = 16  # bytes

_SIZE_BYTES = 4  # of the size of a payload in pieces

_KINDS: dict[str | None, Any] = {
    None: None,
    **{kind.__name__: kind for kind in (int, float, str, bytes)},
}

_UNSET = {"priorities": None, "max_size": None, "has_groups": True}
"""Values of unstored options that differ from the defaults: an old queue may have groups."""


UNDECODABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError),
    *(RecursionError, struct.error),
)
"""The errors of reading bytes of another layout."""


def record_codec(record: type[_R]) -> tuple[Callable[[_R], bytes], Callable[[bytes | None], _R]]:
    """Return the functions that encode and decode a record of this type.

    A field is stored behind its number unless it has its default: a record may get another field at
    its end. Without a value, all fields have their defaults. Decoding other bytes raises one of
    `UNDECODABLE`.
    """
    kind: Any = record
    # `...` stands for no default; no field has this value.
    defaults = [kind._field_defaults.get(name, ...) for name in kind._fields]

    def encode(fields: _R) -> bytes:
        stored: list[Any] = []
        for number, value in enumerate(fields):
            if value != defaults[number]:
                stored += (number, value)
        return fdb_tuple.pack(tuple(stored))

    def decode(value: bytes | None) -> _R:
        stored = fdb_tuple.unpack(value or b"")
        fields = [*defaults]
        for number, field in zip(stored[::2], stored[1::2]):
            fields[number] = field
        if ... in fields:
            raise ValueError(f"{kind.__name__} has no {kind._fields[fields.index(...)]}")
        found: _R = kind(*fields)
        return found

    return encode, decode


class Header(NamedTuple):
    """The metadata before an item's payload, in every state. Most items need none.

    Attributes:
        attempts: The number of failed attempts since the last retry by hand.
        unique: The unique key that it holds until it ends.
        origin: Its first position, which its id encodes, if it was moved.
        since: When it became ready, unless at its push.
        cancelled: When it was cancelled while claimed, or after its job had begun.
        key: Its unique key, if a claim frees it or its period ends it. While the item holds a key
            that a claim frees, `unique` is the same.
        key_ends: When that key's period ends; `None` if a claim frees it.
        blocks: Whether that schedule's next tick may wait for its end.
        waits: The signal for which it last waited, as `Layout.signal_wait`.
        batch: Its job's batch, as `Membership`.
        awaits: Whether it waits, or has waited, for the batch with its id.
        cost: What it adds to its group's pass, as a multiple of the usual.
        earlier_attempts: The number of failed attempts before that retry.
        followers: The number of jobs that follow it, each with a row until it ends.
        alone: `NEXT` or `NOW` if it runs alone in its worker after a lease ran out.
        unknown: When a worker that does not know its job first met it, since its last claim.
        step: The step in which its job is suspended.
        alert: Its `StoredAlert`.
        cancelled_step: The step in which its job learns that it is cancelled.
    """

    attempts: int = 0
    expires: int | None = None
    unique: str | None = None
    origin: bytes | None = None
    since: int | None = None
    cancelled: int | None = None
    key: str | None = None
    key_ends: int | None = None
    schedule: str | None = None
    tick: int | None = None
    blocks: bool = False
    steps: int = 0
    waits: bytes = b""
    batch: bytes = b""
    awaits: bool = False
    cost: float = 1
    earlier_attempts: int = 0
    followers: int = 0
    alone: int = 0
    unknown: int | None = None
    step: str = ""
    alert: bytes = b""
    cancelled_step: str = ""

    @property
    def has_begun(self) -> bool:
        """True if its job has come to a step."""
        return bool(self.steps or self.cancelled_step)

    @property
    def ends_with_claim(self) -> bool:
        """True if it was cancelled while claimed, and has no steps."""
        return self.cancelled is not None and not self.has_begun

    @property
    def failed_attempts(self) -> int:
        """The number of all failed attempts."""
        return self.earlier_attempts + self.attempts

    @property
    def unique_key(self) -> str | None:
        """Its unique key, held or not."""
        return self.unique or self.key

    @property
    def held_while_waiting(self) -> str | None:
        """The unique key that the item needs to wait, or `None`."""
        return self.unique or (self.key if self.key_ends is None else None)

    def counted(self) -> Header:
        """Return the header of an item whose end its batches have counted."""
        return self._replace(batch=b"", followers=0) if self.batch or self.followers else self

    def anew(self) -> Header:
        """Return the `counted` header of an item whose steps and batch were deleted."""
        header = self.counted()
        if header.steps or header.awaits:
            header = header._replace(steps=0, waits=b"", awaits=False)
        return header


NO_HEADER = Header()

_encode_header, _decode_header = record_codec(Header)

NEXT, NOW = 1, 2
"""Values of `Header.alone`: the next attempt, or the present one."""


def header_of(value: bytes) -> tuple[Header, bytes]:
    """Split an item's value into its header and the rest."""
    if not value.startswith(HEADER_MARK):
        return NO_HEADER, value
    begin = len(HEADER_MARK) + _SIZE.size
    end = begin + _SIZE.unpack_from(value, len(HEADER_MARK))[0]
    return _decode_header(value[begin:end]), value[end:]


def with_header(header: Header, value: bytes) -> bytes:
    """Return the value of an item with this header."""
    if header == NO_HEADER:
        return value
    packed = _encode_header(header)
    return b"%b%b%b%b" % (HEADER_MARK, _SIZE.pack(len(packed)), packed, value)


def pieces_reference(id: bytes, size: int) -> bytes:
    """Return the content of a payload in pieces."""
    return PIECES + size.to_bytes(_SIZE_BYTES, "big") + id


def pieces_id(content: bytes) -> bytes:
    """Return the id of a content's pieces."""
    return content[len(PIECES) + _SIZE_BYTES :]


def payload_size(content: bytes) -> int:
    """Return the size of a content's payload."""
    if not content.startswith(PIECES):
        return len(content)
    begin = len(PIECES)
    return int.from_bytes(content[begin : begin + _SIZE_BYTES], "big")


def header_of_item(item: object) -> Header:
    """Return the header of a claimed item."""
    metadata: Any = getattr(item, "metadata", NO_HEADER)
    return NO_HEADER if metadata is NO_HEADER else Header(*metadata)


def runs_alone(item: object) -> bool:
    """Return whether a claimed item must run alone in its worker."""
    return header_of_item(item).alone != 0


def encode_holder(position: bytes, key_ends: int | None) -> bytes:
    """Return the value of a unique key."""
    return fdb_tuple.pack((position, key_ends))


def decode_holder(value: bytes) -> tuple[bytes, int | None]:
    """Decode `encode_holder`."""
    position, key_ends = fdb_tuple.unpack(value)
    return position, key_ends


def encode_metadata(metadata: tuple[Any, ...], value: bytes) -> bytes:
    """Return a row in any state but ready."""
    packed = fdb_tuple.pack(metadata)
    return _SIZE.pack(len(packed)) + packed + value


def decode_metadata(stored: bytes) -> tuple[tuple[Any, ...], bytes]:
    """Decode `encode_metadata`."""
    begin = _SIZE.size
    end = begin + _SIZE.unpack_from(stored)[0]
    return fdb_tuple.unpack(stored[begin:end]), stored[end:]


ROW_METADATA: dict[State, tuple[str, ...]] = {
    "delayed": ("due",),
    "claimed": ("token", "lease_end", "attempts", "slots"),
    "dead": ("attempts", "died_at", "error"),
    "done": ("finished_at", "attempts", "outcome", "error", "started_at", "client", "log"),
}
"""The fields of `ItemRow` before an item's value, in order.

Add fields only at the end; older rows have the default.
"""

PARKED: tuple[State, ...] = tuple(state for state in ROW_METADATA if state != "claimed")
"""The states other than ready and claimed."""


def encode_request(pops: Iterable[tuple[int, bool]], is_next: bool) -> bytes:
    """Encode each pop's number and end, and whether the process leads next."""
    return fdb_tuple.pack((is_next, *chain.from_iterable(pops)))


def decode_request(value: bytes) -> list[tuple[int, bool]]:
    """Return the pops of a request."""
    parts = fdb_tuple.unpack(value)
    return [*zip(parts[1::2], parts[2::2])]


def pack_staged(pops: Iterable[Iterable[tuple[bytes, bytes]]]) -> bytes:
    """Encode the positions and values staged for each pop."""
    return fdb_tuple.pack(tuple(tuple(items) for items in pops))


def unpack_staged(result: bytes) -> list[list[tuple[bytes, bytes]]]:
    """Decode `pack_staged`; raise one of `UNDECODABLE`."""
    return [[(position, value) for position, value in items] for items in fdb_tuple.unpack(result)]


def encode_claim_text(token: bytes, position: bytes, attempt: int, client: str, id: str) -> str:
    """Return the text of a claim of one item."""
    packed = fdb_tuple.pack((token, position, attempt, client, id))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def decode_claim_text(text: str) -> tuple[bytes, bytes, int, str, str]:
    """Decode `encode_claim_text`; raise `InvalidClaimToken`."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        token, position, attempt, client, id = fdb_tuple.unpack(packed)
    except Exception:
        # Errors of base64, of the character set, or of the tuple layer, which has no class.
        raise InvalidClaimToken(text) from None
    parts: list[object] = [token, position, attempt, client, id]
    if [*map(type, parts)] != [bytes, bytes, int, str, str] or attempt < 1:
        raise InvalidClaimToken(text)
    return token, position, attempt, client, id


MAX_LOG = 8_000
"""Maximum size of an attempt's log, in bytes."""

MAX_TRACEBACK = 30_000
"""Maximum size of a traceback, in bytes; see also `text_room`."""


class Report(NamedTuple):
    """The progress and the log of a claimed item. `fraction` is from 0 to 1."""

    fraction: float | None = None
    message: str = ""
    at: int = 0
    log: str = ""


NO_REPORT = Report()


def text_room(n: int) -> int:
    """Return the maximum bytes of a log or traceback for each of `n` items."""
    return 1_500_000 // max(1, n)


def text_end(text: str, size: int) -> str:
    """Return the end of a text, up to this many bytes in UTF-8.

    >>> text_end("Grüße", 4)
    'ße'
    """
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded[max(0, len(encoded) - size) :].decode(errors="ignore")


class Lease(NamedTuple):
    """A lease: its length in milliseconds, and its end by the clock."""

    length: int
    clock_end: int
    client: str = ""
    report: Report = NO_REPORT

    def left(self, now: int) -> int:
        """Return the remaining milliseconds; 0 or less if it is over."""
        return min(self.length, self.clock_end - now)


@functools.lru_cache(256)
def encode_lease(seconds: float, now: int, client: str, report: Report = NO_REPORT) -> bytes:
    """Return the value of the timer of a lease that begins `now`."""
    length = int(seconds * 1000) + 1
    reported = () if report == NO_REPORT else report
    return fdb_tuple.pack((length, now + length, client, *reported))


def decode_lease(value: bytes | None) -> Lease | None:
    """Decode `encode_lease`; `None` after a repair."""
    if not value:
        return None
    length, clock_end, client, *reported = fdb_tuple.unpack(value)
    return Lease(length, clock_end, client, Report(*reported))


class StoredAttempt(NamedTuple):
    """A failed attempt, with the retry of its dead letter."""

    ended_at: int
    client: str
    error: str | None
    traceback: str | None
    started_at: int
    log: str = ""
    retried_at: int | None = None
    retried_by: str | None = None


encode_attempt, decode_attempt = record_codec(StoredAttempt)


def encode_options(options: Options) -> bytes:
    """Encode the layout version, and each set option by name."""
    stored: list[Any] = [LAYOUT_VERSION]
    for each in dataclasses.fields(Options):
        value = getattr(options, each.name)
        if value != _UNSET.get(each.name, each.default):
            stored += (each.name, _names_of(value) if each.name == "priorities" else value)
    return fdb_tuple.pack(tuple(stored))


def _names_of(priorities: PriorityKind) -> str | tuple[str, ...]:
    if isinstance(priorities, tuple):
        return tuple(kind.__name__ for kind in priorities)
    name: str = priorities.__name__
    return name


def _priorities_of(names: str | tuple[str, ...] | None) -> Any:
    if isinstance(names, tuple):
        return tuple(_KINDS[name] for name in names)
    return _KINDS[names]


@functools.lru_cache(1024)
def decode_options(value: bytes) -> Options:
    """Return the options of a queue; raise `LayoutVersionMismatch` or `UndecodableQueue`."""
    try:
        version, *stored = fdb_tuple.unpack(value)
        if version != LAYOUT_VERSION:
            raise LayoutVersionMismatch(version, LAYOUT_VERSION)
        known = {each.name for each in dataclasses.fields(Options)}
        for name in stored[::2]:
            if name not in known:
                found_layout = f"{version} with the unknown option {name!r}"
                raise LayoutVersionMismatch(found_layout, LAYOUT_VERSION)
        found: dict[str, Any] = {**_UNSET, **dict(zip(stored[::2], stored[1::2], strict=True))}
        options = Options(**{**found, "priorities": _priorities_of(found["priorities"])})
        has_none = options.priorities is None
        if options.kind not in ("priority", "fifo", "task") or has_none != (options.kind == "fifo"):
            raise ValueError(f"there is no queue of kind {options.kind!r} with such options")
        return options
    except UNDECODABLE as error:
        raise UndecodableQueue(f"its options: {error}") from error


def encode_deployed(settings: Mapping[str, Any]) -> bytes:
    """Encode each setting that an app has declared, by name."""
    return fdb_tuple.pack((*chain.from_iterable(settings.items()),))


def decode_deployed(value: bytes | None) -> dict[str, Any]:
    """Decode `encode_deployed`."""
    stored = fdb_tuple.unpack(value or b"")
    return dict(zip(stored[::2], stored[1::2]))


ONE = (1).to_bytes(8, "little")
ZERO = bytes(8)
_FIELD = 2**64
_FIELD_BYTES = 8


@functools.lru_cache(256)
def encode_count(count: int) -> bytes:
    """Return a number for atomic `add`."""
    return count.to_bytes(8, "little", signed=True)


def decode_count(value: bytes | None) -> int:
    """Return the number in a counter, or zero."""
    return 0 if value is None else int.from_bytes(value, "little", signed=True)


def encode_pass(number: int) -> bytes:
    """Encode a group's pass in twelve bytes for `decode_count`; eight may overflow."""
    return number.to_bytes(12, "little", signed=True)


def encode_fields(fields: Sequence[int]) -> bytes:
    """Return signed 64-bit numbers as one integer, for atomic `add`."""
    number = 0
    for field in reversed(fields):
        number = (number << 8 * _FIELD_BYTES) + field
    size = _FIELD_BYTES * len(fields)
    return (number % (1 << 8 * size)).to_bytes(size, "little")


def decode_fields(value: bytes, n: int) -> list[int]:
    """Return the first `n` numbers; missing ones are zero."""
    left = int.from_bytes(value, "little")
    fields: list[int] = []
    for _ in range(n):
        # A negative number has borrowed from the next one.
        field = (left + _FIELD // 2) % _FIELD - _FIELD // 2
        fields.append(field)
        left = (left - field) // _FIELD
    return fields


TALLIES = (
    *("popped", "claimed", "acked", "returned", "failed", "retried", "died", "dead", "delayed"),
    *("expired", "removed", "moved", "put_back", "expiring", "paused", "done", "unknown"),
)
"""The tallies of a queue, in their order in one counter.

- `dead`, `delayed`, `done`: the present items in these states.
- `returned`: claims that ended, but were not `acked`.
- `failed`: attempts. `retried`: items returned after a failure, or from the dead letters.
- `moved`: items pushed or returned that were not new, with `put_back`, the popped ones.
- `expiring`: ready items that will expire. `paused`: 1 if the queue is paused.
- `unknown`: ready and delayed items whose job no worker that met it knows.
"""


@functools.lru_cache(256)
def encode_tallies(**changes: int) -> bytes:
    """Return changes of tallies by their names, for atomic `add`."""
    fields = [changes.pop(name, 0) for name in TALLIES]
    assert not changes, changes
    return encode_fields(fields)


def decode_tallies(value: bytes) -> dict[str, int]:
    """Return the tallies of a queue by their names."""
    return dict(zip(TALLIES, decode_fields(value, len(TALLIES))))


SAMPLED = ("pushed", "taken", "completed", "failed", "died")
"""The totals that begin a sample, before two histograms."""


def encode_sample(numbers: Sequence[int]) -> bytes:
    """Return the value of a sample."""
    last = max((place for place, number in enumerate(numbers) if number), default=-1)
    return fdb_tuple.pack(tuple(numbers[: last + 1]))


def decode_sample(value: bytes) -> tuple[int, ...]:
    """Return the numbers of a sample."""
    numbers: tuple[int, ...] = fdb_tuple.unpack(value)
    missing = len(SAMPLED) + 2 * TIMES - len(numbers)
    return (*numbers, *[0] * missing)


TIME_BOUNDS = tuple(round(10 * 2 ** (i / 2)) for i in range(53))
"""The upper bounds of histograms of times, in milliseconds: 10 ms to 8 days."""

TIMES = len(TIME_BOUNDS) + 1


def encode_times(times: Iterable[int]) -> bytes:
    """Encode times in milliseconds as a change of a histogram."""
    fields = [0] * TIMES
    for time in times:
        fields[bisect_right(TIME_BOUNDS, time)] += 1
    return encode_fields(fields)


def decode_times(value: bytes | None) -> tuple[int, ...]:
    """Return the number of times below each bound, and of longer ones."""
    return tuple(decode_fields(value or b"", TIMES))


def encode_receipt(sequence: int, try_number: int) -> bytes:
    """Encode a try; a negative one only fences off earlier ones."""
    return _RECEIPT.pack(sequence, try_number)


def decode_receipt(value: bytes) -> tuple[int, int]:
    """Decode `encode_receipt`."""
    sequence, try_number = _RECEIPT.unpack(value)
    return sequence, try_number


_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLISECOND = (_LAST_TIME - _EPOCH) // timedelta(milliseconds=1)
"""The end of the year 9999, the last representable time."""

NEVER = LAST_MILLISECOND + 1
"""The due time of an item that waits without a time-out."""


def as_json(value: Any) -> Any:
    """Return a record by field, with times as ISO 8601 text, and durations in seconds."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if issubclass(type(value), tuple):  # pyright does not know the items after `isinstance`
        return tuple(map(as_json, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value


def utc_time(milliseconds: float) -> datetime:
    """Return a time from its milliseconds since 1970; the years 1 to 9999 bound it.

    >>> utc_time(2**63).year
    9999
    """
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (ValueError, OverflowError):
        return _LAST_TIME if milliseconds > 0 else _FIRST_TIME


def time_of(uuid: bytes) -> datetime | None:
    """Return when a UUID was created; `None` for other bytes.

    >>> time_of(bytes([255] * 6 + [0x70, 0, 0x80] + [0] * 7)) is None  # the year 10889
    True
    """
    if len(uuid) != UUID_SIZE or uuid[6] >> 4 != 7 or uuid[8] >> 6 != 2:
        return None
    created = int.from_bytes(uuid[:6], "big")
    return utc_time(created) if created <= LAST_MILLISECOND else None  # it only looks like a UUID


def milliseconds_of(uuid: bytes) -> int:
    """Return the time of a UUID of version 7."""
    return int.from_bytes(uuid[:6], "big")


def at_time(uuid: bytes, milliseconds: int) -> bytes:
    """Return the UUID of version 7 with another time."""
    return milliseconds.to_bytes(6, "big") + uuid[6:]


def as_uuid(digest: bytes) -> bytes:
    """Return the first bytes of a digest as a UUID of version 7."""
    version, variant = digest[6] & 0x0F | 0x70, digest[8] & 0x3F | 0x80
    return b"%b%c%b%c%b" % (digest[:6], version, digest[7:8], variant, digest[9:UUID_SIZE])


def encode_push(ends: int, digest: bytes, ids: list[str]) -> bytes:
    """Encode the end, digest and item ids of an idempotent push."""
    return fdb_tuple.pack((ends, digest, *ids))


def decode_push(value: bytes) -> tuple[int, bytes, list[str]]:
    """Decode `encode_push`."""
    ends, digest, *ids = fdb_tuple.unpack(value)
    return ends, digest, ids


class StoredWorker(NamedTuple):
    """The row of a worker, with the concurrency of its `queues`; it expires at `end`."""

    name: str
    host: str
    pid: int
    queues: tuple[tuple[str, int], ...]
    concurrency: int
    jobs: int
    since: int
    seen: int
    end: int


encode_worker, _decode_worker = record_codec(StoredWorker)


def decode_worker(value: bytes) -> StoredWorker | None:
    """Return the row of a worker; `None` for other bytes.

    >>> decode_worker(b"anything") is None
    True
    """
    try:
        return _decode_worker(value)
    except UNDECODABLE:
        return None
