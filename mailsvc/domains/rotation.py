"""The life of DKIM keys: published → (seen in DNS) signing → leaving → (what it signed is gone) retired. Pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import attrs

from mailsvc.mail.authentication.dkim import Algorithm
from mailsvc.store.domains.checks import Move
from mailsvc.store.domains.values import DkimKey

LEAST = timedelta(days=7)


@attrs.frozen
class Rules:
    """`keep`: how long a key that signs no more stays published. `age`: when a signing key is due to be replaced; None: never."""

    keep: timedelta
    age: timedelta | None

    @classmethod
    def of(cls, expire: float, days: int) -> Rules:
        """From the life of mail in the queue and the age in days: a day past the last that an old signature may still arrive."""
        return cls(max(LEAST, timedelta(seconds=expire) + timedelta(days=1)), timedelta(days=days) if days else None)


def moves(keys: Sequence[DkimKey], confirmed: Collection[str], rules: Rules, now: datetime) -> list[Move]:
    """What a check changes: a new key that was seen takes over from the one of its algorithm, one that left long ago is retired."""
    found = []
    for key in keys:
        if key.state == "published" and key.selector in confirmed:
            found.append(Move(key, "signing"))
            found += [Move(old, "leaving") for old in keys if old.state == "signing" and old.algorithm == key.algorithm]
        elif key.state == "leaving" and now - key.changed_at >= rules.keep:
            found.append(Move(key, "retired"))
    return found


def due(keys: Sequence[DkimKey], rules: Rules, now: datetime) -> list[Algorithm]:
    """The algorithms whose key is too old and that have no new one yet."""
    if rules.age is None:
        return []
    return [key.algorithm for key in keys if key.state == "signing" and now - key.created_at >= rules.age and not busy(keys, key.algorithm)]


def busy(keys: Sequence[DkimKey], algorithm: Algorithm) -> bool:
    """Whether a rotation of this algorithm is under way."""
    return any(key.algorithm == algorithm and key.state in ("published", "leaving") for key in keys)


def moved(keys: Sequence[DkimKey], steps: Sequence[Move]) -> list[DkimKey]:
    """The keys as they are after these steps."""
    states = {step.key.id: step.state for step in steps}
    return [attrs.evolve(key, state=states.get(key.id, key.state)) for key in keys]


def sentences(steps: Sequence[Move]) -> list[str]:
    words = {
        "signing": "signs from now on",
        "leaving": "signs no more; leave its record until it is retired",
        "retired": "is retired; its record may be removed",
    }
    return [f"The DKIM key {step.key.selector} {words[step.state]}." for step in steps if step.state in words]
