"""`fdbq serve` as a process: its address, shutdown, concurrency, connections and their limits."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from fdbqueue import PriorityQueue
from tests.support.keys import waiting_clients
from tests.support.server import served, serving
from tests.support.waiting import wait_until


def refused(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fdbq", "serve", "--db", "memory:", "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_listening_beyond_loopback_requires_a_token(tmp_path: Path) -> None:
    assert "set a token" in refused("--host", "0.0.0.0")
    (tmp_path / "empty").write_text("\ufeff\n# none\n", "utf-8")
    assert "contains no token" in refused("--token-file", str(tmp_path / "empty"))
    assert "does not appear to be" in refused("--forwarded-allow-ips", "proxy.example")


def test_the_server_speaks_tls_with_a_certificate(
    shared_url: str, db: Any, name: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    with serving(shared_url, "--certfile", str(tmp_path / "both.pem")) as (_, address):
        assert address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with httpx.Client(base_url=address, verify=trusted, timeout=60) as client:
            body = {"item": {"n": 1}}
            assert client.post(f"/v1/queues/{name}/push", json=body).status_code == 201
            claim = client.post(f"/v1/queues/{name}/claim").json()["claims"][0]
            answer = client.post(f"/v1/queues/{name}/ack", json={"token": claim["token"]})
            assert answer.status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")
    (tmp_path / "not.pem").write_text("no certificate")
    assert "the certificate or its key" in refused("--certfile", str(tmp_path / "not.pem"))


FORWARDED = "10.0.0.1"


@pytest.mark.parametrize(
    ("options", "environment", "is_trusted"),
    [
        ((), {}, False),
        (("--forwarded-allow-ips", "10.1.0.0/16,::1"), {}, False),
        (("--forwarded-allow-ips", "10.1.0.0/16, 127.0.0.1"), {}, True),
        (("--forwarded-allow-ips", "*"), {}, True),
        ((), {"FORWARDED_ALLOW_IPS": "127.0.0.1"}, True),
    ],
)
def test_forwarded_addresses_of_named_proxies_only_are_trusted(
    serve: Any, db: Any, name: str, options: Any, environment: Any, is_trusted: bool
) -> None:
    queue = PriorityQueue.named(db, name)
    item = queue.push(db, "job")
    claim = queue.claim(db)
    assert claim is not None
    queue.nack(db, claim, dead=True)
    with serve(*options, **environment) as (_, client):
        headers = {"x-forwarded-for": FORWARDED}
        path = f"/v1/queues/{name}/items/{item.id}/retry"
        assert client.post(path, headers=headers).status_code == 204
    info = queue.get(db, item)
    assert info is not None
    address = FORWARDED if is_trusted else "127.0.0.1"
    assert info.failed_attempts[0].retried_by == f"HTTP client {address}"


def test_requests_in_flight_finish_when_the_server_stops(serve: Any, name: str) -> None:
    path = f"/queue/{name}/pop"
    with serve() as (process, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        assert len(client.post(path).json()["items"]) == 1
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address, timeout=60) as waiting:
            head = f"POST {path}?wait=300 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
            waiting.sendall(head.encode())
            for _ in range(20):  # after these the server has read the earlier requests
                assert client.get("/health").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert waiting.makefile("rb").read().endswith(b'\r\n\r\n{"items":[]}')
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_clients_that_wait_hold_up_no_others_and_take_nothing_once_they_have_left(
    serve: Any, db: Any, name: str
) -> None:
    path = f"/v1/queues/{name}"
    items = [{"item": {"n": n}} for n in range(3)]
    with serve() as (_, client):
        address = (client.base_url.host, client.base_url.port)

        def ask(verb: str, body: bytes = b"", leaves: bool = False) -> socket.socket:
            asking = socket.create_connection(address, timeout=60)
            # Send the request with the end of the connection: no answer may be sent in between.
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, leaves)
            head = f"POST {path}/{verb} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            asking.sendall((head + kind).encode() + body)
            return asking

        client.post(f"{path}/batch", json={"items": items})
        client.post(f"{path}/pop", json={"n": 3})
        waiting = [ask("pop", b'{"wait": 60}') for _ in range(50)]
        wait_until(lambda: waiting_clients(db, PriorityQueue.named(db, name)))
        assert client.get("/v1/queues").status_code == 200
        for each in waiting:
            each.close()
        wait_until(lambda: not waiting_clients(db, PriorityQueue.named(db, name)))
        client.post(f"{path}/batch", json={"items": items})
        for verb in ("pop", "claim") * 30:
            ask(verb, leaves=True).close()
        left = list[int]()
        while len(left) < 3:  # requests that came before may still hold some
            popped = client.post(f"{path}/pop", json={"n": 3, "wait": 50}).json()["items"]
            left += [each["item"]["n"] for each in popped]
        assert sorted(left) == [0, 1, 2]


# What clients without a token can do


TIMEOUT = 60.0  # seconds, much longer than any limit in these tests
HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WAIT = b"POST /queue/%b/pop?wait=%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
PUSH = b"POST /queue/%b/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
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


def test_an_unbounded_head_is_rejected_and_a_large_body_is_not(start: Any, name: str) -> None:
    with start() as (process, client):
        for kind, (begin, piece) in ENDLESS.items():
            with connected(client) as [connection]:
                assert client.get("/health").status_code == 200
                before = resident(process)
                connection.sendall(begin)
                sends_until_closed(connection, piece)  # fails after 60 to 100 MB
                assert resident(process) - before < 20, kind
        with connected(client) as [connection]:
            connection.sendall(HEAD + b"x: " + b"y" * 30_000)
            time.sleep(0.2)  # so that the server reads it in two parts
            connection.sendall(b"y" * 30_000 + b"\r\n\r\n")
            assert connection.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
        assert client.get("/health", headers={"x": "y" * 400_000}).status_code == 400
        item = {"item": {"x": "x" * 1_000_000}}
        assert client.post(f"/queue/{name}/push", json=item).status_code == 201
        pieces = [b'{"item": {}', *[b" "] * 30_000, b"}"]  # each with six bytes around it
        headers = {"content-type": "application/json"}
        answer = client.post(f"/queue/{name}/push", content=iter(pieces), headers=headers)
        assert answer.status_code == 201


def test_a_client_may_wait_to_send_the_body(start: Any, name: str) -> None:
    with start() as (_, client), connected(client) as [connection]:
        answers = connection.makefile("rb")
        for _ in range(2):
            expect = b"expect: 100-continue\r\ncontent-length: 11\r\n\r\n"
            connection.sendall(PUSH % name.encode() + expect)
            assert answers.readline() + answers.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b'{"item":{}}')
            assert answers.readline() == b"HTTP/1.1 201 Created\r\n"
            headers = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
            assert b"id" in answers.read(int(headers[b"content-length"]))


def test_pipelined_requests_are_not_read_ahead(start: Any, name: str) -> None:
    with start() as (process, client):
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


def test_at_the_connection_limit_requests_are_answered_503(start: Any) -> None:
    with start("--connection-limit", "20") as (process, client), connected(client, 20) as idle:
        wait_until(lambda: sockets_of(process) >= 20)
        answer = httpx.get(f"{client.base_url}/health", timeout=TIMEOUT)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        for each in idle:
            each.close()
        wait_until(lambda: client.get("/health").status_code == 200)
