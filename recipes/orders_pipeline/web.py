"""The requests that push, cancel and look.

A client that repeats a request changes nothing: it chooses the number of its order.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from recipes.orders_pipeline import app
from recipes.orders_pipeline.orders import fulfil, stop
from recipes.orders_pipeline.tables import Base, Order, engine, outbox


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    """Connect to the queues, and create the tables; in production, a migration does that."""
    if not app.is_bound:  # a test binds it before
        app.bind(os.environ["FDBQ_DB"])
    Base.metadata.create_all(engine)
    yield


api = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    """The body of a new order."""

    customer: str
    cents: int


class Parcel(BaseModel):
    """The body of what the warehouse reports."""

    tracking: str


# FastAPI runs plain functions in threads, so they may block.


@api.put("/orders/{id}", status_code=202)
def place(id: str, order: NewOrder) -> dict[str, str]:
    """Place an order: its row and its job commit together, or neither does."""
    try:
        with Session(engine) as session, session.begin():
            session.add(Order(id=id, customer=order.customer, cents=order.cents))
            session.flush()
            outbox.push(session, fulfil.bind(id, order.customer, order.cents))
    except IntegrityError:  # the request is repeated
        pass
    return look(id)


@api.get("/orders/{id}")
def look(id: str) -> dict[str, str]:
    """Return the state of an order."""
    with Session(engine) as session:
        order = session.get(Order, id)
        if order is None:
            raise HTTPException(404, "no such order")
        return {"id": id, "state": order.state}


@api.delete("/orders/{id}", status_code=202)
def cancel(id: str) -> dict[str, str]:
    """Cancel an order, unless it is shipped before the cancellation arrives."""
    stop.using(unique=f"stop {id}").push(id)
    return look(id)


@api.post("/orders/{id}/parcel", status_code=202)
def ship(id: str, parcel: Parcel) -> dict[str, str]:
    """Tell the job that waits, or that comes to wait, about the parcel."""
    app.signal(app.db, "shipped", key=id, value=parcel.model_dump(), queue="orders")
    return look(id)
