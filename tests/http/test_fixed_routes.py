"""Fixed paths answer like those that Klein matches, in one write."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.tcp import Server
from twisted.logger import capturedLogs

from mailsvc.http.answer import collection
from mailsvc.http.problem import invalid
from mailsvc.http.stream import CHUNK
from tests.http.rig import Connection, Rig, request

EMAIL = {"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t"}


class Tried:
    """A collection whose fixed path and path with an ID do the same."""

    app = collection()

    def __init__(self) -> None:
        self.result: Deferred[bytes] = Deferred()

    @app.route("/health", methods=["GET"])
    @app.route("/health/<id>", methods=["GET"])
    def get(self, request: Any, id: str = "") -> Deferred[bytes]:
        return self.result


class Streamed:
    app = collection()

    @app.route("/health")
    async def get(self, request: Any) -> None:
        await request.stream(self._chunks())

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        for _ in range(100):
            yield b"x" * CHUNK


@attrs.define
class Reactor:
    """Watches nothing."""

    def addReader(self, reader: Any) -> None: ...
    def addWriter(self, writer: Any) -> None: ...
    def removeReader(self, reader: Any) -> None: ...
    def removeWriter(self, writer: Any) -> None: ...


def tried(path: str) -> tuple[Connection, Tried]:
    rig, own = Rig(), Tried()
    rig.site._collections = {b"health": own.app.resource()}
    connection = rig.connect()
    connection.send(request("GET", path))
    return connection, own


PATHS = pytest.mark.parametrize("path", ["/health", "/health/", "/health/one"])


@PATHS
def test_a_result_is_the_body(path: str) -> None:
    connection, own = tried(path)
    assert connection.responses() == []
    own.result.callback(b"{}")
    [response] = connection.responses()
    assert (response.status, response.body) == (200, b"{}")


@PATHS
def test_a_problem_is_the_response(path: str) -> None:
    connection, own = tried(path)
    own.result.errback(invalid("The `id` is wrong."))
    [response] = connection.responses()
    assert response.problem == (422, "validation_error")


@PATHS
def test_an_unexpected_failure_is_logged_once_and_answered(path: str) -> None:
    connection, own = tried(path)
    with capturedLogs() as logs:
        own.result.errback(LookupError("of our own"))
    [response] = connection.responses()
    assert response.status == 500
    assert [str(each["log_failure"].value) for each in logs if "log_failure" in each] == ["of our own"]


@PATHS
def test_a_client_that_hangs_up_cancels_the_work(path: str) -> None:
    connection, own = tried(path)
    with capturedLogs() as logs:
        connection.hang_up()
    assert own.result.called
    own.result.addErrback(lambda failure: failure.trap(CancelledError))
    assert [each for each in logs if "log_failure" in each] == []


def test_a_failure_after_the_client_hung_up_is_logged() -> None:
    rig, own = Rig(), Tried()
    own.result = Deferred(lambda deferred: deferred.errback(LookupError("while it was cancelled")))
    rig.site._collections = {b"health": own.app.resource()}
    connection = rig.connect()
    connection.send(request("GET", "/health"))
    with capturedLogs() as logs:
        connection.hang_up()
    assert [str(each["log_failure"].value) for each in logs if "log_failure" in each] == ["while it was cancelled"]


@PATHS
def test_a_failure_while_a_failure_is_answered_is_answered(path: str) -> None:
    rig, own = Rig(), Tried()
    bound = own.app
    bound._error_handlers = [((Exception,), lambda *_: 1 / 0)]
    rig.site._collections = {b"health": bound.resource()}
    connection = rig.connect()
    connection.send(request("GET", path))
    with capturedLogs() as logs:
        own.result.errback(LookupError("of our own"))
    [response] = connection.responses()
    assert response.status == 500
    assert any("log_failure" in each for each in logs)


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
def test_another_method_gets_what_the_path_allows(method: str) -> None:
    response = Rig().request(method, "/emails")
    assert response.status == 405
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize("path", ["/emails", "/emails/", "/emails?x=1"])
def test_every_way_to_write_a_fixed_path_leads_there(path: str) -> None:
    connection = Rig().connect()
    connection.send(request("POST", path, EMAIL))
    [response] = connection.responses()
    assert response.status == 200


@pytest.mark.parametrize("data", [request("POST", "/emails", EMAIL), request("HEAD", "/emails"), request("OPTIONS", "/emails")])
def test_a_response_is_written_at_once(data: bytes) -> None:
    connection = Rig().connect()
    written: list[bytes] = []
    connection.transport.write = written.append
    connection.send(data)
    assert len(written) == 1
    assert written[0].startswith(b"HTTP/1.1 20")


def test_a_streamed_response_takes_turns() -> None:
    """However fast the client reads: the socket alone takes megabytes."""
    rig, own = Rig(), Streamed()
    rig.site._collections = {b"health": own.app.resource()}
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    ours, address = listener.accept()
    ours.setblocking(False)
    connection: Any = Server(ours, rig.site.buildProtocol(None), address, None, 1, Reactor())
    sent: list[int] = []
    send = connection.writeSomeData
    connection.writeSomeData = lambda data: sent.append(len(data)) or send(data)
    connection.protocol.makeConnection(connection)
    client.send(request("GET", "/health"))
    connection.doRead()
    connection.doWrite()
    assert 0 < sum(sent) < 3 * CHUNK
    for each in (client, ours, listener):
        each.close()


def test_a_connection_asks_for_its_own_address_once() -> None:
    connection = Rig().connect()
    asked: list[int] = []
    found = connection.transport.getHost
    connection.transport.getHost = lambda: asked.append(1) or found()
    for _ in range(3):
        connection.send(request("POST", "/emails", EMAIL))
    assert len(connection.responses()) == 3
    assert len(asked) == 1
