"""The type, style and spelling checks pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["mypy"], marks=pytest.mark.long),
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["codespell_lib"],
    ],
    ids=["types", "style", "format", "spelling"],
)
def test_the_code_passes_type_and_style_checks(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
