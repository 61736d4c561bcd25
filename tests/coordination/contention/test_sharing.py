"""Processes of one host share transactions, and each request takes effect exactly once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.coordination.contention import following, leading, sockets
from fdbqueue.coordination.contention.messages import Signal
from fdbqueue.errors import (
    CommitUnknownResult,
    OptionsMismatch,
    QueueFull,
    SyncFailed,
    UndecodableItem,
)
from fdbqueue.layout.values import decode_receipt
from fdbqueue.testing import FaultyDatabase
from tests.coordination.contention.processes import FOREVER, TIMEOUT, Process
from tests.support.failing_disk import Disk
from tests.support.keys import layout_of

ROUNDS = 40


def on_send(
    monkeypatch: pytest.MonkeyPatch, signal: Signal, action: Callable[[sockets.LeadSocket], None]
) -> None:
    """Do something in place of sending an answer of one type."""
    send = sockets.LeadSocket.send

    def instead(lead: sockets.LeadSocket, message: bytes, receiver: Any) -> None:
        if message.startswith(signal.value):
            action(lead)
        else:
            send(lead, message, receiver)

    monkeypatch.setattr(sockets.LeadSocket, "send", instead)


def test_the_leader_performs_the_requests_of_others_in_order(
    leader: Process, follower: Process
) -> None:
    popped = follower.ask(follower.pop)
    assert leader.pop() == 0
    assert popped.result(TIMEOUT) == 1
    pushed = follower.ask(lambda: follower.push("new", priority=-1))
    leader.push("newer", priority=-1)
    pushed.result(TIMEOUT)
    assert leader.left() == ["newer", "new", *range(2, 10)]


def test_one_transaction_performs_the_requests_of_all(
    leader: Process, new_process: Callable[..., Process]
) -> None:
    others = [new_process() for _ in range(5)]
    popped = [each.ask(each.pop) for each in others]
    assert leader.pop() == 0
    receipts = leader.db.get_range_startswith(layout_of(leader.queue).receipts.key())
    outcomes = [decode_receipt(row.value)[1] for row in receipts]
    assert len([outcome for outcome in outcomes if isinstance(outcome, bytes)]) == 5
    assert sorted(each.result(TIMEOUT) for each in popped) == [1, 2, 3, 4, 5]


def test_pops_of_another_process_do_not_wait_for_a_leader_that_only_pushes(
    leader: Process, follower: Process
) -> None:
    popped = follower.ask(follower.pop)
    leader.push(10)  # perhaps it pops next
    leader.push(11)
    assert popped.result(TIMEOUT) == 0


def test_a_request_takes_effect_once_if_its_leader_dies_after_the_commit(
    leader: Process, follower: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_send(monkeypatch, Signal.OUTCOME, sockets.LeadSocket.close)
    popped = follower.ask(follower.pop)
    assert leader.pop() == 0
    assert popped.result(TIMEOUT) == 1
    assert follower.left() == [*range(2, 10)]


def test_a_process_performs_a_request_itself_if_its_leader_dies_before(
    leader: Process, follower: Process
) -> None:
    popped = follower.ask(follower.pop)
    leader.host.close()
    assert popped.result(TIMEOUT) == 0


def test_a_process_that_waited_in_vain_becomes_the_leader(
    leader: Process, follower: Process
) -> None:
    popped = follower.ask(follower.pop)
    leader.end()
    popped.result(TIMEOUT)
    assert follower.pop() == 1
    assert follower.leads


@pytest.mark.parametrize("stops", ["before its deadline was checked", "before it commits"])
def test_a_leader_that_is_slow_does_not_repeat_what_others_have_done(
    leader: Process, follower: Process, stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stopped, continues = threading.Event(), threading.Event()
    settle = leading.SharedBatch.settle

    def stop() -> None:
        if not is_stopped.is_set():
            is_stopped.set()
            assert continues.wait(TIMEOUT)

    def settle_slowly(batch: leading.SharedBatch, tr: Any, results: Sequence[Any]) -> None:
        if stops == "before its deadline was checked":
            stop()
        settle(batch, tr, results)
        stop()

    monkeypatch.setattr(leading.SharedBatch, "settle", settle_slowly)
    monkeypatch.setattr(following, "_DEADLINE", 2.0)
    asked = follower.ask(follower.pop)
    own = leader.ask_alone(leader.pop)
    assert is_stopped.wait(TIMEOUT)
    assert asked.result(TIMEOUT) == 0
    continues.set()
    assert own.result(TIMEOUT) == 1
    assert leader.left() == [*range(2, 10)]


def test_an_idle_leader_passes_the_lead_on(
    follower: Process, leader: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.end()
    monkeypatch.setattr(leading, "IDLE_CHECK", 0.001)
    monkeypatch.setattr(leading, "_IDLE_WAIT", FOREVER)
    assert leader.pop() == 0
    assert leader.leads
    assert follower.ask(follower.pop).result(TIMEOUT) == 1
    assert follower.leads
    assert not leader.leads


def test_a_leader_passes_the_lead_on_after_its_turn(
    leader: Process, new_process: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have asked it meanwhile goes to the next leader."""
    others = [new_process() for _ in range(3)]
    asked = [each.ask(each.pop) for each in others]
    monkeypatch.setattr(leading, "IDLE_CHECK", 0.001)
    leader.turn._turn_ends = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(leading.Leader, "take", lambda *_: [])
        assert leader.pop() == 0
    assert not leader.leads
    assert sorted(each.result(TIMEOUT) for each in asked) == [1, 2, 3]


