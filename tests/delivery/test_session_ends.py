"""Every way in which a session can end before a mail, between mails and within one.

Whatever a server does, it is connected to a bounded number of times a minute, each attempt is counted and says what happened, and
the mail arrives once the server works.
"""

from __future__ import annotations

from typing import Any

import pytest

from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from tests.delivery.fakes import START, number
from tests.delivery.wires import Does, Script, WiredRig

OFFERS = {
    "plain": b"250 mx\r\n",
    "pipelining": b"250-mx\r\n250 PIPELINING\r\n",
    "chunking": b"250-mx\r\n250-PIPELINING\r\n250 CHUNKING\r\n",
}
ADDRESS = "8.1.0.1"
A_MINUTE = 12  # connections to a destination that does not work: one when it was let rest, three under mail, and again for retries

# How a session may end: what the server does instead of its reply, or right behind it.
INSTEAD: dict[str, Does] = {
    "close": "close",
    "reset": "reset",
    "silence": "silence",
    "garbage": b"\xff\xfe\x00 what?\r\n",
    "a NUL": b"2\x0050 ok\r\n",
    "421": (b"421 4.3.2 busy\r\n", "close"),
    "half a line": (b"25", "close"),
    "half a reply": (b"250-mx\r\n", "close"),
    "half a line and silence": b"25",
    "code 0": b"000 ok\r\n",
    "code 199": b"199 ok\r\n",
    "code 650": b"650 ok\r\n",
    "two digits": b"25 ok\r\n",
    "four digits": b"2500 ok\r\n",
    "two codes": b"250-ok\r\n550 no\r\n",
    "an endless line": b"250 " + b"x" * 100_000,
    "endless lines": b"250-more\r\n" * 5000,
    "an empty line": b"\r\n",
}
BEHIND: dict[str, Does] = {
    "421 in the same segment": b"421 4.3.2 busy\r\n",
    "421 and a close": (b"421 4.3.2 busy\r\n", "close"),
    "250 in the same segment": b"250 stray\r\n",
    "354 in the same segment": b"354 stray\r\n",
    "550 in the same segment": b"550 5.7.1 stray\r\n",
    "all replies at once": b"250 mx\r\n" * 3 + b"354 go\r\n250 queued\r\n221 bye\r\n",
    "half a line": b"25",
    "half a reply": b"250-mo\r\n",
    "garbage": b"\xff\xfe what?\r\n",
}


def behind(reply: bytes, more: Does) -> Does:
    """All bytes in one segment."""
    steps = more if isinstance(more, tuple) else (more,)
    return (reply + steps[0], *steps[1:]) if isinstance(steps[0], bytes) else (reply, *steps)


def play(rig: WiredRig, emails: int, hours: float = 1.0) -> None:
    for email in range(1, emails + 1):
        rig.store.add(email, f"r{email}@broken.example", expires=30 * 86400.0)
    rig.start()
    rig.run(hours * 3600)


def another(rig: WiredRig, email: int, *, seconds: float) -> None:
    rig.store.add(email, "b@broken.example")
    rig.delivery.wake()
    rig.run(seconds)


def all_outcomes(rig: WiredRig) -> list[Any]:
    return [outcome for outcomes in rig.store.outcomes.values() for outcome in outcomes]


def check(rig: WiredRig, host: Any, emails: int, *, seconds: float = 3600.0) -> None:
    """The number of connections is bounded, the reason is recorded, and mail is delivered once the server works."""
    assert host.most_in_a_minute() <= A_MINUTE, host.dials[:50]
    outcomes = all_outcomes(rig)
    assert outcomes, "there is no outcome"
    assert all(isinstance(outcome, Later | Uncertain) for outcome in outcomes), outcomes
    assert all(outcome.reason and outcome.reason[0] != "{" for outcome in outcomes)
    assert len(outcomes) >= len(host.dials) / 8, "connections that nobody hears of"
    rows = rig.store.rows.values()
    assert sum(row.leased.attempts for row in rows) == len(outcomes)
    assert len(rig.store.hold_rows) == 1 or len(host.dials) < 12 * emails
    host.script = Script(EHLO=host.script.does["works"])
    host.dials.clear()
    for _ in range(12 * 6):
        rig.run(600)
        if not rig.store.rows:
            break
    delivered = [rig.store.last(email) for email in range(1, emails + 1)]
    assert all(isinstance(outcome, Delivered) for outcome in delivered), delivered
    assert host.most_in_a_minute() <= A_MINUTE
    assert not rig.store.rows


