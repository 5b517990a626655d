"""Sends our TLS counts of each day to the domains that ask for them (RFC 8460), by mail and over HTTPS.

What is counted: delivery/connection/tls_counts. What was sent: store/queue/tls. The formats: mail/reports.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.intake import Admitted, AsReceived, Incoming, Intake, Key, Rejected
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.authentication import tls_reports
from mailsvc.mail.reports import tls_report, tls_report_mail
from mailsvc.mail.reports.tls_report import OwnReport
from mailsvc.net.dns import Records, Resolver, Temporary
from mailsvc.net.fetch import FetchError, HttpClient
from mailsvc.policy import Refusal
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.domains.domains import Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.queue.tls import TlsRecords

EVERY = 60.0  # seconds
AT_ONCE = 200  # domains that are looked up in one round
PAUSES = tuple(timedelta(minutes=45) * 2**n for n in range(5))  # between tries; the last one is within 24 hours (8460 §5.5)
SETTLED = timedelta(minutes=10)  # after midnight, when all processes have written their counts of the day before
ENDPOINT = "tls report"  # the scope of idempotency keys
_SECONDS = 30.0  # for an HTTPS request
_BUSY = frozenset({408, 425, 429})  # client errors that a later try may not have

log = Logger()


@attrs.define(eq=False)
class TlsReportSender:
    """`sender`: the address that reports come from, and the contact; its domain is the organization that signs them.

    `seconds` returns Unix time. `stopped`: end after the report that is being sent.
    """

    store: TlsRecords
    resolver: Resolver
    fetcher: HttpClient
    intake: Intake
    domains: Domains
    sender: Mailbox
    seconds: Callable[[], float]
    stopped: bool = attrs.field(default=False, init=False)

    def start(self, clock: Any, opened: Opened) -> None:
        """Look for due reports now, and every minute."""
        loop = PollingLoop(clock, "sending TLS reports", self.send_due, EVERY)
        loop.start()

        async def stop() -> None:
            self.stopped = True
            await loop.stop()

        opened.add("TLS reports", stop)

    async def send_due(self) -> None:
        """Send the reports about yesterday, and those that failed about the day before."""
        now = self._now()
        last = (now - SETTLED).date() - timedelta(days=1)
        again = [now + pause for pause in PAUSES]
        due = await self.store.due_reports((last, last - timedelta(days=1)), now, again, AT_ONCE)
        for number, each in enumerate(due):
            if self.stopped:
                await self.store.give_back(due[number:], now)
                return
            try:
                finished = await self._send(each.day, each.domain)
            except Exception:
                log.failure("a TLS report to {domain} could not be sent", domain=each.domain)
                finished = False
            if finished:
                await self.store.finish_report(each.day, each.domain)

    async def _send(self, day: date, domain: str) -> bool:
        """False if it should be tried again. Each destination gets the report once, unless none could be reached (8460 §3)."""
        answer = await self.resolver.txt(f"_smtp._tls.{domain}")
        if isinstance(answer, Temporary):
            return False
        record = tls_reports.only(answer.values) if isinstance(answer, Records) else None
        destinations = [] if record is None else tls_reports.destinations(record)
        if not destinations:
            return True
        policy = await self.store.policy(domain)
        rows = await self.store.results(day, domain)
        report = OwnReport(self.sender.domain, self.sender.address, domain, day, rows, "" if policy is None else policy[1])
        packed = gzip.compress(tls_report.write(report), mtime=0)
        results = [await self._deliver(uri, report, packed) for uri in destinations]
        log.info("TLS report about {day} to {domain}: {results}", day=str(day), domain=domain, results=", ".join(results))
        return "sent" in results or "later" not in results

    async def _deliver(self, uri: str, report: OwnReport, packed: bytes) -> str:
        """`sent`, `later` (it can be tried again) or `refused`."""
        mailbox = tls_reports.mailbox(uri)
        return await self._post(uri, packed) if mailbox is None else await self._mail(mailbox, report, packed)

    async def _post(self, uri: str, packed: bytes) -> str:
        """8460 §5.4"""
        headers = {"Content-Type": "application/tlsrpt+gzip"}
        try:
            reply = await self.fetcher.fetch("POST", uri, seconds=_SECONDS, keep=0, headers=headers, body=packed)
        except FetchError as error:
            log.info("a TLS report could not be posted: {why}", why=str(error))
            return "later"
        if 200 <= reply.status < 300:
            return "sent"
        log.info("a TLS report was answered with {status}", status=reply.status)
        return "refused" if 400 <= reply.status < 500 and reply.status not in _BUSY else "later"

    async def _mail(self, mailbox: str, report: OwnReport, packed: bytes) -> str:
        try:
            to = parse_mailbox(mailbox)
        except AddressError:
            return "refused"
        domain = await self.domains.called(self.sender.domain)
        if domain is None:
            log.warn("TLS reports are not mailed: no account has {domain}, the domain of the setting sender", domain=self.sender.domain)
            return "refused"
        now = self._now()
        email_id = uuid7(now.timestamp())
        message_id = f"<{email_id}@{self.sender.domain}>"
        message = tls_report_mail.compose(report, packed, self.sender, to, message_id, now)
        content = AsReceived(message, (to.address,), message_id, email_id=email_id)
        email = Incoming(self.sender, (to,), f"Report Domain: {report.domain}", content, source="system")
        caller = Caller.of_service(domain.account_id, domain.id)
        once = sha256(f"{report.report_id} {to.address}".encode())
        answer = await self.intake.submit(caller, [email], Key(ENDPOINT, once.hexdigest(), once.digest()))
        if isinstance(answer, Admitted):
            return "refused" if isinstance(answer.results[0], Refusal) else "sent"
        return "refused" if isinstance(answer, Rejected) else "later"

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)
