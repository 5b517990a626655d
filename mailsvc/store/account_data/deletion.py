"""Deletes everything that an account has, its keys first. The steps are those of an erasure (store/privacy/eraser), which continues them
after a kill, repeats them after a restore and keeps the certificate.

The lines of the audit log stay, because nobody can change them; what they name is erased.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from mailsvc.store.account_data import tables
from mailsvc.store.encryption.body_keys import TABLE as BODY_KEYS
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.people.audit import INSTALLATION, SERVICE, Line, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.erasures import Progress

BATCH = 500  # rows in one transaction
NAMES = (*tables.LEFT_OUT, *tables.ARCHIVED[::-1])
# First, and together: with them gone, nobody signs, decrypts or authenticates as the account.
KEYS = (BODY_KEYS, "dkim_keys", "audience_keys", "webhooks", "api_keys")

_NAMING = "FROM audit_details WHERE account_id = %(account)s AND (actor IS NOT NULL OR address IS NOT NULL OR subject IS NOT NULL)"
_DETAILS = f"""
UPDATE audit_details SET actor = NULL, actor_salt = NULL, address = NULL, address_salt = NULL, subject = NULL, subject_salt = NULL
WHERE account_id = %(account)s AND id IN (SELECT id {_NAMING} LIMIT %(size)s)
"""
# With this lock, no row that refers to the account can be added.
_LOCK = "SELECT 1 FROM accounts WHERE id = %(account)s FOR UPDATE"
_SUSPEND = "UPDATE accounts SET suspended_at = coalesce(suspended_at, %s) WHERE id = %s"
_MEMBERS = "DELETE FROM members WHERE account_id = %s RETURNING user_id"
_USERS = "DELETE FROM users u WHERE u.id = ANY (%s) AND NOT EXISTS (SELECT FROM members m WHERE m.user_id = u.id)"
_SESSIONS = "DELETE FROM sessions WHERE account_id = %s"
_LINKS = "DELETE FROM links WHERE account_id = %s"
_DELETE = "DELETE FROM accounts WHERE id = %s"
# The account was not imported again, and is not on its way from another cell.
_GONE = """
AND NOT EXISTS (SELECT FROM accounts WHERE id = %(account)s) AND NOT EXISTS (SELECT FROM account_moves WHERE account_id = %(account)s)
"""

Work = Callable[[Transaction, Progress], Awaitable[None]]


async def steps(pool: Pool, account_id: UUID, now: datetime, bodies: BodyKeys | None) -> Sequence[Work]:
    """The transactions, in their order. Each is repeated until it moves `progress` on. Without `bodies`, files of body keys stay."""
    found = {shape.name: shape for shape in await tables.shapes(pool, NAMES)}
    rows = {name: statements.delete_some(found[name]) for name in NAMES if name not in (*KEYS, *tables.KEPT)}
    of_account = {name: f"FROM {name} t WHERE {statements.scope(found[name], True)}" for name in (*KEYS, *rows)}
    keys = {name: f"DELETE {of_account[name]}" for name in KEYS}
    left = " OR ".join(f"EXISTS (SELECT {where})" for where in (*of_account.values(), _NAMING))
    return [
        partial(_keys, statements=keys, account_id=account_id, now=now, bodies=bodies),
        *(partial(_rows, name=name, sql=sql, account_id=account_id) for name, sql in (rows | {"audit_details": _DETAILS}).items()),
        partial(_account, left=f"SELECT {left}", account_id=account_id, now=now),
    ]


async def sweep(pool: Pool, account_id: UUID) -> int:
    """Delete what requests and SMTP sessions that began before the account's deletion have written after it. Returns how many rows."""
    found = await tables.shapes(pool, [name for name in NAMES if name not in tables.KEPT])
    total = 0
    for sql in (*map(statements.delete_some, found), _DETAILS):
        count = BATCH
        while count >= BATCH:
            count = await pool.run(sql + _GONE, {"account": account_id, "size": BATCH})
            total += count
    return total


async def _keys(
    tx: Transaction, progress: Progress, *, statements: dict[str, str], account_id: UUID, now: datetime, bodies: BodyKeys | None
) -> None:
    """The file goes before the commit, so that a step that is recorded as done has deleted it."""
    await tx.run(_SUSPEND, (now, account_id))
    for name, sql in statements.items():
        count = await tx.run(sql, {"account": account_id})
        progress.add("erased", name, count)
        if name == BODY_KEYS and bodies is not None:
            await bodies.shred(account_id, must=count > 0)
    progress.next_step()


async def _rows(tx: Transaction, progress: Progress, *, name: str, sql: str, account_id: UUID) -> None:
    count = await tx.run(sql, {"account": account_id, "size": BATCH})
    progress.add("erased", name, count)
    if count < BATCH:
        progress.next_step()
    else:
        progress.after = {"rows": (progress.after or {}).get("rows", 0) + count}


async def _account(tx: Transaction, progress: Progress, *, left: str, account_id: UUID, now: datetime) -> None:
    """If members or late requests have added something meanwhile, begin again: the account cannot be deleted while rows refer to it.

    Without its members, nobody can go on adding.
    """
    await tx.rows(_LOCK, {"account": account_id})
    users = [user_id for (user_id,) in await tx.rows(_MEMBERS, (account_id,))]
    progress.add("erased", "members", len(users))
    progress.add("erased", "users", await tx.run(_USERS, (users,)))
    progress.add("erased", "sessions", await tx.run(_SESSIONS, (account_id,)))
    progress.add("erased", "links", await tx.run(_LINKS, (account_id,)))
    if (await tx.rows(left, {"account": account_id}))[0][0]:
        progress.step, progress.after = 0, None
        return
    deleted = await tx.run(_DELETE, (account_id,))
    progress.add("erased", "accounts", deleted)
    if deleted:
        await write(tx, [Line(INSTALLATION, None, None, SERVICE, "", "account deleted", str(account_id))], now.timestamp())
    progress.next_step()
