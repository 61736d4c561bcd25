"""Treat a server badly, and account for every job.

    python -m tests.long.hostile.http_abuse [DATABASE] [--connections N] [--seconds 120] [--scale 1]

Each kind of abuse prints what it tried, the statuses of the answers, and the server's memory. A
status of 5xx other than 503 fails, and so does a job that is lost or done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

import fdbqueue
from tests.support.server import serving

RESET = struct.pack("ii", 1, 0)
SAVED = (ConnectionError, asyncio.IncompleteReadError, OSError)


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


class Server:
    """The address of a server, and the statuses of its answers."""

    def __init__(self, address: str, scale: float) -> None:
        parts = urlsplit(address)
        self.host, self.port = str(parts.hostname), int(parts.port or 80)
        self.scale = scale
        self.statuses: Counter[str] = Counter()

    def many(self, n: int) -> int:
        """Return a number of attempts, scaled."""
        return max(1, int(n * self.scale))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Return the bytes of a request."""
        fields = {"host": f"127.0.0.1:{self.port}", "content-type": "application/json"}
        fields |= {"content-length": str(len(body))} | headers
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Read an answer, and count its status."""
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        body = await reader.readexactly(length)
        self.statuses[str(status)] += 1
        return status, body

    async def send(self, *message: Any, **headers: str) -> tuple[int, Any]:
        """Send a request on a new connection; return the status and the content of the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(self.request(*message, **headers))
            status, body = await self.answer(reader)
            return status, json.loads(body) if body else None
        finally:
            writer.close()

    async def json(self, path: str, content: Any, **headers: str) -> tuple[int, Any]:
        """Post a JSON value."""
        return await self.send("POST", path, json.dumps(content).encode(), **headers)

    async def attempt(self, doing: Coroutine[Any, Any, Any]) -> None:
        """Do something that may end with a closed connection."""
        try:
            await doing
        except SAVED:
            self.statuses["closed"] += 1


async def load(server: Server, connections: int, seconds: float) -> dict[str, int]:
    """Push, claim and acknowledge on many connections; return how often each job was done."""
    end = asyncio.get_running_loop().time() + seconds
    pushed: set[str] = set()
    done: Counter[str] = Counter()

    async def connection(number: int) -> None:
        reader, writer = await server.connect()

        async def call(path: str, content: Any) -> tuple[int, Any]:
            writer.write(server.request("POST", path, json.dumps(content).encode()))
            status, body = await server.answer(reader)
            return status, json.loads(body) if body else None

        while asyncio.get_running_loop().time() < end:
            if number % 2:
                status, content = await call("/v1/queues/load/push", {"item": number})
                assert status == 201, content
                pushed.add(content["id"])
                continue
            status, content = await call("/v1/queues/load/claim", {"lease": 60, "n": 2})
            if status == 404:  # nothing was pushed yet
                await asyncio.sleep(0.1)
                continue
            for claim in content["claims"]:
                status, _ = await call("/v1/queues/load/ack", {"token": claim["token"]})
                assert status == 200, claim
                done[claim["id"]] += 1
        writer.close()

    await asyncio.gather(*map(connection, range(connections)))
    while claims := (await server.json("/v1/queues/load/claim", {"n": 1000}))[1]["claims"]:
        for claim in claims:
            assert (await server.json("/v1/queues/load/ack", {"token": claim["token"]}))[0] == 200
            done[claim["id"]] += 1
    assert pushed == set(done), "jobs were lost or invented"
    assert set(done.values()) == {1}, "jobs were done twice"
    return {"jobs": len(pushed)}


async def slow_readers(server: Server) -> None:
    """Ask for large answers, and read a byte at a time, or nothing."""
    items = [{"item": "x" * 2_000} for _ in range(500)]
    assert (await server.json("/v1/queues/large/batch", {"items": items}))[0] == 201

    async def read_slowly() -> None:
        reader, writer = await server.connect()
        writer.write(server.request("GET", "/v1/queues/large/items?limit=500") * 20)
        for _ in range(random.randrange(30)):
            await reader.readexactly(1)
            await asyncio.sleep(0.05)
        writer.transport.abort()

    await asyncio.gather(*(server.attempt(read_slowly()) for _ in range(server.many(100))))


