"""The DNS records that the owner of a sending domain has to publish, derived from the domain and its keys. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.mail import report_address
from mailsvc.mail.authentication import dkim
from mailsvc.store.domains.values import CAA, TRACKING, DkimKey, Domain, RecordState

Type = Literal["TXT", "MX", "CNAME", "CAA"]
SLOTS = 2  # alternating selectors if DKIM names are delegated


@attrs.frozen
class Record:
    """A record. `name` is absolute, without a trailing dot.

    `required`: the domain cannot send without it. `key`: the TXT record that must exist at the target of a CNAME.
    """

    purpose: Literal["SPF", "DKIM", "DMARC", "TLS-RPT", "Tracking", "TrackingCAA"]
    type: Type
    name: str
    value: str
    priority: int | None = None
    required: bool = True
    key: str | None = None


@attrs.frozen
class Publishing:
    """The operator's settings for these records.

    `hosts`: the host of each region that receives bounces; `spf_includes`: by region, a name whose SPF record lists all sending
    addresses (default: the addresses of the host); `dkim_zone`: the operator's zone for delegated DKIM keys; `reports_secret`: signs
    the addresses for reports, None if they are not offered; `tracking_host`: what tracking subdomains point to; `authority`: issues
    their certificates, None if it is not known.
    """

    hosts: Mapping[str, str]
    spf_includes: Mapping[str, str] = attrs.field(factory=dict)
    dkim_zone: str | None = None
    reports_secret: Callable[[], bytes | None] = attrs.field(default=lambda: None, repr=False)
    tracking_host: str | None = None
    authority: str | None = None

    def host(self, region: str) -> str:
        return self.hosts.get(region, "localhost")

    def spf(self, region: str) -> str:
        included = self.spf_includes.get(region)
        ours = f"include:{included}" if included else f"a:{self.host(region)}"
        return f"v=spf1 {ours} ~all"  # 7208 §5.2, §5.3

    def advised(self, domain: Domain) -> tuple[Record, ...]:
        """Records that are recommended. Those of reports have the domain's address for them, at the host that also receives its bounces."""
        secret = self.reports_secret()
        if secret is None:
            return (dmarc(domain.name),)
        address = report_address.make(f"{domain.return_path}.{domain.name}", domain.id, secret)
        return dmarc(domain.name, address), tls_reports(domain.name, address)

    def records(self, domain: Domain, keys: Sequence[DkimKey]) -> tuple[Record, ...]:
        """The records to publish. A key that no longer signs is left out; a new one is included but not required."""
        envelope = f"{domain.return_path}.{domain.name}"
        return (
            Record("SPF", "MX", envelope, self.host(domain.region), priority=10),  # makes MAIL FROM able to receive bounces
            Record("SPF", "TXT", envelope, self.spf(domain.region)),
            *self._dkim(domain, keys),
            *self._tracking(domain),
        )

    def target(self, domain_id: UUID, selector: str) -> str:
        """The name of a delegated key in the operator's zone."""
        return f"{selector}.{domain_id.hex[-12:]}.{self.dkim_zone}"

    def zone(self, keys: Sequence[tuple[UUID, DkimKey]]) -> list[str]:
        """The lines of the operator's zone; a retired key is published as revoked (6376 §3.6.1)."""
        return [in_zone_file(Record("DKIM", "TXT", self.target(domain_id, key.selector), _key_text(key))) for domain_id, key in keys]

    def _tracking(self, domain: Domain) -> list[Record]:
        """Former subdomains are included, because links in mail that was sent lead there. A CAA record is if the last check asks for it."""
        if self.tracking_host is None:
            return []
        hosts = [Record(TRACKING, "CNAME", host, self.tracking_host, required=False) for host in domain.tracking_hosts]
        asked = [state for state in domain.records if state.purpose == CAA]
        return [*hosts, *[Record(CAA, "CAA", state.name, state.expected, required=False) for state in asked]]

    def _dkim(self, domain: Domain, keys: Sequence[DkimKey]) -> list[Record]:
        if not (domain.delegated and self.dkim_zone):
            shown = [key for key in keys if key.state != "leaving"]
            return [Record("DKIM", "TXT", _name(key.selector, domain), _key_text(key), required=_needed(key, domain)) for key in shown]
        signing = {key.selector: _key_text(key) for key in keys if _needed(key, domain)}
        selectors = [selector for algorithm in domain.signs_with for selector in slots(algorithm)]
        # All slots from the start, so that the owner has nothing to do for a rotation.
        return [
            Record("DKIM", "CNAME", _name(selector, domain), self.target(domain.id, selector), key=signing.get(selector))
            for selector in selectors
        ]


def slots(algorithm: dkim.Algorithm) -> list[str]:
    """The alternating selectors of an algorithm if DKIM names are delegated."""
    return [f"ms{number}{algorithm[0]}" for number in range(1, SLOTS + 1)]


def _name(selector: str, domain: Domain) -> str:
    return f"{selector}._domainkey.{domain.name}"


def _needed(key: DkimKey, domain: Domain) -> bool:
    return key.state == "signing" and key.algorithm in domain.signs_with


def dmarc(domain: str, reports: str | None = None) -> Record:
    """The policy to start with if there is none (9989 §4.7), with the address for reports."""
    wanted = f" rua=mailto:{reports};" if reports else ""
    return Record("DMARC", "TXT", f"_dmarc.{domain}", f"v=DMARC1; p=none;{wanted}", required=False)


def improved(record: Record, state: RecordState | None) -> Record:
    """A recommended record as the owner should publish it: a policy that exists keeps what it says."""
    return attrs.evolve(record, value=state.expected) if state is not None and state.status == "verified" else record


def tls_reports(domain: str, address: str) -> Record:
    """Asks for reports about TLS connections to the domain's mail servers (8460 §3)."""
    return Record("TLS-RPT", "TXT", f"_smtp._tls.{domain}", f"v=TLSRPTv1; rua=mailto:{address}", required=False)


def in_zone_file(record: Record) -> str:
    """The record as a line in a zone file (1035 §5.1)."""
    if record.type == "MX":
        return f"{record.name}. MX {record.priority} {record.value}."
    if record.type == "CNAME":
        return f"{record.name}. CNAME {record.value}."
    if record.type == "CAA":
        return f"{record.name}. CAA {record.value}"
    return f"{record.name}. TXT {quoted(record.value)}"


def quoted(value: str) -> str:
    """Quoted strings of at most 255 bytes (1035 §3.3), which receivers join without a space (6376 §3.6.2.2)."""
    return " ".join(f'"{value[start : start + 255]}"' for start in range(0, len(value), 255))


def _key_text(key: DkimKey) -> str:
    return dkim.dns_record(key.algorithm, "" if key.state == "retired" else key.public)
