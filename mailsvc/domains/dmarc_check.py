"""The DMARC policy that applies to a sending domain (RFC 9989 §4.10), and advice about it. It never prevents sending."""

from __future__ import annotations

import attrs

from mailsvc.domains.records import Record
from mailsvc.mail.authentication import dmarc, tags
from mailsvc.net.dns import Records, Resolver, Temporary
from mailsvc.store.domains.values import RecordState


@attrs.frozen
class Found:
    """The policy that applies, its name, and the organizational domain.

    `texts`: the policies at the domain itself; if there is none, the text of the one that applies.
    """

    record: dmarc.Record | None
    at: str | None
    organization: str
    texts: tuple[str, ...] = ()
    unanswered: str | None = None


async def walk(resolver: Resolver, domain: str) -> Found:
    """The domain's own policy; otherwise that of its organizational domain, or of the public suffix."""
    policies: dict[str, tuple[str, ...]] = {}
    seen: list[tuple[str, dmarc.Record]] = []
    for at in dmarc.walk(domain):
        answer = await resolver.txt(f"_dmarc.{at}")
        if isinstance(answer, Temporary):
            return Found(None, None, domain, policies.get(domain, ()), answer.reason)
        policies[at] = tuple(filter(dmarc.is_dmarc, answer.values)) if isinstance(answer, Records) else ()
        record = dmarc.only(policies[at])
        if record is None:
            continue
        seen.append((at, record))
        if record.psd != "u":
            break
    organization = _organization(domain, seen)
    by_name = dict(seen)
    # §4.10.1: the domain's own record, its organizational domain's, or a public suffix's
    place = next((name for name in (domain, organization, *(name for name, record in seen if record.psd == "y")) if name in by_name), None)
    return Found(by_name.get(place) if place else None, place, organization, policies[domain] or policies.get(place or "", ()))


def _organization(domain: str, seen: list[tuple[str, dmarc.Record]]) -> str:
    """§4.10.2: the name with psd=n, or one label below psd=y, or the shortest name with a policy."""
    for name, record in seen:
        if record.psd == "n":
            return name
        if record.psd == "y" and name != domain:
            below = domain.removesuffix(f".{name}").rpartition(".")[2]
            return f"{below}.{name}"
    return seen[-1][0] if seen else domain


def advice(domain: str, found: Found, expected: Record) -> RecordState:
    """What was found, whether it is effective, and the next step. `expected`: what to publish if there is nothing."""
    state = RecordState("DMARC", "TXT", expected.name, expected.value, False, "pending", found.texts)
    if found.unanswered is not None:
        return attrs.evolve(state, problem="unanswered", message=f"DNS did not answer: {found.unanswered}.")
    if len(found.texts) > 1:
        return attrs.evolve(
            state,
            problem="several",
            message=f"{expected.name} has {len(found.texts)} policies, so receivers ignore all of them. Keep only one.",
        )
    record = found.record
    if record is None:
        if found.texts:
            message = f"The policy at {expected.name} is invalid, so receivers ignore it. Replace it with this one."
            return attrs.evolve(state, problem="unreadable", message=message)
        return attrs.evolve(state, problem="missing", message="There is no DMARC policy. Add this one: large receivers require it.")
    at = found.at or domain
    inherited = at != domain
    policy = (record.subdomains or record.policy) if inherited else record.policy
    whose = f"The policy of {at} applies" if inherited else "A policy is published"
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in record.notes)
    if inherited and (record.strict_dkim or record.strict_spf):
        notes += " It requires strict alignment. Email passes by DKIM, because it is signed with the exact domain in From."
    if inherited and dmarc.only(found.texts) is None:
        notes += f" The record at {expected.name} is invalid, so receivers ignore it: replace or remove it."
    missing = _missing_reports(record, expected)
    if missing:
        notes += f" To see here who sends as this domain, add {missing} to its rua."
    better = expected.value.replace("p=none", f"p={policy}") if inherited else tags.with_destination(found.texts[0], missing)
    found_state = attrs.evolve(state, status="verified", where=f"_dmarc.{at}", expected=better)
    return attrs.evolve(found_state, message=f"{whose}: {policy}.{_next_step(record, policy, expected)}{notes}")


def _next_step(record: dmarc.Record, policy: dmarc.Policy, expected: Record) -> str:
    """A weak policy is no problem: it is the one that we recommend to begin with."""
    if record.testing:
        return " t=y weakens it by one step. Remove it once reports show that your email passes."
    if policy == "none":
        reports = "" if record.reports or "rua=" in expected.value else "add rua= to receive reports, and "
        return f" It has no effect on delivery, which is right to begin with. Next, {reports}use p=quarantine with t=y, later p=reject."
    return ""


def _missing_reports(record: dmarc.Record, expected: Record) -> str:
    """The destination that we offer for reports; empty if the policy has it, or if we offer none."""
    offered = dmarc.parse(expected.value)
    wanted = offered.reports if offered is not None else ()
    known = {uri.partition("!")[0].lower() for uri in record.reports}  # 7489 §6.4: a size can follow
    return "" if not wanted or known & set(wanted) else wanted[0]
