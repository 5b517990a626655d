"""TLS reports that we send: to whom, once, and in a form that we and others can read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.intake import Admitted, Busy, Incoming, Key, Rejected
from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.reports import attached, tls_report
from mailsvc.mail.reports.tls_report import TlsRow
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.net.fetch import FetchError
from mailsvc.reports.tls_sending import PAUSES, TlsReportSender
from mailsvc.runtime.lifecycle import Opened
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import tls
from mailsvc.store.queue.tls import TlsRecords

NOW = datetime(2026, 6, 2, 3, tzinfo=UTC)
DAY = date(2026, 6, 1)
COUNTS = {
    (DAY, "example.com", "sts", "mx1.example.com", "success"): 5326,
    (DAY, "example.com", "sts", "mx1.example.com", "certificate-expired"): 100,
    (DAY, "example.com", "sts", "", "sts-policy-fetch-error"): 2,
    (DAY, "example.com", "no-policy-found", "mx1.example.com", "success"): 4,
    (DAY, "quiet.example", "no-policy-found", "mx.quiet.example", "success"): 1,
    (DAY + timedelta(days=1), "example.com", "sts", "mx1.example.com", "success"): 9,  # today: not yet
}


@attrs.define
class Rig:
    """The other domains' DNS and web servers, and our intake."""

    records: dict[str, Any] = attrs.field(factory=dict)
    status: int | None = 201  # None: no answer
    answer: Any = Admitted((UUID(int=1),))
    posts: list[tuple[str, dict[str, str], bytes]] = attrs.field(factory=list)
    mails: list[tuple[Incoming, Key | None]] = attrs.field(factory=list)
    now: datetime = NOW

    async def txt(self, name: str) -> Any:
        found = self.records.get(name, [])
        return found if isinstance(found, Temporary) else Records(name, tuple(found)) if found else NxDomain(name)

    async def fetch(self, method: str, url: str, **options: Any) -> Any:
        self.posts.append((f"{method} {url}", options["headers"], options["body"]))
        if self.status is None:
            raise FetchError("The connection was refused.")
        return attrs.make_class("Reply", ["status"])(self.status)

    async def submit(self, caller: Any, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False) -> Any:
        self.mails += [(email, key) for email in emails]
        return self.answer

    async def called(self, name: str) -> Any:
        return attrs.make_class("Domain", ["id", "account_id"])(UUID(int=2), UUID(int=3)) if name == "out.example.net" else None


async def sender(pool: Pool, rig: Rig, address: str = "tls-reports@out.example.net") -> TlsReportSender:
    store = TlsRecords(pool)
    await store.add(COUNTS)
    return TlsReportSender(store, rig, rig, rig, rig, parse_mailbox(address), lambda: rig.now.timestamp())


STS = "version: STSv1\r\nmode: testing\r\nmx: *.example.com\r\nmax_age: 9\r\n"
WANTED = "v=TLSRPTv1; rua=mailto:tls@example.com,https://reports.example.com/v1"


