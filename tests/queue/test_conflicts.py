"""What conflicts with what, on every engine: one transaction acts, and another client commits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from fdbqueue import PriorityQueue, admin
from fdbqueue.layout.values import encode_tallies
from tests.support.full import unless_full
from tests.support.keys import layout_of
from tests.support.kinds import KINDS, push
from tests.support.leases import come_due, lapse

NAMES = {
    **{"key": {"unique": "k", "unique_until": "claimed"}, "lapse": lapse, "check": admin.check},
    **{"unless_full": unless_full, "PriorityQueue": PriorityQueue},
}
"""What the acts of a case may use, beside what was stored before."""


def nothing(db: Any, q: Any) -> None: ...


def emptied(db: Any, q: Any) -> None:
    q.push(db, "gone")
    q.pop(db)


def ordered(db: Any, q: Any) -> dict[str, Any]:
    """Push items of priorities 5, 5 and 9, and two that are no longer there."""
    pushed = {"before": q.push(db, "before", 1)}
    for value, priority in [("first", 5), ("second", 5), ("last", 9)]:
        pushed[value] = q.push(db, value, priority)
    assert q.pop(db) == pushed["before"]
    pushed["behind"] = q.push(db, "behind", 9)
    assert q.remove(db, pushed["behind"])
    return pushed


def of_kind(db: Any, q: Any, kind: Any) -> dict[str, Any]:
    queue, push_one = kind(q.subspace), partial(push, value=1)
    push_one(db, queue)
    return {"q": queue, "push_one": push_one}


def grouped(db: Any, q: Any, n: int = 3) -> None:
    q.push_many(db, ["ada"] * n, 5, group="ada")
    q.push(db, "bob", 5, group="bob")


def beside_others(db: Any, q: Any) -> None:
    q.push_many(db, [1, 1], 5)
    grouped(db, q)


def limited(db: Any, q: Any) -> dict[str, Any]:
    q.configure(db, concurrency=2)
    q.set_group(db, "ada", concurrency=1)
    return {"second": q.push_many(db, ["first", "second"], group="ada")[1]}


BOUNDS: dict[str, Callable[..., object]] = {
    "queue": lambda db, q, n=1: q.configure(db, max_size=n),
    "group": lambda db, q, n=1: q.set_group(db, "ada", max_size=n),
    "all groups": lambda db, q, n=1: q.set_group(db, None, max_size=n),
}


def full(db: Any, q: Any, bound: Callable[..., object]) -> dict[str, Any]:
    q.configure(db, max_attempts=1)
    bound(db, q)
    q.push(db, "a", group="ada")
    return {"claim": q.claim(db)}


def full_group(db: Any, q: Any) -> dict[str, Any]:
    q.set_group(db, "ada", max_size=1)
    return {group: q.push(db, 1, group=group) for group in ("ada", "bob")}


def unbounded(db: Any, q: Any) -> None:
    q.push_many(db, range(100), group="ada")
    q.configure(db, max_size=10**9)


def unique(db: Any, q: Any) -> None:
    q.push(db, 1, **NAMES["key"])


def claimed(db: Any, q: Any) -> dict[str, Any]:
    unique(db, q)
    return {"claim": q.claim(db)}


def due(db: Any, q: Any, delay: float) -> dict[str, Any]:
    item = q.push(db, "old", unique="k", replace=True, delay=delay)
    come_due(db, q)
    return {"item": item}


def small_group(db: Any, q: Any) -> dict[str, Any]:
    q.set_group(db, "small", max_size=1)
    return {"one": q.push(db, 1), "two": q.push(db, 2)}


def damaged(db: Any, q: Any) -> None:
    q.push_many(db, "ab")
    db.add(layout_of(q).tallies, encode_tallies(popped=7))


POP, CLAIM, REPAIR = "q.pop(tr)", "q.claim(tr, within=1)", "check(tr, q, repair=True).repaired"
TO_ADA, TO_BOB = (f"q.push(tr, 2, 5, group='{group}')" for group in ("ada", "bob"))
REFUSED = "unless_full(q.push, tr, 2, group='ada', unique=%r) is None"
CHANGES = [f"q.set_group(tr, 'ada', {change})" for change in ("paused=True", "concurrency=1")]

REPLACE = "q.push(tr, 'new', unique='k', replace=True).id == item.id"
UPDATE = "q.update(tr, item, value='new')"
CASES: list[tuple[Callable[[Any, Any], Any], str, list[str], list[str]]] = [
    (
        *(ordered, POP),
        [
            *("q.push(tr, 2, 0)", POP, CLAIM, "q.remove(tr, first)", "q.put_back(tr, [before])"),
            *(
                "q.update(tr, first, priority=9)",
                "q.update(tr, last, priority=1)",
                "q.clear(tr) is None",
            ),
        ],
        [
            *("q.push(tr, 2, 5)", "q.push(tr, 2, 1, delay=60)", "q.pop_max(tr)"),
            *("q.remove(tr, second)", "q.put_back(tr, [behind]) is None"),
        ],
    ),
    (ordered, "q.pop_max(tr)", ["q.push(tr, 2, 9)", "q.push(tr, 2, 10)"], ["q.push(tr, 2, 8)"]),
    (ordered, CLAIM, [CLAIM, POP], ["q.push(tr, 2, 0)", "q.pop_max(tr)"]),
    *((partial(of_kind, kind=each), POP, [POP], ["push_one(tr, q)"]) for each in KINDS),
    *((emptied, f"{act} is None", ["q.push(tr, 2, 10**9)"], []) for act in (POP, CLAIM)),
    (claimed, "q.ack(tr, claim) is None", ["lapse(tr, q) or q.claim(tr)"], ["q.push(tr, 2)"]),
    # Groups. A claim may take one of the first few items.
    (
        *(grouped, POP),
        [
            *(*CHANGES, "q.push(tr, 'would have come first', 5, group='Abe')"),
            *("q.push(tr, 2, 0, group='ada')", "q.push(tr, 2, 0)"),
        ],
        [TO_BOB],
    ),
    (grouped, CLAIM, CHANGES, [TO_BOB, "q.push(tr, 2, 5, group='Abe')"]),
    *((partial(grouped, n=1), act, [TO_ADA], []) for act in (POP, CLAIM)),
    (beside_others, POP, ["q.set_group(tr, '', weight=2) is None"], []),
    (limited, "q.get(tr, second).ahead_in_group == 1", [], ["q.claim(tr)"]),
    # Bounds. The other writes of a refused push may depend on the queue being full.
    *(
        (partial(full, bound=bound), REFUSED % key, [f"q.{end}(tr, claim) is None"], [])
        for bound in BOUNDS.values()
        for key in (None, "k")
        for end in ("ack", "nack")
    ),
    (full_group, REFUSED % None, ["q.remove(tr, ada)"], ["q.remove(tr, bob)"]),
    *(
        (given, TO_ADA, [f"BOUNDS[{name!r}](tr, q, 2) is None"], [])
        for name, bound in BOUNDS.items()
        for given in (nothing, bound)
    ),
    (unbounded, "q.push(tr, 2)", [], ["q.push(tr, 2)"]),
    (nothing, "q.push(tr, 2)", ["PriorityQueue(q.subspace, max_size=2).push(tr, 2)"], []),
    # Unique keys
    (unique, "not q.push(tr, 2, **key).is_new", [CLAIM], []),
    (claimed, "q.release(tr, claim)", ["q.push(tr, 2, **key)"], []),
    # Changes of waiting items
    *(
        (partial(due, delay=delay), act, [other], [])
        for delay in (0, 60)
        for change in (REPLACE, UPDATE)
        for act, other in ((change, CLAIM), (CLAIM, change))
    ),
    (
        *(small_group, "q.update(tr, one, group='small')"),
        *(["q.update(tr, two, group='small')"], ["q.update(tr, two, priority=9)"]),
    ),
    (damaged, REPAIR, [REPAIR], ["q.push(tr, 2)", POP]),
]
"""What is stored, an act, other acts that conflict with it, and some that do not."""


@pytest.mark.parametrize(
    ("given", "act", "other", "conflicts"),
    [
        (given, act, other, other in some)
        for given, act, some, none in CASES
        for other in [*some, *none]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_act_conflicts_with_what_it_depends_on(
    db: Any, queue: PriorityQueue, fdb_error: Any, given: Any, act: str, other: str, conflicts: bool
) -> None:
    names = {**NAMES, "q": queue, "BOUNDS": BOUNDS, **(given(db, queue) or {})}
    tr = db.create_transaction()
    assert eval(act, {**names, "tr": tr})
    note = queue.subspace["note"].key()
    tr[note] = b""  # a transaction that writes nothing has no conflicts
    eval(other, {**names, "tr": db})
    with fdb_error(1020) if conflicts else nullcontext():
        tr.commit().wait()
    assert (db[note] is None) == conflicts
    del db[note]
    assert admin.check(db, names["q"]).problems == ()
