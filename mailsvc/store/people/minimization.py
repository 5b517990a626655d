"""What an account does not want to be stored. Each kind is obeyed where it would be stored:

bodies      store/logs/retention: messages are deleted once nobody waits for them, at the next sweep
requests    store/logs/requests: the API request log has no bodies. So it is with encrypted messages, which it would show otherwise
addresses   tracking/hits and store/audience/evidence: of a network address only the network
tracking    store/domains: nothing is tracked; tracking/hits: links in earlier mail work, and nothing is recorded
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.store.cache import CHANNEL
from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.pool import Pool, Transaction

KINDS = {
    "bodies": "Message contents are deleted once the email is delivered or has failed.",
    "requests": "The API request log has no request and response bodies, and so no subjects.",
    "addresses": "IP addresses of recipients are shortened to their network.",
    "tracking": "Opens and clicks are not tracked.",
}
_V4, _V6 = 24, 48  # bits of an address that are kept


@attrs.define(eq=False)
class Minimization:
    pool: Pool
    clock: Any
    notify: Callable[[str], None] | None = None  # tells other processes

    async def of(self, account_id: UUID) -> Sequence[str]:
        """The kinds that are not stored."""
        return await minimized(self.pool, account_id)

    async def encrypted(self, account_id: UUID) -> bool:
        """Whether new messages are encrypted. "requests" is then obeyed without being set."""
        return bool(await self.pool.rows("SELECT 1 FROM accounts WHERE id = %s AND encrypt_bodies", (account_id,)))

    async def set(self, account_id: UUID, kinds: Collection[str], lines: Sequence[Line] = ()) -> None:
        """`kinds` are of KINDS. What is stored already stays, except for message contents."""
        wanted = [kind for kind in KINDS if kind in kinds]
        await changed(self.pool, unix(self.clock), lines, "UPDATE accounts SET minimize = %s WHERE id = %s", (wanted, account_id))
        if self.notify is not None:
            self.notify(CHANNEL)


async def minimized(rows: Pool | Transaction, account_id: UUID) -> Sequence[str]:
    """The kinds that are not stored for an account."""
    found = await rows.rows("SELECT minimize FROM accounts WHERE id = %s", (account_id,))
    return found[0][0] if found else []


@lru_cache(2048)
def network_of(address: str) -> str:
    """An IP address without its last bits; a text that is none stays as it is."""
    try:
        client = ip_address(address.partition("/")[0])
    except ValueError:
        return address
    return str(ip_network((client, _V4 if client.version == 4 else _V6), strict=False).network_address)
