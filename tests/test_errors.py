"""Errors can be pickled, so that processes of a pool can pass them on."""

from __future__ import annotations

import pickle

import pytest

from fdbqueue import errors, jobs
from fdbqueue.jobs import errors as job_errors
from fdbqueue.layout import jobs as layout_errors
from fdbqueue.queue import backup as backups
from fdbqueue.queue.backup import KeyExists
from fdbqueue.worker import outcomes as worker_errors

ALL = [
    errors.FDBError(1020),
    errors.StorageError("/path"),
    errors.NotADatabase("/path"),
    errors.CorruptDatabase("/path"),
    errors.FormatVersionMismatch("/path", 2, 1),
    errors.DiskFull("/path", "no space", "make some"),
    errors.ReadOnlyDatabase("/path"),
    errors.UnsafeDirectory("/path"),
    errors.FilesReplaced("/path", "fdbqueue.lock"),
    errors.LockTimeout("/path", 4711, True),
    errors.SyncFailed("/path"),
    errors.CommitUnknownResult("/path", "the disk did not confirm a write"),
    errors.DatabaseClosed(),
    errors.ClockOutOfRange(),
    errors.ClusterUnavailable("there is no cluster file x"),
    errors.LayoutVersionMismatch(b"\x15\x02", 1),
    errors.InvalidPriority(True, "an integer"),
    errors.InvalidValue({1}, "the value cannot be stored"),
    errors.PayloadTooLarge(2, 1),
    errors.PushTooLarge(3, 2, 1),
    errors.UndecodableItem("id", "why"),
    errors.UndecodableQueue("why"),
    errors.ForeignClaim("jobs", b"k"),
    errors.InvalidClaimToken("nonsense"),
    errors.ForeignKey(b"k"),
    errors.InvalidItemId("id"),
    errors.InvalidQueueName("", "it is empty"),
    errors.QueueExists("jobs"),
    errors.NoResult("id", "dead", "broken"),
    errors.NoResult("id", None),
    errors.NoResult("id", "discarded", "the customer has left"),
    errors.WrongState("id", "claimed"),
    errors.QueueFull(10, 3),
    errors.QueueNotFound("jbos", ["jobs"]),
    errors.QueueNotFound("x", [], ["jobs"]),
    errors.QueueRenamed("jobs"),
    errors.OptionsMismatch("priorities", int, (int, str)),
    errors.UnknownCodec("pickle", ["json"]),
    errors.QueueTooLargeToCheck(5),
    errors.QueueChanged("jobs"),
    errors.InvalidBackup(3, "it is cut off"),
    KeyExists(b"sold/1"),
    errors.RestoreRunning("jobs"),
    errors.IdempotencyKeyReused("k"),
    errors.LeaseLost("id"),
    worker_errors.HandlerExited(SystemExit(3)),
    errors.HandlerTooSlow(6.1),
    errors.TimedOut(60),
    errors.InvalidSchedule("nightly", "give one of cron and every"),
    errors.InvalidTask("cost", -1, "a finite number from 0"),
    layout_errors.BatchClosed("FBc"),
    layout_errors.BatchNotFound("FBc"),
    errors.InvalidLine(3, "it is not JSON", "f"),
    job_errors.AppNotBound(),
    job_errors.AppNotFound("a database in memory belongs to one process"),
    job_errors.DuplicateJob("shop.send"),
    job_errors.DuplicateSchedule("nightly", "reports"),
    worker_errors.DuplicateStep("charge"),
    worker_errors.StepChanged("charge", "step", "sleep"),
    jobs.StepFailed("charge", "OSError: no network"),
    jobs.WaitTimedOut("shipped", "order 7"),
    layout_errors.TooManySteps(10_000),
    jobs.ChildFailed("cover", "OSError: no disk", "FBf"),
    jobs.ChildNotPushed("cover", "FBf"),
    layout_errors.TooManyFollowing("FBf", 100),
    layout_errors.TooManyWaiting("open", 1_000),
    jobs.InvalidArguments("shop.send", "to", "Expected `str`, got `int`"),
    job_errors.UndecodableArguments("shop.send", None, "missing a required argument: 'to'"),
    job_errors.UnsupportedAnnotation("shop.send", "return", "name 'Fraction' is not defined"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_an_unpickled_error_equals_the_original(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


def test_every_error_class_has_a_pickling_test() -> None:
    names = {
        name
        for module in (errors, job_errors, layout_errors, backups, worker_errors)
        for name, kind in vars(module).items()
        if getattr(kind, "__module__", "") == module.__name__ and isinstance(kind, type)
        if issubclass(kind, errors.FdbqueueError) and name[0].isupper()
    }
    assert {type(error).__name__ for error in ALL} == names - {"FdbqueueError"}


def test_a_long_value_is_cut_in_the_sentence() -> None:
    error = errors.InvalidPriority("x" * 10_000, "an integer")
    assert str(error) == f"priority '{'x' * 99} (str) must be an integer"
    assert len(error.priority) == 10_000
