"""Moves one account from its cell to another one while its mail is accepted. For commands: all of it blocks.

1. *Ahead.* Triggers record what changes; the passive tables are copied, then what has changed since (account_copying).
2. *Drain.* The account's mail is paused, as the operator's pauses do, until no process has a lease of it.
3. *Switch.* The lock of the old cell is taken, as Citus does at the end of a move, so that all its processes stand still (hold). The last
   changes and the staged tables are copied, and inserting these is tried (`stage`). One transaction removes what makes the old cell act,
   and says that the account has left: the point of no return (`leave`). With its commit the lock ends. Then the staged rows are inserted
   (account_arrival).
4. *Clean.* The passive rows are deleted from the old cell.

The phase in the old cell decides: while it is `leaving`, the account is there, and a move that was interrupted is undone; once it is
`left`, a move is completed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import psycopg2

from mailsvc.store.cells import account_arrival, account_changes
from mailsvc.store.cells.account_copying import AccountCopying, Side, connect, delete_rows, placement
from mailsvc.store.cells.account_tables import KEPT, LEFT_BEHIND, PASSIVE, STAGED, USERS
from mailsvc.store.cells.hold import LOCK_ALONE
from mailsvc.store.cells.nodes import Refused
from mailsvc.store.privacy.erasures import EVERYWHERE

REASON = "The account is being moved to another cell."
MOST_QUEUED = 50_000  # recipients, and as many webhooks
DRAIN = 120.0  # seconds until no mail of the account is being sent
NOTICED = 3.0  # seconds in which processes notice a pause: they read pauses every second
TRIES = 5  # to switch, if mail is being sent after all; to lock a table
STILL = 10.0  # seconds that the processes of the old cell may stand still
LITTLE = 500  # changes that are left to the switch
ROUNDS = 1000  # of catching up
PAUSE = 0.2  # seconds between two looks
LOCK = 0x6D6F7665  # "move": first key of the advisory lock; the second one is the cell
# Without an account's ID; of other accounts as well; or, as the log of requests, written for many accounts at once and never without one.
UNGUARDED = {"accounts", "dkim_keys", "domain_history", "erasures", "request_log", *USERS, *KEPT}
# A process that was killed, or did not wait for a slow statement, no longer holds the cell, but the server completes the statement.
_WRITERS = f"LOCK TABLE {', '.join((*PASSIVE, *STAGED))} IN SHARE MODE"
_ALONE = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
_MIGRATIONS = "SELECT array_agg(migration_id ORDER BY migration_id) FROM _yoyo_migration"
_ACCOUNT = "SELECT name, pinned, closes_at IS NOT NULL, archive IS NOT NULL FROM accounts WHERE id = %s"
_NAMES = "SELECT name FROM domains WHERE account_id = %s"
_TAKEN = """
SELECT name FROM domains WHERE name = ANY (%(names)s) AND account_id <> %(account)s
UNION SELECT domain FROM single_sign_on_domains WHERE domain = ANY (%(names)s) AND account_id <> %(account)s ORDER BY 1
"""
_BLOCKERS = """
SELECT CASE
    WHEN EXISTS (SELECT FROM broadcasts WHERE account_id = %(account)s AND status = 'queued') THEN 'A broadcast is being sent.'
    WHEN EXISTS (SELECT FROM contact_imports WHERE account_id = %(account)s AND status IN ('queued', 'in_progress'))
    THEN 'Contacts are being imported.'
    WHEN EXISTS (SELECT FROM erasures WHERE account_id IN (%(account)s, %(everywhere)s) AND finished_at IS NULL)
    THEN 'Data is being erased.'
    WHEN (SELECT count(*) FROM (SELECT FROM queue WHERE account_id = %(account)s LIMIT %(most)s + 1) q) > %(most)s
    THEN format('More than %%s recipients are queued.', %(most)s)
    WHEN (SELECT count(*) FROM (SELECT FROM webhook_outbox WHERE account_id = %(account)s LIMIT %(most)s + 1) o) > %(most)s
    THEN format('More than %%s webhooks wait.', %(most)s)
