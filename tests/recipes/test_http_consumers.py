"""Consumers over HTTP in other languages, with a server as users start it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.pages import ROOT
from tests.support.server import served, serving
from tests.support.waiting import MAX_WAIT, wait_until

JOB_SH = """\
item=$(cat)
echo "$FDBQ_ID" >>"$BEGAN"
field() { printf '%s' "$item" | jq -r ".$1"; }
case $(field do) in
fail) echo 'no such host' >&2 && exit 3 ;;
wait) until [ -e "$(field for)" ]; do sleep 0.05; done ;;
push) printf '%s' "$item" | jq -c '.jobs[]' >"$FDBQ_THEN" ;;
esac
printf '%s' "$item" | jq '{got: .}'
"""

JOB_MJS = """\
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export default async function (item, { id, signal }) {
  appendFileSync(process.env.BEGAN, `${id}\\n`);
  if (item.do === "fail") throw new Error("no such host");
  if (item.do === "wait") while (!existsSync(item.for)) await sleep(50, null, { signal });
  return { result: { got: item }, then: item.jobs };
}
"""

PROGRAMS = {"sh": ("curl", "jq"), "mjs": ("node",)}
"""The programs that each recipe needs."""


class Queue(Api):
    """A queue as a client of the server sees it."""

    def make(self, **options: Any) -> None:
        assert self.send("PUT", "", {"keep_number": 1000, **options}).status_code == 201

    def push_all(self, *items: Any) -> list[str]:
        return [self.push(item) for item in items]

    def stats(self, *names: str) -> list[int]:
        stats = self.get("/stats")
        return [stats[name] for name in names]


class Consumers:
    """Processes of one recipe, with a handler that does what the items say."""

    def __init__(self, recipe: str, path: Path) -> None:
        self._began = path / "began"
        self._errors = path / "errors"
        job = path / f"job.{recipe}"
        job.write_text({"sh": JOB_SH, "mjs": JOB_MJS}[recipe])
        self._command = [str(ROOT / "recipes" / f"consumer.{recipe}")]
        self._handler = ["sh", str(job)] if recipe == "sh" else [str(job)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, url: Any, queue: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a consumer; a signal to the process reaches only it, as that of a supervisor."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FDBQ_")}
        given = {"FDBQ_URL": str(url).rstrip("/"), "BEGAN": str(self._began), **environment}
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                [*self._command, queue, *self._handler],
                env=inherited | given,
                stderr=errors,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def began(self) -> list[str]:
        """Return the id of the item for each time that a handler began."""
        return self._began.read_text().splitlines() if self._began.exists() else []

    def errors(self) -> str:
        return self._errors.read_text()

    def stop(self) -> None:
        """Send SIGTERM to all; each must end well."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(MAX_WAIT) for process in self.processes] == [0] * len(self.processes)


