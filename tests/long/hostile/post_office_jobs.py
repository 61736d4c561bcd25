"""A post office, declared as a user declares it: parcels of six steps each, and a batch of letters.

Each run of the job of a parcel writes to a ledger which of its steps were done before it began,
which functions it calls, and what its steps return.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fdbqueue import Subspace, Transaction
from fdbqueue.errors import LeaseLost
from fdbqueue.jobs import App, ChildFailed, Context, Dead, Discard, Retry, Snooze, WaitTimedOut
from tests.long.hostile.app_workers import bind_worker, write_line

STEPS = ("weigh", "book", "rest", "shipped", "stamp", "deliver")
REPORTS = "post-office-reports"
"""The queue of the job at the end of a batch."""
TIMEOUT = 1.0  # seconds, of a letter
ONE = (1).to_bytes(8, "little")
POLICY = Retry(attempts=None, first="50ms", longest="500ms")

app = App()
bind_worker(app)


class Shipping(str, Enum):
    """When the signal comes that a parcel waits for."""

    EARLY = "early"
    """Before the parcel waits, in the transaction of one of its steps."""
    LATER = "later"
    """From a job, after a delay."""
    NEVER = "never"


@dataclass(frozen=True)
class Parcel:
    """A parcel to deliver; times are in seconds.

    Attributes:
        number: Its number.
        post: The beginning of the names of the queues.
        work: How long the first step and the other job take.
        rest: How long it rests.
        shipping: When its signal comes.
        delay: The delay of the job that sends the signal.
        timeout: How long the parcel waits for the signal.
        is_stamped: Whether the job that it runs returns a result.
    """

    number: int
    post: str
    work: float
    rest: float
    shipping: Shipping
    delay: float
    timeout: float
    is_stamped: bool


class Fate(str, Enum):
    """What the first attempts of a letter do, or all; each other attempt sends it."""

    SENT = "sent"
    AGAIN = "again"
    """It fails twice."""
    SNOOZES = "snoozes"
    """It comes back once in each process."""
    TOLD = "told"
    """It goes on until it is told that its time is over, and fails."""
    HANGS = "hangs"
    KILLS = "kills"
    """It kills its process."""
    DISCARDED = "discarded"
    DEAD = "dead"
    WAITS = "waits"
    """It goes on until it is cancelled, whenever it runs, and is sent if that is long enough."""


@dataclass(frozen=True)
class Letter:
    """A letter, one of a street whose letters are sent in the order of their numbers, or of none.

    Attributes:
        number: Its number.
        post: The beginning of the names of the queues.
        fate: What its attempts do.
        street: Its group.
    """

    number: int
    post: str
    fate: Fate
    street: str


def records(post: str) -> Subspace:
    """Return where the records of a post office are."""
    return Subspace(("post office", post))


def parcels(post: str) -> str:
    """Return the name of the queue of parcels, and of the jobs that they push and run."""
    return f"{post}-parcels"


def letters(post: str) -> str:
    """Return the name of the queue of letters."""
    return f"{post}-letters"


def count(tr: Transaction, parcel: Parcel, event: str) -> None:
    """Count that a transaction was committed."""
    tr.add(records(parcel.post)[parcel.number][event].key(), ONE)


class _Run:
    """One run of the function of a job."""

    def __init__(self, context: Context, parcel: Parcel) -> None:
        self.id = str(uuid.uuid4())
        self._parcel = parcel
        steps = app.queue(parcels(parcel.post)).steps.all(app.db, context.item.id)
        done = [step.name for step in steps if step.state == "done"]
        write_line(parcel.number, self.id, "began", done, time.time())

    def weigh(self) -> str:
        """Be the function of a step that takes its time."""
        called = self.call("weigh")
        time.sleep(self._parcel.work)
        return called

    def call(self, step: str) -> str:
        """Note that the function of a step is called; return what no other run returns."""
        write_line(self._parcel.number, self.id, "called", step, time.time())
        return f"{step} of {self.id}"

    def got(self, step: str, value: Any) -> None:
        """Note what a step has returned."""
        write_line(self._parcel.number, self.id, "got", [step, value], time.time())


@app.job(retry=POLICY)
def carry(context: Context, parcel: Parcel) -> str:
    """Deliver a parcel in six steps; note if another worker has got it meanwhile."""
    run = _Run(context, parcel)
    try:
        return take_steps(context, parcel, run)
    except LeaseLost:
        run.got("lost", None)
        raise


def take_steps(context: Context, parcel: Parcel, run: _Run) -> str:
    """Take the steps of a parcel, and note their results."""
    run.got("weigh", context.step("weigh", run.weigh))
    run.got("book", context.commit("book", book, parcel, context.item.id, run.call))
    context.sleep("rest", parcel.rest)
    run.got("rest", None)
    try:
        signal = context.wait("shipped", key=str(parcel.number), timeout=parcel.timeout)
        run.got("shipped", signal.value)
    except WaitTimedOut:
        run.got("shipped", None)
    try:
        run.got("stamp", context.run("stamp", stamp.using(queue=parcels(parcel.post)), parcel))
    except ChildFailed:
        run.got("stamp", None)
    run.got("deliver", context.commit("deliver", deliver, parcel, run.call))
    return "delivered"


def book(tr: Transaction, parcel: Parcel, id: str, call: Callable[[str], str]) -> str:
    """Write to the books; send the signal that the parcel waits for, or push a job that will."""
    called = call("book")
    count(tr, parcel, "book")
    if parcel.shipping is Shipping.EARLY:
        ship_now(tr, parcel, id)
    elif parcel.shipping is Shipping.LATER:
        queue = parcels(parcel.post)
        ship.using(tr, queue=queue, delay=parcel.delay, priority=-1).push(parcel, id)
    return called


def ship_now(tr: Transaction, parcel: Parcel, id: str) -> None:
    """Send a signal; record in which state it has found the wait, and how many waits it ended."""
    queue = app.queue(parcels(parcel.post))
    states = [step.state for step in queue.steps.all(tr, id) if step.name == "shipped"]
    key = str(parcel.number)
    n = app.signal(tr, "shipped", key=key, value="signal", queue=parcels(parcel.post))
    found = states[0] if states else "nothing"
    tr[records(parcel.post)[parcel.number]["found"].key()] = found.encode()
    tr[records(parcel.post)[parcel.number]["ended"].key()] = n.to_bytes(8, "little")
    count(tr, parcel, "ship")


@app.job(retry=POLICY)
def ship(tr: Transaction, parcel: Parcel, id: str) -> None:
    """Send the signal that a parcel waits for."""
    ship_now(tr, parcel, id)


@app.job(retry=POLICY)
def stamp(context: Context, parcel: Parcel) -> str:
    """Stamp a parcel, for the job that delivers it."""
    write_line(parcel.number, context.item.id, "stamped", None, time.time())
    if not parcel.is_stamped:
        raise Dead("there is no stamp")
    time.sleep(parcel.work)
    return f"stamped by {context.item.id}"


def deliver(tr: Transaction, parcel: Parcel, call: Callable[[str], str]) -> str:
    """Write that a parcel was delivered, and push a job that writes the same."""
    called = call("deliver")
    count(tr, parcel, "deliver")
    acknowledge.using(tr, queue=parcels(parcel.post)).push(parcel)
    return called


@app.job(retry=POLICY)
def acknowledge(tr: Transaction, parcel: Parcel) -> None:
    """Follow a delivery."""
    count(tr, parcel, "acknowledge")


_snoozed = set[int]()  # the letters that have come back to this process


def _street(letter: Letter) -> str | None:
    return letter.street or None


@app.job(retry=POLICY, timeout=TIMEOUT, group=_street)
def send(context: Context, letter: Letter) -> None:
    """Send a letter of a batch, or do what its fate says."""
    fate, is_first = letter.fate, context.attempt == 1
    write_line(-1, context.item.id, "letter", letter.number, time.time())
    if fate is Fate.AGAIN and context.attempt <= 2:
        raise OSError("the letter box is full")
    if fate is Fate.SNOOZES and letter.number not in _snoozed:
        _snoozed.add(letter.number)
        raise Snooze("200ms")
    if fate is Fate.DEAD:
        raise Dead("no such address")
    if fate is Fate.DISCARDED:
        raise Discard("no need")
    if fate is Fate.HANGS and is_first:
        threading.Event().wait()
    if fate is Fate.KILLS and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    if fate is Fate.WAITS or (fate is Fate.TOLD and is_first):
        context.cancelled.wait()
        raise OSError("stopped")
    context.at_end(sent, letter)


def sent(tr: Transaction, letter: Letter) -> None:
    """Record that a letter was sent: its number, behind those of its street so far."""
    space = records(letter.post)
    tr.add(space["letters"][letter.number].key(), ONE)
    prefix = space["streets"][letter.street].key()
    # Letters of one street may end in one transaction, which has one versionstamp.
    key = prefix + bytes(10) + letter.number.to_bytes(4, "big") + struct.pack("<L", len(prefix))
    tr.set_versionstamped_key(key, b"%d" % letter.number)


@app.job(queue=REPORTS, retry=POLICY)
def report(tr: Transaction, post: str, *, done: int, dead: int, cancelled: int) -> None:
    """Record the counts of a batch, and how many of its jobs had not ended."""
    space = records(post)["report"]
    left = app.queue(letters(post)).stats(tr).unfinished
    for name, n in {"done": done, "dead": dead, "cancelled": cancelled, "left": left}.items():
        tr[space[name].key()] = n.to_bytes(8, "little")
    tr.add(space["times"].key(), ONE)
