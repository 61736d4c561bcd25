"""What a client can make `fdbq serve` do before its token is looked at: nothing without a limit."""

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

LONG = 60.0  # seconds; far more than any limit in these tests
HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WAIT = b"POST /queue/%b/pop?wait=%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
PUSH = b"POST /queue/%b/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """A server of one engine: none of this depends on the database."""
    return partial(served, str(tmp_path / "db"))


@contextmanager
def connected(client: httpx.Client, count: int = 1) -> Iterator[list[socket.socket]]:
    """Connections of their own to the server of a client."""
    with ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        yield [
            stack.enter_context(socket.create_connection(address, timeout=LONG))
            for _ in range(count)
        ]


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def sends_until_closed(
    connection: socket.socket, piece: bytes, pause: float = 0, most: int = 1000
) -> tuple[int, bytes]:
    """How often a client could send a piece, and what it was answered."""
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
    """The memory of a process, in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def sockets_of(process: Any) -> int:
    """How many sockets a process has open."""
    found = 0
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(each).startswith("socket:")
    return found


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


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
def test_a_head_without_an_end_is_refused(serve: Any, begin: bytes, piece: bytes) -> None:
    with serve() as (process, client), connected(client) as [connection]:
        assert client.get("/health").status_code == 200
        before = resident(process)
        connection.sendall(begin)
        sends_until_closed(connection, piece)  # fails after 60 to 100 MB
        assert resident(process) - before < 20
        assert client.get("/health").status_code == 200


def test_a_head_up_to_the_limits_is_read(serve: Any) -> None:
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


def test_a_large_body_is_not_part_of_the_head(serve: Any, name: str) -> None:
    with serve("--header-limit", "1000") as (_, client):
        item = {"item": {"x": "x" * 1_000_000}}
        assert client.post(f"/queue/{name}/push", json=item).status_code == 201
        pieces = [b'{"item": {}', *[b" "] * 3000, b"}"]  # each with six bytes around it
        headers = {"content-type": "application/json"}
        answer = client.post(f"/queue/{name}/push", content=iter(pieces), headers=headers)
        assert answer.status_code == 201


def test_more_requests_ahead_of_their_answers_than_allowed_are_refused(
    serve: Any, name: str
) -> None:
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
def test_a_head_has_to_come_in_time(serve: Any, begin: bytes, piece: bytes, expected: int) -> None:
    with serve("--header-timeout", "1.5") as (process, client):
        with connected(client, 20) as connections:
            for each in connections:
                each.sendall(begin)
            if piece:
                _, answer = sends_until_closed(connections[0], piece, 0.1)
                assert status(answer) in (expected, 200, 0)  # 0: reset, with the answer lost
            for each in connections[1:]:
                answer = until_closed(each)
                if begin.endswith(HEAD) and begin != HEAD:
                    answer = answer[answer.index(b'"ok"}') + 5 :]
                assert status(answer) == expected
            assert sockets_of(process) <= 5
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("token", ["", "authorization: Bearer wrong\r\n"])
def test_a_body_has_to_come_in_time(serve: Any, name: str, token: str) -> None:
    options = {"FDBQ_TOKEN": "right"} if token else {}
    with serve("--body-timeout", "0.6", **options) as (_, client):
        with connected(client, 2) as connections:
            for each in connections:
                each.sendall(PUSH % name.encode() + token.encode())
                each.sendall(b'content-length: 9000\r\n\r\n{"item": ')
            # After an early answer no other one comes.
            assert status(until_closed(connections[0])) == (401 if token else 408)
            sends_until_closed(connections[1], b" ", 0.1)
        right = {"authorization": "Bearer right"}
        assert client.get("/queues", headers=right).json() == {"queues": []}


def test_a_body_that_does_not_come_is_not_logged_as_a_failure(serve: Any, name: str) -> None:
    with serve("--body-timeout", "0.2") as (process, client):
        with connected(client, 3) as connections:
            for each in connections:
                each.sendall(PUSH % name.encode() + b"content-length: 9000\r\n\r\n{")
            assert [status(until_closed(each)) for each in connections] == [408] * 3
        assert client.get("/health").status_code == 200
        process.terminate()
        assert process.stderr.read() == ""


def test_a_connection_without_requests_is_closed(serve: Any) -> None:
    with serve("--keep-alive-timeout", "2") as (_, client), connected(client, 2) as connections:
        for each in connections:
            each.sendall(HEAD + b"\r\n")
            answer = b""
            while not answer.endswith(b'"ok"}'):
                answer += each.recv(65536)
        connections[1].sendall(b"\r\n")
        assert [until_closed(each) for each in connections] == [b"", b""]


def test_a_request_that_waits_outlasts_every_time_limit(serve: Any, name: str) -> None:
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


