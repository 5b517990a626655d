"""Adds sending domains, checks them and rotates their keys.

Decisions: lifecycle, contest and rotation. DNS: checking. SQL: store/domains. What is due: schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.domains import lifecycle, names, rotation
from mailsvc.domains.checking import Checker, Findings
from mailsvc.domains.contest import Contest, contest
from mailsvc.domains.keypair import KeyPair, new_pair
from mailsvc.domains.records import Publishing, slots
from mailsvc.domains.rotation import Rules
from mailsvc.fair_share import FairShare, TooManyWaiting
from mailsvc.mail.authentication.dkim import Algorithm
from mailsvc.runtime.offload import InThread
from mailsvc.store.domains.checks import DomainChecks, KeysChanging, Result
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Choices, DkimKey, Domain, Domains
from mailsvc.store.domains.values import Claim, DomainLimits, LimitReached
from mailsvc.store.people.audit import Line
from mailsvc.store.people.residence import RegionRefused
from mailsvc.store.postgres.errors import Conflict

ALGORITHMS: tuple[Algorithm, ...] = ("rsa", "ed25519")

KEY_THREADS = 2
WAITING_PER_ACCOUNT = 200  # domains of one account waiting for key generation


class AlreadyAdded(Exception):
    """The account already has a domain with this name."""


class RotationInProgress(Exception):
    """The domain's keys are being rotated."""


class KeysNotPublished(Exception):
    """The keys that should sign are not in DNS; the text lists their names."""


