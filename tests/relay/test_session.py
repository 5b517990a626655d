"""Logins, connection limits, recipients, and the reply for each refusal."""

from __future__ import annotations

from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.intake import Busy, OtherRequest, Rejected
from mailsvc.mail import return_path
from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.policy import Refusal
from mailsvc.relay.connection_limits import ConnectionLimits, LoginFailures, client_network
from mailsvc.relay.inbound import InboundMail
from mailsvc.smtp.server.extensions import NO_RCPT_PARAMETERS
from mailsvc.smtp.server.session import Envelope
from mailsvc.store.people.api_keys import Caller, Moved, digest
from mailsvc.store.postgres.errors import Contention, DataRejected, OutOfResources, StatementFailed, TimedOut, Unavailable
from tests.relay.harness import ACCOUNT, KEY, ME, OTHER, SECRET, SUSPENDED, TOKEN, RelayRig

EMAIL = UUID(int=7)


def test_both_permissions_can_log_in() -> None:
    for token in (TOKEN, OTHER):
        assert RelayRig().logged_in(token).mail(ME + b"\r\nx\r\n").startswith("250 2.0.0 Ok: queued as ")


def test_a_domain_may_follow_the_user_name() -> None:
    client = RelayRig().connect("465")
    client.client.protocol.session.tls = {"version": "TLSv1.3", "cipher": "X"}
    client.command("EHLO me")
    assert client.login(TOKEN, "mailsvc@example.com").startswith("235")
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")


@pytest.mark.parametrize(
    ("token", "user", "reply"),
    [
        ("ms_unknown", "mailsvc", "535 5.7.8 Authentication credentials invalid"),
        ("not a key", "mailsvc", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "somebody", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "@example.com", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "somebody@example.com", "535 5.7.8 Authentication credentials invalid"),
        (TOKEN, "mailsvc@example.com@example.com", "535 5.7.8 Authentication credentials invalid"),
        (SUSPENDED, "mailsvc", "525 5.7.13 The account is suspended"),
        (SUSPENDED, "somebody", "535 5.7.8 Authentication credentials invalid"),
    ],
)
def test_failed_logins(token: str, user: str, reply: str) -> None:
    client = RelayRig().connect("465")
    client.client.protocol.session.tls = {"version": "TLSv1.3", "cipher": "X"}
    client.command("EHLO me")
    assert client.login(token, user) == reply
    assert client.command("MAIL FROM:<a@b.example>").startswith("530 5.7.0")


def test_a_key_of_an_account_that_has_moved_is_a_temporary_failure() -> None:
    rig = RelayRig()
    rig.keys.elsewhere |= {digest("ms_moved"): Moved("eu_1"), digest("ms_arriving"): Moved(None)}
    for _ in range(10):  # none of them counts as a failed login
        client = rig.connect("465")
        client.client.protocol.session.tls = {}
        client.command("EHLO me")
        assert client.login("ms_moved") == "454 4.7.0 The account of this API key has moved to another cell, try again later"
        assert client.login("ms_arriving") == "454 4.7.0 Temporary authentication failure"
        client.disconnect()
    client = rig.connect("465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235")


def test_a_session_is_closed_if_the_account_moves_during_it() -> None:
    for moved, reply in ((Moved("eu_1"), "421 4.3.2 The account has moved"), (Moved(None), "451 4.3.0"), (None, "550 5.7.1")):
        rig = RelayRig()
        client = rig.logged_in(TOKEN)
        assert client.mail(ME + b"\r\nx\r\n").startswith("250")
        del rig.keys.callers[digest(TOKEN)]
        rig.keys.elsewhere = {} if moved is None else {digest(TOKEN): moved}
        assert client.command("MAIL FROM:<a@b.example>").startswith(reply)
        assert client.closed is (reply[:3] == "421")


