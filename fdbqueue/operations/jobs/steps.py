"""The steps of jobs: store results, suspend jobs, send signals.

Every change of a step requires the job's claim. A job that sleeps or waits is a delayed item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from fdbqueue.layout.batches import StoredBatch
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.jobs import (
    JobCancelled,
    StoredSignal,
    StoredStep,
    TooManySteps,
    TooManyWaiting,
    decode_signal,
    decode_step,
    encode_signal,
    encode_step,
    is_over,
)
from fdbqueue.layout.values import MAX_PAYLOAD, NEVER, Header
from fdbqueue.operations.changes import Changes
from fdbqueue.operations.claims import ClaimedItems, Extension
from fdbqueue.operations.items import Items
from fdbqueue.operations.maintainers.batches import begin_closed, read_steps
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.timers import drop_ended
from fdbqueue.types import Claim, ReadTransaction, Transaction

MAX_STEPS = 10_000

MAX_SIGNALLED = 1_000

Steps: TypeAlias = Mapping[str, StoredStep]
"""Steps by name, in the order in which they are stored."""

PushChildren: TypeAlias = Callable[[Transaction, list[str]], dict[str, tuple[bytes, str]]]
"""Pushes the jobs of these steps; returns the prefix of each one's queue, and its id."""

_MAX_DROPPED = 10  # signals that have ended, which a new one deletes


