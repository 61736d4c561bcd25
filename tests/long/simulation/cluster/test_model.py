"""The model of the simulation finds lost, doubled and reordered items, and allows what is right.

A log is written here as in a story: each operation reads everything before it, at its own second,
unless it says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.long.simulation.cluster.model import VERSIONS, Entry, Model, last_stamp

_SECOND = 1000 * VERSIONS


def at(second: float, verb: str, *, read: float | None = None, **facts: Any) -> Entry:
    """Return an operation that commits at this second, and reads just before or at `read`."""
    version = int(second * _SECOND)
    seen = version - 1 if read is None else int(read * _SECOND)
    stamp = last_stamp(seen) if verb == "audit" else version << 16
    began = int(1000 * (second if read is None else read))
    return Entry(verb, seen, stamp, began, began, facts)


def push(second: float, value: str, priority: int = 0, **facts: Any) -> Entry:
    key = facts.pop("key", f"{second:08.1f}")
    read = facts.pop("read", None)
    delay = facts.pop("delay", 0)
    return at(
        second, "push", read=read, value=value, priority=priority, key=key, delay=delay, **facts
    )


def pop(second: float, value: str | None, at_max: bool = False) -> Entry:
    return at(second, "pop", value=value, at_max=at_max)


def peek(second: float, value: str | None, at_max: bool = False) -> Entry:
    return at(second, "peek", value=value, at_max=at_max)


def claim(second: float, *values: str, attempt: int = 1, **facts: Any) -> Entry:
    given = {"token": f"{second}", "lease": 10, "within": 1, **facts}
    return at(second, "claim", values=[*values], attempts=[attempt] * len(values), **given)


def end(second: float, verb: str, claimed: Entry, **facts: Any) -> Entry:
    values, token = claimed.facts["values"], claimed.facts["token"]
    return at(second, verb, values=values, token=token, **{"lost": None, **facts})


def on(second: float, verb: str, value: str, done: bool = True, **facts: Any) -> Entry:
    """Return an operation on a single item, which says whether it has done anything."""
    return at(second, verb, value=value, done=done, **{"is_full": False, **facts})


def put_back(second: float, pushed: Entry) -> Entry:
    facts = {name: pushed.facts[name] for name in ("value", "priority", "key")}
    return at(second, "put_back", **facts)


def audit(second: float, **values: list[str]) -> Entry:
    values = {state: values.get(state, []) for state in ("ready", "delayed", "claimed", "dead")}
    counts = {state: len(listed) for state, listed in values.items()}
    return at(second, "audit", values=values, counts=counts)


def problems(*entries: Entry, **options: Any) -> list[str]:
    model = Model(**options)
    model.replay(entries)
    return [problem.partition(": Entry")[0] for problem in model.problems]


A, B = push(1, "a"), push(2, "b")
CLAIM = claim(3, "a")
LOST = {"lost": "a"}

OVER = end(15, "ack", CLAIM, **LOST)

RIGHT = {
    "first in, first out": [A, B, pop(3, "a"), pop(4, "b"), pop(5, None)],
    "the lowest priority first": [A, push(2, "b", -1), pop(3, "b"), pop(4, "a")],
    "the highest priority first": [A, push(2, "b", 1), pop(3, "b", at_max=True)],
    "overlapping pushes in either order": [A, push(2, "b", key="0", read=0.5), pop(3, "b")],
    "a push before a delayed one of its transaction": [
        push(1, "a", delay=5),
        push(1, "b", key="0"),
        pop(7, "b"),
    ],
    "a peek takes nothing": [A, peek(2, "a"), peek(3, "a"), pop(4, "a"), peek(5, None)],
    "a delay": [push(1, "a", delay=5), pop(5, None), pop(7, "a")],
    "a delay that ends within a call": [push(1, "a", delay=5), at(6, "pop", value=None, at_max=0)],
    "an ack": [A, CLAIM, end(4, "ack", CLAIM), pop(5, None), pop(20, None)],
    "an ack after the lease, that no one has taken": [A, CLAIM, end(20, "ack", CLAIM)],
    "a lease that is over": [
        A,
        CLAIM,
        pop(12.9, None),
        pop(14, "a"),
        end(15, "ack", CLAIM, **LOST),
    ],
    "a release": [A, CLAIM, end(4, "release", CLAIM), claim(5, "a", attempt=1)],
    "a nack": [A, CLAIM, end(4, "nack", CLAIM, delay=0), claim(5, "a", attempt=2)],
    "a nack with a delay": [A, CLAIM, end(4, "nack", CLAIM, delay=5), pop(8, None), pop(10, "a")],
    "an extension": [A, CLAIM, end(12, "extend", CLAIM, lease=10), pop(20, None), pop(23, "a")],
    "a claim of one of the first": [A, B, claim(3, "b", within=2), pop(4, "a")],
    "a removal": [A, at(2, "remove", value="a", done=True), pop(3, None)],
    "a cancellation": [A, at(2, "cancel", value="a", done=True), pop(3, None)],
    "a cancellation of a claimed item": [
        *(A, CLAIM, at(4, "cancel", value="a", done=True)),
        *(at(5, "cancel", value="a", done=True), end(6, "nack", CLAIM, delay=0), pop(7, None)),
        at(8, "cancel", value="a", done=False),
    ],
    "a removal of a claimed item": [A, CLAIM, at(4, "remove", value="a", done=False)],
    "a new priority": [
        A,
        B,
        at(3, "reprioritize", value="a", outcome="moved", priority=0, key="9"),
        pop(4, "b"),
        pop(5, "a"),
    ],
    "a unique key": [
        push(1, "a", unique="u"),
        push(2, "b", unique="u", key="0", existing="a"),
        pop(3, "a"),
        push(4, "c", unique="u"),
    ],
    "a clear": [A, CLAIM, B, at(4, "clear"), pop(5, None), end(6, "ack", CLAIM, **LOST)],
    "an item that expires": [push(1, "a", ttl=5), pop(7, None), audit(8)],
    "an item that is taken before it expires": [push(1, "a", ttl=5), pop(5, "a")],
    "an item that expires within a call": [push(1, "a", ttl=5), at(6, "pop", value=None, at_max=0)],
    "a claimed item that expires": [
        push(1, "a", ttl=5),
        CLAIM,
        end(8, "release", CLAIM),
        pop(9, None),
    ],
    "a delayed item that expires": [push(1, "a", delay=3, ttl=2), peek(5, None), pop(6, None)],
    "an item that has expired is not taken back": [
        push(1, "a", ttl=5),
        CLAIM,
        on(14, "take_back", "a", done=False),
        audit(15),
    ],
    "an item that is put back": [A, pop(2, "a"), put_back(3, A), put_back(3.5, A), pop(4, "a")],
    "an item that is put back where it was": [A, B, pop(3, "a"), put_back(4, A), pop(5, "a")],
    "an item that is put back expires all the same": [
        EXPIRING := push(1, "a", ttl=5),
        pop(2, "a"),
        put_back(3, EXPIRING),
        pop(9, None),
    ],
    "a put back of an item that is there": [A, put_back(2, A), pop(3, "a"), pop(4, None)],
    "a claim that is taken back": [
        A,
        CLAIM,
        on(4, "take_back", "a"),
        end(5, "ack", CLAIM, **LOST),
        claim(6, "a", attempt=1),
    ],
    "a delay that is ended": [push(1, "a", delay=9), on(2, "run_now", "a"), pop(3, "a")],
    "a priority of several numbers": [push(1, "a", [1, 5]), push(2, "b", [1, 2]), pop(3, "b")],
    "a rename": [
        at(1, "open", name="here"),
        at(2, "rename", name="here", new_name="there"),
        at(3, "open", name="there"),
    ],
    "an audit": [A, B, CLAIM, audit(4, ready=["b"], claimed=["a"])],
    "an audit of what is over": [A, CLAIM, audit(12, claimed=["a"]), audit(14, ready=["a"])],
    "an audit of what nobody has swept": [A, CLAIM, audit(14, claimed=["a"]), pop(15, "a")],
    "a peek at what nobody has swept": [push(1, "a", delay=3), peek(9, None), pop(9, "a")],
    "an audit that comes late": [A, pop(3, "a"), audit(2, ready=["a"])],
}

WRONG = {
    "lost": ([A, B, pop(3, "b")], "a is before b"),
    "lost at the end": ([A, pop(3, None)], "a is before None"),
    "doubled": ([A, pop(2, "a"), pop(3, "a")], "a was taken, but it is"),
    "appeared": ([pop(2, "a")], "a was never pushed"),
    "reordered": ([A, B, push(3, "c"), pop(4, "b")], "a is before b"),
    "out of turn": ([A, push(2, "b", 1), pop(3, "b")], "a is before b"),
    "not behind": ([A, push(2, "b", key="0")], "b is not behind a"),
    "pushed twice": ([A, A], "a was pushed again"),
    "a peek at nothing": ([A, peek(2, None)], "a is before None"),
    "before its time": ([push(1, "a", delay=5), pop(3, "a")], "a was taken, but it is"),
    "not at its time": ([push(1, "a", delay=5), pop(7, None)], "a is before None"),
    "popped while claimed": ([A, CLAIM, pop(4, "a")], "a was taken, but it is"),
    "claimed twice": ([A, CLAIM, claim(4, "a", attempt=2)], "a was claimed for attempt 2, but"),
    "a claim of nothing": ([A, claim(2)], "a was not there, but it is"),
    "a claim of a later one": ([A, B, claim(3, "b")], "b was claimed, with 1 items before it"),
    "the wrong attempt": ([A, claim(3, "a", attempt=2)], "a was claimed for attempt 2, but"),
    "acknowledged twice": (
        [A, CLAIM, end(4, "ack", CLAIM), end(5, "ack", CLAIM)],
        "a was held, but it is",
    ),
    "acknowledged after another claim": (
        [A, CLAIM, claim(14, "a", attempt=2), end(15, "ack", CLAIM)],
        "a was held, but it is",
    ),
    "a lease lost too early": ([A, CLAIM, end(5, "ack", CLAIM, **LOST)], "a was lost, but it is"),
    "an extension in vain": (
        [A, CLAIM, end(12, "extend", CLAIM, lease=10), pop(15, "a")],
        "a was taken, but it is",
    ),
    "a lease that never ends": ([A, CLAIM, pop(20, None)], "a is before None"),
    "a removal of a claim": (
        [A, CLAIM, at(4, "remove", value="a", done=True)],
        "a was removed, but it is",
    ),
    "a cancelled item that returns": (
        [
            *(A, CLAIM, at(4, "cancel", value="a", done=True)),
            *(end(6, "nack", CLAIM, delay=0), pop(7, "a")),
        ],
        "a was taken, but it is gone",
    ),
    "a cancellation in vain": (
        [A, CLAIM, at(4, "cancel", value="a", done=False)],
        "a was not cancelled, but it is claimed",
    ),
    "a removal in vain": ([A, at(4, "remove", value="a", done=False)], "a was held, but it is"),
    "a move of a claim": (
        [A, CLAIM, at(4, "reprioritize", value="a", outcome="moved", priority=0, key="9")],
        "a was moved, but it is",
    ),
    "a unique key twice": (
        [push(1, "a", unique="u"), push(2, "b", unique="u")],
        "a was ended, but it is",
    ),
    "a unique key of nothing": (
        [push(1, "a", unique="u"), pop(2, "a"), push(3, "b", unique="u", existing="a")],
        "a was unfinished, but it is",
    ),
    "expired too early": ([push(1, "a", ttl=5), pop(5, None)], "a is before None"),
    "not expired": ([push(1, "a", ttl=5), pop(7, "a")], "a was taken, but it is"),
    "put back in vain": ([A, pop(2, "a"), put_back(3, A), pop(4, None)], "a is before None"),
    "put back twice": ([A, put_back(2, A), pop(3, "a"), pop(4, "a")], "a was taken, but it is"),
    "put back behind": ([A, B, pop(3, "a"), put_back(4, A), pop(5, "b")], "a is before b"),
    "taken back in vain": (
        [A, CLAIM, on(4, "take_back", "a"), end(5, "ack", CLAIM)],
        "a was held, but it is",
    ),
    "an attempt that was taken back counts": (
        [A, CLAIM, on(4, "take_back", "a"), claim(5, "a", attempt=2)],
        "a was claimed for attempt 2, but",
    ),
    "a delay that was ended goes on": (
        [push(1, "a", delay=9), on(2, "run_now", "a"), pop(3, None)],
        "a is before None",
    ),
    "an old name": (
        [at(1, "rename", name="here", new_name="there"), at(2, "open", name="here")],
        "the queue is here, and should be there",
    ),
    "survived a clear": ([A, at(2, "clear"), pop(3, "a")], "a was taken, but it is"),
    "a wrong counter": (
        [at(2, "audit", values={"ready": []}, counts={"ready": 1})],
        "1 items are counted as ready",
    ),
    "an audit that misses one": ([A, audit(2)], "a is gone, and should be"),
    "an audit with one too many": ([A, pop(2, "a"), audit(3, ready=["a"])], "a is ready, and sho"),
    "an audit out of order": ([A, B, audit(3, ready=["b", "a"])], "ready items are not in order"),
    "an audit before the time": ([push(1, "a", delay=9), audit(2, ready=["a"])], "a is ready, and"),
}


@pytest.mark.parametrize("entries", RIGHT.values(), ids=RIGHT)
def test_the_model_allows(entries: list[Entry]) -> None:
    assert problems(*entries) == []


@pytest.mark.parametrize(("entries", "problem"), WRONG.values(), ids=WRONG)
def test_the_model_finds(entries: list[Entry], problem: str) -> None:
    found = problems(*entries)
    assert any(each.startswith(problem) for each in found), found


def test_a_full_queue_rejects() -> None:
    rejected = push(3, "c", key=None)
    assert problems(A, B, rejected, max_size=2) == []
    assert problems(A, rejected, max_size=2) == ["the queue was full, with 1 items"]
    assert problems(A, B, max_size=1) == ["the queue has room for 1, and has 2"]


def test_the_last_attempt_ends_in_death() -> None:
    nack = end(4, "nack", CLAIM, delay=0)
    assert problems(A, CLAIM, nack, pop(5, None), max_attempts=1) == []
    assert problems(A, CLAIM, nack, pop(5, "a"), max_attempts=1) != []
    assert problems(A, CLAIM, pop(20, None), audit(21, dead=["a"]), max_attempts=1) == []
    moved = at(5, "reprioritize", value="a", outcome="moved", priority=1, key="9")
    assert problems(A, CLAIM, nack, moved, audit(21, dead=["a"]), max_attempts=1) == []


def test_a_dead_letter_returns_with_all_its_attempts() -> None:
    expiring = push(1, "a", ttl=5)
    dies = [CLAIM, end(4, "nack", CLAIM, delay=0)]
    again = [on(7, "retry", "a"), claim(8, "a", attempt=1)]
    assert problems(expiring, *dies, *again, max_attempts=1) == []
    assert problems(expiring, *dies, on(7, "retry", "a", done=False), max_attempts=1) != []
    assert problems(expiring, *dies, on(7, "drop", "a"), *again, max_attempts=1) != []
    assert problems(A, on(7, "retry", "a", done=False), max_attempts=1) == []


def test_a_dead_letter_returns_unless_its_unique_key_is_in_use() -> None:
    dies = [push(1, "a", unique="u"), CLAIM, end(4, "nack", CLAIM, delay=0)]
    other = push(5, "b", unique="u")
    fails = on(7, "retry", "a", done=False)
    assert problems(*dies, other, fails, max_attempts=1) == []
    assert problems(*dies, other, on(7, "retry", "a"), max_attempts=1) != []
    assert problems(*dies, other, pop(6, "b"), fails, max_attempts=1) != []


def test_a_dead_letter_may_lose_its_unique_key_to_an_item_that_is_put_back() -> None:
    """If its lease had ended by then, which only a sweep tells."""
    first = push(1, "b", unique="u")
    before = [first, pop(1.2, "b"), push(1.5, "a", unique="u"), CLAIM, put_back(13, first)]
    fails = on(15, "retry", "a", done=False)
    assert problems(*before, fails, max_attempts=1) == []
    finds = push(14, "c", unique="u", existing="b")
    assert problems(*before, finds, fails, max_attempts=1) == []
    assert problems(*before, finds, pop(14.5, "b"), fails, max_attempts=1) != []


def test_a_dead_letter_returns_if_there_is_room() -> None:
    dies = [A, CLAIM, end(4, "nack", CLAIM, delay=0)]
    other, full = push(5, "b"), on(7, "retry", "a", done=False, is_full=True)
    assert problems(*dies, other, full, max_attempts=1, max_size=1) == []
    assert problems(*dies, full, max_attempts=1, max_size=1) != []
    assert problems(*dies, other, on(7, "retry", "a"), max_attempts=1, max_size=1) != []


def test_an_item_is_put_back_even_beyond_the_bound() -> None:
    beyond = [A, pop(2, "a"), push(3, "b"), put_back(4, A)]
    assert problems(*beyond, push(5, "c", key=None), max_size=1) == []
    assert problems(*beyond, pop(5, "a"), push(6, "c"), max_size=1) != []


def test_a_recovery_does_not_end_a_lease() -> None:
    """It advances the versions by far; the clock goes on."""
    clock = {"begun": 5_000, "ended": 5_000}
    later = Entry("pop", 1_000 * _SECOND, 1_001 * _SECOND << 16, **clock, facts=pop(0, None).facts)
    early = Entry("pop", 1_000 * _SECOND, 1_001 * _SECOND << 16, **clock, facts=pop(0, "a").facts)
    assert problems(A, CLAIM, later) == []
    assert problems(A, CLAIM, early) != []


def test_a_lease_is_renewed_for_its_length_at_most() -> None:
    """The clock of the client that has it is an hour ahead of another one."""
    ahead = 3_600_000
    fast = replace(CLAIM, begun=CLAIM.begun + ahead, ended=CLAIM.ended + ahead)
    assert problems(A, fast, pop(14, None), pop(40, None)) == []
    by_fast = replace(pop(25, "a"), begun=25_000 + ahead, ended=25_000 + ahead)
    assert problems(A, fast, pop(14, None), by_fast) == []
    early = replace(by_fast, read=by_fast.read - 2 * _SECOND)
    assert problems(A, fast, pop(14, None), early) != []


def test_a_transaction_cannot_find_what_was_committed_after_its_read_version() -> None:
    """The delay was over at the time of the call, but the push was not committed yet."""
    slow = push(5, "a", delay=1, read=1)
    assert problems(slow, at(6, "pop", read=4, value=None, at_max=False)) == []
    assert problems(slow, at(6, "pop", read=5.5, value=None, at_max=False)) != []


def test_operations_of_one_transaction_see_each_other() -> None:
    both = [A, at(1, "pop", value="a", at_max=False)]
    assert problems(*both) == []


def test_what_is_unfinished() -> None:
    model = Model(max_attempts=1)
    model.replay([A, B, CLAIM, end(4, "nack", CLAIM, delay=0)])
    assert model.unfinished == ["b"]
    assert model.operations == 4
