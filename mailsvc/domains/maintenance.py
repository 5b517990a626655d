"""What is done for sending domains: made, checked when they are due or somebody asks, their keys rotated.

Decisions are in life and rotation, looking is in checking, writing down is in store/domains/domains and store/domains/checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.domains import lifecycle, names, rotation
from mailsvc.domains.checking import Checker, Findings
from mailsvc.domains.contest import Contest, contest
from mailsvc.domains.fair_share import Busy, FairShare
from mailsvc.domains.keypair import KeyPair, new_pair
from mailsvc.domains.records import Publishing, slots
from mailsvc.domains.rotation import Rules
from mailsvc.mail.authentication.dkim import Algorithm
from mailsvc.store.domains.checks import DomainChecks, KeysMoving, Result
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Choices, DkimKey, Domain, Domains
from mailsvc.store.domains.values import Claim, DomainLimits, LimitReached
from mailsvc.store.people.audit import Line
from mailsvc.store.postgres.errors import Conflict

ALGORITHMS: tuple[Algorithm, ...] = ("rsa", "ed25519")

KEY_THREADS = 2
WAITING = 200  # domains of one account whose keys wait to be made

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Taken(Exception):
    """The account has a domain of this name."""


class Rotating(Exception):
    """A rotation of this domain's keys is under way."""


class Unseen(Exception):
    """The names at which DNS has not the keys that are to sign."""


