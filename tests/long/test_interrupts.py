"""Commands that a signal interrupts at any moment end soon, with one line, and lose no item."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import fdbqueue
from tests.support.forked import Forked
from tests.support.shell import Shell, has_handlers
from tests.support.started import Process, fdbq, kill_started, start, started
from tests.support.waiting import MAX_WAIT, wait_until

__all__ = ["fdbq", "kill_started"]  # fixtures

INTERRUPTED = "fdbq: interrupted; committed changes are kept\n"
TRIES = int(os.environ.get("FDBQ_INTERRUPTS", "100"))
"""Number of commands that `test_commands_end_soon_at_any_moment` interrupts; 10,000 by hand.

If there are more, most are forked with their modules loaded, which starts them faster.
"""

SOON = 2.0  # seconds


class Interrupts:
    """Interrupts commands at random moments, and accounts for what they popped and printed."""

    def __init__(self, fdbq: Shell, name: str, db: Any, rng: random.Random) -> None:
        self._fdbq, self._db, self._rng = fdbq, db, rng
        self._items = fdbqueue.PriorityQueue.named(db, f"{name}items")
        self._tasks = fdbqueue.TaskQueue.named(db, f"{name}tasks")
        self._pushed = self._tasks_pushed = 0
        self._printed: list[Any] = []
        self._tasks_printed: list[Any] = []
        self.outcomes: Counter[str] = Counter()
        self.slow: list[str] = []
        self.failures: list[str] = []
        self.longest = 0.0
        (fdbq.path / "lines.jsonl").write_text("".join(f"{n}\n" for n in range(3000)))
        fdbq.output("import", f"{name}many", "lines.jsonl")
        self._push_task()
        items, many, tasks, work = (f"{name}{each}" for each in ("items", "many", "tasks", "work"))
        self._commands = [
            ("pop", items, "-n", "3"),
            ("pop", items, "--wait", "5"),
            ("pop", f"{name}never-pushed", "--wait", "5"),
            ("push", work, "1"),
            ("import", f"{name}copy", "lines.jsonl"),
            ("export", many, "out.jsonl"),
            ("export", many),
            ("items", many),
            ("peek", many),
            ("ls",),
            ("counts", many),
            ("check", many),
            ("limit", many),
            ("info",),
            ("items", many, "--state", "dead"),
            ("task", "pop", tasks),
            ("task", "push", f"{name}other", "1"),
            ("task", "stats", tasks),
            ("work", work, "--exec", "true"),
            ("work", work, "--exec", "true", "--drain"),
            ("top", "--json", "--interval", "0.1"),
            ("serve", "--port", "0"),
            ("--help",),
        ]
        # Signals are sent within the time that a command takes, with or without loaded modules.
        self._seconds(True, many)  # the first forked command loads the modules
        self._spans = {is_forked: self._seconds(is_forked, many) for is_forked in (False, True)}

    def interrupt_one(self) -> None:
        rng = self._rng
        command = rng.choice(self._commands)
        second = rng.choice([None, rng.random() * 0.02, rng.random() * 0.5])
        is_pop, is_task_pop = command[0] == "pop", command[:2] == ("task", "pop")
        if is_pop:
            self._items.push_many(self._db, [*range(self._pushed, self._pushed + 3)])
            self._pushed += 3
        elif is_task_pop:
            self._push_task()
        is_forked = TRIES > 100 and rng.random() < 0.9
        moment = self._spans[is_forked] * rng.random() ** 2
        description = f"{' '.join(command)}, interrupted after {moment:.3f} s, second {second}"
        process = self._start(is_forked, command)
        # A forked process ignores SIGINT until `main` runs.
        if sys.platform == "linux" and (is_forked or rng.random() < 0.8):
            wait_until(lambda: has_handlers(process))
        time.sleep(moment)
        is_handled = sys.platform != "linux" or has_handlers(process)
        process.send_signal(signal.SIGINT)
        if second is not None:
            time.sleep(second)
            process.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            output, errors = process.communicate(timeout=MAX_WAIT)
        except (subprocess.TimeoutExpired, TimeoutError):
            if is_forked:
                process.send_signal(signal.SIGTRAP)
                time.sleep(1)
            process.kill()
            output, errors = process.communicate()
            self.failures.append(f"{description}: hung, signals handled: {is_handled}, {errors}")
        seconds = time.monotonic() - began
        self.longest = max(self.longest, seconds)
        if seconds > SOON:
            self.slow.append(f"{description}: {seconds:.2f} s")
        if is_pop:
            self._printed += self._lines(output)
        elif is_task_pop:
            self._tasks_printed += self._lines(output)
        assert process.returncode is not None
        started.clear()
        outcome = self._outcome(process.returncode, errors, is_handled)
        self.outcomes[outcome or "wrong"] += 1
        if outcome is None:
            self.failures.append(f"{description}: exit code {process.returncode}, {errors!r}")

    def _push_task(self) -> None:
        self._tasks.push(self._db, payload=self._tasks_pushed)
        self._tasks_pushed += 1

    def _seconds(self, is_forked: bool, queue: str) -> float:
        began = time.monotonic()
        self._start(is_forked, ("counts", queue)).communicate(timeout=MAX_WAIT)
        return time.monotonic() - began

    def _start(self, is_forked: bool, command: tuple[str, ...]) -> Process | Forked:
        if is_forked:
            return Forked(self._fdbq.path, self._fdbq.environment, *command)
        return start(self._fdbq, *command)

    @staticmethod
    def _lines(output: str) -> list[Any]:
        return [json.loads(line) for line in output.splitlines(True) if line.endswith("\n")]

    @staticmethod
    def _outcome(code: int, errors: str, is_handled: bool) -> str | None:
        notices = (
            *("serving on", "stopping;", "waiting until there is one"),
            *(" working on ", " done, attempt "),  # a worker may have drained its queue
        )
        lines = [
            line
            for line in errors.splitlines(True)
            if not any(notice in line for notice in notices)
        ]
        if not is_handled:
            return "as Python started"
        if code == 130 and lines == [INTERRUPTED]:
            return "interrupted, one line"
        if code == -signal.SIGINT and not lines:  # a worker's second one, or as Python exited
            return "ended by the signal"
        return "done" if code in (0, 1) and not lines else None

    def check_accounts(self) -> None:
        left = [item.value for item in self._items.items(self._db)]
        assert sorted(self._printed + left) == list(range(self._pushed))
        left = [task.payload for task in self._tasks.get_all_tasks(self._db)]
        assert sorted(self._tasks_printed + left) == list(range(self._tasks_pushed))
        assert not list(self._fdbq.path.glob(".out.jsonl*"))
        assert self._fdbq("check").returncode == 0


def test_commands_end_soon_at_any_moment(
    fdbq: Shell, name: str, db: Any, rng: random.Random
) -> None:
    interrupts = Interrupts(fdbq, name, db, rng)
    for number in range(1, TRIES + 1):
        interrupts.interrupt_one()
        if number % 500 == 0 or number == TRIES:
            slow, failures = len(interrupts.slow), len(interrupts.failures)
            print(
                f"{number:,} tries: {dict(interrupts.outcomes)}; longest {interrupts.longest:.2f} "
                f"s, {slow} over {SOON} s, {failures} wrong",
                flush=True,
            )
    print(*interrupts.slow, sep="\n")
    assert interrupts.failures == []
    interrupts.check_accounts()
