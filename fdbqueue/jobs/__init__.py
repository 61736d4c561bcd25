"""Jobs: functions that a worker calls later, declared with `App.job`.

A job is an item of an ordinary priority queue, with the value `{"job": name, "args": [...],
"kwargs": {...}}`, which every client can push.
"""

from fdbqueue.jobs.app import App
from fdbqueue.jobs.errors import (
    InvalidArguments,
    ServerRefused,
    ServerUnavailable,
)
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.job import Job
from fdbqueue.jobs.retry import Retry
from fdbqueue.queue.steps import JobCancelled
from fdbqueue.worker.context import Context
from fdbqueue.worker.outcomes import (
    ChildFailed,
    ChildNotPushed,
    Dead,
    Discard,
    RetryIn,
    Snooze,
    StepFailed,
    WaitTimedOut,
)

__all__ = [
    "App",
    "ChildFailed",
    "ChildNotPushed",
    "Context",
    "Dead",
    "Discard",
    "Handle",
    "InvalidArguments",
    "Job",
    "JobCancelled",
    "Retry",
    "RetryIn",
    "ServerRefused",
    "ServerUnavailable",
    "Snooze",
    "StepFailed",
    "WaitTimedOut",
]