PLACES = ("greeting", "EHLO", "MAIL", "RCPT", "DATA", "message")


@pytest.mark.parametrize("offers", OFFERS)
@pytest.mark.parametrize("how", INSTEAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_session_that_ends_instead_of_a_reply(place: str, how: str, offers: str) -> None:
    if place == "DATA" and offers == "chunking":
        place = "else"  # to MAIL and RCPT alike, since there is no DATA
    if place == "greeting" and offers != "plain":
        pytest.skip("nothing has been offered yet")
    if place == "message" and how in ("half a reply", "two codes", "an endless line", "endless lines"):
        pytest.skip("the first line is enough there")
    rig = WiredRig()
    does: dict[str, Does] = {"EHLO": OFFERS[offers], place: INSTEAD[how], "works": OFFERS[offers]}
    host = rig.host("broken.example", ADDRESS, **does)
    play(rig, 3)
    check(rig, host, 3)


@pytest.mark.parametrize("offers", OFFERS)
@pytest.mark.parametrize("how", BEHIND)
@pytest.mark.parametrize("place", ["greeting", "EHLO", "MAIL", "RCPT", "DATA"])
def test_a_session_that_ends_after_a_reply(place: str, how: str, offers: str) -> None:
    if place == "DATA" and offers == "chunking":
        pytest.skip("there is no DATA")
    replies = {"greeting": b"220 mx\r\n", "EHLO": OFFERS[offers], "DATA": b"354 go\r\n"}
    rig = WiredRig()
    does: dict[str, Does] = {"EHLO": OFFERS[offers], "works": OFFERS[offers]}
    does[place] = behind(replies.get(place, b"250 ok\r\n"), BEHIND[how])
    host = rig.host("broken.example", ADDRESS, **does)
    play(rig, 3)
    outcomes = all_outcomes(rig)
    if not any(isinstance(outcome, Delivered | Bounced) for outcome in outcomes):
        check(rig, host, 3)
        return
    # With pipelining nothing tells a stray reply from the one to the next command; and a server may refuse a message at any time.
    assert (place in ("MAIL", "RCPT") and offers != "plain") or how.startswith("354") or (place == "DATA" and how.startswith("550")), (
        outcomes
    )
    assert host.most_in_a_minute() <= A_MINUTE


@pytest.mark.parametrize("pause", [0.005, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("how", ["close", "reset", "421", "250", "half a line"])
def test_a_new_idle_connection_that_ends_costs_no_attempt(how: str, pause: float) -> None:
    """Two connections are opened for two mails. What happens to the one without mail must not cost a mail an attempt."""
    rig = WiredRig(connections_initial=2)
    host = rig.host("broken.example", ADDRESS)
    rig.store.add(1, "a@broken.example")
    rig.start()
    rig.run(1)
    assert isinstance(rig.store.last(1), Delivered)
    lane = next(iter(rig.delivery.lanes))
    wires = [connection.client.transport for connection in lane.connections]  # type: ignore[attr-defined]
    end = {"close": "close", "reset": "reset", "421": b"421 idle\r\n", "250": b"250 stray\r\n", "half a line": b"42"}[how]
    rig.run(pause)
    for wire in wires:
        wire.session._act(end)
    before = len(host.dials)
    rig.store.add(2, "b@broken.example")
    rig.delivery.wake()
    rig.run(2)
    assert isinstance(rig.store.last(2), Delivered), "a connection that lay idle is replaced at once"
    assert rig.store.outcomes[number(2), 0] == [Delivered("250 2.0.0 queued")]
    assert len(host.dials) <= before + 1


@pytest.mark.parametrize("offers", OFFERS)
@pytest.mark.parametrize("how", ["close", "reset", "421", "421 and a close", "250", "half a line", "garbage"])
def test_a_session_that_ends_between_mails_costs_no_attempt(how: str, offers: str) -> None:
    """A server that accepts one mail per connection and then ends it in some way: every mail arrives with one attempt."""
    ends: dict[str, Does] = {
        "close": "close",
        "reset": "reset",
        "421": b"421 one is enough\r\n",
        "421 and a close": (b"421 one is enough\r\n", "close"),
        "250": b"250 stray\r\n",
        "half a line": b"42",
        "garbage": b"what?\r\n",
    }
    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("broken.example", ADDRESS, EHLO=OFFERS[offers], message=behind(b"250 2.0.0 queued\r\n", ends[how]))
    play(rig, 10)
    assert (len(rig.store.outcomes), host.mails) == (10, 10)
    outcomes = [outcome for outcome in all_outcomes(rig) if not isinstance(outcome, Delivered)]
    # A message that went out together with its MAIL, to a server that left at that moment, may have arrived.
    assert not outcomes or (offers == "chunking" and all(isinstance(outcome, Uncertain) for outcome in outcomes))
    assert len(host.dials) <= 11 + len(outcomes)


@pytest.mark.parametrize("offers", OFFERS)
@pytest.mark.parametrize("how", ["close", "reset", "421", "silence", "garbage", "half a line"])
@pytest.mark.parametrize("place", ["MAIL2", "RCPT2", "RSET"])
def test_a_session_that_ends_at_the_second_mail(place: str, how: str, offers: str) -> None:
    does: dict[str, Does] = {"EHLO": OFFERS[offers], place: INSTEAD[how]}
    if place == "RSET":
        does["RCPT1"] = b"550 5.1.1 no such user\r\n"
    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("broken.example", ADDRESS, **does)
    play(rig, 6, hours=24)
    last = [rig.store.last(email) for email in range(1, 7)]
    assert all(isinstance(outcome, Delivered | Bounced) for outcome in last), last
    assert host.most_in_a_minute() <= A_MINUTE
    assert host.mails <= 6 or (offers == "chunking" and how in ("garbage", "half a line"))  # it took a message all the same


@pytest.mark.parametrize("offers", ["plain", "pipelining"])
@pytest.mark.parametrize("place", ["MAIL2", "RSET"])
def test_a_server_that_is_gone_without_a_word_costs_the_next_mail_a_minute_and_no_attempt(place: str, offers: str) -> None:
    """A hung server, or a firewall that has forgotten the connection."""
    does: dict[str, Does] = {"EHLO": OFFERS[offers], place: "silence"}
    if place == "RSET":
        does |= {"RCPT1": b"550 5.1.1 no such user\r\n", "DATA1": b"503 5.5.1 no recipients\r\n"}
    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("broken.example", ADDRESS, **does)
    play(rig, 1, hours=0.001)
    assert len(host.dials) == 1
    another(rig, 2, seconds=59)
    assert number(2) not in {email for email, _ in rig.store.outcomes}
    host.script = Script(EHLO=OFFERS[offers])
    rig.run(2)
    assert rig.store.outcomes[number(2), 0] == [Delivered("250 2.0.0 queued")]
    assert (len(host.dials), rig.store.hold_rows) == (2, {})


@pytest.mark.parametrize("place", ["greeting", "EHLO"])
def test_the_next_host_is_tried_if_a_session_ends_before_a_mail(place: str) -> None:
    rig = WiredRig()
    bad = rig.host("broken.example", ADDRESS, **{place: b"250-mx\r\n250 mx\r\n421 4.3.2 busy\r\n"})
    good = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 3, hours=0.01)
    assert good.mails == 3
    assert len(bad.dials) <= 3
    assert all(outcomes == [Delivered("250 2.0.0 queued")] for outcomes in rig.store.outcomes.values())


@pytest.mark.parametrize("how", ["close", "421", "silence", "451", "garbage"])
@pytest.mark.parametrize("place", ["MAIL", "DATA", "message"])
def test_the_next_host_is_tried_after_a_host_failed_during_a_mail(place: str, how: str) -> None:
    """5321 §5.1: a host that accepts connections only to fail later does not keep mail from the others."""
    rig = WiredRig(connections_initial=1, connections_max=1)
    does: dict[str, Does] = {place: (INSTEAD | {"451": b"451 4.3.0 disk full\r\n"})[how]}
    bad = rig.host("broken.example", ADDRESS, **does)
    good = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 1, hours=1.5)
    outcomes = rig.store.outcomes[number(1), 0]
    # A host that may have the message gets it twice more.
    assert len(outcomes) == (4 if isinstance(outcomes[0], Uncertain) else 2)
    assert isinstance(outcomes[-1], Delivered)
    assert (good.mails, len(bad.dials)) == (1, len(outcomes) - 1)


def test_mail_in_memory_goes_to_the_next_host_after_a_host_failed() -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    bad = rig.host("broken.example", ADDRESS, MAIL="close")
    good = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 5, hours=0.001)
    assert (len(bad.dials), good.mails) == (1, 4)


