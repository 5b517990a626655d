"""An endpoint of a customer: an HTTP server on loopback that records requests and answers as the test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs


@attrs.frozen
class Received:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """`answers` maps a path to a status, or to None: it never answers there. Every other path is answered 204.

    `pages` are what a GET finds.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: dict[str, int | None] = {}
        self.pages: dict[str, bytes] = {}
        self.arrived = threading.Condition()
        self.over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    receiver.received.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    receiver.arrived.notify_all()
                answer = receiver.answers.get(self.path, 204)
                if answer is None:
                    receiver.over.wait(60)
                    return
                self.send_response(answer)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                page = receiver.pages.get(self.path)
                if page is None:
                    self.send_error(501)
                    return
                self.send_response(200)
                self.send_header("content-type", "application/pdf")
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Receiver:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def at(self, path: str) -> list[Received]:
        with self.arrived:
            return [each for each in self.received if each.path == path]

    def wait(self, enough: Callable[[list[Received]], bool], path: str = "/", seconds: float = 30) -> list[Received]:
        """What came to `path`, as soon as it is enough; an AssertionError when it is not by then."""
        deadline = time.monotonic() + seconds
        while True:
            with self.arrived:
                found = [each for each in self.received if each.path == path]
                if enough(found):
                    return found
                left = deadline - time.monotonic()
                assert left > 0, f"after {seconds} s only: {[(each.json['type'], each.id) for each in found]}"
                self.arrived.wait(left)
