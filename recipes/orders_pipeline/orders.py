"""The path of an order, and what undoes each step.

The bank is called at least once, with the order as its key. The books and the receipt take effect
exactly once, because they commit with their step. Whichever of "shipped", "cancelled" and "failed"
reaches the row of the order first decides.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.orm import Session

from fdbqueue import Transaction
from fdbqueue.jobs import Context, Dead, JobCancelled, Retry, Snooze
from fdbqueue.types import DeadJob
from recipes.orders_pipeline.app import State, app
from recipes.orders_pipeline.bank import CardDeclined
from recipes.orders_pipeline.mails import send
from recipes.orders_pipeline.tables import Order, engine, outbox

AGAIN = Retry(attempts=8, first="1s", on=ConnectionError)


@app.job(queue="reports")
def give_up(context: Context[State], dead: DeadJob) -> None:
    """Refund an order whose job has died, wherever that was."""
    if dead.args:
        undo(context, dead.args[0], "failed")


def customer_of(order: str, customer: str, cents: int) -> str:
    """Return the group of an order: customers take turns."""
    return customer


@app.job(queue="orders", group=customer_of, on_dead=give_up)
def fulfil(context: Context[State], order: str, customer: str, cents: int) -> str:
    """Fulfil an order, and return the tracking number of its parcel."""
    try:
        context.commit("begin", note_job, order, context.item.id)
        context.using(retry=AGAIN).step("charge", charge, context, order, cents)
        context.commit("book", book, order, customer, cents)
        parcel = context.wait("shipped", key=order, timeout="7d")
        context.step("close", close, order, "shipped")
        return str(parcel.value["tracking"])
    except JobCancelled:
        undo(context, order, "cancelled")
        raise


@app.job(queue="orders")
def stop(order: str) -> bool:
    """Cancel the job of an order, which then undoes what it has done."""
    job = app.db[job_key(order)]
    if job is None:  # it is in the outbox, or waits: once it has begun, it can compensate
        raise Snooze("1s")
    return app.queue("orders").cancel(app.db, job.decode())


def charge(context: Context[State], order: str, cents: int) -> str:
    """Charge the card. To try a declined card again is of no use."""
    try:
        return context.state.bank.charge(order, cents)
    except CardDeclined as error:
        raise Dead(str(error)) from error


def undo(context: Context[State], order: str, state: str) -> None:
    """Refund an order, unless it was shipped before. Each step can be done again."""
    if context.step("give up", close, order, state) != "shipped":
        context.using(retry=AGAIN).step("refund", context.state.bank.refund, order)
        context.commit("unbook", unbook, order)


def close(order: str, state: str) -> str:
    """End an order in the SQL database, and tell the customer; return its final state."""
    with Session(engine) as session, session.begin():
        is_open = sa.and_(Order.id == order, Order.state == "placed")
        changed = session.scalar(
            sa.update(Order).where(is_open).values(state=state).returning(Order.customer)
        )
        if changed is not None:
            outbox.push(session, send.bind(changed, f"Your order {order} is {state}."))
        return session.get_one(Order, order).state


def note_job(tr: Transaction, order: str, job: str) -> None:
    """Store which job has begun to fulfil an order."""
    tr[job_key(order)] = job.encode()


def book(tr: Transaction, order: str, customer: str, cents: int) -> None:
    """Add an order to the books, and push the mail with its receipt."""
    tr[booking_key(order)] = json.dumps([customer, cents]).encode()
    add_to_sales(tr, customer, cents)
    send.using(tr).push(customer, f"The receipt of your order {order}: {cents / 100:.2f}")


def unbook(tr: Transaction, order: str) -> None:
    """Take an order out of the books, if it is in them."""
    booking = tr[booking_key(order)].value
    if booking is not None:
        customer, cents = json.loads(booking)
        del tr[booking_key(order)]
        add_to_sales(tr, customer, -cents)


def add_to_sales(tr: Transaction, customer: str, cents: int) -> None:
    """Change the sales to a customer by an atomic operation, which conflicts with no other."""
    tr.add(sales_key(customer), cents.to_bytes(8, "little", signed=True))


def job_key(order: str) -> bytes:
    """Return the key of the id of an order's job."""
    return b"shop/job/" + order.encode()


def booking_key(order: str) -> bytes:
    """Return the key of an order in the books."""
    return b"shop/booking/" + order.encode()


def sales_key(customer: str) -> bytes:
    """Return the key of the sum of a customer's orders in the books."""
    return b"shop/sales/" + customer.encode()
