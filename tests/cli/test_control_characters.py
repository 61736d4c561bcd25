"""No character of a user's text acts on the terminal that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.shell import Shell

HOSTILE = "a\x9b31m \x7f \x1b[2J \u202e \u2028 é 漢 🎉"
VISIBLE = r"a\x9b31m \x7f \x1b[2J \u202e \u2028 é 漢 🎉"


@pytest.fixture
def fdbq(tmp_path: Path) -> Shell:
    return Shell(tmp_path, str(tmp_path / "db"), "jobs")


def assert_harmless(text: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in text), ascii(text)


@pytest.mark.parametrize(
    "command",
    [
        *("peek jobs", "peek jobs --json", "items jobs", "items jobs --json", "export jobs"),
        *("show jobs ID", "show jobs ID --json", "pop jobs --json", "pop jobs"),
    ],
)
def test_values_are_escaped_and_recoverable(fdbq: Shell, command: str) -> None:
    item_id = fdbq.output("push", "jobs", json.dumps(HOSTILE)).strip()
    output = fdbq.output(*command.replace("ID", item_id).split())
    assert_harmless(output)
    assert "é 漢 🎉" in output
    if "--json" in command or command.split()[0] in ("peek", "pop", "export"):
        found = json.loads(output.splitlines()[0])
        assert HOSTILE in (found, isinstance(found, dict) and found["value"])


def test_errors_and_names_are_escaped(fdbq: Shell) -> None:
    for arguments in (
        ["stats", HOSTILE],
        [HOSTILE],
        ["push", "jobs", f'"{HOSTILE}'],
        ["ls", HOSTILE],
    ):
        done = fdbq(*arguments)
        assert done.returncode == 2
        assert_harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_log_of_a_worker_and_the_errors_of_its_command_are_escaped(
    fdbq: Shell, log_format: str
) -> None:
    (fdbq.path / "shop.py").write_text(
        "from fdbqueue.jobs import App, Retry\napp = App()\n"
        "@app.job(queue='mail', retry=Retry(attempts=1))\n"
        f"def send(): raise OSError({HOSTILE!r})\n"
    )
    fdbq.output("push", "mail", '{"job": "shop.send"}')
    done = fdbq("work", "--app", "shop:app", "--drain", "--log-format", log_format)
    assert_harmless(done.stdout + done.stderr)
    assert "31m" in done.stderr
    assert_harmless(fdbq.output("items", "mail", "--state", "dead"))
    assert_harmless(fdbq.output("items", "mail", "--state", "dead", "--json"))

    fdbq.output("push", "jobs", "1")
    fdbq.output("limit", "jobs", "--attempts", "1")
    (fdbq.path / "errors").write_bytes(HOSTILE.encode() + b"\x9b \xff\n")
    work = ("work", "jobs", "--exec", "cat errors >&2; exit 1", "--drain", "-q")
    done = fdbq(*work, "--log-format", log_format)
    assert_harmless(done.stdout + done.stderr)
    assert VISIBLE + r"\x9b \xff" + "\n" in done.stderr
    (letter,) = [
        json.loads(line)
        for line in fdbq.output("items", "jobs", "--state", "dead", "--json").splitlines()
    ]
    assert_harmless(fdbq.output("show", "jobs", letter["id"]))