def test_a_key_is_refused_in_another_network_than_its_own() -> None:
    rig = RelayRig()
    rig.keys.callers[digest("ms_far")] = Caller(ACCOUNT, UUID(int=5), "full_access", None, None, networks=("203.0.113.0/24",))
    rig.keys.callers[digest("ms_near")] = Caller(ACCOUNT, UUID(int=6), "full_access", None, None, networks=("0.0.0.0/0", "::/0"))
    for token, reply in (("ms_far", "535 5.7.8 This API key cannot be used from your network"), ("ms_near", "235 2.7.0")):
        client = rig.connect("465")
        client.client.protocol.session.tls = {}
        client.command("EHLO me")
        assert client.login(token).startswith(reply)


def test_an_unavailable_key_store_is_a_temporary_failure() -> None:
    rig = RelayRig()
    rig.keys.error = Unavailable("away")
    client = rig.connect("465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(TOKEN) == "454 4.7.0 Temporary authentication failure"
    rig.keys.error = None
    assert client.login(TOKEN).startswith("235")


def test_five_failed_logins_a_minute_from_one_address() -> None:
    rig = RelayRig()

    def login(token: str, address: str = "192.0.2.1") -> str:
        client = rig.connect("465", address)
        client.client.protocol.session.tls = {}
        client.command("EHLO me")
        reply = client.login(token)
        assert client.closed == reply.startswith("421")
        client.disconnect()
        return reply

    assert [login("ms_unknown")[:9] for _ in range(6)] == ["535 5.7.8"] * 5 + ["421 4.7.0"]
    assert login("not a key").startswith("421 4.7.0")
    assert login(TOKEN).startswith("235"), "another client with the same address is not locked out"
    assert login("ms_unknown").startswith("421 4.7.0")
    assert login("ms_unknown", "192.0.2.2").startswith("535")
    rig.clock.advance(61)
    assert login("ms_unknown").startswith("535")


def test_a_revoked_key_cannot_send() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")
    rig.keys.callers.clear()
    assert client.mail(ME + b"\r\nx\r\n") == "550 5.7.1 The API key is no longer valid"


@pytest.mark.parametrize("late", ["revoked", "suspended", "moved"])
def test_a_key_that_is_revoked_during_a_message_cannot_send_it(late: str) -> None:
    rig = RelayRig()
    client = rig.logged_in()
    for line in ("MAIL FROM:<me@example.com>", "RCPT TO:<you@example.net>", "DATA"):
        assert client.command(line)[0] in "23"
    caller = rig.keys.callers.pop(digest(TOKEN))
    if late == "suspended":
        rig.keys.callers[digest(TOKEN)] = attrs.evolve(caller, suspended=True)
    if late == "moved":
        rig.keys.elsewhere[digest(TOKEN)] = Moved("eu_2")
    code = {"revoked": "550 5.7.1", "suspended": "525 5.7.13", "moved": "451 4.3.0"}[late]
    assert client.send(ME + b"\r\nx\r\n.\r\n").startswith(code)
    assert rig.intake.emails == []


@pytest.mark.parametrize("host", ["192.0.2.1", "10.1.2.3"])
def test_a_new_plan_applies_to_open_sessions(host: str) -> None:
    """Also to those of a trusted network."""
    rig = RelayRig()
    client = rig.logged_in() if host == "192.0.2.1" else rig.connect(host=host)
    client.command("EHLO me")
    rig.keys.callers[digest(TOKEN)] = Caller(ACCOUNT, KEY, "full_access", None, None, plan="tiny", ramp=10)
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")
    rig.keys.callers[digest(TOKEN)] = Caller(ACCOUNT, KEY, "full_access", None, None, plan="big")
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")
    client.disconnect()
    assert [(caller.plan, caller.ramp) for caller in rig.intake.callers] == [("tiny", 10), ("big", None)]
    assert len(rig.relay.per_key) == 0


def test_connection_limits() -> None:
    rig = RelayRig()
    lines = [rig.logged_in() for _ in range(2)]
    third = rig.connect()
    third.command("EHLO me")
    third.command("STARTTLS")
    third.command("EHLO me")
    assert third.login(TOKEN).startswith("421 4.7.0 Too many connections with this API key") and third.closed
    fourth = [rig.connect(host="192.0.2.1") for _ in range(2)]
    assert fourth[0].greeting.startswith("220") and fourth[1].greeting.startswith("421 4.7.0 Too many connections from your address")
    more = [rig.connect(host=f"192.0.2.{n}") for n in range(2, 5)]
    assert [each.greeting[:9] for each in more] == ["220 mx.te", "220 mx.te", "421 4.3.2"]
    for client in (*lines, fourth[0], *more):
        client.disconnect()
    assert len(rig.relay.per_address) == len(rig.relay.per_key) == 0
    rig.logged_in()


def test_broken_connections_release_everything() -> None:
    rig = RelayRig()
    for n in range(2000):
        client = rig.connect("587" if n % 2 else "25")
        client.send((b"", b"EHLO a\r\nSTARTT", b"EHLO a\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<postmaster>\r\nDATA\r\nx")[n % 3])
        client.disconnect()
    assert len(rig.relay.per_address) == rig.budget.used == 0 and not rig.clock.getDelayedCalls()
    assert rig.logged_in().mail(ME + b"\r\nx\r\n").startswith("250")


def test_an_ipv6_address_counts_as_its_network() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff") != client_network("2001:db8:0:1::1")
    assert client_network("::ffff:192.0.2.1") == "192.0.2.1" and client_network("fe80::1%eth0") == "fe80::/64" and client_network("") == ""


def test_mail_over_the_rate_limit_is_deferred() -> None:
    rig = RelayRig(rate=2)
    client = rig.logged_in()
    assert [client.mail(ME + b"\r\nx\r\n")[:9] for _ in range(3)] == ["250 2.0.0", "250 2.0.0", "451 4.7.1"]
    rig.clock.advance(1)
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
    rig = RelayRig()
    client = rig.logged_in()
    rig.intake.answer = answer
    assert client.mail(ME + b"\r\nx\r\n").startswith(reply)
    rig.intake.answer = None
    assert client.mail(ME + b"\r\nx\r\n").startswith("250 2.0.0 Ok: queued as ")
    assert rig.budget.used == 0


def test_recipients_that_are_refused() -> None:
    client = RelayRig().logged_in()
    client.command("MAIL FROM:<>")
    assert client.command("RCPT TO:<a@[192.0.2.1]>").startswith("550 5.1.2")
    assert client.command("RCPT TO:<postmaster>").startswith("550 5.1.2")
    assert client.command("RCPT TO:<a@localhost>").startswith("554 5.1.2")
    assert client.command("RCPT TO:<a@example.net>").startswith("250 2.1.5")


def test_sessions_are_logged() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.mail(ME + b"\r\nthe body\r\n")
    client.command("RCPT TO:<a@b.example>")
    rig.clock.advance(5)
    client.command("QUIT")
    [(account, receipt)] = rig.sessions.entries
    assert account == ACCOUNT and (receipt.mails, receipt.refusals, receipt.tls) == (1, 1, "TLSv1.3 TLS_AES_256_GCM_SHA384")
    assert (receipt.closed_at - receipt.opened_at).total_seconds() >= 5
    text = receipt.transcript or ""
    assert "S: 503 5.5.1" in text and "C: AUTH PLAIN\n" in text and text.endswith("C: QUIT\nS: 221 2.0.0 Bye")
    assert "the body" not in text and TOKEN not in text
    unauthenticated = rig.connect()
    unauthenticated.command("EHLO me", "QUIT")
    assert len(rig.sessions.entries) == 1


def test_the_stop_does_not_wait_for_a_log_whose_storing_failed_unexpectedly(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, storing = RelayRig(), Deferred[None]()
    monkeypatch.setattr(rig.sessions, "add", lambda *_: storing)
    rig.logged_in().command("QUIT")
    stopped = Deferred.fromCoroutine(rig.relay.session_log.stop())
    assert not stopped.called
    storing.errback(MemoryError())
    assert stopped.called


# The port for other mail servers

PATH = return_path.make("send.example.com", 1, EMAIL, SECRET)


def test_return_paths_accept_mail_without_a_login() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"Subject: bounce\r\n\r\nGr\xfc\xdfe\r\n", PATH.upper(), sender="").startswith("250 2.0.0")
    [mail] = rig.returned
    assert (mail.sender, mail.message) == ("", b"Subject: bounce\r\n\r\nGr\xfc\xdfe\r\n") and mail.paths[0][1:] == (1, EMAIL)
    assert not rig.intake.emails


def test_a_bounce_that_a_customers_server_sends_with_its_login_is_taken() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    bounce = b"From: MAILER-DAEMON@mx.customer.example\r\nSubject: bounce\r\n\r\nx\r\n"
    assert client.mail(bounce, PATH, sender="") == "250 2.0.0 Accepted"
    assert [mail.message for mail in rig.returned] == [bounce] and not rig.intake.emails
    for recipients, sender in (((PATH, "a@example.net"), ""), (("a@example.net", PATH), ""), ((PATH,), "me@example.com")):
        assert client.mail(ME + b"\r\nx\r\n", *recipients, sender=sender).startswith("250 2.0.0 Ok: queued")
    assert len(rig.returned) == 1


@pytest.mark.parametrize(
    "recipient",
    [PATH.replace("b-a", "b-b", 1), "a@example.net", "b-@send.example.com", "postmaster@example.net", "abuse@send.example.com", "root"],
)
def test_other_recipients_are_refused(recipient: str) -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"x\r\n", recipient, sender="").startswith(("550 5.1.1", "501 5.1.3"))
    assert not rig.returned