def test_an_interrupted_leader_performs_no_request_twice(
    leader: Process, new_process: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it has sent back are performed by the next leader."""
    others = [new_process() for _ in range(2)]
    asked = [each.ask(each.pop) for each in others]

    def interrupt(_: sockets.LeadSocket) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(leading, "IDLE_CHECK", 0.001)
    leader.turn._turn_ends = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(leading.Leader, "take", lambda *_: [])
        on_send(patch, Signal.AGAIN, interrupt)
        with pytest.raises(KeyboardInterrupt):
            leader.pop()  # which has taken the first item
    leader.host.close()
    assert sorted(each.result(TIMEOUT) for each in asked) == [1, 2]
    assert others[0].left() == [*range(3, 10)]


def test_a_large_item_is_popped_by_the_process_itself(leader: Process, follower: Process) -> None:
    for size in (50_000, 70_000, 200_000):
        leader.push("x" * size, priority=-1)
        popped = follower.ask(follower.pop)
        leader.push(10)
        leader.push(11)
        assert len(popped.result(TIMEOUT)) == size
        follower.host.process._rests_until = 0.0
    assert leader.left()[:10] == [*range(10)]


def test_an_item_that_cannot_be_decoded_stays_in_the_queue(
    new_process: Callable[..., Process],
) -> None:
    class Text:
        """A codec of which another process has a release that reads nothing."""

        def __init__(self, is_broken: bool) -> None:
            self._is_broken = is_broken

        def encode(self, value: str) -> bytes:
            return value.encode()

        def decode(self, payload: bytes) -> str:
            if self._is_broken:
                raise ValueError("broken")
            return payload.decode()

    leader, follower = new_process(codec=Text(False)), new_process(codec=Text(True))
    for value in ("a", "b"):
        leader.push(value)
    failed = follower.ask(follower.pop)
    assert leader.pop() == "a"
    with pytest.raises(UndecodableItem):
        failed.result(TIMEOUT)
    assert leader.left() == ["b"]


def test_an_interrupted_pop_returns_its_item(
    leader: Process, follower: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_done = threading.Event()

    def interrupt(socket: sockets.FollowerSocket, seconds: float) -> Any:
        assert is_done.wait(TIMEOUT)
        raise KeyboardInterrupt

    monkeypatch.setattr(sockets.FollowerSocket, "receive", interrupt)
    monkeypatch.setattr(following, "_DEADLINE", 1.0)
    popped = follower.ask(follower.pop)
    assert leader.pop() == 0
    is_done.set()
    with pytest.raises(KeyboardInterrupt):
        popped.result(TIMEOUT)
    assert leader.left() == [*range(1, 10)]


def test_a_leader_that_reads_a_request_late_pops_nothing_for_an_interrupted_call(
    leader: Process, follower: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(socket: sockets.FollowerSocket, seconds: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sockets.FollowerSocket, "receive", interrupt)
    monkeypatch.setattr(following, "_DEADLINE", 0.2)
    with pytest.raises(KeyboardInterrupt):
        follower.ask(follower.pop).result(TIMEOUT)
    assert leader.pop() == 0
    assert leader.left() == [*range(1, 10)]


def test_a_queue_that_was_bounded_meanwhile_is_full_for_the_process_that_pushes(
    new_process: Callable[..., Process],
) -> None:
    leader, follower = new_process(), new_process()
    leader.push("first")
    leader.queue.configure(leader.db, max_size=1)
    failed = follower.ask(lambda: follower.push("second"))
    leader.pop()
    leader.push("third")
    with pytest.raises(QueueFull):
        failed.result(TIMEOUT)
    assert leader.left() == ["third"]


def test_processes_with_other_options_do_not_share(new_process: Callable[..., Process]) -> None:
    """The leader could not check the options of the others."""
    leader, other = new_process(), new_process(codec="bytes")
    leader.push("text")
    assert leader.leads
    with pytest.raises(OptionsMismatch):
        other.push(b"bytes")
    assert leader.left() == ["text"]


def test_unknown_results_of_the_leader_lose_and_double_nothing(
    new_process: Callable[..., Process], engine: str, rng: random.Random
) -> None:
    if engine == "cluster":
        pytest.skip("a database with faults is not shared on a cluster")

    def faulty(db: Any) -> FaultyDatabase:
        return FaultyDatabase(db, before=0.2, after=0.4, seed=rng.randrange(2**32))

    leader, follower = new_process(faulty), new_process()
    popped: list[Any] = []
    for number in range(ROUNDS):
        leader.push(number)
        leader.push(-1 - number)
        asked = follower.ask(follower.pop)
        popped += [leader.pop(), asked.result(TIMEOUT)]
    assert sorted(popped) == [*range(-ROUNDS, ROUNDS)]
    assert leader.db.lost > ROUNDS


def test_on_a_broken_disk_no_process_has_a_result(
    leader: Process, follower: Process, engine: str, disk: Disk
) -> None:
    if engine != "embedded":
        pytest.skip("only the embedded engine on disk waits for syncs of this process")
    popped = follower.ask(follower.pop)
    disk.breaks()
    for _ in range(2):  # the first one may only have read
        with pytest.raises((CommitUnknownResult, SyncFailed)):
            leader.pop()
    leader.host.close()  # so the follower looks for its results itself
    with pytest.raises(fdbqueue.FDBError, match="1021"):
        popped.result(TIMEOUT)


def test_one_timeout_does_not_make_the_result_of_a_request_unknown(
    leader: Process, new_process: Callable[..., Process], engine: str
) -> None:
    if engine == "cluster":
        pytest.skip("a database with faults is not shared on a cluster")
    follower = new_process(FaultyDatabase)
    popped = follower.ask(follower.pop)

    def time_out(_: object) -> None:
        del follower.db.commit
        raise fdbqueue.FDBError(1031)

    follower.db.commit = time_out
    leader.host.close()  # so the follower looks for its results itself
    assert popped.result(TIMEOUT) == 0
    assert "commit" not in vars(follower.db)


def test_a_forked_child_does_not_keep_the_lead(leader: Process, engine: str) -> None:
    if engine == "cluster":
        pytest.skip("a process with a cluster open cannot be forked")
    name = leader.host._name
    assert name is not None
    begin, ended = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(begin[1], b"x")
        os.read(ended[0], 1)
        os._exit(0)
    os.read(begin[0], 1)
    leader.end()
    taken = sockets.meet(name)
    os.write(ended[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*begin, *ended):
        os.close(descriptor)
    assert isinstance(taken, sockets.LeadSocket)
    taken.close()


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_directory_of_others_is_not_used(
    new_process: Callable[..., Process], sockets_directory: Path, mode: int
) -> None:
    sockets_directory.mkdir()
    sockets_directory.chmod(mode)
    process = new_process()
    process.push("alone")
    assert not process.leads
    sockets_directory.chmod(0o700)
    assert [*sockets_directory.iterdir()] == []
    assert process.left() == ["alone"]


def test_a_killed_process_leaves_no_socket_behind(leader: Process, follower: Process) -> None:
    popped = follower.ask(follower.pop)
    assert follower.host._follower._socket is not None
    left = Path(follower.host._follower._socket._socket.getsockname())
    leader.pop()
    popped.result(TIMEOUT)
    leader.host.close()
    follower.host._follower._socket._socket.close()  # as the system does
    assert left.exists()
    assert leader.pop() == 2
    assert leader.leads
    assert not left.exists()


def test_processes_that_end_leave_no_sockets_behind(
    leader: Process, follower: Process, sockets_directory: Path
) -> None:
    popped = follower.ask(follower.pop)
    leader.pop()
    popped.result(TIMEOUT)
    assert len([*sockets_directory.iterdir()]) == 3
    follower.end()
    leader.end()
    assert [each.name for each in sockets_directory.iterdir()] == ["lock"]


ENDS = """
import os, sys
import fdbqueue
from fdbqueue.coordination.contention import leading, sharing, sockets
sharing.Host.is_contended = lambda *_: True
leading.IDLE_CHECK = 1e6
kept = []
for number in range(3):
    db = fdbqueue.open(f"{sys.argv[1]}/{number}")
    jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    jobs.push(db, "job")
    host = jobs._store.contention.host(db)
    assert host.leads
    kept += [db, jobs, sockets.meet(host._name)]
    assert isinstance(kept[-1], sockets.FollowerSocket)
directory = sockets._private_directory()
if os.fork() == 0:
    sys.exit()  # as a program does: what it inherited belongs to its parent
os.wait()
print(len([*directory.iterdir()]))
"""


def test_a_program_that_ends_without_closing_leaves_no_sockets_behind(
    sockets_directory: Path, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", ENDS, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(sockets_directory.parent)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["7"], "")  # the child has removed none
    assert [each.name for each in sockets_directory.iterdir()] == ["lock"]


def test_a_message_that_cannot_be_read_is_answered(leader: Process, caplog: Any) -> None:
    assert leader.host._name is not None
    follower = sockets.meet(leader.host._name)
    assert isinstance(follower, sockets.FollowerSocket)
    follower.send(Signal.REQUEST.about(7) + b"nonsense", FOREVER)
    assert leader.pop() == 0
    assert follower.receive(TIMEOUT) == (Signal.UNKNOWN.about(7), None)
    assert "could not be read" in caplog.text
    follower.close()
