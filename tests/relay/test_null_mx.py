"""Recipients whose domain accepts no mail are refused at RCPT if DNS answers in time; slow or failing DNS refuses none."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.net.dns import Mx, NxDomain, Records, Temporary
from mailsvc.relay import null_mx
from tests.relay.harness import ME, RelayClient, RelayRig

NULL = Records("no.example", (Mx(0, ""),))
REFUSED = "556 5.1.10 The recipient's domain does not accept mail (null MX)"
OK = "250 2.1.5 Recipient OK"


def begun(rig: RelayRig) -> RelayClient:
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com>")
    return client


def rcpt(client: RelayClient, domain: str) -> str:
    """The replies before any time passes."""
    client.client.protocol.dataReceived(f"RCPT TO:<a@{domain}>\r\n".encode())
    return client.client.received().decode().removesuffix("\r\n")


def test_a_known_null_mx_is_refused_and_the_others_get_the_mail() -> None:
    rig = RelayRig()
    rig.resolver.known["no.example"] = NULL
    client = begun(rig)
    assert [rcpt(client, domain) for domain in ("no.example", "example.net", "NO.example")] == [REFUSED, OK, REFUSED]
    client.command("DATA")
    assert client.send(ME + b"\r\nx\r\n.\r\n").startswith("250 2.0.0 Ok: queued as ")


@pytest.mark.parametrize(
    "found", [Records("x.example", (Mx(0, ""), Mx(10, "mx.example"))), Records("x.example"), NxDomain("x.example"), Temporary("away")]
)
def test_other_domains_are_accepted(found: Any) -> None:
    rig = RelayRig()
    rig.resolver.known["x.example"] = found
    assert rcpt(begun(rig), "x.example") == OK


def test_rcpt_waits_for_the_lookup() -> None:
    rig = RelayRig()
    rig.resolver.pending["no.example"] = []
    client = begun(rig)
    assert rcpt(client, "no.example") == ""
    rig.clock.advance(0.1)
    rig.resolver.pending["no.example"][0].callback(NULL)
    assert client.client.received().decode() == REFUSED + "\r\n"
    assert not client.closed


def test_the_recipients_of_a_mail_share_the_wait() -> None:
    rig = RelayRig()
    rig.resolver.pending |= {"a.example": [], "b.example": [], "c.example": []}
    client = begun(rig)
    assert rcpt(client, "a.example") == ""
    rig.clock.advance(0.2)
    rig.resolver.pending["a.example"][0].callback(Records("a.example", (Mx(10, "mx.example"),)))
    assert client.client.received().decode() == OK + "\r\n"
    assert rcpt(client, "b.example") == ""
    rig.clock.advance(0.06)
    assert client.client.received().decode() == OK + "\r\n"
    assert rcpt(client, "c.example") == OK and rig.resolver.pending["c.example"] == []
    client.command("RSET", "MAIL FROM:<me@example.com>")
    assert rcpt(client, "c.example") == "" and len(rig.resolver.pending["c.example"]) == 1


def test_concurrent_lookups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_mx, "MAX_LOOKUPS", 1)
    rig = RelayRig()
    rig.resolver.pending |= {"a.example": [], "b.example": []}
    first, second = begun(rig), begun(rig)
    assert rcpt(first, "a.example") == ""
    assert rcpt(second, "b.example") == OK
    first.disconnect()
    rig.clock.advance(1)
    assert rcpt(second, "a.example") == ""


def test_a_domain_with_a_route_is_not_looked_up() -> None:
    rig = RelayRig()
    rig.resolver.known["routed.example"] = NULL
    assert rcpt(begun(rig), "routed.example") == OK


def test_unauthenticated_clients_cause_no_lookups() -> None:
    rig = RelayRig()
    rig.resolver.pending["no.example"] = []
    client = rig.connect("25")
    client.command("EHLO me", "MAIL FROM:<a@b.example>")
    assert rcpt(client, "no.example").startswith("550 5.1.1") and rig.resolver.pending["no.example"] == []


def test_a_failed_lookup_accepts_the_recipient() -> None:
    rig = RelayRig()
    waiting: list[Deferred[Any]] = []
    rig.resolver.pending["a.example"] = waiting
    client = begun(rig)
    rcpt(client, "a.example")
    waiting[0].callback(Temporary("away"))
    assert client.client.received().decode() == OK + "\r\n"
