"""Bytes in, bytes out: connections with good, bad, slow and hostile clients, in any chunking."""

from __future__ import annotations

import json
import resource
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from mailsvc.intake import Admitted
from tests.http.rig import EMAIL, GOOD, KEYS, Rig, request

MANY = b"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ms_full\r\nTransfer-Encoding: chunked\r\n\r\n"


def head(*lines: str, method: str = "POST", path: str = "/emails", key: str | None = "ms_full") -> bytes:
    first = [f"{method} {path} HTTP/1.1", "Host: localhost"] + ([f"Authorization: Bearer {key}"] if key else [])
    return "\r\n".join([*first, *lines]).encode() + b"\r\n\r\n"


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400))
def test_requests_are_the_same_in_any_chunking(size: int) -> None:
    rig = Rig()
    connection = rig.connect()
    body = json.dumps(GOOD).encode()
    data = request("POST", "/emails", GOOD) + MANY + chunked(body[:7], body[7:]) + b"0\r\n\r\n" + request("GET", "/emails")
    connection.send(data, size)
    assert [response.status for response in connection.responses()] == [200, 200, 200]
    assert len(rig.intake.submitted) == 2
    assert not connection.transport.disconnecting
    assert rig.budget.used == 0


# The key before the body


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("ms_wrong", 403), ("ms_suspended", 403)])
@pytest.mark.parametrize("size", [None, 1, 17])
def test_body_is_not_read_without_a_valid_key(key: str | None, status: int, size: int | None) -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(head("Content-Length: 100000000", key=key) + b'{"from"', size)
    [response] = connection.responses()
    assert response.status == status
    assert response.headers["connection"] == "close"
    connection.send(b"x" * 100_000)
    assert len(connection.responses()) == 1
    rig.clock.advance(rig.limits.linger)
    assert connection.transport.disconnecting
    assert rig.budget.used == 0


def test_refused_body_is_discarded_for_a_while() -> None:
    """So that a client that sends first and reads then gets its answer."""
    rig = Rig()
    connection = rig.connect()
    connection.send(head("Content-Length: 100000000", key=None))
    for _ in range(9):
        rig.clock.advance(3)
        connection.send(b"x" * 1000)
        assert not connection.transport.disconnecting
    rig.clock.advance(3)
    assert connection.transport.disconnecting
    assert len(connection.responses()) == 1
    rig.clock.advance(15)
    assert connection.transport.disconnected


def test_small_body_that_has_arrived_keeps_the_connection() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(request("POST", "/emails", GOOD, key=None) + request("GET", "/emails"))
    assert [response.status for response in connection.responses()] == [401, 200]
    assert not connection.transport.disconnecting


def test_nothing_is_read_while_the_key_is_looked_up() -> None:
    rig = Rig()
    rig.keys.slow = True
    connection = rig.connect()
    body = json.dumps(GOOD).encode()
    connection.send(head(f"Content-Length: {len(body)}", "Expect: 100-continue"))
    assert connection.transport.producerState == "paused"
    assert connection.transport.value() == b""
    rig.keys.go()
    assert connection.transport.producerState == "producing"
    assert connection.transport.value() == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(body)
    assert [response.status for response in connection.responses()] == [200]


@pytest.mark.parametrize("part", [0, 10, None])
def test_slow_lookup_that_finds_nothing(part: int | None) -> None:
    rig = Rig()
    rig.keys.slow = True
    connection = rig.connect()
    body = json.dumps(GOOD).encode()
    connection.send(head(f"Content-Length: {len(body)}", key="ms_wrong") + body[:part])
    rig.keys.go()
    [response] = connection.responses()
    assert response.problem == (403, "invalid_api_key")
    rig.clock.advance(rig.limits.linger)
    assert connection.transport.disconnecting is (part is not None)
    assert rig.intake.submitted == []


def test_client_that_leaves_during_the_lookup() -> None:
    rig = Rig()
    rig.keys.slow = True
    connection = rig.connect()
    connection.send(head("Content-Length: 1000") + b"x" * 10)
    connection.hang_up()
    rig.keys.go()
    assert rig.budget.used == 0
    assert connection.transport.value() == b""


