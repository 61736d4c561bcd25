"""`fdbq`: the group of all commands, and how errors are told."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click
from click.shell_completion import get_completion_class

from fdbqueue import error_classes
from fdbqueue.errors import FdbqueueError

from . import signals
from .common import OutputFailed

__all__ = ["cli", "main"]

_MODULES = {
    "check": "queues",
    "clear": "items",
    "counts": "queues",
    "dead": "dead",
    "drop": "queues",
    "export": "transfer",
    "import": "transfer",
    "info": "queues",
    "items": "items",
    "limit": "queues",
    "ls": "queues",
    "pause": "queues",
    "peek": "items",
    "pop": "items",
    "push": "items",
    "rename": "queues",
    "resume": "queues",
    "rm": "items",
    "serve": "serve",
    "task": "tasks",
    "top": "top",
    "work": "work",
}


class _Commands(click.Group):
    """Commands whose modules are imported when they are run: a push need not wait for a worker."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_MODULES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f".{_MODULES[cmd_name]}", __package__)
        return next(
            command
            for command in vars(module).values()
            if isinstance(command, click.Command) and command.name == cmd_name
        )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fdbqueue", prog_name="fdbq")
def cli() -> None:
    """A transactional, durable priority queue, on FoundationDB or on this machine alone.

    \b
    Example:
      fdbq push jobs '"hello"' --priority 1
      fdbq pop jobs
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and queue names in SHELL.

    \b
    Example:
      fdbq completion bash > ~/.local/share/bash-completion/completions/fdbq
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(kind(cli, {}, "fdbq", "_FDBQ_COMPLETE").source())


cli.add_command(completion)


def main() -> None:
    """Run `fdbq`; an error is one line on standard error and exit code 2."""
    if sys.stdout is None:
        _fail("fdbq: standard output is closed; nothing was done")
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED is set. Such a stream drops the rest of a line that a signal, or a disk
        # that is nearly full, lets it write in part.
        sys.stdout = open(  # noqa: SIM115
            1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False
        )
    try:
        sys.exit(cli.main(prog_name="fdbq", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        sys.exit(2)
    except click.NoSuchOption as error:
        command = error.ctx.command_path if error.ctx else "fdbq"
        hint = (
            ""
            if not error.option_name[1:2].isdigit()
            else "; a value that begins so goes behind `--`, an option's behind `=`"
        )
        _fail(f"{command}: {error.format_message()}{hint} (see {command} --help)")
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fdbq"
        _fail(f"{command}: {error.format_message()} (see {command} --help)")
    except click.ClickException as error:
        _fail(f"fdbq: {error.format_message()}")
    except click.Abort:
        _fail("fdbq: aborted, nothing was changed")
    except BrokenPipeError:
        _drop_output()
        sys.exit(signals.exit_code(2))
    except OutputFailed as error:
        _drop_output()
        _fail(f"fdbq: {error}")
    except UnicodeEncodeError as error:
        _fail(
            f"fdbq: the terminal's encoding, {error.encoding}, has no {error.object!a}; try UTF-8"
        )
    except FdbqueueError as error:
        _fail(f"fdbq: {error}")
    except OSError as error:
        _drop_output()
        _fail(f"fdbq: {error.filename or 'the input or the output'}: {error.strerror or error}")
    except error_classes() as error:  # of a cluster; those of the embedded engine are above
        text = getattr(error, "description", b"")
        _fail(f"fdbq: {text.decode() if isinstance(text, bytes) else text} ({error.code})")


def _drop_output() -> None:
    """Discard further output: Python would fail again when it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(message: str) -> None:
    click.echo(" ".join(message.split()), err=True)
    sys.exit(signals.exit_code(2))
