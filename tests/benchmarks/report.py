"""What the benchmarks print: the machine, and tables."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from tests.support.threads import in_threads

MAX_WAIT = 300  # seconds for a message of a process

console = Console(width=140, highlight=False)


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table whose first column is the name of a row; it prints as Markdown."""
    table = Table(Column(no_wrap=True), title=title, title_justify="left", box=box.MARKDOWN)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_machine(directory: Path) -> None:
    """Print the machine, and the time of an fsync in a directory."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    console.print(f"{os.cpu_count()} cores, {memory:.0f} GiB RAM, load average {load}")
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    console.print(f"{platform.platform()}, {versions}")
    console.print(f"An fsync at {directory} takes {_fsync(directory) * 1e3:.2f} ms")


def _fsync(directory: Path) -> float:
    """Return the median seconds of an fsync after an append of 4 KiB."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(50):
            file.write(bytes(4096))
            file.flush()
            times.append(seconds(lambda: os.fsync(file.fileno())))
    return statistics.median(times)


def seconds(action: Callable[[], object], count: int = 1) -> float:
    """Return the mean seconds of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - start) / count


def threads_rate(operation: Callable[[], object], threads: int, count: int) -> float:
    """Return the operations a second of several threads, which make `count` altogether."""
    numbers = iter(range(count))

    def work() -> None:
        for _ in numbers:
            operation()

    start = time.perf_counter()
    in_threads([work] * threads)
    return count / (time.perf_counter() - start)


def received(pipe: Any) -> Any:
    if not pipe.poll(MAX_WAIT):
        raise RuntimeError(f"a process did not answer for {MAX_WAIT} seconds")
    return pipe.recv()


@contextmanager
def processes(target: Callable[..., None], each: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
    """Start processes; yield pipes to them when each is ready, and has been told to begin.

    Args:
        target: What a process runs. It sends a message when it is ready, and receives the time to
            begin, by the monotonic clock.
        each: The arguments of `target` in each process. A pipe follows them.
    """
    context = multiprocessing.get_context("spawn")
    started, pipes = [], []
    try:
        for arguments in each:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
            process.start()
            theirs.close()  # the end of the process closes its pipe
            started.append(process)
            pipes.append(ours)
        for pipe in pipes:
            received(pipe)
        begin = time.monotonic() + 0.05
        for pipe in pipes:
            pipe.send(begin)
        yield pipes
    finally:
        for process in started:
            process.terminate()
            process.join(5)
            process.kill()
            process.join()
