"""The mail that carries a TLS report from this service (RFC 8460 §5.3). The report: tls_report."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime

from mailsvc.mail import header
from mailsvc.mail.address import Mailbox
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.reports.tls_report import OwnReport

_LINE = 57  # bytes that make a line of 76 characters (2045 §6.8)


def compose(report: OwnReport, packed: bytes, sender: Mailbox, to: Mailbox, message_id: str, date: datetime) -> bytes:
    """`packed`: the report in gzip."""
    boundary = f"=_t{message_id[1:37]}"
    fields = [
        header.mailboxes("From", (sender,)),
        header.mailboxes("To", (to,)),
        header.fold("Subject", (" Report Domain:", f" {report.domain}", " Submitter:", f" {report.organization}", " Report-ID:",
                                f" <{report.report_id}>")),
        f"Date: {rfc5322_date(date)}\r\n",
        header.fold("Message-ID", (" " + message_id,)),
        header.fold("TLS-Report-Domain", (" " + report.domain,)),
        header.fold("TLS-Report-Submitter", (" " + report.organization,)),
        "TLS-Required: No\r\n",  # 8689 §5: the report may be about the lack of TLS
        "Auto-Submitted: auto-generated\r\n",  # 3834 §5
        "MIME-Version: 1.0\r\n",
        f'Content-Type: multipart/report; report-type="tlsrpt";\r\n boundary="{boundary}"\r\n',
    ]  # fmt: skip
    text = f"This is an aggregate TLS report from {report.organization} about {report.domain} for {report.day} (UTC).\r\n"
    parts = (
        f"\r\n--{boundary}\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n{text}",
        f"\r\n--{boundary}\r\nContent-Type: application/tlsrpt+gzip\r\nContent-Transfer-Encoding: base64\r\n"
        f'Content-Disposition: attachment;\r\n filename="{report.filename}"\r\n\r\n',
        *_lines(packed),
        f"\r\n--{boundary}--\r\n",
    )
    return "".join((*fields, *parts)).encode("ascii")


def _lines(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _LINE):
        yield base64.b64encode(data[start : start + _LINE]).decode("ascii") + "\r\n"
