"""The agents of a task queue within a transaction: groups whose items have no turns."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.groups.groups import Groups
from fdbqueue.operations.groups.listing import read_settings
from fdbqueue.operations.groups.starts import Starts
from fdbqueue.operations.options import StoredOptions
from fdbqueue.types import ReadTransaction, Transaction


class Agents:
    """The agents of one task queue. Each method is part of a transaction.

    An agent that is paused, or has started as many tasks as its rate allows, is held as a group is.
    One that has as many tasks claimed as it may is not: claims see that by its slots (`Slots`).
    """

    def __init__(self, layout: Layout, groups: Groups, options: StoredOptions) -> None:
        self._layout = layout
        self._options = options
        self._groups = groups
        self._starts = Starts(layout)

    def limits_of(
        self, reads: ReadTransaction, agents: Iterable[str]
    ) -> list[tuple[int | None, int | None]]:
        """Return the limits of some agents.

        Returns:
            For each, how many of its tasks may be claimed at a time, and how many more may be
            started now; `None` for no limit of its own.
        """
        found: list[tuple[int | None, int | None]] = []
        for agent in agents:
            settings = read_settings(reads, self._layout, agent)
            startable: int | None = None
            if settings.rate is not None:
                startable = max(0, settings.rate[0] - self._starts.number(reads, agent))
            found.append((settings.concurrency, 0 if settings.paused else startable))
        return found

    def held(self, reads: ReadTransaction) -> set[str]:
        """Return the agents that are held."""
        space = self._layout.held_groups
        rows = reads.get_range(*self._layout.range_of(space))
        return {self._layout.unpack_entry_key(space, row.key) for row in rows}

    def note_started(self, tr: Transaction, now: int, agent: str, n: int) -> None:
        """Note that `n` tasks of an agent were started; hold it at its rate.

        The transaction conflicts with changes of the settings of the agent.
        """
        layout, settings = self._layout, read_settings(tr, self._layout, agent)
        if settings.rate is None:
            return
        self._options.note_rate_of_group()
        room, due = self._starts.room(tr, now, agent, settings.rate, n)
        self._starts.add(tr, now, {agent: n})
        if room <= n:
            before = tr[layout.group_key(layout.held_groups, agent)].value
            if before:
                reference = layout.group_reference(agent)
                tr.clear(layout.timer_key(layout.dues, decode_count(before), reference))
            self._groups.set_held(tr, agent, due)
