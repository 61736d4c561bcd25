"""What the commands of `fdbq` print for people, and their exit codes.

`tests/test_doors.py` has what each verb does, by its JSON.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import click
import fdb
import pytest
from fdbq.main import cli
from fdbq.output import show_table
from fdbq.show import HELD_BY
from fdbq.top import screen

import fdbqueue
from fdbqueue import PriorityQueue, Queue
from fdbqueue.jobs import App, Context, Dead
from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.types import ItemHeldBy
from fdbqueue.worker.presence import Presence
from tests.support.cluster import Cluster, find_programs
from tests.support.keys import layout_of, push_undecodable
from tests.support.shell import Inside, assert_prints, error_of

ROOT = Path(__file__).parents[2]


def test_items_are_pushed_looked_at_and_popped(fdbq: Inside, name: str) -> None:
    (fdbq.path / "value.json").write_text("null")
    assert fdbq("push", name, "-", stdin="[1,\n2]").returncode == 0
    assert "is not JSON" in error_of(fdbq("push", name, "-", stdin=b"\xff\xfe\x00"))
    assert_prints(
        fdbq,
        """
$ push $q --file value.json -p 9
...
$ push $q '{"to": "ada"}' --priority 5 --unique k
...
$ push $q 1 --unique k
...
fdbq push: nothing was stored; item ... has this key
$ items $q
... 0 [1,2]
... 5 {"to":"ada"}
... 9 null
$ peek $q --max
null
$ counts $q
priority items
0 1
5 1
9 1
$ history $q
last pushed taken completed failed died median wait wait (p95) median run run (p95)
5 minutes 3 0 0 0 0 - - - -
...
$ pop $q -n 2 -v
[1,2]
{"to":"ada"}
...
$ pop $q
null
$ pop $q
[1]
$ peek $q
[1]
$ check $q
$q: no items, ok
""",
    )


def test_queues_are_listed_limited_and_changed(fdbq: Inside, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push_many(db, [1, 2])
    assert_prints(
        fdbq,
        """
$ ls
queue ready delayed claimed dead done oldest
...$q 2 0 0 0 0 ...
$ limit $q --size 1000 --rate 100/1m --keep-for 7d --keep-last 10 --keep-attempts 3
size 1,000
attempts none
concurrency none
keep-last 10
keep-for 7d
keep-attempts 3
keep-traceback 8,000
rate 100/1m
shards 1
paused no
$ limit $q --size none --keep-last none --keep-for none
size none
...
keep-last none
keep-for none
...
$ stats $q
...
rate 100/1m
...
$ pause $q
paused $q
$ resume $q
resumed $q
$ rename $q ${q}2
renamed $q to ${q}2
$ drop ${q}2 -y
dropped ${q}2: 2 ready
$ limit $q --size 3 --create
size 3
...
""",
    )


def test_clear_asks_for_confirmation(fdbq: Inside, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push_many(db, [1, 2])
    for answer in ("n\n", ""):
        errors = fdbq("clear", name, stdin=answer).stderr
        assert errors.endswith("\nfdbq: aborted; nothing was changed\n")
    assert fdbq("clear", name, stdin="y\n").stdout == f"cleared {name}: 2 ready\n"


def test_a_change_that_is_not_made_is_explained(fdbq: Inside, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    dead, claimed, delayed, ready = (item.id for item in queue.push_many(db, range(4)))
    queue.nack(db, queue.claim(db), error="no such address")
    queue.claim(db, lease=600, client="ada")
    queue.release(db, queue.claim(db, lease=600), delay=600)
    assert_prints(
        fdbq,
        """
