"""Files and databases: import, export, backup, restore, copy and check."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from tests.support.keys import layout_of
from tests.support.kinds import in_each_state
from tests.support.shell import Inside, Shell, assert_prints, error_of

STATES_OF_ALL = "1 ready, 1 delayed, 1 claimed, 1 dead, 1 done"


def test_import_and_export_round_trip(fdbq: Inside, db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    first, _ = queue.push_many(db, [1, 2], priorities=[3, 7], groups=[None, "customer 7"])
    exported = fdbq.output("export", name)
    fdbq.output("export", name, "out.jsonl")
    assert (fdbq.path / "out.jsonl").read_text() == exported
    plain, grouped = map(json.loads, exported.splitlines())
    assert plain == {"id": first.id, "priority": 3, "value": 1}
    assert (grouped["value"], grouped["group"]) == (2, "customer 7")
    fields = ("--priority-field", "priority", "--value-field", "value", "--group-field", "group")
    copy = f"{name}copy"
    assert fdbq.output("import", copy, "out.jsonl", *fields) == "stored 2 lines\n"
    again = map(json.loads, fdbq.output("export", copy).splitlines())
    assert [{**line, "id": ""} for line in again] == [{**plain, "id": ""}, {**grouped, "id": ""}]
    assert fdbq.output("export", name, "--after", first.id) == exported.splitlines()[1] + "\n"
    assert error_of(fdbq("export", name, "no/such/out.jsonl")).endswith("/no/such\n")


def test_an_import_is_stored_once_for_each_source_as_far_as_it_fits(
    fdbq: Inside, name: str
) -> None:
    fdbq.output("limit", name, "--size", "3", "--create")
    (fdbq.path / "f.jsonl").write_text("1\n2\n3\n4\n5\n")
    (fdbq.path / "g.jsonl").write_text("six\n")
    assert_prints(
        fdbq,
        """
