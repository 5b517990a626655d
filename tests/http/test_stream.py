"""Streamed responses: they wait for their reader and end with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock

from mailsvc.http.stream import STALLED, Flow
from tests.http.rig import Rig


@attrs.define
class Request:
    """As much of one as a flow asks for. `full_after`: writes until the connection has no room."""

    full_after: int = 1_000_000
    written: list[bytes] = attrs.field(factory=list)
    producer: Any = None
    aborted: bool = False
    finished: Deferred[None] = attrs.field(factory=Deferred)

    def notifyFinish(self) -> Deferred[None]:
        return self.finished

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, chunk: bytes) -> None:
        self.written.append(chunk)
        if len(self.written) >= self.full_after:
            self.producer.pauseProducing()

    def abort(self) -> None:
        self.aborted = True


def begin(request: Request, clock: Clock, count: int = 5) -> tuple[list[Any], list[int], list[str]]:
    """What running comes to, the chunks that were made, and whether making them was ended."""
    created: list[int] = []
    ended: list[str] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            for number in range(count):
                created.append(number)
                yield b"%d" % number
        finally:
            ended.append("ended")

    results: list[Any] = []
    Deferred.fromCoroutine(Flow(request, clock).run(chunks())).addBoth(results.append)
    return results, created, ended


def test_stream_writes_everything_in_order():
    request = Request()
    results, _, ended = begin(request, Clock())
    assert results == [True] and request.written == [b"0", b"1", b"2", b"3", b"4"] and request.producer is None and ended == ["ended"]


def test_stream_makes_one_chunk_for_a_slow_reader():
    request = Request(full_after=2)
    results, created, _ = begin(request, Clock())
    assert request.written == [b"0", b"1"] and created == [0, 1, 2] and not results
    request.full_after = 1_000_000
    request.producer.resumeProducing()
    assert results == [True] and len(request.written) == 5


def test_stream_ends_with_its_reader():
    request = Request(full_after=2)
    results, created, ended = begin(request, Clock())
    request.finished.errback(ConnectionDone())
    assert results == [False] and created == [0, 1, 2] and request.written == [b"0", b"1"] and ended == ["ended"]


def test_stream_disconnects_a_stalled_reader():
    clock, request = Clock(), Request(full_after=1)
    results, _, ended = begin(request, clock)
    clock.advance(STALLED - 1)
    assert not results
    clock.advance(1)
    assert results == [False] and request.aborted and ended == ["ended"]


def test_stream_reports_errors():
    request = Request()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await fail(ValueError("broken"))

    results: list[Any] = []
    Deferred.fromCoroutine(Flow(request, Clock()).run(chunks())).addBoth(results.append)
    with pytest.raises(ValueError, match="broken"):
        results[0].raiseException()
    assert request.producer is None


def test_head_generates_nothing():
    """Its response has no body, so reading all rows would be in vain."""
    generated: list[str] = []

    class Evidence:
        async def all(self, *_: Any) -> AsyncGenerator[list[Any], None]:
            generated.append("all")
            yield []

    rig = Rig()
    assert rig.api.audience is not None
    rig.api.audience.evidence = Evidence()  # type: ignore[assignment]
    head = rig.request("HEAD", "/consents")
    assert generated == [] and (head.status, head.body) == (200, b"")
    get = rig.request("GET", "/consents")
    assert generated == ["all"] and get.headers["content-type"] == head.headers["content-type"]
