"""Any commit of a pop may fail, lose its reply or be the last of its process."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Item, PriorityQueue
from fdbqueue.coordination import pops
from tests.coordination.line import (
    CONFLICT,
    DEAD,
    DIES_AFTER,
    DIES_BEFORE,
    FAST,
    LOST_REPLIES,
    MEETS_CONFLICT,
    STAGED,
    Fault,
    Line,
    Script,
    Sleeps,
    disable_timeouts,
)

pytestmark = pytest.mark.usefixtures("staging_on_every_engine")

SCRIPTS: dict[str, Script] = {
    "first": MEETS_CONFLICT,
    "second": MEETS_CONFLICT,
    "server": {FAST: CONFLICT, STAGED: CONFLICT},  # so that it must first become the leader
}


class Scenario:
    """Two processes wait for a third, which serves both, or serves one that serves the other."""

    def __init__(self, line: Line[PriorityQueue], scripts: dict[str, Script]) -> None:
        self.line = line
        self.pushed = line.queue.push_many(line.db, range(5), priorities=[3, 3, 3, 4, 5])
        self.processes = {name: line.process(script) for name, script in scripts.items()}
        line.set_idle_leader()
        self.calls = {name: self.processes[name].pop() for name in ("first", "second")}
        line.clear_leader()
        self.calls["server"] = self.processes["server"].pop()

    def popped(self, failing: str, fault: Fault) -> list[Item]:
        """Return the popped items; only the process `failing` may have failed, with its fault."""
        items = []
        for name, call in self.calls.items():
            error = call.error()
            if error is None:
                (item,) = call.result()  # there are enough items for every pop
                items.append(item)
            else:
                assert (name, error.code) == (failing, fault.code)
                assert fault.code in (1031, DEAD)  # the library recovers from the others
        return items


@pytest.mark.parametrize("failing", SCRIPTS)
@pytest.mark.parametrize("leadership", ["kept", "passed on"])
@pytest.mark.parametrize(
    "faults",
    [LOST_REPLIES, [CONFLICT], [DIES_BEFORE, DIES_AFTER]],
    ids=["lost answers", "conflicts", "deaths"],
)
def test_a_failure_of_any_commit_neither_loses_nor_duplicates_nor_reorders_items(
    db: Any,
    space: Subspace,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    leadership: str,
    faults: list[Fault],
) -> None:
    """Try each fault at each commit of each of the three processes."""
    db.options.set_transaction_max_retry_delay(1)
    disable_timeouts(monkeypatch)
    if leadership == "passed on":
        monkeypatch.setattr(pops, "_MAX_LEADERSHIP", 0)

    def begun(name: str, scripts: dict[str, Script]) -> Scenario:
        line = Line(db, PriorityQueue(space[name]), Sleeps())
        monkeypatch.setattr(pops, "sleep_on", line.sleeps)
        return Scenario(line, scripts)

    smooth = begun("smooth", SCRIPTS)
    assert {item.value for item in smooth.popped(failing, CONFLICT)} == {0, 1, 2}
    smooth.line.assert_sound()
    commits = smooth.processes[failing].db.commits
    assert commits >= 4
    failures = 0
    for number in range(1, commits + 1):
        for fault in faults:
            name = f"commit {number}: {fault.when} {fault.code}"
            print(name)
            scenario = begun(name, {**SCRIPTS, failing: {**SCRIPTS[failing], number: fault}})
            scenario.line.sleeps.end()  # a process not yet served pops by itself
            failures += check(scenario, failing, number, fault)
    # The threads race, so a scenario may be over before the last commit that the smooth one had.
    assert failures >= 4 * len(faults)


def check(scenario: Scenario, failing: str, number: int, fault: Fault) -> bool:
    """Every process but the failed one has an item; the other items keep their positions.

    Return whether there was a commit with this number, which failed.
    """
    line, faulty = scenario.line, scenario.processes[failing].db
    popped = scenario.popped(failing, fault)
    has_failed = faulty.wait_for_commits(number)
    faulty.deliver("late", "last")
    if not faulty.is_dead:
        assert (line.requests(), line.results()) == ([], [])  # the failed pop removed its keys
    line.sweep_requests()
    remaining = line.remaining()
    lost = [item for item in scenario.pushed if item not in popped + remaining]
    assert len(lost) <= (fault == DIES_AFTER)  # with the process it was served to
    assert remaining == [item for item in scenario.pushed if item not in popped + lost]
    assert len(popped) + len(lost) + len(remaining) == len(scenario.pushed)
    assert line.process().pop(100).result() == remaining
    line.assert_sound()
    return has_failed