$ import $q f.jsonl
stored 3 lines; the queue is full and lines remain
[1]
$ pop $q -n 3
1
2
3
$ import $q f.jsonl
stored 2 lines, skipped 3 that were stored before
$ import $q f.jsonl
stored 0 lines, skipped 5 that were stored before (another --source stores them again)
$ group set $q ada --size 1
...
$ import $q f.jsonl --group ada --source again
stored 1 line; the queue, or a group of it, is full and lines remain
[1]
$ import $q g.jsonl
...line 1:...
[2]
""",
    )
    fdbq.output("limit", name, "--size", "none")
    for _ in range(2):
        assert fdbq.output("import", name, "-", stdin="1\n2\n") == "stored 2 lines\n"
    named = ("import", name, "--source", "nightly")
    assert fdbq.output(*named, stdin="3\n") == "stored 1 line\n"
    assert (
        fdbq.output(*named, stdin="3\n4\n") == "stored 1 line, skipped 1 that were stored before\n"
    )


def test_a_file_whose_path_is_not_utf_8_is_imported_once(shell: Shell, name: str) -> None:
    shell.script("printf '1\\n2\\n' > $'f\\xff'")
    assert shell.script("fdbq import $q $'f\\xff'").stdout == "stored 2 lines\n"
    assert shell.script("fdbq import $q $'f\\xff'").stdout.startswith("stored 0 lines")
    assert "printable text" in error_of(shell.script("fdbq import $q --source $'\\xff'"))


def test_an_export_reports_the_items_that_it_left_out(fdbq: Inside, name: str, db: Any) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    queue.push_many(db, [1, 2], priorities=[3, 5])
    queue.push_many(db, ["claimed", "dead", "dead"])
    queue.claim(db, n=1, lease=600)
    queue.nack(db, queue.claim(db, n=2))
    queue.push(db, "delayed", delay=600)
    whole = fdbq("export", name)
    assert whole.stdout.count("\n") == 2
    assert whole.stderr == (
        "fdbq export: left out 1 delayed, 1 claimed, 2 dead; only ready items are exported\n"
    )
    numbers = {"exported": 2, "left_out": {"delayed": 1, "claimed": 1, "dead": 2}}
    assert json.loads(fdbq.output("export", name, "out.jsonl", "--json")) == numbers
    assert json.loads(fdbq("export", name, "--json").stderr) == numbers


def test_an_export_that_fails_leaves_the_file_as_it_was(fdbq: Inside, name: str, db: Any) -> None:
    PriorityQueue.named(db, name).push_many(db, [{"n": 2}, {"n": 1}], priorities=[3, 5])
    fdbq.output("export", name, "out.jsonl")
    before = (fdbq.path / "out.jsonl").read_text()
    os.chmod(fdbq.path / "out.jsonl", 0o640)
    queue = PriorityQueue.named(db, name)
    broken = queue.push(db, "broken", 9)
    db[broken.key] = b"no JSON"
    assert "cannot be decoded" in error_of(fdbq("export", name, "out.jsonl"))
    assert (fdbq.path / "out.jsonl").read_text() == before
    queue.remove(db, broken)
    queue.push(db, "last", 9)
    fdbq.output("export", name, "out.jsonl")
    assert (fdbq.path / "out.jsonl").read_text().startswith(before)
    assert (fdbq.path / "out.jsonl").stat().st_mode & 0o777 == 0o640
    assert not list(fdbq.path.glob(".out.jsonl*"))


def test_backup_and_restore_round_trip(shell: Shell, db: Any, name: str) -> None:
    in_each_state(db, PriorityQueue.named(db, name), n=1)
    before = shell.output("stats", name, "--json")
    assert shell.output("backup", "q.jsonl", name) == f"backed up {name}: {STATES_OF_ALL}\n"
    piped = shell.script("fdbq backup - $q | tee copy.jsonl | fdbq restore - $q --as ${q}piped")
    assert piped.stdout == f"restored {name}piped: {STATES_OF_ALL}\n"
    assert piped.stderr == f"backed up {name}: {STATES_OF_ALL}\n"
    assert (shell.path / "copy.jsonl").read_bytes() == (shell.path / "q.jsonl").read_bytes()
    assert "already exists" in error_of(shell("restore", "q.jsonl"))
    shell.output("drop", name, "--yes")
    restored = json.loads(shell.output("restore", "q.jsonl", "--json"))
    assert (restored["queue"], restored["dead"], len(restored["digest"])) == (name, 1, 64)
    assert shell.output("stats", name, "--json") == before
    assert f"did you mean '{name}'" in error_of(shell("restore", "q.jsonl", f"{name}x"))
    assert "--as" in error_of(shell("restore", "q.jsonl", "--as", "x"))
    (shell.path / "q.jsonl").write_text("no backup\n")
    assert "line 1:" in error_of(shell("restore", "q.jsonl"))
    assert f"no queue named '{name}nope'" in error_of(shell("backup", "n.jsonl", f"{name}nope"))
    assert not (shell.path / "n.jsonl").exists()


def test_own_keys_are_backed_up_and_restored(fdbq: Inside, db: Any, name: str) -> None:
    own = {f"{name}/sold/{number}".encode(): b"\xff" for number in range(3)}
    own[name.encode() + b"/\x01\\"] = b""
    for key, value in own.items():
        db[key] = value
    fdbq.output("push", name, "1")
    prefixes = ("--prefix", f"{name}/sold/", "--prefix", f"{name}/\\x01\\\\")
    saved = fdbq.output("backup", "keys", name, *prefixes)
    written = f"{name}/\\x01\\\\: 1 key", f"{name}/sold/: 3 keys"
    assert saved.splitlines() == [f"backed up {line}" for line in (f"{name}: 1 ready", *written)]
    db.clear_range_startswith(name.encode())
    fdbq.output("drop", name, "--yes")
    restored = fdbq.output("restore", "keys")
    assert restored == saved.replace("backed up", "restored")
    assert {row.key: row.value for row in db.get_range_startswith(name.encode())} == own
    assert "\\xNN" in error_of(fdbq("backup", "other", "--prefix", "a\\b"))
    assert "omit QUEUE" in error_of(fdbq("backup", "other", name, "--all"))


def test_a_whole_database_is_backed_up_and_restored(tmp_path: Path, name: str) -> None:
    here, there = (Shell(tmp_path, f"embedded:{tmp_path / side}", name) for side in "ab")
    with fdbqueue.open(f"embedded:{tmp_path / 'a'}") as db:
        db[b""] = db[b"\xfe"] = b"value"
    here.output("push", name, "1")
    assert here.output("backup", "--all", "all") == (
        f"backed up {name}: 1 ready\nbacked up keys outside queues: 2 keys\n"
    )
    assert there.output("restore", "all") == (
        f"restored {name}: 1 ready\nrestored keys outside queues: 2 keys\n"
    )
    assert there.output("pop", name) == "1\n"
    with fdbqueue.open(f"embedded:{tmp_path / 'b'}") as db:
        assert (db[b""], db[b"\xfe"]) == (b"value", b"value")


def test_copy_to_another_database_and_back(
    shell: Shell, db: Any, name: str, shared_url: str
) -> None:
    in_each_state(db, PriorityQueue.named(db, name), n=1)
    before = shell.output("items", name, "--state", "claimed", "--json")
    there = ("--from", shared_url, "--to", "other")
    assert shell.output("copy", name, *there) == f"copied {name}: {STATES_OF_ALL}\n"
    back = ("copy", name, "--db", "other", "--to", shared_url, "--as", f"{name}2", "--json")
    assert json.loads(shell.output(*back))["ready"] == 1
    assert shell.output("items", f"{name}2", "--state", "claimed", "--json") == before
    assert "already exists" in error_of(shell("copy", name, *there))
    two = ("copy", name, f"{name}2", "--from", shared_url, "--to", "third")
    assert shell.output(*two).count("copied") == 2
    assert "--as gives a name to one QUEUE" in error_of(shell(*two, "--as", "one"))


def test_check_repairs(fdbq: Inside, db: Any, jobs: Any) -> None:
    jobs.push_many(db, [1, 2])
    db[layout_of(jobs).total_in] = (9).to_bytes(8, "little")
    assert_prints(
        fdbq,
        """
