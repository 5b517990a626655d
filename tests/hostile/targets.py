"""Sends inputs to the daemon: a coroutine for each target, which ends when the daemon has processed the input."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs

from tests.hostile.bodies import post
from tests.hostile.servers import STAGES, Endpoint, Exchanger, Nameserver

QUIET = 0.06  # seconds without a response, while the daemon is idle, after which none is expected
IDLE = 0.5  # of one core: below it the daemon is idle
MOST = 60.0  # seconds for everything about one input
PIECE = 1 << 18
_GONE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)


@attrs.define
class Targets:
    """`ports`: the SMTP ports, by standard number. `visitor`: a signed-in browser.

    `cpu`: seconds of CPU that the daemon has used or waited for. `waiting`: whether a recipient of an email waits for its first attempt.
    """

    port: int
    ports: dict[str, int]
    key: str
    username: str
    visitor: Any
    endpoint: Endpoint
    endpoint_port: int
    exchanger: Exchanger
    names: Nameserver
    cpu: Callable[[], float]
    waiting: Callable[[str], bool]
    return_path: str = ""
    segment: str = ""
    _number: int = 0

    def target(self, name: str) -> Callable[[bytes], Awaitable[None]]:
        if name in STAGES:
            return lambda data: self.exchange_replies(name, data)
        found: Callable[[bytes], Awaitable[None]] = getattr(self, name)
        return found

    def _filled(self, data: bytes) -> bytes:
        return data.replace(b"@KEY@", self.key.encode())

    async def _talk(self, port: int, data: bytes, *, answered: bool = False) -> bytes:
        """Sends bytes over a new connection and returns the response. `answered`: there is one, however long it takes."""
        try:
            async with asyncio.timeout(MOST):
                return await self._pump(*await asyncio.open_connection("127.0.0.1", port), data, answered=answered)
        except _GONE:
            return b""

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, *, answered: bool = False) -> bytes:
        """Writes and reads concurrently, until there is a complete HTTP response, the server closes, or no more is expected.

        Returns the first 64 kB of the response.
        """
        got = bytearray()
        sending, used = asyncio.ensure_future(_send(writer, data)), self.cpu()
        try:
            while not _whole(got):
                try:
                    piece = await asyncio.wait_for(reader.read(PIECE), QUIET)
                except TimeoutError:
                    used, before = self.cpu(), used
                    if sending.done() and used - before < IDLE * QUIET and not answered:
                        break
                    continue
                if not piece:
                    break
                got += piece[: max(0, 65_536 - len(got))]
        except OSError:
            pass
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, *_GONE):
                await sending
            writer.transport.abort()
        return bytes(got)

    # HTTP

    async def http(self, data: bytes) -> None:
        """Sends bytes over a new connection, and waits until resulting emails were attempted."""
        answer = await self._talk(self.port, self._filled(data))
        if answer.startswith(b"HTTP/1.1 200"):
            with suppress(ValueError, TypeError, KeyError):
                found = json.loads(answer.partition(b"\r\n\r\n")[2])
                for each in found.get("data", [found])[:100] if isinstance(found, dict) else []:
                    await self._settled(each["id"])

    async def track(self) -> None:
        """Turns open and click tracking on, so that all HTML is rewritten."""
        _, found = await self._call("GET", "/domains")
        for domain in found["data"]:
            status, _ = await self._call("PATCH", f"/domains/{domain['id']}", {"open_tracking": True, "click_tracking": True})
            assert status == 200

    async def imports(self, data: bytes) -> None:
        """Uploads a file of contacts, and waits until its rows were read; then requests the rows with errors."""
        answer = await self._talk(self.port, self._filled(data))
        if not answer.startswith(b"HTTP/1.1 201"):
            return
        path = f"/contacts/imports/{_body(answer)['id']}"
        for _ in range(int(MOST / 0.05)):
            _, found = await self._call("GET", path)
            if found and found["status"] in ("completed", "failed"):
                break
            await asyncio.sleep(0.05)
        await self._call("GET", f"{path}/errors")

    async def broadcast(self, data: bytes) -> None:
        """Creates a broadcast to one contact, looks at it, sends it and waits until it was sent."""
        if not self.segment:
            _, segment = await self._call("POST", "/segments", {"name": "One"})
            self.segment = segment["id"]
            contact = {"email": "x@watch.example", "first_name": "Ada", "segments": [{"id": self.segment}]}
            await self._call("POST", "/contacts", contact)
        data = data[:-1] + f', "segment_id": "{self.segment}"}}'.encode()
        answer = await self._talk(self.port, self._filled(post("/broadcasts", data)))
        if not answer.startswith(b"HTTP/1.1 201"):
            return
        path = f"/broadcasts/{_body(answer)['id']}"
        for shown in ("", "/preview?contact=x%40watch.example", "/review"):
            await self._call("GET", path + shown)
        status, _ = await self._call("POST", f"{path}/send", {})
        for _ in range(int(MOST / 0.05)) if status == 200 else ():
            _, newest = await self._call("GET", "/broadcasts?limit=1")
            if newest["data"][0]["status"] not in ("queued", "sending"):
                break
            await asyncio.sleep(0.05)

    async def view(self, data: bytes) -> None:
        """Sends HTML as an email, then views it in the API and the dashboard."""
        email = {"from": "a@hostile.example", "to": "x@watch.example", "subject": "Hello", "html": data.decode("utf-8", "replace")}
        status, body = await self._call("POST", "/emails", email)
        if status != 200:
            return
        await self._settled(body["id"])
        await self._call("GET", f"/emails/{body['id']}")
        for page in ("", "/preview", "/source"):
            await asyncio.wait_for(asyncio.to_thread(self.visitor.get, f"/dashboard/emails/{body['id']}{page}"), MOST)

    async def image(self, data: bytes) -> None:
        """Uploads a file as an image for a broadcast."""
        if not self.visitor.token:
            await asyncio.to_thread(self.visitor.get, "/dashboard/images")
        with suppress(*_GONE):
            shown = await asyncio.wait_for(asyncio.to_thread(self.visitor.upload, "/dashboard/images", data), MOST)
            assert shown.status in (303, 422), (shown.status, shown.text)

    async def _call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\nContent-Length: {len(content)}\r\n\r\n"
        answer = await self._talk(self.port, head.encode() + content, answered=True)
        first, _, rest = answer.partition(b"\r\n\r\n")
        try:
            return int(first.split(b" ", 2)[1]), json.loads(rest)
        except (ValueError, IndexError):
            return 0, None

    async def _settled(self, email_id: str) -> None:
        """Waits until every recipient of the email was attempted."""
        for _ in range(int(MOST / 0.02)):
            if not self.waiting(email_id):
                return
            await asyncio.sleep(0.02)

    # SMTP

    async def exchange(self, data: bytes) -> None:
        """Sends a message to a return path over port 25, without login."""
        await self._deliver(self.return_path, self._filled(data))

    async def reports(self, data: bytes) -> None:
        """Sends a message to the address for DMARC and TLS reports of a domain."""
        _, listed = await self._call("GET", "/domains")
        _, domain = await self._call("GET", f"/domains/{listed['data'][0]['id']}")
        [address] = re.findall(r"rua=mailto:([^;]+);", domain["advice"][0]["value"])
        await self._deliver(address, data)

    async def _deliver(self, to: str, data: bytes) -> None:
        begin = b"EHLO mx.example\r\nMAIL FROM:<>\r\nRCPT TO:<" + to.encode() + b">\r\nDATA\r\n"
        with suppress(*_GONE):
            async with asyncio.timeout(MOST):
                await _mail(*await asyncio.open_connection("127.0.0.1", self.ports["25"]), begin, data)

    async def relay(self, data: bytes) -> None:
        """Submits a message, to a server without 8BITMIME and to the development inbox."""
        begin = b"MAIL FROM:<a@hostile.example>\r\nRCPT TO:<x@watch.example>\r\nRCPT TO:<x@sandbox.example>\r\nDATA\r\n"
        with suppress(*_GONE):
            async with asyncio.timeout(MOST):
                reader, writer = await self._logged_in()
                reply = await _mail(reader, writer, self._filled(begin), self._filled(data), greeted=True)
                if reply.startswith(b"250"):
                    await self._settled(reply.split()[-1].decode())

    async def smtp(self, data: bytes) -> None:
        """Sends bytes to port 25."""
        await self._talk(self.ports["25"], self._filled(data))

    async def session(self, data: bytes) -> None:
        """Sends bytes in a customer's session."""
        with suppress(*_GONE):
            async with asyncio.timeout(MOST):
                await self._pump(*await self._logged_in(), self._filled(data))

    async def _logged_in(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports["465"], ssl=context, limit=1 << 20)
        secret = b"\0" + self.username.encode() + b"\0" + self.key.encode()
        await _reply(reader)
        for line in (b"EHLO client.example\r\n", b"AUTH PLAIN " + base64.b64encode(secret) + b"\r\n"):
            writer.write(line)
            await _reply(reader)
        return reader, writer

    # Responses

    async def link(self, data: bytes) -> None:
        """Serves bytes as the response to a request for an attachment."""
        self.endpoint.say(data)
        link = {"path": f"http://127.0.0.1:{self.endpoint_port}/a.txt"}
        email = {"from": "a@hostile.example", "to": "x@watch.example", "subject": "Hello", "text": "Hi.", "attachments": [link]}
        with suppress(*_GONE):
            async with asyncio.timeout(MOST):
                await self._call("POST", "/emails", email)
        self.endpoint.payload = None

    async def webhook(self, data: bytes) -> None:
        """Serves bytes as the response of a webhook endpoint; a new one each time, without recorded failures."""
        self._number += 1
        endpoint = {"endpoint": f"http://127.0.0.1:{self.endpoint_port}/{self._number}", "events": ["email.sent"]}
        _, webhook = await self._call("POST", "/webhooks", endpoint)
        done = self.endpoint.say(data)
        email = {"from": "a@hostile.example", "to": "x@watch.example", "subject": "Hello", "text": "Hi."}
        await self._call("POST", "/emails", email)
        with suppress(*_GONE):
            await asyncio.wait_for(done.wait(), 20)
        self.endpoint.payload = None
        await self._call("DELETE", f"/webhooks/{webhook['id']}")

    async def exchange_replies(self, stage: str, data: bytes) -> None:
        """Serves bytes as a mail server's reply at one stage of a session."""
        number, done = self.exchanger.say(stage, data)
        email = {"from": "a@hostile.example", "to": f"x@mx{number}.example", "subject": "Hello", "text": "Hi."}
        await self._call("POST", "/emails", email)
        with suppress(*_GONE):
            await asyncio.wait_for(done.wait(), 20)

    async def dns(self, data: bytes) -> None:
        """Serves bytes as a TXT record of a sending domain."""
        self._number += 1
        self.names.payload = data
        status, domain = await self._call("POST", "/domains", {"name": f"d{self._number}.hostile{self._number}.com"})
        if status != 201:
            return
        await self._call("POST", f"/domains/{domain['id']}/verify")
        for _ in range(20):
            _, found = await self._call("GET", f"/domains/{domain['id']}")
            if found is None or found["checked_at"] is not None:  # None: the response was cut
                break
            await asyncio.sleep(0.02)
        await self._call("DELETE", f"/domains/{domain['id']}")


