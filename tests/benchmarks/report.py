"""What the benchmarks print: the machine, and tables."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column, Table

console = Console(width=140, highlight=False)


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table whose first column is the name of a row; it prints as Markdown."""
    table = Table(Column(no_wrap=True), title=title, title_justify="left", box=box.MARKDOWN)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_machine(directory: Path) -> None:
    """Print the machine, and the file system and the fsync of a directory."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    console.print(f"CPU: {_cpu()}, {os.cpu_count()} cores, {memory:.0f} GiB RAM")
    console.print(f"System: {platform.system()} {platform.release()}, load average {load}")
    console.print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    packages = (
        "fdbqueue",
        "huey",
        "diskcache",
        "persist-queue",
        "rq",
        "procrastinate",
        "dramatiq",
        "celery",
        "dbos",
        "absurd-sdk",
        "ballast.py",
    )
    console.print("Packages: " + ", ".join(filter(None, map(_package, packages))))
    fsync = f"{_fsync(directory) * 1e3:.2f} ms"
    console.print(f"Disk: {_file_system(directory)} at {directory}, an fsync takes {fsync}")


def _cpu() -> str:
    """Return the model of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _package(name: str) -> str | None:
    """Return the name and version of a package if it is installed."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return None


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except FileNotFoundError:
        return "unknown file system"
    mounts = [line.split()[1:3] for line in lines]
    holding = [each for each in mounts if directory.resolve().is_relative_to(each[0])]
    return max(holding, key=lambda each: len(each[0]))[1]


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
