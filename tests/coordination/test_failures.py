"""Each commit of a pop fails, loses its answer or is the last one of its process: all is well."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Item, PriorityQueue
from fdbqueue.coordination import staged_pops
from tests.coordination.line import (
    CONFLICT,
    DEAD,
    DIES_AFTER,
    DIES_BEFORE,
    FAST,
    LOST_ANSWERS,
    MEETS_OTHERS,
    STAGED,
    Fault,
    Line,
    Script,
    Sleeps,
    only_the_test_ends_anything,
)

SCRIPTS: dict[str, Script] = {
    "first": MEETS_OTHERS,
    "second": MEETS_OTHERS,
    "server": {FAST: CONFLICT, STAGED: CONFLICT},  # so that it has to take the turn before
}


class Story:
    """Two processes wait for a third one, which serves both; or one, and that one the other."""

    def __init__(self, line: Line[PriorityQueue], scripts: dict[str, Script]) -> None:
        self.line = line
        self.pushed = line.queue.push_many(line.db, range(5), priorities=[3, 3, 3, 4, 5])
        self.processes = {name: line.process(script) for name, script in scripts.items()}
        line.hold()
        self.calls = {name: self.processes[name].pop() for name in ("first", "second")}
        line.release()
        self.calls["server"] = self.processes["server"].pop()

    def popped(self, who: str, fault: Fault) -> list[Item]:
        """What came out; `who` may have been told of its fault, and nobody else of anything."""
        items = []
        for name, call in self.calls.items():
            error = call.error()
            if error is None:
                (item,) = call.result()  # there are enough: nobody is told that there is none
                items.append(item)
            else:
                assert (name, error.code) == (who, fault.code)
                assert fault.code in (1031, DEAD)  # from the others there is a way on
        return items


@pytest.mark.parametrize("who", SCRIPTS)
@pytest.mark.parametrize("turn", ["kept", "passed on"])
@pytest.mark.parametrize(
    "faults",
    [LOST_ANSWERS, [CONFLICT], [DIES_BEFORE, DIES_AFTER]],
    ids=["lost answers", "conflicts", "deaths"],
)
def test_whichever_commit_fails_nothing_is_lost_doubled_or_out_of_its_place(
    db: Any,
    space: Subspace,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    turn: str,
    faults: list[Fault],
) -> None:
    """Each commit of each of the three, in each way."""
    db.options.set_transaction_max_retry_delay(1)
    only_the_test_ends_anything(monkeypatch)
    if turn == "passed on":
        monkeypatch.setattr(staged_pops, "_MAX_LEADERSHIP", 0)

    def begun(name: str, scripts: dict[str, Script]) -> Story:
        line = Line(db, PriorityQueue(space[name]), Sleeps())
        monkeypatch.setattr(staged_pops, "sleep_on", line.sleeps)
        return Story(line, scripts)

    smooth = begun("smooth", SCRIPTS)
    assert {item.value for item in smooth.popped(who, CONFLICT)} == {0, 1, 2}
    smooth.line.assert_sound()
    commits = smooth.processes[who].db.commits
    assert commits >= 4
    for number in range(1, commits + 1):
        for fault in faults:
            name = f"commit {number}: {fault.when} {fault.code}"
            print(name)
            story = begun(name, {**SCRIPTS, who: {**SCRIPTS[who], number: fault}})
            story.line.sleeps.end()  # who was not served by now looks after itself
            check(story, who, number, fault)


def check(story: Story, who: str, number: int, fault: Fault) -> None:
    """Everybody but the one that failed has an item; the others are in their places."""
    line, faulty = story.line, story.processes[who].db
    popped = story.popped(who, fault)
    faulty.until_tried(number)
    faulty.deliver("late", "last")
    if not faulty.is_dead:
        assert (line.requests(), line.results()) == ([], [])  # it cleared up after itself
    line.drop_the_dead()
    left = line.left()
    gone = [item for item in story.pushed if item not in popped + left]
    assert len(gone) <= (fault == DIES_AFTER)  # with whom it was given to
    assert left == [item for item in story.pushed if item not in popped + gone]
    assert len(popped) + len(gone) + len(left) == len(story.pushed)
    assert line.process().pop(100).result() == left
    line.assert_sound()
