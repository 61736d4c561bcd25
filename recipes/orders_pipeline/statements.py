"""The jobs of each night, and the job after the last of them.

A schedule pushes one job a day, however many workers there are. That job pushes a batch, whose last
job runs once all statements have ended. If it dies in between, its next attempt continues.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from fdbqueue import Transaction
from fdbqueue.jobs import Context
from recipes.orders_pipeline.app import State, app
from recipes.orders_pipeline.mails import send
from recipes.orders_pipeline.orders import sales_key
from recipes.orders_pipeline.tables import Order, engine


@app.cron("0 6 * * *", tz="Europe/Lisbon", overlap="skip")
@app.job(queue="reports")
def statements(context: Context[State]) -> None:
    """Send each customer a statement."""
    day = f"{context.tick:%Y-%m-%d}"
    batch = context.step("open", open_batch, day)
    context.step("push", push_statements, batch, day)


@app.job(queue="reports", unique=True, unique_for="1d")
def statement(context: Context[State], day: str, customer: str) -> int:
    """Send a statement to a customer, and return the sum."""
    cents = int.from_bytes(app.db[sales_key(customer)] or b"", "little", signed=True)
    context.at_end(send_statement, day, customer, cents)
    return cents


@app.job(queue="reports")
def summary(day: str, *, done: int, dead: int, cancelled: int) -> str:
    """Say how the statements of a day have ended."""
    return f"{day}: {done} statements, {dead + cancelled} failed"


def open_batch(day: str) -> str:
    """Begin a batch, and return its id."""
    return app.batch(then=summary, args=[day]).id


def push_statements(batch: str, day: str) -> None:
    """Push the statements, and close the batch; their keys make a repeated push do nothing."""
    with Session(engine) as session:
        customers = session.scalars(sa.select(Order.customer).distinct()).all()
    with app.existing_batch(batch) as members:
        members.push_many(statement, [statement.bind(day, customer) for customer in customers])
        members.close()


def send_statement(tr: Transaction, day: str, customer: str, cents: int) -> None:
    """Push the mail, in the transaction that ends the job."""
    send.using(tr).push(customer, f"Your statement of {day}: {cents / 100:.2f}")
