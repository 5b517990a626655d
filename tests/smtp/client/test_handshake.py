"""The way to a connection that is ready for mail: greeting, EHLO, STARTTLS, AUTH (5321 §3.1–3.2, 3207, 4954)."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import GreetingRefused, Login, LoginRefused, TlsFailed
from tests.smtp.peer import GREETING, PIPELINING, PLAIN, Peer

OK = "250 2.0.0 ok"
GO = "354 go ahead"


# Set-up


def test_the_way_to_ready() -> None:
    peer = Peer()
    assert peer.hears() == b"", "5321 §3.1: the server speaks first"
    peer.says(GREETING)
    assert peer.hears() == b"EHLO me.example\r\n"
    peer.says(*PIPELINING)
    (offers,) = peer.fate
    assert offers.pipelining and offers.size_limit == 1_000_000 and offers.name == "mx.example.org"
    assert peer.courier.usable and peer.courier.offers is offers
    assert peer.wire.no_delay


@pytest.mark.parametrize("code", [500, 502])
def test_helo_for_a_server_that_does_not_know_ehlo(code: int) -> None:
    peer = Peer().says(GREETING).says(f"{code} what?")
    assert peer.hears().endswith(b"HELO me.example\r\n")
    peer.says("250 mx.example.org")
    assert peer.fate[0].extended is False
    peer.hears()
    peer.deliver(size=10, eight_bit=False)
    assert peer.hears() == b"MAIL FROM:<b@example.net>\r\n"


@pytest.mark.parametrize("code", [421, 450, 501, 504, 530, 550, 554])
def test_a_refused_ehlo_is_no_reason_for_helo(code: int) -> None:
    peer = Peer().says(GREETING).says(f"{code} 5.7.1 policy" if code > 499 else f"{code} later")
    assert b"HELO" not in peer.hears().replace(b"EHLO", b"")
    assert isinstance(peer.fate[0], GreetingRefused)
    assert peer.fate[0].reply.code == code
    assert not peer.courier.usable


def test_a_refused_helo() -> None:
    peer = Peer().says(GREETING).says("502 what?").says("550 no")
    assert isinstance(peer.fate[0], GreetingRefused)


@pytest.mark.parametrize(
    ("line", "goodbye"), [("554 5.3.2 no", b"QUIT\r\n"), ("421 4.3.2 later", b""), ("450 wait", b"QUIT\r\n"), ("354 eh", b"QUIT\r\n")]
)
def test_a_refused_greeting(line: str, goodbye: bytes) -> None:
    peer = Peer().says(line)
    (error,) = peer.fate
    assert isinstance(error, GreetingRefused)
    assert error.reply.code == int(line[:3])
    assert f"S: {line}" in error.transcript
    assert peer.hears() == goodbye
    assert peer.wire.disconnecting


def test_a_greeting_of_five_lines() -> None:
    peer = Peer().says("220-one", "220-two", "220-three", "220-four")
    assert peer.hears() == b""
    peer.says("220 five")
    assert peer.hears() == b"EHLO me.example\r\n"


# TLS policy and credentials (the handshake itself: test_client_tls)


def test_tls_is_used_when_it_is_offered() -> None:
    peer = Peer(tls="opportunistic", host="mx.example.org").says(GREETING).says("250-mx", "250 starttls")
    assert peer.hears().endswith(b"STARTTLS\r\n")
    assert peer.wire.secured is None
    peer.says("220 go")
    assert peer.wire.secured is not None
    assert peer.hears() == b"", "nothing before the handshake is over"


def test_clear_text_when_tls_is_not_offered_or_refused() -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says(*PLAIN)
    assert peer.courier.usable
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("454 4.7.0 not now")
    assert not peer.courier.usable  # until the server has shown that it did not hang up over it
    peer.says("250-mx", "250 STARTTLS")
    assert peer.courier.usable and peer.courier.tls is None
    assert peer.hears() == b"EHLO me.example\r\nSTARTTLS\r\nEHLO me.example\r\n"


@pytest.mark.parametrize("end", ["closes", "waits", "says nonsense"])
def test_a_session_that_ends_over_a_refused_starttls_failed_at_tls_and_shows_the_reply(end: str) -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("454 4.7.0 not now")
    if end == "closes":
        peer.closes()
    elif end == "waits":
        peer.waits(1000)
    else:
        peer.says("what?")
    assert isinstance(peer.fate[0], TlsFailed)
    assert peer.fate[0].reason.startswith("STARTTLS was refused: 454 4.7.0 not now; then ")


@pytest.mark.parametrize(
    "answer", [PLAIN, ("500 what?", "250 mx"), ("250-mx", "250 STARTTLS", "454 4.7.0 not now"), ("250-mx", "250 STARTTLS", "554 no")]
)
def test_required_tls_is_never_left_out(answer: tuple[str, ...]) -> None:
    peer = Peer(tls="required").says(GREETING)
    for line in answer:
        peer.says(line)
    assert isinstance(peer.fate[0], TlsFailed)
    assert not peer.courier.usable


def test_a_server_that_leaves_at_starttls() -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("421 bye")
    assert isinstance(peer.fate[0], GreetingRefused)


def test_a_transport_without_tls() -> None:
    peer = Peer(tls="opportunistic")
    peer.wire.startTLS = None  # type: ignore[method-assign]
    peer.says(GREETING).says("250-mx", "250 STARTTLS").says("220 go")
    assert isinstance(peer.fate[0], TlsFailed)


def test_credentials_are_sent_inside_tls_only() -> None:
    peer = Peer(login=Login("user", "secret")).says(GREETING).says("250-mx", "250 AUTH PLAIN")
    assert isinstance(peer.fate[0], TlsFailed)
    assert b"AUTH" not in peer.hears()


@pytest.mark.parametrize("reply", ["235 2.7.0 welcome", "535 5.7.8 no", "334 "])
def test_credentials_are_nowhere_to_read(reply: str) -> None:
    peer = Peer(login=Login("user", "secret"))
    peer.courier.tls = "TLSv1.3"  # as after a handshake
    peer.says(GREETING).says("250-mx", "250 AUTH PLAIN")
    assert peer.hears().endswith(b"AUTH PLAIN AHVzZXIAc2VjcmV0\r\n")
    peer.says(reply)
    if reply.startswith("235"):
        result = peer.deliver()
        peer.says("250 ok").says("250 ok").says("550 no")
        transcript = result[0].transcript
    else:
        assert isinstance(peer.fate[0], LoginRefused)
        transcript = peer.fate[0].transcript
    assert "C: AUTH PLAIN (credentials)" in transcript
    everything = transcript + repr(peer.fate[0]) + str(peer.fate[0]) + repr(peer.courier._login)
    assert "secret" not in everything and "AHVz" not in everything


def test_a_server_without_auth_plain() -> None:
    peer = Peer(login=Login("user", "secret"))
    peer.courier.tls = "TLSv1.3"
    peer.says(GREETING).says("250-mx", "250 AUTH GSSAPI")
    assert isinstance(peer.fate[0], LoginRefused)
