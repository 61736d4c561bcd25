"""The command `fdbq signal`."""

from __future__ import annotations

from fdbqueue import existing_queue
from fdbqueue.queue.steps import KEPT
from fdbqueue.types import Database, Duration

from .arguments import parse_value
from .command import QUEUE, command
from .opening import item_queue
from .options import argument
from .output import count_noun, report


@command(QUEUE, argument("name"), argument("value", default="null", required=False))
def signal(
    db: Database, queue: str, name: str, value: str, *, key: str = "", keep: Duration = KEPT
) -> None:
    """Send the signal NAME with a JSON VALUE to the jobs of QUEUE that wait for it.

    Jobs wait with `context.wait`. A job that waits for the signal later continues at once.

    \b
    Example:
      fdbq signal orders shipped '{"tracking": "1Z999"}' --key "order 7"

    Options:
        key: Key of the signal, usually the job's id.
        keep: Time for which jobs may still wait for it.
    """
    steps = item_queue(existing_queue(db, queue), queue).steps
    n = steps.signal(db, name, key=key, value=parse_value(value), keep=keep)
    report({"signalled": n}, f"{count_noun(n, 'job')} waited for it")