END
"""
_PAUSED = "SELECT reason FROM account_pauses WHERE account_id = %s AND until > now()"
_PAUSE = """
INSERT INTO account_pauses (account_id, reason, until) VALUES (%s, %s, 'infinity')
ON CONFLICT (account_id) DO UPDATE SET reason = excluded.reason, until = excluded.until, automatic = false
"""
_RESUME = "DELETE FROM account_pauses WHERE account_id = %s AND reason = %s"
_DUE = """
UPDATE queue SET next_at = now() WHERE account_id = %s AND next_at = 'infinity' AND lease IS NULL AND status <> 'scheduled'
"""
_LEASED = "SELECT count(*) FROM queue WHERE account_id = %s AND lease IS NOT NULL"
# Waits for the last commit of a command that was killed: it may still be in progress, for example until a standby confirms it.
_PHASE = "SELECT phase, cell FROM account_moves WHERE account_id = %s FOR UPDATE"
_BEGIN = """
INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, %s, %s, now())
ON CONFLICT (account_id) DO UPDATE SET phase = excluded.phase, cell = excluded.cell, begun_at = excluded.begun_at
"""
_LEFT = "UPDATE account_moves SET phase = 'left', moved_at = clock_timestamp(), finished_at = NULL WHERE account_id = %s"
_KEYS = """
INSERT INTO account_move_keys (hash, key_id, account_id, cell)
SELECT hash, id, account_id, %s FROM api_keys WHERE account_id = %s AND revoked_at IS NULL
ON CONFLICT (hash) DO UPDATE SET cell = excluded.cell
"""
# What other systems have not received of the audit log, the new cell sends them.
_SENT = """
INSERT INTO audit_sent (account_id, target, seq)
SELECT h.account_id, t.name, h.seq FROM audit_heads h CROSS JOIN audit_targets t WHERE h.account_id = %s
ON CONFLICT (account_id, target) DO UPDATE SET seq = excluded.seq
"""
_NAMELESS = """
UPDATE audit_details SET actor = NULL, actor_salt = NULL, address = NULL, address_salt = NULL, subject = NULL, subject_salt = NULL
WHERE account_id = %s AND (actor IS NOT NULL OR address IS NOT NULL OR subject IS NOT NULL)
"""
_MEMBERS = "SELECT array_agg(user_id::text) FROM members WHERE account_id = %s"
_USERS = "DELETE FROM users u WHERE u.id = ANY (%s::uuid[]) AND NOT EXISTS (SELECT FROM members m WHERE m.user_id = u.id)"
_FINISHED = "UPDATE account_moves SET finished_at = now() WHERE account_id = %s AND phase = 'left'"
# An account that was in the cell before has left it again; otherwise nothing of it is there.
_RETURNED = "UPDATE account_moves SET phase = 'left', cell = %s WHERE account_id = %s AND moved_at IS NOT NULL"
_FORGET = "DELETE FROM account_moves WHERE account_id = %s AND phase <> 'left'"
_LIMITS = "SET LOCAL lock_timeout = %s; SET LOCAL statement_timeout = %s"
_NOTIFY = "SELECT pg_notify('mailsvc_' || channel, '') FROM unnest(ARRAY['keys', 'domains']) AS channel"


class GivenUp(Exception):
    """The move was begun and cannot go on. The text is a sentence for the operator."""


class Sending(GivenUp):
    """A process has not noticed the pause yet."""


@attrs.frozen
class Moved:
    """`seconds`: how long the processes of the old cell stood still. None: an earlier run of the command has switched."""

    seconds: float | None
    number: int | None


@attrs.define(eq=False)
class AccountMove:
    """`near`: whether both cells are in the same region. `moment`: called with the name of each step that has been done."""

    source: Side
    target: Side
    account: UUID
    near: bool = True
    moment: Callable[[str], None] = lambda _: None
    report: Callable[[str], None] = lambda _: None
    drain: float = DRAIN
    noticed: float = NOTICED
    still: float = STILL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def _id(self) -> str:
        return str(self.account)

    def run(self) -> Moved:
        """Move the account, or complete its move. Raises Refused: then it is where it was."""
        self._alone()
        if self._phase(self.source) == ("left", self.target.cell):
            return self._complete(None)
        self._undo()
        self._check()
        try:
            self._ahead()
            self._pause()
            seconds = self._switched()
        except GivenUp as error:
            self._undo()
            raise Refused(f"{error} The account stays in {self.source.cell}.") from None
        return self._complete(seconds)

    def undo(self) -> bool:
        """Undo a move that was interrupted. False if there is none. Raises Refused if the account has left already."""
        self._alone()
        if self._phase(self.source) == ("left", self.target.cell):
            raise Refused(f"The account is in {self.target.cell} already: run the command without --undo to complete the move.")
        return self._undo()

    # Before

    def _alone(self) -> None:
        for side in (self.source, self.target):
            with side.connection, side.connection.cursor() as cursor:
                cursor.execute(_ALONE, (LOCK, side.cell))
                if not cursor.fetchone()[0]:
                    raise Refused(f"Another account is being moved from or to {side.cell}. Wait until that is done.")

    def _check(self) -> None:
        source, target = self.source.cell, self.target.cell
        for side in (self.source, self.target):
            if (unfinished := self._phase(side)) is not None and unfinished[0] != "left":
                raise Refused(f"A move of the account between {side.cell} and {unfinished[1]} was interrupted. Complete or undo it first.")
        with self.source.connection, self.source.connection.cursor() as cursor:
            cursor.execute(_MIGRATIONS)
            migrations = cursor.fetchone()
            cursor.execute(_ACCOUNT, (self._id,))
            if (found := cursor.fetchone()) is None:
                raise Refused(f"The account {self.account} is not in {source}.")
            name, pinned, closing, arriving = found
            if closing:
                raise Refused(f"{name} is being closed.")
            if arriving:
                raise Refused(f"{name} is being imported. Run `mailsvc account import` again first.")
            if pinned and not self.near:
                raise Refused(f"{name} is pinned to its region, and {target} is in another one.")
            if (why := self._blocked(cursor)) is not None:
                raise Refused(f"{name} cannot be moved now: {why}")
            cursor.execute(_PAUSED, (self._id,))
            if (paused := cursor.fetchone()) is not None:
                raise Refused(f"The mail of {name} is on hold: {paused[0]} Resume or release it first.")
            cursor.execute(_NAMES, (self._id,))
            names = [domain for (domain,) in cursor.fetchall()]
        with self.target.connection, self.target.connection.cursor() as cursor:
            cursor.execute(_MIGRATIONS)
            if cursor.fetchone() != migrations:
                raise Refused(f"{source} and {target} are of different releases. Upgrade the processes of both first.")
            cursor.execute(_ACCOUNT, (self._id,))
            if cursor.fetchone() is not None:
                raise Refused(f"There is an account {self.account} in {target}.")
            cursor.execute(_TAKEN, {"names": names, "account": self._id})
            if taken := [domain for (domain,) in cursor.fetchall()]:
                raise Refused(f"Another account in {target} has the domain {', '.join(taken)}. Remove it there first.")

    def _blocked(self, cursor: Any) -> str | None:
        cursor.execute(_BLOCKERS, {"account": self._id, "everywhere": str(EVERYWHERE), "most": MOST_QUEUED})
        [(why,)] = cursor.fetchall()
        return None if why is None else str(why)

    def _phase(self, side: Side) -> tuple[str, str] | None:
        try:
            with side.connection, side.connection.cursor() as cursor:
                cursor.execute(_PHASE, (self._id,))
                found = cursor.fetchone()
        except psycopg2.errors.LockNotAvailable:
            raise Refused(f"An earlier run of the command is still writing to {side.cell}. Try again when that has ended.") from None
        return None if found is None else (found[0], found[1])

    # The move

    def _ahead(self) -> None:
        with self.target.connection, self.target.connection.cursor() as cursor:
            cursor.execute(_BEGIN, (self._id, "arriving", self.source.cell))
        self._change(self.target, lambda cursor: account_changes.guard(cursor, self.target.cell))
        delete_rows(self.target, PASSIVE, self.account, lambda _: None)  # of an earlier stay, if their deletion was interrupted
        self.moment("begun in the target")
        with self.source.connection, self.source.connection.cursor() as cursor:
            cursor.execute(_BEGIN, (self._id, "leaving", self.target.cell))
            account_changes.begin_log(cursor, self.source.cell)
        self.moment("begun")
        for name in PASSIVE:
            self._change(self.source, partial(self._record, name))
        self.moment("recording")
        copying = self._copying()
        copying.ahead()
        self.report(f"{copying.rows:,} rows were copied")
        self._catch_up(copying)
        self.moment("copied")

    def _record(self, name: str, cursor: Any) -> None:
        account_changes.record(cursor, self.source.cell, name, self.source.tables[name].shape.keys, self.account)

    def _change(self, side: Side, change: Callable[[Any], object]) -> None:
        """Change the triggers of one table, in a transaction that waits for the table's lock, and does so again if it does not get it."""
        for left in reversed(range(TRIES)):
            try:
                with side.connection, side.connection.cursor() as cursor:
                    change(cursor)
                return
            except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
                if not left:
                    raise
                self.sleep(PAUSE)

    def _catch_up(self, copying: AccountCopying) -> None:
        for _ in range(ROUNDS):
            if copying.catch_up() < LITTLE:
                return
        raise GivenUp("The account's data changes faster than it can be copied.")

    def _pause(self) -> None:
        with self.source.connection, self.source.connection.cursor() as cursor:
            cursor.execute(_PAUSE, (self._id, REASON))
        self._change(self.source, lambda cursor: account_changes.hold(cursor, self.source.cell, self.account))
        self.moment("paused")

    def _switched(self) -> float:
        """Drain and switch, again if mail was being sent after all."""
        for _ in range(TRIES - 1):
            self._drain()
            with suppress(Sending):
                return self._switch()
        self._drain()
        return self._switch()

    def _drain(self) -> None:
        copying, began = self._copying(), self.clock()
        while self._leased() or self.clock() - began < self.noticed:
            if self.clock() - began > max(self.drain, self.noticed):
                raise GivenUp(f"Mail of the account was still being sent after {self.drain:.0f} s.")
            self.sleep(PAUSE)
            self._catch_up(copying)
        self._catch_up(copying)
        self.moment("drained")

    def _leased(self) -> int:
        with self.source.connection, self.source.connection.cursor() as cursor:
            cursor.execute(_LEASED, (self._id,))
            return int(cursor.fetchone()[0])

    def _switch(self) -> float:
        """Returns for how many seconds the processes of the old cell were told to stand still."""
        source = connect(self.source.url, self.source.cell)
        began = self.clock()
        try:
            with source.cursor() as cursor:
                self._limit(cursor, began)
                cursor.execute(LOCK_ALONE, (self.source.cell,))
                cursor.execute(_WRITERS)
                self.moment("locked")
                self._limit(cursor, began)
                self._ready(cursor)
                with self.target.connection, self.target.connection.cursor() as target:
                    self._stage(cursor, target, began)
                self.moment("staged")
                self._limit(cursor, began)
                self._leave(cursor)
                self._in_time(began)
                self.moment("leaving")
                source.commit()
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
            raise GivenUp(f"The processes of {self.source.cell} did not let go of it in {self.still:.0f} s.") from None
        except psycopg2.errors.QueryCanceled:
            raise GivenUp(self._slow) from None
        finally:
            source.close()
        self.moment("left")
        return self.clock() - began

    def _ready(self, cursor: Any) -> None:
        """That everything is as it was when the copy was made, while nothing can change any more."""
        if placement(cursor, self.source.cell) != self.source.placement:
            raise GivenUp(f"The cell {self.source.cell} was moved to another node meanwhile.")
        cursor.execute(_ACCOUNT, (self._id,))
        found = cursor.fetchone()
        if found is None or found[2]:
            raise GivenUp("The account was closed meanwhile.")
        if (why := self._blocked(cursor)) is not None:
            raise GivenUp(why)
        cursor.execute(_PAUSED, (self._id,))
        if cursor.fetchone() != (REASON,):
            raise GivenUp("The pause of the account's mail was lifted meanwhile.")
        cursor.execute(_LEASED, (self._id,))
        if cursor.fetchone()[0]:
            raise Sending("Mail of the account is being sent.")

    def _stage(self, source: Any, target: Any, began: float) -> None:
        self._limit(target, began)
        if placement(target, self.target.cell) != self.target.placement:
            raise GivenUp(f"The cell {self.target.cell} was moved to another node meanwhile.")
        copying = self._copying()
        while copying.changes(source, target):
            self._in_time(began)
        copying.stage(source, target)
        try:
            account_arrival.rehearse(target, self.target, self.account)
        except psycopg2.IntegrityError as error:
            raise GivenUp(f"Its rows do not fit into {self.target.cell}: {error.diag.message_primary}.") from None
        self._in_time(began)

    def _limit(self, cursor: Any, began: float) -> None:
        """Let no statement take longer than what is left, nor wait for a lock; the error tells which."""
        self._in_time(began)
        left = max(1, int((self.still - (self.clock() - began)) * 1000))
        cursor.execute(_LIMITS, (left, left + 100))

    def _in_time(self, began: float) -> None:
        if self.clock() - began > self.still:
            raise GivenUp(self._slow)

    @property
    def _slow(self) -> str:
        return f"The last rows could not be copied in {self.still:.0f} s."

    def _leave(self, cursor: Any) -> None:
        cell = self.source.cell
        for statement in account_changes.ending(cursor, cell, PASSIVE):
            cursor.execute(statement)
        cursor.execute(_LEFT, (self._id,))
        cursor.execute(_KEYS, (self.target.cell, self._id))
        cursor.execute(_SENT, (self._id,))
        cursor.execute(_NAMELESS, (self._id,))
        cursor.execute(_MEMBERS, (self._id,))
        [(members,)] = cursor.fetchall()
        for name in (*(name for name in LEFT_BEHIND if name != "address_changes"), *reversed(STAGED)):
            if name not in (*USERS, *KEPT):
                cursor.execute(f"DELETE FROM {name} t WHERE {self.source.tables[name].scope}", {"account": self._id})
        cursor.execute(_USERS, (members or [],))
        account_changes.guard(cursor, cell, [name for name in (*PASSIVE, *STAGED) if name not in UNGUARDED])
        cursor.execute(_NOTIFY)

    # After

    def _complete(self, seconds: float | None) -> Moved:
        """What follows the point of no return; repeatable."""
        number = None
        if self._phase(self.target) == ("arriving", self.source.cell):
            number = account_arrival.arrive(self.target, self.account)
        self.moment("arrived")
        delete_rows(self.source, PASSIVE, self.account, self.moment)
        self._one_by_one(account_changes.unguarding)
        with self.source.connection, self.source.connection.cursor() as cursor:
            cursor.execute(_FINISHED, (self._id,))
        self.moment("finished")
        return Moved(seconds, number)

    def _undo(self) -> bool:
        """Remove what an interrupted move has left. The account is in the old cell."""
        source, target = self._phase(self.source), self._phase(self.target)
        if (arriving := target is not None and target == ("arriving", self.source.cell)) or source == ("leaving", self.target.cell):
            self._undo_target(arriving)
            self.moment("undone in the target")
            self._one_by_one(partial(account_changes.ending, names=PASSIVE))
            with self.source.connection, self.source.connection.cursor() as cursor:
                cursor.execute(_RESUME, (self._id, REASON))
                cursor.execute(_DUE, (self._id,))
                cursor.execute(_FORGET, (self._id,))
                cursor.execute("SELECT pg_notify('mailsvc_queue', '')")
            self.moment("undone")
            return True
        return False

    def _undo_target(self, arriving: bool) -> None:
        if arriving:
            delete_rows(self.target, PASSIVE, self.account, lambda _: None)
            with self.target.connection, self.target.connection.cursor() as cursor:
                cursor.execute("DELETE FROM account_arrivals WHERE account_id = %s", (self._id,))
                cursor.execute(_RETURNED, (self.source.cell, self._id))
                cursor.execute(_FORGET, (self._id,))
            self._change(self.target, lambda cursor: account_changes.guard(cursor, self.target.cell))

    def _one_by_one(self, statements: Callable[[Any, str], Sequence[Any]]) -> None:
        """Run statements about triggers of the old cell."""
        with self.source.connection, self.source.connection.cursor() as cursor:
            found = statements(cursor, self.source.cell)
        for statement in found:
            self._change(self.source, lambda cursor, statement=statement: cursor.execute(statement))  # type: ignore[misc]

    def _copying(self) -> AccountCopying:
        return AccountCopying(self.source, self.target, self.account, self.moment)
