"""No character of a user's text acts on the terminal that shows it."""

from __future__ import annotations

import json

import pytest

from tests.support.shell import Inside, Shell

HOSTILE = "a\x9b31m \x7f \x1b[2J \u202e \u2028 é 漢 🎉"
VISIBLE = r"a\x9b31m \x7f \x1b[2J \u202e \u2028 é 漢 🎉"


def assert_harmless(text: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in text), ascii(text)


def test_values_are_escaped_and_recoverable(fdbq: Inside, name: str) -> None:
    item_id = fdbq.output("push", name, json.dumps(HOSTILE)).strip()
    for command in ("peek", "items", "export", "show", "pop"):
        # With --json, an export prints numbers on standard error.
        for options in ((), ("--json",)) if command != "export" else ((),):
            ids = [item_id] if command == "show" else []
            output = fdbq.output(command, name, *ids, *options)
            assert_harmless(output)
            assert "é 漢 🎉" in output
            if options or command in ("peek", "pop"):
                found = json.loads(output.splitlines()[0])
                assert HOSTILE in (found, isinstance(found, dict) and found["value"])
            if command == "pop":
                fdbq.output("push", name, json.dumps(HOSTILE))


def test_errors_and_names_are_escaped(fdbq: Inside) -> None:
    for arguments in (["stats", HOSTILE], [HOSTILE], ["push", "jobs", f'"{HOSTILE}']):
        done = fdbq(*arguments)
        assert done.returncode == 2
        assert_harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_log_of_a_worker_and_the_errors_of_its_command_are_escaped(
    local: Shell, log_format: str
) -> None:
    (local.path / "shop.py").write_text(
        "from fdbqueue.jobs import App, Retry\napp = App()\n"
        "@app.job(queue='mail', retry=Retry(attempts=1))\n"
        f"def send(): raise OSError({HOSTILE!r})\n"
    )
    local.output("push", "mail", '{"job": "shop.send"}')
    done = local("work", "--app", "shop:app", "--drain", "--log-format", log_format)
    assert_harmless(done.stdout + done.stderr)
    assert "31m" in done.stderr
    assert_harmless(local.output("items", "mail", "--state", "dead"))
    assert_harmless(local.output("items", "mail", "--state", "dead", "--json"))

    local.output("push", "jobs", "1")
    local.output("limit", "jobs", "--attempts", "1")
    (local.path / "errors").write_bytes(HOSTILE.encode() + b"\x9b \xff\n")
    work = ("work", "jobs", "--exec", "cat errors >&2; exit 1", "--drain", "-q")
    done = local(*work, "--log-format", log_format)
    assert_harmless(done.stdout + done.stderr)
    assert VISIBLE + r"\x9b \xff" + "\n" in done.stderr
    (letter,) = [
        json.loads(line)
        for line in local.output("items", "jobs", "--state", "dead", "--json").splitlines()
    ]
    assert_harmless(local.output("show", "jobs", letter["id"]))
