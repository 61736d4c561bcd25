"""The ledger of the durable simulation accepts what may be, and rejects what must not be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.long.simulation.durable.ledger import Ledger
from tests.long.simulation.durable.log import Entry

_PAYLOAD = {"job": "a"}


def entry(verb: str, **facts: Any) -> Entry:
    return Entry(b"", verb, facts)


def claim(token: str, now: int = 0, **payload: Any) -> Entry:
    facts = {"attempt": 1, "tick": None, "payload": _PAYLOAD | payload}
    return entry("claim", item="i", token=token, now=now, **facts)


def step(token: str, name: str, value: str = "1", call: str = "store") -> Entry:
    stored = [name, "commit" if call == "commit" else "step", "done", value, None, ""]
    return entry("steps", item="i", token=token, now=0, call=call, before=[], steps=[stored])


def wait(token: str, state: str, value: str = "", now: int = 0, due: int | None = 50) -> Entry:
    stored = ["w", "wait", state, value, due, "k"]
    return entry(
        "steps",
        **{"item": "i", "token": token, "now": now, "call": "wait", "before": []},
        **{"steps": [stored], "suspended": state == "waiting"},
    )


def run(token: str, name: str = "s") -> Entry:
    return entry("run", item="i", token=token, step=name)


def effect(token: str) -> Entry:
    return entry("effect", item="i", token=token, step="c", run="1")


def end(token: str, how: str = "done") -> Entry:
    return entry("end", item="i", token=token, how=how)


def signal(n: int, now: int = 0, keep: int = 10, key: str = "k") -> Entry:
    return entry("signal", key=key, value="v", n=n, begun=now, ended=now, keep=keep)


def state(next: int | None, pushed: int, last: int | None = None) -> dict[str, Any]:
    return {"every": 10, "next": next, "last": last, "paused": next is None, "pushed": pushed}


def change(act: str, before: Any, after: Any, now: int = 0) -> Entry:
    facts = {"name": "all", "act": act, "item": None, "before": before, "after": after}
    return entry("schedule", begun=now, ended=now, **facts)


def tick(item: str, time: int) -> Entry:
    payload = {"job": "tick", "schedule": "all"}
    facts = {"attempt": 1, "tick": time, "payload": payload}
    return entry("claim", item=item, token=item, now=time, **facts)


WAIT = claim("x"), wait("x", "waiting")
ADD = change("add", None, state(10, 0))
PAUSED = ADD, change("pause", state(30, 2, 20), state(None, 2, 20), 25)


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        ([claim("x"), run("x"), step("x", "s"), end("x")], ""),
        ([claim("x"), claim("y"), step("x", "s")], "its claim is over"),
        ([claim("x"), end("x"), claim("y")], "it was claimed, and is done"),
        ([claim("x"), step("x", "s"), claim("y"), run("y")], "runs again"),
        ([claim("x"), step("x", "s"), run("x")], "runs again"),
        ([claim("x"), claim("y"), step("y", "s"), run("x"), end("y")], ""),  # by a stopped client
        ([claim("x"), step("x", "s"), claim("y"), step("y", "s", "2")], "was done with 1"),
        ([claim("x"), effect("x"), step("x", "c", call="commit"), end("x")], ""),
        ([claim("x"), effect("x"), effect("x")], "takes effect again"),
        ([claim("x"), step("x", "c", call="commit"), end("x")], "and the effects"),
        ([*WAIT, signal(1), claim("y"), end("y")], ""),
        ([*WAIT, signal(0)], "1 to 1 jobs wait"),
        ([*WAIT, claim("y", now=40)], "nothing has woken it"),
        (
            [
                claim("x"),
                wait("x", "waiting"),
                claim("y", 50),
                wait("y", "timed out", now=50),
                end("y"),
            ],
            "",
        ),
        (
            [*WAIT, claim("y", 50), wait("y", "waiting", now=50)],
            "its time is over",
        ),
        (
            [
                claim("x"),
                wait("x", "waiting"),
                claim("y", 50),
                signal(1, 50),
                wait("y", "timed out", now=50),
            ],
            "was done with",
        ),
        ([signal(0), claim("x"), wait("x", "done", '"v"', now=5), end("x")], ""),
        ([signal(0), claim("x"), wait("x", "done", '"u"', now=5)], "the last one is"),
        ([signal(0), claim("x"), wait("x", "waiting", now=5)], "has not taken"),
        (  # another signal, sent while the wait was under way, has deleted it
            [signal(0), signal(0, 20, key="other"), *WAIT, signal(1), claim("y"), end("y")],
            "",
        ),
        ([claim("x")], "has not ended"),
        (
            [
                ADD,
                change("pause", state(30, 2, 20), state(None, 2, 20), 25),
                tick("1", 10),
                tick("2", 20),
            ],
            "has not ended",
        ),
        ([*PAUSED, tick("1", 10)], "should"),
        ([ADD, change("pause", state(40, 2, 20), state(None, 2, 20), 25)], "not the one after"),
        (
            [
                ADD,
                change("pause", state(10, 0), state(None, 0)),
                change("resume", state(None, 1, 10), state(20, 1, 10)),
            ],
            "while it was paused",
        ),
        (
            [
                ADD,
                change("pause", state(20, 1, 10), state(None, 1, 10)),
                change("resume", state(None, 1, 10), state(10, 1, 10), 5),
            ],
            "the next tick is not 20",
        ),
        ([ADD, tick("1", 10), tick("2", 10)], "pushed twice"),
    ],
)
def test_the_ledger_accepts_what_may_be_and_rejects_what_must_not_be(
    entries: list[Entry], verdict: str
) -> None:
    ledger = Ledger(spread=0)
    ledger.replay(entries)
    done: Any = [_Info(item) for item, job in ledger._jobs.items() if job.end == "done"]
    ledger.close({}, {}, done, [])
    if verdict:
        assert any(verdict in problem for problem in ledger.problems)
    else:
        assert not ledger.problems


class _Info:
    """A done item."""

    outcome = "done"

    def __init__(self, id: str) -> None:
        self.id = id


def test_counts_of_a_batch_are_those_of_the_ends_of_its_jobs() -> None:
    for counts, verdict in [({"done": 1}, ""), ({"done": 2}, "have ended")]:
        ledger = Ledger(spread=0)
        ledger.replay([claim("x", batch="b"), end("x")])
        payload = {"job": "report", "batch_of": "report", "kwargs": counts}
        facts = {"attempt": 1, "tick": None, "payload": payload}
        ledger.replay([entry("claim", item="b", token="y", now=0, **facts)])
        assert all(verdict and verdict in problem for problem in ledger.problems)
        assert bool(ledger.problems) == bool(verdict)


def test_a_job_runs_after_its_batch_or_is_lost() -> None:
    ledger = Ledger(spread=0)
    payload = {"job": "report", "batch_of": "report", "kwargs": {}}
    facts = {"attempt": 1, "tick": None, "payload": payload}
    ledger.replay([entry("claim", item="b", token="y", now=0, **facts), claim("x", batch="b")])
    ledger.close({"lost": True}, {}, [], [])
    assert "after the job that follows its batch" in ledger.problems[0]
    assert any("lost is lost" in problem for problem in ledger.problems)


def test_a_job_that_follows_others_begins_after_their_ends() -> None:
    follower = {"job": "b", "after": ["i"], "on_dead": "cancel"}
    facts = {"attempt": 1, "tick": None, "payload": follower}
    begin = entry("claim", item="j", token="z", now=0, **facts)
    finish = entry("end", item="j", token="z", how="done")
    for entries, verdict in [
        ([claim("x"), end("x"), begin, finish], ""),
        ([claim("x"), begin], "before the jobs that it follows"),
        ([claim("x"), end("x", "dead"), begin, finish], "it follows a job that has died"),
    ]:
        ledger = Ledger(spread=0)
        ledger.replay(entries)
        assert [verdict] * bool(verdict) == [
            verdict for problem in ledger.problems if verdict in problem
        ]
        assert bool(ledger.problems) == bool(verdict)