def test_failed_lookup_is_503() -> None:
    rig = Rig()
    rig.keys.broken = RuntimeError("secret detail")
    with capturedLogs() as logs:
        response = rig.request("POST", "/emails", GOOD)
    assert response.problem == (500, "application_error")
    assert b"secret detail" not in response.body
    error_id = response.json["message"].rpartition(" ")[2]
    assert any(event.get("error_id") == error_id for event in logs)


# Bodies that are too large, cut off, too slow, too many


def test_announced_body_that_is_too_large_is_refused() -> None:
    rig = Rig(body=1000)
    connection = rig.connect()
    connection.send(head("Content-Length: 1001", "Expect: 100-continue"))
    [response] = connection.responses()
    assert response.problem == (413, "validation_error")
    assert b"100 Continue" not in connection.transport.value()


def test_body_that_turns_out_too_large_is_refused() -> None:
    rig = Rig(body=1000)
    connection = rig.connect()
    connection.send(MANY + chunked(b"x" * 900))
    assert connection.responses() == []
    connection.send(chunked(b"x" * 900))
    [response] = connection.responses()
    assert response.problem == (413, "validation_error")
    assert rig.budget.used == 0
    connection.send(chunked(b"x" * 900) + b"0\r\n\r\n")
    assert len(connection.responses()) == 1


def test_only_sending_requests_can_be_large() -> None:
    rig = Rig(other_body=100)
    connection = rig.connect()
    connection.send(head("Content-Length: 101", method="PATCH", path="/emails/x"))
    assert connection.responses()[0].status == 413


def test_truncated_body_leaves_nothing() -> None:
    rig = Rig(spool_above=10)
    connection = rig.connect()
    connection.send(request("POST", "/emails", GOOD)[:-1])
    assert rig.budget.used > 0
    connection.hang_up()
    assert (rig.budget.used, rig.intake.submitted, rig.clock.getDelayedCalls()) == (0, [], [])


def test_announced_body_takes_no_budget_until_it_arrives() -> None:
    rig = Rig(in_flight=10_000)
    others = [rig.connect() for _ in range(20)]
    for each in others:
        each.send(head("Content-Length: 1800"))
    assert rig.budget.used == 0 and not any(each.responses() for each in others)
    others[0].send(b"x" * 500)
    assert rig.budget.used == 500
    assert rig.request("POST", "/emails", GOOD).status == 200
    for each in others:
        each.hang_up()
    assert rig.budget.used == 0


def test_body_that_cannot_fit_is_refused_immediately() -> None:
    rig = Rig(in_flight=1000)
    connection = rig.connect()
    connection.send(head("Content-Length: 900"))
    [response] = connection.responses()
    assert response.problem == (503, "service_unavailable") and response.headers["retry-after"] == "1"
    assert rig.request("POST", "/emails", GOOD).status == 200 and rig.budget.used == 0


def test_chunked_bodies_are_counted_as_they_arrive() -> None:
    rig = Rig(in_flight=3000)
    first, second = rig.connect(), rig.connect()
    first.send(MANY + chunked(b"x" * 400))
    second.send(MANY + chunked(b"x" * 400))
    assert second.responses()[0].status == 503
    assert rig.budget.used == 400


def test_large_body_is_spooled_and_read_in_a_thread() -> None:
    rig = Rig(spool_above=1000)
    content = list(bytes(range(256)) * 8)
    assert rig.request("POST", "/emails", {**GOOD, "attachments": [{"content": content}]}).status == 200
    assert rig.threads
    [(_, [email], _, _)] = rig.intake.submitted
    assert email.content.attachments[0].content == bytes(content)


