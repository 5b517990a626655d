"""The DNS records that the owner of a sending domain publishes. Pure: from the domain and its keys to lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import attrs

from mailsvc.mail import dkim


class PublicKey(Protocol):
    """What of a DKIM key is published."""

    @property
    def selector(self) -> str: ...
    @property
    def algorithm(self) -> dkim.Algorithm: ...
    @property
    def public(self) -> str: ...


@attrs.frozen
class Record:
    """One record. `purpose` is what it is for: SPF, DKIM or DMARC; `name` is absolute, without a dot at its end."""

    purpose: Literal["SPF", "DKIM", "DMARC"]
    type: Literal["TXT", "MX"]
    name: str
    value: str
    priority: int | None = None


def to_publish(domain: str, return_path: str, sending_host: str, keys: Sequence[PublicKey]) -> tuple[Record, ...]:
    """The records of `domain`, whose mail leaves from `sending_host` with MAIL FROM below `return_path`.`domain`."""
    envelope = f"{return_path}.{domain}"
    return (
        Record("SPF", "MX", envelope, sending_host, priority=10),  # a MAIL FROM that takes bounces
        Record("SPF", "TXT", envelope, f"v=spf1 a:{sending_host} ~all"),  # 7208 §5.3
        *(_dkim(domain, key) for key in keys),
        Record("DMARC", "TXT", f"_dmarc.{domain}", "v=DMARC1; p=none;"),  # 7489 §6.3
    )


def in_zone_file(record: Record) -> str:
    """The record as a line of a zone file (1035 §5.1)."""
    if record.type == "MX":
        return f"{record.name}. MX {record.priority} {record.value}."
    # A character-string holds 255 octets at most (1035 §3.3); receivers join them without a space (6376 §3.6.2.2).
    parts = [record.value[start : start + 255] for start in range(0, len(record.value), 255)]
    return f"{record.name}. TXT " + " ".join(f'"{part}"' for part in parts)


def _dkim(domain: str, key: PublicKey) -> Record:
    return Record("DKIM", "TXT", f"{key.selector}._domainkey.{domain}", dkim.dns_record(key.algorithm, key.public))
