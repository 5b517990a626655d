"""An endpoint of a customer: an HTTP server on loopback that records requests and answers as the test wants."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tests.end_to_end.local_server import LocalServer, QuietHandler


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


class Receiver(LocalServer):
    """`answers` maps a path to a status, or to None: it never answers there. Every other path is answered 204.

    `pages` are what a GET finds.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: dict[str, int | None] = {}
        self.pages: dict[str, bytes] = {}
        receiver = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    receiver.received.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    receiver.arrived.notify_all()
                answer = receiver.answers.get(self.path, 204)
                if answer is None:
                    receiver.over.wait(60)
                    return
                self.respond(answer)

            def do_GET(self) -> None:
                page = receiver.pages.get(self.path)
                if page is None:
                    self.send_error(501)
                    return
                self.respond(200, "application/pdf", page)

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return self.origin

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
