"""The tables of the SQL database, with which jobs commit.

A row of `orders` and the job that fulfils it commit together, because the outbox stores the push in
the same transaction. A relay in each worker pushes it to the queue, exactly once.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fdbqueue.contrib.sqlalchemy import Outbox
from recipes.orders_pipeline.app import app

engine = sa.create_engine(os.environ.get("SHOP_SQL", "sqlite:///shop.sqlite3?timeout=60"))


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order. Its state is the last word about it: placed, then shipped, cancelled or failed."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(sa.String(50), primary_key=True)
    customer: Mapped[str] = mapped_column(sa.String(200))
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(sa.String(20), default="placed")


outbox = Outbox(app, engine, Base.metadata)
