"""Logins, connection limits, recipients, and the reply for each refusal."""

from __future__ import annotations

from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from mailsvc.intake import Busy, OtherRequest, Rejected
from mailsvc.mail import return_path
from mailsvc.policy import Refusal
from mailsvc.relay.connection_limits import ConnectionLimits, LoginFailures, client_network
from mailsvc.store.postgres.errors import Contention, DataRejected, OutOfResources, StatementFailed, TimedOut, Unavailable
from tests.relay.harness import ACCOUNT, ME, OTHER, SECRET, SUSPENDED, TOKEN, World

EMAIL = UUID(int=7)


def test_both_permissions_can_log_in() -> None:
    for token in (TOKEN, OTHER):
        assert World().logged_in(token).mail(ME + b"\r\nx\r\n").startswith("250 2.0.0 Queued as ")


@pytest.mark.parametrize(
    ("token", "user", "reply"),
    [
        ("ms_unknown", "mailsvc", "535 5.7.8 Authentication credentials invalid"),
        ("not a key", "mailsvc", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "somebody", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "", "535 5.7.8 Authentication credentials invalid"),
        (SUSPENDED, "mailsvc", "525 5.7.13 The account is suspended"),
        (SUSPENDED, "somebody", "535 5.7.8 Authentication credentials invalid"),
    ],
)
def test_failed_logins(token: str, user: str, reply: str) -> None:
    client = World().connect("465")
    client.client.protocol.session.tls = {"version": "TLSv1.3", "cipher": "X"}
    client.command("EHLO me")
    assert client.login(token, user) == reply
    assert client.command("MAIL FROM:<a@b.example>").startswith("530 5.7.0")


def test_an_unavailable_key_store_is_a_temporary_failure() -> None:
    world = World()
    world.keys.error = Unavailable("away")
    client = world.connect("465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(TOKEN) == "454 4.7.0 Temporary authentication failure"
    world.keys.error = None
    assert client.login(TOKEN).startswith("235")


def test_five_failed_logins_a_minute_from_one_address() -> None:
    world = World()
    for _ in range(5):
        client = world.connect("465")
        client.client.protocol.session.tls = {}
        client.command("EHLO me")
        assert client.login("ms_unknown").startswith("535")
        client.disconnect()
    client = world.connect("465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("421 4.7.0") and client.closed
    other = world.connect("465", "192.0.2.2")
    other.client.protocol.session.tls = {}
    other.command("EHLO me")
    assert other.login(TOKEN).startswith("235")
    world.clock.advance(61)
    world.logged_in()


def test_a_revoked_key_cannot_send() -> None:
    world = World()
    client = world.logged_in()
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")
    world.keys.callers.clear()
    assert client.mail(ME + b"\r\nx\r\n") == "550 5.7.1 The API key is no longer valid"


def test_connection_limits() -> None:
    world = World()
    lines = [world.logged_in() for _ in range(2)]
    third = world.connect()
    third.command("EHLO me")
    third.command("STARTTLS")
    third.command("EHLO me")
    assert third.login(TOKEN).startswith("421 4.7.0 Too many connections with this API key") and third.closed
    fourth = [world.connect(host="192.0.2.1") for _ in range(2)]
    assert fourth[0].greeting.startswith("220") and fourth[1].greeting.startswith("421 4.7.0 Too many connections from your address")
    more = [world.connect(host=f"192.0.2.{n}") for n in range(2, 5)]
    assert [each.greeting[:9] for each in more] == ["220 mx.te", "220 mx.te", "421 4.3.2"]
    for client in (*lines, fourth[0], *more):
        client.disconnect()
    assert len(world.relay.per_address) == len(world.relay.per_key) == 0
    world.logged_in()


def test_broken_connections_release_everything() -> None:
    world = World()
    for n in range(2000):
        client = world.connect("587" if n % 2 else "25")
        client.send((b"", b"EHLO a\r\nSTARTT", b"EHLO a\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<postmaster>\r\nDATA\r\nx")[n % 3])
        client.disconnect()
    assert len(world.relay.per_address) == world.budget.used == 0 and not world.clock.getDelayedCalls()
    assert world.logged_in().mail(ME + b"\r\nx\r\n").startswith("250")


def test_an_ipv6_address_counts_as_its_network() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff") != client_network("2001:db8:0:1::1")
    assert client_network("::ffff:192.0.2.1") == "192.0.2.1" and client_network("fe80::1%eth0") == "fe80::/64" and client_network("") == ""


def test_mail_over_the_rate_limit_is_deferred() -> None:
    world = World(rate=2)
    client = world.logged_in()
    assert [client.mail(ME + b"\r\nx\r\n")[:9] for _ in range(3)] == ["250 2.0.0", "250 2.0.0", "451 4.7.1"]
    world.clock.advance(1)
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (Unavailable("away"), "451 4.3.0"),
        (Unavailable("away", unknown=True), "451 4.3.0"),
        (TimedOut("slow"), "451 4.3.0"),
        (Contention("40P01", "deadlock"), "451 4.3.0"),
        (OutOfResources("53100", "disk full"), "452 4.3.1"),
        (OutOfResources("58030", "I/O error"), "451 4.3.0"),
        (StatementFailed("42P01", "no such table"), "451 4.3.0"),
        (DataRejected("22021"), "550 5.6.0"),
        (RuntimeError("a bug"), "451 4.3.0"),
        (Busy(), "451 4.3.0"),
        (OtherRequest(), "550 5.7.1"),
        (Rejected({0: Refusal("domain", "from", "Not yours.")}), "550 5.7.1 Not yours."),
        (Rejected({0: Refusal("key", "from", "Not this key's.")}), "550 5.7.1 Not this key's."),
        (Rejected({0: Refusal("size", None, "Too big.")}), "552 5.3.4 Too big."),
        (Rejected({0: Refusal("content", None, "No.")}), "550 5.6.0 No."),
    ],
)
def test_each_refusal_of_intake_has_a_reply(answer: object, reply: str) -> None:
    world = World()
    client = world.logged_in()
    world.intake.answer = answer
    assert client.mail(ME + b"\r\nx\r\n").startswith(reply)
    world.intake.answer = None
    assert client.mail(ME + b"\r\nx\r\n").startswith("250 2.0.0 Queued as ")
    assert world.budget.used == 0


