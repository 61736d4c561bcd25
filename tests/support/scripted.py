"""A database whose commits fail as a script says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import fdbqueue
from fdbqueue.testing import FaultyDatabase, FaultyTransaction

DEAD = 1025
"""The error of every later call, too."""


@dataclass(frozen=True)
class Fault:
    """A fault of one commit: whether it takes effect, and the error that the client receives.

    `when` is the moment of the error: `"before"` (the commit never takes effect), `"after"` (it has
    taken effect), `"late"` (it takes effect just before the client's next commit) or `"last"` (it
    takes effect at the end of the test).
    """

    when: str
    code: int


Script: TypeAlias = Mapping[int, Fault]
"""The faults of a process by the number of the commit, from 1."""


class ScriptedDatabase(FaultyDatabase):
    """A database with the faults of a script, and a hook before each commit."""

    def __init__(
        self, db: Any, script: Script, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(db)
        self.meanwhile = meanwhile
        """What happens after each fault, before the client receives the error."""
        self.script = dict(script)
        self.before_commit: dict[int, Callable[[], object]] = {}
        self.commits = 0
        """The number of commits that the process has tried."""
        self.is_dead = False
        self._guard = threading.Condition()
        self._late: list[tuple[str, Any]] = []

    def create_transaction(self) -> FaultyTransaction:
        self.before_call("create_transaction")
        return super().create_transaction()

    def before_call(self, name: str) -> None:
        if self.is_dead:
            raise fdbqueue.FDBError(DEAD)

    def commit(self, transaction: FaultyTransaction) -> None:
        with self._guard:
            self.commits += 1
            number = self.commits
            self._guard.notify_all()
        self.deliver("late")
        self.before_commit.get(number, lambda: None)()
        fault = self.script.get(number)
        if fault is None:
            transaction.wrapped.commit().wait()
            return
        if fault.when == "after":
            transaction.wrapped.commit().wait()
        elif fault.when in ("late", "last"):
            transaction.wrapped.get_read_version().wait()  # as a commit in flight has one
            self._late.append((fault.when, transaction.wrapped))
            transaction.wrapped = self.db.create_transaction()
        self.is_dead = fault.code == DEAD
        self.meanwhile()
        raise fdbqueue.FDBError(fault.code)

    def wait_for_commits(self, commits: int) -> bool:
        """Wait until the process, or a thread of it, has tried this many commits; else be false."""
        with self._guard:
            return self._guard.wait_for(lambda: self.commits >= commits, 60)

    def deliver(self, *when: str) -> int:
        """Apply delayed commits of these kinds; return how many did not conflict."""
        with self._guard:
            arriving = [transaction for kind, transaction in self._late if kind in when]
            self._late = [entry for entry in self._late if entry[0] not in when]
        applied = 0
        for transaction in arriving:
            try:
                transaction.commit().wait()
                applied += 1
            except fdbqueue.error_classes() as error:
                if error.code != 1020:
                    raise
        return applied
