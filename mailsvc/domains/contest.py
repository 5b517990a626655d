"""Two accounts with the same domain name: which one has it verified after a check. Pure.

A verified domain takes the name over from another account only if that account's DKIM records are gone from DNS. As long as one of them
exists, or DNS does not answer, the other account keeps the name.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mailsvc.domains.checking import Findings
from mailsvc.domains.judge import ABSENT
from mailsvc.store.domains.values import Claim, ClaimStatus, Domain, RecordState

ASSIGNED = "The operator of this service has assigned this name to another account."


@attrs.frozen
class Contest:
    """`loser`: the domain that loses the name. `claim`: the new status of the open claim, None if unchanged."""

    findings: Findings
    loser: Domain | None = None
    claim: ClaimStatus | None = None
    reason: str | None = None


def contest(findings: Findings, holder: Domain | None, proof: Sequence[RecordState], claim: Claim | None) -> Contest:
    """Decide for a domain that is proven by its records or its claim.

    `holder`: the domain that has the name verified; `proof`: the state of its DKIM records.
    """
    completed: ClaimStatus | None = None if claim is None else "completed"
    if holder is None:
        return Contest(findings, claim=completed)
    reason = _held(holder, proof)
    if reason is None:
        failed = tuple(attrs.evolve(state, status="failed") for state in proof)
        others = tuple(state for state in holder.records if state.purpose != "DKIM")
        return Contest(findings, attrs.evolve(holder, records=(*others, *failed)), completed)
    return Contest(_with(findings, reason), claim=None if claim is None else "blocked", reason=reason)


def _held(holder: Domain, proof: Sequence[RecordState]) -> str | None:
    """Why the holder keeps the name, as a sentence. None if it does not."""
    if holder.trusted:
        return ASSIGNED
    if holder.status != "verified":  # was trusted under a previous configuration
        return None
    present = [state for state in proof if state.problem not in ABSENT]
    if not present:
        return None
    unanswered = [state.name for state in present if state.problem in ("unanswered", "differing")]
    names = ", ".join(state.name for state in present)
    if len(unanswered) == len(present):
        return f"Another account has verified this domain, and DNS did not confirm that its DKIM records are gone: {names}."
    return f"Another account has verified this domain, and its DKIM records are still in DNS: {names}. Remove them to take over the domain."


def _with(findings: Findings, reason: str) -> Findings:
    """The same findings with one required DKIM record marked as held."""
    records = list(findings.records)
    for index, state in enumerate(records):
        if state.purpose == "DKIM" and state.required and state.status == "verified":
            records[index] = attrs.evolve(state, status="pending", problem="held", message=reason)
            break
    return attrs.evolve(findings, records=tuple(records))
