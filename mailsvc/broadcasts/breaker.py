"""Decides when a broadcast is paused because too many of its emails bounce or are reported as spam. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

NOTHING: Mapping[str, int] = {}


@attrs.frozen
class Breaker:
    """Percentages of the emails with an outcome. It judges after `after` outcomes, or after 1 % of the contacts if that is less.

    0.3 % complaints are the limit in Google's rules and Yahoo's rules.
    """

    after: int = 1000
    bounced: float = 5.0
    complained: float = 0.3
    least: int = 100  # outcomes without which it never judges: of few emails, one bounce is a large part

    def reason(self, total: int, counts: Mapping[str, int], baseline: Mapping[str, int] | None = None) -> str | None:
        """Why to pause, or None. `baseline` are the counts when somebody continued the broadcast: only later outcomes are judged."""
        before = baseline or NOTHING
        delivered, bounced, complained = (
            max(0, counts.get(name, 0) - before.get(name, 0)) for name in ("delivered", "bounced", "complained")
        )
        ended = delivered + bounced
        if ended < max(self.least, min(self.after, total // 100)):
            return None
        if bounced * 100 > self.bounced * ended:
            return _sentence(bounced, ended, "bounced", self.bounced)
        if complained * 100 > self.complained * max(delivered, 1):
            return _sentence(complained, delivered, "were reported as spam", self.complained)
        return None


def _sentence(count: int, of: int, what: str, most: float) -> str:
    share = f"{count:,} of {of:,} emails {what} ({count / max(of, 1):.1%}); the limit is {most:g} %."
    return f"{share} Check the list, then continue or cancel."
