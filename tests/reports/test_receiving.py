"""Received reports: what they are counted for, once, and which are refused or left out."""

from __future__ import annotations

import gzip
from datetime import timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.mail import report_address
from mailsvc.mail.reports import attached
from mailsvc.mail.reports.aggregate import Row
from mailsvc.reports import receiving
from mailsvc.store.domains import reports
from mailsvc.store.domains.reports import Reporter, Source, TlsResult
from mailsvc.store.postgres.errors import Unavailable
from tests.domains.rig import Rig
from tests.mail.reports.samples import mail_with, sample
from tests.reports.intake import SECRET, Mail, dmarc, intake, summary, tls, today


@pytest_twisted.ensureDeferred
async def test_a_dmarc_report_is_shown_by_source(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    assert await taking.take(Mail(dmarc(rig), (domain.id,))) is None
    assert dict(taking.counts) == {"dmarc": 1}
    found = await summary(rig, domain)
    assert (found.messages, found.passed, found.failed, found.source_count, found.own_failures) == (22, 14, 8, 3, 3)
    assert found.sources == [
        Source("192.0.2.10", True, 15, 12, 12, 12, 3, ["example.com"], ["example.com"], ["send.example.com"]),
        Source("198.51.100.7", False, 5, 0, 0, 0, 5, ["example.com"], ["mailer.example.net"], ["bounce.mailer.example.net"]),
        Source("2001:db8::25", False, 2, 2, 2, 0, 0, ["news.example.com"], ["example.com"], ["list.example.org"]),
    ]
    [reporter] = found.reporters
    assert (reporter.kind, reporter.name, reporter.reports) == ("dmarc", "Receiver & Söhne", 1)


@pytest_twisted.ensureDeferred
async def test_a_tls_report_is_shown_by_result(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    assert await taking.take(Mail(tls(rig), (domain.id,))) is None
    found = await summary(rig, domain)
    assert (found.sessions, found.successes, found.tls_failures) == (5633, 5330, 303)
    assert found.tls[0] == TlsResult("example.com", "sts", "mx2.mail.example.com", "starttls-not-supported", 200)
    assert [each.result for each in found.tls][-1] == "success"
    assert found.reporters == [Reporter("tls", "Example Sender", 1, found.reporters[0].until)]


@pytest_twisted.ensureDeferred
async def test_the_mails_of_other_software_are_taken_as_they_are(rig: Rig) -> None:
    """Their dates are long ago, or not yet, for the clock of this test: both are read, and then left out for that reason."""
    domain, taking = await rig.add(), intake(rig, keep=timedelta(days=1))
    for name in ("mail-dmarc.eml", "tlsrpt-reporter.eml"):
        assert await taking.take(Mail(sample(name), (domain.id,))) is None
    assert await taking.take(Mail(mail_with(sample("python-dmarc.xml"), "text/xml"), (domain.id,))) is None
    assert dict(taking.counts) == {"untimely": 3}


@pytest_twisted.ensureDeferred
async def test_a_report_is_counted_once(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    for _ in range(2):
        await taking.take(Mail(dmarc(rig), (domain.id,)))
        await taking.take(Mail(tls(rig), (domain.id,)))
    assert dict(taking.counts) == {"dmarc": 1, "tls": 1, "repeated": 2}
    assert taking.own_failures == 3
    found = await summary(rig, domain)
    assert (found.messages, found.sessions) == (22, 5633)
    await taking.take(Mail(dmarc(rig, **{"<report_id>17<": "<report_id>18<"}), (domain.id,)))
    assert (await summary(rig, domain)).messages == 44  # another report about the same day adds up
    alerts = [what for _, what in await rig.domains.history(domain.id) if "DMARC" in what]
    assert alerts == ["Receiver & Söhne reports that 3 emails sent by this service failed DMARC."]  # once a day


@pytest_twisted.ensureDeferred
async def test_a_report_counts_for_the_domain_of_its_address_only(rig: Rig) -> None:
    domain, other, below = await rig.add(), await rig.add("example.org"), await rig.add("news.example.com")
    taking = intake(rig)
    await taking.take(Mail(dmarc(rig), (other.id,)))
    await taking.take(Mail(tls(rig), (other.id,)))
    await taking.take(Mail(dmarc(rig, **{"<domain>example.com</domain>\n\t\t<p>": "<domain>com</domain>\n\t\t<p>"}), (domain.id,)))
    assert dict(taking.counts) == {"foreign": 3}
    await taking.take(Mail(dmarc(rig), (below.id,)))  # the policy of example.com applies to it
    assert [(await summary(rig, one)).messages for one in (domain, other, below)] == [0, 0, 22]


@pytest_twisted.ensureDeferred
async def test_domains_that_are_gone_get_nothing(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    await rig.pool.run("UPDATE domains SET lost_at = now() WHERE id = %s", (domain.id,))
    rig.domains.changed()
    assert await taking.take(Mail(dmarc(rig), (domain.id, UUID(int=5)))) is None
    assert dict(taking.counts) == {"gone": 2}


@pytest_twisted.ensureDeferred
async def test_reports_about_periods_out_of_range_are_not_counted(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    for days in (92, -3):
        await taking.take(Mail(dmarc(rig, days=days), (domain.id,)))
    await taking.take(Mail(dmarc(rig, **{"<end>": "<end>9"}), (domain.id,)))
    assert dict(taking.counts) == {"untimely": 3}


@pytest_twisted.ensureDeferred
async def test_our_sources_are_those_that_spf_authorizes(rig: Rig) -> None:
    """192.0.2.25 is the region's host in DNS; nobody has configured it as a source."""
    domain, taking = await rig.add(), intake(rig)
    await taking.take(Mail(dmarc(rig, **{"198.51.100.7": "192.0.2.25"}), (domain.id,)))
    assert {each.address: each.ours for each in (await summary(rig, domain)).sources} == {
        "192.0.2.25": True, "192.0.2.10": True, "2001:db8::25": False,
    }  # fmt: skip
    assert taking.own_failures == 8


@pytest_twisted.ensureDeferred
async def test_no_more_than_a_bounded_number_is_counted_each_day(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    domain, taking = await rig.add(), intake(rig)
    monkeypatch.setattr(reports, "REPORTS_A_DAY", 2)
    for number in range(3):
        await taking.take(Mail(dmarc(rig, **{"<report_id>17<": f"<report_id>{number}<"}), (domain.id,)))
    assert dict(taking.counts) == {"dmarc": 2, "over_limit": 1}
    monkeypatch.setattr(reports, "REPORTS_A_DAY", 100)
    monkeypatch.setattr(reports, "ROWS_A_DAY", 10)
    await taking.take(Mail(tls(rig), (domain.id,)))
    assert dict(taking.counts) == {"dmarc": 2, "over_limit": 2}
    rig.clock.advance(86400)
    await taking.take(Mail(tls(rig), (domain.id,)))
    assert taking.counts["tls"] == 1


@pytest_twisted.ensureDeferred
async def test_a_day_keeps_a_bounded_number_of_rows_with_their_source(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    domain, stored = await rig.add(), reports.Reports(rig.pool)
    monkeypatch.setattr(reports, "DMARC_ROWS", 3)

    async def receive(number: int, *rows: tuple[str, bool, int]) -> None:
        """A report with the messages of each source, and whether they passed."""
        now = today(rig)
        received = reports.Received(domain.account_id, domain.id, "Receiver", str(number), now, now, now)
        of_row = {Row(source, "example.com", "none", passed, False): count for source, passed, count in rows}
        assert await stored.add_dmarc(received, of_row, {"192.0.2.10"})

    async def shown() -> dict[str, int]:
        found = await summary(rig, domain)
        assert found.source_count == len(found.sources)
        return {source.address: source.messages for source in found.sources}

    await receive(1, ("192.0.2.1", True, 500), ("192.0.2.2", False, 5), ("192.0.2.3", True, 7), ("192.0.2.10", False, 1))
    assert await shown() == {"192.0.2.10": 1, "192.0.2.2": 5, "192.0.2.1": 500, "": 7}
    await receive(2, ("192.0.2.4", False, 6), ("192.0.2.3", True, 8), ("192.0.2.2", False, 1))
    assert await shown() == {"192.0.2.10": 1, "192.0.2.4": 6, "192.0.2.2": 6, "": 515}
    found = await summary(rig, domain)
    assert (found.messages, found.failed, found.own_failures) == (528, 13, 1)


@pytest_twisted.ensureDeferred
async def test_what_is_no_report_is_read_a_bounded_number_of_times_each_day(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    domain, other, taking = await rig.add(), await rig.add("news.example.com"), intake(rig)
    monkeypatch.setattr(receiving, "READ_A_DAY", 2)
    for _ in range(4):
        await taking.take(Mail(mail_with(b"{}"), (domain.id,)))
    assert dict(taking.counts) == {"unreadable": 2, "over_limit": 2}
    await taking.take(Mail(dmarc(rig), (other.id,)))
    rig.clock.advance(86400)
    await taking.take(Mail(dmarc(rig), (domain.id,)))
    assert taking.counts["dmarc"] == 2


@pytest_twisted.ensureDeferred
async def test_what_is_no_report_is_refused_in_the_session(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    bomb = mail_with(gzip.compress(bytes(attached.UNPACKED + 1)))
    entities = mail_with(b'<!DOCTYPE a [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><feedback>&b;</feedback>')
    for message in (b"Subject: Hello\r\n\r\nIs anybody there?\r\n", bomb, entities, mail_with(b"{}"), mail_with(b"<html/>")):
        assert await taking.take(Mail(message, (domain.id,))) == receiving.NOT_A_REPORT
        assert await taking.take(Mail(message, (domain.id,), sender="")) is None  # nobody to tell
    assert await taking.take(Mail(bytes(receiving.SIZE + 1), (domain.id,))) == receiving.TOO_LARGE
    assert dict(taking.counts) == {"unreadable": 10}
    assert (await summary(rig, domain)).reporters == []


@pytest_twisted.ensureDeferred
async def test_a_second_attachment_can_be_the_report(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    page = b"--b\r\nContent-Type: text/html; name=about.html\r\nContent-Disposition: attachment\r\n\r\n<html></html>\r\n"
    start, end = dmarc(rig).split(b"--b\r\nContent-Type: application/gzip")
    await taking.take(Mail(start + page + b"--b\r\nContent-Type: application/gzip" + end, (domain.id,)))
    assert dict(taking.counts) == {"dmarc": 1}


@pytest_twisted.ensureDeferred
async def test_hostile_names_are_stored_as_text(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    evil = {
        "Receiver &amp; Söhne": "&lt;script&gt;" + "ü" * 300,
        "mailer.example.net": "💥" * 300,
        "<report_id>17<": f"<report_id>{'é' * 400}<",
    }
    assert await taking.take(Mail(dmarc(rig, **evil), (domain.id,))) is None
    assert dict(taking.counts) == {"dmarc": 1}
    assert (await summary(rig, domain)).reporters[0].name.startswith("<script>üü")


@pytest_twisted.ensureDeferred
async def test_only_so_many_reports_are_read_at_once(rig: Rig) -> None:
    domain, started = await rig.add(), list[Deferred[Any]]()

    async def never(work: Any) -> Any:
        started.append(Deferred())
        return await started[-1]

    taking, answers = intake(rig, in_thread=never), list[object]()
    running = [Deferred.fromCoroutine(taking.take(Mail(dmarc(rig), (domain.id,)))) for _ in range(receiving.AT_ONCE + receiving.WAITING)]
    while len(taking._reading.waiting) < receiving.WAITING:
        await rig.pool.rows("SELECT 1")
    assert len(started) == receiving.AT_ONCE
    for _ in range(2):
        assert await taking.take(Mail(dmarc(rig), (domain.id,))) == receiving.TOO_MANY
    assert taking._read[domain.id] == len(running), "those that come again are not counted twice"
    for each in running:
        each.addBoth(answers.append)
    while started:
        started.pop().errback(attached.UnreadableReport("it is incomplete"))
    while len(answers) < len(running):
        await rig.pool.rows("SELECT 1")
        while started:
            started.pop().errback(attached.UnreadableReport("it is incomplete"))
    assert set(map(str, answers)) == {str(receiving.NOT_A_REPORT)}


@pytest_twisted.ensureDeferred
async def test_nothing_is_accepted_while_mail_is_held(rig: Rig) -> None:
    domain = await rig.add()
    with pytest.raises(Unavailable):
        await intake(rig, held=lambda: "the clock is wrong").take(Mail(dmarc(rig), (domain.id,)))


@pytest_twisted.ensureDeferred
async def test_addresses_are_those_of_the_advised_records(rig: Rig) -> None:
    domain = await rig.add()
    dmarc_record, tls_record = rig.maintenance.publishing.advised(domain)
    address = report_address.make("send.example.com", domain.id, SECRET)
    assert dmarc_record.value == f"v=DMARC1; p=none; rua=mailto:{address};"
    assert (tls_record.name, tls_record.value) == ("_smtp._tls.example.com", f"v=TLSRPTv1; rua=mailto:{address}")
    taking = intake(rig)
    assert taking.find_domain(address) == domain.id and taking.find_domain(f"x{address}") is None


@pytest_twisted.ensureDeferred
async def test_reports_end_with_their_domain_and_with_time(rig: Rig) -> None:
    domain, other, taking = await rig.add(), await rig.add("news.example.com"), intake(rig)
    for one in (domain, other):
        await taking.take(Mail(dmarc(rig), (one.id,)))
        await taking.take(Mail(tls(rig), (domain.id,)))
    await rig.domains.delete(rig.account.id, domain.id)
    assert [await _rows(rig, table) for table in reports.TABLES] == [1, 4, 0]
    await reports.Reports(rig.pool).sweep((today(rig) - timedelta(days=90)).date())
    assert await _rows(rig, "dmarc_results") == 4
    await reports.Reports(rig.pool).sweep((today(rig) + timedelta(days=2)).date())
    assert [await _rows(rig, table) for table in reports.TABLES] == [0, 0, 0]


@pytest_twisted.ensureDeferred
async def test_a_report_about_tomorrow_counts_once_until_the_end_of_its_retention(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    ends = int(rig.clock.seconds()) + 86400
    mail = Mail(dmarc(rig, **{"1780272000": str(ends - 60), "1780358399": str(ends - 1)}), (domain.id,))
    await taking.take(mail)
    rig.clock.advance(91 * 86400 - 120)
    await reports.Reports(rig.pool).sweep((today(rig) - timedelta(days=90)).date())
    await taking.take(mail)
    assert dict(taking.counts) == {"dmarc": 1, "repeated": 1}


# Stands for a statement that takes too long.
_ONE_DAY_AT_A_TIME = """
CREATE FUNCTION too_much() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(DISTINCT day) FROM gone) > 1 THEN
        RAISE EXCEPTION 'canceling statement due to statement timeout';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER too_much AFTER DELETE ON dmarc_results REFERENCING OLD TABLE AS gone EXECUTE FUNCTION too_much()
"""


@pytest_twisted.ensureDeferred
async def test_after_a_shorter_retention_the_days_are_deleted_one_by_one(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    await taking.take(Mail(dmarc(rig), (domain.id,)))
    earlier = "jsonb_populate_record(r, jsonb_build_object('day', r.day - 1))"
    await rig.pool.run(f"INSERT INTO dmarc_results SELECT ({earlier}).* FROM dmarc_results r")
    await rig.pool.run(_ONE_DAY_AT_A_TIME)
    await reports.Reports(rig.pool).sweep((today(rig) + timedelta(days=2)).date())
    assert [await _rows(rig, table) for table in reports.TABLES] == [0, 0, 0]


async def _rows(rig: Rig, table: str) -> int:
    [(count,)] = await rig.pool.rows(f"SELECT count(*) FROM {table}")
    return int(count)


@pytest_twisted.ensureDeferred
async def test_another_account_sees_nothing(rig: Rig) -> None:
    domain, taking = await rig.add(), intake(rig)
    await taking.take(Mail(dmarc(rig), (domain.id,)))
    assert (await summary(rig, attrs.evolve(domain, account_id=UUID(int=9)))).messages == 0
