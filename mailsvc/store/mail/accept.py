"""Accepting submissions: everything that one writes goes into one transaction.

A submission is acknowledged only after the commit was confirmed. Concurrent submissions share a commit. Messages are composed elsewhere
(mail/compose, intake); how they become rows: store/mail/inserts. This is a hot path: rows are passed as JSON and read by position.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred

from mailsvc.clock import unix, utc
from mailsvc.semaphore import Semaphore
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.mail import idempotency
from mailsvc.store.mail.idempotency import Claim
from mailsvc.store.mail.inserts import INSERT_EMAILS, INSERT_PIECE, SMALL, Hashes, documents, pieces
from mailsvc.store.mail.values import (
    Accepted,
    AcceptResult,
    Idempotency,
    InProgress,
    Mismatch,
    NewEmail,
    NewRecipient,
    Pieces,
    Replayed,
    Submission,
)
from mailsvc.store.people.audit import write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.detach import detached
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.idle import Idle
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.shared_commits import SharedCommits

__all__ = [
    "AcceptResult",
    "Acceptance",
    "Accepted",
    "Idempotency",
    "InProgress",
    "Mismatch",
    "NewEmail",
    "NewRecipient",
    "Pieces",
    "Replayed",
    "Submission",
]

MAX_ITEMS = 100
MAX_WEIGHT = 1 << 20  # bytes of messages in a shared commit
LONGEST_WAIT = 20.0  # seconds that an email waits while other writes fail: many HTTP clients give up after 30
LARGE = 2  # submissions with large messages at a time: one is written while another is committed
ANY_WEIGHT = 1 << 62  # how many bytes of large messages may wait is decided where they are received (runtime/budget)
OVERHEAD = 1024  # bytes that an email counts for besides its message


class Acceptance:
    """Accepts submissions. `linger` is how many seconds the first of a shared commit waits for others.

    `hashes`: to recognize suppressed addresses that were erased. `bodies`: the keys of accounts whose messages are encrypted. `compress`:
    other small messages are compressed. `pace`: what to await before a submission of so many emails, if anything (runtime/pacing).
    `writing` is called in the turn of the reactor after a write of these emails began.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Any,
        *,
        linger: float = 0.002,
        max_items: int = MAX_ITEMS,
        hashes: Hashes | None = None,
        compress: bool = False,
        bodies: BodyKeys | None = None,
        pace: Callable[[int], Awaitable[None] | None] = lambda emails: None,
        writing: Callable[[Sequence[NewEmail]], None] | None = None,
    ) -> None:
        self._pool, self.pace, self._writing = pool, pace, writing
        self._hashes, self._bodies, self._compress = hashes, bodies, compress
        self._clock = clock
        self._running: set[tuple[UUID, str, str]] = set()
        # Two large messages that are written at once take longer than one after the other: both wait for the same write-ahead log.
        self._large_writing = Semaphore(1)
        self.large: SharedCommits[Submission, AcceptResult] = SharedCommits(
            self._write_large, clock, max_items=1, writes=LARGE, queue_weight=ANY_WEIGHT, longest_wait=LONGEST_WAIT / LARGE
        )
        self.batch: SharedCommits[Submission, AcceptResult] = SharedCommits(
            self._write, clock, max_items=max_items, max_weight=MAX_WEIGHT, linger=linger, longest_wait=LONGEST_WAIT, idle=Idle(clock)
        )

    async def accept(self, submission: Submission) -> AcceptResult:
        """Commit `submission`, or return what its idempotency key was used for. Raises a StoreError if it may not have been committed.

        If the caller is cancelled, the commit still completes. After either, recipients may be in the queue with a lease that nobody uses.
        Only the process that has this lease finds and frees them (delivery/chores).
        """
        if any(email.encrypted for email in submission.emails):
            submission = await self._with_cipher(submission)
        if (turn := self.pace(len(submission.emails))) is not None:
            await turn
        claim = _claim(submission)
        if claim is not None and claim.identity in self._running:
            return InProgress()
        return await self._begin(submission, claim)

    async def recall(self, submission: Submission) -> AcceptResult | None:
        """The result for a submission whose key was used before or is in use; None if it is new."""
        claim = _claim(submission)
        if claim is None:
            return None
        if claim.identity in self._running:
            return InProgress()
        return (await self._pool.transact(lambda tx: self._answers(tx, [submission])))[0]

    async def _with_cipher(self, submission: Submission) -> Submission:
        """Messages that must be encrypted are never stored otherwise. Raises Unavailable if the key is not available."""
        if self._bodies is None:
            raise Unavailable("messages cannot be encrypted by this process")
        cipher = await self._bodies.for_new(submission.account_id)
        return attrs.evolve(submission, emails=tuple(attrs.evolve(email, cipher=cipher) for email in submission.emails))

    def _begin(self, submission: Submission, claim: Claim | None) -> Deferred[AcceptResult]:
        if claim is None:
            return self._submit(submission)
        self._running.add(claim.identity)
        return detached(self._keyed(submission, claim))

    async def _keyed(self, submission: Submission, claim: Claim) -> AcceptResult:
        try:
            return await self._submit(submission)
        finally:
            self._running.remove(claim.identity)

    def _submit(self, submission: Submission) -> Deferred[AcceptResult]:
        return (self.large if _is_large(submission) else self.batch).submit(submission, _weight(submission))

    async def _write_large(self, submissions: list[Submission]) -> list[AcceptResult]:
        """Large messages are committed separately, and delay only other large ones. While one is committed, the next is written."""
        await self._large_writing.acquire()
        with ExitStack() as turn:
            turn.callback(self._large_writing.release)
            self._announce(submissions)

            async def write(tx: Transaction) -> list[AcceptResult]:
                answers = await self._write_in(tx, submissions)
                turn.close()
                return answers

            return await self._pool.transact(write)

    def _announce(self, submissions: list[Submission]) -> None:
        if self._writing is not None:
            self._clock.callLater(0, self._writing, [email for s in submissions for email in s.emails])

    async def _write(self, submissions: list[Submission]) -> list[AcceptResult]:
        self._announce(submissions)
        if any(s.idempotency is not None or s.lines for s in submissions):
            return await self._pool.transact(lambda tx: self._write_in(tx, submissions))
        parts = list(documents((email for s in submissions for email in s.emails), self._hashes, self._compress))

        async def insert(tx: Transaction) -> list[Row]:
            return [row for part in parts for row in await tx.rows(INSERT_EMAILS, part)]

        suppressed = _by_email(await (self._pool.rows(INSERT_EMAILS, parts[0]) if len(parts) == 1 else self._pool.transact(insert)))
        return [_accepted(s, suppressed) for s in submissions]

    async def _write_in(self, tx: Transaction, submissions: list[Submission]) -> list[AcceptResult]:
        answers = await self._answers(tx, submissions)
        new = [s for s, answer in zip(submissions, answers, strict=True) if answer is None]
        emails = [email for s in new for email in s.emails]
        suppressed: dict[UUID, frozenset[int]] = {}
        for part in documents(emails, self._hashes, self._compress):
            suppressed |= _by_email(await tx.rows(INSERT_EMAILS, part))
        rows = ((email.account_id, email.email_id, number, piece) for email in emails for number, piece in enumerate(pieces(email)))
        await tx.run_each(INSERT_PIECE, rows)
        claims = [claim for claim in map(_claim, new) if claim is not None]
        if claims:
            await idempotency.keep(tx, claims)
        for s in new:
            if s.lines:
                await write(tx, s.lines, unix(self._clock))
        return [_accepted(s, suppressed) if answer is None else answer for s, answer in zip(submissions, answers, strict=True)]

    async def _answers(self, tx: Transaction, submissions: list[Submission]) -> list[AcceptResult | None]:
        answers: list[AcceptResult | None] = [None] * len(submissions)
        keyed = [(n, claim) for n, claim in enumerate(map(_claim, submissions)) if claim is not None]
        if keyed:
            now = utc(self._clock)
            found = await idempotency.stored_results(tx, [claim for _, claim in keyed], now)
            for (n, _), answer in zip(keyed, found, strict=True):
                answers[n] = answer
        return answers


def _claim(submission: Submission) -> Claim | None:
    return None if submission.idempotency is None else Claim(submission.account_id, submission.idempotency)


def _by_email(rows: list[Row]) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, set[int]] = {}
    for email_id, recipient in rows:
        found.setdefault(email_id, set()).add(recipient)
    return {email_id: frozenset(recipients) for email_id, recipients in found.items()}


def _accepted(submission: Submission, suppressed: dict[UUID, frozenset[int]]) -> Accepted:
    if not suppressed:
        return Accepted()
    return Accepted({e.email_id: suppressed[e.email_id] for e in submission.emails if e.email_id in suppressed})


def _is_large(submission: Submission) -> bool:
    return any(len(email.message) > SMALL for email in submission.emails)


def _weight(submission: Submission) -> int:
    return sum(len(email.message) + OVERHEAD for email in submission.emails)
