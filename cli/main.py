"""The command group `fdbq`, and the reporting of its errors."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from fdbqueue import error_classes
from fdbqueue.errors import FdbqueueError

from . import interrupts
from .command import Group, database_option
from .output import OutputError, say

_SECTIONS = {
    "Push and pop": ("push", "pop", "peek", "task"),
    "Run jobs": (
        *("work", "deploy", "relay", "retry", "release", "cancel"),
        *("schedule", "group", "signal"),
    ),
    "Look": (
        *("ls", "items", "jobs", "batch", "show", "result", "stats", "history", "counts"),
        *("top", "workers", "serve", "info"),
    ),
    "Change items and queues": (
        *("rm", "update", "rename-job"),
        *("clear", "limit", "ranges", "pause", "resume", "rename", "drop"),
    ),
    "Copy and repair": ("import", "export", "backup", "restore", "copy", "check"),
    "Set up": ("completion",),
}

_MODULES = {
    "apps": ("deploy", "relay", "jobs"),
    "backup": ("restore", "copy"),
    "changes": ("retry", "release", "cancel", "rm", "update"),
    "check": ("info",),
    "main": ("completion",),
    "pop": ("peek",),
    "queues": (
        *("ls", "stats", "history", "counts", "ranges"),
        *("clear", "pause", "resume", "rename", "rename-job", "drop"),
    ),
    "show": ("result", "batch"),
    "transfer": ("import", "export"),
}
"""Modules with commands of other names."""

_MODULE_OF = {
    **{name: name for names in _SECTIONS.values() for name in names},
    **{name: module for module, names in _MODULES.items() for name in names},
}

_WHOLE = 1000  # characters; no summary is as long


class _LazyGroup(Group):
    """A group that imports a command's module only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_MODULE_OF])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULE_OF:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f".{_MODULE_OF[cmd_name]}", __package__)
        return next(
            command
            for command in vars(module).values()
            if isinstance(command, click.Command) and command.name == cmd_name
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by purpose, with their whole summaries."""
        for title, names in _SECTIONS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (name, command.get_short_help_str(limit=_WHOLE))
                for name, command in commands
                if command
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    cls=_LazyGroup,
    params=[database_option("--db")],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="fdbqueue", prog_name="fdbq")
def cli(url: str | None) -> None:
    """Manage durable, transactional priority queues, in FoundationDB or a local directory.

    Exit codes: 0 for success, 1 if there was nothing to do or not everything could be done, 2 for
    an error, and 128 + N if signal N ended the command.

    \b
    Example:
      fdbq push jobs '"hello"' --priority 1
      fdbq pop jobs
    """


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and queue names in SHELL.

    \b
    Example:
      fdbq completion bash > ~/.local/share/bash-completion/completions/fdbq
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(cli, {}, "fdbq", "_FDBQ_COMPLETE").source())


def main() -> None:
    """Run `fdbq`; report an error on one line and with exit code 2."""
    if sys.stdout is None:
        _fail("fdbq: standard output is closed; nothing was done")
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED is set. An unbuffered stream drops the rest of a line after a partial
        # write, which a signal or a nearly full disk can cause.
        sys.stdout = open(  # noqa: SIM115
            1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False
        )
    try:
        sys.exit(cli.main(prog_name="fdbq", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fdbq"
        message = error.format_message().removesuffix(".")
        if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
            message += "; pass a negative number as `-- VALUE`, or to an option as --option=VALUE"
        _fail(f"{command}: {message} (see {command} --help)")
    except click.ClickException as error:
        _fail(f"fdbq: {error.format_message()}")
    except click.Abort:
        _fail("fdbq: aborted; nothing was changed")
    except BrokenPipeError:
        _drop_output()
        sys.exit(interrupts.exit_code(2))
    except OutputError as error:
        _drop_output()
        _fail(f"fdbq: {error}")
    except UnicodeEncodeError as error:
        _fail(
            f"fdbq: {error.object!a} cannot be printed in the encoding {error.encoding}; "
            "set PYTHONIOENCODING=utf-8"
        )
    except FdbqueueError as error:
        _fail(f"fdbq: {error}")
    except OSError as error:
        _drop_output()
        _fail(f"fdbq: {error.filename or 'standard input or output'}: {error.strerror or error}")
    except error_classes() as error:  # from a cluster; the embedded engine's are FdbqueueErrors
        text = getattr(error, "description", b"")
        _fail(f"fdbq: {text.decode() if isinstance(text, bytes) else text} ({error.code})")


def _drop_output() -> None:
    """Discard further output; Python would fail when it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(message: str) -> NoReturn:
    say(" ".join(message.split()), err=True)
    sys.exit(interrupts.exit_code(2))