$ items $q --state dead
$dead 0 1 attempt of 1, died ..., ran ..., no such address 0
$ items $q --state claimed
$claimed 0 1 attempt of 1, claimed by ada at ..., lease ends ... 1
$ items $q --state delayed
$delayed 0 0 attempts of 1, due ... 2
$ retry $q $ready
0 retried
fdbq: $ready was not retried: it is ready
[1]
$ rm $q $claimed
0 removed
fdbq: $claimed was not removed: it is claimed; `fdbq cancel $q $claimed` ends it
[1]
$ update $q $claimed --priority 0
0 changed
fdbq: $claimed was not changed: it is claimed
[1]
$ limit $q --size 1
...
$ retry $q $dead
0 retried
fdbq: $dead was not retried: the queue is full, or another item has its unique key
[1]
$ push $q 6
fdbq push: $q is full; nothing was stored
[1]
$ rm $q $ready
1 removed
$ rm $q $ready
0 removed
fdbq: $ready was not removed: the queue has no such item
[1]
$ show $q $ready
fdbq show: $q has no item $ready...
[1]
$ retry $q --state delayed
1 retried
$ retry $q --state delayed
0 retried
$ cancel $q $claimed
1 cancelled
""",
        **{"dead": dead, "claimed": claimed, "ready": ready, "delayed": delayed},
    )


# Jobs


def test_jobs_are_shown_as_calls_with_their_attempts(fdbq: Inside, db: Any, name: str) -> None:
    """The frames of the library are left out of tracebacks."""
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=10)

    def handler(item: Any) -> None:
        if not queue.get(db, item).failed_attempts:
            queue.push(db, {"not": "JSON", "to": {1}})

    item = queue.push(db, {"job": "shop.send", "args": ["ada\n"]})
    fdbqueue.Worker(db, queue, handler).run(drain=True)
    before, after = fdbq.output("show", name, item.id).split(f'  File "{__file__}", line ')
    assert before.endswith("  Traceback (most recent call last):\n    ...\n  ")
    assert "\n    ...\n" in after
    assert "fdbqueue/" not in after
    assert "worker/running.py" in fdbq.output("show", name, item.id, "--json")
    queue.retry(db, item)
    fdbqueue.Worker(db, queue, handler).run(drain=True)
    assert_prints(
        fdbq,
        r"""
$ items $q --state done --job send
$id 0 2 attempts of 2, done ..., ran ... shop.send('ada\n')
$ items $q --state done --job resend
""",
        id=item.id,
    )
    shown = fdbq.output("show", name, item.id)
    assert re.search(r"^job +shop.send\('ada\\n'\)$", shown, re.M)
    assert re.search(r"^attempt 1, \S+ after [0-9ms]+, ", shown, re.M)
    assert not re.search("^error", shown, re.M)  # it is one of an earlier attempt


def test_a_job_that_no_worker_knows_says_so(fdbq: Inside, db: Any, name: str) -> None:
    app = App(db)
    item = PriorityQueue.named(db, name).push(db, {"job": "shop.send"})
    app.work(name, drain=True)
    assert_prints(
        fdbq,
        """
$ show $q $id
...
waits_for no worker knows the job 'shop.send'
...
workers Nobody works on this queue.
...
$ items $q --state delayed
$id ...no worker knows the job 'shop.send'...
$ ls
...
$q 0 1 0 0 0 - 1 unknown job...
$ stats $q
...
unknown_jobs 1...
$ pause $q
...
$ top -n 1
...$q (paused, 1 unknown job)...
$ retry $q --state delayed --job send
1 retried
""",
        id=item.id,
    )


def test_the_steps_of_a_job_are_shown(fdbq: Inside, db: Any, name: str) -> None:
    """The failure of another job is no failure of the step."""
    app = App(db)

    @app.job(queue=name, name="broken")
    def broken() -> None:
        raise Dead("no disk")

    @app.job(queue=name, name="fulfil")
    def fulfil(context: Context, order: str) -> None:
        context.step("charge", order.upper)
        context.gather("child", [broken.bind()], return_errors=True)
        context.wait("shipped", key=order)

    handle = fulfil.push("order 7")
    app.work(drain=True)
    assert_prints(
        fdbq,
        """