@pytest.mark.parametrize("place", ["greeting", "EHLO"])
def test_only_one_mail_waits_for_a_host_that_accepts_connections_and_says_nothing(place: str) -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    bad = rig.host("broken.example", ADDRESS, **{place: "silence"})
    good = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 1, hours=0.1)
    assert (good.mails, len(bad.dials)) == (1, 1)
    for email in (2, 3):
        another(rig, email, seconds=60)
    assert (good.mails, len(bad.dials)) == (3, 1)


def test_a_host_that_refuses_connections_stays_the_first_choice() -> None:
    rig = WiredRig(connections_initial=1, connections_max=1)
    first = rig.host("broken.example", ADDRESS, greeting=b"421 4.3.2 busy\r\n")
    second = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 1, hours=0.01)
    first.script = Script()
    another(rig, 2, seconds=60)
    assert (first.mails, second.mails) == (1, 1)


def test_a_host_that_fails_when_its_turn_comes_again_has_to_wait_for_hours() -> None:
    rig = WiredRig()
    first = rig.host("broken.example", ADDRESS, MAIL=INSTEAD["421"])
    second = rig.host("broken.example", "8.1.0.2", preference=20)
    rig.start()
    hours = [0.0, 0.1, 0.2, 0.4, 1.0, 5.0, 5.6, 5.7]
    for email, hour in enumerate(hours, 1):
        rig.run(hour * 3600 - (rig.clock.seconds() - START))
        if hour == 5.0:
            first.script = Script()
        rig.store.add(email, "b@broken.example", expires=30 * 86400.0)
        rig.delivery.wake()
        rig.run(100)
    assert [round((at - START) / 3600, 1) for at in first.dials] == [0.0, 0.4, 5.6, 5.7]
    assert (first.mails, second.mails) == (2, 6)


