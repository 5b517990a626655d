"""Whether each region has a process that delivers its mail: for `mailsvc doctor` and /readyz."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from mailsvc.monitoring.doctor import Finding
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue import processes

CHECK = "regions"


@attrs.define(eq=False)
class RegionWatch:
    """For /readyz. `names`: all regions; a single one is not watched, because `roles` is about it."""

    pool: Pool
    names: Collection[str]
    _idle: Sequence[str] = attrs.field(default=(), init=False)

    async def look(self) -> None:
        if len(self.names) > 1:
            served = await processes.delivering(self.pool)
            self._idle = sorted(set(self.names) - set(served))

    async def problem(self) -> str | None:
        return f"no process delivers mail of {' and '.join(self._idle)}" if self._idle else None


def findings(named: Collection[str], own: str, domains: Mapping[str, int], served: Collection[str]) -> list[Finding]:
    """`named`: in the settings; `own`: of this process; `domains`: how many each region has; `served`: regions with processes."""
    found = [_unknown(region, count, own) for region, count in sorted(domains.items()) if region not in named]
    if served:  # otherwise, none is running at all
        found += [_idle(region, domains.get(region, 0)) for region in sorted(set(named) - set(served))]
        found += [_unnamed(region) for region in sorted(set(served) - set(named))]
    text = ", ".join(f"{region} with {domains.get(region, 0)} domains" for region in sorted(named))
    return found or [Finding(CHECK, "ok", f"Each region has a process that delivers its mail: {text}.")]


def _unknown(region: str, count: int, own: str) -> Finding:
    what = f"{count} domains are in the region {region}, which the settings do not name."
    remedy = f"Run `mailsvc domain region NAME {own}` for each, or name the region ([regions.{region}], docs/regions.md)."
    return Finding(CHECK, "error", what, remedy)


def _idle(region: str, count: int) -> Finding:
    remedy = f'Start one with the role delivery and `region = "{region}"`, or move its domains (`mailsvc domain region`).'
    return Finding(
        CHECK, "error" if count else "warning", f"No process delivers mail of the region {region}, which has {count} domains.", remedy
    )


def _unnamed(region: str) -> Finding:
    remedy = "Give all processes the same [regions] settings."
    return Finding(CHECK, "warning", f"A process delivers mail of the region {region}, which these settings do not name.", remedy)
