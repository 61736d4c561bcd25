"""`fdbq work` runs the jobs that a program declares; its queues, its log and its health checks."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

from tests.support.cluster import free_port
from tests.support.shell import Shell, assert_prints, error_of
from tests.support.waiting import wait_until

SHOP = """
import fdbqueue
app = fdbqueue.App({database})
@app.job(queue={queue!r})
def add(x: int, y: int) -> int:
    print(x + y)
@app.job(queue={queue!r} + " too", retry=fdbqueue.jobs.Retry(attempts=1))
def fail() -> None:
    print("fails")
    raise OSError("busy")
nothing = fdbqueue.App()
"""


def write_shop(local: Shell, database: str = "") -> str:
    queue = local.environment["q"]
    (local.path / "shop.py").write_text(SHOP.format(database=database, queue=queue))
    return queue


def test_the_jobs_of_an_app_run_on_the_database_of_the_command(local: Shell) -> None:
    queue = write_shop(local)
    local.output("push", queue, '{"job": "shop.add", "args": [1], "kwargs": {"y": 2}}')
    done = local("work", "--app", "shop:app", "--drain")
    assert done.stdout == "3\n1 done, 0 failed\n"
    first, second = done.stderr.splitlines()[:2]
    assert f"queues {queue}, {queue} too; jobs shop.add, shop.fail" in first
    assert "shop.add done, attempt 1" in second
    local.output("push", f"{queue} too", '{"job": "shop.fail"}')
    local.output("push", queue, '{"job": "shop.add", "args": [1, 2]}')
    done = local("work", "--app", "shop:app", "--drain", f"{queue} too")
    assert (done.stdout, done.returncode) == ("fails\n0 done, 1 failed\n", 1)
    assert "OSError: busy" in done.stderr


def test_what_a_job_prints_is_seen_at_once(local: Shell) -> None:
    """Also in a log, and however Python buffers its output."""
    queue = write_shop(local)
    local.environment["PYTHONUNBUFFERED"] = "1"
    local.output("push", queue, '{"job": "shop.add", "args": [1, 2]}')
    with local.start("work", "--app", "shop:app", "--quiet") as worker:
        assert worker.stdout.readline() == "3\n"
        worker.terminate()


def test_an_app_with_a_database_works_on_its_own(local: Shell) -> None:
    queue = write_shop(local, repr(f"embedded:{local.path / 'its own'}"))
    value = '{"job": "shop.add", "args": [1, 2]}'
    local.output("push", queue, value)
    done = local("work", "--app", "shop:app", "--drain")
    assert done.stdout == "0 done, 0 failed\n"
    assert f"working on embedded:{local.path / 'its own'} (--db, " in done.stderr
    url = local.environment["FDBQ_DB"]
    chosen = local("work", "--app", "shop:app", "--drain", "--quiet", "--db", url)
    assert (chosen.stdout, chosen.stderr) == ("3\n1 done, 0 failed\n", "")


def test_what_is_no_app_or_no_handler_is_refused(local: Shell) -> None:
    queue = write_shop(local)
    local.output("push", queue, "1")
    elsewhere = error_of(local("work", "--app", "shpo:app"))
    assert f"it is neither in {local.path} nor on the Python path" in elsewhere
    assert "'shop:add' is not an app" in error_of(local("work", "--app", "shop:add"))
    assert "the app has no jobs" in error_of(local("work", "--app", "shop:nothing", "--drain"))
    assert "'shop:add' is a job" in error_of(local("work", queue, "shop:add"))
    for option, words in (
        ("a=b", "'a=b' does not end with a number"),
        (f"{queue}=0", "a weight is a number from 0.001 to 1,000, not 0"),
        ("--at-most=other=3", "--at-most has 'other', but the queues to work on are"),
        (f"--at-most={queue}=0", "--at-most is a number of jobs from 1, not 0"),
        (f"--at-most={queue}=1.5", "--at-most is a number of jobs from 1, not 1.5"),
    ):
        assert words in error_of(local("work", "--app", "shop:app", option))


def test_a_drain_of_a_queue_that_does_not_exist_fails(local: Shell) -> None:
    queue = write_shop(local)
    work = ("work", "--app", "shop:app", "--drain", "-q")
    assert local(*work, f"{queue} too").returncode == 0  # declared, though nothing was pushed
    local.output("push", queue, '{"job": "shop.add", "args": [1, 2]}')
    error = error_of(local(*work, f"{queue}x=2", f"{queue}=1", "--at-most", f"{queue}x=1"))
    assert f"there is no queue named '{queue}x'" in error
    assert local.output("counts", queue, "--json")  # nothing was run
    assert f"{queue}x" not in local.output("ls").split()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit()", "SystemExit ("),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ("),
        ("def __getattr__(name):\n    raise SystemExit(name)", "SystemExit: app ("),
        ("import os\nos.environ['NOT_SET']", "KeyError: 'NOT_SET' (PATH, line 2)"),
        ("import nothing_of_this_name", "'nothing_of_this_name' (PATH, line 1)"),
        ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("", "AttributeError: module 'broken' has no attribute 'app'"),
    ],
)
def test_a_module_that_cannot_be_used_is_an_error_with_its_place(
    local: Shell, code: str, message: str
) -> None:
    (local.path / "broken.py").write_text(code)
    message = message.replace("PATH", str(local.path / "broken.py"))
    for named in (("work", "--app"), ("jobs", "--app"), ("work", "jobs")):
        assert message in error_of(local(*named, "broken:app"))


def test_the_jobs_of_an_app_are_listed(local: Shell) -> None:
    (local.path / "shop.py").write_text(DECLARED)
    assert_prints(
        local,
        """