@pytest.mark.parametrize(
    ("place", "reply"),
    [
        ("RCPT1", b"450 4.7.1 greylisted\r\n"),
        ("RCPT1", b"451 4.3.0 later\r\n"),
        ("RCPT1", b"550 5.1.1 no such user\r\n"),
        ("MAIL1", b"421 4.7.0 too many messages from your IP address\r\n"),
        ("message1", b"451 4.7.1 your message looks like spam\r\n"),
    ],
)
def test_a_host_that_refuses_a_recipient_or_a_sender_has_not_failed(place: str, reply: bytes) -> None:
    rig = WiredRig()
    first = rig.host("broken.example", ADDRESS, **{place: reply})
    second = rig.host("broken.example", "8.1.0.2", preference=20)
    play(rig, 1, hours=0.01)
    first.script = Script()
    another(rig, 2, seconds=60)
    assert (len(second.dials), first.mails > 0) == (0, True)


def test_a_busy_servers_reply_after_ehlo_is_shown() -> None:
    rig = WiredRig()
    rig.host("broken.example", ADDRESS, EHLO=b"250 mx\r\n421 4.3.2 busy, come back later\r\n")
    play(rig, 1, hours=0.01)
    (outcome,) = rig.store.outcomes[number(1), 0]
    assert outcome.reason.startswith(f"mx10.broken.example ({ADDRESS}) answered 421 4.3.2 busy, come back later. ")
    assert outcome.meaning.kind == "system"
    (settlement,) = rig.store.settled
    assert settlement.attempt is not None and "S: 421 4.3.2 busy, come back later" in settlement.attempt.transcript