@pytest_twisted.ensureDeferred
async def test_a_domain_that_requests_reports_gets_its_counts_once(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": [WANTED]})
    sending = await sender(pool, rig)
    await TlsRecords(pool).keep_policy("example.com", "1", STS, NOW, NOW)
    for _ in range(2):
        await sending.send_due()
        rig.now += timedelta(hours=2)
    [(request, headers, body)] = rig.posts
    assert (request, headers) == ("POST https://reports.example.com/v1", {"Content-Type": "application/tlsrpt+gzip"})
    sts = json.loads(gzip.decompress(body))["policies"][1]
    assert sts["policy"] == {
        "policy-type": "sts", "policy-domain": "example.com", "mx-host": ["*.example.com"],
        "policy-string": ["version: STSv1", "mode: testing", "mx: *.example.com", "max_age: 9"],
    }  # fmt: skip
    assert sts["summary"] == {"total-successful-session-count": 5326, "total-failure-session-count": 102}
    assert sts["failure-details"] == [
        {"result-type": "sts-policy-fetch-error", "failed-session-count": 2},
        {"result-type": "certificate-expired", "failed-session-count": 100, "receiving-mx-hostname": "mx1.example.com"},
    ]
    [(email, _)] = rig.mails
    assert (email.sender.address, email.to[0].address, email.source) == ("tls-reports@out.example.net", "tls@example.com", "system")
    message = email.content.message  # type: ignore[union-attr]
    assert isinstance(message, bytes)
    head, _, _ = message.partition(b"\r\n\r\n")
    for field in (
        b"Subject: Report Domain: example.com Submitter: out.example.net", b"TLS-Report-Domain: example.com\r\n", b"TLS-Required: No\r\n",
        b"TLS-Report-Submitter: out.example.net\r\n", b'report-type="tlsrpt"',
    ):  # fmt: skip
        assert field in head
    assert b'filename="out.example.net!example.com!1780272000!1780358399!001.json.gz"' in message
    assert max(map(len, message.split(b"\r\n"))) <= 998
    [content] = attached.contents(message)
    assert content == gzip.decompress(body)
    read = tls_report.read(content)
    assert (read.organization, read.begins, read.ends) == ("out.example.net", 1780272000, 1780358399)
    assert dict(read.rows) == {
        TlsRow("example.com", "sts", "", "success"): 5326,
        TlsRow("example.com", "sts", "mx1.example.com", "certificate-expired"): 100,
        TlsRow("example.com", "sts", "", "sts-policy-fetch-error"): 2,
        TlsRow("example.com", "no-policy-found", "", "success"): 4,
    }


@pytest_twisted.ensureDeferred
async def test_a_failed_report_is_retried_for_some_hours(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": Temporary("timeout"), "_smtp._tls.quiet.example": ["v=TLSRPTv1; rua=https://q.example/"]}, None)
    sending = await sender(pool, rig)
    times = list[timedelta]()
    for minutes in range(0, 30 * 60, 15):
        rig.now = NOW + timedelta(minutes=minutes)
        before = len(rig.posts)
        await sending.send_due()
        times += [timedelta(minutes=minutes)] * (len(rig.posts) - before)
    assert times == [timedelta(minutes=minutes) for minutes in (0, 45, 135, 315, 675, 1395)]
    assert times[-1] < timedelta(hours=24)  # 8460 §5.5
    rig.records["_smtp._tls.example.com"] = [WANTED]
    await sending.send_due()
    assert not rig.mails  # given up


@pytest_twisted.ensureDeferred
async def test_a_stop_waits_for_one_report_and_leaves_the_others_to_other_processes(pool: Pool) -> None:
    clock, opened, asked, begun, answer = Clock(), Opened(), list[str](), Deferred[None](), Deferred[None]()

    class Slow(Rig):
        async def txt(self, name: str) -> Any:
            asked.append(name)
            if not begun.called:
                begun.callback(None)
            await answer
            return NxDomain(name)

    (await sender(pool, Slow())).start(clock, opened)
    clock.advance(0)
    await begun
    stopped = Deferred.fromCoroutine(opened.close())
    answer.callback(None)
    await stopped
    assert len(asked) == 1
    await (await sender(pool, Slow())).send_due()
    assert {*asked} == {"_smtp._tls.example.com", "_smtp._tls.quiet.example"} and len(asked) == 2


@pytest_twisted.ensureDeferred
async def test_a_report_that_reached_one_destination_is_done(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": [WANTED]}, None)
    sending = await sender(pool, rig)
    for _ in range(2):
        await sending.send_due()
        rig.now += timedelta(hours=3)
    assert (len(rig.posts), len(rig.mails)) == (1, 1)


@pytest_twisted.ensureDeferred
async def test_refusals_are_final_and_overload_is_not(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": ["v=TLSRPTv1; rua=mailto:tls@example.com,mailto:no%20address"]}, answer=Busy())
    sending = await sender(pool, rig)
    await sending.send_due()
    rig.now += timedelta(hours=3)
    rig.answer = Rejected({})
    for _ in range(3):
        await sending.send_due()
        rig.now += timedelta(hours=3)
    assert len(rig.mails) == 2
    assert len({key.key for _, key in rig.mails if key is not None}) == 1  # so that intake takes it once


@pytest_twisted.ensureDeferred
async def test_several_records_or_none_mean_that_nothing_is_wanted(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": [WANTED, WANTED], "_smtp._tls.quiet.example": ["v=spf1 -all"]})
    sending = await sender(pool, rig)
    await sending.send_due()
    assert not rig.mails and not rig.posts
    assert await pool.rows("SELECT domain, tries, next_at FROM tls_reports ORDER BY 1") == [
        ("example.com", 1, None),
        ("quiet.example", 1, None),
    ]


@pytest_twisted.ensureDeferred
async def test_the_day_is_over_when_all_counts_are_written(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": [WANTED]}, now=datetime(2026, 6, 2, 0, 5, tzinfo=UTC))
    sending = await sender(pool, rig)
    await sending.send_due()
    assert not rig.mails
    rig.now = datetime(2026, 6, 2, 0, 11, tzinfo=UTC)
    await sending.send_due()
    assert len(rig.mails) == 1


@pytest_twisted.ensureDeferred
async def test_without_a_sending_domain_only_https_remains(pool: Pool) -> None:
    rig = Rig({"_smtp._tls.example.com": [WANTED]})
    await (await sender(pool, rig, "tls@gone.example")).send_due()
    assert (len(rig.posts), len(rig.mails)) == (1, 0)


@pytest_twisted.ensureDeferred
async def test_sent_reports_are_forgotten_with_their_counts(pool: Pool) -> None:
    rig = Rig()
    await (await sender(pool, rig)).send_due()
    await TlsRecords(pool).sweep(NOW + timedelta(days=100), timedelta(days=90))
    assert await pool.rows("SELECT 1 FROM tls_reports UNION ALL SELECT 1 FROM tls_results") == []


@pytest_twisted.ensureDeferred
async def test_of_two_processes_one_gets_each_report(pool: Pool) -> None:
    store, waiting = TlsRecords(pool), list[Deferred[Any]]()
    await store.add(COUNTS)
    due = {"days": [DAY], "now": NOW, "again": [NOW + PAUSES[0]], "limit": 10}

    async def first(tx: Transaction) -> int:
        found = await tx.rows(tls.DUE, due)
        waiting.append(Deferred.fromCoroutine(store.due_reports([DAY], NOW, [NOW + PAUSES[0]], 10)))
        while not (await pool.rows("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))[0][0]:
            pass
        return len(found)

    assert await pool.transact(first) == 2
    assert await waiting[0] == []
