"""Programs in Python that a test runs in a process of their own."""

from __future__ import annotations

import subprocess
import sys

_MAX_SECONDS = 3600.0  # by hand, a test may run for long


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    # From 3.12 on, Python warns of forks of processes with threads.
    warnings = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *warnings, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_MAX_SECONDS)
