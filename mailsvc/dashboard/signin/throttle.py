"""Delays after failed sign-in attempts, counted in the database by all processes together.

An attempt counts when it starts and is forgotten if it succeeds, so concurrent attempts do not get around the limit. For an IP address,
which people share, only failures count. Nobody is locked out: a browser that signed in to an address before is counted separately, so
guessing at an address only slows down unknown browsers. Unregistered addresses are counted like registered ones.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

import attrs

from mailsvc.store.people.sign_in_attempts import SignInAttempts, Tries

Subject = tuple[str, str]  # kind and name of what is counted

FREE = 5  # failures without a delay
FREE_OF = {"address": 20, "mail address": 20, "invite": 20, "choosing": 20}  # many people may share an IP address
SHARED = ("address", "mail address")
LONGEST = 900.0


@attrs.define(eq=False)
class Throttle:
    """`secret` hashes what is counted, so that the database does not reveal it."""

    counts: SignInAttempts
    clock: Callable[[], float]
    secret: Callable[[], bytes]

    async def attempt(self, subjects: Sequence[Subject]) -> float:
        """Count an attempt and return 0, or return the seconds until one is allowed without counting it."""
        own, shared = _split(subjects)
        kinds, now = [kind for kind, _ in (*own, *shared)], self.clock()
        return await self.counts.count(
            self._hashed(own),
            self._hashed(shared),
            lambda found: max(wait(kind, tries, now) for kind, tries in zip(kinds, found, strict=True)),
        )

    async def failed(self, subjects: Sequence[Subject]) -> None:
        await self.counts.add(self._hashed(_split(subjects)[1]))

    async def passed(self, subjects: Sequence[Subject]) -> None:
        await self.counts.forget(self._hashed(_split(subjects)[0]))

    def _hashed(self, subjects: Sequence[Subject]) -> list[bytes]:
        named = (f"attempt {kind} {name}".encode("utf-8", "surrogateescape") for kind, name in subjects)
        secret = self.secret()
        return [hmac.digest(secret, name, "sha256") for name in named]


def _split(subjects: Sequence[Subject]) -> tuple[list[Subject], list[Subject]]:
    return [one for one in subjects if one[0] not in SHARED], [one for one in subjects if one[0] in SHARED]


def wait(kind: str, tries: Tries | None, now: float) -> float:
    """Seconds to wait, doubling with each failure."""
    free = FREE_OF.get(kind, FREE)
    if tries is None or tries.count < free:
        return 0.0
    left = tries.last + min(LONGEST, 2.0 ** min(tries.count - free, 20)) - now
    return left if 0.0 < left < 2 * LONGEST else 0.0  # the clock was set back