$ show $q $id
...
step 'charge', step done, 20..., "ORDER 7"
step 'child 0', run failed, 20...+00:00, Dead: no disk
step 'shipped', wait waiting, key 'order 7'
$ retry $q $id
0 retried
fdbq: $id was not retried: it waits for a signal, or for jobs that have not ended
[1]
$ signal $q shipped '"1Z999"' --key 'order 7'
1 job waited for it
$ retry $q --state dead --step a
fdbq retry: --step takes one ID, and no --state (see fdbq retry --help)
[2]
""",
        id=handle.id,
    )


def test_the_batches_of_a_job_are_shown(fdbq: Inside, db: Any, name: str) -> None:
    app = App(db)

    @app.job(queue=name, name="send")
    def send(address: str) -> None: ...

    @app.job(queue=f"{name}reports", name="report")
    def report(*, done: int, dead: int, cancelled: int) -> None: ...

    @app.job(queue=f"{name}pages", name="publish")
    def publish(context: Context) -> None:
        context.run("cover", send, "ada")

    batch = app.batch(then=report)
    batch.push(send, "ada")
    batch.flush()
    (job,) = app.queue(name).items(db)
    parent, before = publish.push(), send.push("bob")
    after = send.using(after=[before]).push("cyd")
    app.work(f"{name}pages", drain=True)
    (child,) = {item.id for item in app.queue(name).items(db)} - {before.id, job.id}
    item = PriorityQueue.named(db, name).push(db, 1)
    assert_prints(
        fdbq,
        """
$ batch ${q}reports $batch
open: 1 job, 0 done, 0 dead, 0 cancelled, 1 left
$ batch ${q}reports $batch --close
closed: 1 job, 0 done, 0 dead, 0 cancelled, 1 left
$ batch $q $job
closed: 1 job, 0 done, 0 dead, 0 cancelled, 1 left; then $batch in ${q}reports
$ batch $q $job --close
fdbq...there is no batch...
[2]
$ batch $q $child
...1 left; for step 'cover' of $parent in ${q}pages
$ batch $q $before
...1 left; before $after in $q
$ batch $q $item
fdbq batch: $q has no item $item with a batch
[1]
""",
        **{"batch": batch.id, "job": job.id, "parent": parent.id, "before": before.id},
        **{"after": after.id, "child": child, "item": item.id},
    )
    app.work(name, drain=True)
    assert_prints(fdbq, "$ batch ${q}reports $id\nended: 1 job, 1 done, ...\n", id=batch.id)


# Groups and schedules


def test_groups_are_set_listed_and_changed(fdbq: Inside) -> None:
    assert_prints(
        fdbq,
        """
$ push $q 1
...
$ group ls $q
no groups
$ push $q '"ada"' --group ada --cost 2.5
...
$ group set $q --concurrency 7 --rate 5/1m30s --size 9
all groups in $q: concurrency 7, rate 5/1m30s, size 9
$ group set $q --reset --concurrency 7
all groups in $q: reset, concurrency 7
$ group set $q ada --weight 2 --concurrency 3 --rate 10/1m --size 1 --not-in-order
ada in $q: weight 2, concurrency 3, rate 10/1m, size 1, not in order
$ group pause $q ada
paused ada in $q
$ group ls $q
(all groups) concurrency 7
ada 1 ready 0 claimed 0 delayed weight 2 concurrency 3 rate 10/1m size 1 paused
$ push $q 2 --group ada
fdbq push: the group 'ada' of $q is full; nothing was stored
[1]
$ work $q --exec true --drain --quiet
1 done, 0 failed
$ work $q --exec true --drain
0 done, 0 failed
fdbq work: $q has 1 ready item left. The first: Its group is paused.
$ group resume $q ada
resumed ada in $q
$ group set $q ada --weight none --rate none --size none --concurrency none --in-order
...none, in order
$ group set $q '' --weight 0.5
(none) in $q: weight 0.5
$ group ls $q
(all groups) concurrency 7
(none) weight 0.5
ada 1 ready 0 claimed 0 delayed concurrency 7
$ group clear $q ada
Remove all items of the group 'ada' from '$q'? [y/N]: ...
fdbq: aborted; nothing was changed
[2]
$ group cancel $q ada
1 cancelled
$ group set $q ada
fdbq group set: give --weight, --concurrency, --rate, --in-order, --size or --reset (see ...)
[2]
$ group set $q ada --rate 5
...'5' is not a number and a time...
[2]
$ group pause $q ''
...paused: the items without a group have only a weight...
[2]
""",
    )


def test_a_group_says_what_holds_it_back(fdbq: Inside, db: Any, jobs: Any) -> None:
    jobs.push_many(db, range(4), groups=["ada", "ada", "bob", "bob"])
    jobs.set_group(db, "ada", rate=(1, "1h30m"))
    jobs.set_group(db, "bob", concurrency=1)
    jobs.pop(db)
    claim = jobs.claim(db)
    assert_prints(
        fdbq,
        """
