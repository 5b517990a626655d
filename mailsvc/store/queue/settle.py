"""Settling: the results of an attempt for the recipients of one email, recorded in one transaction.

One statement writes queue rows, events, attempts and signatures for all settlements of a shared commit. Recipients that are no longer
leased by the process that settles them stay unchanged, without events. The same statement adds invalid addresses to the account's
suppression list.

This is a hot path: rows go to Postgres as JSON by name, and the result is read by position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import attrs

from mailsvc.outcome import Bounced, Canceled, Deferred, Delivered, Failed, Meaning, Outcome, Uncertain
from mailsvc.store.events.event_data import Bounce, Delay, Delivery, Failure
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.dsn_requests import SUCCESS
from mailsvc.store.mail.inserts import document, shard
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.settle_sql import SETTLE

MAX_ITEMS = 100
MAX_WEIGHT = 1 << 20  # bytes of transcripts and signatures in a shared commit


@attrs.frozen
class RecipientOutcome:
    """The outcome for one recipient, by its number in the email. `fault`: it failed for a local reason."""

    recipient: int
    outcome: Outcome
    fault: bool = False


@attrs.frozen
class AttemptRecord:
    """An attempt over SMTP. `address` is the server's host:port; `tls` is version, cipher and verification, or None without TLS.

    `source` is the own address.
    """

    attempt_id: UUID
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str = attrs.field(repr=False)
    source: str | None = None


_ATTEMPT = tuple(field.name for field in attrs.fields(AttemptRecord))
_VALUES = attrgetter(*_ATTEMPT)


@attrs.frozen
class Settlement:
    """The outcomes for some recipients of one email, all leased by `lease`.

    `attempt` is None if none of them reached SMTP. `signature` is the DKIM header block of the first attempt, given if a recipient is
    still waiting and none is stored: later attempts send the same bytes.
    `passed_on`: the server accepted the DSN options and will itself report the delivery to the sender (3461 §5.2).
    `brief`: of a broadcast's email. If it is delivered, the attempt is stored with the event, without the transcript.
    """

    account_id: UUID
    email_id: UUID
    domain_id: UUID
    lease: int
    at: datetime
    outcomes: tuple[RecipientOutcome, ...]
    attempt: AttemptRecord | None
    signature: bytes | None = attrs.field(default=None, repr=False)
    passed_on: bool = False
    brief: bool = False


class Settling:
    """Writes settlements. `on_events` is called after each commit with events, to wake the event ledger."""

    def __init__(self, pool: Pool, clock: Any, *, on_events: Callable[[], None] = lambda: None, linger: float = 0.002) -> None:
        self._pool = pool
        self._on_events = on_events
        self.outcomes: Counter[str] = Counter()  # recipients settled since the start
        self.batch: SharedCommits[Settlement, frozenset[int]] = SharedCommits(
            self._write, clock, max_items=MAX_ITEMS, max_weight=MAX_WEIGHT, linger=linger, writes=1
        )

    async def settle(self, settlement: Settlement, expected: int | None = None) -> frozenset[int]:
        """Returns the recipients that were settled: all of them, unless the lease was lost. `expected`: how many settlements can come."""
        return await self.batch.submit(settlement, _weight(settlement), expected)

    async def _write(self, settlements: list[Settlement]) -> list[frozenset[int]]:
        rows = [row for n, settlement in enumerate(settlements) for row in _rows(n, settlement)]
        rows.sort(key=lambda row: (row["email_id"].int, row["recipient"]))
        emails = [_email_row(n, settlement) for n, settlement in enumerate(settlements)]
        [(some,)] = await self._pool.rows(SETTLE, (document(rows), document(emails)))
        settled: list[set[int]] = [set() for _ in settlements]
        for n, recipient in ((row["n"], row["recipient"]) for row in rows) if some is None else some:
            settled[n].add(recipient)
        self.outcomes.update(row["outcome"] for row in rows if row["recipient"] in settled[row["n"]])
        if any(settled):
            self._on_events()
        return [frozenset(recipients) for recipients in settled]


def _rows(n: int, settlement: Settlement) -> list[dict[str, Any]]:
    whole = {
        "n": n,
        "account_id": settlement.account_id,
        "email_id": settlement.email_id,
        "domain_id": settlement.domain_id,
        "shard": shard(settlement.account_id),
        "lease": settlement.lease,
        "at": settlement.at,
    }
    if settlement.passed_on:
        whole["passed"] = SUCCESS
    if settlement.attempt is not None:
        whole |= {"host": settlement.attempt.host, "source": settlement.attempt.source}
    at = settlement.at.timestamp()
    rows = [
        {**whole, "recipient": o.recipient, "event_id": uuid7(at), "fault": int(o.fault), **_outcome(o.outcome, at)}
        for o in settlement.outcomes
    ]
    if (data := _brief(settlement)) is not None:
        rows[0]["data"] = data
    return rows


def _brief(settlement: Settlement) -> dict[str, object] | None:
    """What the event has instead of an attempt with a transcript, if the only recipient of a broadcast's email got it."""
    attempt = settlement.attempt
    if not settlement.brief or attempt is None or len(settlement.outcomes) != 1:
        return None
    outcome = settlement.outcomes[0].outcome
    if not isinstance(outcome, Delivered):
        return None
    facts = {"host": attempt.host, "address": attempt.address, "tls": attempt.tls, "source": attempt.source}
    found: dict[str, object] = {name: value for name, value in facts.items() if value is not None}
    return Delivery(outcome.reply, found | {"seconds": round(attempt.seconds, 3)}).stored()


