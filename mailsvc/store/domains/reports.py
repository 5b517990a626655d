"""DMARC and TLS reports that were received about sending domains. What a report counts for is decided in reports/receiving."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.mail.reports.aggregate import Row
from mailsvc.mail.reports.tls_report import TlsRow
from mailsvc.store import by_day
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Kind = Literal["dmarc", "tls"]

REPORTS_A_DAY, ROWS_A_DAY = 500, 20_000  # of one domain; what comes after is not counted
DMARC_ROWS = 500  # of a domain and day that are kept apart, so that adding them up for a page takes about the same time for every domain
SOURCES, RESULTS = 100, 100  # shown of one domain

LOCK = 0x646D6172  # "dmar": one report about a domain at a time

ALERT = "this service failed DMARC."  # how the line in the history ends

_DMARC_KEY = (
    "account_id", "domain_id", "day", "reporter", "source", "header_from", "disposition", "dkim", "spf", "signed_by", "mail_from",
)  # fmt: skip

USED = "SELECT count(*), coalesce(sum(row_count), 0) FROM received_reports WHERE account_id = %s AND domain_id = %s AND received_on = %s"
ADD = """
INSERT INTO received_reports (account_id, domain_id, kind, reporter, report_id, received_on, begins_at, ends_at, row_count)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
ADD_DMARC = f"""
INSERT INTO dmarc_results AS r ({", ".join(_DMARC_KEY)}, ours, messages)
SELECT %s, %s, %s, %s, * FROM
    unnest(%s::text[], %s::text[], %s::text[], %s::boolean[], %s::boolean[], %s::text[], %s::text[], %s::boolean[], %s::bigint[])
ON CONFLICT ({", ".join(_DMARC_KEY)}) DO UPDATE SET messages = r.messages + excluded.messages, ours = excluded.ours
"""
ALONE = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
# Rows beyond the limit are added up without their source: those of others that passed first, and of these the smallest.
ADD_UP = f"""
WITH gone AS (
    DELETE FROM dmarc_results r USING (
        SELECT * FROM dmarc_results WHERE account_id = %(account)s AND domain_id = %(domain)s AND day = %(day)s AND reporter <> ''
        ORDER BY ours AND NOT (dkim OR spf) DESC, NOT (dkim OR spf) DESC, messages DESC OFFSET %(kept)s
    ) o
    WHERE {" AND ".join(f"r.{column} = o.{column}" for column in _DMARC_KEY)}
    RETURNING r.disposition, r.dkim, r.spf, r.messages
)
INSERT INTO dmarc_results AS r ({", ".join(_DMARC_KEY)}, ours, messages)
SELECT %(account)s, %(domain)s, %(day)s, '', '', '', disposition, dkim, spf, '', '', false, sum(messages) FROM gone GROUP BY 7, 8, 9
ON CONFLICT ({", ".join(_DMARC_KEY)}) DO UPDATE SET messages = r.messages + excluded.messages
"""
ADD_TLS = """
INSERT INTO received_tls_results AS r (account_id, domain_id, day, reporter, policy_domain, policy, host, result, sessions)
SELECT %s, %s, %s, %s, * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
ON CONFLICT (account_id, domain_id, day, reporter, policy_domain, policy, host, result)
DO UPDATE SET sessions = r.sessions + excluded.sessions
"""
# One line a day, however many reports say so.
ADD_ALERT = f"""
INSERT INTO domain_history (id, domain_id, at, what)
SELECT %s, %s, %s, %s WHERE NOT EXISTS (SELECT FROM domain_history WHERE domain_id = %s AND at >= %s AND what LIKE '%% {ALERT}')
"""
_OF_DOMAIN = "account_id = %(account)s AND domain_id = %(domain)s AND day >= %(since)s"
_SOURCE = Columns.of(
    address="source",
    ours="bool_or(ours)",
    messages="sum(messages)::bigint",
    passed="coalesce(sum(messages) FILTER (WHERE dkim OR spf), 0)::bigint",
    dkim="coalesce(sum(messages) FILTER (WHERE dkim), 0)::bigint",
    spf="coalesce(sum(messages) FILTER (WHERE spf), 0)::bigint",
    refused="coalesce(sum(messages) FILTER (WHERE disposition <> 'none'), 0)::bigint",
    header_from="(array_agg(DISTINCT header_from))[1:5]",
    signed_by="(array_remove(array_agg(DISTINCT signed_by), ''))[1:5]",
    mail_from="(array_remove(array_agg(DISTINCT mail_from), ''))[1:5]",
)
# Mail of this service that fails comes first, then other mail that fails, then the largest sources.
_WORST = f"""
GROUP BY source
ORDER BY coalesce(sum(messages) FILTER (WHERE ours AND NOT (dkim OR spf)), 0) DESC,
         coalesce(sum(messages) FILTER (WHERE NOT (dkim OR spf)), 0) DESC, sum(messages) DESC, source LIMIT {SOURCES}
"""
# The names are collected only of the sources that are shown: doing so sorts their rows.
BY_SOURCE = f"""
SELECT {_SOURCE} FROM dmarc_results
WHERE {_OF_DOMAIN} AND source IN (SELECT source FROM dmarc_results WHERE {_OF_DOMAIN} {_WORST}) {_WORST}
"""
DMARC_TOTAL = f"""
SELECT coalesce(sum(messages), 0)::bigint, coalesce(sum(passed), 0)::bigint, count(*), coalesce(sum(own_failures), 0)::bigint
FROM (
    SELECT sum(messages) AS messages, sum(messages) FILTER (WHERE dkim OR spf) AS passed,
           sum(messages) FILTER (WHERE ours AND NOT (dkim OR spf)) AS own_failures
    FROM dmarc_results WHERE {_OF_DOMAIN} GROUP BY source
) x
"""
BY_RESULT = f"""
SELECT policy_domain, policy, host, result, sum(sessions)::bigint FROM received_tls_results
WHERE {_OF_DOMAIN} GROUP BY 1, 2, 3, 4 ORDER BY result = 'success', sum(sessions) DESC, 1, 2, 3, 4 LIMIT {RESULTS}
"""
TLS_TOTAL = f"""
SELECT coalesce(sum(sessions), 0)::bigint, coalesce(sum(sessions) FILTER (WHERE result = 'success'), 0)::bigint
FROM received_tls_results WHERE {_OF_DOMAIN}
"""
REPORTERS = f"""
SELECT kind, reporter, count(*), max(ends_at) FROM received_reports
WHERE account_id = %(account)s AND domain_id = %(domain)s AND begins_at >= %(start)s
GROUP BY 1, 2 ORDER BY count(*) DESC, 2 LIMIT {RESULTS}
"""
TABLES = ("received_reports", "dmarc_results", "received_tls_results")
DELETE = tuple(f"DELETE FROM {table} WHERE account_id = %s AND domain_id = %s" for table in TABLES)