class DurableSteps:
    """The steps and signals of one queue's jobs."""

    def __init__(self, items: Items, claimed: ClaimedItems, changes: Changes) -> None:
        self._layout = items.layout
        self._items = items
        self._claimed = claimed
        self._changes = changes

    # Read

    def _get(self, tr: ReadTransaction, position: bytes, name: str) -> StoredStep | None:
        value = tr[self._layout.step_key(position, name)].value
        return None if value is None else decode_step(value)

    # Under the claim of the job

    def begin(
        self, tr: ReadTransaction, claim: Claim, name: str
    ) -> tuple[StoredStep | None, Header]:
        """Return a claimed job's step, if any, and its header; raise `LeaseLost`."""
        row = self._claimed.claimed(tr, claim)
        return self._get(tr, self._layout.position(row.key), name), row.item.header

    def store(self, tr: Transaction, now: int, extension: Extension, steps: Steps) -> bool:
        """Store steps of a claimed job, and renew its lease; return whether it is cancelled."""
        row = self._claimed.claimed(tr, extension[0])
        n = self._put(tr, row, steps)
        self._claimed.extend(tr, now, extension, steps=n)
        return row.item.header.cancelled is not None

    def suspend(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        steps: Steps,
        name: str,
        due: int | None = None,
        wait: bytes = b"",
    ) -> None:
        """Store a claimed job's steps, and end the claim until it is due; `None` for never.

        Raise `JobCancelled` if the job was cancelled, and has not learned so.
        `name` is the suspending step, `wait` its signal.
        """
        row = self._claimed.claimed(tr, claim)
        if row.item.header.cancelled is not None and not row.item.header.cancelled_step:
            raise JobCancelled(name)
        # A client has claimed it before it expired, so it does not expire meanwhile.
        fields = {"waits": wait, "expires": None, "step": name, "steps": self._put(tr, row, steps)}
        if wait:  # the same signal again, if it was not sent
            tr[self._layout.signal_waits + wait] = b""
        self._claimed.release(tr, now, claim, NEVER if due is None else due, **fields)

    def wait(
        self,
        tr: Transaction,
        now: int,
        extension: Extension,
        steps: Steps,
        name: str,
        signal: str,
    ) -> StoredStep | None:
        """Take a sent signal, time out, or suspend the job.

        Return the step of this name if it has ended, or `None` if the job is suspended.
        """
        layout, claim = self._layout, extension[0]
        row = self._claimed.claimed(tr, claim)
        header, position = row.item.header, layout.position(row.key)
        known = self._get(tr, position, name)
        waiting = known or steps[name]
        wait = layout.signal_wait(signal, waiting.key, name, header.origin or position)
        stored = tr[layout.entry_key(layout.signals, signal, waiting.key)].value
        sent = None if stored is None else decode_signal(stored)
        ended = None
        if waiting.state != "waiting":  # a signal has ended it meanwhile
            ended = waiting
        elif sent is not None and sent.ends > now:
            ended = waiting._replace(state="done", ended_at=sent.sent_at, value=sent.value)
        elif known is not None and is_over(known.due, now):
            ended = waiting._replace(state="timed out", ended_at=now)
        if ended is not None:
            # An earlier version of the job may have waited for another signal.
            tr.clear(layout.signal_waits + (header.waits or wait))
            self.store(tr, now, extension, {**steps, name: ended})
            return ended
        self.suspend(tr, now, claim, {**steps, name: waiting}, name, waiting.due, wait)
        return None

    def run(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        steps: Steps,
        names: list[str],
        batch: bytes,
        push: PushChildren,
    ) -> Steps | None:
        """Return the steps that run other jobs, or push missing jobs and suspend this one.

        The jobs are a batch: each stores its end in its step, and the last makes this job ready.
        The result is `None` if this job is suspended.
        """
        row = self._claimed.claimed(tr, claim)
        position = self._layout.position(row.key)
        rows = read_all(tr, [self._layout.step_key(position, name) for name in names])
        known = {name: decode_step(value) for name, value in zip(names, rows) if value is not None}
        ended = [step for step in known.values() if step.state != "waiting"]
        if len(ended) == len(names) or any(step.kind != "run" for step in known.values()):
            return known
        new = {**steps}
        missing = [name for name in names if name not in known]
        if missing:
            first = row.item.header.origin or position
            definition = StoredBatch("continue", kind="run", job=first)
            begin_closed(tr, self._layout, batch, definition, len(missing))
            own = self._layout.subspace.key()
            begun = StoredStep("run", "waiting", now)
            pushed = push(tr, missing)
            for name in missing:
                queue, id = pushed[name]
                new[name] = begun._replace(key=id, queue=b"" if queue == own else queue)
        self.suspend(tr, now, claim, new, names[0])
        return None

    def _put(self, tr: Transaction, row: ItemRow, steps: Steps) -> int:
        position = self._layout.position(row.key)
        keys = [self._layout.step_key(position, name) for name in steps]
        n = row.item.header.steps
        for key, known, step in zip(keys, read_all(tr, keys), steps.values()):
            number = n if known is None else decode_step(known).number
            tr[key] = encode_step(step._replace(number=number))
            n += known is None
        if n > MAX_STEPS:
            raise TooManySteps(MAX_STEPS)
        return n

    # Signals

    def signal(self, tr: Transaction, now: int, name: str, key: str, signal: StoredSignal) -> int:
        """Store a signal, and end the steps that wait for it; return their number."""
        layout = self._layout
        stored_key = layout.entry_key(layout.signals, name, key)
        # Each step stores the value, and one transaction has to hold all of them.
        limit = min(MAX_SIGNALLED, MAX_PAYLOAD // max(1, len(signal.value)))
        waiting = layout.range_of(layout.entry_key(layout.signal_waits, name, key))
        waits = tr.get_range(*waiting, limit=limit + 1)
        before = tr[stored_key].value
        rows = [*waits]
        if len(rows) > limit:
            raise TooManyWaiting(name, limit)
        if before is not None:
            tr.clear(layout.entry_key(layout.signal_ends, decode_signal(before).ends, name, key))
        value = encode_signal(signal)
        tr[stored_key] = value
        tr[layout.entry_key(layout.signal_ends, signal.ends, name, key)] = value
        n = 0
        for row in rows:
            tr.clear(row.key)
            wait = row.key[len(layout.signal_waits) :]
            n += self._end_wait(tr, now, *layout.unpack_signal_wait(wait)[2:], signal)
        drop_ended(tr, layout, now, layout.signal_ends, layout.signals, _MAX_DROPPED)
        return n

    def _end_wait(
        self, tr: Transaction, now: int, step: str, reference: bytes, signal: StoredSignal
    ) -> bool:
        """End a step that waits for a signal; return false if the job has ended."""
        found = self._items.at(tr, reference)
        known = found and self._get(tr, self._layout.position(found.key), step)
        if found is None or known is None:
            return False
        ended = known._replace(state="done", ended_at=signal.sent_at, value=signal.value)
        tr[self._layout.step_key(self._layout.position(found.key), step)] = encode_step(ended)
        if found.state == "delayed":
            self._changes.run_now(tr, now, found)
        return True

    # Retry

    def without(
        self, tr: ReadTransaction, dead: ItemRow, name: str
    ) -> tuple[ItemRow, list[bytes]] | None:
        """Return a dead letter without a step and all later ones, and the keys to clear then.

        Return `None` without such a step.
        """
        layout = self._layout
        position = layout.position(dead.key)
        names = [*read_steps(tr, layout, position)]
        if name not in names:
            return None
        forgotten = names[names.index(name) :]
        keys = [layout.step_key(position, each) for each in forgotten]
        header = dead.item.header
        header = header._replace(steps=header.steps - len(forgotten))
        if header.waits and layout.unpack_signal_wait(header.waits)[2] in forgotten:
            keys.append(layout.signal_waits + header.waits)
            header = header._replace(waits=b"")
        return dead.with_header(header), keys
