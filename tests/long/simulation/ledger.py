"""A ledger that checks claimed items against the acts of clients in the order of commits.

Each act is one transaction, so it took effect at one moment or never. The ledger checks that the
result of each act was possible at that moment. Two kinds of claims are unknown: those of a client
that was killed before it could report them, and those whose reply was lost and whose lease was over
before the client looked for them, so that it claimed anew. Such a ghost claim holds some items for
some time, which shows in their number of attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from fdbqueue import Claim
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.types import ItemInfo
from tests.long.simulation.clients import Call
from tests.long.simulation.scheduler import Commit


@dataclass(eq=False)
class Act(Call):
    """One call of a client.

    Attributes:
        pushed: The priority of each value.
        skew: How far the client's clock is ahead, in milliseconds.
        result: (value, key) of each item of a push or pop; the claim of a claim.
        commits: The commits of its first transaction, which does all of its work.
    """

    pushed: dict[str, int] = field(default_factory=dict)
    skew: int = 0
    commits: list[Commit] = field(default_factory=list)

    @property
    def read(self) -> int:
        """The last version that the act read at."""
        version = None if self.transaction is None else self.transaction.version
        return version or 0

    @property
    def found_nothing(self) -> bool:
        """Whether it is a claim that returned nothing. It commits nothing, unless it swept."""
        return self.kind.startswith("claim") and self.returned and not self.result

    def _is_over(self, version: int) -> bool:
        """Return whether it is a claim whose lease was over at this version."""
        is_claim = self.kind.startswith("claim") and bool(self.commits)
        return is_claim and version > self.commits[0].read + int(self.lease * VERSIONS)

    @property
    def was_made_again(self) -> bool:
        """Whether it is a claim whose lease was over when its retry looked for it."""
        return all(self._is_over(commit.read) for commit in self.commits[1:])

    @property
    def was_over(self) -> bool:
        """Whether it is a claim whose lease was over when the commit took place, or later."""
        return any(self._is_over(max(self.read, commit.version)) for commit in self.commits)

    @property
    def due(self) -> int:
        """When the items are due by the client's clock, in milliseconds."""
        return self.begun + self.skew + round(self.delay * 1_000) if self.delay else 0

    @property
    def length(self) -> int:
        """The length of the lease in milliseconds, rounded up."""
        return int(self.lease * 1_000) + 1

    def __str__(self) -> str:
        about = [item.value for item in self.claim.items] if self.claim else self.pushed or self.n
        end = self.result if self.returned else self.lost and f"lost {self.lost} at {self.read}"
        details = f"begun {self.begun} + {self.skew}, lease {self.lease}, delay {self.delay}"
        return f"client {self.client}: {self.kind} {about} ({details}) {self.commits} -> {end}"


@dataclass(eq=False)
class State:
    """The known state of an item; its lease may have expired without a sweep yet."""

    value: str
    priority: int
    due: int
    key: bytes = b""
    pushed: int = 0
    """The version of its push, if its position is known."""
    token: bytes | None = None
    lease_end: int = 0
    """The end of the lease by its version."""
    clock_end: int = 0
    """Its end by the clock of the client that claimed, in milliseconds, at the earliest."""
    last_clock_end: int = 0
    """The same at the latest: a client looks at the clock before the read version."""
    length: int = 0
    """The length of the lease in milliseconds."""
    attempts: int = 0
    fate: str | None = None


