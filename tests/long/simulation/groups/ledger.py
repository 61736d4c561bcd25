"""A ledger of groups: what each transaction may do to them, in the order of commits.

The state of the queue is read after each commit, while no client runs. So the ledger knows which
items a transaction has taken, returned and removed, whoever it was, and computes whose turn it was
from the passes, weights and limits of that moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations, dropwhile
from math import inf
from typing import Any

from fdbqueue import Claim
from tests.long.simulation.groups.state import PASS_OF_ONE, Line, State
from tests.long.simulation.scheduler import Commit

_UNTIL_POPS_FOLLOW = 1_100  # milliseconds after which pops count once the queue has a rate

_REMOVING = {"pop", "ack", "cancel", "move"}
"""Acts that remove items, besides those that clear the queue."""


@dataclass(eq=False)
class Act:
    """One call of a client: its arguments and its outcome.

    Attributes:
        kind: Its first word is what it does.
        claim: The claim that it ends or extends.
        n: How many items it pushes or takes.
        within: Among how many turns it chooses.
        lease: In seconds.
        delay: In seconds.
        dead: Whether a failed item becomes a dead letter.
        values: What it pushes, or which item it changes.
        priority: The priority of what it pushes, or moves.
        cost: The cost of what it pushes.
        group: The group of what it pushes or changes, or whose settings it changes.
        settings: The changes of the settings of a group, or of the options of the queue.
        options: What a push does if there is no room.
        client: The number of the client.
        begun: When it began, in milliseconds, by the clock of the client.
        at: The same by the clock of the recording.
        result: What it has returned.
        returned: Whether it has returned.
        refused: Whether it was refused, because of the state of the item or of the queue.
        transaction: Its last transaction.
        has_changed: Whether any of its transactions has changed something.
    """

    kind: str
    claim: Claim[Any] | None = None
    n: int = 1
    within: int = 1
    lease: float = 30.0
    delay: float = 0.0
    dead: bool = False
    values: list[str] = field(default_factory=list)
    priority: int = 0
    cost: float = 1
    group: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    client: int = -1
    begun: int = 0
    at: int = 0
    result: Any = None
    returned: bool = False
    refused: bool = False
    transaction: Any = None
    has_changed: bool = False

    @property
    def verb(self) -> str:
        """What it does."""
        return self.kind.split()[0].rstrip(",")

    @property
    def takes(self) -> bool:
        """Whether it takes items."""
        return self.verb in ("pop", "claim")

    def __str__(self) -> str:
        about: Any = self.values or self.settings or self.n
        if self.claim is not None:
            about = [item.value for item in self.claim.items]
        end = self.result if self.returned else "no end"
        details = f"priority {self.priority}, group {self.group}, within {self.within}"
        return f"client {self.client}: {self.kind} {about} ({details}) -> {end}"


@dataclass
class Moved:
    """What a transaction has done to items, by position.

    Attributes:
        ended: The claims that have ended, with the groups of their items.
        returned: The items that have become ready, or have been taken at once.
        added: All items that have become ready, new ones among them.
        claimed: Those that were claimed.
        popped: Those that were popped, or staged for a pop.
        removed: Those that have gone otherwise.
    """

    ended: dict[bytes, str | None] = field(default_factory=dict)
    returned: dict[bytes, Line] = field(default_factory=dict)
    added: dict[bytes, Line] = field(default_factory=dict)
    claimed: dict[bytes, Line] = field(default_factory=dict)
    popped: dict[bytes, Line] = field(default_factory=dict)
    removed: dict[bytes, Line] = field(default_factory=dict)

    def taken_of(self, line: Line) -> list[bytes]:
        """Return what was taken of a line, in order."""
        return sorted(position for position, of in self.taken.items() if of == line)

    @property
    def taken(self) -> dict[bytes, Line]:
        """All that were taken."""
        return self.claimed | self.popped


def _moved(act: Act, before: State, after: State) -> Moved:
    """Return what has become of the items."""
    moved = Moved()
    for position in sorted(before.places.keys() | after.places.keys()):
        old, new = before.places.get(position), after.places.get(position)
        place = new or old
        assert place is not None
        line = place.line
        was_claimed = old is not None and old.state == "claimed"
        is_claimed = new is not None and new.state == "claimed"
        ends = was_claimed and (old and old.token) != (new and new.token)
        if ends:
            moved.ended[position] = line.group
        is_taken = is_claimed and (ends or not was_claimed)
        is_gone = new is None or new.state == "staged"
        is_popped = act.verb == "pop" and is_gone and old is not None and old.state != "staged"
        if is_popped and ends and old is not None and old.is_cancelled:
            is_popped = False  # it has expired
        if is_taken:
            moved.claimed[position] = line
        elif is_popped:
            moved.popped[position] = line
        was_ready = old is not None and old.state == "ready"
        is_ready = new is not None and new.state == "ready"
        if not was_ready and (is_ready or is_taken or is_popped):
            moved.added[position] = line
            if old is not None:
                moved.returned[position] = line
        elif new is None and not is_popped and act.verb != "ack":
            moved.removed[position] = line
    return moved


@dataclass
class Share:
    """What two groups have got while both could go on, and how far apart that was.

    Attributes:
        apart: How much more the first one has got than the second one, in passes.
        lowest: The lowest value.
        highest: The highest value.
    """

    apart: int = 0
    lowest: int = 0
    highest: int = 0


class Ledger:
    """The groups of a simulation.

    Args:
        is_exact: Whether all items are taken in the order of their turns.
        shards: The number of shards. Groups take turns only within one.

    Attributes:
        problems: What must not be.
        events: How often something of interest happened.
    """

    def __init__(self, is_exact: bool, shards: int = 1) -> None:
        self._is_exact = is_exact and shards == 1
        self._shards = shards
        self._versions = [0]
        self._states = [State()]
        self._shares: dict[tuple[Line, Line], Share] = {}
        self._largest_steps: Counter[str | None] = Counter()
        self._started: dict[str | None, list[tuple[int, int, int]]] = defaultdict(list)
        """The starts of each group since its rate was set: read version, clock, number of items.

        With `None`, those of the queue.
        """
        self._rated_since = -_UNTIL_POPS_FOLLOW
        """When the queue got a rate, in milliseconds."""
        self._numbers: Counter[Act] = Counter()
        """How many items each act has pushed or taken."""
        self._act: Act | None = None
        self._now = 0
        self.problems: list[str] = []
        self.events: Counter[str] = Counter()

    def _say(self, problem: str) -> None:
        self.problems.append(f"{problem}: {self._act}")

    @property
    def state(self) -> State:
        """The present state."""
        return self._states[-1]

    def _at(self, version: int) -> State:
        """Return the state that a transaction reads at a version."""
        return self._states[bisect_right(self._versions, version) - 1]

    def note(self, act: Act, commit: Commit, after: State, now: int) -> None:
        """Note a commit, in the order of commits.

        Args:
            act: What it is part of.
            commit: Its versions.
            after: The state after it.
            now: Its time in milliseconds, by a clock that is not behind those of the clients.
        """
        before, read = self._states[-1], self._at(commit.read)
        self._act, self._now = act, now
        act.has_changed = True
        self._versions.append(commit.version)
        self._states.append(after)
        if act.verb == "clear" and _all(after) != _all(before):
            self._note_cleared(after)
            return
        moved = _moved(act, before, after)
        self._note_ends(act, moved, before, commit.read)
        self._note_places(act, moved, before, after)
        self._note_limits(act, moved, before, after)
        self._note_starts(moved, before, after, commit)
        self._note_starts_of_queue(act, moved, before, after, commit)
        self._note_bounds(act, moved, before, read, after)
        self._note_held(before, after)
        self._note_order(act, moved, before, read, after)
        self._note_shares(moved, before, after)

    def _compare(self, what: str, stored: Any, expected: Any) -> None:
        if stored != expected:
            self._say(f"{what}: stored are {stored}, and should be {expected}")

    def _note_cleared(self, after: State) -> None:
        self.events["cleared"] += 1
        self._shares.clear()
        self._compare("cleared", _all(after), _all(State()))

    # Limits

    def _note_ends(self, act: Act, moved: Moved, before: State, read: int) -> None:
        """Check that claims end by their holders, or because their leases are over."""
        for position, group in moved.ended.items():
            old = before.places[position]
            if act.claim is not None:
                if old.token != act.claim.token:
                    self._say(f"it has ended the claim of another client, of {group!r}")
            elif old.lease_end > read:
                self._say(f"it has ended a claim that is not over, of {group!r}")

    def _note_places(self, act: Act, moved: Moved, before: State, after: State) -> None:
        """Check that only acts that remove items have removed any, and count for `account`."""
        gone = before.places.keys() - after.places.keys()
        new = after.places.keys() - before.places if act.verb == "push" else set()
        self._numbers[act] += len(new) + len(moved.taken)
        for old in [] if new or act.verb in _REMOVING else [before.places[each] for each in gone]:
            if not old.is_cancelled:
                self._say(f"an item of {old.line} is lost, which was {old.state}")

    def _note_limits(self, act: Act, moved: Moved, before: State, after: State) -> None:
        """Check that no more items of a group were claimed than its limit at this moment."""
        for group in {line.group for line in moved.claimed.values()}:
            limit, n = before.of(group).concurrency, after.running[group]
            if group is None:
                continue
            if before.of(group).paused:
                self._say(f"{group!r} is paused, and was claimed")
            if limit is not None:
                self.events["as many as the limit"] += n == limit
                if n > limit:
                    self._say(f"{n} of {group!r} are claimed, and {limit} may be")

    def _note_starts(self, moved: Moved, before: State, after: State, commit: Commit) -> None:
        """Check that no more items of a group are started in any time than its rate allows."""
        for group, n in Counter(line.group for line in moved.taken.values()).items():
            rate = before.of(group).rate
            if group is None or rate is None:
                continue
            self.events["as many as the rate"] += self._note_start(
                group, n, rate, before, after, commit
            )
        for group in [*self._started]:
            if group is not None and before.of(group).rate != after.of(group).rate:
                del self._started[group]

    def _note_start(
        self,
        group: str | None,
        n: int,
        rate: tuple[int, float],
        before: State,
        after: State,
        commit: Commit,
        may_be_late: bool = False,
    ) -> bool:
        """Note the start of items; return whether no more of them may be started.

        A late pop may find the rate after its items. A start is young by the versions, or by the
        clocks: no client has met a later time.
        """
        (most, period), started = rate, self._started[group]
        rows, old = after.starts.get(group, {}), before.starts.get(group, {})
        clock = next((time for time, version in rows if (time, version) not in old), self._now)
        started.append((commit.read, clock, n))
        young = sum(
            n
            for version, clock, n in started
            if commit.read - version < 1000 * period or self._now - clock < period
        )
        if young > most and not may_be_late:
            name = "the queue" if group is None else repr(group)
            self._say(f"{young} of {name} are started in {period} ms, and {most} may be")
        return young == most

    def _note_starts_of_queue(
        self, act: Act, moved: Moved, before: State, after: State, commit: Commit
    ) -> None:
        """Check likewise what is started of the queue. Pops may follow a first rate late."""
        if after.rate != before.rate:
            self._started.pop(None, None)
            if before.rate is None:
                self._rated_since = act.at
        old, rows = before.starts.get(None, {}), after.starts.get(None, {})
        stored = sum(n for stamp, n in rows.items() if stamp not in old)
        n = len(moved.taken)
        if before.rate is None or not n:
            return
        may_be_late = act.verb == "pop" and act.at < self._rated_since + _UNTIL_POPS_FOLLOW
        if stored == n:
            is_over = self._note_start(None, n, before.rate, before, after, commit, may_be_late)
            self.events["as many as the rate of the queue"] += is_over
        elif stored or not may_be_late:
            self._say(f"{n} items of the queue are started, and {stored} are stored")

    def _room_of_queue(self, state: State, version: int, now: int) -> float:
        """Return how many more items of the queue may certainly be started at a version.

        Starts are forgotten in their order, so one by a clock that was ahead keeps later ones.
        """
        if state.rate is None:
            return inf
        most, period = state.rate
        left = [
            n
            for _, n in dropwhile(
                lambda row: version - row[0][1] >= 1000 * period and now - row[0][0] >= period,
                sorted(state.starts.get(None, {}).items()),
            )
        ]
        return most - sum(left)

    # Full groups

    def _note_bounds(
        self, act: Act, moved: Moved, before: State, read: State, after: State
    ) -> None:
        """Check that no bound of a group is exceeded."""
        group = act.group
        if group is None or act.verb not in ("push", "retry"):
            return
        unfinished = ("ready", "delayed", "claimed")
        new = after.of_group(group, *unfinished) - before.of_group(group, *unfinished)
        # A push to a queue with bounds sweeps: claims of cancelled items may have ended.
        removed = {at: line for at, line in moved.removed.items() if at not in moved.ended}
        if not new:
            if removed:
                self._say("it has removed items, and added none")
            return
        room = after.room_for(group)
        self.events["as many as the bound"] += room == 0
        if room < 0:
            self._say(f"{group!r} has {-room} items more than may be")
        if removed:
            self._say("it has removed items")

    def note_outcome(self, act: Act, begun: int) -> None:
        """Note how a call has ended that began at a version."""
        self._act = act
        self.events[act.verb] += act.returned and act.result is not None
        if act.verb == "push":
            n = act.n - len(act.result) if act.returned else act.n * act.refused
        else:
            n = int(act.verb == "retry" and act.refused)
        if n:
            self.events["refused"] += 1
            first = bisect_right(self._versions, begun) - 1
            if all(state.room_for(act.group) >= act.n for state in self._states[first:]):
                self._say("it was refused, and there was room all the time")

    def _note_held(self, before: State, after: State) -> None:
        self.events["held back"] += len(after.held - before.held)
        self.events["released"] += len(before.held - after.held)

    # Turns and shares

    def _note_order(self, act: Act, moved: Moved, before: State, read: State, after: State) -> None:
        """Check that items were taken in the order of turns, unless a sweep found others before."""
        forgets = any(
            rows.keys() - after.starts.get(group, {}).keys()
            for group, rows in before.starts.items()
        )
        is_swept = moved.returned or moved.ended or moved.removed or before.held - after.held
        goes_on = any(line.group in before.held for line in moved.taken.values())
        if not moved.taken or is_swept or forgets or goes_on:
            return
        self.events["compared turns"] += 1
        for line in {*moved.taken.values()}:
            taken = moved.taken_of(line)
            if line.group is None:
                continue
            if taken != before.ready[line][: len(taken)]:
                self._say(f"the items of {line} were not taken in their order")
            steps = replace(read, places={**after.places, **before.places}).steps(line.group, taken)
            pass_, stored = before.passes.get(line, 0) + sum(steps), after.passes.get(line, 0)
            if line in after.ready and stored != pass_:
                self._say(f"the pass of {line} is {stored}, and should be {pass_}")
        if self._shards > 1:
            reach = act.within if act.verb != "pop" and act.within > act.n else 1
            best = {line.priority for _, line in [*first(before, reach), *first(read, reach)]}
            worst = max(line.priority for line in moved.taken.values())
            if len(moved.taken) == 1 and worst > max(best, default=worst):
                self._say(f"an item of priority {max(best)} came first")
            return
        is_pop = act.verb == "pop"
        if is_pop or act.within <= act.n:
            # A claim conflicts with nothing that comes before what it takes.
            expected = first(
                replace(before, taken=read.taken) if is_pop else read, len(moved.taken)
            )
            if {position for position, _ in expected} != moved.taken.keys():
                lines = [line for _, line in expected]
                self._say(f"{lines} had the turns, not {[*moved.taken.values()]}")
            return
        for line in filter(lambda line: line.group is not None, {*moved.taken.values()}):
            turn = line.priority, effective_pass(before, line), ""
            ahead = [each for each in read.turns if each[0] == line.priority and each < turn]
            if len(ahead) >= max(act.within, act.n):
                self._say(f"{line} was taken, and {len(ahead)} others were before it")

    def _note_shares(self, moved: Moved, before: State, after: State) -> None:
        """Check the bound of start-time fair queueing for each pair of groups.

        While two groups can go on, what they get, divided by their weights, is never further
        apart than the largest item of each of them.
        """
        if not self._is_exact:
            return
        taken = {line: moved.taken_of(line) for line in {*moved.taken.values()}}
        known = replace(before, places={**after.places, **before.places})
        gained = Counter({line: sum(known.steps(line.group, rows)) for line, rows in taken.items()})
        for state in (before, after):
            for line, rows in [*state.ready.items(), *taken.items()]:
                places = state.places.keys() & rows
                most = max([self._largest_steps[line.group], *state.steps(line.group, places)])
                self._largest_steps[line.group] = most
        both = _can_go_on(before) & _can_go_on(after)
        for pair in combinations(sorted(_can_go_on(after), key=str), 2):
            if pair[0].priority != pair[1].priority:
                continue
            if not both.issuperset(pair):
                self._shares.pop(pair, None)
                continue
            share = self._shares.setdefault(pair, Share())
            share.apart += gained[pair[0]] - gained[pair[1]]
            share.lowest = min(share.lowest, share.apart)
            share.highest = max(share.highest, share.apart)
            bound = sum(self._largest_steps[line.group] for line in pair)
            self.events["compared shares"] += 1
            if share.highest - share.lowest > bound:
                apart = (share.highest - share.lowest) / PASS_OF_ONE
                self._say(f"the shares of {pair} are {apart} apart")

    # Calls without a commit

    def look_at_results(self, acts: Iterable[Act]) -> None:
        """Check the calls that found nothing."""
        for self._act in acts:
            act = self._act
            # A call that changes something may learn of its result in another transaction.
            if not act.takes or not act.returned or act.result or act.has_changed:
                continue
            version = None if act.transaction is None else act.transaction.version
            if version is None or self._room_of_queue(self._at(version), version, act.begun) <= 0:
                continue
            if found := first(self._at(version), 1):
                self._say(f"it has found nothing, and {found} could be taken")

    def account(self, acts: Iterable[Act]) -> None:
        """Check that each act has done once what its client knows of."""
        ended = Counter[str]()
        for act in acts:
            if act.kind in ("push", "claim inside", "pop inside"):
                known, n = len([*(act.result or ())]), self._numbers[act]
                if n != known if act.returned else n > act.n:
                    self.problems.append(f"it was done with {n} items: {act}")
            if act.returned and act.verb == "ack" and act.claim is not None:
                ended.update(item.value for item in act.claim.items)
            elif act.returned and act.verb == "pop":
                ended.update(act.result or ())
        if doubled := [value for value, n in ended.items() if n > 1]:
            self.problems.append(f"they are doubled: {doubled}")


def _all(state: State) -> tuple[Any, ...]:
    """Return what a queue that was cleared does not have."""
    return state.places, state.passes, state.taken


def _can_go_on(state: State) -> set[Line]:
    return {line for line in state.ready if line.group not in state.held}


def first(
    state: State, n: int, gone: Counter[str | None] | None = None
) -> list[tuple[bytes, Line]]:
    """Return the next items in the order of turns: the rules of groups, as the guide has them."""
    found: list[tuple[bytes, Line]] = []
    n_of = Counter[str | None]()
    room = {line.group: state.room(line.group) for line in state.ready}
    for priority in sorted({line.priority for line in state.ready}):
        lines = [line for line in state.ready if line.priority == priority]
        left = {line: [*state.ready[line]] for line in lines if line.group not in state.held}
        passes = {line: effective_pass(state, line) for line in left}
        while len(found) < n:
            open_ = [
                line for line, rows in left.items() if rows and room[line.group] > n_of[line.group]
            ]
            if not open_:
                break
            line = min(open_, key=lambda line: (passes[line], (line.group or "").encode()))
            position = left[line].pop(0)
            found.append((position, line))
            passes[line] += sum(state.steps(line.group, [position]))
            n_of[line.group] += 1
    return found


def effective_pass(state: State, line: Line) -> int:
    """Return the pass of a line's first item."""
    pass_ = state.passes.get(line, 0)
    is_fresh = line.group is None and (line.priority in state.is_idle or line not in state.passes)
    return max(pass_, state.taken[line.priority]) if is_fresh else pass_
