"""TLS reports: those that other software writes, broken ones and hostile ones."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.reports import attached, tls_report
from mailsvc.mail.reports.attached import UnreadableReport
from mailsvc.mail.reports.tls_report import OwnReport, TlsRow
from tests.mail.reports.samples import sample


def test_a_report_by_tlsrpt_reporter() -> None:
    [content] = attached.contents(sample("tlsrpt-reporter.eml"))
    assert json.loads(content) == json.loads(sample("tlsrpt-reporter.json"))
    found = tls_report.read(content)
    assert (found.organization, found.report_id) == ("Example Sender", "2026-06-01T00:00:00Z_idx1_example.com")
    assert (found.begins, found.ends) == (1780272000, 1780358399)
    assert dict(found.rows) == {
        TlsRow("example.com", "sts", "", "success"): 5326,
        TlsRow("example.com", "sts", "mx1.mail.example.com", "certificate-expired"): 100,
        TlsRow("example.com", "sts", "mx2.mail.example.com", "starttls-not-supported"): 200,
        TlsRow("example.com", "sts", "mx-backup.mail.example.com", "validation-failure"): 3,
        TlsRow("example.com", "no-policy-found", "", "success"): 4,
    }


def test_the_example_of_rfc_8460() -> None:
    found = tls_report.read(sample("rfc8460.json"))
    assert found.organization == "Company-X"
    assert {row.result: count for row, count in found.rows.items()} == {
        "success": 5326, "certificate-expired": 100, "starttls-not-supported": 200, "validation-failure": 3,
    }  # fmt: skip


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(sample("rfc8460.json")) | values).encode()


def test_the_policy_of_dane_is_that_of_the_mail_server() -> None:
    rows = {
        TlsRow("example.com", "tlsa", "mx1.example.net", "success"): 5,
        TlsRow("example.com", "tlsa", "mx1.example.net", "tlsa-invalid"): 2,
        TlsRow("example.com", "tlsa", "mx2.example.net", "dnssec-invalid"): 1,
        TlsRow("example.com", "no-policy-found", "mx1.example.net", "success"): 3,
    }
    written = tls_report.write(OwnReport("out.example", "tls@out.example", "example.com", date(2026, 6, 1), rows))
    policies = {(each["policy"]["policy-type"], each["policy"]["policy-domain"]): each for each in json.loads(written)["policies"]}
    assert {key: tuple(each["summary"].values()) for key, each in policies.items()} == {
        ("tlsa", "mx1.example.net"): (5, 2),
        ("tlsa", "mx2.example.net"): (0, 1),
        ("no-policy-found", "example.com"): (3, 0),
    }
    assert policies["tlsa", "mx1.example.net"]["failure-details"] == [
        {"result-type": "tlsa-invalid", "failed-session-count": 2, "receiving-mx-hostname": "mx1.example.net"}
    ]


def test_the_report_to_a_domain_with_many_mail_servers_takes_linear_time() -> None:
    compared = []

    class Counted(str):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    rows = {TlsRow("example.com", "tlsa", Counted(f"mx{number:03}.example.net"), "success"): 1 for number in range(200)}
    written = tls_report.write(OwnReport("out.example", "tls@out.example", "example.com", date(2026, 6, 1), rows))
    assert len(json.loads(written)["policies"]) == 200
    assert len(compared) < 200 * 20


def test_failures_without_details_are_counted() -> None:
    policies = [{"policy": {"policy-type": "tlsa", "policy-domain": "MX.example."}, "summary": {"total-failure-session-count": 9}}]
    assert dict(tls_report.read(changed(policies=policies)).rows) == {TlsRow("mx.example", "tlsa", "", "unspecified"): 9}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b'{"a": 1',
        changed(**{"report-id": None}),
        changed(**{"organization-name": " \n "}),
        changed(**{"date-range": "2016"}),
        changed(**{"date-range": {"start-datetime": "2016-04-02T00:00:00Z", "end-datetime": "2016-04-01T00:00:00Z"}}),
        changed(**{"date-range": {"start-datetime": "9999-12-31T23:59:59-23:59", "end-datetime": "never"}}),
        b" " * (tls_report.SIZE + 1),
    ],
)
def test_broken_reports_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        tls_report.read(data)


def test_no_more_than_a_bounded_number_of_rows_is_read() -> None:
    details = [{"result-type": f"r{n}", "failed-session-count": 1} for n in range(5000)]
    policies = [{"policy": {"policy-domain": f"{n}.example"}, "summary": {}, "failure-details": details[:500]} for n in range(50)]
    assert len(tls_report.read(changed(policies=policies)).rows) == tls_report.DETAILS


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["policy", "summary", "failure-details", "total-failure-session-count", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(anything, anything, anything)
def test_any_json_is_read_or_refused(policies: Any, period: Any, name: Any) -> None:
    for values in ({"policies": policies}, {"policies": [policies]}, {"date-range": period}, {"organization-name": name}):
        try:
            found = tls_report.read(changed(**values))
        except UnreadableReport:
            continue
        assert all(0 < count <= 10**12 for count in found.rows.values())
        assert found.organization.isprintable()
