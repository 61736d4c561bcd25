"""`fdbq group`: list, set, pause and resume groups; and pushes to a group."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from fdbq.show import HELD_BY

import fdbqueue
from fdbqueue.types import ItemHeldBy
from tests.support.shell import Shell, error_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fdbq(tmp_path: Path) -> Shell:
    return Shell(tmp_path, f"embedded:{tmp_path / 'db'}")


def test_groups_are_listed_limited_and_paused(fdbq: Shell) -> None:
    for group in ("ada", "ada", "bob"):
        fdbq.output("push", "jobs", f'"{group}"', "--group", group)
    fdbq.output("group", "set", "jobs", "ada", "--weight", "2", "--concurrency", "3")
    fdbq.output("group", "pause", "jobs", "ada")
    assert fdbq.output("group", "ls", "jobs").splitlines() == [
        "ada  2 ready  0 claimed  0 delayed  weight 2  concurrency 3  paused",
        "bob  1 ready  0 claimed  0 delayed",
    ]
    assert fdbq.output("pop", "jobs", "-n", "3") == '"bob"\n'
    fdbq.output("group", "resume", "jobs", "ada")
    fdbq.output("group", "set", "jobs", "ada", "--reset", "--concurrency", "1")
    fdbq.output("group", "set", "jobs", "--weight", "5")
    for_all, shown = map(json.loads, fdbq.output("group", "ls", "jobs", "--json").splitlines())
    assert for_all == {"name": None, "weight": 5.0}
    assert shown == {
        "name": "ada",
        "ready": 2,
        "claimed": 0,
        "weight": 5.0,
        "concurrency": 1,
        "paused": False,
        "rate": None,
        "in_order": True,
        "held_by": None,
        "held_until": None,
        "delayed": 0,
        "max_size": None,
    }
    item_id = fdbq.output("items", "jobs").split()[0]
    assert json.loads(fdbq.output("show", "jobs", item_id, "--json"))["group"] == "ada"
    assert fdbq.output("check", "jobs").startswith("jobs: ")


def test_what_was_set_for_all_groups_is_listed_first(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1")
    assert fdbq.output("group", "ls", "jobs") == "no groups\n"
    fdbq.output("group", "set", "jobs", "--concurrency", "2", "--rate", "5/1m30s", "--size", "9")
    assert fdbq.output("group", "ls", "jobs") == (
        "(all groups)  concurrency 2  rate 5/1m30s  size 9\n"
    )
    fdbq.output("group", "set", "jobs", "--reset")
    assert fdbq.output("group", "ls", "jobs") == "no groups\n"


def test_each_change_is_told(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1", "--group", "customer 7")
    for arguments, told in (
        (("pause", "jobs", "cutsomer 7"), "paused cutsomer 7 in jobs"),
        (("resume", "jobs", "cutsomer 7"), "resumed cutsomer 7 in jobs"),
        (("pause", "jobs", "a", "--json"), '{"queue":"jobs","group":"a","paused":true}'),
        (
            ("set", "jobs", "ada", "--weight", "2", "--size", "1000", "--not-in-order"),
            "ada in jobs: weight 2, size 1,000, not in order",
        ),
        (("set", "jobs", "--rate", "10/1m"), "all groups in jobs: rate 10/1m"),
        (("set", "jobs", "", "--weight", "0.5"), "(none) in jobs: weight 0.5"),
        (
            ("set", "jobs", "--reset", "--concurrency", "1"),
            "all groups in jobs: reset, concurrency 1",
        ),
        (
            ("set", "jobs", "ada", "--rate", "10/1m", "--json"),
            '{"queue":"jobs","group":"ada","rate":[10,60.0]}',
        ),
    ):
        assert fdbq.output("group", *arguments) == f"{told}\n"


def test_one_limit_of_a_group_is_removed(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1", "--group", "ada")
    limits = ("--weight", "2", "--concurrency", "3", "--rate", "10/1m", "--size", "5")
    fdbq.output("group", "set", "jobs", "--concurrency", "7")
    fdbq.output("group", "set", "jobs", "ada", *limits)
    numbers = "ada  1 ready  0 claimed  0 delayed"
    limited = f"{numbers}  weight 2  concurrency 3  rate 10/1m  size 5"
    shown = f"(all groups)  concurrency 7\n{limited}\n"
    assert fdbq.output("group", "ls", "jobs") == shown
    for flag, removed, left in (
        ("--weight", "  weight 2", ""),
        ("--size", "  size 5", ""),
        ("--rate", "  rate 10/1m", ""),
        ("--concurrency", "concurrency 3", "concurrency 7"),
    ):
        told = fdbq.output("group", "set", "jobs", "ada", flag, "none")
        assert told == f"ada in jobs: {flag[2:]} none\n"
        shown = shown.replace(removed, left)
        assert fdbq.output("group", "ls", "jobs") == shown
    told = fdbq.output("group", "set", "jobs", "--concurrency", "none", "--json")
    assert told == '{"queue":"jobs","group":null,"concurrency":null}\n'
    assert fdbq.output("group", "ls", "jobs") == f"{numbers}\n"
    assert "fdbq group set [OPTIONS] QUEUE [GROUP]" in fdbq.output("group", "set", "--help")


def test_a_full_group_is_named(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1", "--group", "ada")
    fdbq.output("group", "set", "jobs", "ada", "--size", "1")
    refused = fdbq("push", "jobs", "2", "--group", "ada")
    assert refused.returncode == 1
    assert refused.stderr == "fdbq push: the group 'ada' of jobs is full; nothing was stored\n"
    assert (
        "ada  1 ready  0 claimed  0 delayed  size 1"
        in fdbq.output("group", "ls", "jobs").splitlines()
    )


def test_a_rate_and_a_sequence_say_what_holds_them(fdbq: Shell, tmp_path: Path) -> None:
    for group in ("ada", "ada", "bob", "bob"):
        fdbq.output("push", "jobs", "1", "--group", group, "--cost", "2.5")
    fdbq.output("group", "set", "jobs", "ada", "--rate", "1/1h30m")
    fdbq.output("group", "set", "jobs", "bob", "--concurrency", "1")
    assert fdbq.output("pop", "jobs", "-n", "1") == "1\n"
    with fdbqueue.open(f"embedded:{tmp_path / 'db'}") as db:
        jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        claim = jobs.claim(db)
        jobs.nack(db, claim, delay="1h")
    ada, bob = fdbq.output("group", "ls", "jobs").splitlines()
    assert ada.startswith(
        "ada  1 ready  0 claimed  0 delayed  rate 1/1h30m  held back by its rate until 20"
    )
    bobs = "bob  1 ready  0 claimed  1 delayed  concurrency 1"
    assert bob == f"{bobs}  waits for the next attempt of a failed item"
    shown = json.loads(fdbq.output("group", "ls", "jobs", "--json").splitlines()[0])
    assert (shown["rate"], shown["held_by"], shown["held_until"][:2]) == ([1, 5400], "rate", "20")
    fdbq.output("group", "set", "jobs", "bob", "--not-in-order")
    assert f"{bobs}  not in order" in fdbq.output("group", "ls", "jobs").splitlines()


def test_a_mistake_changes_nothing(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1", "--group", "ada")
    fdbq.output("task", "push", "tasks", "1", "--group", "ada")
    for arguments, answer in (
        (
            ("set", "jobs", "ada"),
            "give --weight, --concurrency, --rate, --in-order, --size or --reset",
        ),
        (
            ("set", "jobs", "ada", "--weight", "0"),
            "--weight is a number from 0.001 to 1,000, not 0.0",
        ),
        (("set", "jobs", "ada", "--concurrency", "0"), "--concurrency is a number from 1 to 10,"),
        (
            ("set", "jobs", "ada", "--concurrency", "10001"),
            "--concurrency is a number from 1 to 10,000, or None, not 10001",
        ),
        (("set", "jobs", "ada", "--size", "x"), "--size': 'x' is not an integer or `none`"),
        (("set", "jobs", "", "--size", "1"), "--size: the items without a group have only a"),
        (("set", "jobs", "ada", "--rate", "5"), "'5' is not a number and a time"),
        (("set", "jobs", "ada", "--rate", "5/soon"), "the time of a rate is a number of seconds"),
        (("pause", "jobs", ""), "paused: the items without a group have only a weight"),
    ):
        assert answer in error_of(fdbq("group", *arguments))
    assert "a group is text of 1 to 255 bytes" in error_of(fdbq("push", "jobs", "1", "--group", ""))
    assert fdbq.output("group", "ls", "jobs") == "ada  1 ready  0 claimed  0 delayed\n"


def test_a_task_queue_has_groups(fdbq: Shell) -> None:
    pushed = [
        fdbq.output("task", "push", "tasks", "1", "--group", group).strip()
        for group in ("ada", "ada", "bob")
    ]
    fdbq.output("task", "push", "tasks", "1")
    assert fdbq.output("group", "ls", "tasks") == (
        "ada  2 ready  0 claimed  0 delayed\nbob  1 ready  0 claimed  0 delayed\n"
    )
    fdbq.output("group", "set", "tasks", "--concurrency", "5")
    fdbq.output("group", "set", "tasks", "ada", "--concurrency", "2", "--rate", "9/1m")
    fdbq.output("group", "pause", "tasks", "ada")
    assert "held_by         Its group is paused.\n" in fdbq.output("show", "tasks", pushed[0])
    assert fdbq.output("group", "ls", "tasks").splitlines()[1:] == [
        "ada  2 ready  0 claimed  0 delayed  concurrency 2  rate 9/1m  paused",
        "bob  1 ready  0 claimed  0 delayed  concurrency 5",
    ]
    assert [fdbq.output("task", "pop", "tasks") for _ in range(2)] == ["1\n"] * 2
    fdbq.output("group", "resume", "tasks", "ada")
    fdbq.output("group", "set", "tasks", "bob", "--concurrency", "1")
    assert "bob  0 ready  0 claimed  0 delayed  concurrency 1\n" in fdbq.output(
        "group", "ls", "tasks"
    )
    assert fdbq.output("group", "clear", "tasks", "ada", "--yes").startswith("2 removed")


def test_show_says_why_an_item_is_not_running(fdbq: Shell) -> None:
    first, second = (
        fdbq.output("push", "jobs", value, "--group", "ada").strip() for value in ("1", "2")
    )
    shown = fdbq.output("show", "jobs", second)
    assert "held_by" not in shown
    assert "ahead_in_group  1\n" in shown
    fdbq.output("group", "pause", "jobs", "ada")
    assert "held_by         Its group is paused.\n" in fdbq.output("show", "jobs", first)
    assert json.loads(fdbq.output("show", "jobs", first, "--json"))["held_by"] == "group_paused"
    fdbq.output("pause", "jobs")
    assert "held_by         The queue is paused.\n" in fdbq.output("show", "jobs", first)


def test_each_reason_has_its_words_in_the_shell_and_in_the_dashboard() -> None:
    script = (ROOT / "fdbqueue" / "http" / "static" / "held.js").read_text().partition("};")[0]
    in_dashboard = dict(re.findall(r'^  (\w+): "([^"]+)",$', script, re.MULTILINE))
    assert in_dashboard == HELD_BY
    assert {*HELD_BY} == {*get_args(ItemHeldBy)}


def test_one_group_is_listed_retried_cancelled_and_cleared(fdbq: Shell) -> None:
    for group in ("ada", "ada", "bob"):
        fdbq.output("push", "jobs", f'"{group}"', "--group", group)
    listed = fdbq.output("items", "jobs", "--state", "ready", "--group", "ada").splitlines()
    assert [line.rpartition("  ")[2] for line in listed] == ['"ada"', '"ada"']
    assert fdbq.output("group", "retry", "jobs", "ada") == "0 retried\n"
    asked = fdbq("group", "clear", "jobs", "ada")
    assert asked.returncode != 0
    assert "Remove all items of the group 'ada' from 'jobs'?" in asked.stderr
    assert fdbq.output("group", "cancel", "jobs", "ada") == "2 cancelled\n"
    (line,) = fdbq.output("group", "clear", "jobs", "bob", "--yes", "--json").splitlines()
    assert json.loads(line)["removed"] is True
    assert fdbq.output("group", "ls", "jobs") == "no groups\n"
    assert fdbq.output("group", "ls", "jobs", "--json") == ""


def test_a_dead_letter_of_a_group_that_cannot_be_retried_is_told(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1", "--group", "ada")
    fdbq.output("limit", "jobs", "--attempts", "1")
    assert fdbq("work", "jobs", "--exec", "false", "--drain").returncode in (0, 1)
    fdbq.output("limit", "jobs", "--size", "1")
    fdbq.output("push", "jobs", "2", "--group", "ada")
    refused = fdbq("group", "retry", "jobs", "ada")
    assert (refused.returncode, refused.stdout) == (1, "0 retried\n")
    assert "was not retried: the queue is full, or its key is taken" in refused.stderr


def test_items_without_a_group_have_a_weight(fdbq: Shell) -> None:
    fdbq.output("push", "jobs", "1")
    fdbq.output("push", "jobs", "2", "--group", "ada")
    fdbq.output("group", "set", "jobs", "", "--weight", "2")
    assert fdbq.output("group", "ls", "jobs") == "ada  1 ready  0 claimed  0 delayed\n"
    assert [fdbq.output("pop", "jobs") for _ in range(2)] == ["1\n", "2\n"]
    refused = error_of(fdbq("group", "set", "jobs", "", "--concurrency", "2"))
    assert "concurrency: the items without a group have only a weight" in refused


def test_a_drain_says_what_holds_back_the_items_that_are_left(fdbq: Shell) -> None:
    for group in ("ada", "ada", "bob"):
        fdbq.output("push", "jobs", "1", "--group", group)
    fdbq.output("group", "pause", "jobs", "ada")
    drain = ("work", "jobs", "--exec", "true", "--drain")
    done = fdbq(*drain)
    assert (done.returncode, done.stdout) == (0, "1 done, 0 failed\n")
    told = "fdbq work: jobs has 2 ready items left. The first: Its group is paused.\n"
    assert done.stderr.endswith(told)
    assert fdbq.output(*drain, "--quiet") == "0 done, 0 failed\n"
    fdbq.output("group", "resume", "jobs", "ada")
    assert "left" not in fdbq(*drain).stderr
