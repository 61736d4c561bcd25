"""`fdbq` as a person and a program use it: a real process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fdbq.main import cli

Result = subprocess.CompletedProcess[str]


class Shell:
    """Runs `fdbq` on one database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {
            **{k: v for k, v in os.environ.items() if k not in ("FDBQ_DB", "FDB_CLUSTER_FILE")},
            "FDBQ_DB": str(path / "db"),
            "HOME": str(path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "fdbq", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment,
            cwd=self.path,
        )
        return subprocess.CompletedProcess(
            arguments, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def output(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command that must succeed in silence."""
        done = self(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def script(self, text: str) -> Result:
        return subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.path,
        )


@pytest.fixture
def fdbq(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def filled(fdbq: Shell) -> Shell:
    fdbq.output("import", "jobs", "--priority-field", "p", stdin='{"n":1,"p":5}\n{"n":2,"p":3}\n')
    return fdbq


def error_of(done: Result) -> str:
    """The one line of an error; nothing on standard output, exit code 2."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_push_and_pop_in_order(fdbq: Shell) -> None:
    first = fdbq.output("push", "jobs", '{"to": "ada"}', "--priority", "5").strip()
    fdbq.output("push", "jobs", '"urgent"', "-p", "-1")
    fdbq.output("push", "jobs", "-", stdin="[1,\n2]")
    (fdbq.path / "value.json").write_text("null")
    fdbq.output("push", "jobs", "--file", "value.json", "-p", "9")
    assert fdbq.output("peek", "jobs", "--max") == "null\n"
    assert fdbq.output("items", "jobs").split("\n")[2] == f'{first}     5  {{"to":"ada"}}'
    assert fdbq.output("pop", "jobs") == '"urgent"\n'
    assert fdbq.output("pop", "jobs", "-n", "2") == '[1,2]\n{"to":"ada"}\n'
    assert fdbq.output("pop", "jobs") == "null\n"


def test_an_empty_pop_is_exit_code_1_and_silence(fdbq: Shell) -> None:
    for command in ("pop", "peek"):
        done = fdbq(command, "nobody-pushed-to-this")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert fdbq.output("ls") == ""


def test_the_loop_of_the_documentation(filled: Shell) -> None:
    done = filled.script('while item=$(fdbq pop jobs); do echo "got $item"; done')
    assert done.stdout == 'got {"n":2,"p":3}\ngot {"n":1,"p":5}\n'
    assert done.stderr == ""


def test_json_lines_for_programs(filled: Shell) -> None:
    pushed = json.loads(filled.output("push", "jobs", "7", "--json"))
    assert pushed == {"id": pushed["id"], "priority": 0, "value": 7}
    rows = [json.loads(line) for line in filled.output("items", "jobs", "--json").splitlines()]
    assert [row["priority"] for row in rows] == [0, 3, 5]
    assert json.loads(filled.output("ls", "--json")) == {"queue": "jobs", "size": 3}
    counts = [json.loads(line) for line in filled.output("counts", "jobs", "--json").splitlines()]
    assert counts == [{"priority": p, "count": 1} for p in (0, 3, 5)]
    assert json.loads(filled.output("check", "--json"))["problems"] == []
    assert json.loads(filled.output("info", "--json"))["engine"] == "embedded"
    assert json.loads(filled.output("peek", "jobs", "--json")) == rows[0]
    assert json.loads(filled.output("pop", "jobs", "--json")) == rows[0]
    removed = filled.output("rm", "jobs", rows[1]["id"], "--json")
    assert json.loads(removed) == {"id": rows[1]["id"], "removed": True}
    assert json.loads(filled.output("clear", "jobs", "-y", "--json"))["cleared"] is True


def test_tables_for_people(filled: Shell) -> None:
    assert [line.split() for line in filled.output("ls").splitlines()] == [
        ["queue", "items"],
        ["jobs", "2"],
    ]
    assert [line.split() for line in filled.output("counts", "jobs").splitlines()] == [
        ["priority", "items"],
        ["3", "1"],
        ["5", "1"],
    ]
    assert filled.output("check") == "jobs: 2 items, ok\n"
    assert str(filled.path / "db") in filled.output("info")


def test_rm_tells_what_was_not_there(filled: Shell) -> None:
    item_id = json.loads(filled.output("peek", "jobs", "--json"))["id"]
    filled.output("rm", "jobs", item_id)
    done = filled("rm", "jobs", item_id)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not in the queue" in done.stderr
    other = json.loads(filled.output("peek", "jobs", "--json"))["id"]
    assert "is not the id of an item" in error_of(filled("rm", "jobs", other, "nonsense"))
    assert json.loads(filled.output("peek", "jobs", "--json"))["id"] == other


def test_clear_asks_first(filled: Shell) -> None:
    assert "aborted" in filled("clear", "jobs", stdin="n\n").stderr
    assert "aborted" in filled("clear", "jobs").stderr
    assert json.loads(filled.output("ls", "--json"))["size"] == 2
    assert filled("clear", "jobs", stdin="y\n").stdout == "jobs is empty now\n"
    assert json.loads(filled.output("ls", "--json"))["size"] == 0
    assert "no queue named 'jbos'" in error_of(filled("clear", "jbos", "--yes"))


def test_import_and_export_round_trip(filled: Shell) -> None:
    exported = filled.output("export", "jobs")
    filled.output("export", "jobs", "out.jsonl")
    assert (filled.path / "out.jsonl").read_text() == exported
    assert (
        filled.output(
            "import", "copy", "out.jsonl", "--priority-field", "priority", "--value-field", "value"
        )
        == "stored 2 lines\n"
    )
    strip = lambda text: [{**json.loads(line), "id": ""} for line in text.splitlines()]  # noqa: E731
    assert strip(filled.output("export", "copy")) == strip(exported)
    first = json.loads(exported.splitlines()[0])["id"]
    assert filled.output("export", "jobs", "--after", first) == exported.splitlines()[1] + "\n"


def test_an_import_is_stored_once_unless_told_again(fdbq: Shell) -> None:
    (fdbq.path / "f.jsonl").write_text("1\n2\n")
    assert fdbq.output("import", "q", "f.jsonl") == "stored 2 lines\n"
    second = fdbq.output("import", "q", "f.jsonl")
    assert second == "stored 0 lines, 2 were stored before (--again stores them once more)\n"
    assert fdbq.output("import", "q", "f.jsonl", "--again") == "stored 2 lines\n"
    for _ in range(2):
        assert fdbq.output("import", "q", "-", stdin="1\n2\n") == "stored 2 lines\n"
    named = ("import", "q", "--source", "nightly")
    assert fdbq.output(*named, stdin="3\n") == "stored 1 lines\n"
    assert fdbq.output(*named, stdin="3\n4\n") == "stored 1 lines, 1 were stored before\n"
    assert json.loads(fdbq.output("ls", "--json"))["size"] == 10
    assert "line 2:" in error_of(fdbq("import", "q", stdin="4\nfour\n"))
    (fdbq.path / "f.jsonl").write_text("changed\n")
    assert "--again" in error_of(fdbq("import", "q", "f.jsonl"))


def test_three_processes_pop_everything_once_and_each_in_order(fdbq: Shell) -> None:
    """What README does with Debian's packages."""
    lines = [json.dumps({"n": n, "level": n * 7 % 4}) + "\n" for n in range(3000)]
    (fdbq.path / "all.jsonl").write_text("".join(lines))
    fdbq.output("import", "all", "all.jsonl", "--priority-field", "level")
    done = fdbq.script(
        "for n in 1 2 3; do (while fdbq pop all -n 100; do :; done > popped.$n) & done; wait"
    )
    assert done.stderr == ""
    popped = []
    for number in (1, 2, 3):
        text = (fdbq.path / f"popped.{number}").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows == sorted(rows, key=lambda row: (row["level"], row["n"]))
        popped += rows
    assert sorted(row["n"] for row in popped) == list(range(3000))


def test_check_repairs(filled: Shell) -> None:
    program = (
        "import fdbqueue; db = fdbqueue.open(); q = fdbqueue.PriorityQueue.named(db, 'jobs');"
        "db[q.layout.total] = bytes([9]) + bytes(7)"
    )
    subprocess.run([sys.executable, "-c", program], env=filled.environment, check=True)
    done = filled("check", "jobs")
    assert done.returncode == 1
    assert "the total is 9 and there are 2 items" in done.stdout
    assert "repaired" in filled.output("check", "jobs", "--repair")
    assert filled.output("check", "jobs") == "jobs: 2 items, ok\n"


ERRORS = [
    (("push", "jobs", "hello"), "is not JSON"),
    (("push", "jobs", "{"), "is not JSON"),
    (("push", "jobs"), "give the value"),
    (("push", "jobs", "1", "--priority", "high"), "'high' is not a valid integer"),
    (("push", "jobs", "1", "--priority", "1.5"), "'1.5' is not a valid integer"),
    (("push", "jobs", "1", "--priority", str(2**63)), "integer of 64 bits"),
    (("push", "", "1"), "cannot be the name of a queue"),
    (("push", "jobs", "NaN"), "cannot be stored"),
    (("push", "jobs", "--file", "missing.json"), "missing.json"),
    (("pop",), "Missing argument 'QUEUE'"),
    (("pop", "jobs", "-n", "0"), "0 is not in the range"),
    (("rm", "nope", "x"), "no queue named 'nope'"),
    (("counts", "nope"), "no queue named 'nope'"),
    (("check", "nope"), "no queue named 'nope'"),
    (("export", "nope"), "no queue named 'nope'"),
    (("items", "nope"), "no queue named 'nope'"),
    (("ls", "--db", ""), "an empty text names no database"),
    (("ls", "--db", "/etc/hostname"), "/etc/hostname is no cluster file"),
    (("frobnicate",), "No such command 'frobnicate'"),
    (("ls", "--db", "embedded:"), "needs a path"),
    (("ls", "--db", "postgres://host"), "is no database"),
    (("ls", "--db", "nowhere.cluster"), "no cluster file"),
    (("ls", "--db", "/dev/null/db"), "/dev/null"),
]


@pytest.mark.parametrize(("arguments", "words"), ERRORS, ids=[" ".join(e[0])[:40] for e in ERRORS])
def test_an_error_is_one_line_and_exit_code_2(
    fdbq: Shell, arguments: tuple[str, ...], words: str
) -> None:
    assert words in error_of(fdbq(*arguments))
    assert fdbq.output("ls") == ""


def test_input_that_is_no_text_is_an_error_too(fdbq: Shell) -> None:
    assert "is not JSON" in error_of(fdbq("push", "jobs", "-", stdin=b"\xff\xfe\x00"))


def test_the_database_is_an_option_of_every_command(fdbq: Shell) -> None:
    for url in ("embedded:other", "./other"):
        assert fdbq.output("push", "jobs", "1", "--db", url)
    assert json.loads(fdbq.output("ls", "--json", "--db", "other"))["size"] == 2
    assert fdbq.output("ls") == ""
    for name, command in cli.commands.items():
        options = {option for each in command.params for option in each.opts}
        assert name == "completion" or {"--db", "--json"} <= options


def test_without_any_word_the_database_is_in_the_users_data_directory(fdbq: Shell) -> None:
    del fdbq.environment["FDBQ_DB"]
    fdbq.environment.pop("XDG_DATA_HOME", None)
    fdbq.output("push", "jobs", "1")
    assert str(fdbq.path) in fdbq.output("info")
    assert list(fdbq.path.rglob("fdbqueue.sqlite"))


def test_a_reader_that_goes_away_is_no_traceback(filled: Shell) -> None:
    filled.script("seq 20000 | fdbq import many")
    done = filled.script("fdbq items many | head -1")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_what_cannot_be_printed_is_put_back(filled: Shell) -> None:
    before = filled.output("items", "jobs")
    for output in ("> /dev/full", ">&-"):
        done = filled.script(f"fdbq pop jobs -n 2 {output}")
        assert done.returncode == 2, done
        assert "output" in done.stderr
        assert filled.output("items", "jobs") == before
    assert filled.output("check", "jobs") == "jobs: 2 items, ok\n"


def test_an_export_of_an_empty_queue_is_an_empty_file(filled: Shell) -> None:
    filled.output("export", "jobs", "out.jsonl")
    filled.output("pop", "jobs", "-n", "2")
    filled.output("export", "jobs", "out.jsonl")
    assert (filled.path / "out.jsonl").read_text() == ""


def test_an_interrupted_import_does_not_say_that_nothing_happened(filled: Shell) -> None:
    done = filled.script(
        "seq 2000000 > many.jsonl; timeout --preserve-status -s INT 2 fdbq import many many.jsonl"
    )
    assert done.returncode == 130
    assert "what was done before that is done" in done.stderr
    assert "Traceback" not in done.stderr


def test_completion_knows_commands_and_queues(filled: Shell) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_FDBQ_COMPLETE" in filled.output("completion", shell)
    words = "COMP_WORDS='{}' COMP_CWORD={} _FDBQ_COMPLETE=bash_complete fdbq"
    assert "plain,peek" in filled.script(words.format("fdbq pe", 1)).stdout
    assert "plain,jobs" in filled.script(words.format("fdbq pop jo", 2)).stdout
