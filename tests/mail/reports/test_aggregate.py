"""DMARC aggregate reports: those that other software writes, broken ones and hostile ones."""

from __future__ import annotations

import contextlib
import time
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.reports import aggregate, attached
from mailsvc.mail.reports.aggregate import AggregateReport, Row
from mailsvc.mail.reports.attached import UnreadableReport
from tests.mail.reports.samples import sample


def record(source: str = "192.0.2.1", count: object = 1, dkim: str = "pass", more: str = "") -> str:
    return (
        f"<record><row><source_ip>{source}</source_ip><count>{count}</count><policy_evaluated><disposition>none</disposition>"
        f"<dkim>{dkim}</dkim><spf>fail</spf></policy_evaluated></row><identifiers><header_from>example.com</header_from></identifiers>"
        f"<auth_results>{more}</auth_results></record>"
    )


def report(*records: str, organization: str = "receiver.example", begin: object = 1780272000, start: str = "") -> bytes:
    return (
        f"{start}<feedback><report_metadata><org_name>{organization}</org_name><report_id>1</report_id><date_range><begin>{begin}</begin>"
        f"<end>1780358399</end></date_range></report_metadata><policy_published><domain>example.com</domain></policy_published>"
        f"{''.join(records)}</feedback>"
    ).encode("utf-8", "surrogatepass")


def test_a_report_by_mail_dmarc() -> None:
    [content] = attached.contents(sample("mail-dmarc.eml"))
    assert content == attached.unpacked(sample("mail-dmarc.zip"))
    found = aggregate.read(content)
    assert (found.organization, found.report_id, found.begins, found.ends) == ("Receiver & Söhne", "17", 1780272000, 1780358399)
    assert found.domain == "example.com"
    assert dict(found.rows) == {
        Row("192.0.2.10", "example.com", "none", True, True, "example.com", "send.example.com"): 12,
        Row("192.0.2.10", "example.com", "quarantine", False, False, "example.com", "send.example.com"): 3,
        Row("198.51.100.7", "example.com", "quarantine", False, False, "mailer.example.net", "bounce.mailer.example.net"): 5,
        Row("2001:db8::25", "news.example.com", "none", True, False, "example.com", "list.example.org"): 2,
    }


def test_a_report_by_python_dmarc_in_the_form_of_rfc_9990() -> None:
    found = aggregate.read(sample("python-dmarc.xml"))
    assert (found.organization, found.report_id, found.domain) == ("Example Receiver", "2026.06.01.42", "example.com")
    assert dict(found.rows) == {
        Row("192.0.2.10", "example.com", "none", True, True, "example.com", "send.example.com"): 123,
        Row("203.0.113.99", "example.com", "reject", False, False, "spam.example", "spam.example"): 7,
    }
    assert [row.passed for row in found.rows] == [True, False]


def test_the_form_of_rfc_7489() -> None:
    found = aggregate.read(sample("rfc7489.xml"))
    assert dict(found.rows) == {Row("192.0.2.33", "example.com", "none", False, True, "example.com", "example.com"): 2}