def test_without_consumers_inbound_mail_is_refused() -> None:
    client = RelayRig(late=False).connect("25")
    client.command("HELO mx.other.example")
    assert client.mail(b"x\r\n", PATH).startswith("550 5.1.1")
    assert client.command("RCPT TO:<postmaster>").startswith("550 5.1.1")


@pytest.mark.parametrize("recipient", ["postmaster", "Postmaster@mx.test", "ABUSE@MX.test", "Postmaster@Send.example.com"])
def test_postmaster_mail_is_forwarded(recipient: str) -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"help\r\n", recipient, PATH).startswith("250")
    assert [mail.message for mail in rig.forwarded] == [b"help\r\n"] and len(rig.returned) == 1
    assert [(mail.client, mail.name, mail.protocol) for mail in rig.forwarded] == [("192.0.2.1", "mx.other.example", "ESMTP")]


def test_the_name_of_a_client_may_have_any_letters() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    assert client.command("EHLO Büro-PC").startswith("250")
    assert client.mail(b"help\r\n", "postmaster").startswith("250")
    assert [mail.name for mail in rig.forwarded] == ["B\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}ro-PC"]


def test_a_recipient_that_is_given_again_counts_once() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    again = (PATH, PATH.upper(), "postmaster", "Postmaster", "abuse@mx.test", "ABUSE@mx.test")
    assert client.mail(b"x\r\n", *again * 15, sender="").startswith("250")
    assert [len(mail.paths) for mail in rig.returned] == [1]
    assert [[each.lower() for each in mail.recipients] for mail in rig.forwarded] == [["postmaster", "abuse@mx.test"]]


