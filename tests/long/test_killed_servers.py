"""Jobs while one of three servers is killed and started again, or all of them are replaced.

`FDBQ_MINUTES` is the length of the run. The line that it prints has the longest stop.
`FDBQ_NEXT_HOME` is a directory with `bin/fdbserver` and `lib/libfdb_c.so` of the next release, to
which the servers are upgraded. Containers are tried where Docker has the image of
`docker/compose.three.yaml`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.long.clients import CHECK, PUSHER, WORKER, started
from tests.support.cluster import find_programs, free_port

MINUTES = float(os.environ.get("FDBQ_MINUTES", "0.75"))
EVERY = 10.0  # seconds between two kills
NEXT_HOME = os.environ.get("FDBQ_NEXT_HOME")
DOCKER = Path(__file__).parents[2] / "docker"
DEAD = 4.0  # seconds until a killed server starts again


class Servers:
    """Three servers with two copies of everything, of which one may be dead."""

    def __init__(self, directory: Path, fdbserver: str, fdbcli: str) -> None:
        self._directory, self._fdbserver = directory, fdbserver
        self._ports = [free_port() for _ in range(3)]
        self.file = directory / "fdb.cluster"
        addresses = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.file.write_text(f"test:test@{addresses}\n")
        self._processes = [self._start(port) for port in self._ports]
        command = [fdbcli, "-C", str(self.file), "--timeout", "10"]
        command += ["--exec", "configure new double ssd"]
        while subprocess.run(command, capture_output=True).returncode:
            time.sleep(0.5)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        data, logs = self._directory / f"data{port}", self._directory / f"logs{port}"
        logs.mkdir(exist_ok=True)
        return subprocess.Popen(
            [
                *(self._fdbserver, "--public-address", f"127.0.0.1:{port}"),
                *("--locality-zoneid", str(port), "--locality-machineid", str(port)),
                *("--cluster-file", str(self.file), "--datadir", str(data)),
                *("--logdir", str(logs)),
            ],
            stdout=subprocess.DEVNULL,
        )

    def kill(self, number: int) -> None:
        """Kill a server with -9."""
        self._processes[number].kill()
        self._processes[number].wait()

    def start(self, number: int) -> None:
        """Start a killed server on its data."""
        self._processes[number] = self._start(self._ports[number])

    def replace(self, fdbserver: str | None) -> None:
        """Kill all servers, and start them again, with `fdbserver` if given."""
        self._fdbserver = fdbserver or self._fdbserver
        self.close()
        for number in range(3):
            self.start(number)

    def close(self) -> None:
        """Kill all servers."""
        for number in range(3):
            self.kill(number)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    programs = find_programs()
    if programs is None:
        pytest.skip("no fdbserver and fdbcli on PATH or under FDB_HOME")
    servers = Servers(tmp_path, *programs)
    yield servers
    servers.close()


class Containers:
    """The servers of `docker/compose.three.yaml`."""

    def __init__(self, directory: Path) -> None:
        self.file = shutil.copy(DOCKER / "fdb.three.cluster", directory)
        self._compose("up", "--detach", "--wait", "--pull", "never")

    def _compose(self, *arguments: str) -> None:
        command = ["docker", "compose", "--file", str(DOCKER / "compose.three.yaml"), *arguments]
        subprocess.run(command, check=True)

    def kill(self, number: int) -> None:
        """Kill a server with -9."""
        self._compose("kill", f"fdb{number + 1}")

    def start(self, number: int) -> None:
        """Start a killed server on its data."""
        self._compose("start", f"fdb{number + 1}")

    def close(self) -> None:
        """Remove the containers and their data."""
        self._compose("down", "--volumes")


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    image = re.search(r"image: (\S+)", (DOCKER / "compose.three.yaml").read_text())
    assert image
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "image", "inspect", image[1]]).returncode
    ):
        pytest.skip(f"no docker, or no image {image[1]}")
    containers = Containers(tmp_path)
    yield containers
    containers.close()


@pytest.mark.parametrize("kind", ["servers", "containers"])
def test_each_job_runs_once_while_servers_are_killed(
    kind: str, request: pytest.FixtureRequest, rng: random.Random
) -> None:
    servers: Servers | Containers = request.getfixturevalue(kind)

    def disturb() -> None:
        number = rng.randrange(3)
        servers.kill(number)
        time.sleep(DEAD)
        servers.start(number)

    run_jobs(servers, disturb, "servers killed")


def test_each_job_runs_once_while_all_servers_are_replaced(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `FDBQ_NEXT_HOME`, the same release replaces them."""
    fdbserver = None
    if NEXT_HOME:
        fdbserver = f"{NEXT_HOME}/bin/fdbserver"
        libraries = tmp_path / "libraries"
        libraries.mkdir()
        shutil.copy(f"{NEXT_HOME}/lib/libfdb_c.so", libraries / "libfdb_c_next.so")
        monkeypatch.setenv("FDB_NETWORK_OPTION_EXTERNAL_CLIENT_DIRECTORY", str(libraries))
    run_jobs(servers, lambda: servers.replace(fdbserver), "times all servers replaced")


def run_jobs(servers: Servers | Containers, disturb: Callable[[], object], name: str) -> None:
    """Push jobs and run them, call `disturb` every few seconds, and check what has run."""
    workers = [started(WORKER, servers.file) for _ in range(2)]
    pusher = started(PUSHER, servers.file, 60 * MINUTES)
    n = 0
    while pusher.poll() is None:
        time.sleep(EVERY - DEAD)
        disturb()
        n += 1
    output, _ = pusher.communicate()
    assert pusher.returncode == 0
    pushed, longest = int(output.split()[0]), float(output.split()[1])
    assert started(CHECK, servers.file, pushed).wait() == 0
    for worker in workers:
        worker.terminate()
        assert worker.wait(60) == 0
    print(f"{pushed:,} jobs, {n} {name}; longest stop of pushes {longest:.1f} s")
