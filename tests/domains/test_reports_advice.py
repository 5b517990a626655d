"""Advice about records that ask for reports: whether they do, and whether the reports arrive here."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.domains import dmarc_check, tls_reports_check
from mailsvc.domains.records import Publishing, dmarc, tls_reports
from mailsvc.mail.authentication import dmarc as policies
from mailsvc.mail.authentication import tls_reports as records
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.store.postgres.pool import Pool
from tests.domains.rig import HOSTS, Rig

ADDRESS = "r-abc@send.example.com"
WANTED = tls_reports("example.com", ADDRESS)


@pytest.mark.parametrize(
    ("texts", "status", "problem", "words"),
    [
        ([], "pending", "missing", "There is no record that asks for TLS reports."),
        (["v=spf1 -all"], "pending", "missing", "There is no record"),
        (["v=TLSRPTv1; rua=mailto:a@b.example", "v=TLSRPTv1;rua=mailto:c@b.example"], "pending", "several", "has 2 records"),
        (["v=TLSRPTv1;"], "pending", "unreadable", "has no valid rua"),
        (["v=TLSRPTv1; rua=ftp://b.example"], "pending", "unreadable", "has no valid rua"),
        (["v=TLSRPTv1; rua=mailto:a@b.example"], "verified", None, f"To also see them here, add mailto:{ADDRESS} to its rua."),
        ([f"v=TLSRPTv1;rua=https://b.example/x, mailto:{ADDRESS}"], "verified", None, "TLS reports arrive here."),
    ],
)
def test_tls_reports(texts: list[str], status: str, problem: str | None, words: str) -> None:
    state = tls_reports_check.advice(WANTED, Records(WANTED.name, tuple(texts)) if texts else NxDomain(WANTED.name))
    assert (state.status, state.problem) == (status, problem)
    assert state.message is not None and words in state.message


def test_dns_that_does_not_answer_is_no_missing_record() -> None:
    assert tls_reports_check.advice(WANTED, Temporary("timeout")).problem == "unanswered"


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("v=DMARC1; p=reject", f"v=DMARC1; p=reject; rua=mailto:{ADDRESS}"),
        ("v=DMARC1; p=reject; rua=mailto:d@example.com", f"v=DMARC1; p=reject; rua=mailto:d@example.com,mailto:{ADDRESS}"),
        ("v=DMARC1; rua=mailto:d@example.com ; p=reject;", f"v=DMARC1; rua=mailto:d@example.com,mailto:{ADDRESS}; p=reject"),
        (f"v=DMARC1; p=reject; rua=mailto:d@example.com, mailto:{ADDRESS.upper()}", None),
        (f"v=DMARC1; p=reject; rua=mailto:{ADDRESS}!10m", None),
    ],
)
def test_dmarc_reports(text: str, better: str | None) -> None:
    found = dmarc_check.Found(policies.parse(text), "example.com", "example.com", (text,))
    state = dmarc_check.advice("example.com", found, dmarc("example.com", ADDRESS))
    assert ("To see here who sends as this domain" in str(state.message)) == (better is not None)
    assert state.expected == (better or text)
    assert "who sends" not in str(dmarc_check.advice("example.com", found, dmarc("example.com")).message)  # no address is offered


def test_a_policy_that_is_inherited_stays_as_strict() -> None:
    found = dmarc_check.Found(policies.parse("v=DMARC1; p=reject; sp=quarantine"), "example.com", "example.com")
    state = dmarc_check.advice("news.example.com", found, dmarc("news.example.com", ADDRESS))
    assert state.expected == f"v=DMARC1; p=quarantine; rua=mailto:{ADDRESS};"


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ("v=TLSRPTv1;rua=mailto:a@b.example,https://b.example/v1/tlsrpt", ["mailto:a@b.example", "https://b.example/v1/tlsrpt"]),
        ("v=TLSRPTv1; x=1; rua = MAILTO:a@b.example ; y", ["MAILTO:a@b.example"]),
        ("v=TLSRPTv1; rua=" + ",".join(f"mailto:{n}@b.example" for n in range(9)), [f"mailto:{n}@b.example" for n in range(records.MOST)]),
        ("v=TLSRPTv1; rua=mailto:" + "a" * 3000, []),
        ("v=TLSRPTv1", []),
    ],
)
def test_destinations(record: str, found: list[str]) -> None:
    assert records.is_record(record) and records.destinations(record) == found


def test_the_mailbox_of_a_uri() -> None:
    assert records.mailbox("MailTo:a%2Bb@c.example?subject=x") == "a+b@c.example"
    assert records.mailbox("https://c.example") is None
    assert records.only(["x", "v=TLSRPTv1; rua=a"]) == "v=TLSRPTv1; rua=a"
    assert records.only(["v=TLSRPTv1; rua=a", "v=TLSRPTv1; rua=b"]) is records.only([]) is records.only(["v=TLSRPTv10; rua=a"]) is None


@pytest_twisted.ensureDeferred
async def test_a_check_looks_at_both_records(pool: Pool) -> None:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor, Publishing(HOSTS, reports_secret=lambda: b"s"))
    try:
        domain = await rig.add()
        assert [(state.purpose, state.status) for state in (await rig.verified(domain)).advice] == [
            ("DMARC", "verified"), ("TLS-RPT", "pending"),
        ]  # fmt: skip
        for record in rig.maintenance.publishing.advised(domain):
            rig.set(record.name, "TXT", f'"{record.value}"')
        await rig.later(days=2)
        states = (await rig.verified(domain)).advice
        assert [(state.purpose, state.status) for state in states] == [("DMARC", "verified"), ("TLS-RPT", "verified")]
        assert "To see here" not in str(states[0].message) and states[1].message == "TLS reports arrive here."
    finally:
        await rig.dns.stop()