def test_a_client_that_reads_nothing_of_its_answer_is_disconnected(serve: Any, name: str) -> None:
    with serve("--body-timeout", "1") as (process, client):
        path = f"/queue/{name}"
        for _ in range(3):
            client.post(f"{path}/push", json={"item": {"x": "x" * 7_000_000}})
        before = sockets_of(process)
        with connected(client) as [connection]:
            connection.sendall(f"GET {path}/items HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            connection.recv(1)
            eventually(lambda: sockets_of(process) == before)
        assert client.get("/health").status_code == 200


def test_a_client_that_has_read_its_answer_may_be_idle(serve: Any, name: str) -> None:
    """The time for reading an answer ends with the answer."""
    with serve("--body-timeout", "2") as (_, client):
        path = f"/queue/{name}"
        client.post(f"{path}/push", json={"item": {"x": "x" * 7_000_000}})
        with connected(client) as [connection], connection.makefile("rb") as answers:
            for idle in (4.5, 0):
                connection.sendall(f"GET {path}/items HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
                assert b"200" in answers.readline()
                headers = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
                assert len(answers.read(int(headers[b"content-length"]))) > 7_000_000
                time.sleep(idle)


def test_idle_connections_make_room_for_those_that_ask(serve: Any) -> None:
    with serve("--connection-limit", "20") as (process, client):
        assert client.get("/health").status_code == 200
        with connected(client, 100) as connections:
            for number, each in enumerate(connections):
                each.sendall(HEAD if number % 2 else b"")
            for each in connections[:80]:
                until_closed(each)
            assert sockets_of(process) <= 20 + 4
            for _ in range(30):
                assert httpx.get(f"{client.base_url}/health", timeout=LONG).status_code == 200


def test_as_many_idle_connections_as_the_limit_stay_open(serve: Any) -> None:
    with serve("--connection-limit", "20") as (process, client), connected(client, 20) as idle:
        eventually(lambda: sockets_of(process) == 20 + 3)
        for each in idle:
            each.sendall(HEAD + b"\r\n")
            assert status(each.recv(65536)) == 200


def test_at_the_limit_others_are_told_so_and_health_is_answered(serve: Any, name: str) -> None:
    busy = {"detail": "the server is busy; retry later"}
    with serve("--connection-limit", "20", "--body-timeout", "600") as (process, client):
        with ExitStack() as stack:
            [*working] = stack.enter_context(connected(client, 20 - 8))
            for each in working:
                each.sendall(PUSH % name.encode() + b"content-length: 11\r\n\r\n")
            eventually(lambda: client.get("/").status_code == 503)
            stack.enter_context(connected(client, 50))
            for _ in range(20):
                with httpx.Client(base_url=client.base_url, timeout=LONG) as other:
                    answer = other.post(f"/queue/{name}/push", json={"item": {}})
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                    assert answer.json() == busy
                    assert other.get("/health").status_code == 200
            assert sockets_of(process) <= 20 + 4
            for each in working:
                each.sendall(b'{"item":{}}')
                assert status(each.recv(65536)) == 201
        assert httpx.get(f"{client.base_url}/", timeout=LONG).status_code == 200


def test_few_descriptors_are_enough_for_many_idle_connections(serve: Any, name: str) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731
    with serve(preexec_fn=limit) as (process, client):
        log: list[str] = []
        reading = threading.Thread(target=lambda: log.append(process.stderr.read()))
        reading.start()
        with connected(client, 400):
            for number in range(20):
                with httpx.Client(base_url=client.base_url, timeout=LONG) as other:
                    assert other.get("/health").status_code == 200
                    body = {"item": {"n": number}}
                    assert other.post(f"/queue/{name}/push", json=body).status_code == 201
        process.kill()
        reading.join()
        assert log == [""]


def test_descriptors_that_run_out_are_not_logged_without_an_end(serve: Any) -> None:
    with serve() as (process, client):
        assert client.get("/health").status_code == 200
        client.close()
        eventually(lambda: sockets_of(process) == 3)
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{process.pid}/fd"))
        for room in (0, 10):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + room, before[1]))
            with connected(client, 100) as connections:
                if room:
                    health = httpx.get(f"{client.base_url}/health", timeout=LONG)
                    assert health.status_code == 200
                else:
                    assert {until_closed(each) for each in connections} == {b""}
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        assert httpx.get(f"{client.base_url}/health", timeout=LONG).status_code == 200
        process.terminate()
        assert process.stderr.read() == ""


def test_more_connections_than_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    def refusal(files: int, *options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fdbq", "serve", "--db", "memory:", "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=LONG,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
        assert done.returncode == 2
        return done.stderr

    assert "5,000 connections need 5,128 open files" in refusal(1024, "--connection-limit", "5000")
    assert "16 connections need 144 open files" in refusal(140)
