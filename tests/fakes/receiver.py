"""A webhook's receiver on the loopback address, which practice hosts share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets (path, headers, body), answers in turn, and calls ``meanwhile`` before it answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        #: The statuses of the next answers; 200 when there are no more.
        self.statuses: list[int] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.meanwhile()
        self.server.requests.append((self.path, dict(self.headers), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver meanwhile."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
