"""What goes wrong when people publish records: each mistake in a zone of a real DNS server, and what its owner sees."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted

from mailsvc.domains.records import quoted
from tests.domains.rig import Rig

SEND = "send.example.com"
MX, SPF, DKIM = ("SPF", "MX"), ("SPF", "TXT"), ("DKIM", "TXT")


async def found(rig: Rig, domain: Any) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    findings = await rig.checker.check(domain, await rig.domains.published_keys(domain.id))
    return {(r.purpose, r.type): (r.problem, r.message) for r in findings.records if r.problem is not None}


@pytest_twisted.ensureDeferred
async def test_the_expected_records_are_verified(rig: Rig) -> None:
    domain = await rig.add()
    assert await rig.problems(domain) == {}
    findings = await rig.checker.check(domain, await rig.domains.published_keys(domain.id))
    assert {r.where for r in findings.records} == {"the nameservers of example.com"}
    rsa = next(r for r in findings.records if "k=rsa" in r.expected)
    assert rsa.found == (rsa.expected,) and len(rsa.expected) > 255  # two strings in DNS, joined


@pytest.mark.parametrize(
    ("kind", "values", "problem", "words"),
    [
        ("MX", [], "missing", "no MX record at send.example.com"),
        ("MX", ["10 mail.example.com."], "other", "Change it to out.example.net, or add the MX record if a wildcard answered."),
        ("MX", ["10 out.example.org."], "wrong_region", "region r2"),
        ("MX", ["10 out.example.net.", "20 out.example.org."], "several", "region r2"),
        ("MX", ["10 out.example.net.", "20 mail.example.com."], "several", "Remove it"),
        ("MX", ["10 out.example.net.example.com."], "doubled_value", "End the value with a dot"),
        ("TXT", [], "missing", "no TXT record"),
        ("TXT", ['"v=spf1 a:out.example.net ~all"', '"v=spf1 include:other.example ~all"'], "several", "There are 2 SPF records"),
        ("TXT", [r'"\"v=spf1 a:out.example.net ~all\""'], "quotes", "quotation marks"),
        ("TXT", ['"v=spf1" "a:out.example.net ~all"'], "unreadable", "There is no space after v=spf1"),
        ("TXT", ['"v=spf1 a:out.example.org ~all"'], "wrong_region", "region r2"),
        ("TXT", ['"v=spf1 ip4:203.0.113.0/24 -all"'], "not_covered", "does not authorize 192.0.2.25 (fail"),
        ("TXT", ['"v=spf1 a:out.exmaple.net ~all"'], "not_covered", "softfail"),
        ("TXT", ['"v=spf1 a:out.example.net ip4:1.2.3 ~all"'], "unreadable", "'ip4:1.2.3'"),
        ("TXT", ['"google-site-verification=x"'], "missing", "no TXT record"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_mistakes_at_the_return_path(rig: Rig, kind: str, values: list[str], problem: str, words: str) -> None:
    domain = await rig.add()
    rig.set(SEND, kind, *values)
    assert {where: what for where, (what, _) in (await found(rig, domain)).items()} == {("SPF", kind): problem}
    advice = (await found(rig, domain))[("SPF", kind)][1]
    assert advice is not None and words in advice


@pytest.mark.parametrize(
    "text",
    [
        "v=spf1 ip4:192.0.2.25 -all",
        "V=SPF1   A:OUT.example.net ~all",
        "v=spf1 mx -all",
        "v=spf1 redirect=_spf.example.com",
        "v=spf1 include:_spf.example.com -all",
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_custom_spf_record_is_accepted_if_it_authorizes_us(rig: Rig, text: str) -> None:
    domain = await rig.add()
    rig.set(SEND, "TXT", f'"{text}"')
    rig.set("_spf.example.com", "TXT", '"v=spf1 ip4:192.0.2.0/28 ip4:192.0.2.16/28 -all"')
    assert await rig.problems(domain) == {}


@pytest_twisted.ensureDeferred
async def test_an_spf_record_with_too_many_lookups(rig: Rig) -> None:
    domain = await rig.add()
    rig.set(SEND, "TXT", '"v=spf1 ' + " ".join(f"a:h{n}.example.com" for n in range(11)) + ' a:out.example.net ~all"')
    for n in range(11):
        rig.set(f"h{n}.example.com", "A", "203.0.113.9")
    assert await rig.problems(domain) == {SPF: "too_many_lookups"}


@pytest.mark.parametrize(
    ("change", "problem", "words"),
    [
        (lambda text: None, "missing", "_domainkey.example.com"),
        (lambda text: text[:255], "truncated", "several quoted strings"),
        (lambda text: text.replace("p=MII", "p="), "truncated", "of 392"),
        (lambda text: f'"{text}"', "quotes", "without quotation marks"),
        (lambda text: text.replace(";", "\\;"), "quotes", "backslashes"),
        (lambda text: text.partition("p=")[0] + "p=", "revoked", "revoked"),
        (lambda text: text.replace("; p=", "; t=y; p="), "testing", "Remove t=y"),
        (lambda text: text.replace("; p=", "; t=s:y; p="), "testing", "Remove t=y"),
        (lambda text: text.replace("; p=", "; h=sha1; p="), "hash", "sha256"),
        (lambda text: text.replace("; p=", "; s=tlsrpt; p="), "service", "not for email"),
        (lambda text: text.replace("k=rsa", "k=ed25519"), "algorithm", "k= tag"),
        (lambda text: text.replace("DKIM1", "DKIM2"), "version", "v= tag"),
        (lambda text: text.swapcase().replace("V=dkim1; K=RSA; P=", "v=DKIM1; k=rsa; p="), "other_key", "different key"),
        (lambda text: "hello", "unreadable", "not a tag"),
        (lambda text: "v=spf1 -all", "missing", "_domainkey.example.com"),  # of a wildcard
    ],
)
@pytest_twisted.ensureDeferred
async def test_mistakes_at_a_key(rig: Rig, change: Any, problem: str, words: str) -> None:
    domain = await rig.add()
    record = await rig.record(domain, "DKIM", contains="r")
    text = change(record.value)
    rig.set(record.name, "TXT", *([] if text is None else [quoted(text.replace("\\", "\\\\").replace('"', '\\"'))]))
    wrong = await found(rig, domain)
    assert [what for what, _ in wrong.values()] == [problem]
    assert words in str(wrong[DKIM][1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("v=DKIM1; k=rsa; ", ""),  # both are defaults
        lambda text: text.replace("; p=", " ;\t t=s ; h=sha256:sha1; s=email; n=note; p="),
        lambda text: text[:100] + " " + text[100:200] + "  " + text[200:] + " ;",
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_key_can_be_formatted_differently(rig: Rig, change: Any) -> None:
    domain = await rig.add()
    record = await rig.record(domain, "DKIM", contains="r")
    rig.set(record.name, "TXT", quoted(change(record.value).replace(";", "\\;")).replace("\\;", ";"))
    assert await rig.problems(domain) == {}


@pytest_twisted.ensureDeferred
async def test_two_keys_at_one_selector(rig: Rig) -> None:
    domain = await rig.add()
    record = await rig.record(domain, "DKIM", contains="r")
    rig.set(record.name, "TXT", quoted(record.value), '"v=DKIM1; p=AAAA"')
    assert await rig.problems(domain) == {DKIM: "several"}


@pytest.mark.parametrize(
    ("name", "zone", "entered"),
    [
        ("example.com", "example.com", "send"),
        ("mail.example.com", "example.com", "send.mail"),
        ("mail.example.com", "mail.example.com", "send.mail"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_doubled_domain_name(rig: Rig, name: str, zone: str, entered: str) -> None:
    domain = await rig.add(name)
    rig.set(f"send.{name}", "MX")
    rig.set(f"send.{name}.{zone}", "MX", "10 out.example.net.")
    advice = f"The record is at send.{name}.{zone}: your DNS provider appended the domain to the name. Enter {entered} as the name."
    assert await found(rig, domain) == {MX: ("doubled_name", advice)}


@pytest.mark.parametrize(
    ("purpose", "kind", "value"),
    [
        ("SPF", "MX", "10 mail.example.com."),
        ("SPF", "TXT", '"v=spf1 -all"'),
        ("DKIM", "TXT", '"v=spf1 -all"'),
        ("DKIM", "TXT", '"v=DKIM1; p="'),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_wildcard_is_no_doubled_domain_name(rig: Rig, purpose: str, kind: str, value: str) -> None:
    domain = await rig.add()
    record = await rig.record(domain, purpose, kind)
    rig.set(record.name, kind)
    rig.set(f"{record.name}.example.com", kind, value)  # as `*.example.com` answers for it
    assert await rig.problems(domain) == {(purpose, kind): "missing"}


@pytest_twisted.ensureDeferred
async def test_subdomains_and_parents_are_verified_separately(rig: Rig) -> None:
    below = await rig.verified(await rig.add("mail.example.com"))
    above = await rig.verified(await rig.add("example.com", publish=False))
    assert (below.status, above.status) == ("verified", "pending")
    assert await rig.domains.find(rig.account.id, "other.mail.example.com") is None


@pytest_twisted.ensureDeferred
async def test_a_return_path_can_be_a_cname(rig: Rig) -> None:
    domain = await rig.add()
    rig.dns.zones[SEND] = {"CNAME": ["bounces.example.net."]}
    rig.dns.terse.add(SEND)  # the server of one zone knows nothing of the other
    rig.set("bounces.example.net", "MX", "10 out.example.net.")
    rig.set("bounces.example.net", "TXT", '"v=spf1 a:out.example.net ~all"')
    findings = await rig.checker.check(domain, await rig.domains.published_keys(domain.id))
    statuses = {(r.purpose, r.type): (r.status, r.where) for r in findings.records}
    rig.set("bounces.example.net", "MX")
    advice = "Delete the CNAME, unless it comes from a wildcard, and add the MX record."
    assert await found(rig, domain) == {MX: ("missing", f"{SEND} is a CNAME to bounces.example.net, which has no such MX record. {advice}")}
    assert statuses[MX] == statuses[SPF] == ("verified", "the nameservers of example.net, through bounces.example.net")


@pytest_twisted.ensureDeferred
async def test_the_resolver_decides_if_no_authoritative_server_can_be_queried(rig: Rig) -> None:
    domain = await rig.add()
    rig.set("ns.example.com", "A", "10.0.0.5")
    findings = await rig.checker.check(domain, await rig.domains.published_keys(domain.id))
    assert {(r.status, r.where) for r in findings.records} == {("verified", "the resolver")}
    rig.dns.rcodes[SEND] = "SERVFAIL"
    rig.clock.advance(600)
    wrong = await found(rig, domain)
    assert {where: problem for where, (problem, _) in wrong.items()} == {MX: "unanswered", SPF: "unanswered"}
    assert "SERVFAIL" in str(wrong[MX][1])


@pytest_twisted.ensureDeferred
async def test_a_stale_answer_of_the_resolver_is_ignored(rig: Rig) -> None:
    domain = await rig.verified(await rig.add(publish=False))
    for record in await rig.records(domain):
        await rig.checker.resolver.txt(record.name)
        await rig.checker.resolver.mx(record.name)
    await rig.publish(domain)
    assert (await rig.verified(domain)).status == "verified"  # at once, no time has passed
