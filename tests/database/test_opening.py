"""How `open` interprets its argument and the environment."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

import fdbqueue
from fdbqueue.embedded import Database
from fdbqueue.errors import ClusterUnavailable


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FDBQ_DB", raising=False)
    monkeypatch.delenv("FDB_CLUSTER_FILE", raising=False)
    monkeypatch.setattr(platformdirs, "user_data_path", lambda name: tmp_path / "data" / name)


def opened_path(url: str | Path | None = None) -> Path:
    with fdbqueue.open(url) as db:
        assert isinstance(db, Database)
        return db.path


def test_open_without_a_url_uses_the_data_directory_of_the_user(tmp_path: Path) -> None:
    assert opened_path() == tmp_path / "data" / "fdbqueue"


def test_the_environment_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (tmp_path / "a", f"embedded:{tmp_path / 'a'}"):
        monkeypatch.setenv("FDBQ_DB", str(url))
        assert opened_path() == tmp_path / "a"
    monkeypatch.setenv("FDB_CLUSTER_FILE", str(tmp_path / "missing.cluster"))
    assert opened_path() == tmp_path / "a"
    assert opened_path(tmp_path / "b") == tmp_path / "b"


def test_a_cluster_file_in_the_environment_selects_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("missing.cluster", "missing"):
        monkeypatch.setenv("FDB_CLUSTER_FILE", str(tmp_path / name))
        with pytest.raises(ClusterUnavailable, match="no cluster file"):
            fdbqueue.open()
    (tmp_path / "text").write_text("anything")
    with pytest.raises(ClusterUnavailable, match="no line 'description:id@host:port'"):
        fdbqueue.open(tmp_path / "text")


def test_relative_paths_and_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert opened_path("embedded:here") == tmp_path / "here"
    assert opened_path("embedded:~/there") == tmp_path / "home" / "there"


@pytest.mark.parametrize("url", ["", "embedded:", "postgres://host/db", "redis:6379"])
def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match=r"embedded:|empty text"):
        fdbqueue.open(url)