$ jobs --app shop:app
job queue priority attempts delays timeout unique group version
shop.again jobs 0 - patient - key key 1
shop.send mail 5 8 2s to 1h 1m30s yes mails 3
shop.sweep jobs 0 any 1s to 1h - sweep - 1
$ jobs --app shop:nothing
no jobs
""",
    )
    lines = local.output("jobs", "--app", "shop:app", "--json").splitlines()
    again, send, _ = map(json.loads, lines)
    assert (again["retry"], again["unique"], again["group"]) == ("patient", "key", "key")
    assert send["retry"].items() >= {"attempts": 8, "first": 2.0, "on": ["OSError"]}.items()
    assert (send["job"], send["queue"], send["timeout"]) == ("shop.send", "mail", 90.0)


def test_stored_names_that_no_job_has_are_listed_and_renamed(local: Shell) -> None:
    (local.path / "shop.py").write_text(RENAMED)
    for name in ("shop.gone", "shop.gone", "shop.old", "shop.send"):
        local.output("push", "mail", json.dumps({"job": name, "args": [1]}))
    local.output("push", "mail", '"no job"')
    assert_prints(
        local,
        """
$ jobs --app shop:app
job queue priority attempts delays timeout unique group version
shop.send mail 0 20 1s to 1h - - - 1
unknown job queue ready delayed claimed dead done
shop.gone mail 2 0 0 0 0
1 unknown name among 4 stored jobs
$ rename-job mail shop.gone shop.send
renamed shop.gone to shop.send: 2 ready
""",
    )
    lines = local.output("jobs", "--app", "shop:app", "--json").splitlines()
    assert json.loads(lines[0])["aliases"] == ["shop.old"]
    assert json.loads(lines[-1]) == {"unknown_jobs": 0, "looked_at": 4}
    again = local("rename-job", "mail", "shop.gone", "shop.send")
    assert (again.returncode, "mail has no job named shop.gone" in again.stderr) == (1, True)
    assert "the job has the name" in error_of(local("rename-job", "mail", "a", "a"))


RENAMED = """
import fdbqueue
app = fdbqueue.App()

@app.job(queue="mail", aliases=["shop.old"])
def send(number): ...
"""

DECLARED = """
import fdbqueue
from fdbqueue.jobs import Retry
app, nothing = fdbqueue.App("embedded:/nowhere"), fdbqueue.App()
def patient(error, context):
    return 60
def key(n):
    return str(n)
@app.job(queue="mail", priority=5, version=3, timeout="90s",
         retry=Retry(attempts=8, first="2s", on=OSError), unique=True, group="mails")
