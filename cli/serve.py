"""The command that serves queues over HTTP."""

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

from .common import command_options
from .signals import INTERRUPTED, end, stopped_by

__all__ = ["serve"]

_STOP_WITHIN = 30  # seconds, for requests in flight


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: a free one."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of tokens, one a line, of which a request needs one. Or $FDBQ_TOKEN.",
)
@click.option(
    "--read-only-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The same, for requests that change nothing. Or $FDBQ_READ_ONLY_TOKEN.",
)
@click.option(
    "--body-limit",
    default=9_000_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="The largest body of a request, in bytes.",
)
@click.option(
    "--rate",
    metavar="N/PERIOD",
    help="How many requests one address may make, as in '100/second'; any number without it.",
)
@command_options(creates=True)
def serve(
    db: Any,
    host: str,
    port: int,
    token_file: Path | None,
    read_only_token_file: Path | None,
    body_limit: int,
    rate: str | None,
    as_json: bool,
) -> None:
    """Serve the queues over HTTP, until it is interrupted: a page at /, OpenAPI at /docs.

    Needs `pip install 'fdbqueue[server]'`. Any other address than the loopback's needs a token.
    SIGTERM, SIGHUP and Ctrl-C let requests in flight finish; a second Ctrl-C ends it at once.

    \b
    Example:
      fdbq serve --port 8080
    """
    try:
        import uvicorn

        from fdbqueue.http import Limits, Tokens, create_app
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing: pip install 'fdbqueue[server]'"
        ) from error
    tokens = Tokens(
        _tokens(token_file, "FDBQ_TOKEN"), _tokens(read_only_token_file, "FDBQ_READ_ONLY_TOKEN")
    )
    if not tokens and not _is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from elsewhere: give a token, by --token-file or $FDBQ_TOKEN"
        )
    try:
        limits = Limits(body_limit, rate)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    app = create_app(db, tokens=tokens, limits=limits)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                end(sig)  # the second one
            app.state.stop()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for server in self.servers:
                for each in server.sockets:
                    bound, at = each.getsockname()[:2]
                    shown = f"[{bound}]" if ":" in bound else bound
                    click.echo(f"serving on http://{shown}:{at}, OpenAPI at /docs", err=True)

    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=logging.getLogger().isEnabledFor(logging.INFO),
        server_header=False,
        timeout_graceful_shutdown=_STOP_WITHIN,
    )
    server = Server(config)
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        server.handle_exit(number, frame)

    with stopped_by(stop, patience=2):
        server.run([listening])
    if signal.SIGINT in came:
        click.echo(INTERRUPTED, err=True)
        sys.exit(128 + signal.SIGINT)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise click.ClickException(
            f"it cannot listen at {host}, port {port}: {error.strerror}"
        ) from error
    return listening


def _tokens(file: Path | None, variable: str) -> list[str]:
    tokens = [os.environ[variable]] if os.environ.get(variable) else []
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{file} is no text in UTF-8") from error
        if not any(lines):
            raise click.UsageError(f"{file} has no token in it")
        tokens += filter(None, lines)
    return tokens


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
