"""A FoundationDB cluster for the tests: a configured one, a new one, or the reason for none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import fdbqueue
from fdbqueue.errors import ClusterUnavailable

_READY = 60.0  # seconds until a new cluster must respond


class NoCluster(Exception):
    """No cluster is available; the message is the reason."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that responds."""

    file: Path
    source: str
    """Its origin, for the line at the end of a run."""
    is_own: bool
    """Whether it was started for the tests and so holds no other data."""


@contextmanager
def start_or_find_cluster(directory: Path) -> Iterator[Cluster]:
    """Yield the configured cluster, or a new one that keeps its files in `directory`."""
    with ExitStack() as stack:
        if given := os.environ.get("FDBQ_TEST_CLUSTER_FILE"):
            cluster = Cluster(Path(given), "FDBQ_TEST_CLUSTER_FILE", False)
        else:
            cluster = stack.enter_context(_server(directory))
        try:
            fdbqueue.open(cluster.file)
        except ClusterUnavailable as error:
            raise NoCluster(str(error)) from error
        yield cluster


@contextmanager
def _server(directory: Path) -> Iterator[Cluster]:
    """Run a single `fdbserver` on loopback: of FDB_HOME, PATH or where Debian installs it."""
    home = os.environ.get("FDB_HOME")
    places = [home, f"{home}/bin", f"{home}/sbin"] if home else [os.environ["PATH"], "/usr/sbin"]
    search = os.pathsep.join(places)
    fdbserver, fdbcli = (shutil.which(name, path=search) for name in ("fdbserver", "fdbcli"))
    if fdbserver is None or fdbcli is None:
        raise NoCluster("no fdbserver and fdbcli on PATH or under FDB_HOME")
    shown = subprocess.run([fdbserver, "--version"], capture_output=True, text=True).stdout
    version = next((word for word in shown.split() if word[0].isdigit()), "?")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    file = directory / "fdb.cluster"
    file.write_text(f"test:test@{address}\n")
    command = [
        *(fdbserver, "--public-address", address, "--cluster-file", str(file)),
        *("--datadir", str(directory / "data"), "--logdir", str(directory / "logs")),
    ]
    configure = [fdbcli, "-C", str(file), "--exec", "configure new single memory"]
    with (directory / "fdbserver.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _READY
        while subprocess.run([*configure, "--timeout", "10"], capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise NoCluster(f"the server did not respond within {_READY:.0f} seconds")
            time.sleep(0.2)
        yield Cluster(file, f"fdbserver {version}", True)
    finally:
        process.kill()
        process.wait()