@attrs.frozen
class Received:
    """What all reports have in common. `day`: of their rows."""

    account_id: UUID
    domain_id: UUID
    reporter: str
    report_id: str
    begins_at: datetime
    ends_at: datetime
    received_at: datetime

    @property
    def day(self) -> date:
        return self.begins_at.date()


@attrs.frozen
class Source:
    """A server that sent as the domain, as receivers report it. `ours`: it belongs to this service. `address`: "" for all others.

    `passed` is DMARC; `dkim` and `spf` are aligned; `refused`: quarantined or rejected. The lists have up to five domains.
    """

    address: str
    ours: bool
    messages: int
    passed: int
    dkim: int
    spf: int
    refused: int
    header_from: Sequence[str]
    signed_by: Sequence[str]
    mail_from: Sequence[str]

    @property
    def failed(self) -> int:
        return self.messages - self.passed


@attrs.frozen
class TlsResult:
    """Sessions with one result, as senders report them."""

    policy_domain: str
    policy: str
    host: str
    result: str
    sessions: int


@attrs.frozen
class Reporter:
    """Who sent reports, how many, and until when the last one counts."""

    kind: Kind
    name: str
    reports: int
    until: datetime


@attrs.frozen
class Summary:
    """All reports about a domain since a day. `own_failures`: messages of this service that failed DMARC."""

    messages: int
    passed: int
    source_count: int
    own_failures: int
    sources: Sequence[Source]
    sessions: int
    successes: int
    tls: Sequence[TlsResult]
    reporters: Sequence[Reporter]

    @property
    def failed(self) -> int:
        return self.messages - self.passed

    @property
    def tls_failures(self) -> int:
        return self.sessions - self.successes


