"""Compare push and pop over HTTP with an empty route.

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


def empty(port: Any) -> None:
    """Run a server with one route, which does nothing."""
    app = FastAPI()
    app.add_api_route("/nothing", nothing, methods=["POST"])
    run(server_config(app), listening_socket("127.0.0.1", 0), port)


def queues(directory: str, durability: str, port: Any) -> None:
    """Run a server for the queues in a directory."""
    db = fdbqueue.open(directory, durability=durability)
    run(server_config(create_app(db)), listening_socket("127.0.0.1", 0), port)


def run(config: uvicorn.Config, listening: socket.socket, port: Any) -> None:
    listening.listen()
    port.send(listening.getsockname()[1])
    uvicorn.Server(config).run([listening])


async def nothing() -> dict[str, str]:
    return {"status": "ok"}


async def requests(port: int, message: bytes, connections: int, seconds: float) -> list[float]:
    """Send a request again and again on several connections; return the latencies."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(message)
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
                for name, message in REQUESTS.items():
                    port = ports[empty if name == "empty route" else queues]
                    latencies = asyncio.run(requests(port, message, connections, given.seconds))
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
