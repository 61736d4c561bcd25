"""The options of `fdbq work` for its queues, its log and its health checks."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.shell import Shell, error_of
from tests.support.waiting import wait_until

SHOP = """
import fdbqueue
app = fdbqueue.App()
@app.job(queue="{queue}mail", name="send")
def send(snooze=False):
    if snooze:
        raise fdbqueue.jobs.Snooze("1h")
    print("mail", flush=True)
@app.job(queue="{queue}images", name="shrink", retry=fdbqueue.jobs.Retry(attempts=1))
def shrink(fail=False):
    print("image", flush=True)
    if fail:
        raise OSError("busy")
"""


@pytest.fixture
def fdbq(shared_url: str, tmp_path: Path, name: str, db: object) -> Shell:
    """Return the command line on the database of the test, whose queues are dropped after it."""
    (tmp_path / "shop.py").write_text(SHOP.format(queue=name))
    return Shell(tmp_path, shared_url, name)


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
        ((mail, images), 4 * ["mail"] + 4 * ["image"]),
        ((), 4 * ["mail", "image"]),
        ((f"{mail}=1", f"{images}=1"), 4 * ["mail", "image"]),
    ):
        push(fdbq, mail, "send", 4)
        push(fdbq, images, "shrink", 4)
        assert work(fdbq, *options) == expected
    push(fdbq, mail, "send", 40)
    push(fdbq, images, "shrink", 40)
    done = work(fdbq, f"{mail}=3", images)
    assert done[:40].count("mail") == 30


def test_wrong_numbers_are_refused(fdbq: Shell) -> None:
    def refused(*arguments: str) -> str:
        return error_of(fdbq("work", "--app", "shop:app", *arguments))

    mail = f"{fdbq.environment['q']}mail"
    assert "'a=b' does not end with a number" in refused("a=b")
    assert "a weight is a number from 0.001 to 1,000, not 0" in refused(f"{mail}=0")
    assert "--at-most has 'other', but the queues to work on are" in refused("--at-most", "other=3")
    assert "--at-most is a number of jobs from 1, not 0" in refused("--at-most", f"{mail}=0")
    assert "--at-most is a number of jobs from 1, not 1.5" in refused("--at-most", f"{mail}=1.5")
    assert "'5' does not name a queue" in refused("--at-most", "5")
    assert "an address is PORT or HOST:PORT" in refused("--health-port", "localhost")
    assert "--at-most is for the queues of --app" in error_of(
        fdbq("work", mail, "shop:send", "--at-most", "a=1")
    )


def test_the_log_is_json_lines(fdbq: Shell) -> None:
    mail, images = (f"{fdbq.environment['q']}{each}" for each in ("mail", "images"))
    sent = fdbq.output("push", mail, '{"job": "send"}').strip()
    failed = fdbq.output("push", images, '{"job": "shrink", "args": [true]}').strip()
    snoozed = fdbq.output("push", mail, '{"job": "send", "args": [true]}').strip()
    done = fdbq("work", "--app", "shop:app", mail, images, "--drain", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    assert lines[0]["logger"] == "fdbqueue.jobs"
    by_id = {line["id"]: line for line in lines if "outcome" in line}
    first, second, third = by_id[sent], by_id[failed], by_id[snoozed]
    seconds = first.pop("seconds")
    assert 0 < seconds < 60
    assert first.pop("message").startswith(f"{mail} {sent} send done, attempt 1, ")
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "INFO",
        "logger": "fdbqueue.worker",
        "queue": mail,
        "job": "send",
        "id": sent,
        "attempt": 1,
        "outcome": "done",
    }
    assert (second["id"], second["outcome"]) == (failed, "dead")
    assert {*third} == {*second} - {"traceback"}
    assert (third["outcome"], third["job"], third["attempt"]) == ("snoozed", "send", 1)
    assert second["traceback"].endswith("OSError: busy")


def test_the_log_of_a_handler_is_json_lines_too(fdbq: Shell) -> None:
    queue = fdbq.environment["q"]
    fdbq.output("push", queue, "1")
    done = fdbq("work", queue, "--exec", "exit 3", "--drain", "--log-format", "json")
    start, line = [json.loads(line) for line in done.stderr.splitlines()]
    assert start["message"].startswith("working on ")
    assert line["outcome"] == "failed"
    assert "job" not in line


def test_health_is_served_while_a_worker_waits_for_its_queue(fdbq: Shell) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    queue = fdbq.environment["q"]
    process = fdbq.start("work", queue, "--exec", "true", "--health-port", str(port))

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
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.communicate()


@pytest.mark.parametrize("arguments", [("--app", "shop:app"), ("$q", "--exec", "true")])
def test_health_is_served_until_the_end(fdbq: Shell, arguments: tuple[str, ...]) -> None:
    fdbq.output("push", fdbq.environment["q"], "1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    arguments = tuple(each.replace("$q", fdbq.environment["q"]) for each in arguments)
    process = fdbq.start("work", *arguments, "--health-port", str(port))

    def is_ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).status_code == 200
        except httpx.ConnectError:
            return False

    try:
        wait_until(is_ready)
        taken = fdbq("work", *arguments, "--health-port", str(port))
        assert taken.returncode == 2
        assert f"127.0.0.1:{port}: cannot listen: Address already in use" in taken.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.communicate()
    assert not is_ready()


@pytest.mark.parametrize("option", ["--health-port", "--metrics-port"])
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_a_port_that_is_taken_is_an_error_at_the_start(
    fdbq: Shell, option: str, processes: tuple[str, ...]
) -> None:
    name = fdbq.environment["q"]
    fdbq.output("push", name, "1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        taken = fdbq("work", name, "--exec", "true", option, port, *processes)
    assert taken.returncode in (1, 2)
    assert port in taken.stderr
    assert "cannot listen" in taken.stderr
    assert len(fdbq.output("peek", name, "-n", "5").splitlines()) == 1