@attrs.define(eq=False)
class DomainMaintenance:
    """`own`: the operator's names; `wake`: called when a check becomes due; `in_thread`: runs key generation.

    `region`: of new domains of accounts without a home region; None: the first one.
    """

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
    region: str | None = None
    # Generating keys costs CPU time, so accounts take turns.
    _generating: FairShare = attrs.field(factory=lambda: FairShare(KEY_THREADS, 1, waiting=WAITING_PER_ACCOUNT), init=False)

    # Requested by users. `lines` are written to the account's audit log with the change.

    async def region_for(self, account_id: UUID, wanted: str | None) -> str:
        """The region of a new domain. Raises RegionRefused if `wanted` does not exist, or if the account's data has to stay elsewhere."""
        hosts, residence = self.publishing.hosts, await self.domains.residences.of(account_id)
        region = wanted or residence.region or self.region or next(iter(hosts))
        if region not in hosts:
            raise RegionRefused(f"must be one of: {', '.join(sorted(hosts))}.")
        residence.check(region)
        return region

    async def move(self, domain: Domain, region: str, lines: Sequence[Line] = ()) -> Domain | None:
        """Move a domain with its queued mail to another region, and look for its new records. Raises RegionRefused.

        None if the domain no longer exists.
        """
        moved = await self.domains.move(domain.account_id, domain.id, await self.region_for(domain.account_id, region), lines)
        self.wake()
        return moved

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
        """Add a domain with a key of each algorithm, even if another account has the name: DNS decides who gets it.

        Raises names.NotADomain, AlreadyAdded, RegionRefused, or LimitReached (unless `limited` is false).
        """
        name = names.parse(text, self.own)
        if any(found.account_id == account_id for found in await self.domains.all_named(name.ascii)):
            raise AlreadyAdded(name.shown)
        limits = self.limits if limited else None
        if limits is not None:
            await self.domains.check_limits(account_id, limits)  # before generating keys; checked again when they are stored
        chosen = attrs.evolve(choices or Choices(), delegated=self.publishing.dkim_zone is not None)
        selectors = {algorithm: slots(algorithm)[0] for algorithm in ALGORITHMS} if chosen.delegated else {}
        try:
            pairs = await self._generate(account_id, ALGORITHMS, selectors)
            return await self.domains.add(account_id, name.ascii, region, pairs, chosen, lines, limits)
        except Conflict:
            raise AlreadyAdded(name.shown) from None
        except TooManyWaiting:
            raise LimitReached("This account is adding too many domains at the same time. Try again in a few seconds.", 5) from None

    async def claim(
        self, account_id: UUID, text: str, region: str, choices: Choices | None = None, lines: Sequence[Line] = ()
    ) -> tuple[Claim, bool]:
        """Claim a name that another account has verified, and add the domain if necessary; also whether the claim is new.

        If no other account has the name verified, the claim is completed immediately. Raises the errors of `add`, and AlreadyAdded if
        the account has the domain without an open claim.
        """
        name = names.parse(text, self.own)
        same_name = await self.domains.all_named(name.ascii)
        own = next((domain for domain in same_name if domain.account_id == account_id), None)
        taken = any(domain.account_id != account_id and (domain.trusted or domain.status == "verified") for domain in same_name)
        if own is None:
            own = await self.add(account_id, text, region, choices, lines)
            lines = ()  # already written with the domain
        else:
            before = await self.claims.get(account_id, own.id)
            if before is not None and before.open:
                return before, False
            if before is None or not taken or before.status not in ("expired", "superseded"):
                raise AlreadyAdded(name.shown)
        return await self.claims.make(own, "pending" if taken else "completed", lines), True

    async def verify(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None:
        """Request a check. None if the domain no longer exists."""

        def decide(now: Domain) -> tuple[Domain, str | None]:
            sentence = None if now.status in ("verified", "pending") else "Verification requested."
            return lifecycle.requested(now, self.domains.now()), sentence

        requested = await self.checks.request(domain.id, decide, lines)
        self.wake()
        return requested

    async def rotate(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None:
        """Generate new keys, which sign once they are in DNS. Raises RotationInProgress."""
        keys = await self.domains.published_keys(domain.id)
        if any(rotation.in_progress(keys, algorithm) for algorithm in domain.signs_with):
            raise RotationInProgress
        try:
            rotated = await self._add_keys(domain, keys, domain.signs_with, lines)
        except KeysChanging:
            raise RotationInProgress from None
        self.wake()
        return rotated

    async def sign_with(self, domain: Domain, algorithms: Sequence[Algorithm], lines: Sequence[Line] = ()) -> Domain | None:
        """Choose which keys sign. Raises KeysNotPublished if the domain is verified but its keys are not in DNS."""
        if domain.status == "verified" and not domain.trusted:
            wanted = attrs.evolve(domain, signs_with=tuple(algorithms))
            findings = await self.checker.check(wanted, await self.domains.published_keys(domain.id))
            needed = [record for record in findings.records if record.purpose == "DKIM" and record.required]
            missing = [record.name for record in needed if record.status != "verified"]
            if missing:
                raise KeysNotPublished(", ".join(missing))
        chosen = await self.domains.sign_with(domain.id, algorithms, lines)
        self.wake()
        return chosen

    # Scheduled

    async def check(self, domain: Domain) -> Domain | None:
        """Check a domain that was leased for it and record the result. None if a newer request superseded it."""
        keys = await self.domains.published_keys(domain.id)
        decided = await self._contest(domain, await self.checker.check(domain, keys))
        findings = decided.findings
        now = self.domains.now()
        changes = rotation.key_changes(keys, findings.confirmed, self.rules, now)
        promoted = {f"{key.selector}._domainkey.{domain.name}" for key in rotation.apply(keys, changes) if key.state == "signing"}
        left = {f"{change.key.selector}._domainkey.{domain.name}" for change in changes if change.state == "leaving"}
        records = [
            attrs.evolve(record, required=True) if record.name in promoted else record
            for record in findings.records
            if record.name not in left or record.type == "CNAME"
        ]
        after = self._with_next_check(lifecycle.checked(domain, records, findings.advice, now), rotation.apply(keys, changes), now)
        history = [*lifecycle.history_lines(domain, after), *rotation.history_lines(changes)]
        changed = bool(changes) or after.status != domain.status or _states(after) != _states(domain)
        result = Result(after, changes, history, changed, decided.loser, decided.claim, decided.reason)
        recorded = await self.checks.record(domain, result)
        if recorded is not None and recorded.status == "verified":
            overdue = rotation.overdue(rotation.apply(keys, changes), self.rules, now)
            if overdue:
                with suppress(KeysChanging):
                    return await self._add_keys(recorded, rotation.apply(keys, changes), overdue)
        return recorded

    async def _contest(self, domain: Domain, findings: Findings) -> Contest:
        """Apply the findings to a name that another account has verified."""
        if domain.status != "pending":
            return Contest(findings)
        claim = await self.claims.get(domain.account_id, domain.id)
        if claim is not None and not claim.open:
            claim = None
        proven = all(record.status == "verified" for record in findings.records if record.required)
        if not proven and (claim is None or not await self.checker.has_claim_record(domain, claim.record)):
            return Contest(findings)
        holder = await self.checks.holder(domain)
        found = () if holder is None else await self.checker.check_dkim(holder, await self.domains.published_keys(holder.id))
        return contest(findings, holder, found, claim)

    def _with_next_check(self, domain: Domain, keys: Sequence[DkimKey], now: datetime) -> Domain:
        """While a new key or tracking host is not in DNS yet, check a verified domain as often as one in its grace period."""
        new = any(key.state == "published" for key in keys) or domain.verified_tracking_host != next(reversed(domain.tracking_hosts), None)
        if domain.status == "verified" and domain.next_check_at is not None and new:
            return attrs.evolve(domain, next_check_at=min(domain.next_check_at, now + lifecycle.BACKOFF[-1]))
        return domain

    async def _add_keys(
        self, domain: Domain, keys: Sequence[DkimKey], algorithms: Sequence[Algorithm], lines: Sequence[Line] = ()
    ) -> Domain | None:
        taken = {key.selector for key in keys}
        free = {a: next(slot for slot in slots(a) if slot not in taken) for a in algorithms} if domain.delegated else {}
        pairs = await self._generate(domain.account_id, algorithms, free)
        named = ", ".join(pair.selector for pair in pairs)
        sentence = f"New DKIM keys: {named}. They take effect once they are live in DNS."
        now = self.domains.now()
        again = now + lifecycle.BACKOFF[0] if domain.status in ("verified", "pending") or domain.trusted else domain.next_check_at
        return await self.checks.add_keys(domain, pairs, sentence, again, lines)

    async def _generate(self, account_id: UUID, algorithms: Sequence[Algorithm], selectors: dict[Algorithm, str]) -> Sequence[KeyPair]:
        today = self.domains.now().date()
        async with self._generating.place(account_id):
            pairs: Sequence[KeyPair] = await self.in_thread(lambda: [new_pair(a, today, selectors.get(a)) for a in algorithms])
        return pairs


def _states(domain: Domain) -> list[tuple[str, str, str, str | None]]:
    """What triggers an event when it changes."""
    return [(r.type, r.name, r.status, r.problem) for r in (*domain.records, *domain.advice)]