$ group ls $q
ada 1 ready 0 claimed 0 delayed rate 1/1h30m held back by its rate until 20...
bob 1 ready 1 claimed 0 delayed concurrency 1 held back by its concurrency
$ show $q $first
...
held_by ...rate...
""",
        first=next(iter(jobs.items(db))).id,
    )
    jobs.nack(db, claim, dead=True)
    jobs.configure(db, max_size=2)
    refused = f"fdbq: {claim.item.id} was not retried: the queue is full, or its key is taken"
    assert_prints(fdbq, f"$ group retry $q bob\n0 retried\n{refused}\n[1]\n")


def test_each_reason_has_its_words_in_the_shell_and_in_the_dashboard() -> None:
    script = (ROOT / "fdbqueue" / "http" / "static" / "held.js").read_text().partition("};")[0]
    in_dashboard = dict(re.findall(r'^  (\w+): "([^"]+)",$', script, re.MULTILINE))
    assert in_dashboard == HELD_BY
    assert {*HELD_BY} == {*get_args(ItemHeldBy)}


def test_schedules_are_added_listed_and_run(fdbq: Inside) -> None:
    assert_prints(
        fdbq,
        """
$ schedule add $q hourly '{"of": 1}' --every 1h
hourly: next tick 20...
$ schedule add $q nightly 2 --cron '0 3 * * *' --tz Europe/Lisbon --overlap skip -p 5
nightly: next tick 20...
$ schedule ls $q
$q hourly every 1h 20...+00:00 {"of":1}
$q nightly 0 3 * * * Europe/Lisbon 20...
$ schedule run $q nightly
...
$ schedule run $q nightly
fdbq schedule run: nothing was pushed: its last item has not ended
[1]
$ schedule run $q nope
fdbq schedule run: nothing was pushed: there is no schedule 'nope'
[1]
$ schedule pause $q hourly
paused hourly
$ schedule ls $q
...hourly every 1h paused ...
$ schedule resume $q hourly
resumed hourly
$ limit $q --size 1
...
$ schedule run $q hourly
fdbq schedule run: ...has no room...
[1]
$ schedule rm $q hourly
removed hourly
$ schedule rm $q hourly
fdbq schedule rm: there is no schedule 'hourly'
[1]
$ schedule add $q bad x --every 1h
...the value is not JSON...
[2]
""",
    )


def test_fdbcli_divides_a_queue_into_its_shards(fdbq: Inside, cluster: Cluster, name: str) -> None:
    programs = find_programs()
    if programs is None or not cluster.is_own:
        pytest.skip("no fdbcli, or a shared cluster, whose ranges stay as they are")

    def divided(*options: str) -> set[int]:
        commands = fdbq.output("ranges", name, *options) + "\nrangeconfig show\n"
        fdbcli = [programs[1], "-C", str(cluster.file)]
        done = subprocess.run(
            fdbcli, input=commands, capture_output=True, text=True, check=True, timeout=60
        )
        assert "ERROR" not in done.stdout + done.stderr
        ranges = json.loads(done.stdout[done.stdout.index("{") :])["ranges"]
        return {each["configuration"]["teamID"] for each in ranges if name in each["begin"]}

    fdbq.output("limit", name, "--create", "--shards", "4")
    assert divided() == {0, 1, 2, 3}
    fdbq.output("limit", name, "--shards", "2")
    assert divided() == {0, 1}
    assert divided("--undo") == set()


# Kinds of queues


def test_a_fifo_queue_works_like_other_queues(fdbq: Inside, db: Any, name: str) -> None:
    Queue.named(db, name).push_many(db, ["first", "second"])
    assert json.loads(fdbq.output("counts", name, "--json")) == {"priority": None, "count": 2}
    exported = fdbq.output("export", name).splitlines()
    assert [json.loads(line)["value"] for line in exported] == ["first", "second"]
    assert_prints(
        fdbq,
        """