def send() -> None: ...
@app.job(retry=patient, unique=key, group=key)
def again(n: int) -> None: ...
@app.job(retry=Retry(attempts=None), unique="sweep")
def sweep() -> None: ...
"""


def test_a_command_that_takes_too_long_is_ended_with_its_children(local: Shell) -> None:
    queue = local.environment["q"]
    first, second = (local.output("push", queue, number).strip() for number in "12")
    local.output("limit", queue, "--attempts", "1")
    deaf = "trap '' TERM; sleep 300"
    script = f'read n; if [ $n = 1 ]; then sh -c "{deaf}" & sleep 300; else {deaf}; fi'
    options = ("--job-timeout", "100ms", "--grace", "500ms", "--concurrency", "2", "--drain")
    done = local("work", queue, "--exec", script, *options)
    assert "2 failed" in done.stdout
    assert "exit code -15" in local.output("show", queue, first)
    assert "exit code -9" in local.output("show", queue, second)


ADD = '{"job": "shop.add", "args": [1, 2]}'
FAIL = '{"job": "shop.fail"}'


def test_queues_have_an_order_or_weights(local: Shell) -> None:
    queue = write_shop(local)
    other = f"{queue} too"
    for options in ((other, queue), (f"{queue}=1", f"{other}=1")):
        local.output("import", queue, stdin=4 * f"{ADD}\n")
        local.output("import", other, stdin=4 * f"{FAIL}\n")
        done = local("work", "--app", "shop:app", "--drain", "--quiet", *options)
        *said, _ = done.stdout.splitlines()
        if options[0] == other:
            assert said == 4 * ["fails"] + 4 * ["3"]
        else:  # in turns; on a slow machine, a first job may go back, and be second
            assert [{*pair} for pair in zip(said[::2], said[1::2])] == 4 * [{"fails", "3"}]


def test_the_log_is_json_lines(local: Shell) -> None:
    queue = write_shop(local)
    added = local.output("push", queue, ADD).strip()
    failed = local.output("push", f"{queue} too", FAIL).strip()
    done = local("work", "--app", "shop:app", "--drain", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    assert lines[0]["logger"] == "fdbqueue.jobs"
    by_id = {line["id"]: line for line in lines if "outcome" in line}
    first, second = by_id[added], by_id[failed]
    assert 0 < first.pop("seconds") < 60
    assert first.pop("message").startswith(f"{queue} {added} shop.add done, attempt 1, ")
    assert first.pop("time").endswith("+00:00")
    assert first == {
        **{"level": "INFO", "logger": "fdbqueue.worker", "queue": queue, "job": "shop.add"},
        **{"id": added, "attempt": 1, "outcome": "done"},
    }
    assert second["outcome"] == "dead"
    assert second["traceback"].endswith("OSError: busy")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_health_is_served_until_the_end_and_by_one_worker(local: Shell, processes: str) -> None:
    port = str(free_port())
    queue = local.environment["q"]
    arguments = ("work", queue, "--exec", "true", "--health-port", port)
    process = local.start(*arguments)

    def status() -> str:
        try:
            return str(httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).json()["status"])
        except httpx.TransportError:
            return ""

    try:
        wait_until(lambda: status() == f"there is no queue {queue!r} yet")
        assert httpx.get(f"http://127.0.0.1:{port}/live", timeout=60).status_code == 200
        local.output("push", queue, "1")
        wait_until(lambda: status() == "ok")
        for option in ("--health-port", "--metrics-port"):
            taken = local(*arguments[:-2], option, port, "--processes", processes)
            assert taken.returncode in (1, 2)
            assert "cannot listen" in taken.stderr
            assert port in taken.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.communicate()
    assert status() == ""


def test_a_command_gets_the_value_and_the_id_of_each_item(local: Shell) -> None:
    queue = local.environment["q"]
    ids = [local.output("push", queue, number).strip() for number in "123"]
    local.output("limit", queue, "--attempts", "1")  # else one may come again before the end
    line = 'read n; echo "$n $FDBQ_ID" >> done; test $n != 2'
    result = local("work", queue, "--exec", line, "--drain", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout) == {"done": 2, "failed": 1, "lost": 0}
    assert "CommandError: exit code 1" in result.stderr
    said = sorted((local.path / "done").read_text().splitlines())
    assert said == [f"{n} {id}" for n, id in enumerate(ids, 1)]
    for bad in (["nowhere:f"], [], ["a:b", "--exec", "x"]):
        assert "MODULE:FUNCTION" in error_of(local("work", queue, *bad))
    assert "is not a function" in error_of(local("work", queue, "json:__name__"))
