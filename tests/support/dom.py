"""Pages of the dashboard in Node.js, without a browser: what they show, and what they do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "fdbqueue" / "http" / "static"
NODE = shutil.which("node")

in_node = pytest.mark.skipif(NODE is None, reason="there is no Node.js on the PATH")


def visit(path: Path, server: str, address: str, *steps: tuple[str, ...]) -> list[dict[str, Any]]:
    """Open a page and take some steps, as `dom.mjs` describes; return what each `show` has shown.

    Args:
        path: An empty directory.
        server: The address of the server.
        address: That of the page within it, such as `#/queues/jobs/groups`.
        steps: The steps.
    """
    shutil.copytree(STATIC, path / "static", dirs_exist_ok=True)
    shutil.copy(Path(__file__).parent / "dom.mjs", path)
    (path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        [str(NODE), "dom.mjs", server.rstrip("/"), address, json.dumps(steps)],
        capture_output=True,
        text=True,
        cwd=path,
    )
    assert done.returncode == 0, done.stderr
    return [*map(json.loads, done.stdout.splitlines())]