def test_an_envelope_of_a_stranger_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of an envelope counts against a budget."""
    rig = RelayRig()
    envelopes: list[Envelope] = []
    refusal = InboundMail.refusal

    def noted(inbound: InboundMail, envelope: Envelope, path: Path) -> Reply | None:
        envelopes.append(envelope)
        return refusal(inbound, envelope, path)

    monkeypatch.setattr(InboundMail, "refusal", noted)
    client = rig.connect("25")
    client.command("EHLO mx.other.example", "MAIL FROM:<>")
    rcpt = f"RCPT TO:<{PATH}> NOTIFY=FAILURE ORCPT=rfc822;{'o' * 480}"
    assert [client.command(rcpt)[:9] for _ in range(101)] == [*["250 2.1.5"] * 100, "452 4.5.3"]
    assert {each.parameters for each in envelopes[-1].recipients} == {NO_RCPT_PARAMETERS}
    assert client.command("RCPT TO:<postmaster> NOTIFY=SOMETIMES").startswith("452")
    client.command("RSET", "MAIL FROM:<>")
    assert client.command("RCPT TO:<postmaster> NOTIFY=SOMETIMES").startswith("555 5.5.4")


def test_customers_can_name_more_recipients_than_strangers() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    assert client.mail(ME + b"\r\nx\r\n", *(f"a{number}@example.net" for number in range(101))).startswith("250")


def test_a_mail_has_few_return_paths() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    paths = [return_path.make("send.example.com", 1, UUID(int=number), SECRET) for number in range(11)]
    client.command("MAIL FROM:<>")
    assert [client.command(f"RCPT TO:<{path}>")[:9] for path in paths] == [*["250 2.1.5"] * 10, "452 4.5.3"]
    assert [client.command(f"RCPT TO:<{each}>")[:9] for each in (paths[0], "postmaster")] == ["250 2.1.5"] * 2
    client.command("DATA")
    assert client.send(b"x\r\n.\r\n").startswith("250")
    assert [len(mail.paths) for mail in rig.returned] == [10]


def test_nothing_is_forwarded_while_the_mail_has_to_be_sent_again() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    rig.failure = Unavailable("away")
    assert [client.mail(b"x\r\n", "postmaster", PATH)[:9] for _ in range(2)] == ["451 4.3.0"] * 2 and not rig.forwarded
    client.command("RSET", "MAIL FROM:<>")
    assert client.command("RCPT TO:<postmaster@send.example.com>").startswith("451 4.3.0"), "whose host it is cannot be looked up"
    client.command("RSET")
    rig.failure = None
    assert client.mail(b"x\r\n", "postmaster", PATH).startswith("250") and len(rig.forwarded) == 1


def test_a_bounce_that_cannot_be_stored_is_deferred() -> None:
    rig = RelayRig()
    rig.failure = Unavailable("away")
    client = rig.connect("25")
    client.command("EHLO mx.other.example")
    assert client.mail(b"x\r\n", PATH).startswith("451 4.3.0")


def test_customers_can_use_port_25() -> None:
    rig = RelayRig()
    client = rig.connect("25")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("538 5.7.11")
    client.command("STARTTLS")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235")
    assert client.mail(ME + b"\r\nx\r\n", "a@example.net").startswith("250 2.0.0 Ok: queued as ")


def test_a_shutdown_lets_bodies_finish() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com>", "RCPT TO:<a@example.net>", "DATA")
    stopped = Deferred.fromCoroutine(client.client.factory.stop())
    assert client.send(ME + b"\r\nx\r\n.\r\n").split("\r\n")[0].startswith("250 2.0.0 Ok: queued as ")
    assert client.command("NOOP").startswith("421")
    client.disconnect()
    assert stopped.called and rig.intake.emails
    assert next(r.transcript for _, r in rig.sessions.entries).endswith("S: 421 4.3.2 Server is shutting down")  # type: ignore[union-attr]


def test_counters_release_memory() -> None:
    rig = RelayRig()
    failures, limits = LoginFailures(rig.clock, 2), ConnectionLimits(1)
    failures.add("a")
    rig.clock.advance(40)
    failures.add("a")
    assert failures.exceeded("a") and not failures.exceeded("b")
    rig.clock.advance(30)
    assert not failures.exceeded("a")
    assert limits.enter("a") and not limits.enter("a") and limits.enter("b")
    limits.leave("a")
    assert limits.enter("a") and len(limits) == 2
