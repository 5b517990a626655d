"""What hostile servers do, from the connection to the end of the message, and what recipients and destinations show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Factory

from mailsvc.delivery.connection.dial import dialer
from mailsvc.delivery.connection.tls_policy import DialOptions
from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from tests.delivery.test_loopback import Site, named, script
from tests.dnsserver import after
from tests.smtp.listener import Certificate, Listener, Server

_NO_SENDER = {"RCPT": "503 5.5.1 MAIL first", "DATA": "503 5.5.1 MAIL first"}

# what the server says instead → the outcome, and a part of its reason
VECTORS: dict[str, tuple[dict[str, str], type, str]] = {
    "no greeting, a close": ({"greeting": "drop"}, Later, "gave no session"),
    "greeting 554": ({"greeting": "554 5.7.1 go away"}, Later, "answered 554"),
    "greeting 421": ({"greeting": "421 4.3.2 later"}, Later, "answered 421"),
    "greeting of five lines": ({"greeting": "220-a\r\n220-b\r\n220-c\r\n220-d\r\n220 e"}, Delivered, ""),
    "greeting of one endless line": ({"greeting": "220 " + "x" * 1_000_000}, Later, "gave no session"),
    "two codes in one greeting": ({"greeting": "220-a\r\n554 b"}, Later, "gave no session"),
    "a four-digit code": ({"greeting": "2200 mx"}, Later, "gave no session"),
    "no greeting but nonsense": ({"greeting": "SSH-2.0-OpenSSH"}, Later, "gave no session"),
    "a greeting in eight bits": ({"greeting": "220 mäil"}, Delivered, ""),
    "no EHLO": ({"EHLO": "502 5.5.1 what", "HELO": "250 mx"}, Delivered, ""),
    "endless offers": ({"EHLO": "\r\n".join(["250-X"] * 5000)}, Later, "gave no session"),
    "STARTTLS refused": ({"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 4.7.0 not now"}, Delivered, ""),
    "MAIL refused for good": ({"MAIL": "550 5.7.1 not from you", **_NO_SENDER}, Bounced, "5.7.1"),
    "MAIL refused for now": ({"MAIL": "451 4.3.0 later", **_NO_SENDER}, Later, "451"),
    "552 to RCPT": ({"RCPT": "552 5.5.3 too many"}, Later, "552"),
    "450 to RCPT": ({"RCPT": "450 4.2.1 greylisted"}, Later, "450"),
    "250 to DATA": ({"DATA": "250 done"}, Later, ""),
    "421 to DATA": ({"DATA": "421 4.3.2 closing"}, Later, "421"),
    "550 to the dot": ({"dot": "550 5.7.1 spam"}, Bounced, "5.7.1"),
    "451 to the dot": ({"dot": "451 4.7.1 later"}, Later, "451"),
    "421 to the dot": ({"dot": "421 4.3.2 closing"}, Later, "421"),
    "a close after the dot": ({"dot": "drop"}, Uncertain, "may or may not"),
    "a message larger than it takes": ({"EHLO": "250-mx\r\n250 SIZE 10"}, Bounced, ""),
}


@pytest.mark.parametrize("name", VECTORS)
@pytest_twisted.ensureDeferred
async def test_the_outcome_of_a_server_that(name: str) -> None:
    replies, kind, part = VECTORS[name]
    site = Site()
    site.listen("127.0.0.1", script(**replies))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    outcome: Any = site.store.last(1)
    assert isinstance(outcome, kind), outcome
    assert part in (getattr(outcome, "reason", "") or getattr(outcome, "reply", ""))
    waits = isinstance(outcome, Later | Uncertain)
    assert bool(site.store.rows) == waits
    if waits:
        assert outcome.next_at > site.store.now
    await site.stop()


@pytest.mark.parametrize("name", ["no greeting, a close", "greeting 554", "greeting 421", "two codes in one greeting"])
@pytest_twisted.ensureDeferred
async def test_the_next_host_is_tried_after(name: str) -> None:
    site = Site()
    site.listen("127.0.0.1", script(**VECTORS[name][0]))
    site.listen("127.0.0.2", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"), (20, "mx2", "127.0.0.2"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert isinstance(site.store.last(1), Delivered)
    await site.stop()


# What a server does, and what a mail has come to a moment later.
_OFFERS = "250-mx\r\n250 STARTTLS"


def _half_close(server: Server) -> None:
    server.say("250 mx")
    server.transport.loseWriteConnection()


_ENDS: dict[str, tuple[bytes, Callable[[Server], Any], type, str]] = {
    "421 behind the offers": (b"EHLO", lambda server: server.say("250 mx", "421 4.3.2 busy"), Later, "answered 421 4.3.2 busy"),
    "250 behind the offers": (b"EHLO", lambda server: server.say("250 mx", "250 stray"), Later, "unexpected reply: 250 stray"),
    "all replies at the greeting": (
        b"CONNECT",
        lambda server: server.say("220 mx", "250 mx", "250 ok", "354 go"),
        Later,
        "unexpected reply: 250 mx",
    ),
    "a reply of two lines at the greeting": (
        b"CONNECT",
        lambda server: server.say("220 mx", "250-mx", "250 PIPELINING"),
        Later,
        "unexpected reply: 250 mx PIPELINING.",
    ),
    "a half-closed connection": (b"EHLO", _half_close, Later, "closed"),
    "a close behind the offers": (b"EHLO", lambda server: (server.say("250 mx"), server.transport.loseConnection()), Later, "closed"),
    "a reset at MAIL": (b"MAIL", lambda server: server.transport.abortConnection(), Later, "lost"),
    "550 to MAIL and a close": (
        b"MAIL",
        lambda server: (server.say("550 5.7.1 not you"), server.transport.loseConnection()),
        Bounced,
        "answered 550 5.7.1 not you",
    ),
    "454 to STARTTLS and a close": (
        b"STARTTLS",
        lambda server: (server.say("454 4.7.0 not now"), server.transport.loseConnection()),
        Delivered,
        "",
    ),
    "no reply to STARTTLS but a close": (b"STARTTLS", lambda server: server.transport.loseConnection(), Delivered, ""),
    "garbage at STARTTLS": (b"STARTTLS", lambda server: server.say("what?"), Delivered, ""),
    "a close in the handshake": (b"STARTTLS", lambda server: (server.say("220 go"), server.transport.loseConnection()), Delivered, ""),
}
_INSIDE_TLS: dict[str, tuple[bytes, Callable[[Server], Any], str]] = {
    "a close at EHLO": (b"EHLO", lambda server: server.transport.loseConnection(), "closed"),
    "a reset at EHLO": (b"EHLO", lambda server: server.transport.abortConnection(), "lost"),
    "421 to EHLO": (b"EHLO", lambda server: server.say("421 4.3.2 busy"), "answered 421 4.3.2 busy"),
    "421 behind EHLO": (b"EHLO", lambda server: server.say("250 mx", "421 4.3.2 busy"), "answered 421 4.3.2 busy"),
    "250 behind EHLO": (b"EHLO", lambda server: server.say("250 mx", "250 stray"), "unexpected reply: 250 stray"),
    "garbage at EHLO": (b"EHLO", lambda server: server.say("what?"), "not an SMTP reply"),
    "421 to MAIL": (b"MAIL", lambda server: server.say("421 4.3.2 busy"), "answered 421 4.3.2 busy"),
    "a close at MAIL": (b"MAIL", lambda server: server.transport.loseConnection(), "closed"),
}


def served(site: Site, listener: Listener) -> None:
    factory = Factory()
    factory.noisy = False
    factory.buildProtocol = lambda _address: Server(listener)  # type: ignore[assignment, method-assign]
    site.open("127.0.0.1", factory)
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")


@pytest.mark.parametrize("name", _ENDS)
@pytest_twisted.ensureDeferred
async def test_a_session_that_ends_is_recorded_and_not_retried_at_once(name: str) -> None:
    place, action, kind, part = _ENDS[name]
    site, listener = Site(), Listener()
    listener.actions[place] = action
    if place == b"STARTTLS":
        listener.actions[b"EHLO"] = lambda server: server.say(_OFFERS)
    served(site, listener)
    await site.start()
    await site.until(lambda: site.store.outcomes)
    outcome: Any = site.store.last(1)
    assert isinstance(outcome, kind), outcome
    assert part in (getattr(outcome, "reason", "") or getattr(outcome, "reply", ""))
    await after(site.reactor, 0.2)
    assert len(listener.servers) <= 2
    assert len(site.store.settled) == 1
    await site.stop()


@pytest.mark.parametrize("name", _INSIDE_TLS)
@pytest_twisted.ensureDeferred
async def test_a_session_that_ends_inside_tls_is_recorded_and_not_retried_at_once(name: str, tmp_path: Any) -> None:
    place, action, part = _INSIDE_TLS[name]
    site, listener = Site(), Listener().use(Certificate.make(tmp_path))
    usual = {b"EHLO": lambda server: server.say(_OFFERS)}
    listener.actions[place] = lambda server: action(server) if server.secured else usual.get(place, lambda _: None)(server)
    served(site, listener)
    await site.start()
    await site.until(lambda: site.store.outcomes)
    outcome: Any = site.store.last(1)
    assert isinstance(outcome, Later), outcome
    assert part in outcome.reason
    await after(site.reactor, 0.2)
    assert len(listener.servers) <= 2
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_expect_ehlo_inside_tls_gets_its_mail_without_tls(tmp_path: Any) -> None:
    site, listener = Site(), Listener().use(Certificate.make(tmp_path))
    listener.actions[b"EHLO"] = lambda server: server.say("503 5.5.1 once is enough" if server.secured else _OFFERS)
    served(site, listener)
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert isinstance(site.store.last(1), Delivered)
    assert len(listener.servers) == 2
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_cancelled_dial_does_not_try_the_next_host_or_no_tls() -> None:
    site = Site()
    site.listen("127.0.0.1", script(greeting="silence"))
    site.listen("127.0.0.2", script(EHLO=_OFFERS, STARTTLS="silence"))
    for address in ("127.0.0.1", "127.0.0.2"):
        dial = dialer(site.reactor, "out.example", 2)
        dialing: Deferred[Any] = Deferred.fromCoroutine(dial(address, site.port, "mx.example.com", DialOptions(ourselves=True)))  # type: ignore[arg-type]
        await after(site.reactor, 0.05)
        dialing.cancel()
        with pytest.raises(CancelledError):
            await dialing
    for port in site.ports:
        await port.stopListening()