$ counts $q
priority items
- 2
$ items $q --limit 1
... - "first"
$ pop $q
"first"
""",
    )


def test_tasks_are_pushed_listed_and_popped(fdbq: Inside, name: str) -> None:
    push = ("task", "push", name)
    soon = ("--deadline", "2030-01-01T00:00+00:00")
    fdbq.output(*push, '{"n": 2}', "--agent", "ada")
    fdbq.output(*push, '{"n": 1}', *soon, "--cost", "3", "--client", "7")
    third = fdbq.output(*push, "-", "-p", "low", "--group", "acme", stdin='{"n": 3}').strip()
    tasks = [json.loads(line) for line in fdbq.output("task", "ls", name).splitlines()]
    assert [task["payload"]["n"] for task in tasks] == [1, 2, 3]
    assert (tasks[0]["deadline"], tasks[0]["cost"]) == ("2030-01-01T00:00:00+00:00", 3.0)
    for filter in (("--agent", "ada"), ("--client", "7"), ("--limit", "1")):
        assert fdbq.output("task", "ls", name, *filter).count("\n") == 1
    assert json.loads(fdbq.output("task", "pop", name, "--json"))["client_id"] == "7"
    assert_prints(
        fdbq,
        """
$ task pop $q
{"n":2}
$ update $q --state ready --priority high
1 changed
$ update $q --state ready --priority urgent
...CRITICAL...
[2]
$ rm $q $third
1 removed
$ task pop $q
[1]
$ push ${q}other 1
...
$ task pop ${q}other
...is not a task queue...
[2]
$ task push $q 1 --deadline tomorrow
...deadline...
[2]
""",
        third=third,
    )
    stats = json.loads(fdbq.output("task", "stats", name, "--json"))
    assert (stats["total_pushed"], stats["total_popped"], stats["total_removed"]) == (3, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("push", "line", "1", "-p", "1"), "is a FIFO queue and does not support --priority"),
        (("peek", "line", "--max"), "is a FIFO queue and does not support --max"),
        (("update", "line", "x", "-p", "1"), "is a FIFO queue and does not support --priority"),
        (("import", "line", "-"), "is a FIFO queue and does not support `fdbq import`"),
        (("rm", "todo", "--state", "ready", "-p", "1"), "is a task queue and does not support --p"),
        (("export", "todo"), "a task queue; use `fdbq task`, or write it with `fdbq backup`"),
        (("pop", "todo"), "use `fdbq task`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_queue_says_what_its_kind_does_not_support(
    fdbq: Inside, db: Any, name: str, arguments: tuple[str, ...], answer: str
) -> None:
    line, todo = Queue.named(db, f"{name}line"), fdbqueue.TaskQueue.named(db, f"{name}todo")
    line.push(db, "first")
    todo.push(db)
    assert answer in error_of(
        fdbq(*(name + each if each in ("line", "todo") else each for each in arguments))
    )
    assert (line.size(db), todo.size(db)) == (1, 1)


def test_a_queue_of_tuples_as_priorities(fdbq: Inside, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, priorities=(int, float))
    queue.push(db, "last", (1, math.inf))
    fdbq.output("push", name, '"first"', "-p", "[1, -3]")
    fields = ("--priority-field", "priority", "--value-field", "value")
    fdbq.output("import", name, *fields, stdin=fdbq.output("export", name))
    assert_prints(
        fdbq,
        """
