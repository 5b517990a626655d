"""MTA-STS policies: when they are fetched and stored, what failures change, and what follows for connections."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.delivery.connection import mta_sts
from mailsvc.delivery.connection.mta_sts import NotFetched, Policies, StillLookedUp
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.outcome import Bounced, Delivered
from mailsvc.outcome import Deferred as Later
from tests.delivery.fakes import START, DeliveryRig, lost, taken

ENFORCE = "version: STSv1\nmode: enforce\nmx: mx.example.com\nmax_age: 604800\n"


class Web:
    """TXT records and policy files that a test sets."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.records: Any = Records("_mta-sts.example.com", ("v=STSv1; id=1;",))
        self.file: Any = ENFORCE
        self.fetched: list[str] = []
        self.stored: dict[str, Any] = {}
        self.asked: list[str] = []  # of the table
        self.tls_counts = TlsCounts(self.clock)
        self.policies = Policies(self.clock, self, self.fetch, self, self.tls_counts)

    async def txt(self, name: str) -> Any:
        return self.records

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        found = await self.file if isinstance(self.file, Deferred) else self.file
        if isinstance(found, Exception):
            raise found
        return str(found).encode()

    async def policy(self, domain: str) -> tuple[str, str, datetime, datetime] | None:
        self.asked.append(domain)
        return self.stored.get(domain)

    async def keep_policy(self, domain: str, *row: Any) -> None:
        self.stored[domain] = row

    def lookup(self, domain: str = "example.com") -> Policy | None:
        return next((policy for _, policy in self.lookups({domain})), None)

    def lookups(self, domains: set[str]) -> Any:
        found: list[Any] = []
        Deferred.fromCoroutine(self.policies.of(domains)).addCallback(found.append)
        assert found, "it waits"
        return found[0]


def test_a_policy_is_fetched_once_and_shared_with_other_processes() -> None:
    web = Web()
    assert web.lookup() == Policy("enforce", 604800, ("mx.example.com",))
    web.clock.advance(3600)
    assert web.lookup() is not None
    assert web.fetched == ["https://mta-sts.example.com/.well-known/mta-sts.txt"]
    other = Web()
    other.stored = web.stored
    assert other.lookup() == web.lookup()
    assert other.fetched == []


