"""Groups share what is taken from a priority by their weights, within their limits."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.errors import LeaseLost
from fdbqueue.layout.items import GroupSettings
from fdbqueue.queue.base import store_of
from tests.support.counting import CountingDatabase, writes
from tests.support.keys import layout_of


@pytest.fixture(params=["priority", "fifo"])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    kind = fdbqueue.PriorityQueue if request.param == "priority" else fdbqueue.Queue
    return kind.named(db, f"{name}jobs")


def test_groups_share_whatever_one_of_them_pushes_first(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["flood"] * 100, group="flood")
    for group in ("ada", "bob", "eve"):
        jobs.push_many(db, [group] * 10, group=group)
    taken = Counter(jobs.pop(db).value for _ in range(40))
    assert taken == {"flood": 10, "ada": 10, "bob": 10, "eve": 10}
    assert jobs.pop(db).value == "flood"
    assert admin.check(db, jobs).ok


def test_items_of_a_group_are_in_the_order_of_their_arrival(db: Any, jobs: Any) -> None:
    for number in range(20):
        jobs.push(db, number, group="ada" if number % 3 else "bob")
    popped = [jobs.pop(db).value for _ in range(20)]
    for group in (0, 1):
        own = [number for number in popped if bool(number % 3) == bool(group)]
        assert own == sorted(own)


def test_items_without_a_group_are_one_more_group(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["others"] * 30)
    jobs.push_many(db, ["ada"] * 10, group="ada")
    taken = Counter(jobs.pop(db).value for _ in range(20))
    assert taken == {"others": 10, "ada": 10}
    assert [jobs.pop(db).value for _ in range(20)] == ["others"] * 20
    jobs.push(db, "ada", group="ada")
    jobs.push_many(db, ["others"] * 3)
    assert "ada" in [jobs.pop(db).value for _ in range(2)]  # who was away does not catch up


def test_a_group_whose_items_are_all_delayed_is_listed(db: Any, jobs: Any) -> None:
    for group in ("ada", "bob", "bob\x00", "cleo"):
        for priority in (1, 2) if jobs.kind == "priority" else (None,):
            given = {} if priority is None else {"priority": priority}
            jobs.push(
                db, group, group=group, delay=60 if group.startswith("bob") else None, **given
            )
    names = ["ada", "bob", "bob\x00", "cleo"]
    listed = jobs.groups(db)
    assert [each.name for each in listed] == names
    n = 2 if jobs.kind == "priority" else 1
    assert [(each.ready, each.delayed) for each in listed] == [(n, 0), (0, n), (0, n), (n, 0)]
    for limit in (1, 2, 3):
        paged: list[str] = []
        while page := jobs.groups(db, after=paged[-1] if paged else None, limit=limit):
            assert len(page) == min(limit, len(names) - len(paged))
            paged += [each.name for each in page]
        assert paged == names


def test_items_without_a_group_have_a_weight_and_are_not_listed(db: Any, jobs: Any) -> None:
    def shown() -> list[tuple[Any, ...]]:
        return [(each.name, each.ready, each.claimed, each.weight) for each in jobs.groups(db)]

    jobs.push_many(db, [None] * 20)
    assert shown() == []  # a queue without groups
    jobs.push_many(db, ["ada"] * 20, group="ada")
    jobs.set_group(db, "", weight=3)
    claim = jobs.claim(db, n=8)
    assert Counter(item.value for item in claim.items) == {None: 6, "ada": 2}
    assert shown() == [("ada", 18, 2, 1)]
    assert jobs.groups(db, after="") == jobs.groups(db)
    jobs.set_group(db, None, weight=0.5)
    jobs.set_group(db, "", weight=None)
    jobs.ack(db, claim)
    assert shown() == [("ada", 18, 0, 0.5)]
    jobs.change_all(db, "clear", group="")
    assert jobs.size(db) == 18
    assert admin.check(db, jobs).problems == ()


def test_items_without_a_group_do_not_catch_up(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["none", "none"])
    jobs.push(db, "ada", group="ada")
    assert [jobs.pop(db).value for _ in range(3)] == ["none", "ada", "none"]
    jobs.push_many(db, ["ada"] * 60, group="ada")
    jobs.pop_many(db, 50)
    jobs.push_many(db, ["none"] * 10)
    assert [jobs.pop(db).value for _ in range(10)].count("none") in (5, 6)
    assert admin.check(db, jobs).problems == ()


def test_shares_begin_again_behind_items_without_a_group(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "", weight=0.1)
    jobs.push_many(db, ["ada", "none"], groups=["ada", None])
    claim = jobs.claim(db, n=2)
    assert [item.value for item in claim.items] == ["none", "ada"]
    jobs.push_many(db, ["none", "bob", "bob"], groups=[None, "bob", "bob"])
    assert jobs.pop(db).value == "none"  # and not after ten of Bob


def test_a_change_of_the_weight_of_items_without_a_group_conflicts_with_taking_one(
    db: Any, jobs: Any
) -> None:
    jobs.push_many(db, [1, 2, 3], groups=[None, "ada", None])
    tr = db.create_transaction()
    assert jobs.pop(tr).value == 1
    jobs.set_group(db, "", weight=2)
    with pytest.raises(fdbqueue.error_classes()) as caught:
        tr.commit().wait()
    assert caught.value.code == 1020


@pytest.mark.parametrize(
    "setting", [{"concurrency": 1}, {"paused": True}, {"rate": (1, 1)}, {"in_order": True}]
)
def test_items_without_a_group_have_only_a_weight(db: Any, jobs: Any, setting: Any) -> None:
    with pytest.raises(ValueError, match="the items without a group have only a weight"):
        jobs.set_group(db, "", **setting)


def test_weights_hold_at_once_and_change_in_the_middle(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "big", weight=3)
    for group in ("big", "small"):
        jobs.push_many(db, [group] * 1000, group=group)
    before = Counter(item.value for _ in range(8) for item in pop_some(db, jobs, 50))
    assert before == {"big": 300, "small": 100}
    jobs.set_group(db, "small", weight=6)
    after = Counter(item.value for _ in range(6) for item in pop_some(db, jobs, 50))
    assert abs(after["small"] - 200) <= 2
    jobs.set_group(db, None, weight=2)  # of all groups without a weight of their own
    jobs.set_group(db, "small", weight=None)
    rest = Counter(item.value for _ in range(4) for item in pop_some(db, jobs, 50))
    assert abs(rest["big"] - 120) <= 2


def pop_some(db: Any, jobs: Any, n: int) -> list[Any]:
    """Pop in one transaction."""

    @fdbqueue.transactional
    def pops(tr: Any) -> list[Any]:
        return [jobs.pop(tr) for _ in range(n)]

    popped: list[Any] = pops(db)
    return popped


def test_the_lowest_priority_comes_first_and_groups_share_within_it(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.push_many(db, ["late ada"] * 2, priority=5, group="ada")
    jobs.push_many(db, ["ada", "ada"], priority=1, group="ada")
    jobs.push_many(db, ["bob", "bob"], priority=1, group="bob")
    jobs.push(db, "plain", priority=3)
    assert [item.value for item in jobs.peek_many(db, 7)][4:] == ["plain", "late ada", "late ada"]
    claim = jobs.claim(db, n=7)
    assert sorted(item.value for item in claim.items[:4]) == ["ada", "ada", "bob", "bob"]
    assert [item.value for item in claim.items[4:]] == ["plain", "late ada", "late ada"]
    jobs.release(db, claim)
    assert jobs.pop_max(db).value == "late ada"
    assert admin.check(db, jobs).ok


def test_a_group_claims_no_more_than_its_concurrency(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", concurrency=2)
    jobs.push_many(db, [*range(10)], group="ada")
    jobs.push_many(db, ["bob"] * 2, group="bob")
    claim = jobs.claim(db, n=10)
    assert sorted(map(str, (item.value for item in claim.items))) == ["0", "1", "bob", "bob"]
    assert jobs.claim(db) is None
    first, second = (each for each in claim if each.item.value != "bob")
    jobs.ack(db, first)
    assert jobs.claim(db, n=10).items[0].value == 2
    jobs.nack(db, second, delay=0)  # whose slot it leaves to the next one, which it is itself
    assert [item.value for item in jobs.claim(db, n=10).items] == [1]
    assert admin.check(db, jobs).ok


def test_the_limit_of_a_group_holds_over_priorities(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.set_group(db, None, concurrency=1)
    jobs.push_many(db, ["a", "b"], priorities=[1, 2], group="ada")
    claim = jobs.claim(db, n=2)
    assert [item.value for item in claim.items] == ["a"]
    assert jobs.groups(db)[0].held_by == "concurrency"
    jobs.ack(db, claim)
    assert jobs.claim(db, n=2).items[0].value == "b"


def test_a_client_that_waits_wakes_when_its_group_may_go_on(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, ["first", "second"], group="ada")
    claim = jobs.claim(db)
    threading.Timer(0.2, lambda: jobs.ack(db, claim)).start()
    assert jobs.claim(db, wait=30).items[0].value == "second"


def test_a_late_acknowledgement_frees_no_slot_twice(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    zombie = jobs.claim(db, lease=0.05)
    again = jobs.claim(db, wait=30)
    assert again.items[0].value == "first"
    with pytest.raises(LeaseLost):
        jobs.ack(db, zombie)
    assert jobs.claim(db) is None
    assert jobs.groups(db)[0].claimed == 1


def test_a_paused_group_is_handed_out_to_nobody(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["ada"] * 2, group="ada")
    jobs.push(db, "bob", group="bob")
    jobs.set_group(db, "ada", paused=True)
    jobs.push(db, "ada", group="ada")
    assert jobs.pop(db).value == "bob"
    assert jobs.pop(db) is None
    assert jobs.claim(db) is None
    assert [(each.name, each.ready, each.held_by) for each in jobs.groups(db)] == [
        ("ada", 3, "paused")
    ]
    jobs.set_group(db, "ada", paused=False)
    assert [jobs.pop(db).value for _ in range(3)] == ["ada"] * 3
    assert admin.check(db, jobs).ok


def test_settings_are_read_back_as_they_were_set(db: Any, jobs: Any) -> None:
    assert jobs.group_settings(db) == jobs.group_settings(db, "ada") == {}
    given: dict[str, Any] = {
        **{"weight": 2.5, "concurrency": 1, "rate": (3, 60.0)},
        **{"in_order": False, "max_size": 7},
    }
    jobs.set_group(db, None, **given)
    assert jobs.group_settings(db) == given
    jobs.set_group(db, "ada", paused=True, **given)
    jobs.set_group(db, None, **dict.fromkeys(given))
    assert (jobs.group_settings(db), jobs.group_settings(db, "bob")) == ({}, {})
    read = jobs.group_settings(db, "ada")
    assert read == {**given, "paused": True}
    jobs.set_group(db, "bob", **read)
    assert jobs.group_settings(db, "bob") == read
    with pytest.raises(ValueError, match="a group"):
        jobs.group_settings(db, "x" * 256)


def test_a_paused_group_stays_so_when_the_queue_is_cleared(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", paused=True)
    jobs.push(db, 1, group="ada")
    jobs.clear(db)
    jobs.push(db, 2, group="ada")
    assert jobs.pop(db) is None
    assert jobs.groups(db)[0].held_by == "paused"


@pytest.mark.parametrize("group", ["", "x" * 256, 7, b"ada"])
def test_a_group_is_text_of_up_to_255_bytes(db: Any, jobs: Any, group: Any) -> None:
    with pytest.raises(ValueError, match="a group is text of 1 to 255 bytes"):
        jobs.push(db, 1, group=group)
    with pytest.raises(ValueError, match="a group is text of 1 to 255 bytes"):
        jobs.push_many(db, [1], groups=[group])
    assert jobs.size(db) == 0


@pytest.mark.parametrize("after", ["x" * 256, "\ud800", 7, b"ada"])
def test_groups_are_listed_from_behind_a_name(db: Any, jobs: Any, after: Any) -> None:
    with pytest.raises(ValueError, match="a group is text of 0 to 255 bytes"):
        jobs.groups(db, after=after)


def test_names_of_any_text_are_told_apart(db: Any, jobs: Any) -> None:
    names = ["a", "a\x00", "a\x00b", "\x00", "ä" * 100, "a b/c", "\U0001f600"]
    jobs.push_many(db, names, groups=names)
    assert [each.name for each in jobs.groups(db)] == sorted(names, key=lambda n: n.encode())
    assert sorted(jobs.pop(db).value for _ in names) == sorted(names)
    assert jobs.groups(db) == []


def test_a_queue_without_groups_pays_nothing(db: Any, jobs: Any) -> None:
    jobs.push_many(db, [*range(10)])
    jobs.pop(db)
    jobs.ack(db, jobs.claim(db))
    layout_rows = [
        row for row in db[jobs.subspace.range()] if jobs.subspace.unpack(row.key)[0] == 37
    ]
    assert layout_rows == []


@dataclass
class Model:
    """What the documentation says of groups, without transactions."""

    items: dict[Any, dict[str | None, list[Any]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    passes: dict[Any, int] = field(default_factory=dict)
    taken: Counter[Any] = field(default_factory=Counter)
    settings: dict[str | None, GroupSettings] = field(default_factory=dict)
    claimed: dict[Any, tuple[int, str | None]] = field(default_factory=dict)
    plain_is_idle: dict[Any, bool] = field(default_factory=dict)
    held: set[str | None] = field(default_factory=set)

    def own(self, group: str | None) -> GroupSettings:
        default = self.settings.get(None, GroupSettings())
        return self.settings.get(group or "", GroupSettings()).over(default)

    def add(self, value: Any, priority: int, group: str | None) -> None:
        items = self.items[priority][group]
        if group is not None and not items:
            before = self.passes.get((priority, group), 0)
            self.passes[priority, group] = max(before, self.taken[priority])
        items.append(value)
        items.sort()  # an item that returns has its place before those that came later

    def may_take(self, group: str | None) -> bool:
        settings = self.own(group)
        running = sum(of == group for _, of in self.claimed.values())
        is_full = settings.concurrency is not None and running >= settings.concurrency
        return not group or not (settings.paused or is_full)

    def is_held(self, group: str | None) -> bool:
        return group in self.held

    def has_turn(self, priority: Any) -> bool:
        """Return whether anybody has a turn in a priority."""
        return not self.plain_is_idle.get(priority, True) or any(
            rows and group is not None and not self.is_held(group)
            for group, rows in self.items[priority].items()
        )

    def settle(self, group: str | None) -> None:
        """Hold a group back, or give it its turns again, behind those that went on meanwhile."""
        if not group or self.may_take(group) != self.is_held(group):
            return
        if self.is_held(group):
            self.held.discard(group)
            for priority in self.items:
                if self.items[priority][group]:
                    before = self.passes.get((priority, group), 0)
                    self.passes[priority, group] = max(before, self.taken[priority])
        else:
            self.held.add(group)

    def note_freed(self, group: str | None) -> None:
        if self.is_held(group):
            self.settle(group)

    def set(self, group: str | None, changes: dict[str, Any]) -> None:
        self.settings[group] = self.settings.get(group, GroupSettings())._replace(**changes)
        self.settle(group)

    def take(self) -> Any:
        for priority in sorted(self.items):
            passes = {}
            for group, items in self.items[priority].items():
                if items and not self.is_held(group):
                    pass_ = self.passes.get((priority, group), 0)
                    if group is None and self.plain_is_idle.get(priority, True):
                        pass_ = max(pass_, self.taken[priority])
                    passes[group] = pass_
            if passes:
                group = min(passes, key=lambda name: (passes[name], (name or "").encode()))
                items = self.items[priority][group]
                has_groups = any(
                    of is not None and rows for of, rows in self.items[priority].items()
                )
                value = items.pop(0)
                if group is not None and not self.items[priority][None]:
                    self.plain_is_idle[priority] = True
                if group is not None or has_groups:
                    self.taken[priority] = max(self.taken[priority], passes[group])
                    self.passes[priority, group] = passes[group] + self.own(group).step(1)
                    if group is None:
                        self.plain_is_idle[priority] = not items
                    if not items and not self.has_turn(priority):
                        self.taken[priority] = max(
                            self.taken[priority], self.passes[priority, group]
                        )
                return value, priority, group
        return None


@pytest.mark.parametrize("seed", range(3))
def test_pops_and_claims_follow_the_model(db: Any, name: str, seed: int) -> None:
    """A random history of one client gives the items that the model gives."""
    seed = random.randrange(2**32) if seed == 0 else seed
    print(f"seed {seed}")
    rng = random.Random(seed)
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    model = Model()
    claims: dict[int, Any] = {}
    names = [None, "a", "b", "c", "d"]
    for number in range(400):
        action = rng.choice(["push", "push", "push", "pop", "claim", "claim", "end", "end", "set"])
        if action == "push":
            priority, group = rng.choice([0, 0, 0, 1]), rng.choice(names)
            jobs.push(db, number, priority, group=group)
            model.add(number, priority, group)
        elif action == "pop":
            popped, expected = jobs.pop(db), model.take()
            assert (popped and popped.value) == (expected and expected[0])
        elif action == "claim":
            claim, expected = jobs.claim(db, lease=600), model.take()
            assert (claim and claim.items[0].value) == (expected and expected[0])
            if claim is not None and expected is not None:
                claims[expected[0]] = claim
                model.claimed[expected[0]] = expected[1:]
                model.settle(expected[2])
        elif action == "end" and claims:
            value = rng.choice(sorted(claims))
            claim, (priority, group) = claims.pop(value), model.claimed[value]
            del model.claimed[value]
            model.note_freed(group)
            if rng.random() < 0.7:
                jobs.ack(db, claim)
            else:
                jobs.release(db, claim)
                model.add(value, priority, group)
        elif action == "set":
            group = rng.choice([*names, ""])
            changes: dict[str, Any] = rng.choice(
                [
                    {"weight": rng.choice([None, 0.5, 1, 3])},
                    {"concurrency": rng.choice([None, None, 1, 2])},
                    {"paused": rng.random() < 0.3} if group else {"weight": 2},
                ]
            )
            if not group and "concurrency" in changes:
                continue  # groups follow a new default with their next claim
            jobs.set_group(db, group, **changes)
            model.set(group, changes)
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize(("groups", "reads", "mutations"), [(10, 7, 9), (1000, 7, 9)])
def test_a_pop_costs_the_same_with_any_number_of_groups(
    db: Any, name: str, groups: int, reads: int, mutations: int
) -> None:
    counted = CountingDatabase(db)
    jobs = fdbqueue.PriorityQueue.named(counted, f"{name}jobs")
    names = [f"group {number}" for number in range(groups)]
    for _ in range(2):
        jobs.push_many(counted, names, groups=names)
    jobs.pop(counted)
    costs: list[tuple[int, int]] = []
    for _ in range(5):
        counted.clear()
        jobs.pop(counted)
        costs.append((counted.reads, writes(counted, jobs)))
    assert min(costs) == (reads, mutations)  # on a slow machine, sweeps are due in between


def test_the_costs_of_an_item_of_a_group(db: Any, name: str) -> None:
    """They stand in the guide to groups."""
    counted = CountingDatabase(db)
    jobs = fdbqueue.PriorityQueue.named(counted, f"{name}jobs")
    for group in (None, "ada"):
        jobs.push_many(counted, [0] * 5, group=group)
        jobs.ack(counted, jobs.claim(counted))
        costs = []
        for call in ("push", "pop", "claim", "ack"):
            counted.clear()
            if call == "push":
                jobs.push(counted, 0, group=group)
            elif call == "pop":
                jobs.pop(counted)
            elif call == "claim":
                claim = jobs.claim(counted)
            else:
                jobs.ack(counted, claim)
            costs.append(writes(counted, jobs))
        assert costs == ([3, 4, 6, 3] if group is None else [4, 9, 12, 5])
        jobs.clear(counted)


def conflicts(tr: Any) -> bool:
    """Commit, and return whether the transaction conflicts with another one."""
    with suppress(*fdbqueue.error_classes()):
        tr.commit().wait()
        return False
    return True


def test_shares_go_on_behind_very_high_passes(db: Any, jobs: Any) -> None:
    """Eight million items of cost 1,000 in a group of weight 0.001 take its pass beyond 2^63."""
    layout = layout_of(jobs)
    jobs.push(db, "first", group="ada")
    jobs.pop(db)
    for row in list(db.get_range(*layout.range_of(layout.taken_passes))):
        db[row.key] = (2**63 - 1).to_bytes(8, "little")
    for group in ("ada", "bob"):
        jobs.set_group(db, group, weight=0.001)
        jobs.push_many(db, [group] * 5, group=group, cost=1000)
    assert [jobs.pop(db).value for _ in range(4)] == ["ada", "bob", "ada", "bob"]
    claims = [jobs.claim(db) for _ in range(4)]
    assert Counter(claim.item.value for claim in claims) == {"ada": 2, "bob": 2}
    jobs.release(db, claims[0])
    assert admin.check(db, jobs).ok


def test_a_pop_that_a_limit_ended_conflicts_with_an_acknowledgement(db: Any, jobs: Any) -> None:
    jobs.push_many(db, [1, 2, 3], group="ada")
    jobs.set_group(db, "ada", concurrency=2)
    claim = jobs.claim(db)
    tr = db.create_transaction()
    assert [item.value for item in jobs.pop_many(tr, 2)] == [2]
    jobs.ack(db, claim)  # so two could be popped
    assert conflicts(tr)


@pytest.mark.parametrize("take", ["pop", "claim"])
@pytest.mark.parametrize(
    "change", ["pause", "limit", "push to it", "push to another", "first push"]
)
def test_what_conflicts_with_taking_an_item_of_a_group(
    db: Any, jobs: Any, take: str, change: str
) -> None:
    jobs.push_many(db, [1] if change == "push to it" else [1, 2, 3], group="ada")
    jobs.push(db, 1, group="bob")
    tr = db.create_transaction()
    assert jobs.pop(tr) if take == "pop" else jobs.claim(tr, within=1)
    if change == "pause":
        jobs.set_group(db, "ada", paused=True)
    elif change == "limit":
        jobs.set_group(db, "ada", concurrency=1)
    else:
        group = {"push to it": "ada", "push to another": "bob", "first push": "Abe"}[change]
        jobs.push(db, 2, group=group)
    # Abe would have come first; a claim may take one of the first few.
    conflicts = change in ("pause", "limit", "push to it") or (
        change == "first push" and take == "pop"
    )
    if conflicts:
        with pytest.raises(fdbqueue.error_classes()) as caught:
            tr.commit().wait()
        assert caught.value.code == 1020
    else:
        tr.commit().wait()
    assert admin.check(db, jobs).problems == ()


def test_a_moved_item_keeps_its_group(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    item, other = jobs.push_many(db, [1, 2], priority=5, group="ada")
    jobs.reprioritize(db, item, 1)
    assert jobs.change_all(db, "reprioritize", state="ready", id=other.id, to=1) == {other.id: True}
    assert [(each.name, each.ready) for each in jobs.groups(db)] == [("ada", 2)]
    assert admin.check(db, jobs).problems == ()


def test_claims_that_skip_items_do_not_skip_groups(db: Any, jobs: Any) -> None:
    """A claim in a transaction begins at any of the first `within` items."""
    jobs.push_many(db, ["ada"] * 30, group="ada")
    jobs.push_many(db, ["others"] * 300)
    claims = [fdbqueue.transactional(lambda tr: jobs.claim(tr, within=256))(db) for _ in range(40)]
    assert Counter(claim.item.value for claim in claims) == {"ada": 20, "others": 20}
    assert admin.check(db, jobs).ok


@pytest.mark.parametrize("skipped", [0, 1])
def test_turns_that_are_read_later_are_not_skipped(db: Any, jobs: Any, skipped: int) -> None:
    for group in ("ada", "bob", "cleo", "dan", "eve"):
        jobs.push_many(db, [group] * 2, group=group)
    jobs.claim(db, n=2)  # of ada and bob
    jobs.pop_many(db, 3)
    jobs.set_group(db, None, concurrency=1)  # turns of groups at their limit are passed over
    store = store_of(jobs)

    def first(tr: Any) -> list[Any]:
        (level, *_) = {item.level for item in store.items.first(tr, 1)}
        found = store.items.turns.first(tr.snapshot, level, 1, [], skipped)
        return [item.level.group for item in found]

    assert fdbqueue.transactional(first)(db) == ["cleo"]


@pytest.mark.parametrize("setting", ["concurrency", "paused"])
def test_an_item_of_a_group_costs_the_same_after_many_priorities(
    db: Any, name: str, setting: str
) -> None:
    counted = CountingDatabase(db)
    jobs = fdbqueue.PriorityQueue.named(counted, f"{name}jobs")
    jobs.set_group(counted, "ada", concurrency=1)

    def cost(priority: int) -> tuple[int, int]:
        counted.clear()
        jobs.push(counted, 0, priority=priority, group="ada")
        if setting == "paused":
            jobs.set_group(counted, "ada", paused=True)
            jobs.set_group(counted, "ada", paused=False)
        jobs.ack(counted, jobs.claim(counted))
        return counted.reads, writes(counted, jobs)

    costs = [cost(number) for number in range(20)]
    assert min(costs[-5:]) == min(costs[1:6])
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("gone", ["claimed", "removed"])
def test_nothing_is_known_of_a_group_in_priorities_that_are_empty(
    db: Any, name: str, gone: str
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    layout = layout_of(jobs)
    for priority in range(5):
        items = [jobs.push(db, 0, priority=priority, group=group) for group in ("ada", "bob")]
        for item in items:
            if gone == "claimed":
                jobs.ack(db, jobs.claim(db))
            else:
                jobs.remove(db, item)
    for space in (layout.group_passes, layout.idle_groups, layout.group_members):
        assert [*db.get_range(*layout.range_of(space))] == []
    assert admin.check(db, jobs).problems == ()


def test_an_item_without_a_group_is_not_popped_and_claimed(db: Any, jobs: Any) -> None:
    jobs.push(db, "first", group="ada")  # the first one of a queue conflicts with any claim
    assert jobs.pop(db).value == "first"
    jobs.push(db, "one")
    claiming = db.create_transaction()
    assert jobs.claim(claiming, within=1)
    jobs.push(db, "other", group="ada")  # from now on there are turns
    popping = db.create_transaction()
    assert jobs.pop(popping).value == "one"
    assert not conflicts(claiming)
    assert conflicts(popping)


@pytest.mark.parametrize("group", [None, "bob"])
def test_an_item_that_returns_during_a_pop_is_not_lost(db: Any, jobs: Any, group: Any) -> None:
    jobs.push_many(db, ["other"] * 2, group="ada")
    jobs.set_group(db, "ada", paused=True)
    jobs.push_many(db, ["first", "second", "third"], group=group)
    claim = jobs.claim(db)
    popping = db.create_transaction()
    assert [item.value for item in jobs.pop_many(popping, 2)] == ["second", "third"]
    jobs.release(db, claim)
    assert conflicts(popping)
    assert [item.value for item in jobs.pop_many(db, 2)] == ["first", "second"]


def test_a_pop_sees_the_first_item_without_a_group(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.set_group(db, "ada", paused=True)
    jobs.push(db, "ada", priority=0, group="ada")
    jobs.push(db, "late", priority=1)
    popping = db.create_transaction()
    assert jobs.pop(popping).value == "late"
    jobs.push(db, "urgent", priority=0)
    assert conflicts(popping)
    assert jobs.pop(db).value == "urgent"


def test_a_lower_limit_of_all_groups_hides_none_that_may_go_on(db: Any, name: str) -> None:
    """Groups that have more claimed than they may keep their turns until these are met."""
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    for group in ("ada", "bob", "eve", "kim"):
        jobs.push_many(db, [group] * 3, group=group)
    jobs.push(db, "late", priority=1)
    assert len(jobs.claim(db, n=2)) == 2  # of ada and bob
    jobs.set_group(db, "eve", weight=0.1)
    assert jobs.pop(db).value == "eve"  # whose next turn is far behind
    jobs.set_group(db, None, concurrency=1)
    assert [item.value for item in jobs.pop_many(db, 2)] == ["kim", "eve"]
    assert [(each.name, each.held_by) for each in jobs.groups(db, after="")] == [
        ("ada", "concurrency"),
        ("bob", "concurrency"),
        ("eve", None),
        ("kim", None),
    ]
