"""Options of commands that the library declares."""

from __future__ import annotations

from typing import get_type_hints

import click
import pytest
from fdbq.arguments import NONE
from fdbq.options import chosen, options_of

from fdbqueue.options import (
    Filters,
    GroupSettings,
    PushOptions,
    QueueSettings,
    ScheduleOptions,
    TaskOptions,
)
from tests.support.shell import commands

ELSEWHERE = {"limit": {"keep", "paused"}, "group set": {"paused"}}
"""Fields with commands of their own, or with another form in the shell."""


@pytest.mark.parametrize(
    ("command", "declared"),
    [
        ("push", PushOptions),
        ("task push", TaskOptions),
        ("schedule add", ScheduleOptions),
        ("items", Filters),
        ("limit", QueueSettings),
        ("group set", GroupSettings),
    ],
)
def test_a_command_has_all_options_that_the_library_declares(command: str, declared: type) -> None:
    fields = get_type_hints(declared).keys() - ELSEWHERE.get(command, set())
    options = [each for each in commands()[command].params if isinstance(each, click.Option)]
    assert fields <= {each.name for each in options}


def parsed(*arguments: str) -> dict[str, object]:
    command = click.Command("any", params=[*options_of(GroupSettings)])
    options: dict[str, object] = chosen(command.make_context("any", list(arguments)).params)
    return options


def test_none_is_a_value_and_an_option_that_is_not_given_is_left_out() -> None:
    assert parsed() == {}
    assert parsed("--weight", "none", "--rate", "none")["weight"] is None
    assert parsed("--weight", "2", "--not-in-order")["in_order"] is False
    assert chosen({"group": "none", "cost": None, "unique": NONE}) == {
        "group": "none",
        "unique": None,
    }
