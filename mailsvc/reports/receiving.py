"""Takes mail with DMARC or TLS reports about sending domains. Nothing is answered with mail.

A report counts for the domain whose address it was sent to, whatever it says. Reading: mail/reports. Storing: store/domains/reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from ipaddress import ip_address
from typing import Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.domains import names, spf_check
from mailsvc.domains.records import Publishing
from mailsvc.mail import report_address
from mailsvc.mail.reply import Reply
from mailsvc.mail.reports import aggregate, attached, tls_report
from mailsvc.mail.reports.aggregate import AggregateReport, Row
from mailsvc.mail.reports.attached import UnreadableReport
from mailsvc.mail.reports.tls_report import TlsReport
from mailsvc.net.dns import Resolver
from mailsvc.runtime.offload import InThread
from mailsvc.semaphore import Semaphore
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.reports import Received, Reports
from mailsvc.store.domains.values import Domain
from mailsvc.store.postgres.errors import Unavailable

SIZE = 10 * 1024 * 1024  # bytes of a mail
AT_ONCE, WAITING = 1, 20  # mails that are read at once, and that wait for it: a hostile one takes seconds of a thread
READ_A_DAY = 1000  # mails for one domain that a process reads, whether they are reports or not
CHECKED = 100  # sources of a report, the largest first, of which it is looked up whether they are ours
EARLY = timedelta(days=1)  # that a period may lie in the future

TOO_LARGE = Reply(552, f"A report can have at most {SIZE // 1024**2} MB", "5.3.4")
TOO_MANY = Reply(451, "Too many reports are being received, try again later", "4.3.2")
NOT_A_REPORT = Reply(550, "This address only accepts DMARC and TLS reports, and none could be read", "5.6.0")

AnyReport = AggregateReport | TlsReport


class ReportMail(Protocol):
    """A mail to addresses for reports. `domains`: their domains; the signatures were checked."""

    @property
    def sender(self) -> str: ...
    @property
    def domains(self) -> tuple[UUID, ...]: ...
    @property
    def message(self) -> bytes: ...


@attrs.define(eq=False)
class OwnSources:
    """Which addresses this service sends from: the configured ones, and those that its SPF record of a region authorizes."""

    resolver: Resolver
    publishing: Publishing
    addresses: Collection[str] = ()

    async def among(self, sources: Sequence[str], domain: Domain) -> frozenset[str]:
        return frozenset([source for source in sources if source and await self._is_ours(source, domain)])

    async def _is_ours(self, source: str, domain: Domain) -> bool:
        if source in self.addresses:
            return True
        name = f"{domain.return_path}.{domain.name}"
        record = self.publishing.spf(domain.region)
        return (await spf_check.check(self.resolver, ip_address(source), name, f"b@{name}", (record,))).verdict == "pass"


@attrs.define(eq=False)
class ReportIntake:
    """Records reports.

    `secrets` sign the addresses; `in_thread` runs a function in a thread; `seconds` returns Unix time; `keep` is for how long results are
    kept; `held` returns the reason why no mail may be accepted at the moment. Since the start: `counts`: reports by result;
    `own_failures`: messages that this service sent and that failed DMARC, as reported.
    """

    log = Logger()

    secrets: Callable[[], Sequence[bytes]]
    domains: Domains
    store: Reports
    own: OwnSources
    in_thread: InThread
    seconds: Callable[[], float]
    keep: timedelta
    held: Callable[[], str | None] = lambda: None
    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    own_failures: int = attrs.field(default=0, init=False)
    _read: Counter[UUID] = attrs.field(factory=Counter, init=False)  # mails by domain, on the day `_read_on`
    _read_on: date | None = attrs.field(default=None, init=False)
    _reading: Semaphore = attrs.field(factory=lambda: Semaphore(AT_ONCE), init=False)

    def find_domain(self, address: str) -> UUID | None:
        """The ID of the domain that an address for reports belongs to. None if it is not ours."""
        return report_address.read(address, *self.secrets())

    async def take(self, mail: ReportMail) -> Reply | None:
        """Record the report in the mail. Returns a refusal, or None. Raises StoreError if the sending server should try again later."""
        if (held := self.held()) is not None:
            raise Unavailable(held)
        if len(mail.message) > SIZE:
            return TOO_LARGE
        wanted = [domain for domain_id in mail.domains if (domain := await self._wanted(domain_id)) is not None]
        if not wanted:
            return None
        if len(self._reading.waiting) >= WAITING:
            return TOO_MANY
        self._read.update(domain.id for domain in wanted)
        try:
            await self._reading.acquire()
            try:
                report = await self.in_thread(lambda: read(mail.message))
            finally:
                self._reading.release()
        except UnreadableReport as error:
            self.log.info("a report cannot be read: {why}", why=str(error))
            self.counts["unreadable"] += 1
            return NOT_A_REPORT if mail.sender else None
        for domain in wanted:
            result = await self._record(domain, report)
            self.counts[result] += 1
            self.log.info("report about {domain}: {result}", domain=domain.name, result=result)
        return None

    async def _wanted(self, domain_id: UUID) -> Domain | None:
        """The domain, if it still belongs to its account and can get another report today."""
        domain, today = await self.domains.get(domain_id), self._now().date()
        if self._read_on != today:
            self._read_on, self._read = today, Counter()
        if domain is None or domain.lost is not None:
            self.counts["gone"] += 1
        elif self._read[domain_id] >= READ_A_DAY or not await self.store.has_room(domain.account_id, domain.id, today):
            self.counts["over_limit"] += 1
        else:
            return domain
        return None

    async def _record(self, domain: Domain, report: AnyReport) -> str:
        """Returns the result, for the counts."""
        now, begins, ends = self._now(), _time(report.begins), _time(report.ends)
        if begins < now - self.keep or max(begins, ends) > now + EARLY:
            return "untimely"
        if not all(_related(name, domain.name) for name in _about(report)):
            return "foreign"
        if not await self.store.has_room(domain.account_id, domain.id, now.date(), len(report.rows)):
            return "over_limit"
        received = Received(domain.account_id, domain.id, report.organization, report.report_id, begins, ends, now)
        if isinstance(report, TlsReport):
            return "tls" if await self.store.add_tls(received, report.rows) else "repeated"
        ours = await self.own.among(_largest(report.rows), domain)
        if not await self.store.add_dmarc(received, report.rows, ours):
            return "repeated"
        self.own_failures += sum(count for row, count in report.rows.items() if row.source in ours and not row.passed)
        return "dmarc"

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)


def read(message: bytes) -> AnyReport:
    """The first report in a mail. Raises UnreadableReport."""
    why = UnreadableReport("the mail has no attachment that could be a report")
    for content in attached.contents(message):
        try:
            return tls_report.read(content) if content.startswith(b"{") else aggregate.read(content)
        except UnreadableReport as error:
            why = error
    raise why


def _about(report: AnyReport) -> set[str]:
    """The domains whose policies a report is about. With DANE they are those of mail servers, which can have any name (8460 §4.4)."""
    return {report.domain} if isinstance(report, AggregateReport) else {row.domain for row in report.rows if row.policy != "tlsa"}


def _related(name: str, domain: str) -> bool:
    """Whether the policy of `name` can apply to `domain`: its own, one above up to the registered domain, or one below."""
    return name == domain or name.endswith(f".{domain}") or (domain.endswith(f".{name}") and names.registrable(name) is not None)


def _largest(rows: Mapping[Row, int]) -> list[str]:
    counts: Counter[str] = Counter()
    for row, count in rows.items():
        counts[row.source] += count
    return [source for source, _ in counts.most_common(CHECKED)]


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(min(seconds, 2**33), UTC)
