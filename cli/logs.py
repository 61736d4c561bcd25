"""How commands write the log on standard error."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from .output import escaped, escaped_json

_OF_A_JOB = ("queue", "job", "id", "attempt", "outcome", "seconds")
"""Attributes of the log record of a job's end."""


class EscapedLog(logging.Formatter):
    """Log records as text, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's lines."""
        return escaped(super().format(record))


class JsonLines(logging.Formatter):
    """Log records as JSON, one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        time = datetime.fromtimestamp(record.created, UTC)
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


def log_to_stderr(level: int, *, as_json: bool = False) -> None:
    """Log to standard error from a level on, as text or lines of JSON."""
    handler = logging.StreamHandler()
    text = EscapedLog("%(asctime)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(handlers=[handler], level=level)
