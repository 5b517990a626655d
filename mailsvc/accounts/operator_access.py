"""Mails the admins of an account when the operator opens an access to its content.

Commands open accesses (cli/access); they cannot send mail, so each process that accepts mail looks for new ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from mailsvc.accounts.abuse import Mail
from mailsvc.store.in_turn import all_in_turn, in_turn
from mailsvc.store.people.operator_access import NewAccess, OperatorAccesses
from mailsvc.store.postgres.pool import Pool

EVERY = 10.0  # seconds


@attrs.frozen
class AccessNotices:
    """An idempotency key prevents duplicates of several processes."""

    store: OperatorAccesses
    mail: Mail

    @classmethod
    def of(cls, pool: Pool, clock: Any, mail: Mail) -> AccessNotices:
        return cls(OperatorAccesses(pool, clock), mail)

    async def send_due(self) -> None:
        await in_turn([partial(self._send, access) for access in await self.store.unannounced()])

    async def _send(self, access: NewAccess) -> None:
        subject, text = compose(access)
        if await all_in_turn([partial(self.mail.send, to, subject, text, f"operator-access/{access.id}/{to}") for to in access.admins]):
            await self.store.announced(access)


def compose(access: NewAccess) -> tuple[str, str]:
    """Subject and text."""
    lines = (
        f"The operator of this service opened an access to the content of the account {access.account} at "
        f"{access.opened_at:%Y-%m-%d %H:%M} UTC. It ends automatically at {access.ends_at:%Y-%m-%d %H:%M} UTC, or earlier.",
        f"Reason: {access.reason}",
        "What the operator reads meanwhile is listed in the dashboard under Settings, Audit log. If you did not expect this, ask the "
        "operator.",
    )
    return f"The operator has access to the content of {access.account}", "\n\n".join(lines) + "\n"
