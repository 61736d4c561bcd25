"""Walk one item through every transition, and compare all views after each step.

    python -m tests.cli.walk [DATABASE]

The views are those of Python, the command line, HTTP and the metrics. Each step
prints the state that all of them show. `test_walk.py` runs the same on every engine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.http import create_app
from tests.support.leases import come_due, lapse
from tests.support.scan import STATES, assert_views_agree
from tests.support.shell import Shell

PRIORITY = 5


def walk(db: Any, fdbq: Shell, name: str) -> Iterator[tuple[str, str | None]]:
    """Yield each step and the state of the item after it, once all views agree on it."""
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=10)
    held: list[Any] = []

    def claim() -> None:
        held[:] = [queue.claim(db)]

    def push(**options: Any) -> str:
        return str(queue.push(db, {"n": 1}, PRIORITY, **options).id)

    item_id = push(delay=600)
    steps: list[tuple[str, Callable[[], object], str | None]] = [
        ("push with a delay", lambda: None, "delayed"),
        ("the delay passes", lambda: come_due(db, queue), "ready"),
        ("claim", claim, "claimed"),
        ("release", lambda: queue.release(db, held[0]), "ready"),
        ("claim", claim, "claimed"),
        ("extend", lambda: queue.extend(db, held[0]), "claimed"),
        ("the worker dies, its lease runs out", lambda: lapse(db, queue), "ready"),
        ("claim", claim, "claimed"),
        ("fail for the last time", lambda: queue.nack(db, held[0], error="busy"), "dead"),
        ("retry", lambda: queue.retry(db, item_id), "ready"),
        ("claim", claim, "claimed"),
        ("fail", lambda: queue.nack(db, held[0], delay=600), "delayed"),
        ("the delay passes", lambda: come_due(db, queue), "ready"),
        ("claim", claim, "claimed"),
        ("the last worker dies, its lease runs out", lambda: lapse(db, queue), "dead"),
        ("retry", lambda: fdbq.output("retry", name, item_id), "ready"),
        ("pause", lambda: queue.configure(db, paused=True), "ready"),
        ("resume", lambda: queue.configure(db, paused=False), "ready"),
        ("pop", lambda: held.append(queue.pop(db)), None),
        ("put back", lambda: queue.put_back(db, [held.pop()]), "ready"),
        ("claim", claim, "claimed"),
        ("acknowledge", lambda: queue.ack(db, held[0], result="sent"), "done"),
        ("remove from the history", lambda: fdbq.output("rm", name, item_id), None),
    ]
    for step, change, state in steps:
        change()
        compare(db, fdbq, name, queue, item_id, state)
        yield step, state
    item_id = push()
    queue.remove(db, item_id)
    compare(db, fdbq, name, queue, item_id, None)
    yield "push and remove", None
    queue.configure(db, keep=None)
    item_id = push()
    queue.ack(db, queue.claim(db))
    compare(db, fdbq, name, queue, item_id, None)
    yield "push and acknowledge, without a history", None
    item_id = push(ttl=0.001)
    while queue.state(db, item_id) is not None:
        pass
    compare(db, fdbq, name, queue, item_id, None)
    yield "push and expire", None


def compare(
    db: Any, fdbq: Shell, name: str, queue: PriorityQueue, item_id: str, state: str | None
) -> None:
    """Compare what each view shows of a queue that has one item in a state, or none."""
    stats = assert_views_agree(db, queue)
    expected = {each: int(each == state) for each in STATES}
    assert {each: getattr(stats, each) for each in STATES} == expected
    assert fdbqueue.admin.overview(db)[name].ready == expected["ready"]
    assert fdbqueue.admin.overview(db)[name].ready == expected["ready"]
    # The command line
    numbers: dict[str, Any] = {}
    for command in (("ls",), ("top", "-n", "1"), ("check", name), ("stats", name)):
        rows = [json.loads(line) for line in fdbq.output(*command, "--json").splitlines()]
        (numbers,) = [row for row in rows if row["queue"] == name]
        assert {each: numbers[each] for each in STATES} == expected, command
    for each in STATES if state is None else [state]:
        listed = fdbq.output("items", name, "--state", each, "--json").splitlines()
        assert [json.loads(line)["id"] for line in listed] == [item_id] * expected[each]
    assert (
        bool(fdbq.output("items", name)) == bool(fdbq.output("counts", name)) == expected["ready"]
    )
    shown = fdbq("show", name, item_id, "--json")
    assert shown.returncode == (state is None)
    if state is not None:
        assert json.loads(shown.stdout)["state"] == state
    # HTTP; a server of its own, because one answers from a short memory
    with TestClient(create_app(db), "http://127.0.0.1") as client:
        assert client.get(f"/v1/queues/{name}/stats").json() == {
            field: value for field, value in numbers.items() if field != "queue"
        }
        (listed_queue,) = [
            each for each in client.get("/v1/queues").json()["queues"] if each["name"] == name
        ]
        assert {each: listed_queue[each] for each in STATES} == expected
        assert len(client.get(f"/v1/queues/{name}/items").json()["items"]) == expected["ready"]
        metrics = client.get("/metrics", params={"queues": "all"}).text.splitlines()
        for each in STATES:
            line = f'fdbqueue_items{{queue="{name}",state="{each}"}} {expected[each]}.0'
            assert line in metrics, line
        line = f'fdbqueue_items_pushed_total{{queue="{name}"}} {float(stats.total_pushed)}'
        assert line in metrics


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"embedded:{folder}/db"
        db = fdbqueue.open(url)
        for step, state in walk(db, Shell(Path(folder), url), "walk"):
            print(f"{step:<42} {state or 'gone'}")
        fdbqueue.admin.drop(db, "walk")


if __name__ == "__main__":
    main()
