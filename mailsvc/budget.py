"""How many octets of request bodies may be in work at once in this process. Beyond it: try again later, instead of swapping."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Budget:
    """`limit` octets in all; a body is counted from its announcement until its response is out."""

    limit: int
    used: int = 0

    def reserve(self, octets: int) -> bool:
        """Take `octets`, if there is room. One body alone always fits."""
        if self.used and self.used + octets > self.limit:
            return False
        self.used += octets
        return True

    def free(self, octets: int) -> None:
        self.used -= octets
