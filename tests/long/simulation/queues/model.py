"""A model of one queue, which replays the log of all transactions in the order of their commits.

Each entry of the log is one operation: its arguments, its result, the read version of its
transaction, and the time on the client's clock before and after the call. The model knows what the
queue must hold at each commit, and says what is wrong with a result.

Two things are not known exactly. A client reads its clock at some moment of a call. And no entry
says which leases and delays a transaction has found over. So an item may have several possible
states. Each operation leaves those with which its result is possible; an item without any is a
problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

VERSIONS = 1_000
"""The read versions of a millisecond."""


@dataclass(frozen=True)
class Entry:
    """One operation of a committed transaction.

    Attributes:
        verb: The operation, which names a method of the model.
        read: The read version of the transaction.
        stamp: The place of its commit among all commits; the last one at its read version if the
            operation only reads a snapshot.
        begun: The client's clock before the call, in milliseconds.
        ended: The same after the call.
        facts: The arguments and the result.
    """

    verb: str
    read: int
    stamp: int
    begun: int
    ended: int
    facts: dict[str, Any]

    def sees(self, stamp: int) -> bool:
        """Return whether its transaction sees what was committed at this place, or by itself."""
        return stamp <= last_stamp(self.read) or stamp == self.stamp


def last_stamp(version: int) -> int:
    """Return the place behind all commits of a version, which are numbered with 16 bits."""
    return version << 16 | 0xFFFF


class Span(NamedTuple):
    """A time or a version that is known within bounds."""

    low: int
    high: int


_NEVER = Span(0, 0)


@dataclass(frozen=True)
class State:
    """A possible state of an item.

    Attributes:
        kind: `"ready"`, `"delayed"`, `"claimed"`, `"dead"`, or `"gone"` if it has ended.
        attempts: How many times it was claimed.
        due: When a delayed item becomes ready, in milliseconds.
        token: The token of its claim.
        lease: The length of its lease, in milliseconds.
        version_end: The version at which its lease ends.
        clock_end: The time at which its lease ends, in milliseconds. It is over after both.
        is_cancelled: Whether it ends with its claim.
    """

    kind: str
    attempts: int = 0
    due: Span = _NEVER
    token: str = ""
    lease: int = 0
    version_end: Span = _NEVER
    clock_end: Span = _NEVER
    is_cancelled: bool = False

    def __str__(self) -> str:
        facts = {"due": self.due, "version": self.version_end, "clock": self.clock_end}
        known = [f"{name} {low}-{high}" for name, (low, high) in facts.items() if high]
        return " ".join([self.kind, f"attempt {self.attempts}", *known])


_GONE = State("gone")


@dataclass
class Item:
    """What is known of an item.

    Attributes:
        value: The first word of its value, which no other item has.
        data: The rest of its value, which an update changes.
        id: Its id.
        priority: Its priority: a number, or a list of numbers.
        key: Its place, which sorts by arrival within a priority, and its shard.
        pushed: When it was pushed, in milliseconds.
        appended: When it was put behind the last item of its priority, as a stamp.
        changed: When it certainly changed last, as a stamp.
        unique: Its unique key, or `None`.
        freed: The key, if a claim frees it; the item may take it again when it returns.
        lost: The key that another item may have had when this one was put back, or `None`.
        expires: When it expires unless a client takes it before, in milliseconds, or `None`.
        has_place: Whether it took a place below the bound. An item that was put back took none.
        states: Its possible states.
    """

    value: str
    data: str
    id: str
    priority: Any
    key: str
    pushed: Span
    appended: int
    changed: int
    unique: str | None = None
    freed: str | None = None
    lost: str | None = None
    expires: Span | None = None
    has_place: bool = True
    states: set[State] = field(default_factory=set)

    @property
    def shard(self) -> str:
        """Its shard."""
        return self.key.partition(" ")[2]

    def may_be(self, *kinds: str) -> bool:
        """Return whether it is possibly in one of these states."""
        return any(state.kind in kinds for state in self.states)

    def is_certainly(self, *kinds: str) -> bool:
        """Return whether it is in one of these states."""
        return all(state.kind in kinds for state in self.states)


UNFINISHED = ("ready", "delayed", "claimed")
_ENDED = ("dead", "gone")


class Model:
    """The items of one queue, and the problems found so far.

    Args:
        max_size: The bound of the queue.
        max_attempts: The number of attempts after which an item is dead.
        is_sharded: Whether the queue has several shards, of which claims take no worse priority.
    """

    def __init__(
        self,
        max_size: int | None = None,
        max_attempts: int | None = None,
        is_sharded: bool = False,
    ) -> None:
        self._is_sharded = is_sharded
        self._max_size = max_size
        self._max_attempts = max_attempts
        self._items: dict[str, Item] = {}
        self._ended: dict[str, Item] = {}
        self._names: dict[str, str] = {}
        """The present names of items that were replaced, by their earlier ones."""
        self._latest = 0.0
        """The latest time by the clock of any client."""
        self.problems: list[str] = []

    def replay(self, entries: Iterable[Entry]) -> None:
        """Replay operations. Those of one transaction have to be in their order."""
        for entry in sorted(entries, key=lambda each: each.stamp):
            self._latest = max(self._latest, entry.ended)
            getattr(self, f"_{entry.verb}")(entry)

    @property
    def unfinished(self) -> list[str]:
        """The values of the items that may be ready, delayed or claimed."""
        return [item.value for item in self._items.values() if item.may_be(*UNFINISHED)]

    def _problem(self, entry: Entry, what: str) -> None:
        self.problems.append(f"{what}: {entry}")

    # What an operation tells of an item

    def _observe(
        self, entry: Entry, item: Item, is_possible: Callable[[State], bool], what: str
    ) -> bool:
        """Keep the states with which a result is possible; without any, note a problem."""
        possible = {state for state in item.states if is_possible(state)}
        if not possible:
            self._problem(entry, f"{item.value} was {what}, but it is {_texts(item.states)}")
            return False
        item.states = possible
        return True

    def _change(self, entry: Entry, item: Item, change: Callable[[State], State]) -> None:
        item.states = {change(state) for state in item.states}
        item.changed = entry.stamp

    def _answer(
        self, entry: Entry, item: Item, kind: str, change: Callable[[State], State] | None = None
    ) -> bool:
        """Sweep an item that an operation changes if it is in a state, and says whether it was.

        Return whether it was; then it has changed, or ended if there is no `change`.
        """
        self._sweep(entry, [item])
        if not entry.facts["done"]:
            self._observe(entry, item, lambda state: state.kind != kind, f"not {kind}")
            return False
        if not self._observe(entry, item, lambda state: state.kind == kind, kind):
            return False
        if change is None:
            self._end(item)
        else:
            self._change(entry, item, change)
        return True

    def _end(self, item: Item) -> None:
        item.states = {_GONE}
        self._ended[item.value] = self._items.pop(item.value)

    def _known(self, entry: Entry, value: str) -> Item | None:
        """Return an item, given its name or its value, which has to be that of the last update."""
        name, _, data = value.partition(" ")
        while name in self._names:
            name = self._names[name]
        item = self._items.get(name) or self._ended.get(name)
        if item is None:
            self._problem(entry, f"{name} was never pushed")
        elif data and data != item.data:
            self._problem(entry, f"{name} has the data {data}, and not {item.data}")
        return item

    def _rename(self, item: Item, value: str) -> None:
        """Give an item another value."""
        name, _, item.data = value.partition(" ")
        if name != item.value:
            self._names[item.value] = name
            self._names.pop(name, None)
            items = self._items if item.value in self._items else self._ended
            items[name] = items.pop(item.value)
            item.value = name

    def _return_key(self, item: Item) -> None:
        """Note that an item returns: it takes the key that its claim has freed, if still free."""
        key = item.freed
        others = [each for each in self._items.values() if each is not item]
        for other in others if key else ():
            if key not in (other.unique, other.lost):
                continue
            if other.may_be(*UNFINISHED):
                item.unique, item.lost = None, key
            if other.freed and other.may_be("claimed"):  # the item has taken its key, or has not
                other.unique, other.lost = None, key

    # Leases and delays that are over, and items that have expired

    def _sweep(self, entry: Entry, items: Iterable[Item] | None = None) -> None:
        """Let the transaction find what is over, of all items or of some."""
        for item in list(self._items.values()) if items is None else items:
            states = self._swept(entry, item, takes=items is None)
            if states.isdisjoint(item.states):
                item.changed = entry.stamp
            if item.may_be("claimed") and any(state.kind in ("ready", "dead") for state in states):
                self._return_key(item)  # perhaps: its lease may be over
            item.states = states
            if states == {_GONE} and item.value in self._items:
                self._end(item)

    def _swept(self, entry: Entry, item: Item, takes: bool) -> set[State]:
        """Return the possible states of an item after a sweep of this transaction.

        Only a transaction that takes items is sure to end those that were cancelled.
        """
        if not entry.sees(item.changed):  # it sees the item as it was before, and moves nothing
            return item.states
        swept = {after for state in item.states for after in self._swept_state(entry, state)}
        if not takes:
            swept |= {state for state in item.states if state.is_cancelled}
        if item.expires is None:
            return swept
        # A call that failed or has not ended may have swept, by a clock that is ahead.
        latest = max(entry.ended, self._latest)
        may, must = item.expires.low <= latest, item.expires.high <= entry.begun
        ready = {state for state in swept if state.kind == "ready"}
        return (swept - ready).union(*(_either(_GONE, state, may, must) for state in ready))

    def _shown(self, entry: Entry, item: Item) -> set[State]:
        """Return the possible states of an item for a look in a transaction.

        The look sweeps nothing, but another client may have swept what is over, perhaps before the
        item expired, or by a clock that is ahead.
        """
        earlier = {after for state in item.states for after in self._swept_state(entry, state)}
        shown = item.states | earlier | self._swept(entry, item, takes=False)
        has_expired = item.expires is not None and item.expires.low <= self._latest
        return shown | {_GONE} if has_expired else shown

    def _swept_state(self, entry: Entry, state: State) -> set[State]:
        if state.kind == "delayed":
            ready = State("ready", state.attempts)
            return _either(
                ready, state, state.due.low <= entry.ended, state.due.high <= entry.begun
            )
        if state.kind != "claimed":
            return {state}
        version, clock = state.version_end, state.clock_end
        renewed = self._renewed(entry, state)
        kept = _either(renewed, state, version.low <= entry.read, version.high <= entry.read)
        may_be_over = version.low <= entry.read and clock.low <= entry.ended
        must_be_over = version.high <= entry.read and clock.high <= entry.begun
        lapsed = _GONE if state.is_cancelled else self._failed(state)
        if must_be_over:
            return {lapsed}
        return {lapsed, *kept} if may_be_over else kept

    @staticmethod
    def _renewed(entry: Entry, state: State) -> State:
        """Return the state of an item whose lease is over by its version, but not by the clock."""
        left = (state.clock_end.low - entry.ended, state.clock_end.high - entry.begun)
        low, high = (max(0, min(state.lease, each)) for each in left)
        end = Span(entry.read + VERSIONS * low, entry.read + VERSIONS * high)
        return replace(state, version_end=end)

    def _failed(self, state: State) -> State:
        """Return the state of a claimed item whose attempt has failed, and that is not delayed."""
        is_last = self._max_attempts is not None and state.attempts >= self._max_attempts
        return State("dead" if is_last else "ready", state.attempts)

    # Pushes

    def _push(self, entry: Entry) -> None:
        facts = entry.facts
        if facts.get("unique") is not None and not self._push_unique(entry):
            return
        if facts["key"] is None:
            self._check_full(entry)
            return
        name, _, data = facts["value"].partition(" ")
        pushed = Span(entry.begun, entry.ended)
        item = Item(
            *(name, data, facts["id"], facts["priority"], facts["key"], pushed),
            *(entry.stamp, entry.stamp),
            unique=facts.get("unique"),
            freed=facts["unique"] if facts.get("replace") else None,
            expires=_later(entry, facts["ttl"]) if facts.get("ttl") else None,
        )
        item.states = self._pushed(entry, item, State("new"))
        if item.value in self._items or item.value in self._ended:
            self._problem(entry, f"{item.value} was pushed again")
        self._items[item.value] = item
        self._append(entry, item)
        self._check_bound(entry)

    def _check_bound(self, entry: Entry) -> None:
        """Check that the items that took a place are not more than there are."""
        holders = [item for item in self._items.values() if item.has_place]
        n = sum(item.is_certainly(*UNFINISHED) for item in holders)
        if self._max_size is not None and n > self._max_size:
            self._problem(entry, f"the queue has room for {self._max_size}, and has {n}")

    def _push_unique(self, entry: Entry) -> bool:
        """Note what a push with a unique key tells of earlier items; return whether it is new."""
        facts = entry.facts
        others = [each for each in self._items.values() if each.unique == facts["unique"]]
        # A push does not look at items whose keys claims have freed.
        self._sweep(entry, [each for each in others if not (each.freed and each.may_be("claimed"))])
        if (existing := facts.get("existing")) is None:
            for other in others:
                gone = (*_ENDED, "claimed") if other.freed else _ENDED
                self._observe(entry, other, partial(_is_one, gone), "ended")
                if other.may_be("claimed") and facts["key"] is not None:
                    other.unique, other.lost = None, other.unique
            return True
        found = {item.id: item for item in self._items.values()}.get(existing)
        item = found or self._known(entry, facts["found"])
        if item is not None:
            if facts["unique"] not in (item.unique, item.lost):
                self._problem(entry, f"{item.value} has another unique key")
            item.unique, item.lost = facts["unique"], None
            self._sweep(entry, [item])
            is_replaced = facts["found"] == facts["value"]
            waits = ("ready", "delayed")
            wanted = waits if is_replaced or item.freed else UNFINISHED
            if facts.get("replace") and not is_replaced:
                wanted = ("claimed",)
            seen = self._observe(entry, item, lambda state: state.kind in wanted, "there")
            if seen and is_replaced:
                self._rename(item, facts["value"])
                item.changed = entry.stamp
                swept = item.states
                item.states = {after for each in swept for after in self._pushed(entry, item, each)}
        return False

    def _pushed(self, entry: Entry, item: Item, state: State) -> set[State]:
        """Return the possible states after a push that gives an item its time.

        A retry keeps its time. A push that replaces does not postpone an item beyond its limit.
        """
        delay, at_most = entry.facts["delay"] or 0, entry.facts.get("at_most")
        if state.attempts:
            return {state}
        # The first push may be later than this one, by another clock.
        due = _later(entry, delay if at_most is None else min(delay, at_most))
        if at_most is not None:
            low, high = (each + 1_000 * at_most for each in item.pushed)
            due = Span(min(due.low, low), min(due.high, high))
        if not delay:
            return {State("ready")}
        is_new = state.kind == "new"
        may, must = due.low <= entry.ended, due.high <= entry.begun
        after = State("delayed", due=due)
        return {after} if is_new else _either(State("ready"), after, may, must)

    def _check_full(self, entry: Entry) -> None:
        possible = [item for item in self._items.values() if item.may_be(*UNFINISHED)]
        if self._max_size is None or len(possible) < self._max_size:
            self._problem(entry, f"the queue was full, with {len(possible)} items")

    def _append(self, entry: Entry, item: Item) -> None:
        """Check that an item is behind all items of its priority that the transaction saw.

        It may come before a delayed or dead one that the same transaction has pushed or moved.
        """
        for other in self._items.values():
            is_seen = entry.sees(other.appended) and other is not item
            is_seen = is_seen and other.may_be(*UNFINISHED, "dead")
            is_own = other.appended == entry.stamp
            is_seen = is_seen and not (is_own and other.may_be("delayed", "dead"))
            is_seen = is_seen and (other.priority, other.shard) == (item.priority, item.shard)
            if is_seen and other.key >= item.key:
                self._problem(entry, f"{item.value} is not behind {other.value}")

    # What takes items

    def _pop(self, entry: Entry) -> None:
        self._sweep(entry)
        self._take_first(entry, entry.facts["value"])

    def _peek(self, entry: Entry) -> None:
        items = self._items
        self._items = {
            value: replace(item, states=self._shown(entry, item)) for value, item in items.items()
        }
        self._check_first(entry, entry.facts["value"])
        self._items = items  # it has swept nothing

    def _check_first(self, entry: Entry, value: str | None) -> Item | None:
        """Check that an item was the first one, or that there was none."""
        item = None if value is None else self._known(entry, value)
        if item is not None:
            self._observe(entry, item, lambda state: state.kind == "ready", "taken")
        for other in self._items.values():
            if self._is_before(entry, other, item) and other.is_certainly("ready"):
                self._problem(entry, f"{other.value} is before {value}")
        return item

    @staticmethod
    def _is_before(entry: Entry, other: Item, item: Item | None) -> bool:
        """Return whether one item comes before another one: by arrival only within a shard."""
        if item is None:
            return True
        if other.priority != item.priority:
            return bool((other.priority > item.priority) == entry.facts["at_max"])
        return (other.shard, other.key < item.key) == (item.shard, True)

    def _take_first(self, entry: Entry, value: str | None) -> None:
        item = self._check_first(entry, value)
        for other in self._items.values():  # what it has passed was not ready
            if self._is_before(entry, other, item) and not other.is_certainly("ready"):
                other.states = {state for state in other.states if state.kind != "ready"}
        if item is not None and item.value in self._items:
            self._end(item)

    def _claim(self, entry: Entry) -> None:
        facts = entry.facts
        self._sweep(entry)
        if not facts["values"]:
            for item in self._items.values():
                self._observe(entry, item, lambda state: state.kind != "ready", "not there")
        claimed = [self._known(entry, value) for value in facts["values"]]
        for item, attempts in zip(claimed, facts["attempts"]):
            if item is None:
                continue
            self._check_within(entry, item)
            free = State("ready", attempts - 1)
            if self._observe(entry, item, free.__eq__, f"claimed for attempt {attempts}"):
                item.states = {State("claimed", attempts, token=facts["token"])}
                self._change(entry, item, partial(self._leased, entry))

    def _check_within(self, entry: Entry, item: Item) -> None:
        """Check that fewer than `within` items were before an item throughout the transaction."""
        before = [
            other
            for other in self._items.values()
            if other.is_certainly("ready") and entry.sees(other.changed)
            if other.priority < item.priority
            or (
                (other.priority, other.shard) == (item.priority, item.shard)
                and other.key < item.key
            )
        ]
        better = [other for other in before if other.priority < item.priority]
        within = 1 if self._is_sharded and better else entry.facts["within"]
        if len(before) >= within:
            self._problem(entry, f"{item.value} was claimed, with {len(before)} items before it")

    @staticmethod
    def _leased(entry: Entry, state: State) -> State:
        """Return the state of an item whose lease begins."""
        length = int(entry.facts["lease"] * 1000) + 1
        end = entry.read + int(entry.facts["lease"] * 1000 * VERSIONS)
        clock_end = Span(entry.begun + length, entry.ended + length)
        return replace(state, lease=length, version_end=Span(end, end), clock_end=clock_end)

    # Ends of claims

    def _held(self, entry: Entry) -> list[Item]:
        """Return the items of a claim; check that the claim was over if the client was told so."""
        token = entry.facts["token"]
        known = [self._known(entry, value) for value in entry.facts["values"]]
        items = [item for item in known if item is not None]
        if entry.facts["lost"] is None:
            return [
                item
                for item in items
                if self._observe(entry, item, lambda state: state.token == token, "held")
            ]
        for item in items:
            if item is self._known(entry, entry.facts["lost"]):
                self._observe(entry, item, lambda state: state.token != token, "lost")
        return []

    def _ack(self, entry: Entry) -> None:
        for item in self._held(entry):
            self._end(item)

    def _nack(self, entry: Entry) -> None:
        delay = entry.facts["delay"]

        def failed(state: State) -> State:
            after = self._failed(state)
            if state.is_cancelled:
                return _GONE
            if not delay or after.kind == "dead":
                return after
            return State("delayed", state.attempts, due=_later(entry, delay))

        for item in self._held(entry):
            self._return_key(item)
            self._change(entry, item, failed)

    def _release(self, entry: Entry) -> None:
        for item in self._held(entry):
            self._return_key(item)
            self._change(entry, item, _released)

    def _extend(self, entry: Entry) -> None:
        for item in self._held(entry):
            self._change(entry, item, lambda state: self._leased(entry, state))

    # Single items

    def _remove(self, entry: Entry) -> None:
        item = self._known(entry, entry.facts["value"])
        if item is None:
            return
        self._sweep(entry, [item])
        if not entry.facts["done"]:
            self._observe(entry, item, lambda state: state.kind in ("claimed", "gone"), "held")
        elif self._observe(
            entry, item, lambda state: state.kind not in ("claimed", "gone"), "removed"
        ):
            self._end(item)

    def _cancel(self, entry: Entry) -> None:
        """Let an item end: at once if it waits, and with its claim if a client has it.

        If its lease runs out, it expires.
        """
        item = self._known(entry, entry.facts["value"])
        if item is None:
            return
        self._sweep(entry, [item])
        if not entry.facts["done"]:
            self._observe(entry, item, lambda state: state.kind in _ENDED, "not cancelled")
        elif self._observe(entry, item, lambda state: state.kind in UNFINISHED, "cancelled"):
            item.expires = Span(entry.begun, entry.ended)
            self._change(entry, item, _cancelled)

    def _update(self, entry: Entry) -> None:
        facts = entry.facts
        item = self._known(entry, facts["of"] if facts["is_new"] else facts["value"])
        if item is None:
            return
        self._sweep(entry, [item])
        if facts["outcome"] != "updated":
            self._observe(entry, item, lambda state: state.kind == facts["outcome"], "not updated")
            return
        if not self._observe(entry, item, lambda state: state.kind in ("ready", "delayed"), "set"):
            return
        self._rename(item, facts["value"])
        if (delay := facts.get("delay")) is not None:
            due = _later(entry, delay) if delay else _NEVER
            kind = "delayed" if delay else "ready"
            item.states = {State(kind, state.attempts, due=due) for state in item.states}
        item.changed = entry.stamp
        if facts.get("priority", item.priority) != item.priority:
            item.priority, item.key, item.appended = facts["priority"], facts["key"], entry.stamp
            self._append(entry, item)
        elif facts["key"] != item.key:
            self._problem(entry, f"{item.value} did not keep its place")

    def _put_back(self, entry: Entry) -> None:
        """Let an item that had ended return to where it was popped from."""
        facts = entry.facts
        item = self._known(entry, facts["value"].partition(" ")[0])
        if item is not None and item.value in self._items and item.states == {_GONE}:
            self._end(item)  # a cancellation has ended it
        if item is None or item.value in self._items:
            return
        self._rename(item, facts["value"])
        item.priority, item.key = facts["priority"], facts["key"]
        # It has the key with which it was popped, also if it has lost that key meanwhile.
        item.unique = facts.get("unique", item.unique)
        item.lost = None if item.unique else item.freed
        key = item.unique
        others = [each for each in self._items.values() if key and key in (each.unique, each.lost)]
        for other in others:
            if other.may_be(*UNFINISHED):
                item.unique, item.lost = None, key
            if other.freed and other.may_be("claimed"):  # the item has taken its key, or has not
                other.unique, other.lost = None, key
        if "expires" in facts:  # a cancellation may have given it an end meanwhile
            at = facts["expires"]
            item.expires = None if at is None else Span(at, at)
        item.has_place = False
        item.states, item.changed = {State("ready", facts.get("attempts", 0))}, entry.stamp
        self._items[item.value] = self._ended.pop(item.value)

    def _take_back(self, entry: Entry) -> None:
        if (item := self._known(entry, entry.facts["value"])) is not None:
            if entry.facts["done"]:
                self._return_key(item)
            self._answer(entry, item, "claimed", _released)

    def _run_now(self, entry: Entry) -> None:
        if (item := self._known(entry, entry.facts["value"])) is not None:
            self._answer(entry, item, "delayed", lambda state: State("ready", state.attempts))

    # Dead letters

    def _retry(self, entry: Entry) -> None:
        item = self._known(entry, entry.facts["value"])
        if item is None:
            return
        rest = [other for other in self._items.values() if other is not item and item.unique]
        others = [other for other in rest if other.unique == item.unique]
        keys = {item.unique, item.lost} - {None}
        all_others = [other for other in self._items.values() if other is not item]
        may_have_key = [each for each in all_others if keys & {each.unique, each.lost}]
        self._sweep(entry, [item])
        if entry.facts["is_full"]:
            self._observe(entry, item, lambda state: state.kind == "dead", "dead")
            self._check_full(entry)
        elif not entry.facts["done"] and any(each.may_be(*UNFINISHED) for each in may_have_key):
            pass  # another item has its unique key
        elif self._answer(entry, item, "dead", lambda _: State("ready")):
            item.expires, item.has_place = None, True
            for other in others:
                gone = (*_ENDED, "claimed") if other.freed else _ENDED
                self._observe(entry, other, partial(_is_one, gone), "ended")
                if other.may_be("claimed"):
                    other.unique, other.lost = None, other.unique
            self._check_bound(entry)

    def _drop(self, entry: Entry) -> None:
        if (item := self._known(entry, entry.facts["value"])) is not None:
            self._answer(entry, item, "dead")

    # All items

    def _clear(self, entry: Entry) -> None:
        for item in list(self._items.values()):
            self._end(item)

    def _audit(self, entry: Entry) -> None:
        """Compare all items, as they are stored, and the counters of one read version."""
        whole: dict[str, list[str]] = entry.facts["values"]
        for value in chain.from_iterable(whole.values()):
            self._known(entry, value)
        listed = {kind: [value.partition(" ")[0] for value in whole[kind]] for kind in whole}
        counts: dict[str, int] = entry.facts["counts"]
        for kind, values in listed.items():
            if counts[kind] != len(values):
                self._problem(entry, f"{counts[kind]} items are counted as {kind}")
            if len(set(values)) != len(values):
                self._problem(entry, f"an item is listed twice as {kind}")
            known = [self._items[value] for value in values if value in self._items]
            if known != sorted(known, key=lambda item: (item.priority, item.key)):
                self._problem(entry, f"{kind} items are not in order")
        kinds = {value: kind for kind, values in listed.items() for value in values}
        for value in sorted(kinds.keys() - self._items.keys()):
            self._problem(entry, f"{value} is {kinds[value]}, and should be gone")
        for item in self._items.values():
            kind = kinds.get(item.value, "gone")
            states = self._shown(entry, item)
            if all(state.kind != kind for state in states):
                self._problem(entry, f"{item.value} is {kind}, and should be {_texts(states)}")


def _is_one(kinds: tuple[str, ...], state: State) -> bool:
    return state.kind in kinds


def _either(after: State, before: State, may: bool, must: bool) -> set[State]:
    return {after} if must else {after, before} if may else {before}


def _cancelled(state: State) -> State:
    return replace(state, is_cancelled=True) if state.kind == "claimed" else _GONE


def _released(state: State) -> State:
    return _GONE if state.is_cancelled else State("ready", state.attempts - 1)


def _later(entry: Entry, delay: float) -> Span:
    """Return when something is due that a call delays."""
    milliseconds = round(delay * 1000)
    return Span(entry.begun + milliseconds, entry.ended + milliseconds + 1)


def _texts(states: set[State]) -> str:
    return " or ".join(sorted(map(str, states))) or "gone"