@attrs.define(eq=False)
class Care:
    """`own` are the operator's names, `wake` is called when something has become due. `in_thread` has threads for making keys."""

    domains: Domains
    checks: DomainChecks
    claims: DomainClaims
    checker: Checker
    publishing: Publishing
    rules: Rules
    in_thread: InThread
    own: Collection[str] = ()
    wake: Callable[[], None] = lambda: None
    limits: DomainLimits = DomainLimits()
    # Keys cost CPU time, so accounts take turns. Each has one place and some more domains waiting.
    _making: FairShare = attrs.field(factory=lambda: FairShare(KEY_THREADS, 1, waiting=WAITING), init=False)

    # Asked for; `lines` go into the account's audit log with the change

    async def add(
        self,
        account_id: UUID,
        text: str,
        region: str,
        choices: Choices | None = None,
        lines: Sequence[Line] = (),
        *,
        limited: bool = True,
    ) -> Domain:
        """A new domain with a key of each algorithm, also when another account has the name: DNS decides whose it is.

        Raises names.NotADomain, Taken, or LimitReached unless `limited` is off.
        """
        name = names.parse(text, self.own)
        if any(found.account_id == account_id for found in await self.domains.claimants(name.ascii)):
            raise Taken(name.shown)
        limits = self.limits if limited else None
        if limits is not None:
            await self.domains.check_limits(account_id, limits)  # before keys are made; it is checked again when they are stored
        chosen = attrs.evolve(choices or Choices(), delegated=self.publishing.dkim_zone is not None)
        selectors = {algorithm: slots(algorithm)[0] for algorithm in ALGORITHMS} if chosen.delegated else {}
        try:
            pairs = await self._pairs(account_id, ALGORITHMS, selectors)
            return await self.domains.add(account_id, name.ascii, region, pairs, chosen, lines, limits)
        except Conflict:
            raise Taken(name.shown) from None
        except Busy:
            raise LimitReached(
                "Too many domains of this account are being added at the same time. Try again in a few seconds.", 5
            ) from None

    async def claim(
        self, account_id: UUID, text: str, region: str, choices: Choices | None = None, lines: Sequence[Line] = ()
    ) -> tuple[Claim, bool]:
        """A claim of a name that another account has, with a domain of this name for the account; and whether the claim is new.

        A name that no other account has needs no proof of its own: that claim is completed at once. Raises what `add` raises; Taken
        also when the account has the domain and no open claim of it.
        """
        name = names.parse(text, self.own)
        everybody = await self.domains.claimants(name.ascii)
        own = next((domain for domain in everybody if domain.account_id == account_id), None)
        held = any(domain.account_id != account_id and (domain.trusted or domain.status == "verified") for domain in everybody)
        if own is None:
            own = await self.add(account_id, text, region, choices, lines)
            lines = ()  # they went into the log with the domain
        else:
            before = await self.claims.of(account_id, own.id)
            if before is not None and before.open:
                return before, False
            if before is None or not held or before.status not in ("expired", "superseded"):
                raise Taken(name.shown)
        return await self.claims.make(own, "pending" if held else "completed", lines), True

    async def verify(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None:
        """Have it checked soon; None when it is not there any more."""

        def decide(now: Domain) -> tuple[Domain, str | None]:
            sentence = None if now.status in ("verified", "pending") else "Verification was asked for."
            return lifecycle.asked(now, self.domains.now()), sentence

        asked = await self.checks.ask(domain.id, decide, lines)
        self.wake()
        return asked

    async def rotate(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None:
        """New keys, which sign once they are seen in DNS. Raises Rotating."""
        keys = await self.domains.published_keys(domain.id)
        if any(rotation.busy(keys, algorithm) for algorithm in domain.signs_with):
            raise Rotating
        try:
            rotated = await self._renew(domain, keys, domain.signs_with, lines)
        except KeysMoving:
            raise Rotating from None
        self.wake()
        return rotated

    async def sign_with(self, domain: Domain, algorithms: Sequence[Algorithm]) -> Domain | None:
        """Which of its keys sign from now on. Raises Unseen when it sends and DNS has not the keys that would sign."""
        if domain.status == "verified" and not domain.trusted:
            wanted = attrs.evolve(domain, signs_with=tuple(algorithms))
            findings = await self.checker.check(wanted, await self.domains.published_keys(domain.id))
            needed = [record for record in findings.records if record.purpose == "DKIM" and record.required]
            missing = [record.name for record in needed if record.status != "verified"]
            if missing:
                raise Unseen(", ".join(missing))
        chosen = await self.domains.sign_with(domain.id, algorithms)
        self.wake()
        return chosen

    # Due

    async def look_after(self, domain: Domain) -> Domain | None:
        """Check a domain that was taken for it, write down what was found; None when that was overtaken."""
        keys = await self.domains.published_keys(domain.id)
        decided = await self._contest(domain, await self.checker.check(domain, keys))
        findings = decided.findings
        now = self.domains.now()
        steps = rotation.moves(keys, findings.confirmed, self.rules, now)
        promoted = {f"{key.selector}._domainkey.{domain.name}" for key in rotation.moved(keys, steps) if key.state == "signing"}
        left = {f"{step.key.selector}._domainkey.{domain.name}" for step in steps if step.state == "leaving"}
        records = [
            attrs.evolve(record, required=True) if record.name in promoted else record
            for record in findings.records
            if record.name not in left or record.type == "CNAME"
        ]
        after = self._due_again(lifecycle.checked(domain, records, findings.advice, now), rotation.moved(keys, steps), now)
        told = [*lifecycle.sentences(domain, after), *rotation.sentences(steps)]
        changed = bool(steps) or after.status != domain.status or _states(after) != _states(domain)
        result = Result(after, steps, told, changed, decided.loser, decided.claim, decided.reason)
        recorded = await self.checks.record(domain, result)
        if recorded is not None and recorded.status == "verified":
            late = rotation.due(rotation.moved(keys, steps), self.rules, now)
            if late:
                with suppress(KeysMoving):
                    return await self._renew(recorded, rotation.moved(keys, steps), late)
        return recorded

    async def _contest(self, domain: Domain, findings: Findings) -> Contest:
        """What these findings mean for another account that has the name verified."""
        if domain.status != "pending":
            return Contest(findings)
        claim = await self.claims.of(domain.account_id, domain.id)
        if claim is not None and not claim.open:
            claim = None
        proven = all(record.status == "verified" for record in findings.records if record.required)
        if not proven and (claim is None or not await self.checker.claimed(domain, claim.record)):
            return Contest(findings)
        holder = await self.checks.holder(domain)
        found = () if holder is None else await self.checker.proof(holder, await self.domains.published_keys(holder.id))
        return contest(findings, holder, found, claim)

    def _due_again(self, domain: Domain, keys: Sequence[DkimKey], now: datetime) -> Domain:
        """While a new key waits to be seen, a verified domain is looked at as often as one in grace."""
        if domain.status == "verified" and domain.next_check_at is not None and any(key.state == "published" for key in keys):
            return attrs.evolve(domain, next_check_at=min(domain.next_check_at, now + lifecycle.BACKOFF[-1]))
        return domain

    async def _renew(
        self, domain: Domain, keys: Sequence[DkimKey], algorithms: Sequence[Algorithm], lines: Sequence[Line] = ()
    ) -> Domain | None:
        taken = {key.selector for key in keys}
        free = {a: next(slot for slot in slots(a) if slot not in taken) for a in algorithms} if domain.delegated else {}
        pairs = await self._pairs(domain.account_id, algorithms, free)
        named = ", ".join(pair.selector for pair in pairs)
        sentence = f"New DKIM keys: {named}. They sign once they are seen in DNS."
        now = self.domains.now()
        again = now + lifecycle.BACKOFF[0] if domain.status in ("verified", "pending") or domain.trusted else domain.next_check_at
        return await self.checks.add_keys(domain, pairs, sentence, again, lines)

    async def _pairs(self, account_id: UUID, algorithms: Sequence[Algorithm], selectors: dict[Algorithm, str]) -> Sequence[KeyPair]:
        today = self.domains.now().date()
        async with self._making.place(account_id):
            pairs: Sequence[KeyPair] = await self.in_thread(lambda: [new_pair(a, today, selectors.get(a)) for a in algorithms])
        return pairs


def _states(domain: Domain) -> list[tuple[str, str, str, str | None]]:
    """What its account is told of when it changes."""
    return [(r.type, r.name, r.status, r.problem) for r in (*domain.records, *domain.advice)]