def test_policies_in_memory_are_limited_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a domain can have any number of subdomains, each with a policy of 64 kB."""
    web = Web()
    web.file = ENFORCE + "mx: mx.example.com\n" * 100
    monkeypatch.setattr(mta_sts, "_WEIGHT", 30_000)
    domains = [f"{number}.example.com" for number in range(4)]
    assert all(web.lookup(domain) is not None for domain in domains)
    web.clock.advance(61)
    assert all(web.lookup(domain) is not None for domain in (domains[3], domains[2], domains[0]))
    assert web.asked == [*domains, domains[0]], "the first ones made room"
    assert web.fetched == [f"https://mta-sts.{domain}/.well-known/mta-sts.txt" for domain in domains]


def test_a_policy_is_fetched_for_a_new_id_and_each_day() -> None:
    web = Web()
    web.lookup()
    web.records = Records("x", ("v=STSv1; id=2;",))
    web.file = ENFORCE.replace("enforce", "testing")
    web.clock.advance(61)
    found = web.lookup()
    assert found is not None
    assert found.mode == "testing"
    web.clock.advance(86500)
    web.lookup()
    assert len(web.fetched) == 3


@pytest.mark.parametrize(("max_age", "fetches"), [(60, 145), (3600, 49), (86400, 3), (172800, 2)])
def test_a_policy_is_fetched_again_before_it_expires(max_age: int, fetches: int) -> None:
    web = Web()
    web.file = ENFORCE.replace("604800", str(max_age))
    for _ in range(145):
        assert web.lookup() is not None
        web.clock.advance(600)
    assert fetches - 1 <= len(web.fetched) <= fetches


def test_a_policy_that_expires_soon_is_kept_while_it_cannot_be_fetched() -> None:
    web = Web()
    web.file = ENFORCE.replace("604800", "3600")
    assert web.lookup() is not None
    web.file = NotFetched("no answer")
    for _ in range(59):
        web.clock.advance(61)
        assert (web.lookup() is not None) == (web.clock.seconds() - START < 3600)
    assert len(web.fetched) == 1 + 6  # every five minutes from half of its time on
    web.file = ENFORCE
    web.clock.advance(301)
    assert web.lookup() is not None


def test_the_policies_of_many_domains_are_looked_up_together() -> None:
    web = Web()
    found: list[Any] = []
    web.file = slow = Deferred()
    domains = {f"{number:02}.example" for number in range(30)}
    Deferred.fromCoroutine(web.policies.of(domains)).addCallback(found.append)
    assert len(web.fetched) == 20 and found == []
    web.file = NotFetched("HTTP status 404")
    slow.callback(ENFORCE)
    assert len(web.fetched) == 30 and len(found) == 1
    web.file = ENFORCE
    web.clock.advance(301)
    assert [domain for domain, _ in web.lookups(domains)] == sorted(domains)


@pytest.mark.parametrize("gone", [NxDomain("x"), Temporary("no answer"), Records("x", ())])
def test_a_stored_policy_applies_without_the_record(gone: Any) -> None:
    web = Web()
    web.lookup()
    web.records = gone
    web.clock.advance(604000)
    assert web.lookup() is not None
    web.clock.advance(1000)
    assert web.lookup() is None


def test_a_failed_fetch_keeps_the_stored_policy_and_is_not_repeated_at_once() -> None:
    web = Web()
    web.lookup()
    web.records, web.file = Records("x", ("v=STSv1; id=2;",)), NotFetched("HTTP status 302")
    for _ in range(4):
        web.clock.advance(61)
        assert web.lookup() is not None
    assert len(web.fetched) == 2
    web.clock.advance(120)
    web.lookup()
    assert len(web.fetched) == 3
    assert list(web.tls_counts.counts.values()) == [2]
    assert next(iter(web.tls_counts.counts))[1:] == ("example.com", "sts", "", "sts-policy-fetch-error")


def test_a_policy_that_cannot_be_fetched_does_not_apply() -> None:
    for file in (NotFetched("no answer"), "nonsense"):
        web = Web()
        web.file = file
        assert web.lookup() is None
    web = Web()
    web.file = ENFORCE.replace("enforce", "none")
    assert web.lookup() is None
    web = Web()
    web.records = NxDomain("x")
    assert web.lookup() is None
    assert web.fetched == []


def test_concurrent_lookups_share_one_fetch() -> None:
    web = Web()
    web.file = Deferred()
    found: list[Any] = []
    for _ in range(3):
        Deferred.fromCoroutine(web.policies.of({"example.com"})).addCallback(found.append)
    assert found == []
    web.file.callback(ENFORCE)
    assert len(found) == 3
    assert len(web.fetched) == 1


def test_nobody_waits_long_for_a_lookup_which_goes_on() -> None:
    web = Web()
    web.file = slow = Deferred()
    found: list[Any] = []
    for domains in ({"example.com"}, {"example.com", "example.org"}):
        Deferred.fromCoroutine(web.policies.of(domains)).addErrback(found.append)
    web.clock.advance(2)
    assert not found
    web.clock.advance(1)
    assert [str(failure.value) for failure in found] == ["The MTA-STS policy of example.com is still being looked up."] * 2
    Deferred.fromCoroutine(web.policies.of({"example.com"})).addErrback(found.append)
    assert found[2].check(StillLookedUp), "at once"
    slow.callback(ENFORCE)
    assert web.lookup() is not None and len(web.fetched) == 2


# What follows


class SlowWeb(Web):
    """Only the domain `slow.example` announces a policy."""

    async def txt(self, name: str) -> Any:
        return self.records if name == "_mta-sts.slow.example" else NxDomain(name)


def test_mail_to_other_domains_of_a_server_does_not_wait_for_a_slow_policy_host() -> None:
    web = SlowWeb()
    web.file = slow = Deferred()
    rig = DeliveryRig(policies=web.policies, clock=web.clock, connections_max=1)
    server = rig.server("slow.example", "1.1.1.1", host="mx.example.com")
    rig.server("fast.example", "1.1.1.1", host="mx.example.com")
    server.tls = "TLSv1.3"
    for email in range(1, 11):
        rig.store.add(email, "x@slow.example")
    for email in range(11, 21):
        rig.store.add(email, "x@fast.example")
    rig.start().run(5)
    assert {mail.recipients for mail in server.mails} == {("x@fast.example",)} and len(server.mails) == 10
    [row, *_] = rig.store.rows.values()
    assert row.reason == "The MTA-STS policy of slow.example is still being looked up." and row.leased.attempts == 0
    rig.run(12)
    assert len(server.mails) == 10
    slow.callback(ENFORCE)
    rig.run(10)
    assert len(server.mails) == 20 and not rig.store.rows
    assert [how.mode for how in server.dialled][-1] == "verified"


@attrs.define
class Given:
    """Policies that are already known."""

    policies: dict[str, Policy]

    async def of(self, domains: Any) -> Any:
        return [(domain, self.policies[domain]) for domain in sorted(domains) if domain in self.policies]


def rig_with(mode: Any = "enforce", mx: str = "mx.example.com", **settings: Any) -> DeliveryRig:
    return DeliveryRig(policies=Given({"example.com": Policy(mode, 86400, (mx,))}), **settings)


def test_an_enforced_policy_requires_a_verified_connection_and_the_attempt_shows_it() -> None:
    rig = rig_with()
    server = rig.server("example.com", "1.1.1.1")
    server.tls = "TLSv1.3 TLS_AES_256_GCM_SHA384"
    for email in (1, 2):
        rig.store.add(email, "x@example.com")
    rig.start().run(3)
    assert isinstance(rig.store.last(1), Delivered)
    attempt = rig.store.settled[0].attempt
    assert attempt is not None
    assert attempt.tls == "TLSv1.3 TLS_AES_256_GCM_SHA384, certificate verified by its authority"
    rig.store.add(3, "x@example.com")
    rig.run(3)
    assert "verified" in [how.mode for how in server.dialled]


@pytest.mark.parametrize("what", ["clear", "untrusted", "not named"])
def test_an_enforced_policy_that_is_not_met_defers_with_a_reason(what: str) -> None:
    rig = rig_with(mx="other.example.com" if what == "not named" else "mx.example.com")
    server = rig.server("example.com", "1.1.1.1")
    server.tls = None if what == "clear" else "TLSv1.3"
    server.untrusted = what == "untrusted"
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    outcome = rig.store.last(1)
    assert isinstance(outcome, Later)
    assert "example.com requires it by MTA-STS" in outcome.reason
    assert server.mails == []
    assert rig.store.hold_rows == {}  # others may go there
    results = {key[4] for key in rig.delivery.attempts.tls_counts.counts}
    assert results == {{"clear": "starttls-not-supported", "untrusted": "certificate-host-mismatch"}.get(what, "validation-failure")}


@pytest.mark.parametrize(
    ("mx", "tls", "untrusted", "result"),
    [
        ("mx.example.com", "TLSv1.3", False, "success"),
        ("mx.example.com", "TLSv1.3", True, "certificate-host-mismatch"),
        ("mx.example.com", None, False, "starttls-not-supported"),
        ("other.example.com", "TLSv1.3", False, "validation-failure"),
    ],
)
def test_a_testing_policy_is_reported_about(mx: str, tls: str | None, untrusted: bool, result: str) -> None:
    rig = rig_with("testing", mx=mx)
    server = rig.server("example.com", "1.1.1.1")
    server.tls, server.untrusted = tls, untrusted
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    assert isinstance(rig.store.last(1), Delivered)
    assert {key[1:]: count for key, count in rig.delivery.attempts.tls_counts.counts.items()} == {
        ("example.com", "sts", "mx.example.com", result): 1
    }


def test_a_testing_policy_changes_nothing() -> None:
    rig = rig_with("testing", mx="other.example.com")
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    assert isinstance(rig.store.last(1), Delivered)
    assert [how.mode for how in server.dialled] == ["opportunistic"]


def test_another_host_is_tried_to_meet_the_policy() -> None:
    rig = rig_with(mx="mx2.example.com")
    first = rig.server("example.com", "1.1.1.1", preference=1)
    second = rig.server("example.com", "1.1.1.2", host="mx2.example.com", preference=2)
    first.tls = second.tls = "TLSv1.3"
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    assert isinstance(rig.store.last(1), Delivered)
    assert (len(first.mails), len(second.mails)) == (0, 1)


def test_mail_of_a_domain_that_requires_tls_needs_a_verified_server_or_waits() -> None:
    rig = DeliveryRig()
    rig.sending.tls_required = True
    server = rig.server("example.com", "1.1.1.1")
    server.tls, server.untrusted = "TLSv1.3", True
    rig.store.add(1, "x@example.com", expires=7200.0)
    rig.start().run(3)
    outcome = rig.store.last(1)
    assert isinstance(outcome, Later)
    assert "the sending domain requires it" in outcome.reason
    server.untrusted = False
    rig.run(100)
    assert isinstance(rig.store.last(1), Delivered)


def test_mail_without_a_policy_is_sent_while_other_mail_waits_for_tls() -> None:
    rig = rig_with()
    rig.names.mxs["other.example"] = [(10, "mx.example.com")]
    server = rig.server("example.com", "1.1.1.1")
    for email in range(1, 11):
        rig.store.add(email, "x@example.com" if email % 2 else "x@other.example")
    rig.start().run(5)
    assert {isinstance(rig.store.last(email), Delivered) for email in range(2, 11, 2)} == {True}
    assert {isinstance(rig.store.last(email), Later) for email in range(1, 11, 2)} == {True}
    assert len(server.mails) == 5


# The same way as last time


def test_after_no_reply_the_same_host_gets_the_same_bytes_five_minutes_later() -> None:
    rig = DeliveryRig(idle_seconds=1.0)
    first = rig.server("example.com", "1.1.1.1", preference=1)
    second = rig.server("example.com", "1.1.1.2", host="mx2.example.com", preference=2)
    rig.store.add(1, "x@example.com")
    second.answer = lambda envelope: lost(envelope, "the connection was lost", sent_dot=True)
    first.greeting = _refusing
    rig.start().run(5)
    [once] = second.mails
    first.greeting = lambda: None
    second.answer = taken
    rig.run(1000)
    assert [mail.data for mail in second.mails] == [once.data, once.data]
    assert second.mails[1].at - once.at >= 300
    assert first.mails == []
    assert isinstance(rig.store.last(1), Delivered)


def _refusing() -> Any:
    from mailsvc.delivery.connection.connect import CannotConnect

    return CannotConnect("refused the connection")


def test_after_a_refusal_the_same_source_is_used() -> None:
    from mailsvc.delivery.connection.sources import Sources
    from mailsvc.delivery.connection.tls_policy import Source
    from mailsvc.mail.reply import Reply
    from tests.delivery.fakes import answered

    turns = iter([0, 1, 1, 1, 1, 1, 1])
    sources = Sources(
        [Source("192.0.2.1", "one.example"), Source("192.0.2.2", "two.example")], pick=lambda found, weights: found[next(turns)]
    )
    rig = DeliveryRig(sources=sources, idle_seconds=1.0)
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(451, "greylisted", "4.7.1"), "rcpt")
    rig.store.add(1, "x@example.com")
    rig.start().run(5)
    server.answer = taken
    rig.run(1000)
    assert isinstance(rig.store.last(1), Delivered)
    assert [settled.attempt.source for settled in rig.store.settled if settled.attempt] == ["192.0.2.1", "192.0.2.1"]
    assert not isinstance(rig.store.last(1), Bounced)