$ check $q
...the total is 9, not 2...
[1]
$ check $q --repair
...repaired...
$ check $q
$q: 2 ready, ok
""",
    )


# Runs `fdbq` in Python, and writes the order of its syncs and renames to the file `calls`. $FAILING
# is what cannot be synced: the new file, or the name of it in its directory.
_RECORDER = """
import errno, glob, os
fsync, replace = os.fsync, os.replace
def record(call, number):
    with open("calls", "a") as calls:
        print(call, number, file=calls)
def recorded_fsync(descriptor):
    number = os.fstat(descriptor).st_ino
    failing = {"file": glob.glob(".out.*"), "name": ["."]}.get(os.environ.get("FAILING"), [])
    if number in [os.stat(path).st_ino for path in failing]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(descriptor)
    record("fsync", number)
def recorded_replace(source, target):
    replace(source, target)
    record("replace", os.stat(target).st_ino)
os.fsync, os.replace = recorded_fsync, recorded_replace
from fdbq.__main__ import main
main()
"""


@pytest.mark.parametrize("command", ["backup out jobs", "export jobs out"])
def test_a_file_is_on_disk_when_the_command_that_writes_it_ends(local: Shell, command: str) -> None:
    local.output("push", "jobs", "1")
    done = local.start(*command.split(), program=("-c", _RECORDER))
    assert (done.communicate()[1], done.returncode) == ("", 0)
    file, directory = (path.stat().st_ino for path in (local.path / "out", local.path))
    calls = (local.path / "calls").read_text().splitlines()
    steps = [calls.index(each) for each in (f"fsync {file}", f"replace {file}")]
    assert steps == sorted(steps)
    assert f"fsync {directory}" in calls[steps[-1] :]
    before = (local.path / "out").read_text()
    local.output("push", "jobs", "3")
    for failing in ("file", "name"):
        local.environment["FAILING"] = failing
        failed = local.start(*command.split(), program=("-c", _RECORDER))
        assert failed.communicate()[1].endswith("fdbq: cannot write to out: Input/output error\n")
        assert failed.returncode == 2
        assert ((local.path / "out").read_text() == before) is (failing == "file")
        assert not list(local.path.glob(".out*"))
