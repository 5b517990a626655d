"""Browser sessions, and one-time links. Only the SHA-256 of their secrets is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.ids import uuid7
from mailsvc.store.people import accounts
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.people.roles import LEAST, Role
from mailsvc.store.people.single_sign_on import AFFECTED
from mailsvc.store.people.users import ADD_MEMBER, END_OTHERS, PASSKEY, SET_PASSWORD, VERIFIED, NewUser, Taken, User, add, end_access
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Stage = Literal["password", "whole"]
Purpose = Literal["sign-up", "reset", "sign-in", "invite"]

SEEN_EVERY = timedelta(minutes=1)
HALF = timedelta(minutes=15)  # how long a password waits for its second factor

BEGIN = """
INSERT INTO sessions (hash, id, user_id, account_id, stage, address, agent, created_at, seen_at, proved_at, expires_at, single_sign_on)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
# Locked until the session is stored: whoever changes the password ends it, too.
UNCHANGED = "SELECT FROM users WHERE id = %s AND password IS NOT DISTINCT FROM %s FOR SHARE"
_SESSION = Columns.of(
    hash="s.hash",
    id="s.id",
    user_id="s.user_id",
    account_id="s.account_id",
    stage="s.stage",
    created_at="s.created_at",
    seen_at="s.seen_at",
    proved_at="s.proved_at",
    email="u.email",
    name="u.name",
    time_zone="u.time_zone",
    shortcuts="u.shortcuts",
    verified="u.verified_at IS NOT NULL",
    second_factor=f"u.totp_at IS NOT NULL OR {PASSKEY.format('u')}",
    account="a.name",
    role="m.role",
    suspended="a.suspended_at IS NOT NULL",
    steps_hidden="m.steps_hidden_at IS NOT NULL",
    mfa_required="a.mfa_since IS NOT NULL",
    networks="a.dashboard_networks",
    single_sign_on="s.single_sign_on",
    must_use_provider=f"s.single_sign_on IS DISTINCT FROM m.account_id AND {AFFECTED}",
    accounts="""ARRAY(SELECT o.account_id || ' ' || n.name FROM members o JOIN accounts n ON n.id = o.account_id
        WHERE o.user_id = s.user_id ORDER BY lower(n.name), n.id)""",
    no_way_back=f"""s.single_sign_on IS NULL AND u.password IS NULL AND u.totp_at IS NULL AND NOT {PASSKEY.format("u")}
        AND NOT EXISTS (SELECT FROM identities i WHERE i.user_id = u.id)""",
)
FIND = f"""
SELECT {_SESSION}
FROM sessions s JOIN users u ON u.id = s.user_id
LEFT JOIN (members m JOIN accounts a ON a.id = m.account_id) ON m.account_id = s.account_id AND m.user_id = s.user_id
WHERE s.hash = %s AND s.expires_at > %s AND s.created_at > %s AND s.seen_at > %s AND (s.stage = 'whole' OR s.created_at > %s)
"""
LIST = """
SELECT id, address, agent, created_at, seen_at FROM sessions
WHERE user_id = %s AND stage = 'whole' AND expires_at > %s AND created_at > %s AND seen_at > %s ORDER BY seen_at DESC, id
"""
MAKE_LINK = """
INSERT INTO links (hash, purpose, email, account_id, role, created_by, created_at, expires_at, id)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
END_LINKS = "DELETE FROM links WHERE purpose = %s AND email = %s AND account_id IS NOT DISTINCT FROM %s"
LINK = "purpose, email, account_id, role"
# An invitation counts only while whoever made it may invite.
INVITER = "SELECT FROM members m WHERE m.account_id = links.account_id AND m.user_id = links.created_by AND m.role = 'admin'"
FIND_LINK = f"""
SELECT {LINK} FROM links
WHERE hash = %s AND purpose = %s AND expires_at > %s AND (purpose <> 'invite' OR EXISTS ({INVITER}))
"""
# Locked before the link, in the order of `Users.remove`: the inviter cannot be removed or demoted while somebody accepts.
LOCK_INVITER = """
SELECT FROM members m, links l WHERE l.hash = %s AND m.account_id = l.account_id AND m.user_id = l.created_by AND m.role = 'admin'
FOR SHARE OF m
"""
# Of somebody who has become a member by single sign-on since they were invited. Another role is a later decision of an admin.
RAISE = "UPDATE members SET role = %s WHERE account_id = %s AND user_id = %s AND role = %s"
TAKE_LINK = f"DELETE FROM links WHERE hash = %s AND purpose = %s AND expires_at > %s RETURNING {LINK}"
INVITATIONS = (
    "SELECT id, email, role, created_at, expires_at FROM links WHERE account_id = %s AND purpose = 'invite' AND expires_at > %s ORDER BY id"
)


@attrs.frozen
class Session:
    """A session, whose it is, and the account whose pages it shows; `role` is None where they are no member of it any more."""

    hash: bytes = attrs.field(repr=False)
    id: UUID
    user_id: UUID
    account_id: UUID | None
    stage: Stage
    created_at: datetime
    seen_at: datetime
    proved_at: datetime
    email: str
    name: str
    time_zone: str  # empty: not known yet
    shortcuts: bool  # single keys
    verified: bool  # a link that was sent to `email` was opened
    second_factor: bool
    account: str | None
    role: Role | None
    suspended: bool  # the account
    steps_hidden: bool | None  # on the home page of the account
    mfa_required: bool | None
    networks: Sequence[str] | None  # from which the account's pages can be opened; empty: from any
    single_sign_on: UUID | None  # the account whose provider was used to sign in
    must_use_provider: bool  # another way was used, and the account shown requires its provider
    accounts: Sequence[str]  # the user is a member of: ID, space, name
    no_way_back: bool  # a link, which works once, was used, and the user has no other way to sign in

    @property
    def other_accounts(self) -> list[tuple[str, str]]:
        """ID and name of the accounts that the user can switch to."""
        found = [(id, name) for id, _, name in (account.partition(" ") for account in self.accounts)]
        return [account for account in found if account[0] != str(self.account_id)]

    @property
    def lacks_second_factor(self) -> bool:
        """Whether the account shown requires a second factor that the user lacks. The account's own provider sees to it itself."""
        return bool(self.mfa_required) and not self.second_factor and self.single_sign_on != self.account_id


