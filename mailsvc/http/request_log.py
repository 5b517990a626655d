"""Collects requests and their responses for the accounts' logs and writes them in batches, after the response.

Requests never wait for the log. If the database is too slow, requests are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.store.logs.requests import NewLog

log = Logger()

OVERHEAD = 500  # bytes that a request counts besides its bodies
TEXT_MAX = 2000  # characters of one text in a body
VALUE = 8  # bytes that a value counts besides its text
DEPTH_MAX = 12
BYTE_ARRAY = 64  # a longer array of numbers is a file
SECRET = frozenset({"token", "signing_secret", "secret", "password", "authorization", "api_key"})
HUNG_UP = 499  # the client closed the connection before the response

_IN_LINK = re.compile(r"(token=)[^&\s\"']+")


@attrs.define(eq=False)
class Recorder:
    """`write` stores a batch, `linger` seconds after its first request."""

    write: Callable[[Sequence[NewLog]], Awaitable[None]]
    clock: Any
    body_max: int = 16_384  # about how many bytes of each body are kept; 0: no bodies
    linger: float = 0.5
    batch: int = 500
    most: int = 10_000  # pending requests
    most_bytes: int = 16 << 20  # of their bodies
    dropped: int = 0
    _pending: list[NewLog] = attrs.field(factory=list)
    _bytes: int = 0
    _timer: Any = None
    _writing: Deferred[None] | None = None

    def body(self, value: object) -> bytes | None:
        """A body for the log: without secrets and files, and shortened."""
        if value is None or not self.body_max:
            return None
        try:
            return orjson.dumps(Cut(self.body_max).of(value))
        except (TypeError, ValueError):
            return None

    def add(self, entry: NewLog) -> None:
        size = _size_of(entry)
        if len(self._pending) >= self.most or self._bytes + size > self.most_bytes:
            self.dropped += 1
            return
        self._pending.append(entry)
        self._bytes += size
        if self._timer is None and self._writing is None:
            self._timer = self.clock.callLater(self.linger, self._begin)

    async def stop(self) -> None:
        """Write the pending requests. Call it after the last request."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._writing is not None:
            done: Deferred[None] = Deferred()
            self._writing.addCallback(done.callback)
            await done

    def _begin(self) -> None:
        self._timer = None
        writing = self._writing = Deferred.fromCoroutine(self._write_all())
        if writing.called:
            self._writing = None

    async def _write_all(self) -> None:
        """Write until nothing is pending. The slower the database, the larger the batches."""
        while self._pending:
            taken, self._pending = self._pending[: self.batch], self._pending[self.batch :]
            self._bytes -= sum(map(_size_of, taken))
            try:
                await self.write(taken)
            except Exception as error:
                self.dropped += len(taken)
                log.warn("Could not write the request log: {reason}", reason=f"{type(error).__name__}: {error}")
        if self.dropped:
            log.warn("{count} requests are missing from the request log", count=self.dropped)
            self.dropped = 0
        self._writing = None


def _size_of(entry: NewLog) -> int:
    return len(entry.request_body or b"") + len(entry.response_body or b"") + OVERHEAD


@attrs.define
class Cut:
    """Copies a JSON value without secrets and files, up to about `room` bytes."""

    room: int

    def of(self, value: Any, key: str = "", depth: int = 0, in_file: bool = False) -> Any:
        self.room -= VALUE + len(key)
        if self.room < 0 or depth > DEPTH_MAX:
            return "…"
        left_out = key in SECRET or (in_file and key in ("content", "data"))
        if isinstance(value, str) and not left_out:
            text = _shortened(value)
            self.room -= len(text)
            return text
        if value is not None and (left_out or _is_file(value)):
            return f"(omitted: {_size(value)})"
        in_file = in_file or key == "attachments"
        if isinstance(value, dict):
            members = {}
            for name, child in value.items():
                if self.room < 0:
                    break
                members[_shortened(name)] = self.of(child, name, depth + 1, in_file)
            return members
        if isinstance(value, (list, tuple)):
            items = []
            for child in value:
                if self.room < 0:
                    break
                items.append(self.of(child, "", depth + 1, in_file))
            return items
        return value


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or (
        isinstance(value, list) and len(value) > BYTE_ARRAY and all(type(n) is int for n in value[:BYTE_ARRAY])
    )


def _size(value: Any) -> str:
    if isinstance(value, (str, bytes, list)):
        return f"{len(value)} {'characters' if isinstance(value, str) else 'bytes'}"
    return "a value"


def _shortened(text: str) -> str:
    text = _IN_LINK.sub(r"\1…", text) if "token=" in text else text
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text)} characters)"
