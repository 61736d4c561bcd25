"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
"""Its blocks are files and commands of one story, which `test_tutorial.py` follows."""
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: str, *languages: str) -> list[str]:
    """Return the code blocks of a page in these languages."""
    found = re.findall(r"^```(\S*)\n(.*?)^```", page, re.M | re.S)
    return [text for language, text in found if language in languages]


def program(path: Path) -> str:
    """Return the Python of a page, whose blocks are one program."""
    return "" if path == TUTORIAL else "\n".join(blocks(path.read_text(), "python"))


def matches(output: str, expected: str) -> bool:
    """Return whether the output matches; `...` in the expected output matches anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, output, re.S) is not None
