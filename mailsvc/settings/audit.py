"""The settings of the audit log. What they do: docs/audit.md."""

from __future__ import annotations

from pathlib import Path

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


def _host_and_port(value: str) -> str | None:
    host, colon, port = value.rpartition(":")
    good = host and colon and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535 and not set(host) & set("/ []@")
    return None if good else 'expected a host name and a port, such as "siem.example.com:6514"'


def _url(value: str) -> str | None:
    good = value.startswith("https://") and len(value) > len("https://") and not set(value) & set(" \t\r\n#")
    return None if good else 'expected a URL that begins with "https://"'


@attrs.frozen
class Audit:
    """The audit log: signed anchors, and where its lines are sent."""

    signing_key: Path | None = setting(
        None,
        "The file with the key that signs anchors, made by `mailsvc audit key`. If not set, there are no anchors.",
        example="/var/lib/mailsvc/audit.pem",
    )
    anchor_seconds: float = setting(3600.0, "Seconds between two anchors, if there are new lines.", check=checks.at_least(1))
    anchor_file: Path | None = setting(
        None, "A file that anchors are appended to. Keep it where the database's owner cannot change it.",
        example="/mnt/write-once/mailsvc-anchors.jsonl",
    )  # fmt: skip
    syslog: str | None = setting(
        None, "A syslog server that gets lines and anchors over TLS (RFC 5424, RFC 5425): its host name and port.",
        check=_host_and_port, example="siem.example.com:6514",
    )  # fmt: skip
    syslog_ca: Path | None = setting(
        None, "The certificate authorities (PEM) that the syslog server's certificate must come from. If not set, those of this machine.",
        example="/etc/mailsvc/siem-ca.pem",
    )  # fmt: skip
    url: str | None = setting(
        None, "An HTTPS URL that gets lines and anchors in POST requests, as JSON lines.", check=_url, example="https://siem.example.com/in"
    )
    authorization: str | None = setting(None, "The Authorization header of these requests.", secret=True, example="")
    seconds: float = setting(10.0, "Timeout in seconds for sending a batch to either of them.", check=checks.between(1, 120))
