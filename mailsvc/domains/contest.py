"""Two accounts and one domain name: who has it after a check. Pure.

A domain that is proven takes the name over from the account that has it, but only when that account's DKIM records are gone from DNS. As
long as one of them is there, or nobody can say, the name stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mailsvc.domains.checking import Findings
from mailsvc.domains.judge import GONE
from mailsvc.store.domains.values import Claim, ClaimStatus, Domain, RecordState

ASSIGNED = "The operator of this service has assigned this name to another account."


@attrs.frozen
class Contest:
    """`loser` loses the name to the domain that was checked. `claim` is what becomes of its open claim, None: nothing new."""

    findings: Findings
    loser: Domain | None = None
    claim: ClaimStatus | None = None
    reason: str | None = None


def contest(findings: Findings, holder: Domain | None, proof: Sequence[RecordState], claim: Claim | None) -> Contest:
    """Of a domain that is proven, by its own records or its claim's.

    `holder` is the domain that has its name, `proof` what was found of that one's DKIM records.
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
    """Why the holder keeps the name, as a sentence; None when it does not."""
    if holder.trusted:
        return ASSIGNED
    if holder.status != "verified":  # trusted before, in a configuration that does not trust now
        return None
    there = [state for state in proof if state.problem not in GONE]
    if not there:
        return None
    unanswered = [state.name for state in there if state.problem in ("unanswered", "differing")]
    names = ", ".join(state.name for state in there)
    if len(unanswered) == len(there):
        return f"Another account has this domain, and DNS does not tell for certain that its DKIM records are gone: {names}."
    return f"Another account has this domain, and its DKIM records are still in DNS: {names}. Remove them to take the domain over."


def _with(findings: Findings, reason: str) -> Findings:
    """The same findings, in which one required DKIM record is not good enough."""
    records = list(findings.records)
    for index, state in enumerate(records):
        if state.purpose == "DKIM" and state.required and state.status == "verified":
            records[index] = attrs.evolve(state, status="pending", problem="held", told=reason)
            break
    return attrs.evolve(findings, records=tuple(records))
