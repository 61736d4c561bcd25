"""The command `fdbq serve`, which serves queues over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fdbqueue.types import Database

from .common import Duration, command_options, number_option, say
from .signals import INTERRUPTED, exit_on, stop_on_signal

_SECONDS = Duration(min=0, min_open=True, max=86_400)
_TIMEOUT: dict[str, Any] = {"metavar": "DURATION", "show_default": True, "type": _SECONDS}
_SIZE: dict[str, Any] = {"metavar": "BYTES", "show_default": True, "type": click.IntRange(min=1)}


@click.command()
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.",
)
@click.option(
    "--port",
    metavar="PORT",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of tokens, one per line, each with its role and queues; $FDBQ_TOKEN adds one.",
)
@click.option(
    "--read-only-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of tokens for read requests; $FDBQ_READ_ONLY_TOKEN adds one.",
)
@click.option("--body-limit", default=9_000_000, help="Maximum size of a request body.", **_SIZE)
@click.option(
    "--rate",
    metavar="N/PERIOD",
    show_default="no limit",
    help="Maximum number of requests per client address, such as 100/second.",
)
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    envvar="FORWARDED_ALLOW_IPS",
    default="",
    show_default="$FORWARDED_ALLOW_IPS, else none",
    help="Proxies whose X-Forwarded-For header is trusted: addresses or networks, separated by"
    " commas, or '*'.",
)
@click.option(
    "--connection-limit",
    "connections",
    metavar="N",
    type=click.IntRange(min=16),
    show_default="1000, or fewer if `ulimit -n` is lower",
    help="Maximum number of open connections; at the limit, idle ones are closed.",
)
@click.option(
    "--header-limit",
    "header_bytes",
    default=65_536,
    help="Maximum size of a request line and its headers.",
    **_SIZE,
)
@number_option(
    *("--header-count-limit", "header_count"),
    default=100,
    help="Maximum number of headers in a request.",
)
@click.option(
    "--header-timeout",
    default=10,
    help="Time for a client to send the request line and headers.",
    **_TIMEOUT,
)
@click.option(
    "--body-timeout",
    default=60,
    help="Time for a client to send a body, and longest pause in reading its response.",
    **_TIMEOUT,
)
@click.option(
    "--keep-alive-timeout",
    default=65,
    help="Time for which a connection stays open without a request.",
    **_TIMEOUT,
)
@click.option(
    "--certfile",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificate in PEM format: serve over TLS.",
)
@click.option(
    "--keyfile",
    type=click.Path(exists=True, dir_okay=False),
    help="Private key of the certificate, if it is not in the same file.",
)
@click.option(
    "--allow-origin",
    "origins",
    metavar="ORIGIN",
    multiple=True,
    help="Origin whose pages may use the API, such as https://app.example.com; repeatable.",
)
@command_options(creates=True)
def serve(
    db: Database,
    host: str,
    port: int,
    token_file: Path | None,
    read_only_token_file: Path | None,
    body_limit: int,
    rate: str | None,
    forwarded_allow_ips: str,
    certfile: str | None,
    keyfile: str | None,
    origins: tuple[str, ...],
    as_json: bool,
    **limits: Any,
) -> None:
    """Serve the queues over HTTP, with a dashboard and an API.

    The dashboard is at /, the OpenAPI description of the API at /openapi.json. The server needs the
    extra `server`: run `pip install '.[server]'` in a clone.

    An address other than the loopback interface requires a token. A token is printable ASCII
    without spaces. A line of a token file may have a role after the token (`read`, `write`, or
    `admin`, which is the default), and then the queues: a name, the beginning of names and `*`, or
    `*` for all. Lines that start with # are comments. The server rereads a token file when it
    changes.

    Ctrl-C, SIGTERM or SIGHUP lets requests in progress finish; a second Ctrl-C ends the server at
    once.

    \b
    Example:
      fdbq serve --port 8080
      fdbq serve --host 0.0.0.0 --token-file tokens --rate 100/second
    """
    try:
        import uvicorn

        from fdbqueue.http import (
            ConnectionLimits,
            Limits,
            Listener,
            ServerConfig,
            TokenFile,
            Tokens,
            create_app,
        )
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing: run pip install '.[server]' in a clone of fdbqueue"
        ) from error
    try:
        files = [TokenFile(token_file)] if token_file else []
        files += [TokenFile(read_only_token_file, "read")] if read_only_token_file else []
        tokens = Tokens(_token("FDBQ_TOKEN"), _token("FDBQ_READ_ONLY_TOKEN"), files)
        app = create_app(db, tokens=tokens, limits=Limits(body_limit, rate), origins=origins)
        # The default of `ConnectionLimits` depends on `ulimit -n`.
        given = {name: value for name, value in limits.items() if value is not None}
        config = ServerConfig(
            app,
            ConnectionLimits(**given),
            forwarded_allow_ips=forwarded_allow_ips.replace(",", " ").split(),
            verbose=logging.getLogger().isEnabledFor(logging.INFO),
            certfile=certfile,
            keyfile=keyfile,
        )
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise click.UsageError(f"the certificate or its key cannot be used: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not tokens and not _is_loopback(host):
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
        listener = Listener(host, port, config.connections)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}, port {port}: {error.strerror}"
        ) from error
    server = Server(config)
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        server.handle_exit(number, frame)

    with stop_on_signal(stop, max_signals=2):
        server.run([listener])
    if signal.SIGINT in received:
        say(INTERRUPTED, err=True)
        sys.exit(128 + signal.SIGINT)


def _token(variable: str) -> list[str]:
    """Return the token in an environment variable, if there is one."""
    return [os.environ[variable].strip()] if os.environ.get(variable) else []


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
