"""A process that observes a daemon: it requests `/healthz` every 20 ms, and sends mail from another account to itself.

It is a separate process, so that generating and sending the inputs cannot delay it. It prints a JSON array for each observation. Times
are from the monotonic clock, which all processes of a machine share. Seconds are without those in which the daemon's main thread waited
for a CPU, because other tests run at the same time:

    ["health", begun, seconds]   one request over a persistent connection; null seconds: it failed
    ["mail", begun, seconds]     from the POST of the other account's email to the final dot at this process's mail server
    ["late", begun, seconds]     how late this process itself woke up: noise of the machine, not of the daemon
    ["from", recipient, sender]  the envelope of each mail received for `x@…`; its sender is a return path

    python -m tests.hostile.watch HTTP_PORT DAEMON_PID SMTP_PORT KEY SENDER
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

EVERY = 0.02
MAIL_EVERY = 0.1
MAIL_MOST = 30.0


def tell(*observation: object) -> None:
    sys.stdout.write(json.dumps(observation) + "\n")
    sys.stdout.flush()


class Http:
    """A persistent connection, opened again after a failure."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def request(self, request: bytes) -> int:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        try:
            self.writer.write(request)
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await self.reader.readexactly(length)
            return int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            self.writer.close()
            self.writer = None
            raise


def waited(pid: int) -> float:
    """Returns the seconds for which the main thread of a process could run, but had no CPU; 0 if the system does not count them."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _took(daemon: int, begun: float, before: float) -> float:
    """Returns the seconds since `begun`, when `waited` was `before`."""
    return max(0.0, time.monotonic() - begun - (waited(daemon) - before))


async def health(port: int, daemon: int) -> None:
    connection = Http(port)
    due = time.monotonic()
    while True:
        due = max(due + EVERY, time.monotonic())  # a slow response does not make the next request late
        await asyncio.sleep(due - time.monotonic())
        begun = time.monotonic()
        if begun - due > 0.005:
            tell("late", due, begun - due)
        try:
            before = waited(daemon)
            status = await connection.request(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            tell("health", begun, _took(daemon, begun, before) if status == 200 else None)
        except (OSError, asyncio.IncompleteReadError):
            tell("health", begun, None)


class Mail:
    """Sends one email after the other, waiting for each to arrive."""

    def __init__(self, port: int, daemon: int, key: str, sender: str) -> None:
        self.connection, self.daemon, self.key, self.sender = Http(port), daemon, key, sender
        self.arrived: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            await asyncio.sleep(MAIL_EVERY)
            await self._one(f"w{number}@watch.example")

    async def _one(self, to: str) -> None:
        event = self.arrived[to] = asyncio.Event()
        body = json.dumps({"from": self.sender, "to": to, "subject": "Watching", "text": "Hello."}).encode()
        head = f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        begun = time.monotonic()
        try:
            before = waited(self.daemon)
            status = await self.connection.request(head.encode() + body)
            if status == 200:
                await asyncio.wait_for(event.wait(), MAIL_MOST)
            tell("mail", begun, _took(self.daemon, begun, before) if status == 200 else None)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            tell("mail", begun, None)
        finally:
            del self.arrived[to]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A mail server whose only extension is PIPELINING, so that messages must be converted to 7 bits."""
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 watch.example ESMTP\r\n")
        sender, recipients = "", list[str]()
        while line := await reader.readline():
            verb = line[:4].upper()
            reply = b"250 OK\r\n"
            if verb == b"EHLO":
                reply = b"250-watch.example\r\n250 PIPELINING\r\n"
            elif verb == b"MAIL":
                sender, recipients = _path(line), []
            elif verb == b"RCPT":
                recipients.append(_path(line))
            elif verb == b"DATA":
                writer.write(b"354 Go ahead\r\n")
                await _until_dot(reader)
                for each in recipients:
                    if each in self.arrived:
                        self.arrived[each].set()
                    elif each.startswith("x@"):
                        tell("from", each, sender)
            elif verb == b"QUIT":
                reply = b"221 Bye\r\n"
            writer.write(reply)
            await writer.drain()
            if verb == b"QUIT":
                return


def _path(line: bytes) -> str:
    return line.partition(b"<")[2].partition(b">")[0].decode("utf-8", "replace")


async def _until_dot(reader: asyncio.StreamReader) -> None:
    tail = b"\r\n"
    while not tail.endswith(b"\r\n.\r\n"):
        data = await reader.read(1 << 18)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        tail = (tail + data)[-5:]


async def main(http_port: int, daemon: int, smtp_port: int, key: str, sender: str) -> None:
    mail = Mail(http_port, daemon, key, sender)
    server = await asyncio.start_server(mail.serve, "127.0.0.1", smtp_port)
    async with server:
        await asyncio.gather(health(http_port, daemon), mail.run())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]))