def test_recipients_that_are_refused() -> None:
    client = World().logged_in()
    client.command("MAIL FROM:<>")
    assert client.command("RCPT TO:<a@[192.0.2.1]>").startswith("550 5.1.2")
    assert client.command("RCPT TO:<postmaster>").startswith("550 5.1.2")
    assert client.command("RCPT TO:<a@localhost>").startswith("554 5.1.2")
    assert client.command("RCPT TO:<a@example.net>").startswith("250 2.1.5")


def test_sessions_are_logged() -> None:
    world = World()
    client = world.logged_in()
    client.mail(ME + b"\r\nthe body\r\n")
    client.command("RCPT TO:<a@b.example>")
    world.clock.advance(5)
    client.command("QUIT")
    [(account, receipt)] = world.sessions.entries
    assert account == ACCOUNT and (receipt.mails, receipt.refusals, receipt.tls) == (1, 1, "TLSv1.3 TLS_AES_256_GCM_SHA384")
    assert (receipt.closed_at - receipt.opened_at).total_seconds() >= 5
    text = receipt.transcript or ""
    assert "S: 503 5.5.1" in text and "C: AUTH PLAIN\n" in text and text.endswith("C: QUIT\nS: 221 2.0.0 Bye")
    assert "the body" not in text and TOKEN not in text
    stranger = world.connect()
    stranger.command("EHLO me", "QUIT")
    assert len(world.sessions.entries) == 1


# The port for other mail servers

PATH = return_path.make("send.example.com", 1, EMAIL, SECRET)


def test_return_paths_accept_mail_without_a_login() -> None:
    world = World()
    client = world.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"Subject: bounce\r\n\r\nGr\xfc\xdfe\r\n", PATH.upper(), sender="").startswith("250 2.0.0")
    [mail] = world.returned
    assert (mail.sender, mail.message) == ("", b"Subject: bounce\r\n\r\nGr\xfc\xdfe\r\n") and mail.paths[0][1:] == (1, EMAIL)
    assert not world.intake.emails


@pytest.mark.parametrize(
    "recipient", [PATH.replace("b-a", "b-b", 1), "a@example.net", "b-@send.example.com", "postmaster@example.net", "root"]
)
def test_other_recipients_are_refused(recipient: str) -> None:
    world = World()
    client = world.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"x\r\n", recipient, sender="").startswith(("550 5.1.1", "501 5.1.3"))
    assert not world.returned


def test_without_consumers_inbound_mail_is_refused() -> None:
    client = World(late=False).connect("25")
    client.command("HELO mx.other.example")
    assert client.mail(b"x\r\n", PATH).startswith("550 5.1.1")
    assert client.command("RCPT TO:<postmaster>").startswith("550 5.1.1")


@pytest.mark.parametrize("recipient", ["postmaster", "Postmaster@mx.test", "ABUSE@MX.test"])
def test_postmaster_mail_is_forwarded(recipient: str) -> None:
    world = World()
    client = world.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"help\r\n", recipient, PATH).startswith("250")
    assert [mail.message for mail in world.forwarded] == [b"help\r\n"] and len(world.returned) == 1


def test_a_bounce_that_cannot_be_stored_is_deferred() -> None:
    world = World()
    world.failure = Unavailable("away")
    client = world.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"x\r\n", PATH).startswith("451 4.3.0")


def test_customers_can_use_port_25() -> None:
    world = World()
    client = world.connect("25")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("538 5.7.11")
    client.command("STARTTLS")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235")
    assert client.mail(ME + b"\r\nx\r\n", "a@example.net").startswith("250 2.0.0 Queued as ")


def test_a_shutdown_lets_bodies_finish() -> None:
    world = World()
    client = world.logged_in()
    client.command("MAIL FROM:<me@example.com>", "RCPT TO:<a@example.net>", "DATA")
    stopped = Deferred.fromCoroutine(client.client.factory.stop())
    assert client.send(ME + b"\r\nx\r\n.\r\n").split("\r\n")[0].startswith("250 2.0.0 Queued as ")
    assert client.command("NOOP").startswith("421")
    client.disconnect()
    assert stopped.called and world.intake.emails
    assert next(r.transcript for _, r in world.sessions.entries).endswith("S: 421 4.3.2 Server is shutting down")  # type: ignore[union-attr]


def test_counters_release_memory() -> None:
    world = World()
    failures, limits = LoginFailures(world.clock, 2), ConnectionLimits(1)
    failures.add("a")
    world.clock.advance(40)
    failures.add("a")
    assert failures.exceeded("a") and not failures.exceeded("b")
    world.clock.advance(30)
    assert not failures.exceeded("a")
    assert limits.enter("a") and not limits.enter("a") and limits.enter("b")
    limits.leave("a")
    assert limits.enter("a") and len(limits) == 2
