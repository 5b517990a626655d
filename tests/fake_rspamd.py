"""A stand-in for rspamd, on a real port, that speaks its HTTP protocol: POST /checkv2 with header fields, answered with JSON.

It is not rspamd: it only knows the test pattern GTUBE and the header field X-Test-Action. Its answers have the form of
those of rspamd 3.4. What it was asked is in `asked`.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"


def answer(message: bytes) -> dict[str, object]:
    """The response to a message, as rspamd 3.4 gives it."""
    text = message.decode("utf-8", "replace")
    action, score, messages = "no action", -0.1, {}
    if GTUBE in text:
        action, score, messages = "reject", 15.0, {"smtp_message": "Gtube pattern"}
    if "X-Test-Action: " in text:
        action, score = text.partition("X-Test-Action: ")[2].partition("\r\n")[0], 8.5
    symbols = {
        "MIME_GOOD": {"name": "MIME_GOOD", "score": -0.1, "metric_score": -0.1, "description": "Known content-type"},
        "TO_DN_NONE": {"name": "TO_DN_NONE", "score": 0.0, "metric_score": 0.0, "options": ["0:+"]},
    }
    if score > 0:
        symbols["BAD_URL"] = {"name": "BAD_URL", "score": 8.5, "metric_score": 8.5, "description": "A bad link"}
    return {
        "is_skipped": False, "score": score, "required_score": 15.0, "action": action, "symbols": symbols, "messages": messages,
        "message-id": "undef", "time_real": 0.004,
    }  # fmt: skip


class FakeRspamd:
    """Runs in a thread while it is entered. `status` and `body` replace the answer; `hang`: the answer waits until it is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, list[str]], bytes]] = []
        self.status, self.body = 200, b""
        self.hang: threading.Event | None = None
        self.now = self.most = 0  # requests in progress; the most at the same time
        fake = self
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                message = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    fake.asked.append(({name: self.headers.get_all(name) or [] for name in self.headers}, message))
                    fake.now += 1
                    fake.most = max(fake.most, fake.now)
                if fake.hang is not None:
                    fake.hang.wait(30)
                with lock:
                    fake.now -= 1
                if self.path != "/checkv2":
                    return self.send_error(404)
                body = fake.body or json.dumps(answer(message)).encode()
                self.send_response(fake.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return None

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeRspamd:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.hang is not None:
            self.hang.set()
        self.stop()

    def stop(self) -> None:
        """Refuse further connections."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
