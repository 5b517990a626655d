"""States of DKIM keys: published → (found in DNS) signing → leaving → (its last signatures are too old) retired. Pure.

The keys that encrypt them in the database are rotated in store/encryption/rotation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import attrs

from mailsvc.mail.authentication.dkim import Algorithm
from mailsvc.store.domains.checks import KeyChange
from mailsvc.store.domains.values import DkimKey

KEEP_MIN = timedelta(days=7)


@attrs.frozen
class Rules:
    """`keep`: how long a key stays published after it stopped signing. `age`: when a signing key is replaced; None: never."""

    keep: timedelta
    age: timedelta | None

    @classmethod
    def of(cls, expire: float, days: int) -> Rules:
        """`expire`: the lifetime of queued mail in seconds; keys are kept one day longer. `days`: the age."""
        return cls(max(KEEP_MIN, timedelta(seconds=expire) + timedelta(days=1)), timedelta(days=days) if days else None)


def key_changes(keys: Sequence[DkimKey], confirmed: Collection[str], rules: Rules, now: datetime) -> list[KeyChange]:
    """Changes after a check: a new key found in DNS replaces the one of its algorithm; one that left long ago is retired."""
    found = []
    for key in keys:
        if key.state == "published" and key.selector in confirmed:
            found.append(KeyChange(key, "signing"))
            found += [KeyChange(old, "leaving") for old in keys if old.state == "signing" and old.algorithm == key.algorithm]
        elif key.state == "leaving" and now - key.changed_at >= rules.keep:
            found.append(KeyChange(key, "retired"))
    return found


def overdue(keys: Sequence[DkimKey], rules: Rules, now: datetime) -> list[Algorithm]:
    """Algorithms whose key is too old and has no replacement yet."""
    if rules.age is None:
        return []
    return [
        key.algorithm
        for key in keys
        if key.state == "signing" and now - key.created_at >= rules.age and not in_progress(keys, key.algorithm)
    ]


def in_progress(keys: Sequence[DkimKey], algorithm: Algorithm) -> bool:
    """Whether this algorithm is being rotated."""
    return any(key.algorithm == algorithm and key.state in ("published", "leaving") for key in keys)


def apply(keys: Sequence[DkimKey], changes: Sequence[KeyChange]) -> list[DkimKey]:
    """The keys after these changes."""
    states = {change.key.id: change.state for change in changes}
    return [attrs.evolve(key, state=states.get(key.id, key.state)) for key in keys]


def history_lines(changes: Sequence[KeyChange]) -> list[str]:
    texts = {
        "signing": "is now signing",
        "leaving": "no longer signs; keep its record until it is retired",
        "retired": "is retired; you can remove its record",
    }
    return [f"The DKIM key {change.key.selector} {texts[change.state]}." for change in changes if change.state in texts]