@pytest.mark.parametrize("name", ["mail-dmarc.zip", "python-dmarc.xml", "rfc7489.xml"])
def test_cut_off_reports_are_refused(name: str) -> None:
    whole = attached.unpacked(sample(name))
    for end in (0, 10, len(whole) // 2, len(whole) - 20):
        with pytest.raises(UnreadableReport):
            aggregate.read(whole[:end])


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1", "windows-1252"])
def test_other_encodings(encoding: str) -> None:
    text = report(record(), organization="Söhne").decode()
    assert aggregate.read(f"<?xml version='1.0' encoding='{encoding}'?>{text}".encode(encoding)).organization == "Söhne"


@pytest.mark.parametrize("start", ["", "<?xml version='1.0' encoding='UTF-8'?>"])
def test_bytes_that_are_not_utf8_do_not_matter(start: str) -> None:
    data = report(record(more="<dkim><domain>a?.example</domain><result>pass</result></dkim>"), start=start).replace(b"a?", b"a\x91")
    assert [row.signed_by for row in aggregate.read(data).rows] == ["a\ufffd.example"]


@pytest.mark.parametrize("start", ["<xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'>", ""])
@pytest.mark.parametrize("end", [b"", b"\n</xs:schema>", b"\0\0", b"\n\n<feedback/>"])
def test_what_is_around_the_report_does_not_matter(start: str, end: bytes) -> None:
    assert sum(aggregate.read(report(record(count=7), start=start) + end).rows.values()) == 7


@pytest.mark.parametrize(
    "data",
    [
        report(start='<!DOCTYPE feedback [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>', organization="&b;"),
        report(start='<!DOCTYPE feedback SYSTEM "file:///etc/passwd">'),
        report(start='<!DOCTYPE feedback [<!ENTITY x SYSTEM "file:///etc/passwd">]>', organization="&x;"),
        report(organization="&undefined;"),
        report(organization="a & b"),
        report(organization=""),
        report(begin=-1),
        report(begin="tomorrow"),
        report(begin=1780358400),
        report("<record>" * 30 + "</record>" * 30),
        report(f"<record {''.join(f' a{n}=' + chr(34) * 2 for n in range(60_000))}/>"),
        report("<!--" + "x" * 500_000 + "-->"),
        b"<?xml version='1.0' encoding='no-such-encoding'?><feedback/>",
        b"<html><body>Not Found</body></html>",
        b"\xff\xfe<\x00",
        b"",
    ],
)
def test_hostile_and_broken_reports_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        aggregate.read(data)


def test_values_are_bounded_and_free_of_control_characters() -> None:
    found = aggregate.read(report(organization="<![CDATA[<script>\n]]>" + "\u202eevil" + "x" * 100_000))
    assert found.organization.startswith("<script> evil") and len(found.organization) <= 255


def test_equal_rows_are_added_up() -> None:
    found = aggregate.read(report(record(count=2), record("::ffff:192.0.2.1", 3), record(count=0), record(count="-5"), record(count="x")))
    assert list(found.rows.values()) == [5]
    assert list(aggregate.read(report(record(count=10**17), record(count=10**17))).rows.values()) == [aggregate.COUNT]


def test_what_is_no_address_is_counted_without_its_source() -> None:
    assert [row.source for row in aggregate.read(report(record("<b>me</b>"), record("1.2.3"))).rows] == [""]


def test_more_sources_than_are_kept_are_counted_together() -> None:
    many = aggregate.ROWS + 7
    found = aggregate.read(report(*(record(f"10.0.{n >> 8}.{n & 255}") for n in range(many))))
    assert len(found.rows) == aggregate.ROWS + 1
    assert sum(found.rows.values()) == many
    assert found.rows[Row("", "", "none", True, False)] == 7


def test_of_several_signatures_the_correct_one_is_shown() -> None:
    one = "<dkim><result>{}</result><domain>{}</domain></dkim>"
    both = one.format("fail", "wrong.example") + one.format("pass", "right.example") + one.format("pass", "later.example")
    [row] = aggregate.read(report(record(more=both))).rows
    assert row.signed_by == "right.example"


@pytest.mark.parametrize(
    "data",
    [
        report("<a>" * 3 + "<b/>" * (attached.UNPACKED // 4 - 1000) + "</a>" * 3),
        report("<record>" + "x" * (attached.UNPACKED - 1000) + "</record>"),
        report("<record " + "a='1' " * (attached.UNPACKED // 6)),
        report(*[record()] * 20_000),
    ],
    ids=["elements", "text", "attributes", "records"],
)
def test_the_largest_report_takes_little_time(data: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(UnreadableReport):
        aggregate.read(data)
    assert time.process_time() - began < 5


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=300)


@given(names, st.integers(0, 10**20), st.lists(st.tuples(names, st.integers(-5, 10**20), names), max_size=5))
def test_any_values_are_read_or_refused(organization: str, begin: int, rows: list[tuple[str, int, str]]) -> None:
    records = [record(escape(source), count, escape(dkim)) for source, count, dkim in rows]
    try:
        found = aggregate.read(report(*records, organization=escape(organization), begin=begin))
    except UnreadableReport:
        return
    assert isinstance(found, AggregateReport)
    assert len(found.organization) <= 255 and found.organization.isprintable()
    assert all(0 < count <= aggregate.COUNT for count in found.rows.values())


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        aggregate.read(data)
