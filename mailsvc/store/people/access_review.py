"""Who and what has access to an account, when each was last used, and who decided what about it lately.

A decision is an entry of the audit log: that access was kept, with the kind and the ID, or that a member was removed or a key revoked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.people.audit import ERASED
from mailsvc.store.people.users import PASSKEY
from mailsvc.store.postgres.pool import Pool

Kind = Literal["member", "key"]

UNUSED = timedelta(days=90)
KEPT = "access kept"
ENDED: dict[str, tuple[Kind, str]] = {"member removed": ("member", "removed"), "key revoked": ("key", "revoked")}

ACCESS = f"""
SELECT 'member', m.user_id, u.email, m.role, m.created_at, u.signed_in_at, u.totp_at IS NOT NULL OR {PASSKEY.format("u")}, NULL::timestamptz
FROM members m JOIN users u ON u.id = m.user_id WHERE m.account_id = %(account)s
UNION ALL
SELECT 'key', k.id, k.name, k.permission, k.created_at, k.last_used_at, NULL, k.expires_at
FROM api_keys k WHERE k.account_id = %(account)s AND k.revoked_at IS NULL
ORDER BY 1 DESC, 5, 2
"""
# Keys can be created and revoked by programs, so that as many can have ended as an audit log has lines. `ended`: None for all.
_DECIDED = """
SELECT id, action, coalesce(subject, %(erased)s) AS subject, coalesce(actor, %(erased)s) AS actor, at FROM audit_entries
WHERE account_id = %(account)s AND at > %(since)s AND action"""
DECISIONS = f"""
SELECT action, subject, actor, at FROM (
    ({_DECIDED} = %(kept)s) UNION ALL ({_DECIDED} = ANY (%(actions)s) ORDER BY id DESC LIMIT %(ended)s)
) x ORDER BY id
"""


@attrs.frozen
class Decision:
    what: str
    who: str
    at: datetime


@attrs.frozen
class Access:
    """A member or an API key. `id`: None if it has ended. `role`: or permission. `second_factor`: None for a key."""

    kind: Kind
    id: UUID | None
    name: str
    role: str | None = None
    since: datetime | None = None
    used_at: datetime | None = None
    second_factor: bool | None = None
    expires_at: datetime | None = None
    decision: Decision | None = None

    def unused(self, now: datetime, longest: timedelta = UNUSED) -> bool:
        """Whether it exists, and was neither created nor used within that time."""
        return self.id is not None and all(at is None or now - at > longest for at in (self.since, self.used_at))

    @property
    def subject(self) -> str:
        """What a decision about it is called in the audit log."""
        return f"{self.kind} {self.id}"


COLUMNS = (
    "kind", "id", "name", "role", "since", "last used", "unused", "second factor", "expires", "decision", "decided by", "decided at",
)  # fmt: skip


def table(found: Sequence[Access], now: datetime) -> list[list[object]]:
    """The rows of a CSV file, with their header."""

    def cells(one: Access) -> list[object]:
        made = one.decision
        flags = ["" if flag is None else "yes" if flag else "no" for flag in (one.unused(now), one.second_factor)]
        decided: list[object] = ["", "", ""] if made is None else [made.what, made.who, _time(made.at)]
        return [one.kind, one.id, one.name, one.role, _time(one.since), _time(one.used_at), *flags, _time(one.expires_at), *decided]

    return [list(COLUMNS), *map(cells, found)]


def _time(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")


async def review(pool: Pool, account_id: UUID, now: datetime, most: int | None = None) -> list[Access]:
    """Members, then keys, and after them what ended, with the latest decision about each within a year. `most`: of those that ended."""
    since = now - timedelta(days=365)
    given = {"erased": ERASED, "account": account_id, "kept": KEPT, "actions": [*ENDED], "since": since, "ended": most}
    kept: dict[str, Decision] = {}
    ended: list[Access] = []
    for action, subject, actor, at in await pool.rows(DECISIONS, given):
        if action == KEPT:
            kept[subject] = Decision("kept", actor, at)
        else:
            kind, what = ENDED[action]
            ended.append(Access(kind, None, subject, decision=Decision(what, actor, at)))
    found = [Access(*row) for row in await pool.rows(ACCESS, {"account": account_id})]
    return [attrs.evolve(each, decision=kept.get(each.subject)) for each in found] + ended
