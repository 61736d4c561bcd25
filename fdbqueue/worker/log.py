"""The logs of workers, whose filters and handlers are the program's and may raise anything."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class Log(_Adapter):
    """A logger that raises nothing: no end of a job depends on its line in a log.

    Standard error gets what the filters and handlers of the logger raise.

    >>> Log("fdbqueue.worker").warning("%s has ended", "a job")
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a line."""
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **options)
        except BaseException:
            with suppress(BaseException):  # standard error may be closed
                print(f"cannot log to {self.logger.name}: {msg}", file=sys.stderr)
                traceback.print_exc()
