"""What people read about a refusal: the reply, whether the mail is retried, and who has to act."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mailsvc.bounces.diagnosis import known, rules
from mailsvc.delivery.connection.tls_policy import DialOptions
from mailsvc.outcome import Bounced, Delivered
from mailsvc.outcome import Deferred as Later
from tests.delivery.fakes import number
from tests.delivery.wires import Does, WiredRig

AGAIN = "retry automatically"


def outcome_of(email_body: bytes | None = None, expires: float = 86400.0, hours: float = 0.01, **does: Does) -> Any:
    """The last outcome of one mail to a server that behaves like this."""
    rig = WiredRig()
    rig.host("x.example", "8.1.0.1", **does)
    key = rig.store.add(1, "bob@x.example", expires=expires)
    if email_body is not None:
        rig.store.bodies[number(1)] = email_body
    rig.start()
    rig.run(hours * 3600)
    outcome: Any = rig.store.outcomes[key][-1]
    return outcome


PIPELINING = b"250-mx\r\n250 PIPELINING\r\n"


@pytest.mark.parametrize("ehlo", [b"250 mx\r\n", PIPELINING])
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("550 5.7.1 not from you", Bounced),
        ("450 4.1.8 no such sending domain", Later),
        ("530 5.7.0 Must issue a STARTTLS command first", Bounced),
    ],
)
def test_a_refused_mail_command_is_shown_and_acted_on(reply: str, kind: type, ehlo: bytes) -> None:
    """Whether the server closes the connection, or replies to the pipelined recipients."""
    for ways in ({"MAIL": (f"{reply}\r\n".encode(), "close")}, {"MAIL": f"{reply}\r\n".encode()}):
        outcome = outcome_of(EHLO=ehlo, **ways)
        assert isinstance(outcome, kind), outcome
        assert outcome.reason.startswith(f"mx10.x.example answered {reply}. ")
        assert (AGAIN in outcome.reason) is (kind is Later)


@pytest.mark.parametrize("after", [(), ("close",)])
@pytest.mark.parametrize("reply", [b"555 5.5.4 Unsupported option: SIZE\r\n", b"501 Syntax error in parameters\r\n", b"504 no\r\n"])
@pytest.mark.parametrize("ehlo", [b"250-mx\r\n250-PIPELINING\r\n250-SIZE\r\n250 CHUNKING\r\n", b"250-mx\r\n250 SIZE\r\n"])
def test_a_server_that_refuses_the_parameters_that_it_offers_gets_mail_without(ehlo: bytes, reply: bytes, after: tuple[str, ...]) -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("x.example", "8.1.0.1", EHLO=ehlo, **{"MAIL with parameters": (reply, *after)})
    keys = [rig.store.add(number, "bob@x.example") for number in (1, 2)]
    rig.start()
    rig.run(1)
    assert [rig.store.outcomes[key] for key in keys] == [[Delivered("250 2.0.0 queued")]] * 2
    assert host.mails == 2
    assert len(host.dials) == (2 if after else 1)


def test_a_message_in_eight_bits_is_sent_in_seven_if_the_server_refuses_the_parameter_for_it() -> None:
    rig = WiredRig()
    host = rig.host("x.example", "8.1.0.1", EHLO=b"250-mx\r\n250 8BITMIME\r\n", **{"MAIL with parameters": b"501 what is BODY?\r\n"})
    key = rig.store.add(1, "bob@x.example")
    rig.store.bodies[number(1)] = "Subject: x\r\n\r\ngrüß\r\n".encode()
    rig.start()
    rig.run(1)
    assert rig.store.outcomes[key] == [Delivered("250 2.0.0 queued")]
    assert host.mails == 1


def test_a_sender_that_is_refused_with_and_without_parameters_bounces() -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("x.example", "8.1.0.1", EHLO=b"250-mx\r\n250 SIZE\r\n", MAIL=(b"501 Syntax error\r\n", "close"))
    key = rig.store.add(1, "bob@x.example")
    rig.start()
    rig.run(60)
    (outcome,) = rig.store.outcomes[key]
    assert isinstance(outcome, Bounced) and "501 Syntax error" in outcome.reply
    assert len(host.dials) == 2


@pytest.mark.parametrize("starttls", ["close", b"454 4.7.0 TLS not available\r\n"])
def test_a_server_that_requires_tls_after_tls_failed_is_retried(starttls: str | bytes) -> None:
    rig = WiredRig()
    rig.host("x.example", "8.1.0.1", EHLO=b"250-mx\r\n250 STARTTLS\r\n", STARTTLS=starttls, MAIL=b"530 5.7.0 Must issue STARTTLS first\r\n")
    rig.store.add(1, "bob@x.example")
    rig.start()
    rig.run(30)
    outcome = rig.store.last(1)
    assert isinstance(outcome, Later), outcome
    assert "530 5.7.0 Must issue STARTTLS first" in outcome.reason


def test_the_reason_names_both_failures_with_and_without_tls() -> None:
    outcome = outcome_of(EHLO1=b"250-mx\r\n250 STARTTLS\r\n", STARTTLS=(b"454 4.7.0 not now\r\n", "close"), greeting=b"220 mx\r\n")
    assert isinstance(outcome, Delivered)
    rig = WiredRig()
    host = rig.host("x.example", "8.1.0.1", EHLO=b"250-mx\r\n250 STARTTLS\r\n", STARTTLS=(b"454 4.7.0 not now\r\n", "close"))
    dial = rig._real

    async def busy_in_clear(address: str, port: int, name: str, how: DialOptions) -> Any:
        if how.mode == "clear":
            host.script.does["greeting"] = b"421 4.3.2 busy\r\n"
        return await dial(address, port, name, how)

    rig._real = busy_in_clear  # type: ignore[assignment]
    rig.store.add(1, "bob@x.example")
    rig.start()
    rig.run(1)
    reason = rig.store.last(1).reason  # type: ignore[union-attr]
    assert reason.startswith(
        "mx10.x.example (8.1.0.1) failed at TLS: STARTTLS was refused: 454 4.7.0 not now; then the server closed the connection; "
        "without TLS it answered 421 4.3.2 busy. "
    )


@pytest.mark.parametrize("reply", ["554 5.3.0 internal trouble", "550 5.3.5 misconfigured", "554 5.4.1 no route", "452 4.3.1 disk full"])
def test_advice_to_wait_is_given_only_while_the_mail_is_retried(reply: str) -> None:
    outcome = outcome_of(RCPT=f"{reply}\r\n".encode())
    assert isinstance(outcome, Later if reply[0] == "4" else Bounced)
    assert (AGAIN in outcome.reason) is isinstance(outcome, Later)
    assert outcome.meaning is not None and (AGAIN in outcome.meaning.advice) is isinstance(outcome, Later)


def test_the_reason_of_an_expired_mail_promises_no_retry() -> None:
    outcome = outcome_of(RCPT=b"451 4.3.0 trouble\r\n", expires=3600.0, hours=2)
    assert isinstance(outcome, Bounced)
    assert outcome.reply.startswith("Expired after ") and "451 4.3.0 trouble" in outcome.reply
    assert AGAIN not in outcome.reply + outcome.reason


def test_only_the_advice_for_deferred_mail_promises_a_retry() -> None:
    for name, kind in rules().classes.items():
        final, retried = known(name), known(name, retried=True)
        assert final is not None and retried is not None
        assert "retry" not in final.advice
        if kind.suppress or kind.retry_permanent:
            assert AGAIN in retried.advice and "Don't send" not in retried.advice


@pytest.mark.parametrize("reply", ["450 4.2.1 mailbox busy", "450 4.2.1 The mailbox is not taking mail now", "450 4.1.1 no such user yet"])
def test_a_temporary_refusal_does_not_advise_to_stop_sending(reply: str) -> None:
    outcome = outcome_of(RCPT=f"{reply}\r\n".encode())
    assert isinstance(outcome, Later)
    assert "Don't send" not in outcome.reason and AGAIN in outcome.reason
    if "4.2.1" in reply:
        assert outcome.meaning is not None and outcome.meaning.kind == "mailbox_busy"


def test_reasons_found_before_sending_are_not_attributed_to_the_host() -> None:
    outcome = outcome_of(EHLO=b"250-mx\r\n250 SIZE 10\r\n")
    assert isinstance(outcome, Bounced)
    assert outcome.reason.startswith("Not sent to mx10.x.example: The message has ")
    assert "answered" not in outcome.reason
    rig = WiredRig()
    rig.host("x.example", "8.1.0.1")
    rig.store.add(1, "bøb@x.example")
    rig.start()
    rig.run(1)
    outcome = rig.store.last(1)
    assert isinstance(outcome, Bounced)
    assert outcome.reason.startswith("Not sent to mx10.x.example: The server does not support internationalized addresses")


@pytest.mark.parametrize(
    "does",
    [
        {"message": b"451 4.3.0 later\r\n"},
        {"RCPT": b"450 4.7.1 greylisted\r\n"},
        {"RCPT": "close"},
        {"message": "close"},
        {"greeting": b"421 4.3.2 busy\r\n"},
    ],
)
def test_recipients_that_are_deferred_together_are_retried_in_one_transaction(does: dict[str, Does]) -> None:
    rig = WiredRig(random=Random(1).random)
    rig.host("x.example", "8.1.0.1", **does)
    for recipient in range(8):
        rig.store.add(1, f"r{recipient}@x.example", recipient=recipient)
    rig.start()
    rig.run(30)
    assert len({row.next_at for row in rig.store.rows.values()}) == 1


# Greetings


@pytest.mark.parametrize("behind", [(), ("close",)])
def test_recipients_bounce_if_the_host_never_accepts_mail(behind: tuple[str, ...]) -> None:
    """RFC 7504 §3."""
    rig = WiredRig()
    host = rig.host("x.example", "8.1.0.1", greeting=(b"521 mx.example does not accept mail\r\n", *behind))
    for email in range(1, 101):
        rig.store.add(email, f"r{email}@x.example")
    rig.start()
    rig.run(600)
    outcomes = {rig.store.last(email) for email in (1, 50, 100)}
    assert len(outcomes) == 1
    (outcome,) = outcomes
    assert outcome == Bounced("521 mx.example does not accept mail")
    assert isinstance(outcome, Bounced) and not outcome.suppress and outcome.meaning is not None
    assert outcome.meaning.kind == "unroutable"
    assert "answered 521 mx.example does not accept mail. " in outcome.reason and AGAIN not in outcome.reason
    assert len(host.dials) <= 3, "one answer is enough for all of them"


def test_a_521_of_one_host_leaves_the_mail_to_the_others() -> None:
    rig = WiredRig()
    rig.host("x.example", "8.1.0.1", greeting=b"521 no mail here\r\n")
    second = rig.host("x.example", "8.1.0.2", preference=20, greeting=b"421 busy\r\n")
    rig.store.add(1, "bob@x.example")
    rig.start()
    rig.run(30)
    assert isinstance(rig.store.last(1), Later)
    second.script.does["greeting"] = b"220 mx\r\n"
    rig.run(600)
    assert isinstance(rig.store.last(1), Delivered)


def test_a_521_about_our_address_defers() -> None:
    assert isinstance(outcome_of(greeting=b"521 5.7.1 blocked using zen.spamhaus.org\r\n"), Later)


@pytest.mark.parametrize(
    ("greeting", "kind"),
    [
        ("554 No SMTP service here", "system"),
        ("554 5.7.1 Client host [192.0.2.1] blocked using zen.spamhaus.org", "dnsbl"),
        ("421 4.7.0 too many connections from your address", "throttled"),
    ],
)
def test_a_refused_greeting_is_shown_with_its_class_and_defers(greeting: str, kind: str) -> None:
    outcome = outcome_of(greeting=f"{greeting}\r\n".encode())
    assert isinstance(outcome, Later)
    assert outcome.reason.startswith(f"mx10.x.example (8.1.0.1) answered {greeting}. ")
    assert outcome.meaning is not None and outcome.meaning.kind == kind
    assert outcome.reason.endswith(outcome.meaning.advice)


# Many exchangers


def test_the_hosts_of_a_large_destination_are_tried_in_turn() -> None:
    rig = WiredRig()
    for place in range(45):
        rig.host("x.example", f"8.1.0.{place + 1}", preference=place + 1, greeting="close")
    rig.net.hosts["8.1.0.45"].script.does["greeting"] = b"220 mx\r\n"
    key = rig.store.add(1, "bob@x.example")
    rig.start()
    rig.run(30)
    assert "; 25 more hosts are tried at the next attempt. The" in rig.store.outcomes[key][0].reason  # type: ignore[union-attr]
    rig.run(3600)
    assert isinstance(rig.store.last(1), Delivered)
    assert [len(host.dials) for host in rig.net.hosts.values()] == [1] * 45
    assert len(rig.store.outcomes[key]) == 3


def test_an_earlier_mails_reply_on_a_reused_session_is_not_shown() -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    rig.host("x.example", "8.1.0.1", message=(b"250 2.0.0 queued\r\n421 4.3.2 leaving\r\n"))
    for email in range(1, 5):
        rig.store.add(email, f"secret{email}@x.example")
    rig.start()
    rig.run(600)
    for settlement in rig.store.settled:
        assert settlement.attempt is not None
        shown = settlement.attempt.transcript
        assert [f"secret{email}@" in shown for email in range(1, 5)] == [email == settlement.email_id.int for email in range(1, 5)]
