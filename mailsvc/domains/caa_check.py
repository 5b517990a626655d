"""Whether the zone of a tracking subdomain lets the certificate authority of tracked links issue certificates (RFC 8659). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mailsvc.domains import names
from mailsvc.net.dns import Caa
from mailsvc.store.domains.values import CAA, RecordState

LEVELS = 10  # names above a host that are looked at


def places(host: str) -> list[str]:
    """Where a CAA record for the host can be, the nearest first (8659 §3)."""
    zone = names.registrable(host) or host
    labels = host.split(".")
    above = [".".join(labels[start:]) for start in range(len(labels))]
    return [name for name in above if name == zone or name.endswith(f".{zone}")][:LEVELS]


def state(host: str, place: str, found: Sequence[Caa], authority: str) -> RecordState | None:
    """The record that allows the authority; None if the zone restricts nobody. `found`: at `place`, the nearest that has any.

    A record cannot be beside the CNAME of the host itself, so it belongs to the name above.
    """
    issuers = [each.value.partition(";")[0].strip().lower() for each in found if each.tag == "issue"]  # 8659 §4.2
    if not issuers:
        return None
    values = tuple(f'{each.flags} {each.tag} "{each.value}"' for each in found)
    where = place if place != host else host.partition(".")[2]
    wanted = f'0 issue "{authority}"'
    if authority.lower() in issuers:
        return RecordState(CAA, "CAA", where, wanted, False, "verified", values, place)
    message = f"The CAA records of {place} do not allow {authority} to issue certificates, so links at {host} would not work. Add this one."
    return RecordState(CAA, "CAA", where, wanted, False, "pending", values, place, "missing", message)