async def half_open(server: Server) -> None:
    """Open connections, and send half of a head, half of a body, or nothing."""
    parts = [b"", b"POST /v1/que", server.request("POST", "/v1/queues/a/push", b'{"item": 1}')[:-5]]
    opened = [await server.connect() for _ in range(server.many(600))]
    for number, (_, writer) in enumerate(opened):
        with suppress(*SAVED):
            writer.write(parts[number % 3])
    await server.attempt(server.send("GET", "/health"))
    for number, (_, writer) in enumerate(opened):
        if number % 2:
            writer.transport.abort()
        else:
            writer.close()


async def endless_requests(server: Server) -> None:
    """Ask 10,000 times for an answer that takes minutes."""
    begun: list[asyncio.StreamWriter] = []

    async def ask() -> None:
        reader, writer = await server.connect()
        begun.append(writer)
        writer.write(server.request("POST", "/v1/queues/quiet/claim", b'{"wait": 300}'))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.answer(reader), 1)

    await server.json("/v1/queues/quiet/push", {"item": 1, "delay": 3600})
    for _ in range(100):
        await asyncio.gather(*(server.attempt(ask()) for _ in range(server.many(100))))
    for writer in begun:
        writer.close()


async def huge_bodies(server: Server) -> None:
    """Send bodies of 100 MB, with their length, with a wrong one, and in chunks."""

    async def push(**headers: str) -> None:
        reader, writer = await server.connect()
        message = server.request("POST", "/v1/queues/a/push", **headers)
        writer.write(message)
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        try:
            for _ in range(1600):
                writer.write(chunk)
                await writer.drain()
            await server.answer(reader)
        finally:
            writer.transport.abort()

    def chunked() -> Coroutine[Any, Any, None]:
        return push(content_length="0", transfer_encoding="chunked")

    for _ in range(server.many(20)):
        await server.attempt(push(content_length="104857600"))
        await server.attempt(chunked())
        await server.attempt(push(content_length="-1"))


async def bad_content(server: Server) -> None:
    """Send JSON that is deep, invalid or not UTF-8, wrong hosts, and wrong paths."""
    deep = b'{"item": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bodies = [
        deep,
        b'{"item": "\xff\xfe"}',
        b'{"item": "\\ud800"}',
        b"{",
        b"nonsense",
        b'{"item": 1e999}',
        b'{"item": NaN}',
        b'{"item": 1, "item": 2, "priority": 1e400}',
        b'{"token": "\x00"}',
    ]
    for _ in range(server.many(20)):
        for body in bodies:
            for route in ("push", "batch", "claim", "ack"):
                await server.attempt(server.send("POST", f"/v1/queues/bad/{route}", body))
        for host in ("evil.example", "[", "127.0.0.1.evil.example", "", "a" * 5_000):
            await server.attempt(server.send("GET", "/v1/queues", host=host))
        for path in ("/v1/queues/%ff%fe", "/v1/queues/%00/items", "/v1/" + "a/" * 5_000, "/%2e%2e"):
            await server.attempt(server.send("GET", path))


async def one_key(server: Server) -> None:
    """Send a push 100 times at the same time, with one idempotency key."""
    for number in range(server.many(10)):
        key = f"key {number}"
        push = [
            server.json("/v1/queues/once/push", {"item": number}, idempotency_key=key)
            for _ in range(100)
        ]
        answers = await asyncio.gather(*push)
        assert {status for status, _ in answers} == {201}
        assert len({content["id"] for _, content in answers}) == 1
    stats = (await server.send("GET", "/v1/queues/once/stats"))[1]
    assert stats["total_pushed"] == server.many(10), stats


