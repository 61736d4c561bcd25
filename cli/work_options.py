"""Options of `fdbq work` for its queues, its log and its health checks."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime, timezone

import click

from fdbqueue.queue.arguments import validate_address

from .common import escaped_json

_OF_A_JOB = ("queue", "job", "id", "attempt", "outcome", "seconds")
"""Attributes of the log record of the end of a job."""


def _address(text: str) -> str:
    """Return a port of the loopback interface, or a host and its port."""
    try:
        validate_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


def _queue_number(text: str) -> tuple[str, float]:
    """Return the name of a queue and a number, such as `images=2`."""
    queue, _, number = text.rpartition("=")
    if not queue:
        raise click.BadParameter(f"{text!r} does not name a queue, as in images=2")
    try:
        return queue, int(number) if number.isdigit() else float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} does not end with a number, as in images=2") from None


def queues_and_weights(texts: Sequence[str]) -> tuple[list[str], dict[str, float] | None]:
    """Return the queues that the command line names, and their weights if it gives any.

    Example:
        >>> queues_and_weights(["mail", "images"]), queues_and_weights(["mail=3", "images"])
        ((['mail', 'images'], None), (['mail', 'images'], {'mail': 3}))
    """
    weights: dict[str, float] = {}
    queues: list[str] = []
    for text in texts:
        queue = text
        if "=" in text:
            queue, weights[queue] = _queue_number(text)
        queues.append(queue)
    return queues, weights or None


class JsonLines(logging.Formatter):
    """Log records as JSON, one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _OF_A_JOB if getattr(record, name, None)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(line))


at_most_option = click.option(
    "--at-most",
    metavar="QUEUE=N",
    multiple=True,
    type=_queue_number,
    help="With --app: run at most N jobs of this queue at a time. Repeatable.",
)
health_option = click.option(
    "--health-port",
    "health",
    metavar="[HOST:]PORT",
    type=_address,
    help="Answer /live and /ready on this port; without a host, on 127.0.0.1.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on standard error; json writes an object a line.",
)


def set_log_format(name: str) -> None:
    """Use a format for the log on standard error, which has begun."""
    if name == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
