"""`fdbq serve` as a process: its address, its shutdown and its concurrency."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from fdbqueue import PriorityQueue
from fdbqueue.http import Tokens
from tests.support.keys import waiting_clients
from tests.support.server import serving
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


def test_a_token_file_may_contain_a_byte_order_mark_and_comments(
    serve: Any, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(b"\xef\xbb\xbfone\r\n# of ada\r\n  #two\r\n\ttwo \r\n")

    def statuses(client: Any, *tokens: bytes) -> list[int]:
        return [
            client.get("/v1/queues", headers={"authorization": b"Bearer " + token}).status_code
            for token in tokens
        ]

    with serve("--token-file", str(file), FDBQ_TOKEN="three read\n") as (_, client):
        assert statuses(client, b"one", b"two", b"three") == [200] * 3
        refused = b"\xef\xbb\xbfone", b"\xef\xbb\xbf", b"# of ada", b"#", b"#two"
        assert statuses(client, *refused) == [401] * 5


@pytest.mark.parametrize(
    "line", ["two words", "one # comment", "schlüssel", "\ufeffone", "a\x00b", "a\x7fb"]
)
def test_an_invalid_line_in_a_token_file_is_rejected(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"good\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match="printable ASCII without spaces") as error:
        Tokens(file=file)
    assert line not in str(error.value)  # it may be a secret


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


def test_a_client_that_disconnects_while_waiting_takes_no_item(
    serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    with serve() as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {"n": 0}})
        client.post(f"/queue/{name}/pop")
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"/queue/{name}/pop", params={"wait": 60}, timeout=0.2)
        wait_until(lambda: not waiting_clients(db, queue))
        client.post(f"/queue/{name}/push", json={"item": {"n": 1}})
        answer = client.post(f"/queue/{name}/pop", params={"wait": 50})
        assert answer.json()["items"][0]["item"] == {"n": 1}


def test_waiting_and_slow_clients_do_not_block_other_clients(
    serve: Any, db: Any, name: str
) -> None:
    queue = PriorityQueue.named(db, name)
    with serve() as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        client.post(f"/queue/{name}/pop")
        address = (client.base_url.host, client.base_url.port)
        slow = [socket.create_connection(address) for _ in range(50)]
        for number, each in enumerate(slow):
            head = f"POST /queue/{name}/{'pop?wait=60' if number % 2 else 'push'} HTTP/1.1\r\n"
            length = "content-length: 0\r\n\r\n" if number % 2 else "content-length: 90\r\n\r\n{"
            each.sendall(
                f"{head}host: 127.0.0.1\r\ncontent-type: application/json\r\n{length}".encode()
            )
        wait_until(lambda: waiting_clients(db, queue))
        began = time.monotonic()
        for _ in range(20):
            assert client.get("/v1/queues").status_code == 200
        assert time.monotonic() - began < 50  # the waiting clients wait for a minute
        for each in slow:
            each.close()


def test_a_client_that_disconnects_at_once_takes_no_item(serve: Any, name: str) -> None:
    with serve() as (_, client):
        path = f"/v1/queues/{name}"
        items = [{"item": {"n": n}} for n in range(3)]
        client.post(f"{path}/batch", json={"items": items})
        address = (client.base_url.host, client.base_url.port)
        for each in ("pop", "claim") * 30:
            with socket.create_connection(address, timeout=60) as leaving:
                head = f"POST {path}/{each} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
                leaving.sendall(head.encode())
        left = client.post(f"{path}/pop", json={"n": 3, "wait": 50}).json()["items"]
        while len(left) < len(items):  # requests that came before may still hold some
            left += client.post(f"{path}/pop", json={"n": 3, "wait": 50}).json()["items"]
        assert sorted(each["item"]["n"] for each in left) == [0, 1, 2]