@attrs.define(eq=False)
class Reports:
    pool: Pool

    async def has_room(self, account_id: UUID, domain_id: UUID, today: date, rows: int = 0) -> bool:
        """Whether the domain can get another report today, with so many rows."""
        [(reports, used)] = await self.pool.rows(USED, (account_id, domain_id, today))
        return bool(reports < REPORTS_A_DAY and used + rows <= ROWS_A_DAY)

    async def add_dmarc(self, received: Received, rows: Mapping[Row, int], ours: Collection[str]) -> bool:
        """Add a report, once. False if it was added before.

        `ours`: sources of this service, whose failures get a line in the domain's history.
        """
        values = [
            (row.source, row.header_from, row.disposition, row.dkim, row.spf, row.signed_by, row.mail_from, row.source in ours, count)
            for row, count in rows.items()
        ]
        failures = sum(count for row, count in rows.items() if row.source in ours and not row.passed)
        return await self._add("dmarc", received, ADD_DMARC, values, failures)

    async def add_tls(self, received: Received, rows: Mapping[TlsRow, int]) -> bool:
        """Add a report, once. False if it was added before."""
        return await self._add("tls", received, ADD_TLS, [(*attrs.astuple(row), count) for row, count in rows.items()])

    async def _add(self, kind: Kind, received: Received, statement: str, values: Sequence[tuple[Any, ...]], failures: int = 0) -> bool:
        key = (received.account_id, received.domain_id)
        now = received.received_at
        report = (received.reporter, received.report_id, now.date(), received.begins_at, received.ends_at, len(values))

        async def add(tx: Transaction) -> bool:
            await tx.rows(ALONE, (LOCK, str(received.domain_id)))
            if not await tx.run(ADD, (*key, kind, *report)):
                return False
            if values:
                columns = [list(column) for column in zip(*sorted(values), strict=True)]  # sorted: releases before this one take no lock
                await tx.run(statement, (*key, received.day, received.reporter, *columns))
            if values and kind == "dmarc":
                of_day = {"account": received.account_id, "domain": received.domain_id, "day": received.day}
                await tx.run(ADD_UP, of_day | {"kept": DMARC_ROWS})
            if failures:
                sentence = f"{received.reporter} reports that {failures} {'email' if failures == 1 else 'emails'} sent by {ALERT}"
                today = datetime.combine(now.date(), time(), UTC)
                await tx.run(ADD_ALERT, (uuid7(now.timestamp()), received.domain_id, now, sentence, received.domain_id, today))
            return True

        return await self.pool.transact(add)

    async def summary(self, account_id: UUID, domain_id: UUID, since: date) -> Summary:
        """What the reports say about a domain since a day (UTC)."""
        start = datetime.combine(since, time(), UTC)
        of_domain = {"account": account_id, "domain": domain_id, "since": since, "start": start}
        [total] = await self.pool.rows(DMARC_TOTAL, of_domain)
        sources = [Source(**_SOURCE.read(row)) for row in await self.pool.rows(BY_SOURCE, of_domain)]
        [tls] = await self.pool.rows(TLS_TOTAL, of_domain)
        results = [TlsResult(*row) for row in await self.pool.rows(BY_RESULT, of_domain)]
        reporters = [Reporter(*row) for row in await self.pool.rows(REPORTERS, of_domain)]
        (messages, passed, source_count, own_failures), (sessions, successes) = total, tls
        return Summary(messages, passed, source_count, own_failures, sources, sessions, successes, results, reporters)

    async def sweep(self, before: date) -> None:
        """Delete what is older.

        Which reports were received is known for a day longer: a period can begin a day after its report was received
        (reports/receiving.EARLY), and the report could be added again as long as that day is kept.
        """
        received, *results = TABLES
        await by_day.sweep(self.pool, received, "received_on", before - timedelta(days=1))
        for table in results:
            await by_day.sweep(self.pool, table, "day", before)
