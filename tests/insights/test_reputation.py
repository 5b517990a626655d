"""Reputation facts: returned as far as they are known, and looked up in the background."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.insights.checks.reputation import Listed, Rates, Server
from mailsvc.insights.reputation import HOUR, Reputation
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary
from mailsvc.store.domains.values import Domain, RecordState
from mailsvc.store.events.rollups import Count

NOW = datetime(2026, 5, 20, 12, tzinfo=UTC)
DOMAIN = Domain(
    UUID(int=1), UUID(int=2), "mail.example.com", "r1", "verified", False, "send", ("rsa",), "opportunistic", NOW - timedelta(days=40),
    records=(RecordState("SPF", "TXT", "send.mail.example.com", "v=spf1 -all", True, "verified", message="Correct."),),
    advice=(RecordState("DMARC", "TXT", "_dmarc.mail.example.com", "v=DMARC1; p=none", False, "pending", problem="unanswered"),),
)  # fmt: skip


@attrs.define
class Names:
    """A fake resolver. Unknown names do not exist; `slow` delays every answer."""

    known: dict[tuple[str, str], Any] = attrs.field(factory=dict)
    lookups: list[tuple[str, str]] = attrs.field(factory=list)
    slow: Deferred[None] | None = None

    async def _look(self, kind: str, name: str) -> Any:
        self.lookups.append((kind, name))
        if self.slow is not None:
            await self.slow
        found = self.known.get((kind, name))
        return NxDomain(name) if found is None else found if isinstance(found, Temporary) else Records(name, found)

    async def mx(self, domain: str) -> Any:
        return await self._look("MX", domain)

    async def addresses(self, host: str) -> Any:
        return await self._look("A", host)

    async def ptr(self, address: str) -> Any:
        return await self._look("PTR", address)

    async def txt(self, name: str) -> Any:
        return await self._look("TXT", name)


@attrs.define
class Rollups:
    found: Sequence[Count] = ()

    async def counts(self, account_id: UUID, wanted: Any) -> Sequence[Count]:
        assert (account_id, list(wanted.domains)) == (DOMAIN.account_id, [DOMAIN.id])
        return self.found


def reputation(names: Names, rollups: Rollups | None = None, **changes: Any) -> tuple[Reputation, Clock]:
    clock = Clock()
    clock.advance(NOW.timestamp())
    given: dict[str, Any] = {"identities": [(None, "out.example.net")], "ip_lists": ["zen"], "domain_lists": []} | changes
    return Reputation(names, rollups or Rollups(), clock=clock, **given), clock


OURS = {("A", "out.example.net"): ("8.8.4.1",), ("PTR", "8.8.4.1"): ("OUT.example.net.",)}


def test_facts_are_looked_up_in_the_background_and_cached():
    names = Names(dict(OURS), slow=Deferred())
    found, clock = reputation(names)
    facts, more = found.facts(DOMAIN)
    assert more and facts.servers == () and facts.receives is None and facts.records[0].correct
    before = len(names.lookups)
    assert found.facts(DOMAIN)[1] and len(names.lookups) == before  # not looked up twice
    names.slow.callback(None)  # type: ignore[union-attr]
    facts, more = found.facts(DOMAIN)
    assert not more and facts.servers == (Server("8.8.4.1", "out.example.net", True, ("out.example.net",)),)
    before = len(names.lookups)
    clock.advance(HOUR - 1)
    found.facts(DOMAIN)
    assert len(names.lookups) == before
    clock.advance(1)
    found.facts(DOMAIN)
    assert len(names.lookups) > before


def test_the_records_of_the_last_domain_check_are_included():
    facts, _ = reputation(Names())[0].facts(DOMAIN)
    assert [(one.purpose, one.correct, one.unanswered) for one in facts.records] == [("SPF", True, False), ("DMARC", False, True)]
    assert facts.age_days == 40


def test_whether_the_domain_receives_mail():
    def receives(known: dict[tuple[str, str], Any]) -> tuple[bool | None, bool]:
        facts, _ = reputation(Names(known))[0].facts(DOMAIN)
        return facts.receives, facts.null_mx

    name = DOMAIN.name
    assert receives({("MX", name): (Mx(10, "mx.example.com"),)}) == (True, False)
    assert receives({("MX", name): (Mx(0, ""),)}) == (False, True)
    assert receives({("A", name): ("192.0.2.1",)}) == (True, False)
    assert receives({}) == (False, False)
    assert receives({("MX", name): Temporary("slow")}) == (None, False)
    assert receives({("A", name): Temporary("slow")}) == (None, False)


def test_blocklists_that_refuse_our_queries_or_list_everything_are_ignored():
    listed = {("A", "1.4.8.8.zen"): ("127.0.0.2",)}
    facts, _ = reputation(Names(OURS | listed))[0].facts(DOMAIN)
    assert (facts.listed, facts.blocklists) == ((Listed("8.8.4.1", "zen"),), ("zen",))
    refused = {("A", "1.4.8.8.zen"): ("127.255.255.254",)}
    facts, _ = reputation(Names(OURS | refused))[0].facts(DOMAIN)
    assert (facts.listed, facts.blocklists) == ((), ())
    facts, _ = reputation(Names(dict(OURS)))[0].facts(DOMAIN)
    assert (facts.listed, facts.blocklists) == ((), ("zen",))
    given_up = listed | {("A", "1.0.0.127.zen"): ("127.0.0.2",)}
    facts, _ = reputation(Names(OURS | given_up))[0].facts(DOMAIN)
    assert (facts.listed, facts.blocklists) == ((), ())


def test_linked_hosts_are_looked_up_in_configured_domain_lists():
    names = Names({("A", "bad.test.dbl"): ("127.0.1.2",)})
    found, _ = reputation(names, domain_lists=["dbl"], identities=[])
    assert found.linked(["bad.test", "good.test"]) == ([Listed("bad.test", "dbl")], False)
    facts, _ = found.facts(DOMAIN)
    assert (facts.listed, facts.blocklists) == ((), ("dbl",))  # a link is not a problem of the domain
    slow = Names(slow=Deferred())
    assert reputation(slow, domain_lists=["dbl"], identities=[])[0].linked(["bad.test"]) == ([], True)
    quiet = Names()
    assert reputation(quiet, identities=[])[0].linked(["bad.test"]) == ([], False)
    assert quiet.lookups == []


def test_private_addresses_are_not_checked():
    names = Names({("A", "localhost"): ("127.0.0.1", "192.168.1.1")})
    facts, _ = reputation(names, identities=[(None, "localhost")])[0].facts(DOMAIN)
    assert facts.servers == () and facts.blocklists == ()


def test_a_logo_is_looked_up_at_the_domain_and_its_organization():
    def logo(known: dict[tuple[str, str], Any]) -> bool | None:
        return reputation(Names(known))[0].facts(DOMAIN)[0].logo

    own, above = ("TXT", "default._bimi.mail.example.com"), ("TXT", "default._bimi.example.com")
    assert logo({own: ("v=BIMI1; l=https://example.com/l.svg",)}) and logo({above: ("v=BIMI1; l=https://example.com/l.svg",)})
    assert logo({}) is False and logo({own: ("else",)}) is False
    assert logo({own: Temporary("slow")}) is None


def test_a_trusted_domain_is_not_looked_up():
    names = Names()
    facts, more = reputation(names)[0].facts(attrs.evolve(DOMAIN, trusted=True, status="not_started"))
    assert not names.lookups and facts.records == () and not more


def test_rates_cover_seven_days():
    def count(kind: str, number: int, days: int) -> Count:
        return Count(None, (NOW - timedelta(days=days)).date(), None, None, kind, number)  # type: ignore[arg-type]

    rollups = Rollups([
        count("email.sent", 50, 0), count("email.sent", 65, 1), count("email.delivered", 100, 1), count("email.bounced.permanent", 3, 1),
        count("email.bounced.transient", 2, 0), count("email.complained", 1, 3),
    ])  # fmt: skip
    facts, _ = reputation(Names(), rollups)[0].facts(DOMAIN)  # at noon: six and a half of the seven days were before today
    assert facts.rates == Rates(delivered=100, bounced=5, permanently=3, complained=1, sent_today=50, usual_per_day=10.0)
