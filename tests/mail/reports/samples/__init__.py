"""Reports written by other software (README.md says how), and mails around them."""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parent


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def mail_with(data: bytes, kind: str = "application/gzip", name: str = "report.gz") -> bytes:
    """A mail with a text and one attachment."""
    encoded = "\r\n".join(textwrap.wrap(base64.b64encode(data).decode(), 76))
    return (
        "From: reports@receiver.example\r\nSubject: Report Domain: example.com\r\nMIME-Version: 1.0\r\n"
        "Content-Type: multipart/mixed; boundary=b\r\n\r\n"
        "--b\r\nContent-Type: text/plain\r\n\r\nThis is a report.\r\n"
        f"--b\r\nContent-Type: {kind}; name={name}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: attachment; filename={name}\r\n\r\n{encoded}\r\n--b--\r\n"
    ).encode()
