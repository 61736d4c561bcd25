"""The errors of jobs."""

from __future__ import annotations

from typing import Literal

from fdbqueue.errors import FdbqueueError


class AppNotBound(FdbqueueError):
    """The app has no database."""

    _template = (
        'the app has no database; write App("embedded:NAME"), or call `app.bind(...)` before '
        "the first push"
    )


class AppIsRemote(FdbqueueError):
    """A call that needs the database, of an app that pushes to a server."""

    url: str

    _template = (
        "the app pushes to {self.url}, and this call needs the database: workers, transactions, "
        "schedules and batches run where the database can be opened, as with "
        "`fdbq work --app MODULE:APP --db DATABASE`"
    )


class ServerRefused(FdbqueueError):
    """A server, or a proxy before it, that refuses a request.

    Attributes:
        status: The HTTP status; 401 and 403 for a token that is missing or has too few rights.
    """

    url: str
    status: int
    reason: str

    _template = "{self.url} answered {self.status}: {self.reason}"


class ServerUnavailable(FdbqueueError):
    """A server that has not answered a request, although it was repeated.

    Attributes:
        reason: Why the last attempt failed.
        is_unknown: Whether the request may have taken effect.
    """

    url: str
    reason: str
    seconds: float
    is_unknown: bool

    _template = "{self.url} has not answered for {self.seconds:g} s: {self.reason}; {self._effect}"

    @property
    def _effect(self) -> str:
        unknown = (
            "the call may or may not have taken effect; a push with a unique key can be repeated"
        )
        return unknown if self.is_unknown else "nothing was changed"


class AppNotFound(FdbqueueError):
    """Other processes cannot find, import or use the app."""

    reason: str

    _template = (
        "{self.reason}; other processes work for an app that is a variable of a module, on a "
        "database on disk or a cluster, and `app.work(processes=...)` stands below "
        "`if __name__ == '__main__':`"
    )


class DuplicateSchedule(FdbqueueError, ValueError):
    """Two schedules of a queue share a name."""

    name: str
    queue: str

    _template = (
        "the app declares a schedule named {self.name!r} for the queue {self.queue!r} already; "
        "give one of them another name: @app.cron(..., name=...)"
    )


class DuplicateJob(FdbqueueError, ValueError):
    """Two jobs of an app share a name or an alias."""

    name: str

    _template = (
        "the app has a job named {self.name!r} already; give one of them another name: "
        "@app.job(name=...)"
    )


class _OfParameter(FdbqueueError):
    job: str
    parameter: str | None
    reason: str
    kind: Literal["job", "step"] = "job"

    _template = "{self._place}: {self.reason}"

    @property
    def _place(self) -> str:
        names = {None: "the arguments", "return": "the result"}
        name = names.get(self.parameter, repr(self.parameter))
        return f"{name} of the {self.kind} {self.job}"


class InvalidArguments(_OfParameter, TypeError):
    """The function of a job does not take these arguments, or must not return this result.

    Attributes:
        job: The name of the job, or of the step.
        parameter: The parameter, `"return"` for the result, or `None` for all arguments.
    """


class UndecodableArguments(_OfParameter, ValueError):
    """Stored arguments, or a stored result, do not fit the function of a job."""

    _template = (
        "{self._place}, as stored: {self.reason}; another version of the function, or another "
        "client, has pushed it"
    )


class UnsupportedAnnotation(_OfParameter, TypeError):
    """An annotation of a job cannot be evaluated, or its values cannot be stored."""

    _template = "{self._place}: the annotation cannot be used: {self.reason}"