@pytest.fixture(params=PROGRAMS)
def consumers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Consumers]:
    missing = [each for each in PROGRAMS[request.param] if shutil.which(each) is None]
    if missing:
        pytest.skip(f"consumer.{request.param} needs {' and '.join(missing)}")
    if (
        request.param == "mjs"
        and subprocess.run(["node", "-e", "fetch"], stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("consumer.mjs needs Node 18 or later")
    started = Consumers(request.param, tmp_path)
    yield started
    for process in started.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a database: what a client sees of a server is the same on each engine."""
    return f"embedded:{tmp_path / 'db'}"


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with served(url) as (_, client):
        yield client


@pytest.fixture
def queue(client: httpx.Client) -> Queue:
    """Return a queue whose name has to be quoted, and which keeps done items."""
    queue = Queue(client, "jobs/50% ä")
    queue.make(max_attempts=3)
    return queue


def all_done(queue: Queue, number: int) -> Callable[[], bool]:
    return lambda: queue.stats("ready", "delayed", "claimed", "done") == [0, 0, 0, number]


def test_two_consumers_with_a_token_do_each_job_once_and_store_results(
    consumers: Consumers, url: str, tmp_path: Path
) -> None:
    token = """'to"ken\\$HOME`;"""
    (tmp_path / "tokens").write_text(token)
    with served(url, "--token-file", str(tmp_path / "tokens")) as (_, client):
        refused = consumers.start(client.base_url, "jobs")
        assert refused.wait(MAX_WAIT) == 1
        assert "a token is required" in consumers.errors()
        consumers.processes.remove(refused)
        client.headers["Authorization"] = f"Bearer {token}"
        queue = Queue(client, "jobs")
        queue.make(kind="fifo")
        both = tmp_path / "both"
        items = [{"do": "wait", "for": str(both)}] * 2
        items += [{"do": "nothing", "text": f"{n} 'quoted\" $HOME `\\ \n"} for n in range(4)]
        ids = queue.push_all(*items)
        for _ in range(2):
            consumers.start(client.base_url, queue.name, FDBQ_TOKEN=token)
        wait_until(lambda: len(consumers.began()) == 2)  # one would end all before the other runs
        both.touch()
        wait_until(all_done(queue, len(ids)))
        assert sorted(consumers.began()) == sorted(ids)
        assert [queue.get(f"/items/{id}")["result"] for id in ids] == [
            {"got": item} for item in items
        ]
        assert queue.stats("total_completed", "total_failed", "total_retried") == [6, 0, 0]
        consumers.stop()


def test_a_job_that_fails_or_pushes_what_is_refused_becomes_a_dead_letter(
    consumers: Consumers, client: httpx.Client
) -> None:
    """The consumer starts before its queue exists."""
    queue = Queue(client, "later")
    consumers.start(client.base_url, queue.name)
    wait_until(lambda: "trying again" in consumers.errors())
    queue.make(max_attempts=1)
    refused = {"do": "push", "jobs": [{"queue": "other", "item": 1, "colour": "red"}]}
    bad, worse, _ = queue.push_all({"do": "fail"}, refused, {"do": "nothing"})
    wait_until(lambda: queue.stats("dead", "done") == [2, 1])
    assert "no such host" in queue.get(f"/items/{bad}")["error"]
    assert "colour" in queue.get(f"/items/{worse}")["error"]
    consumers.stop()


def test_a_long_job_keeps_its_lease_and_is_stopped_once_that_is_lost(
    consumers: Consumers, queue: Queue, client: httpx.Client, tmp_path: Path
) -> None:
    (id,) = queue.push_all({"do": "wait", "for": str(tmp_path / "go")})
    consumers.start(client.base_url, queue.name, FDBQ_LEASE="3")
    wait_until(lambda: len(consumers.began()) == 1)
    ends: set[str] = set()
    wait_until(lambda: ends.add(queue.get(f"/items/{id}")["lease_ends"]) or len(ends) > 2)
    queue.post(f"/items/{id}/release")
    wait_until(lambda: len(consumers.began()) > 1)  # the one consumer has stopped the first
    assert "the lease was lost" in consumers.errors()
    (tmp_path / "go").touch()
    wait_until(all_done(queue, 1))
    assert queue.stats("total_completed") == [1]
    consumers.stop()


def test_sigterm_loses_nothing_and_ends_an_idle_consumer(
    consumers: Consumers, queue: Queue, client: httpx.Client, tmp_path: Path
) -> None:
    ids = queue.push_all({"do": "wait", "for": str(tmp_path / "go")}, *[{"do": "nothing"}] * 2)
    process = consumers.start(client.base_url, queue.name)
    wait_until(lambda: consumers.began() == ids[:1])
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert process.wait(MAX_WAIT) == 0
    assert queue.stats("done", "ready", "claimed", "total_failed") == [1, 2, 0, 0]
    assert consumers.began() == ids[:1]
    consumers.start(client.base_url, queue.name)
    wait_until(all_done(queue, 3))
    consumers.stop()
    assert consumers.began() == ids


def test_a_job_that_ends_pushes_others_in_the_same_transaction(
    consumers: Consumers, queue: Queue, client: httpx.Client
) -> None:
    full, other = Queue(client, "full"), Queue(client, "other")
    full.make(max_size=1)
    full.push("first")
    jobs = [{"queue": "other", "item": 1, "priority": 4}, {"queue": "full", "item": "second"}]
    queue.push_all({"do": "push", "jobs": jobs})
    other.make()
    consumers.start(client.base_url, queue.name)
    wait_until(lambda: "trying again" in consumers.errors())
    assert queue.stats("claimed", "done") == [1, 0]
    assert other.stats("ready") == [0]  # all or nothing
    assert full.post("/pop", {"n": 1})["items"][0]["item"] == "first"
    wait_until(all_done(queue, 1))
    assert full.post("/pop", {"n": 1})["items"][0]["item"] == "second"
    (pushed,) = other.post("/pop", {"n": 10})["items"]
    assert (pushed["item"], pushed["priority"]) == (1, 4)
    consumers.stop()


def test_a_restart_of_the_server_loses_nothing(
    consumers: Consumers, url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        _, address = first.enter_context(serving(url))
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
        queue = Queue(client, "jobs")
        queue.make()
        ids = queue.push_all({"do": "wait", "for": str(tmp_path / "go")}, {"do": "nothing"})
        consumers.start(address, queue.name)
        wait_until(lambda: consumers.began() == ids[:1])
        first.close()
        (tmp_path / "go").touch()
        wait_until(lambda: "trying again" in consumers.errors())
        stack.enter_context(serving(url, "--port", address.rpartition(":")[2]))
        wait_until(all_done(queue, 2))
        assert consumers.began() == ids
        consumers.stop()
