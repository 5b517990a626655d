"""Reports in mails: every form in which they are attached, and what must not be decompressed."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.reports import attached
from mailsvc.mail.reports.attached import UnreadableReport
from tests.mail.reports.samples import mail_with, sample

XML = b"<feedback/>"


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        archive.writestr("report.xml", content)
    return written.getvalue()


@pytest.mark.parametrize(
    "data", [XML, gzip.compress(XML), zipped(XML), zipped(XML, zipfile.ZIP_STORED)], ids=["plain", "gzip", "zip", "stored"]
)
@pytest.mark.parametrize("kind", ["application/zip", "application/octet-stream", "text/xml", "application/tlsrpt+gzip"])
def test_an_attachment_is_recognized_by_its_content(data: bytes, kind: str) -> None:
    """Whatever type it says it has."""
    assert list(attached.contents(mail_with(data, kind))) == [XML]


def test_a_mail_that_consists_of_the_report_alone() -> None:
    mail = b"From: a@example.org\r\nContent-Type: application/gzip\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    encoded = base64.b64encode(gzip.compress(XML))
    assert list(attached.contents(mail + encoded + b"\r\n")) == [XML]


@pytest.mark.parametrize("name", ["mail-dmarc.eml", "tlsrpt-reporter.eml"])
def test_mails_of_other_software(name: str) -> None:
    [content] = attached.contents(sample(name))
    assert content[:1] in b"<{"


def test_a_zip_written_as_a_stream() -> None:
    assert attached.unpacked(sample("mail-dmarc.zip")).startswith(b"<?xml")


def test_a_bomb_is_not_decompressed() -> None:
    bomb = gzip.compress(bytes(attached.UNPACKED + 1))
    assert len(bomb) < 50_000
    for data in (bomb, zipped(bytes(attached.UNPACKED + 1))):
        with pytest.raises(UnreadableReport, match="larger than"):
            attached.unpacked(data)
    with pytest.raises(UnreadableReport, match="larger than"):
        attached.unpacked(b"x" * 11, limit=10)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(XML * 100)[:-20],
        b"\x1f\x8bnot gzip at all",
        zipped(XML)[:20],
        b"PK\x03\x04" + bytes([20, 0, 1, 0, 8, 0]) + bytes(40),  # encrypted
        b"PK\x03\x04" + bytes([20, 0, 0, 0, 99, 0]) + bytes(40),  # an unknown method
        b"PK\x03\x04" + bytes([20, 0, 0, 0, 8, 0]) + bytes(16) + b"\xff\xff\xff\xff" + bytes(10),  # a name beyond its end
    ],
    ids=["gzip cut off", "no gzip", "zip cut off", "encrypted", "unknown method", "name beyond its end"],
)
def test_damaged_archives_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableReport):
        attached.unpacked(data)


def test_what_is_no_report_is_left_out() -> None:
    assert list(attached.contents(b"Subject: hello\r\n\r\nIs anybody there?\r\n")) == []
    assert list(attached.contents(mail_with(b"%PDF-1.7", "application/pdf"))) == []


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x1f\x8b\x08", b"PK\x03\x04"]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    with contextlib.suppress(UnreadableReport):
        assert len(attached.unpacked(start + data, limit=1000)) <= 1000


@given(st.binary(max_size=500))
def test_what_was_compressed_comes_back(data: bytes) -> None:
    for packed in (gzip.compress(data), zipped(data), zipped(data, zipfile.ZIP_STORED)):
        assert attached.unpacked(packed) == data
