"""Compare push, pop and claim over HTTP with an empty route.

    python -m tests.benchmarks.http [--durability full]

The server is one process with an embedded database, and the client is another. Each round measures
each case for the same time. The client does as little work as possible; each of its connections
sends the next request when the last one is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from rich.progress import track

import fdbqueue
from fdbqueue.http import create_app, listening_socket, server_config
from tests.benchmarks.report import console, new_table, print_machine

BODY = b'{"item":{"to":"ada@example.com","n":12345},"priority":1}'


def request(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = {
    "empty route": request("/nothing"),
    "HTTP push": request("/queue/jobs/push", BODY),
    "HTTP pop": request("/queue/jobs/pop"),
    "/v1 push": request("/v1/queues/mail/push", BODY),
}
JOBS = "/v1 claim, ack"
"""The requests of consumers, each of which claims an item and acknowledges it."""


def empty(port: Any) -> None:
    """Run a server with one route, which does nothing."""
    app = FastAPI()
    app.add_api_route("/nothing", nothing, methods=["POST"])
    run(server_config(app), listening_socket("127.0.0.1", 0), port)


def queues(directory: str, durability: str, port: Any) -> None:
    """Run a server for the queues in a directory."""
    db = fdbqueue.open(directory, durability=durability)
    mail = fdbqueue.PriorityQueue.named(db, "mail")
    for _ in range(20):  # so that no claim finds nothing
        mail.push_many(db, range(1000))
    app = create_app(db)
    run(server_config(app), listening_socket("127.0.0.1", 0), port)


def run(config: uvicorn.Config, listening: socket.socket, port: Any) -> None:
    listening.listen()
    port.send(listening.getsockname()[1])
    uvicorn.Server(config).run([listening])


async def nothing() -> dict[str, str]:
    return {"status": "ok"}


def acknowledgement(body: bytes) -> bytes:
    """Return the request that acknowledges what the response to a claim has."""
    found = re.search(rb'"token":"([^"]+)"', body)
    if found is None:
        raise RuntimeError("there is nothing left to claim")
    return request("/v1/queues/mail/ack", b'{"token":"%b"}' % found[1])


CLAIM = request("/v1/queues/mail/claim", b"{}")


async def requests(
    port: int, message: bytes, connections: int, seconds: float, *, claims: bool = False
) -> list[float]:
    """Send a request again and again on several connections; return the latencies.

    With `claims`, it is a claim, and every second request acknowledges it.
    """
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body, is_claimed = b"", False
        while (began := time.perf_counter()) < end:
            writer.write(acknowledgement(body) if is_claimed else message)
            is_claimed = claims and not is_claimed
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if head[9:10] != b"2":
                raise RuntimeError(f"{head!r} {body!r}")
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--durability", choices=["os", "full"], default="os")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fdbqueue-http-") as directory:
        print_machine(Path(directory))
        ports = {}
        for server, *arguments in [(empty,), (queues, f"{directory}/http", given.durability)]:
            ours, theirs = context.Pipe()
            context.Process(target=server, args=[*arguments, theirs], daemon=True).start()
            ports[server] = ours.recv()
        asyncio.run(requests(ports[queues], REQUESTS["HTTP push"], 1, 0.5))
        measured: dict[tuple[str, int], list[list[float]]] = {}
        for _ in track(range(given.rounds), "rounds", transient=True):
            for connections in (1, 32):
                for name, message in {**REQUESTS, JOBS: CLAIM}.items():
                    port = ports[empty if name == "empty route" else queues]
                    sending = requests(
                        port, message, connections, given.seconds, claims=name == JOBS
                    )
                    latencies = asyncio.run(sending)
                    measured.setdefault((name, connections), []).append(latencies)
    columns = ("connections", "a second", "/ empty route", "median ms")
    table = new_table(f"one server process, durability {given.durability}", *columns)
    for (name, connections), rounds in measured.items():
        rates = [len(each) / given.seconds for each in rounds]
        bases = [len(each) for each in measured["empty route", connections]]
        ratio = statistics.median(len(each) / base for each, base in zip(rounds, bases))
        median = statistics.median(each for latencies in rounds for each in latencies)
        table.add_row(
            name,
            str(connections),
            f"{statistics.median(rates):,.0f}",
            f"{ratio:.2f}",
            f"{median * 1e3:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
