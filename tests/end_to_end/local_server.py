"""An HTTP server on loopback for tests, in a thread of its own. What it answers: receiver and collector."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...

    def respond(self, status: int, kind: str = "", body: bytes = b"") -> None:
        self.send_response(status)
        if kind:
            self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if body:
            self.wfile.write(body)


class LocalServer:
    """`arrived` is notified of each request; `over` is set at the end, for handlers that never answer."""

    def __init__(self, handler: type[QuietHandler]) -> None:
        self.arrived = threading.Condition()
        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
