"""Which DMARC policy receivers find for a sending domain (RFC 9989 §4.10), and what its owner is told of it. Advice, never a hindrance."""

from __future__ import annotations

from typing import Protocol

import attrs

from mailsvc.domains import records
from mailsvc.mail.authentication import dmarc
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.store.domains.values import RecordState


class Names(Protocol):
    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary: ...


@attrs.frozen
class Found:
    """The policy that counts, the name it stands at, and the organizational domain. `texts` is what stands at the domain itself."""

    record: dmarc.Record | None
    at: str | None
    organization: str
    texts: tuple[str, ...] = ()
    unanswered: str | None = None


async def walk(names: Names, domain: str) -> Found:
    """The domain's own policy if it has one, else that of its organizational domain, else that of the public suffix."""
    own: tuple[str, ...] = ()
    seen: list[tuple[str, dmarc.Record]] = []
    for step, at in enumerate(dmarc.walk(domain)):
        answer = await names.txt(f"_dmarc.{at}")
        if isinstance(answer, Temporary):
            return Found(None, None, domain, own, answer.reason)
        texts = answer.values if isinstance(answer, Records) else ()
        if not step:
            own = tuple(text for text in texts if dmarc.is_dmarc(text))
        record = dmarc.only(texts)
        if record is None:
            continue
        seen.append((at, record))
        if record.psd != "u":
            break
    organization = _organization(domain, seen)
    by_name = dict(seen)
    # §4.10.1: the domain's own record, else its organizational domain's, else a public suffix's
    place = next((name for name in (domain, organization, *(name for name, record in seen if record.psd == "y")) if name in by_name), None)
    return Found(by_name.get(place) if place else None, place, organization, own)


def _organization(domain: str, seen: list[tuple[str, dmarc.Record]]) -> str:
    """§4.10.2: one that says psd=n; one label below psd=y; else the shortest name with a policy."""
    for name, record in seen:
        if record.psd == "n":
            return name
        if record.psd == "y" and name != domain:
            below = domain.removesuffix(f".{name}").rpartition(".")[2]
            return f"{below}.{name}"
    return seen[-1][0] if seen else domain


def advice(domain: str, found: Found) -> RecordState:
    """What stands there, whether it is any good, and what would be better."""
    wanted = records.dmarc(domain)
    state = RecordState("DMARC", "TXT", wanted.name, wanted.value, False, "pending", found.texts)
    if found.unanswered is not None:
        return attrs.evolve(state, problem="unanswered", told=f"DNS gave no answer: {found.unanswered}.")
    if len(found.texts) > 1:
        return attrs.evolve(state, problem="several", told=f"{wanted.name} has {len(found.texts)} policies, so that none counts; keep one.")
    record = found.record
    if record is None:
        word = "unreadable" if found.texts else "missing"
        return attrs.evolve(state, problem=word, told="Receivers find no DMARC policy. Publish this one; large receivers ask for it.")
    at = found.at or domain
    inherited = at != domain
    policy = (record.subdomains or record.policy) if inherited else record.policy
    whose = f"The policy of {at} applies" if inherited else "A policy is published"
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in record.notes)
    if inherited and (record.strict_dkim or record.strict_spf):
        notes += " It asks for strict alignment; mail is signed for the domain in From itself, so that it passes by DKIM."
    found_state = attrs.evolve(state, status="verified", where=f"_dmarc.{at}")
    if policy == "none" or record.testing:
        better = (
            "p=quarantine with t=y, and later p=reject" if record.reports else "rua= to receive reports, and then p=quarantine with t=y"
        )
        weak = "t=y lowers it by one step" if record.testing else "p=none asks receivers for nothing"
        return attrs.evolve(found_state, problem="weak", told=f"{whose}; {weak}. Consider {better}.{notes}")
    return attrs.evolve(found_state, told=f"{whose}: {policy}.{notes}")
