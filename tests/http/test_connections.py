"""What clients without a token can do to `fdbq serve`: sizes and connections."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import served
from tests.support.waiting import wait_until

TIMEOUT = 60.0  # seconds, much longer than any limit in these tests
HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WAIT = b"POST /queue/%b/pop?wait=%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
PUSH = b"POST /queue/%b/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """Return a server on one engine; these tests do not depend on the database."""
    return partial(served, str(tmp_path / "db"))


@contextmanager
def connected(client: httpx.Client, count: int = 1) -> Iterator[list[socket.socket]]:
    """Open separate connections to the server of a client."""
    with ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        yield [
            stack.enter_context(socket.create_connection(address, timeout=TIMEOUT))
            for _ in range(count)
        ]


def until_closed(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def sends_until_closed(
    connection: socket.socket, piece: bytes, pause: float = 0, most: int = 1000
) -> tuple[int, bytes]:
    """Send a piece until the server closes; return how often, and the response."""
    for sent in range(most):
        time.sleep(pause)
        try:
            connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return sent, until_closed(connection)
    pytest.fail(f"the server took {most:,} times {len(piece):,} bytes")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def resident(process: Any) -> float:
    """Return the resident memory of a process in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def sockets_of(process: Any) -> int:
    """Return the number of open sockets of a process."""
    found = 0
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(each).startswith("socket:")
    return found


ENDLESS = {
    "value": (HEAD + b"x: ", b"x" * 100_000),
    "many": (HEAD, b"x: y\r\n" * 10_000),
    "name": (HEAD, b"x" * 100_000),
    "url": (b"GET /", b"x" * 100_000),
    "blank lines": (b"", b"\r\n" * 50_000),
    "method": (b"", b"x" * 100_000),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 10_000),
    "chunk extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"x" * 100_000),
}
"""What a head may have without end: how it begins, and what follows again and again."""


def test_an_unbounded_head_is_rejected_and_a_large_body_is_not(serve: Any, name: str) -> None:
    with serve() as (process, client):
        for kind, (begin, piece) in ENDLESS.items():
            with connected(client) as [connection]:
                assert client.get("/health").status_code == 200
                before = resident(process)
                connection.sendall(begin)
                sends_until_closed(connection, piece)  # fails after 60 to 100 MB
                assert resident(process) - before < 20, kind
        assert client.get("/health", headers={"x": "y" * 60_000}).status_code == 200
        assert client.get("/health", headers={"x": "y" * 400_000}).status_code == 400
        item = {"item": {"x": "x" * 1_000_000}}
        assert client.post(f"/queue/{name}/push", json=item).status_code == 201
        pieces = [b'{"item": {}', *[b" "] * 30_000, b"}"]  # each with six bytes around it
        headers = {"content-type": "application/json"}
        answer = client.post(f"/queue/{name}/push", content=iter(pieces), headers=headers)
        assert answer.status_code == 201


def test_a_client_may_wait_to_send_the_body(serve: Any, name: str) -> None:
    with serve() as (_, client), connected(client) as [connection]:
        answers = connection.makefile("rb")
        for _ in range(2):
            expect = b"expect: 100-continue\r\ncontent-length: 11\r\n\r\n"
            connection.sendall(PUSH % name.encode() + expect)
            assert answers.readline() + answers.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b'{"item":{}}')
            assert answers.readline() == b"HTTP/1.1 201 Created\r\n"
            headers = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
            assert b"id" in answers.read(int(headers[b"content-length"]))


def test_pipelined_requests_are_not_read_ahead(serve: Any, name: str) -> None:
    with serve() as (process, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        assert client.post(f"/queue/{name}/pop").json()["items"]
        with connected(client) as [connection]:
            before = resident(process)
            connection.sendall(WAIT % (name.encode(), 60) + HEAD + b"\r\n")
            connection.settimeout(2)
            with pytest.raises(TimeoutError):  # the server does not read while a request waits
                sends_until_closed(connection, (HEAD + b"\r\n") * 5000)
            assert resident(process) - before < 20
            client.post(f"/queue/{name}/push", json={"item": {}})
            answer = b""
            while b'{"status":"ok"}' not in answer:
                answer += connection.recv(65536)


def test_at_the_connection_limit_requests_are_answered_503(serve: Any) -> None:
    with serve("--connection-limit", "20") as (process, client), connected(client, 20) as idle:
        wait_until(lambda: sockets_of(process) >= 20)
        answer = httpx.get(f"{client.base_url}/health", timeout=TIMEOUT)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        for each in idle:
            each.close()
        wait_until(lambda: client.get("/health").status_code == 200)
