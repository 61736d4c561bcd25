"""A ledger of jobs with steps: what the entries of the log may say, in the order of commits.

It knows each claim, each stored step, each signal and each end, because the transactions that made
them have said so. So it knows what the next transaction has to find.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.layout.jobs import SKEW
from fdbqueue.types import ItemInfo
from tests.long.simulation.durable.programs import FAILED, TIMED_OUT
from tests.long.simulation.durable.ticks import ONE_BY_ONE, Ticks
from tests.long.simulation.log import Entry


@dataclass(eq=False)
class Step:
    """A stored step.

    Attributes:
        kind: Its kind.
        state: How it has ended, or `"waiting"`.
        value: Its result as JSON, once it is done.
        due: When the job goes on at the latest, in milliseconds.
        key: The key of its signal.
        at: The number of the entry that has ended it.
        token: The claim under which it ended.
    """

    kind: str
    state: str
    value: str
    due: int | None
    key: str
    at: int = 0
    token: str = ""

    @property
    def result(self) -> Any:
        """What the step returns."""
        if self.state == "done":
            return json.loads(self.value)
        return FAILED if self.state == "failed" else TIMED_OUT


@dataclass(eq=False)
class Job:
    """A job.

    Attributes:
        payload: Its value.
        token: Its present claim, which may be over; `None` if it is not claimed.
        claims: The numbers of the entries of all its claims.
        steps: Its steps.
        due: When it goes on if nothing wakes it.
        is_woken: Whether something has woken it, or it was not suspended.
        awaited: The steps whose jobs it waits for.
        effects: How often each of its commits took effect.
        cancelled: The number of the entry that cancelled it, unless that ended it; else 0.
        has_begun: Whether it has come to a step, so that it runs on if it is cancelled.
        stands: The step in which it is suspended, or learns that it is cancelled.
        told: The last claim under which it learned so.
        end: How it has ended.
        result: What it has returned.
    """

    payload: dict[str, Any]
    token: str | None = None
    claims: dict[str, int] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    due: int | None = None
    is_woken: bool = True
    awaited: list[str] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    has_begun: bool = False
    stands: str = ""
    told: str = ""
    end: str | None = None
    result: Any = None

    @property
    def may_have_ended(self) -> bool:
        """Whether it has ended, or does so when its lease is over."""
        return self.end is not None or (self.cancelled > 0 and not self.has_begun)


class Sent(NamedTuple):
    """A signal that is kept.

    Attributes:
        value: Its value.
        at_least: When it is forgotten at the earliest.
        at_most: When it is forgotten at the latest.
    """

    value: str
    at_least: int
    at_most: int


class Ledger:
    """The jobs of a simulation.

    Args:
        spread: How many milliseconds the clocks of two clients differ at most.

    Attributes:
        problems: What must not be.
        events: How often something of interest happened.
    """

    def __init__(self, spread: int) -> None:
        self._spread = spread
        self._jobs: dict[str, Job] = {}
        self._signals: dict[str, Sent] = {}
        self._last_sent = 0
        """When a signal was sent last, which deletes others whose time is over."""
        self._ticks = Ticks()
        self._alerts: dict[str, str] = {}
        """The alert of each dead letter."""
        self._number = 0
        self._entry: Entry | None = None
        self.problems: list[str] = []
        self.events: Counter[str] = Counter()

    def _say(self, problem: str) -> None:
        self.problems.append(f"{problem}: {self._entry}")

    def replay(self, entries: Iterable[Entry]) -> None:
        """Note all entries of a log."""
        for self._number, self._entry in enumerate(entries, 1):
            getattr(self, f"_{self._entry.verb}")(**self._entry.facts)
        self._entry = None

    # Claims

    def _claim(
        self, item: str, token: str, now: int, attempt: int, tick: int | None, payload: Any
    ) -> None:
        job = self._jobs.setdefault(item, Job(payload))
        if job.end is not None:
            self._say(f"it was claimed, and is {job.end}")
        if job.told and self._has_left(item, job):
            pass  # the end of a job that it has left wakes it
        elif not job.is_woken and (job.due is None or job.due > now + self._spread):
            self._say("it was claimed, and nothing has woken it")
        else:
            self._compare_awaited(item, job)
        if tick is not None:
            self._note_tick(item, tick, payload["schedule"])
        if "batch_of" in payload:
            self._compare_counts(item, job, payload["kwargs"])
        for dead in payload.get("args", ()):
            self._note_alert(item, **dead)
        others = self._followed(payload)
        if not all(other is not None and other.may_have_ended for other in others):
            self._say("it was claimed before the jobs that it follows have ended")
        callback = self._jobs.get(payload.get("batch", ""))
        if callback is not None:
            self._say("it was claimed after the job that follows its batch")
        job.payload = payload
        job.token, job.claims[token] = token, self._number
        job.is_woken, job.awaited = True, []
        if not job.cancelled:
            job.stands = ""

    def _has_left(self, item: str, job: Job) -> bool:
        """Return whether a job was cancelled while it ran others, which run on."""
        left = (other.payload.get("parent", ("", "")) for other in self._jobs.values())
        return any(of == item and not {step} & {*job.steps, *job.awaited} for of, step in left)

    def _compare_awaited(self, item: str, job: Job) -> None:
        for step in job.awaited:
            child = self._child(item, step)
            if child is None or not child.may_have_ended:
                self._say(f"it was claimed before the job of {step!r} has ended")

    def _note_tick(self, item: str, tick: int, schedule: str) -> None:
        self._ticks.note_item(schedule, tick, item)
        others = [job for job in self._jobs.values() if job.payload.get("schedule") == schedule]
        unfinished = [job for job in others if job is not self._jobs[item] and job.end is None]
        if unfinished and schedule == ONE_BY_ONE:
            self._say(f"the last item of {schedule!r} has not ended")

    def _note_alert(self, item: str, id: str, job: str, attempts: int, **_: Any) -> None:
        dead = self._jobs.get(id)
        if dead is None or dead.end != "dead" or dead.payload["job"] != job:
            self._say(f"it tells of a dead letter, which is {dead}")
        elif attempts > len(dead.claims):
            self._say(f"it tells of {attempts} attempts, and there were {len(dead.claims)} claims")
        if self._alerts.setdefault(id, item) != item:
            self._say("another one tells of the dead letter")
        self.events["alert"] += 1

    def _followed(self, payload: dict[str, Any]) -> list[Job | None]:
        """Return the jobs after which a job is to run, as far as they are known."""
        return [self._jobs.get(item) for item in payload.get("after", ())]

    def _child(self, item: str, step: str) -> Job | None:
        for job in self._jobs.values():
            if job.payload.get("parent") == [item, step]:
                return job
        return None

    def _own(self, item: str, token: str) -> Job:
        job = self._jobs[item]
        if job.end is not None:
            self._say(f"it is {job.end}")
        if job.token != token:
            self._say(f"its claim is over, by {job.token}")
        return job

    def _end(self, item: str, token: str, how: str, result: Any = None) -> None:
        job = self._own(item, token)
        job.token = None
        if job.cancelled and not job.has_begun:
            how = "cancelled"
        if how == "cancelled":
            result = None
        elif how == "done" and job.told:
            self._say("it was cancelled, and is done")
        self.events[how] += 1
        self.events[f"compensated, {how}"] += job.told == token
        self.events[f"{how} after others"] += "after" in job.payload
        ends = [other.end for other in self._followed(job.payload) if other is not None]
        if how == "done" and job.payload.get("on_dead") == "cancel" and "dead" in ends:
            self._say("it follows a job that has died, and is not cancelled")
        if how != "failed":
            job.end, job.result = how, result

    def _cancel(self, item: str, state: str, payload: Any, force: bool, children: bool) -> None:
        job = self._jobs.setdefault(item, Job(payload))
        if job.end is not None:
            self._say(f"it was cancelled, and is {job.end}")
        self.events["cancelled"] += 1
        if force or not (job.has_begun or state == "claimed"):
            job.end, job.result = "cancelled", None
        elif not job.cancelled:
            job.cancelled = self._number
            if state == "claimed":
                return
            if not children:
                job.awaited = []
            job.is_woken = True
            left = job.steps.get(job.stands)
            if left is not None and left.state == "waiting":
                left.state = "cancelled"

    def _told(self, item: str, token: str, step: str) -> None:
        job = self._own(item, token)
        known = job.steps.get(step)
        if not job.cancelled:
            self._say("it learns that it is cancelled, and is not")
        if job.stands and step != job.stands:
            self._say(f"it learns that it is cancelled, and not in {job.stands!r}")
        if not job.stands and known is not None and known.state != "waiting":
            self._say(f"it learns that it is cancelled in a step that is {known.state}")
        self.events["told again"] += bool(job.told)
        job.stands, job.told, job.has_begun = step, token, True

    # Steps

    def _run(self, item: str, token: str, step: str) -> None:
        job = self._jobs[item]
        known = job.steps.get(step)
        if known is None or known.state == "waiting":
            if job.cancelled and job.cancelled < job.claims[token] and job.told != token:
                self._say(f"{step!r} runs, and its job has not learned that it is cancelled")
            return
        # A client that has lost its claim may not know of a step that another one has stored.
        if job.claims[token] > known.at or token == known.token:
            self._say(f"{step!r} runs again, and is {known.state}")
        self.events["run of a lost claim"] += 1

    def _effect(self, item: str, token: str, step: str, run: str) -> None:
        job = self._own(item, token)
        job.effects[step] += 1
        if job.effects[step] > 1:
            self._say(f"{step!r} takes effect again")

    def _steps(
        self,
        item: str,
        token: str,
        now: int,
        call: str,
        before: list[Any],
        steps: list[Any],
        suspended: bool = False,
        waiting: list[str] | None = None,
    ) -> None:
        job = self._own(item, token)
        if suspended and job.cancelled and job.told != token:
            self._say("it is suspended, and has not learned that it is cancelled")
        stored = [(name, Step(*facts)) for name, *facts in [*before, *steps]]
        if call == "wait":
            self._wait(job, *stored[-1], now)
        for name, step in stored:
            known = job.steps.get(name)
            if call == "run" and (name, step) in stored[len(before) :]:
                self._compare_child(item, name, step)
            elif known is not None and known.state != "waiting":
                if (step.state, step.value) != (known.state, known.value):
                    self._say(f"{name!r} was {known.state} with {known.value}")
            else:
                step.at, step.token = self._number, token
                job.steps[name] = step
        job.has_begun |= bool(stored or waiting)
        if suspended:
            job.token = None
            if not job.told:
                job.stands = waiting[0] if waiting else stored[-1][0]
            job.is_woken = bool(waiting)
            job.due = None if waiting else stored[-1][1].due
            job.awaited = waiting or []
            self.events[f"suspended by {call}"] += 1

    def _compare_child(self, item: str, name: str, step: Step) -> None:
        child = self._child(item, name)
        if child is None or not child.may_have_ended:
            self._say(f"the job of {name!r} has not ended")
        elif (step.result if step.state == "done" else None) != child.result:
            self._say(f"the job of {name!r} is {child.end}, with {child.result}")

    # Signals

    def _wait(self, job: Job, name: str, step: Step, now: int) -> None:
        """Check how a wait has ended, or that it goes on."""
        known = job.steps.get(name)
        if known is not None and known.state != "waiting":
            return
        sent = self._signals.get(step.key)
        if step.state == "done":
            if sent is None or json.loads(step.value) != sent.value or sent.at_most <= now:
                self._say(f"{name!r} has a signal, but the last one is {sent}")
            self.events["signal before the wait"] += 1
            return
        # Its transaction may have begun long before that of a signal that was sent earlier.
        if sent is not None and sent.at_least > max(now, self._last_sent) + self._spread:
            self._say(f"{name!r} has not taken {sent}")
        due = step.due
        is_due = known is not None and due is not None and due <= now
        if step.state == "waiting" and is_due:
            self._say(f"{name!r} waits, and its time is over")
        if step.state == "timed out":
            if known is None or due is None or due > now + SKEW:
                self._say(f"{name!r} has timed out too early")
            self.events["timed out"] += 1

    def _signal(self, key: str, value: str, n: int, begun: int, ended: int, keep: int) -> None:
        waiting = [
            (job, step)
            for job in self._jobs.values()
            for step in job.steps.values()
            if (step.kind, step.state, step.key) == ("wait", "waiting", key)
        ]
        certain = sum(not job.may_have_ended for job, _ in waiting)
        if not certain <= n <= len(waiting):
            self._say(f"{certain} to {len(waiting)} jobs wait for {key!r}")
        for job, step in waiting:
            step.state, step.value, job.is_woken = "done", json.dumps(value), True
            step.at = self._number
            self.events["signal after the wait"] += 1
        self._signals[key] = Sent(value, begun + keep, ended + keep)
        self._last_sent = max(self._last_sent, ended)

    # Schedules

    def _schedule(self, **facts: Any) -> None:
        problem = self._ticks.note_change(**facts)
        if problem is not None:
            self._say(problem)

    # Batches

    def _compare_counts(self, item: str, callback: Job, counts: dict[str, int]) -> None:
        """Compare the counts that the job after a batch got with the ends of its jobs."""
        members = [job for job in self._jobs.values() if job.payload.get("batch") == item]
        if not all(job.may_have_ended for job in members):
            self._say("it was claimed before all jobs of its batch have ended")
        ends = Counter(job.end or "cancelled" for job in members)
        for how in ("done", "dead", "cancelled"):
            unknown = sum(job.end is None for job in members)  # each may be one of them
            if not ends[how] - unknown <= counts.get(how, 0) <= ends[how] + unknown:
                self._say(f"{ends} jobs of its batch have ended")
        if not callback.claims:
            self.events["batch"] += 1
            self.events["job of a batch"] += len(members)

    # The end

    def close(
        self,
        pushed: dict[str, bool],
        seen: dict[tuple[str, str], list[Any]],
        done: Iterable[ItemInfo],
        dead: Iterable[ItemInfo],
    ) -> None:
        """Check what is left after everything has ended.

        Args:
            pushed: The names of all jobs, and whether their pushes have returned.
            seen: What the steps of items have returned to clients.
            done: The done items of the queue.
            dead: Its dead letters.
        """
        names = Counter(job.payload["job"] for job in self._jobs.values() if self._is_one(job))
        for name, n in names.items():
            if n > 1:
                self._say(f"{name} was pushed {n} times")
        for name, is_certain in pushed.items():
            if is_certain and name not in names:
                self._say(f"{name} is lost")
        for item, job in self._jobs.items():
            if not job.may_have_ended:
                self._say(f"{item} has not ended: {job}")
            self._compare_effects(item, job)
            has_alert = "alerts" in job.payload and job.end == "dead"
            if has_alert != (item in self._alerts):
                self._say(f"{item} has{' no' * has_alert} alert: {job}")
        ended = [*done]
        self._compare_ends("done", ended)
        self._compare_ends("dead", dead)
        cancelled = {info.id for info in ended if info.outcome == "cancelled"}
        for item, job in self._jobs.items():
            if job.end == "cancelled" and item not in cancelled:
                self._say(f"{item} was cancelled, and is not shown")
        for (item, step), results in seen.items():
            known = self._jobs[item].steps.get(step)
            expected = results[0] if known is None else known.result
            if any(result != expected for result in results):
                self._say(f"{step!r} of {item} has returned {results}, and {known} is stored")
        self.problems += self._ticks.problems()
        self.events["tick"] += self._ticks.n

    @staticmethod
    def _is_one(job: Job) -> bool:
        return not {"schedule", "args"} & job.payload.keys()

    def _compare_effects(self, item: str, job: Job) -> None:
        stored = {
            name
            for name, step in job.steps.items()
            if (step.kind, step.state) == ("commit", "done")
        }
        if stored != job.effects.keys():
            self._say(f"{item} has stored {stored}, and the effects {job.effects}")

    def _compare_ends(self, how: str, found: Iterable[ItemInfo]) -> None:
        ids = {info.id for info in found if info.outcome in (how, None)}
        expected = {item for item, job in self._jobs.items() if job.end == how}
        if ids != expected:
            self._say(f"{ids ^ expected} are {how} here or there")
