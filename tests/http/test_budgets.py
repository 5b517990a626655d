"""What clients can hold at once over HTTP: forms, connections, unread responses."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any
from uuid import uuid4

import pytest
from twisted.internet.defer import Deferred

from mailsvc.http.stream import CHUNK, STALLED
from mailsvc.intake import Admitted
from mailsvc.net.fetch import FetchError
from mailsvc.runtime.budget import TURN_SECONDS
from tests.http.rig import GOOD, Connection, Rig, request

HEALTH = request("GET", "/healthz", key=None)
LARGE = request("GET", "/openapi.json", key=None)  # some hundred kB


class Reader(Connection):
    """A client whose connection has room for `CHUNK` bytes until it reads."""

    def __init__(self, rig: Rig, host: str = "192.0.2.1") -> None:
        super().__init__(rig, host)
        self.full, self.taken = False, 0
        write, self.transport.abortConnection = self.transport.write, self.hang_up  # type: ignore[method-assign]

        def written(data: bytes) -> None:
            write(data)
            if len(self.transport.value()) - self.taken > CHUNK and not self.full:
                self.full = True
                self.channel.pauseProducing()

        self.transport.write = written  # type: ignore[method-assign]

    def read(self) -> None:
        """Take what is there."""
        self.taken, self.full = len(self.transport.value()), False
        self.channel.resumeProducing()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_form_has_at_most_64_kb() -> None:
    rig = Rig()
    for path in ("/healthz", "/shared"):
        connection = rig.connect()
        connection.send(request("POST", path, b"x" * (64 * 1024 + 1), key=None))
        assert connection.responses()[0].status in (401, 413)
        assert rig.budget.used == 0
    connection = rig.connect()
    connection.send(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n")
    assert connection.responses()[0].problem == (413, "validation_error")


# Connections


def test_connections_per_address_are_limited() -> None:
    rig = Rig(connections_per_address=2)
    first, second, third = rig.connect(), rig.connect(), rig.connect()
    [response] = third.responses()
    assert response.problem == (503, "service_unavailable") and response.headers["retry-after"] == "5"
    assert response.headers["connection"] == "close"
    assert rig.request_from("192.0.2.2", HEALTH).status == 200
    first.hang_up()
    third.hang_up()
    assert rig.connect().responses() == [] and len(rig.site.connections) == 3
    second.send(HEALTH)
    assert second.responses()[0].status == 200


def test_new_address_evicts_an_idle_connection_of_the_largest_address() -> None:
    rig = Rig(connections=4)
    many = [rig.connect("192.0.2.1") for _ in range(3)]
    other = rig.connect("192.0.2.2")
    many[0].send(request("POST", "/emails", GOOD)[:-1])  # has a key: it is not idle
    new = rig.connect("192.0.2.3")
    assert [each.transport.disconnected for each in many] == [False, True, False]
    assert new.responses() == [] and other.responses() == []
    many[0].send(b"}")
    assert many[0].responses()[0].status == 200
    assert (rig.site.connections.evicted, len(rig.site.connections)) == (1, 4)


def test_connection_is_refused_if_none_is_idle() -> None:
    rig = Rig(connections=1)
    rig.connect("192.0.2.1").send(request("POST", "/emails", GOOD)[:-1])
    assert rig.connect("192.0.2.3").responses()[0].status == 503


def test_trusted_proxy_is_not_limited_but_its_clients_are() -> None:
    rig = Rig(connections=2, connections_per_address=1)
    rig.site.trusted = [ip_network("10.0.0.0/8")]
    for host in ("192.0.2.1", "192.0.2.2"):
        rig.connect(host)
    first, second = rig.connect("10.0.0.1"), rig.connect("10.0.0.1")
    part = request("POST", "/emails", GOOD, X_Forwarded_For="192.0.2.9")
    first.send(part[:-1])
    second.send(part)
    assert second.responses()[0].status == 503
    first.send(part[-1:])
    assert first.responses()[0].status == 200
    first.send(part)
    assert first.responses()[1].status == 200
    first.send(part[:-1])
    first.hang_up()
    assert rig.connect("10.0.0.1").responses() == [] and not rig.site.connections._requests


# Responses


def test_client_that_does_not_read_holds_one_response() -> None:
    rig = Rig()
    client = Reader(rig)
    client.channel.pauseProducing()  # full
    client.send(HEALTH * 50)
    assert len(client.responses()) == 1
    client.channel.resumeProducing()
    for _ in range(50):
        rig.clock.advance(0)  # others have their turns
    assert len(client.responses()) == 50


def test_unread_response_is_discarded_after_the_timeout() -> None:
    rig = Rig()
    client = Reader(rig)
    client.channel.pauseProducing()
    client.send(HEALTH * 50)
    rig.clock.advance(rig.limits.unread)
    assert client.channel._lost and len(rig.site.connections) == 0 and not rig.clock.getDelayedCalls()


def test_client_that_does_not_read_the_end_is_aborted() -> None:
    rig = Rig()
    client = Reader(rig)
    client.send(request("GET", "/healthz", key=None, Connection="close"))
    assert client.transport.disconnecting
    rig.clock.advance(rig.limits.unread)
    assert client.channel._lost


def test_large_response_waits_on_disk_and_arrives_complete() -> None:
    rig = Rig()
    whole = rig.connect()
    whole.send(LARGE)
    [expected] = whole.responses()
    assert rig.budget.used == 0 and len(expected.body) > 2 * CHUNK
    client = Reader(rig)
    client.send(LARGE)
    assert CHUNK <= len(client.transport.value()) < 3 * CHUNK
    assert rig.budget.pages.disk.used == len(expected.body) == rig.budget.used
    for _ in range(len(expected.body) // CHUNK + 1):
        client.read()
    [response] = client.responses()
    assert response.body == expected.body and rig.budget.used == 0


@pytest.mark.parametrize("how", ["hangs up", "reads nothing"])
@pytest.mark.usefixtures("no_collector")
def test_client_that_leaves_frees_everything(how: str) -> None:
    """Without the garbage collector: no body and no file hangs in a reference cycle."""
    rig = Rig()
    rig.connect().send(LARGE)  # what is made once
    size = 0

    def one() -> Any:
        nonlocal size
        client = Reader(rig)
        client.send(LARGE)
        ours = client.channel.requests[0]
        size = rig.budget.used
        seen = [weakref.ref(client.channel), weakref.ref(ours._outgoing), weakref.ref(ours.producer)]
        del ours
        if how == "hangs up":
            client.hang_up()
        else:
            rig.clock.advance(STALLED)
        assert client.channel._lost and rig.budget.used == 0
        client.transport.__dict__.clear()
        del client.channel
        return seen

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        seen = [each for _ in range(10) for each in one()]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert [ref() for ref in seen] == [None] * 30
    assert grown < size


def test_too_many_unread_responses_of_an_address_are_refused() -> None:
    rig = Rig(spool=1 << 24)
    readers = [Reader(rig) for _ in range(20)]
    for reader in readers:
        reader.send(LARGE)
    statuses = [reader.transport.value()[9:12] for reader in readers]
    assert statuses.count(b"503") and rig.budget.pages.disk.used <= rig.budget.pages.disk.limit // 2
    other = rig.connect("192.0.2.2")
    other.send(LARGE)
    assert other.responses()[0].status == 200
    for reader in readers:
        reader.hang_up()
    assert rig.budget.used == 0


# Large requests


LARGE_EMAIL = {**GOOD, "attachments": [{"filename": "a", "content": "YWJj" * 1000}]}


def test_large_requests_take_turns_and_small_ones_do_not_wait() -> None:
    rig = Rig(spool_above=1000, in_flight=100_000)
    waiting: Deferred[Any] = Deferred()
    rig.intake.answer = lambda emails: waiting
    first, second = rig.connect(), rig.connect()
    first.send(request("POST", "/emails", LARGE_EMAIL))
    second.send(request("POST", "/emails", LARGE_EMAIL))
    assert len(rig.intake.submitted) == 1 and rig.budget.api.work.waiting == 1
    assert rig.budget.api.memory.used == 0 < rig.budget.api.disk.used
    rig.intake.answer = None
    assert rig.request("POST", "/emails", GOOD).status == 200
    waiting.callback(Admitted((uuid4(),)))
    assert [each.responses()[0].status for each in (first, second)] == [200, 200]
    assert rig.budget.used == 0


def test_large_request_without_a_turn_is_refused() -> None:
    rig = Rig(spool_above=1000, in_flight=100_000)
    assert Deferred.fromCoroutine(rig.budget.api.work.take("another account", 1)).called
    connection = rig.connect()
    connection.send(request("POST", "/emails", {**LARGE_EMAIL, "text": "x" * 4000}))
    assert connection.responses() == []
    rig.clock.advance(TURN_SECONDS)
    assert connection.responses()[0].problem == (503, "service_unavailable")
    rig.budget.api.work.give(1)
    assert rig.budget.used == 0 and rig.intake.submitted == []


def test_client_that_hangs_up_gives_its_turn_back() -> None:
    rig = Rig(spool_above=1000, in_flight=100_000)
    assert Deferred.fromCoroutine(rig.budget.api.work.take("another account", rig.budget.api.work.limit)).called
    connection = rig.connect()
    connection.send(request("POST", "/emails", LARGE_EMAIL))
    connection.hang_up()
    rig.budget.api.work.give(rig.budget.api.work.limit)
    assert rig.budget.used == 0


def test_download_does_not_keep_the_turn() -> None:
    rig = Rig(spool_above=1000, in_flight=100_000)
    fetched: Deferred[Any] = Deferred()

    async def fetch(*_: Any, reserve: Any, **__: Any) -> Any:
        assert rig.budget.api.work.used == 0 and rig.budget.api.memory.used > 4000
        assert reserve(500)
        await fetched
        raise FetchError("It took too long.")

    rig.web.fetch = fetch  # type: ignore[method-assign]
    connection = rig.connect()
    linked = [*LARGE_EMAIL["attachments"], {"path": "https://example.com/a"}]  # type: ignore[misc]
    connection.send(request("POST", "/emails", {**LARGE_EMAIL, "attachments": linked}))
    assert rig.budget.api.memory.used > 4500 and connection.responses() == []
    fetched.callback(None)
    assert connection.responses()[0].problem == (422, "invalid_attachment") and rig.budget.used == 0
