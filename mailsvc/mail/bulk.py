"""Whether mail is bulk mail, which waits behind transactional mail and has to let people unsubscribe. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

MANY = 50  # recipients of the same content; more are bulk mail
FIELDS = ("list-id", "feedback-id", "precedence")  # 2919 §3; large receivers count complaints by Feedback-ID
_PRECEDENCE = frozenset({"bulk", "list"})


def is_declared(header: Mapping[str, str]) -> bool:
    """Whether these fields, of the whole header or only of FIELDS, declare bulk mail."""
    named = {name.lower(): value for name, value in header.items()}
    return "list-id" in named or "feedback-id" in named or named.get("precedence", "").strip().lower() in _PRECEDENCE


def shared(contents: Sequence[tuple[Hashable, int]]) -> frozenset[Hashable]:
    """The contents that more than MANY recipients get. Each content of a batch comes with its number of recipients."""
    if sum(count for _, count in contents) <= MANY:
        return frozenset()
    totals: Counter[Hashable] = Counter()
    for content, count in contents:
        totals[content] += count
    return frozenset(content for content, count in totals.items() if count > MANY)
