"""How soon the next attempt may be made, after attempts that failed. All processes count together, in the database.

An attempt counts from its begin, and is forgotten when it was good, so that many at once are no way around. Of a network address,
which people share, only what was not good counts. Nobody is locked out: a browser that signed in to an address before is counted by
itself, so that strangers who guess at the address slow down strangers alone. Addresses that nobody has are counted like those that
somebody has.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from mailsvc.store.people.sign_in_attempts import Tries

Subject = tuple[str, str]  # what kind of thing is counted, and which one

FREE = 5  # failures that cost nothing
FREE_OF = {"address": 20, "mail address": 20, "invite": 20, "choosing": 20}  # many people may share a network address
SHARED = ("address", "mail address")
LONGEST = 900.0


class Counts(Protocol):
    """store.attempts.Attempts"""

    async def count(self, subjects: Sequence[bytes], others: Sequence[bytes], wait: Callable[[Sequence[Tries | None]], float]) -> float: ...
    async def forget(self, subjects: Sequence[bytes]) -> None: ...
    async def add(self, subjects: Sequence[bytes]) -> None: ...


@attrs.define(eq=False)
class Throttle:
    """`secret`: what is counted is not to be read from the database."""

    counts: Counts
    clock: Callable[[], float]
    secret: Callable[[], bytes]

    async def attempt(self, subjects: Sequence[Subject]) -> float:
        """One more attempt that concerns these; or the seconds until one is looked at, and then it does not count."""
        own, shared = _parted(subjects)
        kinds, now = [kind for kind, _ in (*own, *shared)], self.clock()
        return await self.counts.count(
            self._hidden(own),
            self._hidden(shared),
            lambda found: max(wait(kind, tries, now) for kind, tries in zip(kinds, found, strict=True)),
        )

    async def failed(self, subjects: Sequence[Subject]) -> None:
        await self.counts.add(self._hidden(_parted(subjects)[1]))

    async def passed(self, subjects: Sequence[Subject]) -> None:
        await self.counts.forget(self._hidden(_parted(subjects)[0]))

    def _hidden(self, subjects: Sequence[Subject]) -> list[bytes]:
        named = (f"attempt {kind} {name}".encode("utf-8", "surrogateescape") for kind, name in subjects)
        secret = self.secret()
        return [hmac.digest(secret, name, "sha256") for name in named]


def _parted(subjects: Sequence[Subject]) -> tuple[list[Subject], list[Subject]]:
    return [one for one in subjects if one[0] not in SHARED], [one for one in subjects if one[0] in SHARED]


def wait(kind: str, tries: Tries | None, now: float) -> float:
    """Seconds, twice as many after each failure."""
    free = FREE_OF.get(kind, FREE)
    if tries is None or tries.count < free:
        return 0.0
    return max(0.0, tries.last + min(LONGEST, 2.0 ** min(tries.count - free, 20)) - now)
