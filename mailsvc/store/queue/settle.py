"""Settling: what became of the recipients of one email in one attempt, written down in one transaction.

Queue rows, events, the attempt and the signature go in one statement for all settlements of a shared commit. Whatever is
no longer leased by who settles it stays untouched, and nothing is told of it. An address that is no good goes to the account's
suppression list by the same statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.outcome import Bounced, Deferred, Delivered, Failed, Meaning, Outcome, Uncertain
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.dsn_requests import SUCCESS
from mailsvc.store.mail.inserts import document, shard
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.settle_sql import SETTLE

MAX_ITEMS = 100
MAX_WEIGHT = 1 << 20  # octets of transcripts and signatures in a shared commit


@attrs.frozen
class RecipientOutcome:
    """What became of one recipient, by its number in the email. `fault`: what went wrong was ours."""

    recipient: int
    outcome: Outcome
    fault: bool = False


@attrs.frozen
class AttemptRecord:
    """One try over SMTP. `address` is host:port that answered; `tls` version, cipher and how it was verified, None: in clear.

    `source` is our own address.
    """

    attempt_id: UUID
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str = attrs.field(repr=False)
    source: str | None = None


@attrs.frozen
class Settlement:
    """The outcomes of some recipients of one email, all leased under `lease`.

    `attempt` is None when none of them reached SMTP. `signature` is the DKIM header block of the first attempt,
    given when a recipient still waits and none is stored yet: later attempts send the same bytes.
    `passed_on`: the server that took it was told what to tell the sender, and will tell of the delivery itself (3461 §5.2).
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


class Settling:
    """Writes settlements down. `told` is called after each commit with events, to wake whoever reads them."""

    def __init__(self, pool: Pool, clock: Any, *, told: Callable[[], None] = lambda: None, linger: float = 0.002) -> None:
        self._pool = pool
        self._told = told
        self.outcomes: Counter[str] = Counter()  # recipients that were settled since the start
        self.batch: SharedCommits[Settlement, frozenset[int]] = SharedCommits(
            self._write, clock, max_items=MAX_ITEMS, max_weight=MAX_WEIGHT, linger=linger, writes=1
        )

    async def settle(self, settlement: Settlement) -> frozenset[int]:
        """The recipients that were settled: all of them, unless the lease was lost in between."""
        return await self.batch.submit(settlement, _weight(settlement))

    async def _write(self, settlements: list[Settlement]) -> list[frozenset[int]]:
        rows = [row for n, settlement in enumerate(settlements) for row in _rows(n, settlement)]
        rows.sort(key=lambda row: (row["email_id"], row["recipient"]))
        once = [_once(n, settlement) for n, settlement in enumerate(settlements)]
        [(some,)] = await self._pool.rows(SETTLE, (document(rows), document(once)))
        settled: list[set[int]] = [set() for _ in settlements]
        for n, recipient in ((row["n"], row["recipient"]) for row in rows) if some is None else some:
            settled[n].add(recipient)
        self.outcomes.update(row["outcome"] for row in rows if row["recipient"] in settled[row["n"]])
        if any(settled):
            self._told()
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
    own = [{"recipient": o.recipient, "event_id": uuid7(at), "fault": int(o.fault)} | _outcome(o.outcome, at) for o in settlement.outcomes]
    return [whole | each for each in own]


def _outcome(outcome: Outcome, at: float) -> dict[str, object]:
    """The columns that say what became of a recipient. Without a status it waits no longer."""
    match outcome:
        case Delivered(reply):
            return {"outcome": "delivered", "reply": reply, "type": "email.delivered", "data": {"reply": reply}}
        case Bounced():
            told = {"outcome": "bounced", "reply": outcome.reply, "type": "email.bounced", "data": bounce(outcome)}
            return told | _class(outcome.meaning) | ({"suppression": uuid7(at)} if outcome.suppress else {})
        case Failed(reason):
            return {"outcome": "failed", "reply": reason, "type": "email.failed", "data": {"reason": reason}}
        case Deferred(reason, next_at, meaning):
            return _waits("deferred", "delayed", reason, next_at, meaning)
        case Uncertain(reason, next_at):
            return _waits("uncertain", "uncertain", reason, next_at)


def bounce(outcome: Bounced) -> dict[str, object]:
    """What the event of a bounce has to tell."""
    told = {"type": outcome.type, "sub_type": outcome.sub_type, "reply": outcome.reply, "reason": outcome.reason or outcome.reply}
    return told | meant(outcome.meaning)


def meant(meaning: Meaning | None) -> dict[str, object]:
    """A meaning as events carry it."""
    if meaning is None:
        return {}
    return {"class": meaning.kind, "rule": meaning.rule, "party": meaning.party, "advice": meaning.advice}


def _waits(outcome: str, status: str, reason: str, next_at: datetime, meaning: Meaning | None = None) -> dict[str, object]:
    data = {"reason": reason, "next_at": next_at} | meant(meaning)
    event = {"type": "email.delivery_delayed", "data": data} | _class(meaning)
    return {"outcome": outcome, "reply": reason, "status": status, "reason": reason, "next_at": next_at} | event


def _class(meaning: Meaning | None) -> dict[str, object]:
    """For the attempt, which keeps them beside the outcomes."""
    return {} if meaning is None else {"class": meaning.kind, "rule": meaning.rule}


def _once(n: int, settlement: Settlement) -> dict[str, object]:
    """What a settlement has once, for all of its recipients."""
    row: dict[str, object] = {"n": n, "account_id": settlement.account_id, "email_id": settlement.email_id}
    if settlement.attempt is not None:
        row |= attrs.asdict(settlement.attempt, filter=lambda field, _: field.name != "source")
    if settlement.signature is not None:
        row["signature"] = settlement.signature.decode("ascii")
    return row


def _weight(settlement: Settlement) -> int:
    transcript = "" if settlement.attempt is None else settlement.attempt.transcript
    return len(transcript) + len(settlement.signature or b"") + 256 * len(settlement.outcomes)
