"""From the connection to a client that is ready for mail: greeting, EHLO, STARTTLS, AUTH (RFC 5321 §3.1, 3207, 4954)."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import GreetingRefused, Login, LoginRefused, TlsFailed
from tests.smtp.fake_server import GREETING, PIPELINING, PLAIN, FakeServer

OK = "250 2.0.0 ok"
GO = "354 go ahead"


# Set-up


def test_a_handshake_without_tls() -> None:
    server = FakeServer()
    assert server.received() == b"", "5321 §3.1: the server speaks first"
    server.reply(GREETING)
    assert server.received() == b"EHLO me.example\r\n"
    server.reply(*PIPELINING)
    (capabilities,) = server.ready_result
    assert capabilities.pipelining and capabilities.size_limit == 1_000_000 and capabilities.name == "mx.example.org"
    assert server.client.usable and server.client.capabilities is capabilities
    assert server.wire.no_delay


@pytest.mark.parametrize("code", [500, 502])
def test_helo_for_a_server_that_does_not_know_ehlo(code: int) -> None:
    server = FakeServer().reply(GREETING).reply(f"{code} what?")
    assert server.received().endswith(b"HELO me.example\r\n")
    server.reply("250 mx.example.org")
    assert server.ready_result[0].extended is False
    server.received()
    server.deliver(size=10, eight_bit=False)
    assert server.received() == b"MAIL FROM:<b@example.net>\r\n"


@pytest.mark.parametrize("code", [421, 450, 501, 504, 530, 550, 554])
def test_helo_is_not_sent_after_a_refused_ehlo(code: int) -> None:
    server = FakeServer().reply(GREETING).reply(f"{code} 5.7.1 policy" if code > 499 else f"{code} later")
    assert b"HELO" not in server.received().replace(b"EHLO", b"")
    assert isinstance(server.ready_result[0], GreetingRefused)
    assert server.ready_result[0].reply.code == code
    assert not server.client.usable


def test_a_refused_helo() -> None:
    server = FakeServer().reply(GREETING).reply("502 what?").reply("550 no")
    assert isinstance(server.ready_result[0], GreetingRefused)


@pytest.mark.parametrize(
    ("line", "goodbye"), [("554 5.3.2 no", b"QUIT\r\n"), ("421 4.3.2 later", b""), ("450 wait", b"QUIT\r\n"), ("354 eh", b"QUIT\r\n")]
)
def test_a_refused_greeting(line: str, goodbye: bytes) -> None:
    server = FakeServer().reply(line)
    (error,) = server.ready_result
    assert isinstance(error, GreetingRefused)
    assert error.reply.code == int(line[:3])
    assert f"S: {line}" in error.transcript
    assert server.received() == goodbye
    assert server.wire.disconnecting


def test_a_greeting_of_five_lines() -> None:
    server = FakeServer().reply("220-one", "220-two", "220-three", "220-four")
    assert server.received() == b""
    server.reply("220 five")
    assert server.received() == b"EHLO me.example\r\n"


# TLS policy and credentials (the handshake itself: test_client_tls)


def test_tls_is_used_if_announced() -> None:
    server = FakeServer(tls="opportunistic", host="mx.example.org").reply(GREETING).reply("250-mx", "250 starttls")
    assert server.received().endswith(b"STARTTLS\r\n")
    assert server.wire.secured is None
    server.reply("220 go")
    assert server.wire.secured is not None
    assert server.received() == b"", "nothing is received before the handshake ends"


def test_clear_text_if_tls_is_not_announced_or_refused() -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply(*PLAIN)
    assert server.client.usable
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("454 4.7.0 not now")
    assert not server.client.usable  # until the server has shown that it did not hang up over it
    server.reply("250-mx", "250 STARTTLS")
    assert server.client.usable and server.client.tls is None
    assert server.received() == b"EHLO me.example\r\nSTARTTLS\r\nEHLO me.example\r\n"


@pytest.mark.parametrize("end", ["closes", "waits", "says nonsense"])
def test_a_close_after_a_refused_starttls_is_a_tls_failure(end: str) -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("454 4.7.0 not now")
    if end == "closes":
        server.close()
    elif end == "waits":
        server.advance(1000)
    else:
        server.reply("what?")
    assert isinstance(server.ready_result[0], TlsFailed)
    assert server.ready_result[0].reason.startswith("STARTTLS was refused: 454 4.7.0 not now; then ")


@pytest.mark.parametrize(
    "answer", [PLAIN, ("500 what?", "250 mx"), ("250-mx", "250 STARTTLS", "454 4.7.0 not now"), ("250-mx", "250 STARTTLS", "554 no")]
)
def test_required_tls_is_enforced(answer: tuple[str, ...]) -> None:
    server = FakeServer(tls="required").reply(GREETING)
    for line in answer:
        server.reply(line)
    assert isinstance(server.ready_result[0], TlsFailed)
    assert not server.client.usable


def test_a_421_to_starttls() -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("421 bye")
    assert isinstance(server.ready_result[0], GreetingRefused)


def test_a_transport_without_tls() -> None:
    server = FakeServer(tls="opportunistic")
    server.wire.startTLS = None  # type: ignore[method-assign]
    server.reply(GREETING).reply("250-mx", "250 STARTTLS").reply("220 go")
    assert isinstance(server.ready_result[0], TlsFailed)


def test_credentials_are_sent_inside_tls_only() -> None:
    server = FakeServer(login=Login("user", "secret")).reply(GREETING).reply("250-mx", "250 AUTH PLAIN")
    assert isinstance(server.ready_result[0], TlsFailed)
    assert b"AUTH" not in server.received()


@pytest.mark.parametrize("reply", ["235 2.7.0 welcome", "535 5.7.8 no", "334 "])
def test_credentials_are_not_logged(reply: str) -> None:
    server = FakeServer(login=Login("user", "secret"))
    server.client.tls = "TLSv1.3"  # as after a handshake
    server.reply(GREETING).reply("250-mx", "250 AUTH PLAIN")
    assert server.received().endswith(b"AUTH PLAIN AHVzZXIAc2VjcmV0\r\n")
    server.reply(reply)
    if reply.startswith("235"):
        result = server.deliver()
        server.reply("250 ok").reply("250 ok").reply("550 no")
        transcript = result[0].transcript
    else:
        assert isinstance(server.ready_result[0], LoginRefused)
        transcript = server.ready_result[0].transcript
    assert "C: AUTH PLAIN (credentials)" in transcript
    everything = transcript + repr(server.ready_result[0]) + str(server.ready_result[0]) + repr(server.client._login)
    assert "secret" not in everything and "AHVz" not in everything


def test_a_server_without_auth_plain() -> None:
    server = FakeServer(login=Login("user", "secret"))
    server.client.tls = "TLSv1.3"
    server.reply(GREETING).reply("250-mx", "250 AUTH GSSAPI")
    assert isinstance(server.ready_result[0], LoginRefused)
