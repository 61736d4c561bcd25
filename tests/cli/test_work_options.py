"""The options of `fdbq work` for its queues, its log and its health checks."""

from __future__ import annotations

import json
import signal
import socket

import httpx
import pytest

from tests.support.shell import Shell
from tests.support.waiting import wait_until

SHOP = """
import fdbqueue
app = fdbqueue.App()
@app.job(queue="{queue}mail", name="send")
def send():
    print("mail", flush=True)
@app.job(queue="{queue}images", name="shrink", retry=fdbqueue.jobs.Retry(attempts=1))
def shrink(fail=False):
    print("image", flush=True)
    if fail:
        raise OSError("busy")
"""


@pytest.fixture
def fdbq(local: Shell) -> Shell:
    (local.path / "shop.py").write_text(SHOP.format(queue=local.environment["q"]))
    return local


def work(fdbq: Shell, *arguments: str) -> list[str]:
    """Run all jobs one after the other, and return what they print."""
    done = fdbq("work", "--app", "shop:app", "--drain", "--quiet", *arguments)
    assert done.stderr == ""
    return done.stdout.splitlines()[:-1]


def push(fdbq: Shell, queue: str, job: str, n: int) -> None:
    fdbq.output("import", queue, stdin=n * f'{{"job": "{job}"}}\n')


def test_queues_have_an_order_or_weights(fdbq: Shell) -> None:
    mail, images = (f"{fdbq.environment['q']}{each}" for each in ("mail", "images"))
    for options, expected in (
        ((images, mail), 4 * ["image"] + 4 * ["mail"]),
        ((f"{mail}=1", f"{images}=1"), None),
    ):
        push(fdbq, mail, "send", 4)
        push(fdbq, images, "shrink", 4)
        done = work(fdbq, *options)
        if expected is None:  # in turns; on a slow machine, a first job may go back, and be second
            assert [{*pair} for pair in zip(done[::2], done[1::2])] == 4 * [{"mail", "image"}]
        else:
            assert done == expected


def test_the_log_is_json_lines(fdbq: Shell) -> None:
    mail, images = (f"{fdbq.environment['q']}{each}" for each in ("mail", "images"))
    sent = fdbq.output("push", mail, '{"job": "send"}').strip()
    failed = fdbq.output("push", images, '{"job": "shrink", "args": [true]}').strip()
    done = fdbq("work", "--app", "shop:app", mail, images, "--drain", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    assert lines[0]["logger"] == "fdbqueue.jobs"
    by_id = {line["id"]: line for line in lines if "outcome" in line}
    first, second = by_id[sent], by_id[failed]
    assert 0 < first.pop("seconds") < 60
    assert first.pop("message").startswith(f"{mail} {sent} send done, attempt 1, ")
    assert first.pop("time").endswith("+00:00")
    assert first == {
        **{"level": "INFO", "logger": "fdbqueue.worker", "queue": mail, "job": "send"},
        **{"id": sent, "attempt": 1, "outcome": "done"},
    }
    assert second["outcome"] == "dead"
    assert second["traceback"].endswith("OSError: busy")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_health_is_served_until_the_end_and_by_one_worker(fdbq: Shell, processes: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    queue = fdbq.environment["q"]
    arguments = ("work", queue, "--exec", "true", "--health-port", port)
    process = fdbq.start(*arguments)

    def status() -> str:
        try:
            return str(httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).json()["status"])
        except httpx.TransportError:
            return ""

    try:
        wait_until(lambda: status() == f"there is no queue {queue!r} yet")
        assert httpx.get(f"http://127.0.0.1:{port}/live", timeout=60).status_code == 200
        fdbq.output("push", queue, "1")
        wait_until(lambda: status() == "ok")
        for option in ("--health-port", "--metrics-port"):
            taken = fdbq(*arguments[:-2], option, port, "--processes", processes)
            assert taken.returncode in (1, 2)
            assert "cannot listen" in taken.stderr
            assert port in taken.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.communicate()
    assert status() == ""