@attrs.frozen
class SessionView:
    """A session as its owner sees it in a list."""

    id: UUID
    address: str
    agent: str
    created_at: datetime
    seen_at: datetime


@attrs.frozen
class LinkView:
    """What a link is for. `account_id` and `role`: of an invitation."""

    purpose: Purpose
    email: str
    account_id: UUID | None
    role: Role | None


@attrs.frozen
class Invitation:
    id: UUID
    email: str
    role: Role
    created_at: datetime
    expires_at: datetime


class Sessions:
    """`idle` and `longest`: after how much silence, and how long after its begin, a session ends."""

    def __init__(self, pool: Pool, clock: Any, idle: timedelta = timedelta(hours=24), longest: timedelta = timedelta(days=30)) -> None:
        self._pool = pool
        self._clock = clock
        self._idle = idle
        self._longest = longest

    async def begin(
        self, user: User, account_id: UUID | None, stage: Stage, address: str, agent: str, instead_of: bytes | None = None,
        proved_at: datetime | None = None, single_sign_on: UUID | None = None,
    ) -> str | None:  # fmt: skip
        """The secret of a new session; None if the password was changed after `user` was read. `instead_of`: the SHA-256 of the one that
        it takes the place of.

        `proved_at`: when the person last proved who they are; None: just now. `single_sign_on`: the account whose provider they used.
        """
        now, secret = self._now(), new_secret()
        row = (digest(secret), uuid7(now.timestamp()), user.id, account_id, stage, address[:100], agent[:300])

        async def begin(tx: Transaction) -> str | None:
            if not await tx.rows(UNCHANGED, (user.id, user.password)):
                return None
            if instead_of is not None:
                await tx.run("DELETE FROM sessions WHERE hash = %s", (instead_of,))
            await tx.run(BEGIN, (*row, now, now, proved_at or now, now + self._longest, single_sign_on))
            return secret

        return await self._pool.transact(begin)

    @property
    def seconds(self) -> int:
        """How long a session lasts at most."""
        return int(self._longest.total_seconds())

    async def find(self, secret: str) -> Session | None:
        """The session, noted as alive."""
        now = self._now()
        rows = await self._pool.rows(FIND, (digest(secret), now, now - self._longest, now - self._idle, now - HALF))
        if not rows:
            return None
        session = Session(**_SESSION.read(rows[0]))
        if now - session.seen_at >= SEEN_EVERY:
            await self._pool.run("UPDATE sessions SET seen_at = %s WHERE hash = %s", (now, session.hash))
        return session

    async def proved(self, hash: bytes, lines: Sequence[Line] = (), at: datetime | None = None) -> None:
        """Record that the user confirmed their identity, at `at` or now."""
        await self._changed(lines, "UPDATE sessions SET proved_at = %s WHERE hash = %s", (at or self._now(), hash))

    async def show(self, hash: bytes, account_id: UUID) -> None:
        """Switch the session to this account."""
        await self._pool.run("UPDATE sessions SET account_id = %s WHERE hash = %s", (account_id, hash))

    async def list(self, user_id: UUID) -> list[SessionView]:
        now = self._now()
        return [SessionView(*row) for row in await self._pool.rows(LIST, (user_id, now, now - self._longest, now - self._idle))]

    async def end(self, hash: bytes, lines: Sequence[Line] = ()) -> None:
        await self._changed(lines, "DELETE FROM sessions WHERE hash = %s", (hash,))

    async def end_one(self, user_id: UUID, session_id: UUID, lines: Sequence[Line] = ()) -> bool:
        return await self._changed(lines, "DELETE FROM sessions WHERE user_id = %s AND id = %s", (user_id, session_id)) > 0

    async def end_others(self, user_id: UUID, but: bytes = b"", lines: Sequence[Line] = ()) -> int:
        """End all sessions of a user, except the one with the SHA-256 `but`."""
        return await self._changed(lines, END_OTHERS, (user_id, but))

    # Links

    async def make_link(
        self,
        purpose: Purpose,
        email: str,
        lives: timedelta,
        account_id: UUID | None = None,
        role: Role | None = None,
        created_by: UUID | None = None,
        lines: Sequence[Line] = (),
    ) -> str:
        """Create a link. Returns its secret; earlier links for the same purpose and address end."""
        now, secret = self._now(), new_secret()
        row = (digest(secret), purpose, email.lower(), account_id, role, created_by, now, now + lives, uuid7(now.timestamp()))

        async def make(tx: Transaction) -> None:
            await tx.run(END_LINKS, (purpose, email.lower(), account_id))
            await tx.run(MAKE_LINK, row)
            await write(tx, lines, now.timestamp())

        await self._pool.transact(make)
        return secret

    async def find_link(self, secret: str, purpose: Purpose) -> LinkView | None:
        rows = await self._pool.rows(FIND_LINK, (digest(secret), purpose, self._now()))
        return LinkView(*rows[0]) if rows else None

    async def sign_up(
        self, secret: str | None, email: str, new: NewUser, name: str, ramp: int | None, line: Callable[[UUID, User], Line]
    ) -> User | None:
        """Create a user with an account called `name`. The link cannot be used again. `secret` None: without a link, with a ticket.

        None if the link has expired, or somebody has the address or the identity; then nothing changes.
        """
        now = self._now()

        async def sign_up(tx: Transaction) -> User:
            if secret is not None and not await tx.rows(TAKE_LINK, (digest(secret), "sign-up", now)):
                raise Taken
            user = await add(tx, email, new, now)
            account = await accounts.add(tx, name, now, ramp=ramp)
            await tx.run(ADD_MEMBER, (account.id, user.id, "admin", now))
            await write(tx, [line(account.id, user)], now.timestamp())
            return user

        try:
            return await self._pool.transact(sign_up)
        except Taken:
            return None

    async def take_link(self, secret: str, purpose: Purpose) -> LinkView | None:
        """Use a link. It cannot be used again."""
        rows = await self._pool.rows(TAKE_LINK, (digest(secret), purpose, self._now()))
        return LinkView(*rows[0]) if rows else None

    async def accept(self, secret: str, who: User | NewUser, line: Callable[[LinkView, User], Line]) -> User | None:
        """Accept an invitation as an existing or a new user. The link cannot be used again.

        None if the link has expired, its creator can no longer invite, it is for another address, or a new user would have the address
        or identity of another user; then nothing changes.
        """
        now, hash = self._now(), digest(secret)

        async def accept(tx: Transaction) -> User:
            found = await tx.rows(LOCK_INVITER, (hash,)) and await tx.rows(TAKE_LINK, (hash, "invite", now))
            if not found:
                raise Taken
            link = LinkView(*found[0])
            user = who if isinstance(who, User) else await add(tx, link.email, who, now)
            if not await tx.rows("SELECT FROM users WHERE id = %s AND email = %s FOR SHARE", (user.id, link.email)):
                raise Taken
            if not await tx.run(ADD_MEMBER, (link.account_id, user.id, link.role, now)):
                await tx.run(RAISE, (link.role, link.account_id, user.id, LEAST))
            await write(tx, [line(link, user)], now.timestamp())
            return user

        try:
            return await self._pool.transact(accept)
        except Taken:
            return None

    async def reset(self, secret: str, user_id: UUID, password: str, lines: Sequence[Line] = ()) -> bool:
        """Set a new password with a reset link and end all access by the old one; whether the link was valid."""
        now = self._now()

        async def reset(tx: Transaction) -> bool:
            users = await tx.rows("SELECT email FROM users WHERE id = %s FOR UPDATE", (user_id,))
            links = await tx.rows(TAKE_LINK, (digest(secret), "reset", now)) if users else []
            if not links or links[0][1] != users[0][0]:
                return False
            await tx.run(SET_PASSWORD, (password, user_id))
            await tx.run(VERIFIED, (now, user_id))
            await end_access(tx, user_id, b"")
            await write(tx, lines, now.timestamp())
            return True

        return await self._pool.transact(reset)

    async def invitations(self, account_id: UUID) -> Sequence[Invitation]:
        return [Invitation(*row) for row in await self._pool.rows(INVITATIONS, (account_id, self._now()))]

    async def withdraw(self, account_id: UUID, link_id: UUID, lines: Sequence[Line] = ()) -> bool:
        sql = "DELETE FROM links WHERE account_id = %s AND id = %s AND purpose = 'invite'"
        return await self._changed(lines, sql, (account_id, link_id)) > 0

    async def sweep(self) -> None:
        """Delete expired sessions, links and address changes."""
        now = self._now()
        await self._pool.run("DELETE FROM sessions WHERE expires_at < %s OR seen_at < %s", (now, now - self._idle))
        await self._pool.run("DELETE FROM links WHERE expires_at < %s", (now,))
        await self._pool.run("DELETE FROM address_changes WHERE expires_at < %s", (now,))

    async def _changed(self, lines: Sequence[Line], sql: str, params: tuple[object, ...]) -> int:
        return await changed(self._pool, unix(self._clock), lines, sql, params)

    def _now(self) -> datetime:
        return utc(self._clock)


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
