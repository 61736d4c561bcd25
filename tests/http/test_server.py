"""`fdbq serve` as a process: where it listens, how it stops, and that nobody holds up others."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest


def refused(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fdbq", "serve", "--db", "memory:", "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_another_address_than_the_loopbacks_needs_a_token(tmp_path: Path) -> None:
    assert "give a token" in refused("--host", "0.0.0.0")
    (tmp_path / "empty").write_text("\n")
    assert "no token in it" in refused("--token-file", str(tmp_path / "empty"))
    assert "a rate is like" in refused("--rate", "much")


def test_tokens_come_from_a_file_or_the_environment(serve: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one\n\ntwo\n")
    with serve("--token-file", str(file), FDBQ_READ_ONLY_TOKEN="three") as (_, client):
        statuses = [
            client.get("/queues", headers={"authorization": f"Bearer {token}"}).status_code
            for token in ("one", "two", "three", "four")
        ]
    assert statuses == [200, 200, 200, 401]


def test_requests_in_flight_finish_when_it_is_stopped(serve: Any, name: str) -> None:
    path = f"/queue/{name}/pop"
    with serve() as (process, client):
        client.post(f"/queue/{name}/push", json={"item": {}})
        assert len(client.post(path).json()["items"]) == 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.post, path, params={"wait": 60})
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert waiting.result(20).json() == {"items": []}
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_who_goes_away_while_it_waits_takes_nothing(serve: Any, name: str) -> None:
    with serve() as (_, client):
        client.post(f"/queue/{name}/push", json={"item": {"n": 0}})
        client.post(f"/queue/{name}/pop")
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"/queue/{name}/pop", params={"wait": 60}, timeout=0.2)
        time.sleep(0.5)
        client.post(f"/queue/{name}/push", json={"item": {"n": 1}})
        time.sleep(0.3)
        assert client.post(f"/queue/{name}/pop").json()["items"][0]["item"] == {"n": 1}


def test_those_who_wait_or_are_slow_do_not_hold_up_others(serve: Any, name: str) -> None:
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
        time.sleep(0.3)
        began = time.monotonic()
        for _ in range(20):
            assert client.get("/queues").status_code == 200
        assert time.monotonic() - began < 10  # they wait for a minute
        for each in slow:
            each.close()


def test_clients_at_once_get_each_item_once(serve: Any, name: str) -> None:
    with serve() as (_, client):
        lock = threading.Lock()
        taken: list[int] = []

        def work(number: int) -> None:
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                for item in range(15):
                    body = {"item": {"n": 100 * number + item}, "priority": item % 3}
                    assert own.post(f"/queue/{name}/push", json=body).status_code == 201
                    items = own.post(f"/queue/{name}/pop").json()["items"]
                    with lock:
                        taken.extend(each["item"]["n"] for each in items)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        while items := client.post(f"/queue/{name}/pop", params={"depth": 50}).json()["items"]:
            taken.extend(each["item"]["n"] for each in items)
    assert sorted(taken) == [100 * number + item for number in range(8) for item in range(15)]