async def vanishing_clients(server: Server) -> dict[str, int]:
    """Leave in the middle of a claim and of an acknowledgement; every job is done once."""
    n = server.many(500)
    items = [{"item": number} for number in range(n)]
    assert (await server.json("/v1/queues/gone/batch", {"items": items}))[0] == 201

    async def vanish(route: str, body: dict[str, Any]) -> None:
        _, writer = await server.connect()
        message = server.request("POST", f"/v1/queues/gone/{route}", json.dumps(body).encode())
        writer.write(message[: random.choice([len(message), len(message), len(message) // 2])])
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.01]))
        if random.random() < 0.5:
            linger = writer.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    for _ in range(n):
        await server.attempt(vanish("claim", {"lease": 1, "n": random.randrange(1, 4)}))
    done: Counter[int] = Counter()
    unknown: set[int] = set()
    while await unfinished(server, "gone"):
        _, content = await server.json("/v1/queues/gone/claim", {"lease": 2, "n": 10, "wait": 3})
        for claim in content["claims"]:
            if random.random() < 0.3:
                unknown.add(claim["item"])
                await server.attempt(vanish("ack", {"token": claim["token"]}))
                continue
            status, _ = await server.json("/v1/queues/gone/ack", {"token": claim["token"]})
            if status == 200:
                done[claim["item"]] += 1
    stats = await stats_of(server, "gone")
    assert set(done) | unknown == {*range(n)}, "jobs were lost"
    assert not done or set(done.values()) == {1}, "jobs were done twice"
    assert (stats["total_pushed"], stats["total_completed"]) == (n, n), stats
    return {"jobs": n, "vanished in ack": len(unknown)}


async def unfinished(server: Server, name: str) -> int:
    """Return the number of jobs that have not ended."""
    stats = await stats_of(server, name)
    return sum(int(stats[state]) for state in ("ready", "claimed", "delayed"))


async def stats_of(server: Server, name: str) -> Any:
    return (await server.send("GET", f"/v1/queues/{name}/stats"))[1]


ABUSES: list[Callable[[Server], Coroutine[Any, Any, dict[str, int] | None]]] = [
    slow_readers,
    half_open,
    endless_requests,
    huge_bodies,
    bad_content,
    one_key,
    vanishing_clients,
]


async def abuse(address: str, pid: int, given: argparse.Namespace) -> bool:
    """Try everything; return whether the server answered as it ought to."""
    table = Table("abuse", "answers", "counts", "memory, MB")
    is_good = True

    async def note(name: str, doing: Coroutine[Any, Any, dict[str, int] | None]) -> None:
        nonlocal is_good
        server.statuses.clear()
        counts = await doing
        bad = [status for status in server.statuses if status[0] == "5" and status != "503"]
        is_good = is_good and not bad
        shown = ", ".join(f"{status}: {n:,}" for status, n in sorted(server.statuses.items()))
        extra = ", ".join(f"{what}: {n:,}" for what, n in (counts or {}).items())
        table.add_row(name, shown, extra, f"{resident(pid):,.0f}")

    server = Server(address, given.scale)
    await note("load, before", load(server, given.connections, given.seconds / 4))
    for each in ABUSES:
        await note(each.__name__.replace("_", " "), each(server))
    await note("load, after", load(server, given.connections, given.seconds))
    Console(width=120).print(table)
    return is_good


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("database", nargs="?", help="directory or cluster file")
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of attempts")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    print(f"--seed={given.seed}", flush=True)
    random.seed(given.seed)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-abuse-") as directory:
        url = given.database or directory
        with serving(url) as (process, address):
            is_good = asyncio.run(abuse(address, process.pid, given))
        db = fdbqueue.open(url)
        for name in fdbqueue.admin.queue_names(db):
            report = fdbqueue.admin.check(db, fdbqueue.existing_queue(db, name))
            assert report.ok, (name, report)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
