"""`fdbq serve` as a process: its address, its shutdown and its concurrency."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from fdbqueue import PriorityQueue
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

        def ask(verb: str, body: bytes = b"") -> socket.socket:
            asking = socket.create_connection(address, timeout=60)
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
            ask(verb).close()  # at once
        left = list[int]()
        while len(left) < 3:  # requests that came before may still hold some
            popped = client.post(f"{path}/pop", json={"n": 3, "wait": 50}).json()["items"]
            left += [each["item"]["n"] for each in popped]
        assert sorted(left) == [0, 1, 2]
