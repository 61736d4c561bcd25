"""The key spaces of a queue: the numbers that its keys begin with, and what the keys hold."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

TALLIES = (
    *("popped", "claimed", "acked", "returned", "failed", "retried", "died", "dead", "delayed"),
    *("expired", "removed", "moved", "put_back", "expiring", "paused", "done", "unknown"),
)
"""The tallies of a queue, in the order in which one counter stores them.

- `popped`, `claimed`: items popped and claimed.
- `acked`, `returned`: claims acknowledged, and claims that ended in any other way.
- `failed`: failed attempts. `retried`: items returned after a failure, or from the dead letters.
- `died`: items that became dead letters. `dead`: those that still are. `delayed`: delayed items.
- `expired`, `removed`: items that ended in these ways.
- `moved`: items in the total of those pushed or returned that were not new. `put_back`: popped
  items that returned; they count as moved too.
- `expiring`: ready items that will expire. `paused`: 1 if the queue is paused.
- `done`: acknowledged and cancelled items that are kept.
- `unknown`: ready and delayed items whose job no worker that met it knows.
"""


class Row(NamedTuple):
    """One kind of key: its elements, its value, and the operations that write it."""

    key: str
    value: str
    written_by: str


class Space(IntEnum):
    """The first element of a key within the subspace of a queue.

    The numbers are stored in every database. Never change a number or use it again. `ref` in a key
    stands for the position of an item: (priority, count, random), or (index, random) in a FIFO
    queue. Times are in milliseconds since 1970. Versions are read versions. Counters are 64-bit
    little-endian integers for atomic `add`.

    >>> Space.ITEMS == 0, Space.ITEMS.rows[0].written_by
    (True, 'push, and every operation that returns an item')
    """

    rows: tuple[Row, ...]

    def __new__(cls, number: int, *rows: tuple[str, str, str]) -> Space:
        """Create the member with this number; `rows` describe its keys."""
        space = int.__new__(cls, number)
        space._value_ = number
        space.rows = tuple(Row(*row) for row in rows)
        return space

    ITEMS = (
        0,
        (
            "(0, priority, count, random)",
            "payload of a ready item, after a header if it has one",
            "push, and every operation that returns an item",
        ),
        ("(0, index, random)", "the same, in a FIFO queue", "enqueue"),
        (
            "(0, priority, group, count, random)",
            "the same, for an item of a group; in a FIFO queue without a priority",
            "push, and every operation that returns an item",
        ),
    )
    COUNTS = (
        1,
        (
            "(1, priority)",
            "number of ready items of the priority; no key at zero",
            "push, pop",
        ),
    )
    TOTALS = (
        2,
        ("(2, 11)", "items pushed or returned", "push, and every return of an item"),
        ("(2, 4)", "items rejected because the queue was full", "push"),
        (
            "(2, 10)",
            "the tallies of the queue, each in 8 bytes: " + ", ".join(TALLIES),
            "every other change of an item",
        ),
    )
    PIECES = (3, ("(3, random, number)", "90,000 bytes of a payload over 10,000 bytes", "push"))
    RECEIPTS = (
        4,
        (
            "(4, hour, client id)",
            "(sequence, attempt) of the client's last operation, or its number and results if "
            "another process of its host performed it",
            "run_once, a shared push or pop",
        ),
    )
    QUEUE = (
        5,
        ('(5, "layout")', "(layout version, options of the queue)", "first push, configure"),
        (
            '(5, "scheduled")',
            "empty: the queue has, or had, something to sweep or to check",
            "claim, push, pause",
        ),
        (
            '(5, "linked")',
            "empty: jobs of the queue count, or counted, in batches of other queues",
            "push",
        ),
        (
            '(5, "idle", kind, name)',
            "empty: a client waits to claim (0) or pop (1); it wakes when the key is cleared",
            "pop, claim",
        ),
        ('(5, "arrived", kind)', "name of the client that began to wait last", "pop, claim"),
        ('(5, "freed")', "counter that wakes clients waiting to claim", "ack, nack, sweep, resume"),
        ('(5, "cancelled")', "counter that wakes workers, to look at their jobs", "cancel"),
    )
    IMPORTS = (
        6,
        ("(6, source)", "(lines, sha256): the progress of an import", "fdbq import"),
        ("(6, week, source)", "empty: the import ran in this week since 1970", "fdbq import"),
    )
    REQUESTS = (
        7,
        (
            "(7, version, name)",
            "(is next, n, at max, ...): waiting pops",
            "pop, after a conflict",
        ),
    )
    RESULTS = (
        8,
        ("(8, version, name, number)", "keys and values of items staged for a request", "leader"),
    )
    LEADER = (
        9,
        ("(9,)", "name of the process that serves the requests of all processes", "leader"),
        ('(9, "ends")', "never written, only conflicted on", "pop"),
    )
    PLACES = (
        10,
        ("(10, 0 or 1, number)", "never written, only conflicted on", "push to a bounded queue"),
    )
    IDEMPOTENCY_KEYS = (
        11,
        ("(11, key)", "(hour, digest, id, ...): the items of the push with this key", "HTTP push"),
    )
    IDEMPOTENCY_HOURS = (
        12,
        ("(12, hour, key)", "empty: the key exists since this hour", "HTTP push"),
    )
    TASK_IDS = (
        13,
        ("(13, 0, random)", "ref of the ready task with this id", "task push, pop"),
        (
            "(13, 1, random)",
            "the same for a task in another state",
            "task push, claim",
        ),
    )
    TASK_OWNERS = (
        14,
        ("(14, 0, agent or null, ref)", "empty: a ready task of this agent", "task push, pop"),
        ("(14, 1, client, ref)", "empty: a ready task of this client", "task push, pop"),
    )
    AGENT_COUNTS = (
        15,
        ("(15, agent)", "number of ready tasks of the agent; no key at zero", "task push, pop"),
    )
    CLAIMS = (
        16,
        ("(16, ref)", "(token, lease end, attempt, slots) and the item's value", "claim, extend"),
    )
    LEASES = (
        17,
        (
            "(17, version, ref)",
            "length of the lease and its end by the clock in milliseconds: 16 bytes, then the name "
            "of the client; if it has reported anything, a zero byte and (fraction, message, time, "
            "log)",
            "claim, extend",
        ),
    )
    DELAYED = (18, ("(18, ref)", "(time,) and the value of a delayed item", "push, nack"))
    DUE_TIMES = (
        19,
        ("(19, time, ref)", "empty: a delayed item is due then", "push, nack"),
        ("(19, time, null, name)", "empty: a schedule is due then", "sweep, schedule"),
    )
    DEAD = (
        20,
        ("(20, ref)", "(attempts, time, error) and the value of a dead letter", "nack, sweep"),
    )
    EXPIRIES = (21, ("(21, time, ref)", "empty: a ready item expires then", "push"))
    UNIQUE_KEYS = (
        22,
        (
            "(22, key)",
            "ref of the item that has this unique key, as a tuple; when its period ends, if it has "
            "one, as one more element",
            "push, and every return of an item whose claim has freed its key",
        ),
    )
    SLOTS = (
        23,
        ("(23, 0)", "number of claimed items that hold a slot; no key at zero", "claim, ack"),
        ("(23, 1, agent)", "the same, for the slots of an agent", "claim, ack"),
        ("(23, 2, 0, 0 or 1, number)", "never written, only conflicted on", "claim"),
        ("(23, 2, 1, agent, 0 or 1, number)", "the same, for the slots of an agent", "claim"),
        ("(23, 3, group)", "number of claimed items of the group; no key at zero", "claim, ack"),
    )
    ATTEMPTS = (
        24,
        (
            "(24, ref, number)",
            "(time, client, error, traceback, time of the claim, log): a failed attempt of an "
            "unfinished item",
            "nack, sweep",
        ),
    )
    DONE = (
        25,
        (
            "(25, ref)",
            "(time, attempts, outcome, error, time of the claim, client, log) and the value of a "
            "done item",
            "ack",
        ),
    )
    DONE_TIMES = (26, ("(26, time, ref)", "empty: an item was done then", "ack"))
    RETURNED = (27, ("(27, ref)", "what the handler of a done item returned, as JSON", "ack"))
    MOVED = (28, ("(28, ref)", "another ref, which the item with this one has now", "reprioritize"))
    HISTORY = (
        29,
        (
            "(29, 0)",
            "the histogram of waiting times: 54 counts of items, 8 bytes each",
            "pop, claim",
        ),
        (
            "(29, 1, seconds, number)",
            "the totals before the first change in a period: its length, and its number since 1970",
            "every change of the totals",
        ),
        ("(29, 2)", "the histogram of run times, as that of waiting times", "ack, nack, sweep"),
    )
    UNIQUE_ENDS = (
        30,
        ("(30, time, key)", "the value of (22, key): the period of the key ends then", "push"),
    )
    SCHEDULES = (
        31,
        ("(31, name)", "the schedule, as `StoredSchedule`, and its state", "sweep, schedule"),
    )
    STEPS = (
        32,
        (
            "(32, random, name)",
            "the step of this name of the job whose ref ends with `random`, as `StoredStep`",
            "a step of a job, signal",
        ),
    )
    SIGNALS = (33, ("(33, name, key)", "(time, end, value) of the last signal", "signal"))
    SIGNAL_ENDS = (34, ("(34, end, name, key)", "the value of (33, name, key)", "signal"))
    SIGNAL_WAITS = (
        35,
        (
            "(35, name, key, step, ref)",
            "empty: this step of the job waits for the signal; `ref` is its first",
            "a step of a job",
        ),
    )
    BATCHES = (
        36,
        (
            "(36, 0, id)",
            "the batch, as `StoredBatch`; its id is the first ref of the item that waits for it, "
            "or random if a step does",
            "opening, closing and cancelling a batch, push, a step of a job",
        ),
        (
            "(36, 1, id)",
            "its jobs that were pushed, done, dead and cancelled, each in 8 bytes",
            "push, and every end of a job of a batch",
        ),
        ("(36, 2, id, 0 or 1, number)", "never written, only conflicted on", "ack, nack, sweep"),
        (
            "(36, 3, random, number)",
            "the batch of a job that follows the item whose ref ends with `random`, as "
            "`Membership`",
            "push of a job that follows others",
        ),
    )
    GROUPS = (
        37,
        (
            "(37, 0, priority, pass, group)",
            "the group has a turn among the items of the priority, which is null in a FIFO queue, "
            "here and below: its settings as in (37, 5); empty as stored by an earlier build",
            "push, pop, claim, set_group",
        ),
        (
            "(37, 1, group, priority)",
            "empty: the group has ready items of the priority",
            "push, and pop or claim of its last one",
        ),
        ("(37, 2, group, priority)", "pass of its next item, in 12 bytes", "push, pop, claim"),
        (
            "(37, 3, priority, pass, group)",
            "the group has had ready items of the priority, and has this pass: empty, unless it "
            "had a rate",
            "pop or claim of its last one",
        ),
        ("(37, 4, priority)", "highest pass of an item taken, in 12 bytes", "pop, claim"),
        (
            "(37, 5, group or null)",
            "(weight, concurrency, paused, rate, is in order, size, is latest) of one or all; "
            "empty for the items without a group. Here and below, the agents of a task queue are "
            "its groups",
            "set_group",
        ),
        (
            "(37, 6, group)",
            "the group is held back, and has no turns: when it may go on, if its rate holds it",
            "claim, pop, set_group",
        ),
        ("(37, 7, group)", "number of its ready items; no key at zero", "push, pop, claim"),
        (
            "(37, 8, group or null, versionstamp)",
            "(time, number) of items that were started; null for those of a queue with a rate",
            "claim, pop",
        ),
        (
            "(37, 9, group or null)",
            "number of these items, in a group or a queue with a rate",
            "claim, pop",
        ),
        (
            "(37, 10, group)",
            "ref of the failed item for whose next attempt a sequence waits",
            "nack",
        ),
        (
            "(37, 11, group, priority)",
            "number of its delayed items; no key at zero",
            "push, nack, release, sweep",
        ),
        ("(37, 12, group, 0 or 1, number)", "never written, only conflicted on", "push"),
    )


_NAME_ROWS = (
    Row("(name, ...)", "the keys of the queue with this name, as above", "as above"),
    Row("(0, name)", "prefix of the queue with this name", "first push, rename"),
    Row("(1, name, number, ...)", "the keys of a later queue that reuses the name", "as above"),
    Row("(2, hour, client id)", "(sequence, attempt), as (4, ...) of a queue", "rename, drop"),
    Row("(3, name)", "number of the next queue with this name", "rename"),
    Row("(3, null)", "the same, for all names without a higher number", "rename"),
    Row("(4, uuid, ...)", "the keys of a restored or copied queue", "restore, copy"),
    Row("(5, name)", "(prefix, rows, sha256): the progress of a restore", "restore, copy"),
    Row(
        "(6, uuid)",
        "(name, host, pid, queue, concurrency, jobs, start, now, end): a running worker",
        "Worker",
    ),
)
"""The keys of the names, in the subspace ("fdbqueue",)."""


def key_table() -> str:
    """Return the keys of a queue as a table in Markdown.

    >>> print(key_table().splitlines()[2])
    | `ITEMS` | `(0, priority, count, random)` | payload of a ready item, ... | push, ... |
    """
    lines = ["| space | key | value | written by |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{space.name}` | `{row.key}` | {row.value} | {row.written_by} |"
        for space in Space
        for row in space.rows
    ]
    return "\n".join(lines)


def name_table() -> str:
    """Return the keys of the names of queues as a table in Markdown.

    >>> print(name_table().splitlines()[3])
    | `(0, name)` | prefix of the queue with this name | first push, rename |
    """
    lines = ["| key | value | written by |", "| --- | --- | --- |"]
    lines += [f"| `{row.key}` | {row.value} | {row.written_by} |" for row in _NAME_ROWS]
    return "\n".join(lines)
