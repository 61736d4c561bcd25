"""Files that commands read and write, and their progress."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import IO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from .interrupts import cleanup_on_signal, defer_signals, restoring_cursor
from .output import OutputError


@contextmanager
def replacing(path: str) -> Generator[IO[bytes]]:
    """Open a file that durably replaces `path` if the block succeeds; `-` is standard output."""
    try:
        with _open(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if path == "-":
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error
        raise click.ClickException(f"cannot write to {path}: {error.strerror}") from error


@contextmanager
def _open(path: str) -> Generator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, for example
        with open(path, "wb") as file:
            yield file
        return
    if not path:
        raise click.UsageError("FILE is an empty path")
    target = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(target)):
        raise click.ClickException(f"no such directory: {os.path.dirname(target)}")
    with ExitStack() as stack:
        directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, directory)
        with defer_signals():
            folder, name = os.path.split(target)
            temporary = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False)
            )
            stack.enter_context(cleanup_on_signal(lambda: os.unlink(temporary.name)))
        try:
            yield temporary
            temporary.flush()
            os.chmod(temporary.name, _mode(target))
            os.fsync(temporary.fileno())
            os.replace(temporary.name, target)
        except BaseException:
            os.unlink(temporary.name)
            raise
        os.fsync(directory)


def _mode(path: str) -> int:
    if os.path.exists(path):
        return stat.S_IMODE(os.stat(path).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def progress_bar(unit: ProgressColumn) -> Generator[Progress]:
    """Show a progress bar on standard error, if a terminal."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        unit,
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with restoring_cursor(console), progress:
        yield progress
