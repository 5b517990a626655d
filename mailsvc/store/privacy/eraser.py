"""Erases an address: the steps in their order, each in short transactions, until nothing is left or what is left must wait.

The address of mail that is being sent at this moment cannot be removed before its result is known, and a message that still has to go to
other recipients is needed for them. Both are counted as waiting, and the erasure stays open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.task import deferLater

from mailsvc.clock import utc
from mailsvc.mail.address_search import Address, Search
from mailsvc.store.account_data import deletion
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy import messages, people, statements
from mailsvc.store.privacy.erasures import Erasure, Erasures, Finished, Progress, account_of
from mailsvc.store.privacy.messages import UNREADABLE, InThread, Key, Messages
from mailsvc.store.privacy.people import People
from mailsvc.store.privacy.rows import Rows
from mailsvc.store.privacy.statements import Shape

PATIENCE = 30.0  # seconds to wait for mail that is being sent
POLL = 0.5
SAVE_EVERY = 50  # messages without the address, after which the position is saved

Step = Callable[["_Run", Progress], Awaitable[Progress]]


@attrs.define(eq=False)
class Eraser:
    """`in_thread` runs a function in a thread. `patience`: seconds to wait for mail that is being sent. `stopped`: end soon, unfinished."""

    pool: Pool
    clock: Any
    encryption: Encryption
    in_thread: InThread
    patience: float = PATIENCE
    stopped: bool = False
    bodies: BodyKeys | None = None
    erasures: Erasures = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.erasures = Erasures(self.pool, self.clock, self.encryption)

    async def run(self, erasure: Erasure, email: str, *, alone: bool = False) -> Erasure:
        """Erase everything that can be erased now. `alone`: no process is sending, so that leases do not count.

        The result is finished, unless something is waiting. `email` can also be `the_account`.
        """
        if (account_id := account_of(email)) is not None:
            return await self._all_of(erasure, account_id)
        address = Address(email)
        run = _Run(
            self, erasure, address, Rows(address, erasure.account),
            Messages(self.pool, Search(address), erasure.account, self.in_thread, self.bodies),
            People(address, erasure.account, AudienceKeys(self.pool, self.encryption), self.encryption), alone,
        )  # fmt: skip
        tables: list[Step] = [partial(_table, shape=shape) for shape in (await statements.shapes(self.pool)).values()]
        return await self._run(erasure, [partial(step, run) for step in (*_BEFORE, *tables, *_AFTER)])

    async def _all_of(self, erasure: Erasure, account_id: UUID) -> Erasure:
        """Delete the account. Certificates of its erasures and the lines of its audit log stay."""
        works = await deletion.steps(self.pool, account_id, utc(self.clock), self.bodies)
        return await self._run(erasure, [partial(self._advance, erasure, work) for work in works])

    async def _advance(self, erasure: Erasure, work: deletion.Work, at: Progress) -> Progress:
        return await self.erasures.advance(erasure, at, work)

    async def _run(self, erasure: Erasure, steps: Sequence[Callable[[Progress], Awaitable[Progress]]]) -> Erasure:
        try:
            at = await self.erasures.restart(erasure)
            while at.step < len(steps) and not self.stopped:
                at = await steps[at.step](at)
            if at.step == len(steps):
                await self.erasures.finish(erasure, at)
        except Finished:
            pass
        found = await self.erasures.get(erasure.account_id, erasure.id)
        assert found is not None
        return found


@attrs.frozen
class _Run:
    """One run of an erasure."""

    eraser: Eraser
    erasure: Erasure
    address: Address
    rows: Rows
    messages: Messages
    people: People
    alone: bool

    async def advance(self, at: Progress, work: Callable[[Transaction, Progress], Awaitable[None]]) -> Progress:
        return await self.eraser.erasures.advance(self.erasure, at, work)


async def _queue(run: _Run, at: Progress) -> Progress:
    """Stop what is queued. Mail that is being sent now is waited for."""
    clock, pool, step = run.eraser.clock, run.eraser.pool, at.step
    deadline = clock.seconds() + run.eraser.patience

    async def stop(tx: Transaction, progress: Progress) -> None:
        await run.people.stop(tx, progress, utc(clock), leased=run.alone)
        if progress.step == step:
            return
        [(sending,)] = await tx.rows(people.LEASED, run.people.named)
        if sending and clock.seconds() < deadline:
            progress.step = step

    while at.step == step:
        at = await run.advance(at, stop)
        [(sending,)] = await pool.rows(people.LEASED, run.people.named)
        if at.step == step and sending:
            await deferLater(clock, POLL)
    return at


async def _table(run: _Run, at: Progress, shape: Shape) -> Progress:
    return await run.advance(at, lambda tx, progress: run.rows.erase(tx, progress, shape))


async def _contacts(run: _Run, at: Progress) -> Progress:
    return await run.advance(at, lambda tx, progress: run.people.contacts(tx, progress, utc(run.eraser.clock)))


async def _members(run: _Run, at: Progress) -> Progress:
    return await run.advance(at, run.people.members)


async def _suppressions(run: _Run, at: Progress) -> Progress:
    suppress = run.erasure.suppress
    return await run.advance(at, lambda tx, progress: run.people.suppressions(tx, progress, utc(run.eraser.clock), suppress))


async def _stored(run: _Run, at: Progress) -> Progress:
    async def delete(tx: Transaction, progress: Progress, key: Key) -> None:
        [(queued,)] = await tx.rows(messages.QUEUED, key)
        if queued:
            progress.add("waiting", "messages.bytes")
        else:
            progress.add("erased", "messages.bytes", int(await tx.run(messages.DELETE, key) > 0))

    return await _each(run, at, run.messages.stored(at.after), delete)


async def _inbox(run: _Run, at: Progress) -> Progress:
    async def delete(tx: Transaction, progress: Progress, key: Key) -> None:
        progress.add("erased", "sandbox_emails.message", await tx.run(messages.DELETE_INBOX, key))

    return await _each(run, at, run.messages.inbox(at.after), delete)


async def _imports(run: _Run, at: Progress) -> Progress:
    async def overwrite(tx: Transaction, progress: Progress, key: Key) -> None:
        await run.messages.overwrite(tx, key)
        progress.add("erased", "contact_import_chunks.data")

    return await _each(run, at, run.messages.chunks(at.after), overwrite)


async def _each(
    run: _Run, at: Progress, found: AsyncIterator[tuple[Key, bool | None]], erase: Callable[[Transaction, Progress, Key], Awaitable[None]]
) -> Progress:
    """Erase those that have the address, and save the position with each, and now and then in between. What cannot be read is counted."""
    step, unsaved = at.step, 0

    async def save(tx: Transaction, progress: Progress, key: Key, has: bool | None) -> None:
        if has:
            await erase(tx, progress, key)
        elif has is None:
            progress.add("kept", UNREADABLE)
        progress.after = dict(key)

    async def end(tx: Transaction, progress: Progress) -> None:  # noqa: ARG001
        progress.next_step()

    async for key, has in found:
        unsaved += 1
        if has or has is None or unsaved >= SAVE_EVERY:
            before: Mapping[str, Any] | None = at.after
            at = await run.advance(at, partial(_call, save, key=key, has=has))
            unsaved = 0
            if at.step != step or at.after != dict(key) or at.after == before:
                return at  # another process is further
        if run.eraser.stopped:
            return at
    return await run.advance(at, end)


async def _call(save: Callable[..., Awaitable[None]], tx: Transaction, progress: Progress, *, key: Key, has: bool | None) -> None:
    await save(tx, progress, key, has)


_BEFORE: tuple[Step, ...] = (_queue, _imports, _suppressions, _contacts, _members)
_AFTER: tuple[Step, ...] = (_stored, _inbox, _contacts)


async def refused(pool: Pool, email: str, account: UUID | None) -> str | None:
    """Why an address cannot be erased, as a sentence; None if it can."""
    names = await pool.transact(lambda tx: people.sole_admin_of(tx, Address(email), account))
    if not names:
        return None
    return f"It is the address of the only admin of {', '.join(names)}. Make somebody else an admin first, or close the account."