def test_mails_to_a_broken_destination_share_one_attempt() -> None:
    rig = WiredRig()
    host = rig.host("broken.example", ADDRESS, EHLO=b"250 mx\r\n250 stray\r\n", works=b"250 mx\r\n")
    play(rig, 300, hours=6)
    assert host.most_in_a_minute() <= A_MINUTE
    assert len(host.dials) < 60, "it rests for longer and longer"
    holds = list(rig.store.hold_rows.values())
    assert holds and holds[0].failures > 5


def test_a_server_that_ends_every_other_session_gets_its_mail() -> None:
    class EveryOther(Script):
        pass

    rig = WiredRig(connections_initial=1, connections_max=1)
    host = rig.host("broken.example", ADDRESS)
    good, bad = Script(message=(b"250 2.0.0 queued\r\n", "close")), Script(EHLO=(b"250 mx\r\n421 busy\r\n"))
    dial = rig.dial

    async def alternately(*arguments: Any) -> Any:
        host.script = bad if len(host.dials) % 2 else good
        return await dial(*arguments)

    rig.dial = alternately  # type: ignore[method-assign]
    rig.delivery.lanes._context.connector._dial = alternately  # type: ignore[attr-defined]
    play(rig, 10, hours=12)
    assert host.mails == 10
    assert host.most_in_a_minute() <= A_MINUTE


def test_emails_that_require_tls_share_one_try_at_a_server_without_it() -> None:
    rig = WiredRig()
    rig.sending.tls_required = True
    host = rig.host("broken.example", ADDRESS)
    play(rig, 300, hours=2)
    assert host.most_in_a_minute() <= A_MINUTE
    assert len(host.dials) < 60
    assert len(rig.store.outcomes) == 300 and host.mails == 0
    assert all("does not offer STARTTLS. Verified TLS is required" in outcome.reason for outcome in all_outcomes(rig))
    assert {outcome.meaning.kind for outcome in all_outcomes(rig) if outcome.meaning} == {"tls"}


def test_replies_in_single_bytes_and_odd_replies_are_understood() -> None:
    def in_bytes(text: bytes) -> tuple[bytes, ...]:
        return tuple(text[at : at + 1] for at in range(len(text)))

    rig = WiredRig()
    host = rig.host(
        "broken.example",
        ADDRESS,
        greeting=in_bytes(b"220-mx\r\n220 mx\r\n"),
        EHLO=in_bytes(b"250-mx\n250 8BITMIME\n"),
        MAIL=b"250\r\n",
        RCPT=in_bytes(b"251 2.1.5\tgoes on\r\n"),
        DATA=b"354-go\r\n354\r\n",
        message=in_bytes(b"250-2.0.0 q\x00ueued\r\n250 2.0.0 \xff\r\n"),
    )
    play(rig, 5, hours=0.1)
    assert host.mails == 5
    assert all(isinstance(rig.store.last(email), Delivered) for email in range(1, 6))
    assert all(len(outcomes) == 1 for outcomes in rig.store.outcomes.values())


@pytest.mark.parametrize("offers", ["pipelining", "chunking"])
def test_fewer_replies_than_recipients(offers: str) -> None:
    """Recipients with a reply are settled by it, the others are retried."""
    rig = WiredRig()
    does: dict[str, Does] = {"EHLO": OFFERS[offers], "RCPT2": "silence", "RCPT1": b"550 5.1.1 no such user\r\n"}
    host = rig.host("broken.example", ADDRESS, **does)
    for recipient in range(3):
        rig.store.add(1, f"r{recipient}@broken.example", recipient=recipient)
    rig.start()
    rig.run(320)
    assert isinstance(rig.store.last(1, 0), Bounced)
    for recipient in (1, 2):
        outcome: Any = rig.store.last(1, recipient)
        assert isinstance(outcome, Later) and "timed out waiting for reply to RCPT" in outcome.reason
    assert host.mails == 0
