"""What is done for sending domains: made, checked when they are due or somebody asks, their keys rotated.

Decisions are in life and rotation, looking is in checking, writing down is in store/domains and store/domain_checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import DeferredSemaphore

from mailsvc.domains import life, names, rotation
from mailsvc.domains.checking import Checker
from mailsvc.domains.keypair import KeyPair, new_pair
from mailsvc.domains.records import Publishing, slots
from mailsvc.domains.rotation import Rules
from mailsvc.mail.dkim import Algorithm
from mailsvc.store.audit import Line
from mailsvc.store.domain_checks import DomainChecks, KeysMoving, Result
from mailsvc.store.domains import Choices, DkimKey, Domain, Domains
from mailsvc.store.errors import Conflict

ALGORITHMS: tuple[Algorithm, ...] = ("rsa", "ed25519")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Taken(Exception):
    """Somebody has a domain of this name."""


class Rotating(Exception):
    """A rotation of this domain's keys is under way."""


class Unseen(Exception):
    """The names at which DNS has not the keys that are to sign."""


@attrs.define(eq=False)
class Care:
    """`own` are the operator's names, `wake` is called when something has become due."""

    domains: Domains
    checks: DomainChecks
    checker: Checker
    publishing: Publishing
    rules: Rules
    in_thread: InThread
    own: Collection[str] = ()
    wake: Callable[[], None] = lambda: None
    _making: DeferredSemaphore = attrs.field(factory=lambda: DeferredSemaphore(1), init=False)  # keys cost time: one domain after the other

    # Asked for; `lines` go into the account's audit log with the change

    async def add(self, account_id: UUID, text: str, region: str, choices: Choices | None = None, lines: Sequence[Line] = ()) -> Domain:
        """A new domain with a key of each algorithm. Raises names.NotADomain or Taken."""
        name = names.parse(text, self.own)
        if await self.domains.called(name.ascii) is not None:
            raise Taken(name.shown)
        chosen = attrs.evolve(choices or Choices(), delegated=self.publishing.dkim_zone is not None)
        pairs = await self._pairs(ALGORITHMS, {algorithm: slots(algorithm)[0] for algorithm in ALGORITHMS} if chosen.delegated else {})
        try:
            return await self.domains.add(account_id, name.ascii, region, pairs, chosen, lines)
        except Conflict:
            raise Taken(name.shown) from None

    async def verify(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None:
        """Have it checked soon; None when it is not there any more."""

        def decide(now: Domain) -> tuple[Domain, str | None]:
            sentence = None if now.status in ("verified", "pending") else "Verification was asked for."
            return life.asked(now, self.domains.now()), sentence

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
        findings = await self.checker.check(domain, keys)
        now = self.domains.now()
        steps = rotation.moves(keys, findings.confirmed, self.rules, now)
        promoted = {f"{key.selector}._domainkey.{domain.name}" for key in rotation.moved(keys, steps) if key.state == "signing"}
        left = {f"{step.key.selector}._domainkey.{domain.name}" for step in steps if step.state == "leaving"}
        records = [
            attrs.evolve(record, required=True) if record.name in promoted else record
            for record in findings.records
            if record.name not in left or record.type == "CNAME"
        ]
        after = self._due_again(life.checked(domain, records, findings.advice, now), rotation.moved(keys, steps), now)
        told = [*life.sentences(domain, after), *rotation.sentences(steps)]
        changed = bool(steps) or after.status != domain.status or _states(after) != _states(domain)
        recorded = await self.checks.record(domain, Result(after, steps, told, changed))
        if recorded is not None and recorded.status == "verified":
            late = rotation.due(rotation.moved(keys, steps), self.rules, now)
            if late:
                with suppress(KeysMoving):
                    return await self._renew(recorded, rotation.moved(keys, steps), late)
        return recorded

    def _due_again(self, domain: Domain, keys: Sequence[DkimKey], now: datetime) -> Domain:
        """While a new key waits to be seen, a verified domain is looked at as often as one in grace."""
        if domain.status == "verified" and domain.next_check_at is not None and any(key.state == "published" for key in keys):
            return attrs.evolve(domain, next_check_at=min(domain.next_check_at, now + life.BACKOFF[-1]))
        return domain

    async def _renew(
        self, domain: Domain, keys: Sequence[DkimKey], algorithms: Sequence[Algorithm], lines: Sequence[Line] = ()
    ) -> Domain | None:
        taken = {key.selector for key in keys}
        free = {a: next(slot for slot in slots(a) if slot not in taken) for a in algorithms} if domain.delegated else {}
        pairs = await self._pairs(algorithms, free)
        named = ", ".join(pair.selector for pair in pairs)
        sentence = f"New DKIM keys: {named}. They sign once they are seen in DNS."
        now = self.domains.now()
        again = now + life.BACKOFF[0] if domain.status in ("verified", "pending") or domain.trusted else domain.next_check_at
        return await self.checks.add_keys(domain, pairs, sentence, again, lines)

    async def _pairs(self, algorithms: Sequence[Algorithm], selectors: dict[Algorithm, str]) -> Sequence[KeyPair]:
        today = self.domains.now().date()
        async with self._making:
            pairs: Sequence[KeyPair] = await self.in_thread(lambda: [new_pair(a, today, selectors.get(a)) for a in algorithms])
        return pairs


def _states(domain: Domain) -> list[tuple[str, str, str, str | None]]:
    """What its account is told of when it changes."""
    return [(r.type, r.name, r.status, r.problem) for r in (*domain.records, *domain.advice)]
