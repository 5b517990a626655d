"""An HTTP load: prepared requests over a given number of persistent connections, with a thread for each."""

from __future__ import annotations

import socket
import threading
import time

import attrs
import orjson


@attrs.frozen
class Load:
    """The requests and responses. Times are in seconds, `started_ns` in Unix nanoseconds."""

    emails: int
    seconds: float
    started_ns: int
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        return self.emails / self.seconds

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def email(sender: str, number: int, html: str) -> dict[str, object]:
    """An email for the sink, with its number and time in headers that the sink reads."""
    return {
        "from": f"Acme Billing <{sender}>",
        "to": [f"customer{number}@example.test"],
        "subject": "Your order 12345 has shipped",
        "html": html,
        "headers": {"X-Seq": str(number), "X-Sent-Ns": str(time.time_ns())},
    }


def page(size: int) -> str:
    """An HTML page of about `size` bytes, like those in transactional mail."""
    row = '<tr><td style="padding:4px">Order 12345</td><td>2 x coffee beans, 1 kg</td></tr>\n'
    return f"<html><body><h1>Thanks for your order</h1><table>\n{row * (size // len(row))}</table></body></html>"


def run(
    port: int, key: str, sender: str, *, emails: int, per_call: int, connections: int, size: int, first: int, alike: bool = True
) -> Load:
    """Sends `emails` of about `size` bytes, `per_call` per request, over `connections` connections to loopback.

    With the same page for all, unless they are not `alike`. Every answer must be a 200, or the run ends with an AssertionError that tells
    the answer.
    """
    html = page(size - 900)
    calls = iter(range(first, first + emails, per_call))
    lock = threading.Lock()
    latencies: list[float] = []
    problems: list[str] = []

    def work() -> None:
        with socket.create_connection(("127.0.0.1", port), 30) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not problems:
                with lock:
                    start = next(calls, None)
                if start is None:
                    return
                body = [email(sender, n, html if alike else f"{html}<p>{n}</p>") for n in range(start, start + per_call)]
                path, payload = ("/emails", body[0]) if per_call == 1 else ("/emails/batch", body)
                before = time.perf_counter()
                status, answer = _post(link, path, key, orjson.dumps(payload))
                latencies.append(time.perf_counter() - before)
                if status != 200:
                    problems.append(f"{status}: {answer[:300]!r}")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(connections)]
    started_ns, before = time.time_ns(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not problems, problems[0]
    return Load(emails, time.perf_counter() - before, started_ns, tuple(latencies))


def _post(link: socket.socket, path: str, key: str, body: bytes) -> tuple[int, bytes]:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    link.sendall(head.encode() + body)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _more(link)
    headers, _, rest = answer.partition(b"\r\n\r\n")
    length = next(int(h.split(b":")[1]) for h in headers.split(b"\r\n") if h.lower().startswith(b"content-length:"))
    while len(rest) < length:
        rest += _more(link)
    return int(headers.split(b" ", 2)[1]), rest


def _more(link: socket.socket) -> bytes:
    data = link.recv(65536)
    assert data, "the connection was closed"
    return data
