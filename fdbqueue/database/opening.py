"""Open a database: the embedded engine's, or a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, overload

import fdb
import platformdirs

from fdbqueue.database.binding import check_fork, client_api_version, opening
from fdbqueue.embedded.database import Database as EmbeddedDatabase
from fdbqueue.errors import ClusterUnavailable, error_classes
from fdbqueue.types import Database

API_VERSION = 730


@overload
def open(
    url: Literal["memory:"], *, durability: str = "full", create: bool = True
) -> EmbeddedDatabase: ...


@overload
def open(
    url: str | os.PathLike[str] | None = None, *, durability: str = "full", create: bool = True
) -> Database: ...


def open(
    url: str | os.PathLike[str] | None = None, *, durability: str = "full", create: bool = True
) -> Database:
    """Open a database: embedded in a directory, in memory, or a FoundationDB cluster.

    - `"embedded:/path"` or the path of a directory: the embedded engine.
    - `"memory:"`: a private database in memory, deleted when closed.
    - The path of a cluster file: that cluster. This selects API version 730 unless the program
      has selected a version.
    - `None`: the database that `$FDBQ_DB` names, else the cluster of `$FDB_CLUSTER_FILE`, else
      the embedded engine in the user's data directory.

    Args:
        url: The database, as above.
        durability: On the embedded engine, `"full"`: a commit that returned is on disk. `"os"`: a
            failure of the machine may lose the last commits.
        create: Whether the embedded engine creates a missing database.

    Raises:
        NotADatabase: The directory holds something else, or nothing and `create` is false.
        StorageError: The directory cannot be used; other subclasses say why.
        ClusterUnavailable: The client library or the cluster file is missing or unusable.
        ValueError: `url` does not name a database.

    Example:
        >>> db = open("memory:")
        >>> db[b"k"] = b"v"
        >>> db[b"k"]
        b'v'
    """
    named = os.environ.get("FDBQ_DB") or None if url is None else os.fspath(url)
    if not isinstance(named, (str, type(None))):
        raise TypeError(f"a database must be named by text or a path, not by {url!r}")
    if named is None:
        if cluster_file := os.environ.get("FDB_CLUSTER_FILE"):
            return _open_cluster(cluster_file)
        return EmbeddedDatabase(platformdirs.user_data_path("fdbqueue"), durability, create=create)
    if not named:
        raise ValueError("an empty text does not name a database; omit it for the default one")
    if named == "memory:":
        return EmbeddedDatabase(None, durability)
    if named.startswith("embedded:"):
        if not (path := named.removeprefix("embedded:")):
            raise ValueError("'embedded:' needs a path after it: 'embedded:/var/lib/jobs'")
        return EmbeddedDatabase(path, durability, create=create)
    if re.match(r"\w\w+:", named):
        raise ValueError(
            f"{named!r} does not name a database; "
            "write the path of a directory or of a cluster file, 'embedded:/path' or 'memory:'"
        )
    if Path(named).is_file() or named.endswith(".cluster"):
        return _open_cluster(named)
    return EmbeddedDatabase(named, durability, create=create)


def _open_cluster(cluster_file: str) -> Database:
    check_fork()
    if not Path(cluster_file).is_file():
        raise ClusterUnavailable(f"there is no cluster file {cluster_file}")
    lines = Path(cluster_file).read_text(errors="replace").splitlines()
    if not any(re.match(r"\s*\w+:\w+@\S+", line) for line in lines):
        raise ClusterUnavailable(
            f"{cluster_file} is not a cluster file: it has no line 'description:id@host:port'"
        )
    with opening:
        return _opened(cluster_file)


def _opened(cluster_file: str) -> Database:
    try:
        if not fdb.is_api_version_selected():
            fdb.api_version(API_VERSION)
    except Exception as error:
        # Without the library the binding raises a bare Exception, with one that is older than the
        # binding a RuntimeError, with one that lacks a function an AttributeError.
        library = client_api_version()
        if library is not None and library >= API_VERSION:
            raise ClusterUnavailable(
                f"the binding foundationdb {_release(fdb.LATEST_API_VERSION)} does not work with "
                f"the client library (libfdb_c) {_release(library)}; install the binding that "
                "does: pip install 'foundationdb==7.3.*'"
            ) from error
        raise ClusterUnavailable(
            f"the FoundationDB client library 7.3 (libfdb_c) cannot be used: {error}; install the "
            "package foundationdb-clients of the cluster's release"
        ) from error
    try:
        db: Database = fdb.open(cluster_file)
    except error_classes() as error:
        raise ClusterUnavailable(f"{cluster_file} cannot be opened: {error}") from error
    return db


def _release(api_version: int) -> str:
    return f"{api_version // 100}.{api_version // 10 % 10}"
