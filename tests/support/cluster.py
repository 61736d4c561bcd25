"""A FoundationDB cluster for the tests: a configured one, a new one, or the reason for none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import fdbqueue
from fdbqueue.errors import ClusterUnavailable
from fdbqueue.testing import FoundationDBContainer

IMAGE = "foundationdb/foundationdb:7.3.79"
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
    """Yield the first available cluster; a new one keeps its files in `directory`."""
    with ExitStack() as stack:
        if given := os.environ.get("FDBQ_TEST_CLUSTER_FILE"):
            cluster = Cluster(Path(given), "FDBQ_TEST_CLUSTER_FILE", False)
        elif programs := find_programs():
            server = stack.enter_context(Server(directory, *programs))
            cluster = Cluster(server.cluster_file, f"fdbserver {server.version}", True)
        else:
            cluster = stack.enter_context(_in_docker())
        try:
            fdbqueue.open(cluster.file)
        except ClusterUnavailable as error:
            raise NoCluster(str(error)) from error
        yield cluster


def find_programs() -> tuple[str, str] | None:
    """Find `fdbserver` and `fdbcli` in FDB_HOME, on PATH or where Debian installs them."""
    home = os.environ.get("FDB_HOME")
    places = [home, f"{home}/bin", f"{home}/sbin"] if home else [os.environ["PATH"], "/usr/sbin"]
    search = os.pathsep.join(places)
    found = [shutil.which(name, path=search) for name in ("fdbserver", "fdbcli")]
    return (found[0], found[1]) if found[0] and found[1] else None


class Server:
    """A single `fdbserver` process on loopback that can be killed and restarted."""

    def __init__(
        self, directory: Path, fdbserver: str, fdbcli: str, storage: str = "memory"
    ) -> None:
        self.cluster_file = directory / "fdb.cluster"
        self._directory = directory
        self._fdbserver, self._fdbcli = fdbserver, fdbcli
        self._storage = storage
        self._process: subprocess.Popen[bytes] | None = None
        shown = subprocess.run([fdbserver, "--version"], capture_output=True, text=True).stdout
        self.version = next((word for word in shown.split() if word[0].isdigit()), "?")

    def __enter__(self) -> Server:
        self._address = f"127.0.0.1:{free_port()}"
        self.cluster_file.write_text(f"test:test@{self._address}\n")
        self.start()
        try:
            _configure(self._storage, self._fdbcli_succeeds)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory / "data")  # some 200 MB, which pytest would keep

    def start(self) -> None:
        """Start the process on its existing data."""
        with (self._directory / "fdbserver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._fdbserver, "--public-address", self._address),
                    *("--cluster-file", str(self.cluster_file)),
                    *("--datadir", str(self._directory / "data")),
                    *("--logdir", str(self._directory / "logs")),
                ],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Kill the process with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _fdbcli_succeeds(self, arguments: list[str]) -> bool:
        command = [self._fdbcli, "-C", str(self.cluster_file), *arguments]
        return subprocess.run(command, capture_output=True).returncode == 0


def _configure(storage: str, succeeds: Callable[[list[str]], bool]) -> None:
    """Create a new database as soon as the server responds."""
    deadline = time.monotonic() + _READY
    while not succeeds(["--exec", f"configure new single {storage}", "--timeout", "10"]):
        if time.monotonic() > deadline:
            raise NoCluster(f"the server did not take `configure new` within {_READY:.0f} seconds")
        time.sleep(0.2)


@contextmanager
def _in_docker() -> Iterator[Cluster]:
    image = os.environ.get("FDBQ_TEST_IMAGE", IMAGE)
    try:
        container = FoundationDBContainer(image).start()
    except Exception as error:  # any failure of Docker is the reason
        reason = "no fdbserver and fdbcli on PATH or under FDB_HOME, and Docker did not start"
        raise NoCluster(f"{reason} {image}: {' '.join(str(error).split())[:120]}") from error
    try:
        yield Cluster(container.cluster_file, f"Docker, {image}", True)
    finally:
        container.stop()


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
