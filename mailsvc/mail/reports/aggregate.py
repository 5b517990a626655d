"""Reads DMARC aggregate reports (RFC 7489 Appendix C, RFC 9990): which servers sent as a domain, and whether receivers could tell.

The XML comes from strangers. It is read as a stream: no document type, so no entities; bounded depth, elements and lengths; and rows
beyond `ROWS` are counted without their source. How it comes out of a mail: attached.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Literal
from xml.parsers import expat

import attrs

from mailsvc.mail import charset
from mailsvc.mail.reports.attached import COUNT, TEXT, UnreadableReport, clean, name

Disposition = Literal["none", "quarantine", "reject"]

ROWS = 5_000  # distinct rows of a report that are kept
DEPTH, ELEMENTS, TOKEN = 20, 400_000, 128 * 1024  # nesting, elements, and bytes of one tag
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SLICE = 64 * 1024  # bytes that the parser is given at a time, so that other threads can run
_DISPOSITIONS: Mapping[str, Disposition] = {"quarantine": "quarantine", "reject": "reject"}


@attrs.frozen
class Row:
    """What a receiver saw from one source. `source`: its IP address, "" for all that were beyond the limit.

    `dkim`, `spf`: whether it passed for the domain in From (aligned). `signed_by`, `mail_from`: the domains that were authenticated or
    claimed, whether they match From or not.
    """

    source: str
    header_from: str
    disposition: Disposition
    dkim: bool
    spf: bool
    signed_by: str = ""
    mail_from: str = ""

    @property
    def passed(self) -> bool:
        """9989 §5.3.4: one of the two is enough."""
        return self.dkim or self.spf


@attrs.frozen
class AggregateReport:
    """A report for a period (Unix time) about the policy of `domain`. `rows` has the number of messages for each row."""

    organization: str
    report_id: str
    begins: int
    ends: int
    domain: str
    rows: Mapping[Row, int]


def read(data: bytes) -> AggregateReport:
    """Raises UnreadableReport."""
    reading = _Reading()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reading.start, reading.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = reading.text, reading.doctype
    data = _in_utf8(data)
    try:
        for start in range(0, len(data), _SLICE):
            parser.Parse(data[start : start + _SLICE], False)
            if start + _SLICE - parser.CurrentByteIndex > TOKEN + _SLICE:
                raise UnreadableReport("it has a tag that is too long")
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # ValueError and LookupError: unknown encodings
        if isinstance(error, UnreadableReport):
            raise
        if not reading.complete:  # what follows the report does not matter
            raise UnreadableReport("it is not well-formed XML") from None
    return reading.report()


def _in_utf8(data: bytes) -> bytes:
    """Replaces bytes that are not UTF-8, such as those in a domain that a spammer made up, unless another encoding is declared."""
    declaration = data[:200].lower()
    other = b"encoding" in declaration and b"utf-8" not in declaration
    if other or data.startswith(_UTF_16) or charset.not_utf8(data) is None:
        return data
    return charset.decode(data, "utf-8").encode()


class _Reading:
    """The state between the parser's calls. Values are kept by their path below `feedback`, those of a record until it ends.

    `complete`: the report has ended.
    """

    def __init__(self) -> None:
        self.complete = False
        self._path: list[str] = []
        self._above = 1  # elements of the path down to `feedback`, which some reporters put into an element of a schema
        self._elements = 0
        self._text: list[str] = []
        self._length = 0
        self._values: dict[str, str] = {}
        self._record: dict[str, str] = {}
        self._rows: dict[Row, int] = {}

    def doctype(self, *_: object) -> None:
        raise UnreadableReport("it has a document type")

    def start(self, tag: str, attributes: object) -> None:
        self._elements += 1
        if self._elements > ELEMENTS or len(self._path) >= DEPTH:
            raise UnreadableReport("it has too many elements")
        self._path.append(tag.rpartition(":")[2][:TEXT].lower())
        if self._path == ["schema", "feedback"]:
            self._above = 2
        self._text, self._length = [], 0

    def text(self, text: str) -> None:
        if self._length <= TEXT:
            self._text.append(text[: TEXT + 1])
            self._length += len(text)

    def end(self, tag: str) -> None:
        path = "/".join(self._path[self._above :])
        self.complete = self.complete or len(self._path) == self._above
        self._path.pop()
        value = clean("".join(self._text))
        self._text = []
        if path == "record":
            self._finish_record()
        elif path == "record/auth_results/dkim":
            self._finish_signature()
        elif path in _RECORD_VALUES:
            self._record.setdefault(path.removeprefix("record/"), value)
        elif path in _VALUES:
            self._values.setdefault(path, value)

    def _finish_signature(self) -> None:
        """Of several signatures, keep the first that is correct; without one, the first."""
        signer, result = (self._record.pop(f"auth_results/dkim/{each}", "") for each in ("domain", "result"))
        correct = result.lower() == "pass"
        if signer and (correct > ("correct" in self._record) or "signed_by" not in self._record):
            self._record["signed_by"] = signer
            self._record |= {"correct": "yes"} if correct else {}

    def _finish_record(self) -> None:
        found, self._record = self._record, {}
        count = min(_number(found.get("row/count", "")), COUNT)
        if not count:
            return
        row = Row(
            _address(found.get("row/source_ip", "")),
            name(found.get("identifiers/header_from", "")),
            _DISPOSITIONS.get(found.get("row/policy_evaluated/disposition", "").lower(), "none"),
            found.get("row/policy_evaluated/dkim", "").lower() == "pass",
            found.get("row/policy_evaluated/spf", "").lower() == "pass",
            name(found.get("signed_by", "")),
            name(found.get("auth_results/spf/domain", "") or found.get("identifiers/envelope_from", "")),
        )
        if row not in self._rows and len(self._rows) >= ROWS:
            row = Row("", "", row.disposition, row.dkim, row.spf)
        self._rows[row] = min(self._rows.get(row, 0) + count, COUNT)

    def report(self) -> AggregateReport:
        values = self._values
        domain = name(values.get("policy_published/domain", ""))
        begins, ends = (_number(values.get(f"report_metadata/date_range/{edge}", "")) for edge in ("begin", "end"))
        organization = values.get("report_metadata/org_name") or values.get("report_metadata/email", "")
        report_id = values.get("report_metadata/report_id", "")
        if not (domain and organization and report_id and 0 < begins <= ends):
            raise UnreadableReport("it is not a DMARC report, or it lacks its domain, organization, number or time")
        return AggregateReport(organization, report_id, begins, ends, domain, self._rows)


_VALUES = frozenset(
    f"report_metadata/{each}" for each in ("org_name", "email", "report_id", "date_range/begin", "date_range/end")
) | {"policy_published/domain"}  # fmt: skip
_RECORD_VALUES = frozenset(
    f"record/{each}"
    for each in (
        "row/source_ip", "row/count", "row/policy_evaluated/disposition", "row/policy_evaluated/dkim", "row/policy_evaluated/spf",
        "identifiers/header_from", "identifiers/envelope_from", "auth_results/dkim/domain", "auth_results/dkim/result",
        "auth_results/spf/domain",
    )
)  # fmt: skip


def _number(text: str) -> int:
    """A count or a time; 0 if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _address(text: str) -> str:
    """In its canonical form, so that one source is one row; "" if it is no address."""
    try:
        found = ip_address(text)
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found).partition("%")[0]
