"""An order that is charged, booked and shipped, by a job that outlives its processes.

    python -m recipes.orders

The bank is asked at least once, with the order as its idempotency key. The booking takes effect
exactly once, wherever the process is killed.
"""

from __future__ import annotations

import sys

import fdbqueue
from fdbqueue.jobs import Context

app = fdbqueue.App("memory:")


def charge_card(order: str) -> str:
    """Stand for a call of the bank."""
    print("charge", order, flush=True)
    return f"charge of {order}"


def book(tr: fdbqueue.Transaction, order: str, charge: str) -> None:
    """Count the order, and tell the warehouse, which answers at once."""
    tr.add(f"booked {order}".encode(), (1).to_bytes(8, "little"))
    app.signal(tr, "shipped", key=order, value={"tracking": f"1Z of {charge}"})


@app.job(queue="orders", name="fulfil")
def fulfil(context: Context, order: str) -> str:
    """Fulfil an order, and return the number of its parcel."""
    charge = context.step("charge", charge_card, order)
    context.commit("book", book, order, charge)
    context.sleep("cool off", 0.01)
    parcel = context.wait("shipped", key=order, timeout="3d")
    tracking: str = parcel.value["tracking"]
    return tracking


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app.bind(sys.argv[1])
    handle = fulfil.push("order 7")
    while handle.state() != "done":
        app.work(drain=True)
    for step in app.queue("orders").steps.all(app.db, handle.id):
        print(step.name, step.state)
    print(handle.result())
