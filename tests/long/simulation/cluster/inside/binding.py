"""The official binding, with futures and databases of the simulator.

The installed libfdb_c of the server's own version works on the simulator's pointers, because it
calls them through virtual interfaces. No network is started.
"""

from __future__ import annotations

import random
from typing import Any

from tests.long.simulation.cluster.inside import greenlets, simulator

_API_VERSION = 730


def prepare(lost_answers: float) -> None:
    """Load the client library, and let threads wait for futures as greenlets.

    Args:
        lost_answers: The probability that a client does not learn the result of a commit.
    """
    import fdb  # only now: it keeps the locks and clocks that it finds

    fdb.api_version(_API_VERSION)
    impl: Any = fdb.impl
    impl.Future.block_until_ready = _block_until_ready
    del impl.Database.__del__  # the simulator owns it
    for kind in (impl.Future, impl.TransactionRead):
        _end_as_owner(kind)
    _lose_answers(impl.Transaction, lost_answers)


def open_database(pointer: int) -> Any:
    """Return a database of the binding, for a pointer from the simulator."""
    import fdb

    return fdb.impl.Database(pointer)


def _block_until_ready(future: Any) -> None:
    if not future.is_ready():
        gate = greenlets.Gate()
        future.on_ready(lambda _: gate.open())
        gate.wait()


class _LostAnswer:
    """A commit that reports an unknown result (1021), although it succeeded or was never sent."""

    def __init__(self, tr: Any, commit: Any) -> None:
        self._tr = tr
        self._commit = commit

    def wait(self) -> None:
        import fdb

        if self._commit is not None:
            self._commit.wait()
            if self._tr.get_committed_version() < 0:
                return  # it only reads, and such a commit has no answer to lose
        raise fdb.FDBError(1021)


def _lose_answers(kind: Any, probability: float) -> None:
    commit, chance = kind.commit, random.Random()

    def lossy(self: Any) -> Any:
        if chance.random() >= probability:
            return commit(self)
        return _LostAnswer(self, commit(self) if chance.random() < 0.5 else None)

    kind.commit = lossy


def _end_as_owner(kind: Any) -> None:
    """Let objects of a class end as acts of the simulated process that made them.

    Python may free them while another process runs. Their endpoints would then be removed from that
    one, and the simulator would crash when a late reply arrives.
    """
    begin, end = kind.__init__, kind.__del__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begin(self, *args, **kwargs)
        thread = greenlets.current()
        self._place = None if thread is None else thread.process.place

    def __del__(self: Any) -> None:  # noqa: N807
        place = getattr(self, "_place", None)
        if place is None:
            end(self)
        else:
            with simulator.as_process(place):
                end(self)

    kind.__init__, kind.__del__ = __init__, __del__
