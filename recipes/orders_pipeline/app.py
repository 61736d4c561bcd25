"""The queues with their limits, and what each worker process opens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import fdbqueue
from fdbqueue.options import GroupOptions
from recipes.orders_pipeline.bank import Bank, MailServer

app = fdbqueue.App()  # the web application and `fdbq` bind it to $FDBQ_DB

# A customer with many orders has at most four of them running at a time.
app.queue("orders", max_size=100_000, keep="7d", groups=GroupOptions(concurrency=4))
# What our mail provider allows.
app.queue("mail", rate=(200, "1s"), keep="1d")
app.queue("reports", concurrency=4, keep="30d")


@dataclass
class State:
    """The resources that the jobs of a worker process share: `Context[State].state`."""

    bank: Bank
    mails: MailServer


@app.lifespan
def resources() -> Iterator[State]:
    """Open what is costly to open, once in each process; a job does not wait for it."""
    bank = Bank("bank.sqlite3")
    yield State(bank, MailServer("mails.jsonl"))
    bank.close()
