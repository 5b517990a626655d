"""Which cells a machine takes or gives up, so that each has the same number, give or take one. Pure: nothing is asked or changed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

Seen = Mapping[str, Mapping[str, bool]]  # for each cell that can be reached, the machines that can run it: whether they do


def to_take(machine: str, seen: Seen, resting: Collection[str] = ()) -> str | None:
    """The cell to take now: one that nobody has, if no machine that can have it has fewer. Not one of `resting`."""
    counts = _counts(seen)
    for cell, machines in sorted(seen.items()):
        if cell not in resting and not any(machines.values()) and counts[machine] <= min(counts[each] for each in {machine, *machines}):
            return cell
    return None


def to_give_up(machine: str, seen: Seen) -> str | None:
    """The cell to give up now: one for which another machine waits that has at least two fewer."""
    counts = _counts(seen)
    for cell, machines in sorted(seen.items()):
        if machines.get(machine) and any(counts[machine] - counts[other] > 1 for other in machines):
            return cell
    return None


def _counts(seen: Seen) -> Counter[str]:
    return Counter(machine for machines in seen.values() for machine, has in machines.items() if has)
