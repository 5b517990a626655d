"""Gathers what accounts asked and were answered, for their request log: after the answer, in batches, within bounds.

When the store is slower than the requests, what cannot be gathered any more is counted and left out; no request ever waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.store.logs.requests import NewLog

log = Logger()

OVERHEAD = 500  # octets that a request counts for besides its bodies
TEXT_MAX = 2000  # characters of one text in a body
VALUE = 8  # octets that a value counts for besides its text
DEPTH_MAX = 12
BYTE_ARRAY = 64  # an array of so many numbers is a file, not a list
SECRET = frozenset({"token", "signing_secret", "secret", "password", "authorization", "api_key"})
HUNG_UP = 499  # the client left before there was an answer

_IN_LINK = re.compile(r"(token=)[^&\s\"']+")


@attrs.define(eq=False)
class Recorder:
    """`write` stores a batch. It begins `linger` seconds after the first request of a batch."""

    write: Callable[[Sequence[NewLog]], Awaitable[None]]
    clock: Any
    body_max: int = 16_384  # about the octets of each body that are kept; 0: no bodies
    linger: float = 0.5
    batch: int = 500
    most: int = 10_000  # requests that wait
    most_octets: int = 16 << 20  # of their bodies
    dropped: int = 0
    _waiting: list[NewLog] = attrs.field(factory=list)
    _octets: int = 0
    _timer: Any = None
    _writing: Deferred[None] | None = None

    def body(self, value: object) -> str | None:
        """A body as it is kept: without secrets and files, and not longer than it may be."""
        if value is None or not self.body_max:
            return None
        try:
            text = orjson.dumps(Cut(self.body_max).of(value))
        except (TypeError, ValueError):
            return None
        return text.decode()

    def add(self, entry: NewLog) -> None:
        if len(self._waiting) >= self.most or self._octets + _octets(entry) > self.most_octets:
            self.dropped += 1
            return
        self._waiting.append(entry)
        self._octets += _octets(entry)
        if self._timer is None and self._writing is None:
            self._timer = self.clock.callLater(self.linger, self._begin)

    async def stop(self) -> None:
        """Write what waits; to be called when no request comes any more."""
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
        """Also what comes while it writes: the slower it goes, the larger the batches."""
        while self._waiting:
            taken, self._waiting = self._waiting[: self.batch], self._waiting[self.batch :]
            self._octets -= sum(map(_octets, taken))
            try:
                await self.write(taken)
            except Exception as error:
                self.dropped += len(taken)
                log.warn("requests could not be logged: {reason}", reason=f"{type(error).__name__}: {error}")
        if self.dropped:
            log.warn("{count} requests are missing in the request log", count=self.dropped)
            self.dropped = 0
        self._writing = None


def _octets(entry: NewLog) -> int:
    return len(entry.request_body or "") + len(entry.response_body or "") + OVERHEAD


@attrs.define
class Cut:
    """Copies a JSON value without what a log must not have, until `room` octets are used up."""

    room: int

    def of(self, value: Any, key: str = "", depth: int = 0, *, in_file: bool = False) -> Any:
        self.room -= VALUE + len(key)
        if self.room < 0 or depth > DEPTH_MAX:
            return "…"
        if value is not None and (key in SECRET or (in_file and key in ("content", "data")) or _is_file(value)):
            return f"(left out: {_size(value)})"
        if isinstance(value, str):
            return self._text(value)
        in_file = in_file or key == "attachments"
        if isinstance(value, dict):
            return {_shortened(name): self.of(value[name], name, depth + 1, in_file=in_file) for name in self._while_room(value)}
        if isinstance(value, (list, tuple)):
            return [self.of(child, "", depth + 1, in_file=in_file) for child in self._while_room(value)]
        return value

    def _text(self, text: str) -> str:
        text = _shortened(text)
        self.room -= len(text)
        return text

    def _while_room(self, children: Iterable[Any]) -> Iterator[Any]:
        for child in children:
            if self.room < 0:
                return
            yield child


def _is_file(value: Any) -> bool:
    return isinstance(value, bytes) or (
        isinstance(value, list) and len(value) > BYTE_ARRAY and all(type(n) is int for n in value[:BYTE_ARRAY])
    )


def _size(value: Any) -> str:
    if isinstance(value, (str, bytes, list)):
        return f"{len(value)} {'characters' if isinstance(value, str) else 'octets'}"
    return "a value"


def _shortened(text: str) -> str:
    text = _IN_LINK.sub(r"\1…", text) if "token=" in text else text
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text)} characters)"
