"""Options of commands that the library declares."""

from __future__ import annotations

from typing import get_type_hints

import click
import pytest

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
