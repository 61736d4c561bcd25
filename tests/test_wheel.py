"""The wheel has the packages with their data, and nothing else, also if Docker builds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"fdbqueue": "fdbqueue", "cli": "fdbq", "pytest_fdbqueue": "pytest_fdbqueue"}
"""The directories of the packages and their names in the wheel."""


def _can_build() -> bool:
    """Return whether the build backend that `pyproject.toml` requires is installed."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def _files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.skipif(not _can_build(), reason="needs setuptools 77 or later: pip install '.[test]'")
def test_the_wheel_has_the_packages_and_nothing_else(tmp_path: Path) -> None:
    clone = tmp_path / "clone"  # setuptools writes beside the sources
    in_image = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    for name in (*in_image, "recipes", "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, clone)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", ".", "--wheel-dir", str(tmp_path)),
            *("--no-index", "--no-deps", "--no-build-isolation"),
        ],
        cwd=clone,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("fdbqueue-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("/entry_points.txt"))
        named = archive.read(entry_points).decode()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        description = archive.read(metadata).decode().partition("\n\n")[2]
        assert "fdbq = fdbq.__main__:main" in named
        assert "[pytest11]\nfdbqueue = pytest_fdbqueue" in named
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert links
    assert all(link.startswith("https://") for link in links), "PyPI has no other files"
    assert "- Tutorial, and quickstarts: embedded," in description
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == {
        f"{name}/{file}" for folder, name in PACKAGES.items() for file in _files(ROOT / folder)
    }
    assert {"fdbqueue/py.typed", "fdbq/py.typed", "fdbqueue/http/static/app.js"} <= packed
