"""A fair share of a limited service for each customer.

The queue has the rate of the mail provider. Each customer is a group, and groups take turns.
"""

from __future__ import annotations

from fdbqueue.jobs import Context, Retry
from recipes.orders_pipeline.app import State, app


def receiver_of(to: str, text: str) -> str:
    """Return the group of a mail."""
    return to


@app.job(queue="mail", group=receiver_of, retry=Retry(on=ConnectionError))
def send(context: Context[State], to: str, text: str) -> None:
    """Send a mail, at least once."""
    context.state.mails.send(to, text)
