"""A proxy that loses connections as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias, get_args

import httpx

Loss: TypeAlias = Literal[
    "before it arrives", "after it was served", "amid the answer", "by a proxy, which says so"
]
LOSSES: tuple[Loss, ...] = get_args(Loss)


@contextmanager
def lossy(address: str, next_loss: Callable[[], Loss | None]) -> Iterator[str]:
    """Serve a server through a proxy; yield its address.

    `next_loss` says where in the next request its connection is lost, or `None` for no loss.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            loss = next_loss()
            self.close_connection = loss is not None
            if loss == "before it arrives":
                return
            answer = client.request(
                *(self.command, address + self.path), content=body, headers=dict(self.headers)
            )
            if loss == "after it was served":
                return
            if loss == "by a proxy, which says so":
                self.send_error(502)
                return
            self.send_response_only(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("content-type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            if loss == "amid the answer":
                self.send_header("X-Amid", "the head, or the body if there is one")
                if answer.content:
                    self.end_headers()
                    self.wfile.write(answer.content[: len(answer.content) // 2])
                return
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = _pass_on  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with (
        httpx.Client(timeout=60) as client,
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy,
    ):
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