def test_a_body_that_the_disk_has_no_room_for_is_refused_with_the_reason_in_the_log() -> None:
    rig = Rig(spool_above=1000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        with capturedLogs() as logged:
            response = rig.request("POST", "/emails", {**GOOD, "text": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert response.problem == (503, "service_unavailable") and rig.budget.used == 0
    assert [event["reason"] for event in logged if "disk" in event["log_format"]] == ["File too large"]
    assert not any("log_failure" in event for event in logged)


def test_slow_body_is_cut_off() -> None:
    rig = Rig(patience=20, slowest=100)
    connection = rig.connect()
    connection.send(head("Content-Length: 100000"))
    for _ in range(19):
        rig.clock.advance(1)
        connection.send(b"x" * 10)
    assert connection.responses() == []
    rig.clock.advance(1)
    assert connection.responses()[0].problem == (408, "validation_error")
    rig.clock.advance(5)
    assert connection.transport.disconnecting


def test_body_at_a_fair_pace_can_take_long() -> None:
    rig = Rig(patience=20, slowest=100, average=400, idle=60)
    connection = rig.connect()
    connection.send(head("Content-Length: 100000"))
    for _ in range(100):
        rig.clock.advance(2)
        connection.send(b"x" * 999)
    assert connection.responses() == []


@pytest.mark.parametrize(("seconds", "status"), [(1, 200), (3, 403)])
def test_a_key_that_is_revoked_while_the_body_arrives(monkeypatch: pytest.MonkeyPatch, seconds: int, status: int) -> None:
    rig = Rig()
    connection = rig.connect()
    body = json.dumps(GOOD).encode()
    connection.send(head(f"Content-Length: {len(body)}") + body[:10])
    monkeypatch.delitem(KEYS, "ms_full")
    rig.clock.advance(seconds)
    connection.send(body[10:])
    [response] = connection.responses()
    assert (response.status, len(rig.intake.submitted)) == (status, int(status == 200))
    assert rig.budget.used == 0


@pytest.mark.parametrize("slow", [False, True])
def test_a_body_that_arrives_slowly_has_its_key_checked_again(slow: bool) -> None:
    rig = Rig()
    connection = rig.connect()
    body = json.dumps(GOOD).encode()
    connection.send(head(f"Content-Length: {len(body)}") + body[:10])
    rig.clock.advance(3)
    rig.keys.slow = slow
    connection.send(body[10:] + request("GET", "/healthz"))
    if slow:
        assert connection.responses() == []
        rig.keys.go()
    assert [response.status for response in connection.responses()] == [200, 200]
    assert rig.keys.lookups == 2


@pytest.mark.parametrize("many", [False, True])
def test_body_has_to_arrive_in_time(many: bool) -> None:
    """In the time that `patience` and the average pace give for its announced size, or for what arrived of a chunked one."""
    rig = Rig(patience=20, slowest=10, average=1000, idle=60)
    connection = rig.connect()
    connection.send(MANY if many else head("Content-Length: 30000"))
    seconds = 0
    while not connection.responses():
        connection.send(chunked(b"x" * 300) if many else b"x" * 300)
        rig.clock.advance(1)
        seconds += 1
    assert connection.responses()[0].problem == (408, "validation_error")
    assert seconds == 40 if many else 40 <= seconds <= 60
    assert rig.budget.used == 0


@pytest.mark.parametrize("drop", [b"x", b"x: y\r\n"])
@pytest.mark.parametrize("started", [b"P", b"POST /emails HTTP/1.1\r\n", b"POST /emails HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_slow_headers_are_cut_off(started: bytes, drop: bytes) -> None:
    rig = Rig(patience=20)
    connection = rig.connect()
    connection.send(started)
    for _ in range(20):
        rig.clock.advance(1)
        connection.send(drop)
    assert connection.responses()[0].status == (400 if (started, drop) == (b"P", b"x: y\r\n") else 408)


def test_finished_request_leaves_no_timer() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(request("POST", "/emails", GOOD), 10)
    assert connection.responses()[0].status == 200
    assert len(rig.clock.getDelayedCalls()) == 1  # the idle time-out
    rig.clock.advance(61)
    assert connection.transport.disconnecting


# Requests that are not HTTP


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n0\r\n\r\n", 400),
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello", 400),
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello", 400),
        (b"POST /emails HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"GET /emails HTTP/1.1\r\nHost: x\r\nNo colon\r\n\r\n", 400),
        (b"GET /emails HTTP/1.1\r\nHost: x\r\nBad name: x\r\n\r\n", 400),
        (b"GET /emails HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /emails HTTP/3.0\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /emails HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /emails HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 17_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"e" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /" + b"e" * 20_000, 431),
    ],
)
@pytest.mark.parametrize("size", [None, 1000, 3])
def test_invalid_http_is_answered_once_in_json(data: bytes, status: int, size: int | None) -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(data + b"GET /emails HTTP/1.1\r\nHost: x\r\n\r\n", size)
    [response] = connection.responses()
    assert response.problem == (status, "validation_error")
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.headers["connection"] == "close"
    assert "ratelimit-limit" in response.headers
    rig.clock.advance(rig.limits.linger)
    assert connection.transport.disconnecting


def test_other_connections_get_a_turn_between_pipelined_requests() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 25)
    answered = [len(connection.responses())]
    connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    rig.clock.advance(0)
    answered.append(len(connection.responses()))
    assert answered == [10, 26]


def test_other_connections_get_a_turn_between_many_small_chunks() -> None:
    rig = Rig()
    connection = rig.connect()
    body = json.dumps(GOOD | {"text": "x" * 9000}).encode()
    connection.send(MANY + chunked(*(body[n : n + 1] for n in range(len(body)))) + b"0\r\n\r\n" + request("GET", "/emails"))
    unfinished = connection.channel._unfinished()
    assert unfinished is not None and unfinished.received < 600
    rig.clock.advance(0)
    assert [response.status for response in connection.responses()] == [200, 200]
    assert rig.budget.used == 0


def test_connection_lost_between_small_chunks_is_forgotten() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(MANY + chunked(*[b"x"] * 5000))
    connection.hang_up()
    rig.clock.advance(1)
    assert connection.responses() == [] and rig.budget.used == 0 and not rig.clock.getDelayedCalls()


def test_connection_lost_between_pipelined_requests_is_forgotten() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 25)
    connection.hang_up()
    rig.clock.advance(1)
    assert len(connection.responses()) == 10 and not rig.clock.getDelayedCalls()


def test_too_many_and_too_large_headers_have_different_errors() -> None:
    rig = Rig()
    many, large = rig.connect(), rig.connect()
    many.send(b"GET /emails HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100 + b"\r\n")
    large.send(b"GET /emails HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 17_000 + b"\r\n\r\n")
    assert many.transport.value().startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert large.transport.value().startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert many.responses()[0].json["message"] == "The request has more than 100 headers."
    assert large.responses()[0].json["message"] == "The request line and the headers have more than 16384 bytes."


def test_status_line_has_the_registered_phrase() -> None:
    rig = Rig()
    for data, line in {
        request("POST", "/emails", {**GOOD, "to": 1}): b"422 Unprocessable Content",
        request("POST", "/emails", GOOD): b"200 OK",
        request("BREW", "/emails"): b"501 Not Implemented",
        head("Content-Length: 1000000000"): b"413 Content Too Large",
    }.items():
        connection = rig.connect()
        connection.send(data)
        assert connection.transport.value().startswith(b"HTTP/1.1 " + line + b"\r\n")


@pytest.mark.parametrize("length", [b"9" * 5000, b"9" * 16_000, b"9" * 30])
def test_absurd_length_is_refused(length: bytes) -> None:
    rig = Rig()
    connection = rig.connect()
    with capturedLogs() as logs:
        connection.send(
            b"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ms_full\r\nContent-Length: " + length + b"\r\n\r\nhello"
        )
    [response] = connection.responses()
    assert response.status in (400, 413)
    assert not [event for event in logs if "log_failure" in event]


@pytest.mark.parametrize("chunk", [b"zz\r\nx\r\n", b"-1\r\nx\r\n", b"5\r\nhelloXX", b"0x5\r\nhello\r\n"])
def test_broken_chunk_is_refused(chunk: bytes) -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(MANY + chunk)
    [response] = connection.responses()
    assert response.status == 400
    assert rig.intake.submitted == []
    connection.hang_up()
    assert rig.budget.used == 0


def test_request_needs_one_host() -> None:
    rig = Rig()
    for lines in (b"", b"Host: a\r\nHost: b\r\n"):
        connection = rig.connect()
        connection.send(b"GET /emails HTTP/1.1\r\nAuthorization: Bearer ms_full\r\n" + lines + b"\r\n")
        assert connection.responses()[0].status == 400


def test_http_1_0_and_absolute_form_are_accepted() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert connection.responses()[0].status == 200
    assert connection.transport.disconnecting
    connection = rig.connect()
    connection.send(b"GET http://api.example.com/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.responses()[0].status == 200
    connection = rig.connect()
    connection.send(b"GET http://api.example.com/healthz HTTP/1.1\r\n\r\n")
    assert connection.responses()[0].status == 400  # the target does not replace the header


def test_compressed_body_is_refused() -> None:
    response = Rig().request("POST", "/emails", GOOD, Content_Encoding="gzip")
    assert response.problem == (415, "validation_error")
    assert response.headers["accept-encoding"] == "identity"


def test_a_request_without_a_body_can_name_a_coding() -> None:
    """Some clients send the header with every request."""
    assert Rig().request("GET", "/emails", Content_Encoding="gzip").status == 200


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [("POST", f"/emails/{UUID(int=1)}/cancel", "Content_Type"), ("GET", "/emails", "Content_Encoding")],
)
def test_a_refused_body_is_described_even_where_none_is_read(method: str, path: str, header: str) -> None:
    response = Rig().request(method, path, b"a=b", **{header: "text/plain"})
    assert response.problem == (415, "validation_error")


def test_form_is_not_parsed() -> None:
    response = Rig().request("POST", "/emails", b"a=b", Content_Type="application/x-www-form-urlencoded")
    assert response.problem == (415, "validation_error")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"GET /emails HTTP/1.1\r\n", MANY, head("Content-Length: 30")]))
def test_any_bytes_give_json_or_silence(noise: bytes, start: bytes) -> None:
    rig = Rig()
    connection = rig.connect()
    with capturedLogs() as logs:
        connection.send(start + noise, 7)
        for response in connection.responses():
            assert response.status >= 400
            response.problem  # noqa: B018
    assert not [event for event in logs if "log_failure" in event]
    connection.hang_up()
    assert rig.budget.used == 0


# Many requests on one connection


def test_pipelined_requests_are_answered_in_order() -> None:
    rig = Rig()
    connection = rig.connect()
    connection.send(b"".join(request("GET", path) for path in ["/healthz", "/nope", "/emails", "/readyz"] * 50))
    rig.clock.advance(0)
    assert [response.status for response in connection.responses()] == [200, 404, 200, 200] * 50


def test_refusal_behind_a_slow_request_waits_its_turn() -> None:
    rig = Rig()
    rig.keys.slow = True
    connection = rig.connect()
    connection.send(request("GET", "/emails") + b"broken\r\n\r\n")
    assert connection.responses() == []
    rig.keys.go()
    assert [response.status for response in connection.responses()] == [200, 400]


# Shutdown


def test_drain_closes_idle_connections_and_finishes_requests() -> None:
    rig = Rig()
    idle, half, working = rig.connect(), rig.connect(), rig.connect()
    idle.send(request("GET", "/healthz"))
    whole = request("POST", "/emails", GOOD)
    half.send(whole[:-5])
    waiting: Deferred[Any] = Deferred()
    rig.intake.answer = lambda emails: waiting
    working.send(request("POST", "/emails", GOOD))
    done: list[None] = []
    late = rig.connect()
    rig.site.drain().addCallback(done.append)
    rig.clock.advance(0.9)
    assert not idle.transport.disconnecting
    idle.responses()
    idle.send(request("GET", "/healthz"))  # it was on its way
    assert idle.responses()[-1].headers["connection"] == "close"
    assert [c.transport.disconnecting for c in (idle, half, working)] == [True, False, False]
    rig.clock.advance(0.1)
    assert late.transport.disconnecting
    late.hang_up()
    waiting.callback(Admitted((EMAIL,)))
    rig.intake.answer = None
    half.send(whole[-5:])
    for connection in (half, working):
        [response] = connection.responses()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert connection.transport.disconnecting
    for connection in (idle, half, working):
        assert done == []
        connection.hang_up()
    assert done == [None]


# What is logged


def test_access_log_has_no_secrets_and_no_addresses() -> None:
    rig = Rig()
    with capturedLogs() as logs:
        rig.request("POST", "/emails", GOOD)
        rig.request("GET", "/contacts/a%40example.com?token=ms_full")
    lines: list[dict[str, Any]] = [dict(event) for event in logs]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [("POST", "/emails", 200), ("GET", "/contacts/*", 404)]
    for private in ("ms_full", "example", "token"):
        assert private not in str(lines).replace(str(lines[0]["log_logger"]), "")
