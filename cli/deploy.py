"""The command `fdbq deploy`."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from typing import Any

import click

from .command import OF_EVERY_COMMAND, database_option
from .loading import bound_app
from .logs import log_to_stderr
from .options import flag, option
from .output import report, say, show, wants_json


@click.command(
    params=[
        option(
            "--app", metavar="MODULE:APP", required=True, help="The app that declares the options."
        ),
        flag("--check", help="Only print what differs; exit with code 1 if anything does."),
        flag("--force", help="Replace also values set by hand since the last deployment."),
        database_option("--db"),
        *OF_EVERY_COMMAND,
    ]
)
def deploy(app: str, check: bool, force: bool, **given: Any) -> None:
    """Store the options of queues and the schedules that an app declares, and print what changes.

    All of it is one transaction. Workers do the same for their queues when they start. An option
    that was set by hand since the last deployment stays, unless --force is given.

    \b
    Example:
      fdbq deploy --app shop:app
    """
    log_to_stderr(logging.DEBUG if given["verbose"] else logging.WARNING)
    loaded = bound_app(app, given["url"], given["timeout"], create=not check)
    differences = loaded.deploy(force=force, check=check)
    for each in differences:
        (show if check else report)(asdict(each), str(each))
    if not differences and not wants_json():
        say("nothing differs")
    if check and differences:
        sys.exit(1)
