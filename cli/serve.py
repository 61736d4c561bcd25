"""The command that serves queues over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fdbqueue.types import Database

from .common import Seconds, command_options
from .signals import INTERRUPTED, end, stopped_by

__all__ = ["serve"]

_SECONDS = Seconds(min=0, min_open=True, max=86_400)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: a free one."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of tokens, of which a request needs one: one a line, of printable ASCII without"
    " spaces; lines that begin with # are comments. Or $FDBQ_TOKEN, which is one.",
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
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    envvar="FORWARDED_ALLOW_IPS",
    default="",
    help="Proxies whose X-Forwarded-For tells the client's address: addresses or networks, with"
    " commas, or '*'. None without it. Or $FORWARDED_ALLOW_IPS.",
)
@click.option(
    "--connection-limit",
    type=click.IntRange(min=16),
    help="How many connections may be open; above it, idle ones are closed."
    "  [default: 1000, or what `ulimit -n` allows]",
)
@click.option(
    "--header-limit",
    default=65_536,
    show_default=True,
    type=click.IntRange(min=1),
    help="The largest head of a request, in bytes.",
)
@click.option(
    "--header-count-limit",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many headers a request may have.",
)
@click.option(
    "--header-timeout",
    metavar="SECONDS",
    default=10,
    show_default=True,
    type=_SECONDS,
    help="How long a client may take to send the head of a request.",
)
@click.option(
    "--body-timeout",
    metavar="SECONDS",
    default=60,
    show_default=True,
    type=_SECONDS,
    help="How long a client may take to send a body, or read nothing of an answer.",
)
@click.option(
    "--keep-alive-timeout",
    metavar="SECONDS",
    default=65,
    show_default=True,
    type=_SECONDS,
    help="How long a connection stays open without a request.",
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
    connection_limit: int | None,
    header_limit: int,
    header_count_limit: int,
    header_timeout: float,
    body_timeout: float,
    keep_alive_timeout: float,
    as_json: bool,
) -> None:
    """Serve the queues over HTTP, until it is interrupted: a page at /, OpenAPI at /docs.

    Needs the extra `server`: `pip install '.[server]'` in a clone. Any other address than the
    loopback's needs a token. SIGTERM, SIGHUP and Ctrl-C let requests in flight finish; a second
    Ctrl-C ends it at once.

    \b
    Example:
      fdbq serve --port 8080
    """
    try:
        import uvicorn

        from fdbqueue.http import (
            ConnectionLimits,
            Limits,
            Listener,
            ServerConfig,
            Tokens,
            create_app,
        )
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing: run pip install '.[server]' in a clone of fdbqueue"
        ) from error
    try:
        tokens = Tokens(
            _tokens(token_file, "FDBQ_TOKEN"),
            _tokens(read_only_token_file, "FDBQ_READ_ONLY_TOKEN"),
        )
        app = create_app(db, tokens=tokens, limits=Limits(body_limit, rate))
        given = {} if connection_limit is None else {"connections": connection_limit}
        limits = ConnectionLimits(
            header_bytes=header_limit,
            header_count=header_count_limit,
            header_timeout=header_timeout,
            body_timeout=body_timeout,
            keep_alive_timeout=keep_alive_timeout,
            **given,
        )
        config = ServerConfig(
            app,
            limits,
            forwarded_allow_ips=forwarded_allow_ips.replace(",", " ").split(),
            verbose=logging.getLogger().isEnabledFor(logging.INFO),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not tokens and not _is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from elsewhere: give a token, by --token-file or $FDBQ_TOKEN"
        )

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

    try:
        listener = Listener(host, port, config.connections)
    except OSError as error:
        raise click.ClickException(
            f"it cannot listen at {host}, port {port}: {error.strerror}"
        ) from error
    server = Server(config)
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        server.handle_exit(number, frame)

    with stopped_by(stop, patience=2):
        server.run([listener])
    if signal.SIGINT in came:
        click.echo(INTERRUPTED, err=True)
        sys.exit(128 + signal.SIGINT)


def _tokens(file: Path | None, variable: str) -> list[str]:
    tokens = [os.environ[variable].strip()] if os.environ.get(variable) else []
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{file} is not text in UTF-8") from error
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise click.UsageError(f"{file} has no token in it")
        tokens += found
    return tokens


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