def _outcome(outcome: Outcome, at: float) -> dict[str, object]:
    """The columns with the outcome for a recipient. Without a status it leaves the queue."""
    match outcome:
        case Delivered(reply):
            return {"outcome": "delivered", "reply": reply, "type": "email.delivered", "data": Delivery(reply).stored()}
        case Bounced():
            columns = {"outcome": "bounced", "reply": outcome.reply, "type": "email.bounced", "data": Bounce.of(outcome).stored()}
            return columns | _class(outcome.meaning) | ({"suppression": uuid7(at)} if outcome.suppress else {})
        case Failed(reason):
            return {"outcome": "failed", "reply": reason, "type": "email.failed", "data": Failure(reason).stored()}
        case Canceled():
            return {"outcome": "canceled", "type": "email.canceled"}
        case Deferred(reason, next_at, meaning):
            return _waits("deferred", "delayed", reason, next_at, meaning)
        case Uncertain(reason, next_at):
            return _waits("uncertain", "uncertain", reason, next_at)


def _waits(outcome: str, status: str, reason: str, next_at: datetime, meaning: Meaning | None = None) -> dict[str, object]:
    event = {"type": "email.delivery_delayed", "data": Delay(reason, next_at, meaning).stored()} | _class(meaning)
    return {"outcome": outcome, "reply": reason, "status": status, "reason": reason, "next_at": next_at} | event


def _class(meaning: Meaning | None) -> dict[str, object]:
    """Stored with the attempt, beside the outcomes."""
    return {} if meaning is None else {"class": meaning.kind, "rule": meaning.rule}


def _email_row(n: int, settlement: Settlement) -> dict[str, object]:
    """The row for the email, once for all recipients of a settlement."""
    row: dict[str, object] = {"n": n, "account_id": settlement.account_id, "email_id": settlement.email_id}
    if settlement.attempt is not None and _brief(settlement) is None:
        row |= zip(_ATTEMPT, _VALUES(settlement.attempt), strict=True)
    if settlement.signature is not None:
        row["signature"] = settlement.signature.decode("ascii")
    return row


def _weight(settlement: Settlement) -> int:
    transcript = "" if settlement.attempt is None else settlement.attempt.transcript
    return len(transcript) + len(settlement.signature or b"") + 256 * len(settlement.outcomes)