def _body(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def _whole(got: bytearray) -> bool:
    """Whether this is a complete HTTP response."""
    head, end, body = got.partition(b"\r\n\r\n")
    if not end or not head.startswith(b"HTTP/1.1 ") or head.startswith(b"HTTP/1.1 1"):
        return False
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return len(body) >= min(sum(lengths), 60_000)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(0, len(data), PIECE):
        writer.write(data[at : at + PIECE])
        await writer.drain()


async def _reply(reader: asyncio.StreamReader) -> bytes:
    """Reads an SMTP reply and returns its last line."""
    while (line := await reader.readline())[3:4] == b"-":
        pass
    if not line:
        raise ConnectionResetError
    return line


async def _mail(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: bytes, message: bytes, *, greeted: bool = False
) -> bytes:
    """Sends a message. Returns the reply to it, or to a refused command."""
    try:
        if not greeted:
            await _reply(reader)
        for line in begin.splitlines(keepends=True):
            writer.write(line)
            reply = await _reply(reader)
            if reply[:1] not in b"23":
                return reply
        stuffed = message.replace(b"\r\n.", b"\r\n..")
        await _send(writer, stuffed + (b".\r\n" if stuffed.endswith(b"\r\n") else b"\r\n.\r\n"))
        return await _reply(reader)
    finally:
        writer.transport.abort()
