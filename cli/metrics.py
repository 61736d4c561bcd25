"""The metrics of `fdbq work`."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import click

from fdbqueue.queue.arguments import validate_address
from fdbqueue.worker.processes import parent

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def serving_metrics(address: str | None, *, of_all: bool) -> Generator[None]:
    """Serve the metrics of this process, or of all its children."""
    if address is None:
        yield
        return
    host, port = validate_address(address)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-metrics-") as directory:
        if of_all:
            os.environ.setdefault(_DIRECTORY, directory)
        try:
            from prometheus_client import CollectorRegistry, multiprocess, start_http_server

            registry: dict[str, Any] = {}
            if of_all:
                registry["registry"] = CollectorRegistry()
                collect: Any = multiprocess.MultiProcessCollector
                collect(registry["registry"])
            start_http_server(port, addr=host, **registry)
        except ImportError as error:
            raise click.UsageError(
                f"--metrics-port needs {error.name}: run pip install '.[server]' in a clone of "
                "fdbqueue"
            ) from error
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {host}, port {port}: {error.strerror}"
            ) from error
        yield


def continue_metrics() -> None:
    """Continue the metrics of the replaced process."""
    if parent is not None and _DIRECTORY in os.environ:
        number = parent.number
        with suppress(Exception):  # workers log what prometheus_client raises
            values: Any = importlib.import_module("prometheus_client.values")
            values.ValueClass = values.MultiProcessValue(lambda: number)
