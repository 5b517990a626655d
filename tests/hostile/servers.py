"""Servers on loopback with hostile responses: a webhook endpoint, a mail exchanger, a nameserver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import lru_cache

import dns.flags
import dns.message
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from dns.rdtypes.ANY.TXT import TXT

STAGES = ("greeting", "ehlo", "mail", "rcpt", "data", "final")
LARGEST_ANSWER = 65_000  # of DNS over TCP


class Endpoint:
    """Answers one request with `payload`, and all others with 204."""

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.done = asyncio.Event()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    def say(self, payload: bytes) -> asyncio.Event:
        self.payload, self.done = payload, asyncio.Event()
        return self.done

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done = self.done
        payload: bytes | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            await reader.readexactly(sum(length))
            payload, self.payload = self.payload, None
            writer.write(payload or b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
            if payload:
                writer.write_eof()
                await reader.read()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            if payload:
                done.set()


class Exchanger:
    """A mail server at each of many loopback addresses, which are used in turn. One session is hostile at `stage`, all others are not."""

    def __init__(self, addresses: int) -> None:
        self.hosts = [f"127.1.{n // 200}.{n % 200 + 1}" for n in range(addresses)]
        self._next: Iterator[int] = iter([])
        self.stage, self.payload = "", b""
        self.waiting: str | None = None
        self.done = asyncio.Event()
        self.connections = 0

    async def start(self) -> int:
        first = await asyncio.start_server(self._serve, self.hosts[0], 0)
        port = int(first.sockets[0].getsockname()[1])
        self.servers = [first, *[await asyncio.start_server(self._serve, host, port) for host in self.hosts[1:]]]
        return port

    def say(self, stage: str, payload: bytes) -> tuple[int, asyncio.Event]:
        """Sets the next hostile reply. Returns the number of its address, and an event that is set after it was sent."""
        number = next(self._next, None)
        if number is None:
            self._next = iter(range(len(self.hosts)))
            number = next(self._next)
        self.stage, self.payload, self.waiting, self.done = stage, payload, self.hosts[number], asyncio.Event()
        self.connections = 0
        return number, self.done

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done = self.done
        hostile = writer.get_extra_info("sockname")[0] == self.waiting
        if hostile:
            self.waiting = None
        self.connections += 1
        try:
            await self._converse(reader, writer, self.stage if hostile else "")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            if hostile:
                done.set()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stage: str) -> None:
        replies = {"greeting": b"220 mx.example ESMTP\r\n", "ehlo": b"250-mx.example\r\n250 PIPELINING\r\n", "data": b"354 Go ahead\r\n"}

        async def say(now: str) -> None:
            if now != stage:
                writer.write(replies.get(now, b"250 OK\r\n"))
                await writer.drain()
                return
            for at in range(0, len(self.payload), 1 << 16):
                writer.write(self.payload[at : at + (1 << 16)])
                await writer.drain()
            writer.write_eof()
            await reader.read()
            raise ConnectionResetError

        await say("greeting")
        while line := await reader.readline():
            verb = line[:4].upper()
            now = {b"EHLO": "ehlo", b"MAIL": "mail", b"RCPT": "rcpt", b"DATA": "data"}.get(verb, "")
            await say(now)
            if verb == b"DATA":
                while (await reader.readline()).rstrip(b"\r\n") != b".":
                    pass
                await say("final")
            elif verb == b"QUIT":
                return


class Nameserver(asyncio.DatagramProtocol):
    """Answers TXT queries with `payload`, one record for each line, over TCP. All other names have one address."""

    def __init__(self) -> None:
        self.payload = b""
        self.requests = 0

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = int(self.server.sockets[0].getsockname()[1])
        self.wire, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", port))
        return f"127.0.0.1:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._answer(data)
        if len(answer) > 1200:
            truncated = dns.message.make_response(dns.message.from_wire(data))
            truncated.flags |= dns.flags.TC
            answer = truncated.to_wire()
        self.wire.sendto(answer, addr)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                question = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                answer = self._answer(question)
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    def _answer(self, data: bytes) -> bytes:
        self.requests += 1
        question = dns.message.from_wire(data)
        response = dns.message.make_response(question)
        name, kind = question.question[0].name, question.question[0].rdtype
        if kind == dns.rdatatype.TXT:
            response.answer.append(dns.rrset.from_rdata_list(name, 1, _texts(self.payload)))
        elif kind == dns.rdatatype.A:
            response.answer.append(dns.rrset.from_text(name, 1, "IN", "A", "127.0.0.1"))
        return response.to_wire(max_size=65535)


@lru_cache(maxsize=1)
def _texts(payload: bytes) -> list[TXT]:
    """The TXT records that fit into an answer, one for each line."""
    records, left = [], LARGEST_ANSWER - 512
    for line in payload.split(b"\n"):
        strings = [line[at : at + 255] for at in range(0, min(len(line), left), 255)] or [b""]
        left -= len(line) + len(line) // 255 + 13
        if left > 0:
            records.append(TXT(dns.rdataclass.IN, dns.rdatatype.TXT, strings))
    return records
