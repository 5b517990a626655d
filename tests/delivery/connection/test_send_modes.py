"""Which hosts get mail by BDAT and with PIPELINING: the setting, the provider's rules, and how it worked before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.delivery import shaping
from mailsvc.delivery.connection.send_modes import SendModes
from mailsvc.delivery.shaping import BadRules, Provider, Shaping
from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.session import Limits, Listener, Session
from tests.delivery.fakes import MESSAGE, DeliveryRig, lost, number, taken
from tests.delivery.test_loopback import Site, named, script
from tests.smtp.harness import Recorder

OFFERED = "250-mx\r\n250-CHUNKING\r\n250 PIPELINING"


# Who decides


def mode(modes: SendModes, host: str = "mx1.example", destination: str = "mx.example") -> str:
    return modes.mode(destination, host, True)


def test_the_setting_turns_chunking_off() -> None:
    assert mode(SendModes(Clock(), True)) == "together"
    assert mode(SendModes(Clock(), False)) == "data"


def test_an_unproven_destination_gets_no_message_before_its_rcpt_replies() -> None:
    assert SendModes(Clock(), True).mode("mx.example", "mx.example", False) == "bdat"


def test_a_providers_rule_turns_chunking_off() -> None:
    rules = shaping.read({"provider": {"big": {"match": [".big.example"], "chunking": False}, "small": {"match": [".small.example"]}}})
    modes = SendModes(Clock(), True, rules)
    assert mode(modes, destination="big/mx.big.example") == "data"
    assert mode(modes, destination="small/mx.small.example") == "together"


def test_a_bad_chunking_rule_is_refused() -> None:
    with pytest.raises(BadRules, match="chunking = 0; expected true or false"):
        shaping.read({"provider": {"big": {"match": [".big.example"], "chunking": 0}}})


@pytest.mark.parametrize(("learn", "instead"), [(SendModes.unchunked, "data"), (SendModes.unpipelined, "single")])
def test_a_host_without_a_working_extension_gets_mail_without_it_for_an_hour(learn: Callable[[SendModes, str], None], instead: str) -> None:
    clock = Clock()
    modes = SendModes(clock, True)
    learn(modes, "mx1.example")
    assert (mode(modes), mode(modes, "mx2.example")) == (instead, "together")
    clock.advance(3599)
    assert mode(modes) == instead
    clock.advance(1)
    assert mode(modes) == "together"


def test_the_number_of_remembered_hosts_is_limited() -> None:
    modes = SendModes(Clock(), True)
    for host in range(10_001):
        modes.unchunked(f"mx{host}.example")
    assert [mode(modes, f"mx{host}.example") for host in (0, 1, 10_000)] == ["together", "data", "data"]


NOT_BIG = Shaping({"big": Provider("big", (".com",), chunking=False)})


@pytest.mark.parametrize(
    ("setting", "rules", "modes"),
    [(False, shaping.NO_RULES, ["data"] * 2), (True, NOT_BIG, ["data"] * 2), (True, shaping.NO_RULES, ["bdat", "together"])],
)
def test_the_client_is_told_the_mode(setting: bool, rules: Shaping, modes: list[str]) -> None:
    rig = DeliveryRig(rules, chunking=setting)
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    rig.store.add(2, "bob@example.com")
    rig.run(2)
    assert server.modes == modes


# A host that offers it and does not know it


def test_an_unknown_bdat_costs_no_attempt_even_after_a_dead_connection() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    answers = [{"stale": True}, {"stale": True, "unchunked": True}]
    server.answer = lambda envelope: attrs.evolve(lost(envelope, "no"), **answers.pop(0)) if answers else taken(envelope)
    rig.store.add(2, "bob@example.com", destination="mx.example.com")
    rig.run(2)
    assert rig.store.outcomes[number(2), 0] == [Delivered("250 2.0.0 queued")]
    assert server.modes == ["bdat", "together", "together", "data"]


def test_a_host_without_working_pipelining_gets_one_command_at_a_time() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: attrs.evolve(lost(envelope, "no reply"), unpipelined=True)
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    server.answer = taken
    rig.store.add(2, "bob@example.com")
    rig.run(2)
    assert server.modes == ["bdat", "single"]


def test_a_host_that_takes_mail_keeps_pipelining() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    server.answer = lambda envelope: attrs.evolve(lost(envelope, "no reply"), unpipelined=True)
    rig.store.add(2, "bob@example.com")
    rig.run(2)
    server.answer = taken
    rig.store.add(3, "bob@example.com")
    rig.run(2)
    assert server.modes == ["bdat", "together", "together"]


@pytest_twisted.ensureDeferred
async def test_a_server_that_rejects_bdat_gets_data() -> None:
    site = Site()
    site.listen("127.0.0.1", script(EHLO=OFFERED, BDAT="502 5.5.1 not implemented"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    for email in (1, 2, 3):
        site.store.add(email, "bob@example.com")
    await site.start(connections_max=1, connections_initial=1)
    await site.until(lambda: len(site.store.outcomes) == 3)
    assert all(outcomes == [Delivered("250 2.0.0 taken")] for outcomes in site.store.outcomes.values())
    assert len(site.mails["127.0.0.1"]) == 3
    assert all(settled.attempt is not None and "C: DATA" in settled.attempt.transcript for settled in site.store.settled)
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_refused_recipient_bounces_with_its_own_reply() -> None:
    site = Site()
    site.listen("127.0.0.1", script(EHLO=OFFERED, RCPT="550 5.1.1 no such user here", BDAT="503 5.5.1 no recipients"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert site.store.last(1) == Bounced("550 5.1.1 no such user here", suppress=True)
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_connection_closed_after_bdat_is_uncertain_and_the_retry_uses_data() -> None:
    site = Site()
    site.listen("127.0.0.1", script(EHLO=OFFERED, BDAT="drop"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert isinstance(site.store.last(1), Uncertain)
    site.store.add(2, "bob@example.com")
    await site.until(lambda: len(site.store.outcomes) == 2)
    assert site.store.last(2) == Delivered("250 2.0.0 taken")
    await site.stop()


# The whole way, to a receiver of our own


@pytest_twisted.ensureDeferred
async def test_our_own_server_gets_mail_in_one_round_trip() -> None:
    recorders: list[Recorder] = []

    def welcome(session: Session) -> Recorder:
        recorders.append(Recorder(session))
        return recorders[-1]

    site = Site()
    receivers: Any = ServerFactory(Listener("mx.test", Limits(unauthenticated_bytes=None, tarpit=0)), welcome, site.reactor)
    site.open("127.0.0.1", receivers)
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    for email in range(1, 6):
        site.store.add(email, "bob@example.com")
    site.store.add(6, "unknown@example.com")
    await site.start()
    await site.until(lambda: len(site.store.outcomes) == 6)
    assert all(isinstance(site.store.last(email), Delivered) for email in range(1, 6))
    assert isinstance(site.store.last(6), Bounced)
    bodies = [mail.body for recorder in recorders for mail in recorder.mails]
    assert len(bodies) == 5 and all(body.startswith(b"DKIM-Signature: ") and body.endswith(MESSAGE) for body in bodies)
    assert all(settled.attempt is not None and "C: BDAT" in settled.attempt.transcript for settled in site.store.settled)
    await site.stop()
