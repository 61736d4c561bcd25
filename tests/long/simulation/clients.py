"""Clients of one queue that push items, claim them and end their claims, as a seed decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.errors import LeaseLost, QueueFull, WrongState
from tests.long.simulation.scheduler import Commit, SimulatedTransaction
from tests.long.simulation.simulated import Simulated

# Each call of a transaction takes a millisecond.
DELAYS = [0.0, 0.0, 0.02, 0.2]  # seconds
PAUSES = [5, 50, 200, 1_500]  # milliseconds
_ENDS = ("ack", "nack", "release", "extend")


@dataclass(eq=False)
class Call:
    """One call of a client: its arguments and its outcome.

    Attributes:
        kind: Its first word is what it does.
        claim: The claim that it ends or extends.
        n: How many items it pushes or takes.
        within: Among how many items or turns it chooses.
        lease: In seconds.
        delay: In seconds.
        dead: Whether a failed item becomes a dead letter.
        client: The number of the client.
        begun: When it began, in milliseconds.
        result: What it has returned.
        returned: Whether it has returned.
        refused: Whether it was refused, because of the state of the item or of the queue.
        failed: Whether it raised an error which guarantees that nothing took effect.
        lost: The id of the item in `LeaseLost`, if it raised that.
        transaction: Its last transaction.
    """

    kind: str
    claim: Claim[Any] | None = None
    n: int = 1
    within: int = 1
    lease: float = 30.0
    delay: float = 0.0
    dead: bool = False
    client: int = -1
    begun: int = 0
    result: Any = None
    returned: bool = False
    refused: bool = False
    failed: bool = False
    lost: str | None = None
    transaction: SimulatedTransaction | None = None

    @property
    def verb(self) -> str:
        """What it does."""
        return self.kind.split()[0]


_C = TypeVar("_C", bound=Call)


class Clients(Simulated, Generic[_C]):
    """A few clients on one queue. Subclasses define their calls.

    Attributes:
        is_quiet: Whether there is only one client, without faults.
        acts: The calls.
    """

    _kinds: dict[str, float]
    """How frequent each kind of call is."""
    _leases: list[float]  # seconds

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        self.is_quiet = seed % 5 == 0
        super().__init__(db, space, seed, self.is_quiet)
        self._space = space
        self._values = 0
        self._doing: dict[int | None, _C] = {}
        self.acts: list[_C] = []
        self.db.created = self._note_transaction

    def _open(self) -> PriorityQueue[Any]:
        """Return the queue as a new process opens it."""
        return PriorityQueue(self._space["queue"])

    def _note_transaction(self, transaction: SimulatedTransaction) -> None:
        act = self._doing.get(self.scheduler.client)
        if act is not None:
            act.transaction = transaction
            transaction.committed = lambda commit: self._note_commit(act, commit)

    def _note_commit(self, act: _C, commit: Commit) -> None:
        """Note a commit with writes, before any other client runs."""
        raise NotImplementedError

    def _run_clients(self, shortest: int, longest: int) -> None:
        """Run the clients, each of which makes that many calls."""
        n = 1 if self.is_quiet else self.random.randint(2, 4)
        self.scheduler.run([self._client(shortest, longest) for _ in range(n)])

    def _client(self, shortest: int, longest: int) -> Callable[[], None]:
        n = self.random.randint(shortest, longest)
        kinds = self.random.choices([*self._kinds], [*self._kinds.values()], k=n)

        def body() -> None:
            # Each process has its own queue object.
            queue, held = self._open(), list[Claim[Any]]()
            self._perform(queue, self._drawn("push", held))
            for kind in kinds:
                if kind == "forget":  # the process dies, and a new one starts
                    queue, held = self._open(), []
                elif kind == "pause":
                    self.scheduler.time += self.random.choice(PAUSES)
                    self.scheduler.step(kind)
                else:
                    act = self._drawn(kind, held)
                    self._perform(queue, act)
                    if act.verb == "claim" and act.result is not None:
                        held.append(act.result)

        return body

    def _drawn(self, kind: str, held: list[Claim[Any]]) -> _C:
        """Return a random call of this kind, or a claim if the call needs one and none is held."""
        draw = self.random
        if not held and kind in _ENDS:
            kind = "claim at once"
        act = self._new(kind)
        act.lease, act.delay = draw.choice(self._leases), draw.choice(DELAYS)
        if kind in _ENDS:
            act.claim = draw.choice(held)
            # Some claims are used again after their end; some are used only in part.
            if kind != "extend" and draw.random() < 0.7:
                held.remove(act.claim)
            if draw.random() < 0.3:
                act.claim = draw.choice(list(act.claim))
        return act

    def _new(self, kind: str) -> _C:
        """Return a call of this kind."""
        raise NotImplementedError

    def _new_values(self, n: int) -> list[str]:
        """Return values for new items."""
        self._values += n
        return [f"item {value}" for value in range(self._values - n, self._values)]

    def _perform(self, queue: PriorityQueue[Any], act: _C) -> None:
        """Perform a call and record its outcome."""
        client = self.scheduler.client
        act.client = -1 if client is None else client
        act.begun = self.scheduler.time
        self.acts.append(act)
        self._doing[client] = act
        try:
            act.result = self._result(queue, act)
        except LeaseLost as error:
            act.lost = error.item_id
        except (QueueFull, WrongState):
            act.refused = True
        except fdbqueue.error_classes() as error:
            if error.code not in (1021, 1031):
                raise
            act.failed = error.code == 1031  # 1031 guarantees that nothing took effect
        else:
            act.returned = True
        self.scheduler.note(str(act))

    def _result(self, queue: PriorityQueue[Any], act: _C) -> Any:
        """Make a call; return what it returns."""
        db, claim = self.db, act.claim
        if act.kind == "claim at once":
            return queue.claim(db, lease=act.lease, n=act.n, within=act.within)
        if claim is None or act.kind == "ack":

            @fdbqueue.transactional(receipts=self._space["receipts"])
            def inside(tr: Any) -> Any:
                return self._inside(queue, tr, act)

            return inside(db)
        if act.kind == "nack":
            return queue.nack(db, claim, delay=act.delay, dead=act.dead)
        if act.kind == "extend":
            return queue.extend(db, claim, act.lease)
        return queue.release(db, claim)

    def _inside(self, queue: PriorityQueue[Any], tr: Any, act: _C) -> Any:
        """Make a call in a transaction."""
        raise NotImplementedError
