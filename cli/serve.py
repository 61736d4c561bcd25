"""The command `fdbq serve`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import click

from fdbqueue.types import Database

from .command import command
from .interrupts import INTERRUPTED, exit_on, stop_on_signal
from .options import integer, option
from .output import say

_FILE = click.Path(exists=True, dir_okay=False)


@command(
    option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on."),
    integer(
        "--port",
        metavar="PORT",
        lowest=0,
        highest=65535,
        default=8080,
        help="Port to listen on; 0 for any free port.",
    ),
    option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of tokens, one per line, each with its role and queues; $FDBQ_TOKEN adds one.",
    ),
    integer(
        "--body-limit", metavar="BYTES", default=9_000_000, help="Maximum size of a request body."
    ),
    option(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        envvar="FORWARDED_ALLOW_IPS",
        default="",
        show_default="$FORWARDED_ALLOW_IPS, else none",
        help="Proxies whose X-Forwarded-For header is trusted: addresses or networks, separated by"
        " commas, or '*'.",
    ),
    integer(
        "--connection-limit",
        default=1000,
        help="Maximum number of open connections; at the limit, requests are answered 503.",
    ),
    option("--certfile", type=_FILE, help="Certificate in PEM format: serve over TLS."),
    option(
        "--keyfile",
        type=_FILE,
        help="Private key of the certificate, if it is not in the same file.",
    ),
    option(
        *("--allow-origin", "origins"),
        metavar="ORIGIN",
        multiple=True,
        help="Origin whose pages may use the API, such as https://app.example.com; repeatable.",
    ),
    creates=True,
)
def serve(
    db: Database,
    host: str,
    port: int,
    token_file: Path | None,
    body_limit: int,
    forwarded_allow_ips: str,
    connection_limit: int,
    certfile: str | None,
    keyfile: str | None,
    origins: tuple[str, ...],
) -> None:
    """Serve the queues over HTTP, with a dashboard at / and an API, described at /openapi.json.

    An address other than the loopback interface requires a token: printable ASCII without spaces.
    In a token file, a role (`read`, `write`, or `admin`, the default) may follow the token, then
    the queues: a name, a prefix and `*`, or `*` for all. Lines that start with # are comments.
    A public server needs a proxy that limits rates, times and connections.

    Ctrl-C, SIGTERM or SIGHUP lets requests finish; a second Ctrl-C ends the server at once.

    \b
    Example:
      fdbq serve --host 0.0.0.0 --token-file tokens
    """
    try:
        import uvicorn

        from fdbqueue.http import Tokens, create_app, is_loopback, listening_socket, server_config
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing: run pip install '.[server]' in a clone of fdbqueue"
        ) from error
    try:
        tokens = Tokens([token] if (token := os.environ.get("FDBQ_TOKEN")) else [], token_file)
        app = create_app(db, tokens=tokens, max_body=body_limit, origins=origins)
        config = server_config(
            app,
            connections=connection_limit,
            forwarded_allow_ips=forwarded_allow_ips.replace(",", " ").split(),
            verbose=logging.getLogger().isEnabledFor(logging.INFO),
            certfile=certfile,
            keyfile=keyfile,
        )
    except OSError as error:  # ssl.SSLError is one
        raise click.UsageError(f"the certificate or its key cannot be used: {error}") from error
    if not tokens and not is_loopback(f"[{host}]" if ":" in host else host):
        raise click.UsageError(
            f"{host} is reachable from other machines; set a token with --token-file or $FDBQ_TOKEN"
        )

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                exit_on(sig)  # the second Ctrl-C
            app.state.stop()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for server in self.servers:
                for listening in server.sockets:
                    address, bound_port = listening.getsockname()[:2]
                    url_host = f"[{address}]" if ":" in address else address
                    scheme = "http" if certfile is None else "https"
                    say(
                        f"serving on {scheme}://{url_host}:{bound_port}, OpenAPI at /openapi.json",
                        err=True,
                    )

    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}, port {port}: {error.strerror}"
        ) from error
    server = Server(config)
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        server.handle_exit(number, frame)

    with stop_on_signal(stop):
        server.run([listening])
    if signal.SIGINT in received:
        say(INTERRUPTED, err=True)
        sys.exit(128 + signal.SIGINT)
