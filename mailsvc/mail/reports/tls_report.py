"""TLS reports (RFC 8460): reads those about a domain, and writes those for other domains.

JSON and mail only. How a report comes out of a mail: attached. What is counted and where it is sent: reports/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import attrs
import orjson

from mailsvc.mail.reports.attached import COUNT, UnreadableReport, clean, name

SIZE = 2 * 1024 * 1024  # bytes of JSON
POLICIES, DETAILS = 500, 1_000  # that are read of each report
SUCCESS = "success"


@attrs.frozen
class TlsRow:
    """Sessions with one result. `policy`: sts, tlsa or no-policy-found. `host`: the receiving server, "" if unknown or irrelevant.

    `result`: `success`, or a type of failure (8460 §4.3).
    """

    domain: str
    policy: str
    host: str
    result: str


@attrs.frozen
class TlsReport:
    """A report for a period (Unix time). `rows` has the number of sessions for each row."""

    organization: str
    report_id: str
    begins: int
    ends: int
    rows: Mapping[TlsRow, int]


def read(data: bytes) -> TlsReport:
    """Raises UnreadableReport."""
    if len(data) > SIZE:
        raise UnreadableReport(f"it is larger than {SIZE} bytes")
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise UnreadableReport("it is not JSON") from None
    period = _object(_object(found).get("date-range"))
    organization, report_id = (_text(_object(found).get(each)) for each in ("organization-name", "report-id"))
    begins, ends = (_time(period.get(each)) for each in ("start-datetime", "end-datetime"))
    if not (organization and report_id and 0 < begins <= ends):
        raise UnreadableReport("it is not a TLS report, or it lacks its organization, number or time")
    rows: dict[TlsRow, int] = {}
    for row, count in _rows(found):
        rows[row] = min(rows.get(row, 0) + count, COUNT)
    return TlsReport(organization, report_id, begins, ends, rows)


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[TlsRow, int]]:
    """8460 §4.4. Failures without details have the result `unspecified`."""
    details = 0
    for each in _list(found.get("policies"))[:POLICIES]:
        policy, summary = _object(_object(each).get("policy")), _object(_object(each).get("summary"))
        domain, kind = name(_text(policy.get("policy-domain"))), name(_text(policy.get("policy-type")))
        good, bad = (_count(summary.get(f"total-{word}-session-count")) for word in ("successful", "failure"))
        if good:
            yield TlsRow(domain, kind, "", SUCCESS), good
        for detail in map(_object, _list(_object(each).get("failure-details"))[: DETAILS - details]):
            details += 1
            count = _count(detail.get("failed-session-count"))
            host = name(_text(detail.get("receiving-mx-hostname")))
            if count:
                yield TlsRow(domain, kind, host, name(_text(detail.get("result-type"))) or "unspecified"), count
                bad -= count
        if bad > 0:
            yield TlsRow(domain, kind, "", "unspecified"), bad


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return min(max(value, 0), COUNT) if isinstance(value, int) and not isinstance(value, bool) else 0


def _time(value: Any) -> int:
    """Unix time; 0 if it is none (3339 §5.6)."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        return 0 if at is None else int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0


# Writing


@attrs.frozen
class OwnReport:
    """What we report to a domain about one day (UTC). `organization`: our domain. `sts_policy`: the MTA-STS policy file, if any."""

    organization: str
    contact: str
    domain: str
    day: date
    rows: Mapping[TlsRow, int]
    sts_policy: str = ""

    @property
    def report_id(self) -> str:
        """The same for each attempt to send it."""
        return f"{self.day}.{self.domain}@{self.organization}"

    @property
    def filename(self) -> str:
        """8460 §5.1"""
        begins = int(datetime.combine(self.day, time(), UTC).timestamp())
        return f"{self.organization}!{self.domain}!{begins}!{begins + 86399}!001.json.gz"


def write(report: OwnReport) -> bytes:
    """The JSON (8460 §4.4)."""
    kinds: dict[tuple[str, str], dict[TlsRow, int]] = {}
    for row, count in report.rows.items():
        kinds.setdefault((row.policy, _policy_domain(row)), {})[row] = count
    return orjson.dumps(
        {
            "organization-name": report.organization,
            "date-range": {"start-datetime": f"{report.day}T00:00:00Z", "end-datetime": f"{report.day}T23:59:59Z"},
            "contact-info": report.contact,
            "report-id": report.report_id,
            "policies": [_policy(report, *kind, rows) for kind, rows in sorted(kinds.items(), key=lambda item: item[0])],
        }
    )


def _policy_domain(row: TlsRow) -> str:
    """With DANE, the mail server has the policy (8460 §1.1)."""
    return row.host if row.policy == "tlsa" else row.domain


def _policy(report: OwnReport, kind: str, domain: str, rows: Mapping[TlsRow, int]) -> dict[str, object]:
    failures = {row: count for row, count in rows.items() if row.result != SUCCESS}
    policy: dict[str, object] = {"policy-type": kind, "policy-domain": domain}
    lines = [line.strip() for line in report.sts_policy.splitlines() if line.strip()] if kind == "sts" else []
    if lines:
        policy["policy-string"] = lines
        policy["mx-host"] = [line.partition(":")[2].strip() for line in lines if line.startswith("mx:")]
    failed = sum(failures.values())
    return {
        "policy": policy,
        "summary": {"total-successful-session-count": sum(rows.values()) - failed, "total-failure-session-count": failed},
        "failure-details": [
            {"result-type": row.result, "failed-session-count": count} | ({"receiving-mx-hostname": row.host} if row.host else {})
            for row, count in sorted(failures.items(), key=lambda item: (item[0].host, item[0].result))
        ],
    }
