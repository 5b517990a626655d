"""Source addresses: which of our addresses a connection comes from. Mail that was deferred keeps its source: tls_policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from mailsvc.delivery.connection.tls_policy import Source

Pick = Callable[[Sequence[Source], Sequence[int]], Source]


def _pick(sources: Sequence[Source], weights: Sequence[int]) -> Source:
    return random.SystemRandom().choices(sources, weights)[0]


class Sources:
    """Those of this region, each with its EHLO name and its share of the connections."""

    def __init__(self, sources: Sequence[Source], pick: Pick = _pick) -> None:
        self.all = tuple(sources)
        self._families = {six: [each for each in sources if (":" in each.address) == six] for six in (False, True)}
        self._pick = pick

    def choose(self, address: str, preferred: str | None) -> Source | None:
        """The source for a connection to `address`: the preferred one, otherwise by weight. None: the system chooses."""
        family = self._families[":" in address]
        if not family:
            return None
        found = next((each for each in family if each.address == preferred), None)
        return found or self._pick(family, [each.weight for each in family])


def parse(texts: Sequence[str]) -> tuple[Source, ...]:
    """The texts of the setting. ValueError says which one is wrong."""
    found = []
    for text in texts:
        try:
            found.append(Source.parse(text))
        except ValueError:
            raise ValueError(f'{text!r} is not like "192.0.2.1 out1.example.com 3": address, name, weight') from None
    return tuple(found)
