"""Limits on unauthenticated clients of `fdbq serve`: sizes, times and connections."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
import threading
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


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (HEAD + b"x: ", b"x" * 100_000),
        (HEAD, b"x: y\r\n" * 10_000),
        (HEAD, b"x" * 100_000),
        (b"GET /", b"x" * 100_000),
        (b"", b"\r\n" * 50_000),
        (b"", b"x" * 100_000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 10_000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"x" * 100_000),
    ],
    ids=["value", "many", "name", "url", "blank lines", "method", "trailers", "chunk extension"],
)
def test_an_unbounded_head_is_rejected(serve: Any, begin: bytes, piece: bytes) -> None:
    with serve() as (process, client), connected(client) as [connection]:
        assert client.get("/health").status_code == 200
        before = resident(process)
        connection.sendall(begin)
        sends_until_closed(connection, piece)  # fails after 60 to 100 MB
        assert resident(process) - before < 20
        assert client.get("/health").status_code == 200


def test_a_head_within_the_limits_is_accepted(serve: Any) -> None:
    with serve("--header-limit", "2000", "--header-count-limit", "10") as (_, client):

        def answer(*headers: bytes) -> int:
            with connected(client) as [connection]:
                lines = b"".join(b"%b\r\n" % each for each in (*headers, b"connection: close"))
                connection.sendall(HEAD + lines + b"\r\n")
                return status(until_closed(connection))

        fixed = len("/healthhost: 127.0.0.1\r\nconnection: close\r\nx: \r\n")
        assert answer(b"x: " + b"y" * (2000 - fixed)) == 200
        assert answer(b"x: " + b"y" * (2001 - fixed)) == 431
        assert answer(*[b"x: y"] * 8) == 200
        assert answer(*[b"x: y"] * 9) == 431
        too_long = client.get("/health", headers={"x": "y" * 3000})
        assert too_long.json()["detail"] == (
            "the request line and headers exceed 2,000 bytes or 10 headers"
        )


def test_a_large_body_does_not_count_as_head(serve: Any, name: str) -> None:
    with serve("--header-limit", "1000") as (_, client):
        item = {"item": {"x": "x" * 1_000_000}}
        assert client.post(f"/queue/{name}/push", json=item).status_code == 201
        pieces = [b'{"item": {}', *[b" "] * 3000, b"}"]  # each with six bytes around it
        headers = {"content-type": "application/json"}
        answer = client.post(f"/queue/{name}/push", content=iter(pieces), headers=headers)
        assert answer.status_code == 201


def test_a_response_without_a_body_is_sent(serve: Any, name: str) -> None:
    with serve() as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        for _ in range(2):
            assert client.head("/").status_code < 500
            token = client.post(f"/v1/queues/{name}/claim").json()["claims"][0]["token"]
            released = client.post(f"/v1/queues/{name}/release", json={"token": token})
            assert (released.status_code, released.content) == (204, b"")


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


def test_excess_pipelined_requests_are_rejected(serve: Any, name: str) -> None:
    with serve() as (process, client):
        for amount, closes in ((100, False), (1_000_000, True)):
            with connected(client) as [connection]:
                before = resident(process)
                client.post(f"/queue/{name}/push", json={"item": {}})
                assert client.post(f"/queue/{name}/pop").json()["items"]
                connection.sendall(WAIT % (name.encode(), 60))
                if closes:
                    sends_until_closed(connection, b"GET /health HTTP/1.1\r\n\r\n" * 5000, 0.01)
                    assert resident(process) - before < 30
                else:
                    connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * amount)
                    client.post(f"/queue/{name}/push", json={"item": {}})
                    answer = b""
                    while answer.count(b'{"status":"ok"}') < amount:
                        answer += connection.recv(65536)


@pytest.mark.parametrize(
    ("begin", "piece", "expected"),
    [
        (b"", b"", 0),
        (b"GET /hea", b"", 408),
        (HEAD, b"x", 408),
        (HEAD, b"x: y\r\n", 408),
        (HEAD + b"\r\n" + HEAD, b"x", 408),
        (b"", b"\r\n", 0),
    ],
    ids=["nothing", "part of a line", "byte by byte", "line by line", "second", "blank lines"],
)
def test_a_slow_head_times_out(serve: Any, begin: bytes, piece: bytes, expected: int) -> None:
    with serve("--header-timeout", "1.5") as (process, client):
        with connected(client, 20) as connections:
            for each in connections:
                each.sendall(begin)
            if piece:
                _, answer = sends_until_closed(connections[0], piece, 0.1)
                assert status(answer) in (expected, 200, 0)  # 0: reset, with the response lost
            for each in connections[1:]:
                answer = until_closed(each)
                if begin.endswith(HEAD) and begin != HEAD:
                    answer = answer[answer.index(b'"ok"}') + 5 :]
                assert status(answer) == expected
            assert sockets_of(process) <= 5
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("token", ["", "authorization: Bearer wrong\r\n"])
def test_a_slow_body_times_out(serve: Any, name: str, token: str) -> None:
    options = {"FDBQ_TOKEN": "right"} if token else {}
    with serve("--body-timeout", "0.6", **options) as (_, client):
        with connected(client, 2) as connections:
            for each in connections:
                each.sendall(PUSH % name.encode() + token.encode())
                each.sendall(b'content-length: 9000\r\n\r\n{"item": ')
            # The server sends only one response, even an early one.
            assert status(until_closed(connections[0])) == (401 if token else 408)
            sends_until_closed(connections[1], b" ", 0.1)
        right = {"authorization": "Bearer right"}
        assert client.get("/queues", headers=right).json()["queues"] == []


def test_a_missing_body_is_not_logged_as_a_failure(serve: Any, name: str) -> None:
    with serve("--body-timeout", "0.2") as (process, client):
        with connected(client, 3) as connections:
            for each in connections:
                each.sendall(PUSH % name.encode() + b"content-length: 9000\r\n\r\n{")
            assert [status(until_closed(each)) for each in connections] == [408] * 3
        assert client.get("/health").status_code == 200
        process.terminate()
        assert process.stderr.read() == ""


def test_an_idle_connection_is_closed(serve: Any) -> None:
    with serve("--keep-alive-timeout", "2") as (_, client), connected(client, 2) as connections:
        for each in connections:
            each.sendall(HEAD + b"\r\n")
            answer = b""
            while not answer.endswith(b'"ok"}'):
                answer += each.recv(65536)
        connections[1].sendall(b"\r\n")
        assert [until_closed(each) for each in connections] == [b"", b""]


def test_a_waiting_request_may_exceed_the_connection_timeouts(serve: Any, name: str) -> None:
    limits = ("--header-timeout", "--body-timeout", "--keep-alive-timeout")
    with serve(*(part for limit in limits for part in (limit, "1"))) as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        client.post(f"/queue/{name}/pop")
        with connected(client, 2) as [alone, pipelined]:
            wait = WAIT % (name.encode(), 3)
            alone.sendall(wait)
            pipelined.sendall(wait + HEAD)
            for each in (alone, pipelined):
                assert b'{"items":[]}' in until_closed(each)


def test_a_client_that_does_not_read_its_response_is_disconnected(serve: Any, name: str) -> None:
    with serve("--body-timeout", "1") as (process, client):
        path = f"/queue/{name}"
        for _ in range(3):
            client.post(f"{path}/push", json={"item": {"x": "x" * 7_000_000}})
        before = sockets_of(process)
        with connected(client) as [connection]:
            connection.sendall(f"GET {path}/items HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            connection.recv(1)
            wait_until(lambda: sockets_of(process) == before)
        assert client.get("/health").status_code == 200


def test_a_client_that_has_read_its_response_may_idle(serve: Any, name: str) -> None:
    """The time limit for reading a response ends with the response."""
    with serve("--body-timeout", "2") as (_, client):
        path = f"/queue/{name}"
        client.post(f"{path}/push", json={"item": {"x": "x" * 7_000_000}})
        with connected(client) as [connection], connection.makefile("rb") as answers:
            for idle in (4.5, 0):
                connection.sendall(f"GET {path}/items HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
                assert b"200" in answers.readline()
                headers = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
                assert len(answers.read(int(headers[b"content-length"]))) > 7_000_000
                time.sleep(idle)  # more than twice the limit, in another process


def test_idle_connections_are_closed_to_accept_new_requests(serve: Any) -> None:
    with serve("--connection-limit", "20") as (process, client):
        assert client.get("/health").status_code == 200
        with connected(client, 100) as connections:
            for number, each in enumerate(connections):
                each.sendall(HEAD if number % 2 else b"")
            for each in connections[:80]:
                until_closed(each)
            assert sockets_of(process) <= 20 + 4
            for _ in range(30):
                assert httpx.get(f"{client.base_url}/health", timeout=TIMEOUT).status_code == 200


def test_idle_connections_within_the_limit_stay_open(serve: Any) -> None:
    with serve("--connection-limit", "20") as (process, client), connected(client, 20) as idle:
        wait_until(lambda: sockets_of(process) == 20 + 3)
        for each in idle:
            each.sendall(HEAD + b"\r\n")
            assert status(each.recv(65536)) == 200


def test_at_the_connection_limit_requests_get_503_and_health_is_served(
    serve: Any, name: str
) -> None:
    busy = {"detail": "the server is busy; retry later"}
    with serve("--connection-limit", "20", "--body-timeout", "600") as (process, client):
        with ExitStack() as stack:
            [*working] = stack.enter_context(connected(client, 20 - 8))
            for each in working:
                each.sendall(PUSH % name.encode() + b"content-length: 11\r\n\r\n")
            wait_until(lambda: client.get("/").status_code == 503)
            stack.enter_context(connected(client, 50))
            for _ in range(20):
                with httpx.Client(base_url=client.base_url, timeout=TIMEOUT) as other:
                    answer = other.post(f"/queue/{name}/push", json={"item": {}})
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                    assert answer.json() == busy
                    assert other.get("/health").status_code == 200
            assert sockets_of(process) <= 20 + 4
            for each in working:
                each.sendall(b'{"item":{}}')
                assert status(each.recv(65536)) == 201
        assert httpx.get(f"{client.base_url}/", timeout=TIMEOUT).status_code == 200


def test_the_server_survives_more_idle_connections_than_file_descriptors(
    serve: Any, name: str
) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731
    with serve(preexec_fn=limit) as (process, client):
        log: list[str] = []
        reading = threading.Thread(target=lambda: log.append(process.stderr.read()))
        reading.start()
        with connected(client, 400):
            for number in range(20):
                with httpx.Client(base_url=client.base_url, timeout=TIMEOUT) as other:
                    assert other.get("/health").status_code == 200
                    body = {"item": {"n": number}}
                    assert other.post(f"/queue/{name}/push", json=body).status_code == 201
        process.kill()
        reading.join()
        assert log == [""]


def test_running_out_of_descriptors_does_not_flood_the_log(serve: Any) -> None:
    with serve() as (process, client):
        assert client.get("/health").status_code == 200
        client.close()
        wait_until(lambda: sockets_of(process) == 3)
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{process.pid}/fd"))
        for room in (0, 10):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + room, before[1]))
            with connected(client, 100) as connections:
                if room:
                    health = httpx.get(f"{client.base_url}/health", timeout=TIMEOUT)
                    assert health.status_code == 200
                else:
                    assert {until_closed(each) for each in connections} == {b""}
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        assert httpx.get(f"{client.base_url}/health", timeout=TIMEOUT).status_code == 200
        process.terminate()
        assert process.stderr.read() == ""


def test_a_connection_limit_above_the_descriptor_limit_is_rejected_at_startup(
    tmp_path: Path,
) -> None:
    def refusal(files: int, *options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fdbq", "serve", "--db", "memory:", "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
        assert done.returncode == 2
        return done.stderr

    assert "5,000 connections need 5,128 open files" in refusal(1024, "--connection-limit", "5000")
    assert "16 connections need 144 open files" in refusal(140)
