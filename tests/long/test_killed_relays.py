"""Relays and programs that are killed at random push the job of each committed row once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fdbqueue.contrib.sqlalchemy import Outbox
from fdbqueue.jobs import App
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

ROWS = 20_000
RELAYS, WRITERS = 2, 2

# `orders` has what the program has committed, one row for each job.
PROGRAM = """
import random, sys
import sqlalchemy as sa
from fdbqueue.contrib.sqlalchemy import Outbox
from fdbqueue.jobs import App

role, database, rows, queue, writer, end = sys.argv[1:]
app, engine, metadata = App(database), sa.create_engine(rows), sa.MetaData()
outbox = Outbox(app, engine, metadata)
orders = sa.Table("orders", metadata, sa.Column("writer", sa.Integer), sa.Column("n", sa.Integer))

@app.job(name="send")
def send(writer: int, n: int) -> None: ...

def write():
    mine = orders.c.writer == int(writer)
    with engine.connect() as connection:
        n = connection.scalar(sa.select(sa.func.count()).where(mine))
    while n < int(end):
        number = min(random.randint(1, 50), int(end) - n)
        with engine.connect() as connection:
            for each in range(n, n + number):
                connection.execute(sa.insert(orders), {"writer": writer, "n": each})
                outbox.push(connection, send.using(queue=queue).bind(int(writer), each))
            if random.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                n += number

if role == "write":
    write()
else:
    with outbox.relaying():
        sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of the database of the rows."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'rows.sqlite3'}?timeout=100"
        return
    try:
        server = Postgres()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield server.url(server.new_database())
    server.stop()


@pytest.mark.long
def test_killed_relays_and_programs_push_each_row_once(
    db: Any, shared_url: str, rows: str, name: str, rng: random.Random
) -> None:
    def start(role: str, writer: int) -> subprocess.Popen[bytes]:
        arguments = [role, shared_url, rows, name, str(writer), str(ROWS // WRITERS)]
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    app, engine, metadata = App(db), sa.create_engine(rows), sa.MetaData()
    orders = sa.Table(
        "orders", metadata, *(sa.Column(each, sa.Integer) for each in ("writer", "n"))
    )
    outbox = Outbox(app, engine, metadata)
    metadata.create_all(engine)
    queue = app.queue(name)
    clients = {("relay", n): start("relay", n) for n in range(RELAYS)}
    clients |= {("write", n): start("write", n) for n in range(WRITERS)}
    deaths = 0

    def writers_have_ended() -> bool:
        return all(clients["write", n].poll() == 0 for n in range(WRITERS))

    def has_gone_on(enough: int) -> bool:
        return queue.size(db) >= enough or writers_have_ended()

    while not writers_have_ended():
        enough = queue.size(db) + rng.randrange(1, ROWS // 40)
        wait_until(partial(has_gone_on, enough))
        key = rng.choice([*clients])
        if clients[key].poll() is None:
            clients[key].send_signal(signal.SIGKILL)
            clients[key].wait()
            clients[key] = start(*key)
            deaths += 1
    wait_until(lambda: queue.size(db) >= ROWS)
    for client in clients.values():
        client.kill()
        client.wait()
    outbox.relay()
    with engine.connect() as connection:
        committed = [*map(tuple, connection.execute(sa.select(orders)))]
        left = connection.scalar(sa.select(sa.func.count()).where(outbox.table.c.id > 0))
    pushed: dict[int, list[int]] = defaultdict(list)
    for item in queue.items(db):
        writer, n = item.value["args"]
        pushed[writer].append(n)
    print(f"{len(committed)} rows, {deaths} deaths")
    assert (len(committed), left) == (ROWS, 0)
    assert pushed == {writer: [*range(ROWS // WRITERS)] for writer in range(WRITERS)}
    engine.dispose()