$ counts $q
priority items
[1,-3.0] 2
[1,"Infinity"] 2
$ items $q -p '[1, "Infinity"]' --limit 1
... [1,"Infinity"] "last"
$ push $q 1 -p 1
...must be a tuple (int, float)...
[2]
""",
    )


def test_a_queue_whose_values_are_not_json_is_counted_and_not_read(
    fdbq: Inside, db: Any, name: str
) -> None:
    PriorityQueue.named(db, name, codec="bytes").push(db, b"x")
    (fdbq.path / "lines").write_text("1\n")
    for command in ("push", "pop", "peek", "items", "export", "import"):
        more = {"push": ["1"], "import": ["lines"]}.get(command, [])
        assert "but fdbq needs JSON values" in error_of(fdbq(command, name, *more))
    assert_prints(fdbq, "$ check $q\n$q: 1 ready, ok\n$ drop $q -y\ndropped $q: 1 ready\n")


@pytest.mark.damaged
def test_a_queue_that_cannot_be_decoded_is_listed_with_what_to_do(
    fdbq: Inside, db: Any, name: str
) -> None:
    push_undecodable(db, f"{name}old")
    PriorityQueue.named(db, f"{name}young").push(db, 1)
    todo = "another program has written to it. `fdbq drop` removes it"
    (old,) = (line for line in fdbq.output("ls").splitlines() if line.startswith(f"{name}old"))
    assert re.search(r"-(old) +-( +-){5}  the queue holds bytes .*" + todo + "$", old)
    for command in (("ls", "--json"), ("top", "--json", "-n", "1")):
        rows = [json.loads(line) for line in fdbq.output(*command).splitlines()]
        numbers = {row["queue"]: row.get("ready", row.get("error")) for row in rows}
        assert numbers[f"{name}young"] == 1
        assert numbers[f"{name}old"].endswith(todo)
    assert "(unknown)" in fdbq.output("top", "-n", "1")


def test_a_queue_whose_options_cannot_be_read_is_dropped(fdbq: Inside, db: Any, name: str) -> None:
    for options in (b"\xff", fdb.tuple.pack((99,)), fdb.tuple.pack((LAYOUT_VERSION, "stack"))):
        queue = PriorityQueue.named(db, name)
        queue.push(db, 1, delay=600)
        db[layout_of(queue).options] = options
        assert "the queue" in error_of(fdbq("stats", name))
        assert fdbq.output("drop", name, "--yes") == f"dropped {name}: 1 delayed\n"
        assert name not in fdbqueue.admin.queue_names(db)


# Tables


def test_a_long_name_widens_only_its_own_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", "1"), ("寿司", "10,000"), ("x" * 70, "2")]
    with click.Context(cli):
        show_table(("queue", "items"), rows, list, list)
        show_table(("queue", "items"), [], list, list, "no queues")
        show_table(("queue", "items"), [], list, list)
    assert capsys.readouterr().out.splitlines() == [
        f"queue{' ' * 55}   items",
        f"a{' ' * 59}       1",
        f"寿司{' ' * 56}  10,000",
        f"{'x' * 70}       2",
        "no queues",
    ]


def test_top_shows_the_busy_queues_first_if_there_is_no_room_for_all() -> None:
    def row(number: int, **values: Any) -> dict[str, Any]:
        idle: dict[str, Any] = dict.fromkeys(("ready", "delayed", "claimed", "dead", "done"), 0)
        idle |= {"in": 0.0, "out": None, "age": None, "paused": False, "unknown_jobs": 0}
        return {"queue": f"q{number}", **idle, **values}

    rows = [row(0), row(1, dead=3), row(2), row(3, out=0.5), row(4, **{"in": 0.1})]

    def shown(room: int) -> list[str]:
        return re.findall(r"q\d|\d+ more", "\n".join(screen(rows, 80, room + 3)))

    assert shown(5) == ["q0", "q1", "q2", "q3", "q4"]
    assert shown(4) == ["q1", "q3", "q4", "q0", "1 more"]
    assert shown(2) == ["q1", "q3", "3 more"]


def test_top_shows_queues_and_their_rates(fdbq: Inside, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push_many(db, [1, 2], priorities=[3, 5])
    looks = [
        json.loads(line)
        for line in fdbq.output("top", "--json", "-n", "2", "--interval", "0.1").splitlines()
        if json.loads(line)["queue"] == name
    ]
    assert [look["in"] for look in looks] == [None, 0.0]
    assert looks[1]["ready"] == sum(looks[1]["by_priority"].values()) == 2
    assert (looks[1]["total_pushed"], looks[1]["age"][:3]) == (2, "0:0")
    assert name in fdbq.output("top", "-n", "1")


def test_workers_are_listed(fdbq: Inside, db: Any, name: str) -> None:
    PriorityQueue.named(db, name).push(db, 1)
    assert name not in fdbq.output("workers")
    Presence("mailer", {name: 4}, 4, 30, print).write(db, 2)
    assert_prints(
        fdbq,
        """
$ workers
queues jobs concurrency runs for name
...$q 2 4 ... mailer
""",
    )
    workers = [json.loads(line) for line in fdbq.output("workers", "--json").splitlines()]
    (worker,) = (each for each in workers if name in each["queues"])
    assert (worker["name"], worker["queues"], worker["concurrency"]) == ("mailer", {name: 4}, 4)