class Ledger:
    """The items of one queue; raises `AssertionError` for an act that must not happen.

    Args:
        commits: All commits in order.
        max_attempts: The option of the queue.
        is_quiet: Whether claims never overlap and so must get the first items.
        concurrency: The option of the queue.
        time_of: Returns the time of a version, in milliseconds.
        skew: How far the clocks are apart, in milliseconds; none is behind the time.
    """

    _puts_aside = False
    """Whether concurrent pops occurred, for which items may be staged."""

    def __init__(
        self,
        commits: list[Commit],
        max_attempts: int | None = None,
        is_quiet: bool = False,
        concurrency: int | None = None,
        time_of: Callable[[int], int] = lambda version: version // 1_000,
        skew: int = 0,
    ) -> None:
        self._commits = commits
        self._max_attempts = max_attempts or 10**9
        self._is_quiet = is_quiet
        self._concurrency = concurrency or 10**9
        self._time_of = time_of
        self._skew = skew
        self._latest = 0
        self._sweeps: list[tuple[int, int]] = []
        """The clock at the beginning of each act, and its read version."""
        self._states: dict[str, State] = {}
        self._unknown_claims = 0
        """The maximum number of claims of unknown items."""
        self._unknown_pops = 0

    def note(self, acts: list[Act]) -> None:
        """Note all acts of a simulation."""
        for act in acts:
            self._sweeps += [(act.begun + act.skew, commit.read) for commit in act.commits]
            # The earlier commits of a claim may be sweeps. If they also claimed, and the claim had
            # no reason to be made again, the attempts will not match.
            is_claim = act.kind.startswith("claim")
            assert len(act.commits) <= 1 or is_claim, f"took place twice: {act}"
            took_place = act.commits or act.found_nothing
            assert took_place or not act.returned, f"returned, and did not take place: {act}"
            # The same is true of a claim that failed, unless its lease was over by then.
            assert not act.commits or not act.failed or is_claim, f"failed, and took place: {act}"
            assert not act.commits or act.lost is None, f"lost its lease, and committed: {act}"
            self._puts_aside |= act.kind == "pop at once"
            if act.kind == "pop at once" and not act.returned and not act.failed:
                self._unknown_pops += act.n
        events: list[tuple[int, Callable[[], None]]] = []
        for act in acts:
            if act.lost is not None:
                events.append((act.read, partial(self._refuse, act)))
            commits = act.commits or ([Commit(act.read, act.read)] if act.found_nothing else [])
            if act.failed and not act.was_over:
                continue
            for commit in commits[:-1] if act.was_made_again else []:
                events.append((commit.version, partial(self._claim_unknown, act)))
            for commit in commits[-1:]:
                do = getattr(self, f"_{act.kind.split()[0]}")
                events.append((commit.version, partial(do, act, *commit)))
                if act.found_nothing:
                    # It saw due items and expired leases as of its read version.
                    look = partial(self._none, act, act.begun, commit.read)
                    events.append((commit.read, look))
        for _, do in sorted(events, key=itemgetter(0)):
            do()

    def _push(self, act: Act, read: int, version: int) -> None:
        for value, priority in act.pushed.items():
            self._states[value] = State(value, priority, act.due)
        for value, key in act.result or ():
            state = self._states[value]
            state.key, state.pushed = key, version
            # Also behind claimed and delayed items.
            for other in self._states.values():
                if other.priority == state.priority and 0 < other.pushed < read:
                    assert other.key < key, f"{value} is before {other.value}: {act}"

    def _claim_unknown(self, act: Act) -> None:
        """Note a claim of which it is not known what it claimed, if anything."""
        self._unknown_claims += act.n

    def _claim(self, act: Act, read: int, version: int) -> None:
        if not act.returned:
            self._claim_unknown(act)
            return
        claim = act.result or Claim((), (), (), b"")
        values = [item.value for item in claim.items]
        if self._is_quiet and act.within == act.n:
            first = self._first(act.n, act.begun, read)
            passed = [key for value, key in first if value not in values]
            assert not passed or (len(values) == act.n and min(passed) > max(claim.keys)), (
                f"not the first ones: {act}"
            )
            assert list(claim.keys) == sorted(claim.keys), f"not in order: {act}"
        if not values:
            self._none(act)
        for value, key, attempt in zip(values, claim.keys, claim.attempts):
            state = self._taken(act, value, key, read, version)
            self._count(state, attempt)
            state.token = claim.token
            self._lease(state, act, read)
        self._latest = max(self._latest, read)
        assert self._held() <= self._concurrency, f"too many are claimed: {act}"

    def _held(self) -> int:
        """Return the number of claimed items whose claims cannot have ended unnoticed."""
        states = self._states.values()
        held = [state for state in states if state.fate is None and state.token is not None]
        return sum(not self._may_be_over(state, self._latest) for state in held)

    def _lease(self, state: State, act: Act, read: int) -> None:
        """Note the lease of a claimed or extended item."""
        state.lease_end = read + int(act.lease * VERSIONS)
        state.clock_end = act.begun + act.skew + act.length
        state.last_clock_end = self._time_of(read) + act.skew + act.length
        state.length = act.length

    def _may_be_over(self, state: State, version: int) -> bool:
        """Return whether a client may find at this version that a lease is over."""
        clock = self._time_of(version) + self._skew
        return state.lease_end <= version and state.clock_end <= clock

    def _is_over(self, state: State, now: int, version: int) -> bool:
        """Return whether every client finds that a lease is over.

        A call that began before the end by the clock, and went on for long, may have renewed it.
        """
        renewed = max(
            (
                self._time_of(read) + state.length
                for clock, read in self._sweeps
                if clock < state.last_clock_end and state.lease_end <= read <= version
            ),
            default=0,
        )
        return state.lease_end <= version and max(state.last_clock_end, renewed + 1) <= now

    def _pop(self, act: Act, read: int, version: int) -> None:
        if act.returned and not act.result:
            self._none(act)
        for value, key in act.result or ():
            self._taken(act, value, key, read, version).fate = act.kind

    def _none(self, act: Act, now: int = 0, version: int = 0) -> None:
        """Assert that no item was waiting, due or had an expired lease."""
        waiting = self._first(1, now, version)
        is_unknown = self._unknown_claims or self._puts_aside or self._concurrency < 10**9
        assert not waiting or is_unknown, f"{waiting} waits: {act}"

    def _taken(self, act: Act, value: str, key: bytes, read: int, version: int) -> State:
        """Return the state of a taken item; assert that it was available at its position."""
        state = self._states[value]
        assert state.fate is None, f"{value} is gone by {state.fate}: {act}"
        is_free = state.token is None or self._may_be_over(state, read)
        assert is_free, f"{value} is claimed: {act}"
        assert state.due <= self._time_of(version) + self._skew, f"{value} is not due: {act}"
        assert state.key in (b"", key), f"{value} is not in its place: {act}"
        state.key, state.token = key, None
        return state

    def _count(self, state: State, attempts: int) -> None:
        """Update the attempts of an item: one more, or more because of unknown claims."""
        assert state.attempts < attempts <= self._max_attempts, (
            f"{state} was claimed {attempts} times"
        )
        self._unknown_claims -= attempts - state.attempts - 1
        state.attempts = attempts

    def _first(self, n: int, now: int, version: int) -> list[tuple[str, bytes]]:
        """Return value and key of the first items that wait, or will after any client's sweep."""
        waiting = [
            (state.key, state.value)
            for state in self._states.values()
            if state.fate is None and state.due <= now
            if state.token is None
            or (self._is_over(state, now, version) and state.attempts < self._max_attempts)
        ]
        return [(value, key) for key, value in sorted(waiting)[:n]]

    # Ends of claims

    def _own(self, act: Act) -> list[State]:
        states = [self._states[item.value] for item in act.claim.items]
        for state in states:
            assert state.fate is None, f"{state.value} is gone by {state.fate}: {act}"
            assert state.token == act.claim.token, f"{state.value} is not its own: {act}"
        return states

    def _ack(self, act: Act, read: int, version: int) -> None:
        for state in self._own(act):
            state.fate = "ack"

    def _extend(self, act: Act, read: int, version: int) -> None:
        for state in self._own(act):
            self._lease(state, act, read)

    def _release(self, act: Act, read: int, version: int) -> None:
        for state in self._own(act):
            state.token = None
            state.attempts -= 1

    def _nack(self, act: Act, read: int, version: int) -> None:
        for state in self._own(act):
            state.token, state.due = None, act.due
            if state.attempts >= self._max_attempts:
                state.fate = "death"

    def _refuse(self, act: Act) -> None:
        """Assert that a lost lease had expired and that a sweep has run since."""
        (state,) = (self._states[item.value] for item in act.claim.items if item.id == act.lost)
        looked = any(self._may_be_over(state, read) and at < act.read for read, at in self._commits)
        is_its = state.fate is None and state.token == act.claim.token
        assert not is_its or looked, f"{state.value} is its own: {act}"

    def close(self, letters: list[ItemInfo], effects: Counter[str]) -> None:
        """Check dead letters and effects of jobs after all other items were acknowledged."""
        acked = {value for value, state in self._states.items() if state.fate == "ack"}
        assert effects == Counter(acked), "effects are not those of what was acknowledged"
        dead = Counter(letter.item.value for letter in letters)
        assert max(dead.values(), default=1) == 1, f"twice: {dead}"
        for letter in letters:
            state = self._states[letter.item.value]
            assert state.fate in (None, "death"), f"{state.value} died after {state.fate}"
            assert letter.attempts == self._max_attempts, (
                f"died after {letter.attempts} claims: {letter}"
            )
            assert state.key in (b"", letter.item.key), f"not from its place: {letter}"
            self._unknown_claims -= letter.attempts - state.attempts
        died = {value for value, state in self._states.items() if state.fate == "death"}
        assert died <= dead.keys(), f"{died - dead.keys()} are no dead letters"
        lost = {value for value, state in self._states.items() if not state.fate} - dead.keys()
        assert len(lost) <= self._unknown_pops, f"{lost} are lost"
        assert self._unknown_claims >= 0, "items were claimed too often"
