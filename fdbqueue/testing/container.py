"""FoundationDB in Docker, for tests on a machine without a server."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from testcontainers.core.container import DockerContainer

from fdbqueue.errors import ClusterUnavailable

if TYPE_CHECKING:
    from typing import Self

_READY = 60.0  # seconds until a new cluster must respond
_BETWEEN = 0.2  # seconds between attempts to configure it


class FoundationDBContainer(DockerContainer):
    """A new, empty FoundationDB cluster of one process in Docker.

    It needs the package `testcontainers`. The client library must be on this machine; see
    `docs/quickstart/cluster.md`.

    Args:
        image: The image, with the entry point of FoundationDB's official one.
        storage: The storage engine, such as `"memory"` or `"ssd"`.
        options: Options of `DockerContainer`.

    Raises:
        ClusterUnavailable: The server does not respond within a minute.
    """

    def __init__(
        self,
        image: str = "foundationdb/foundationdb:7.3.79",
        *,
        storage: str = "memory",
        **options: Any,
    ) -> None:
        super().__init__(image, **options)
        self._storage = storage
        self._directory = TemporaryDirectory(prefix="fdbqueue-cluster-")
        self.cluster_file = Path(self._directory.name, "fdb.cluster")
        """The cluster file, for `fdbqueue.open` and `$FDB_CLUSTER_FILE`."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # Clients connect to the address that the server announces, so that address must be the same
        # inside and outside of the container.
        self.cluster_file.write_text(f"docker:docker@127.0.0.1:{port}\n")
        self.with_env("FDB_PORT", str(port))
        self.with_env("FDB_NETWORKING_MODE", "host")  # which makes it announce 127.0.0.1
        ports: dict[str, Any] = self.ports
        ports[f"{port}/tcp"] = "127.0.0.1", port

    def start(self) -> Self:
        """Start the server, and create the database."""
        super().start()
        configure = f"configure new single {self._storage}"
        deadline = time.monotonic() + _READY
        while self.exec(["fdbcli", "--exec", configure, "--timeout", "10"]).exit_code != 0:
            if time.monotonic() > deadline:
                self.stop()
                raise ClusterUnavailable(
                    f"the server in the container did not respond within {_READY:g} seconds"
                )
            time.sleep(_BETWEEN)
        return self

    def stop(self, *args: Any, **options: Any) -> None:
        """Remove the container with its data, and the cluster file."""
        super().stop(*args, **options)
        self._directory.cleanup()
