"""A thumbnail service, declared as a user declares it, whose jobs misbehave as they are told.

Each attempt writes a line to a ledger when it begins, and one for what it meets.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from PIL import Image

from fdbqueue import Subspace, Transaction
from fdbqueue.jobs import App, Context, Dead, Discard, Retry, RetryIn, Snooze
from tests.long.hostile.app_workers import bind_worker, write_line

TIMEOUT, GRACE = 1.0, 0.5  # seconds
ATTEMPTS = 8
SIZE = (32, 32)


class Act(str, Enum):
    """What an attempt does."""

    DRAW = "draw"
    FAIL = "fail"
    AGAIN = "again"
    SNOOZE = "snooze"
    SLOW = "slow"
    """It goes on until it is told that its time is over, and fails."""
    TARDY = "tardy"
    """It goes on until it is told that its time is over, and draws."""
    HANG = "hang"
    LATE = "late"
    """It draws after its time and the grace period are over."""
    BLOCK = "block"
    """A coroutine that blocks its event loop."""
    WAIT = "wait"
    """It goes on until it is cancelled, and fails."""
    FINISH = "finish"
    """It goes on until it is cancelled, and draws."""
    DIE = "die"
    BUG = "bug"
    KILL = "kill"


@dataclass(frozen=True)
class Picture:
    """A picture to draw small.

    Attributes:
        number: Its number.
        file: A JPEG, perhaps a broken one.
        queue: The queue of its job.
        acts: What its attempts do, the last one of them as often as needed.
    """

    number: int
    file: Path
    queue: str
    acts: list[Act]

    def act(self, attempt: int) -> Act:
        return self.acts[min(attempt, len(self.acts)) - 1]


app = App()
bind_worker(app)
POLICY = Retry(ATTEMPTS, first="50ms", longest="500ms", never_on=(TypeError,))


def note(number: int, attempt: int, event: str) -> None:
    """Write a line to the ledger."""
    write_line(number, attempt, event, time.time())


@contextmanager
def noted(context: Context, picture: Picture) -> Iterator[Act]:
    """Note how an attempt begins and ends; yield what to do."""
    act = picture.act(context.attempt)
    note(picture.number, context.attempt, "began")
    try:
        yield act
    except BaseException as error:
        note(picture.number, context.attempt, type(error).__name__)
        raise
    note(picture.number, context.attempt, "returned")


def thumbnail_of(file: Path) -> bytes:
    """Return a small JPEG of a picture.

    Raises:
        Discard: It is none.
    """
    try:
        with Image.open(file) as picture:
            small = picture.convert("RGB")
    except OSError as error:
        raise Discard("not a picture") from error
    small.thumbnail(SIZE)
    drawn = io.BytesIO()
    small.save(drawn, "JPEG")
    return drawn.getvalue()


def records(prefix: str) -> Subspace:
    """Return where the records of the pictures of a run are: a number, a kind, a value each."""
    return Subspace(("thumbnails", prefix))


def space_of(picture: Picture) -> Subspace:
    return records(picture.queue.rpartition("-")[0])[picture.number]


def record(tr: Transaction, picture: Picture, attempt: int, drawn: bytes) -> None:
    """Store a thumbnail, count that it was stored, and push a job that counts it once more."""
    space = space_of(picture)
    tr[space["digest"].key()] = hashlib.sha256(drawn).digest()
    tr[space["attempt"].key()] = b"%d" % attempt
    tr.add(space["written"].key(), (1).to_bytes(8, "little"))
    index.using(tr, queue=picture.queue).push(picture)


@app.job(retry=POLICY)
def index(tr: Transaction, picture: Picture) -> None:
    """Follow the job of a picture."""
    tr.add(space_of(picture)["indexed"].key(), (1).to_bytes(8, "little"))


def misbehave(act: Act, context: Context, picture: Picture) -> None:
    """Do what all kinds of functions can do."""
    if act is Act.FAIL:
        raise OSError("the scanner is busy")
    if act is Act.AGAIN:
        raise RetryIn("200ms", "the scanner is warming up")
    if act is Act.SNOOZE:
        snoozed = picture.file.with_suffix(".snoozed")
        if not snoozed.exists():
            snoozed.touch()
            raise Snooze("200ms")
    if act is Act.DIE:
        raise Dead("there is no such scanner")
    if act is Act.BUG:
        raise TypeError("a mistake in the program")
    if act is Act.KILL:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(timeout=TIMEOUT, retry=POLICY)
def thumbnail(context: Context, picture: Picture) -> int:
    """Draw a picture small."""
    with noted(context, picture) as act:
        misbehave(act, context, picture)
        if act is Act.HANG:
            threading.Event().wait()
        if act in (Act.SLOW, Act.TARDY, Act.LATE):
            context.cancelled.wait()
            note(picture.number, context.attempt, "told")
        if act is Act.SLOW:
            raise OSError("stopped")
        if act is Act.LATE:
            time.sleep(3 * GRACE)
        drawn = thumbnail_of(picture.file)
        context.at_end(record, picture, context.attempt, drawn)
        return len(drawn)


@app.job(retry=POLICY)
def patient(context: Context, picture: Picture) -> int:
    """Draw a picture small once the job is cancelled."""
    with noted(context, picture) as act:
        misbehave(act, context, picture)
        if act in (Act.WAIT, Act.FINISH):
            context.cancelled.wait()
            note(picture.number, context.attempt, "told")
        if act is Act.WAIT:
            raise OSError("stopped")
        drawn = thumbnail_of(picture.file)
        context.at_end(record, picture, context.attempt, drawn)
        return len(drawn)


@app.job(timeout=TIMEOUT, retry=POLICY)
async def coroutine(context: Context, picture: Picture) -> int:
    """Draw a picture small."""
    with noted(context, picture) as act:
        misbehave(act, context, picture)
        if act is Act.HANG:  # until it is cancelled
            await asyncio.Event().wait()
        if act is Act.LATE:  # it ignores that
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        if act is Act.BLOCK:
            threading.Event().wait()
        if act in (Act.SLOW, Act.TARDY):
            with suppress(asyncio.CancelledError):
                await context.cancelled
            note(picture.number, context.attempt, "told")
        if act is Act.SLOW:
            raise OSError("stopped")
        drawn = await asyncio.to_thread(thumbnail_of, picture.file)
        context.at_end(record, picture, context.attempt, drawn)
        return len(drawn)


@app.job(retry=POLICY)
def transacted(tr: Transaction, picture: Picture) -> int:
    """Draw a picture small, in the transaction that ends the job."""
    note(picture.number, 0, "began")
    (act,) = picture.acts
    if act is Act.FAIL:
        raise OSError("the scanner is busy")
    if act is Act.DIE:
        raise Dead("there is no such scanner")
    drawn = thumbnail_of(picture.file)
    record(tr, picture, 0, drawn)
    return len(drawn)


@app.job()
def meet(context: Context, picture: Picture) -> None:
    """Occupy a slot of a worker until a file exists."""
    with noted(context, picture):
        while not picture.file.exists():
            time.sleep(0.02)
