"""Health checks of the workers of a process, over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING

from fdbqueue.database.retrying import run
from fdbqueue.errors import FdbqueueError, error_classes
from fdbqueue.layout.names import workers_range
from fdbqueue.queue.arguments import validate_address
from fdbqueue.types import Database, Transaction
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

_log = Log("fdbqueue.worker")

_DATABASE = 2_000  # milliseconds in which the database has to answer
_REQUEST = 5.0  # seconds in which a client has to send its request


@contextmanager
def serving_health(address: int | str | None, trouble: Callable[[], str | None]) -> Generator[int]:
    """Answer health checks in a thread; yield the port.

    `/live` answers 200 while the process runs. `/ready` answers 200 if nothing is wrong, and else
    503 with the reason.

    Args:
        address: A port of the loopback interface, or a text `"HOST:PORT"`; port 0 for any free one.
            `None` to answer none.
        trouble: Returns what is wrong; `None` if nothing is.

    Raises:
        OSError: The process cannot listen on the address.
        ValueError: It is not an address.

    Example:
        >>> import urllib.request
        >>> with serving_health(0, lambda: None) as port:
        ...     print(urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").read().decode())
        {"status": "ok"}
    """
    if address is None:
        yield 0
        return
    host, server = _listening_on(address, trouble)
    thread = threading.Thread(target=server.serve_forever, name="fdbqueue-health", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    _log.info("answering /live and /ready on http://%s:%d", shown, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def check_address(address: int | str | None) -> None:
    """Raise the errors of `serving_health` if this process cannot listen on the address now."""
    if address is not None:
        _listening_on(address, lambda: None)[1].server_close()


def _listening_on(
    address: int | str, trouble: Callable[[], str | None]
) -> tuple[str, ThreadingHTTPServer]:
    host, port = validate_address(address)
    try:
        return host, _listening(host, port, trouble)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen: {error.strerror}", f"{host}:{port}") from None


def trouble_of_database(db: Database) -> str | None:
    """Return why the database does not answer; `None` if it does."""

    def body(tr: Transaction) -> None:
        tr.options.set_timeout(_DATABASE)
        list(tr.get_range(*workers_range(), limit=1))

    errors: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
    try:
        run(db, body)
    except errors as error:
        return f"the database does not answer: {error}"
    return None


def _listening(host: str, port: int, trouble: Callable[[], str | None]) -> ThreadingHTTPServer:
    """Return a server that listens."""
    # Imported late: a program that only pushes jobs needs no server.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET
        block_on_close = False  # a client that sends nothing does not hold up the end

    class Request(BaseHTTPRequestHandler):
        timeout = _REQUEST

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/live":
                self._answer(200, "ok")
            elif path == "/ready":
                found = trouble()
                self._answer(503 if found else 200, found or "ok")
            else:
                self._answer(404, "the paths are /live and /ready")

        def _answer(self, code: int, status: str) -> None:
            body = json.dumps({"status": status}).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: checks come every few seconds."""

    return Server((host, port), Request)
