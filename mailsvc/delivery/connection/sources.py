"""Source addresses: which of our addresses a connection comes from. Mail that was deferred keeps its source: tls_policy.

Which of them may send now: source_state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import date, datetime

import attrs

from mailsvc.delivery.admission.sources import sentence
from mailsvc.delivery.connection.source_state import SourceState
from mailsvc.delivery.connection.tls_policy import Source
from mailsvc.delivery.shaping import pool_of
from mailsvc.store.postgres.errors import StoreError

Pick = Callable[[Sequence[Source], Sequence[int]], Source]


def _pick(sources: Sequence[Source], weights: Sequence[int]) -> Source:
    return random.SystemRandom().choices(sources, weights)[0]


@attrs.frozen
class Chosen:
    """The source of a connection; None: the system chooses. `most`: how much of a `day` it may send over it, because it warms up."""

    source: Source | None = None
    most: int | None = None
    day: date | None = None


@attrs.frozen
class Refused:
    """No source may send there before `until`, and why not. None: another process may now, or this one soon.

    `absent`: the pool has no source of the address's family. `other_family`: one of the other family may send to other hosts.
    """

    reason: str
    until: datetime | None
    absent: bool = False
    other_family: bool = False

    def before(self, other: Refused) -> bool:
        """Whether to show this one and not `other`, of another address: mail can be sent earlier by it."""
        if self.absent or other.absent or other.until is None:
            return other.absent and not self.absent
        return self.until is None or self.until < other.until


@attrs.frozen
class SourceRules:
    """The settings of source addresses. `overflow`: by pool, the pool that takes mail of its new sources."""

    addresses: Sequence[Source]
    overflow: Mapping[str, str]
    block_lists: Sequence[str]


class Sources:
    """Those of this process, each with its EHLO name and its share of the connections. Without `state`, all of them may send."""

    def __init__(self, sources: Sequence[Source], pick: Pick = _pick, state: SourceState | None = None) -> None:
        self.all = tuple(sources)
        self._by_address = {each.address: each for each in sources}
        self._pick, self._state = pick, state

    async def choose(self, destination: str, address: str, preferred: str | None, left_out: Container[str] = ()) -> Chosen | Refused:
        """The source for a connection to `address`: the preferred one, otherwise by weight. One of `left_out` only if there is no other."""
        six, state, pool = ":" in address, self._state, pool_of(destination)
        if state is None or (state.simple and not pool):
            family = [each for each in self.all if (":" in each.address) == six and each.pool == pool]
            return Chosen(self._one_of(family, preferred, left_out)) if family else Chosen()
        if not pool and not any(not each.pool and (":" in each.address) == six for each in self.all):
            return Chosen()
        while True:
            decision = state.decide(destination, six)
            if not decision.admitted:
                reason = sentence(decision.reason, pool, state.provider(destination))
                return Refused(reason, decision.until, decision.reason == "no source", state.decide(destination).admitted)
            source = self._one_of([self._by_address[each.address] for each in decision.usable], preferred, left_out)
            if next(each for each in decision.usable if each.address == source.address).left is None:
                return Chosen(source)
            try:
                most, day = await state.reserve(source.address, destination)
            except StoreError:
                return Refused("The database cannot say how much the source addresses may still send today.", None)
            if most:
                return Chosen(source, most, day)

    def give_back(self, destination: str, chosen: Chosen, sent: int) -> None:
        """A connection has ended, after `sent` emails."""
        if self._state is not None and chosen.source is not None and chosen.most is not None:
            self._state.give_back(chosen.source.address, destination, chosen.most - sent, chosen.day)

    def may_send(self, destination: str, address: str) -> bool:
        """Whether a connection to the destination can come from this source now."""
        if self._state is None or (self._state.simple and not pool_of(destination)):
            return address in self._by_address
        return any(each.address == address for each in self._state.decide(destination).usable)

    def _one_of(self, found: Sequence[Source], preferred: str | None, left_out: Container[str]) -> Source:
        sources = [each for each in found if each.address not in left_out] or found
        same = next((each for each in sources if each.address == preferred), None)
        return same or self._pick(sources, [each.weight for each in sources])


def parse(texts: Sequence[str]) -> tuple[Source, ...]:
    """The texts of the setting. ValueError says which one is wrong."""
    found = []
    for text in texts:
        try:
            found.append(Source.parse(text))
        except ValueError:
            example = "192.0.2.1 out1.example.com 3 pool=bulk since=2026-11-20"
            raise ValueError(f'{text!r} is not like "{example}": address, name, weight, options') from None
        if found[-1].address in {each.address for each in found[:-1]}:
            raise ValueError(f"{found[-1].address} twice: a source belongs to one pool")
    return tuple(found)
