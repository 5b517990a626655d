"""From the result of one transaction to the outcome of each of its recipients, and to what it says about the host. Pure.

What a reply means: classify. When next: retry. The sentences here are what people read on a recipient.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from mailsvc.bounces.diagnosis import known
from mailsvc.delivery.classify import Stage, classify
from mailsvc.delivery.connection.connect import Result
from mailsvc.delivery.retry import Random, Schedule, before_expiry
from mailsvc.mail.reply import Reply
from mailsvc.mail.reply import read as written
from mailsvc.outcome import Bounced, Deferred, Delivered, Meaning, Outcome, Uncertain
from mailsvc.store.queue.claims import Leased
from mailsvc.store.queue.settle import RecipientOutcome

_LONGEST = 500  # characters of a peer's text in a sentence


@attrs.frozen
class Reading:
    """`trouble`: why the host, rather than the mail, is in difficulty; None when it did its work, whatever it answered.

    `crowded`: recipients for whom there was no place in a transaction that others went through with; the next one is theirs.
    """

    outcomes: tuple[RecipientOutcome, ...]
    trouble: str | None = None
    crowded: tuple[Leased, ...] = ()

    @property
    def waits(self) -> bool:
        return any(isinstance(each.outcome, Deferred | Uncertain) for each in self.outcomes)


@attrs.frozen
class Moment:
    """When, and by which rules, something is read."""

    now: datetime
    schedule: Schedule
    random: Random


def read(result: Result, recipients: Sequence[Leased], host: str, moment: Moment, *, tls_failed: bool = False) -> Reading:
    """What became of each recipient, in their order. `tls_failed`: the connection has no TLS because it failed a while ago."""
    outcomes = []
    crowded = []
    trouble = None
    progress = result.final is not None and result.final.code < 300
    for number, leased in enumerate(recipients):
        reply, stage = result.recipients[number], result.stages[number]
        if reply is not None and stage is not None:
            if progress and _too_many(reply, stage):
                crowded.append(leased)
                continue
            outcome = _answered(reply, stage, leased, host, moment, tls_failed)
            if reply.code == 421:
                trouble = _said(host, reply, stage)
        elif result.sent_dot and result.final is None:
            outcome, trouble = _silent(leased, host, moment), f"{host} did not answer the message."
        else:
            trouble = f"The connection to {host} failed: {_short(result.lost or 'it ended').rstrip('.')}."
            outcome = deferred(trouble, leased, moment)
        outcomes.append(RecipientOutcome(leased.recipient, outcome))
    return Reading(tuple(outcomes), trouble, tuple(crowded))


def deferred(said: str, leased: Leased, moment: Moment, *, greylisted: bool = False, meaning: Meaning | None = None) -> Deferred | Bounced:
    """Another attempt when the schedule says; the end when the recipient's time is over by then. `said` happened, and means `meaning`."""
    attempts = leased.attempts + 1
    wanted = moment.schedule.next_attempt(attempts, moment.now, moment.random, greylisted=greylisted)
    when = before_expiry(wanted, moment.now, leased.expires_at)
    if when is not None:
        meaning = None if meaning is None else meaning.while_retried()
        return Deferred(said if meaning is None else meaning.sentence(said), when, meaning)
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    why = said if meaning is None else meaning.explain(said)  # without the advice, which is for an email that is tried again
    return Bounced(f"Given up after {times}, the time for delivery is over. {why}", "Transient", "General", meaning=known("expired"))


def refused(reply: Reply | str, host: str = "", stage: Stage = "ours") -> Bounced:
    """The end, by a reply of `host` (or by one that we speak for it)."""
    if isinstance(reply, str):
        reply = written(reply) or Reply(550, reply)
    verdict = classify(reply, stage, host)
    said = _said(host, reply, stage)
    reason = said if verdict.meaning is None else verdict.meaning.sentence(said)
    return Bounced(str(reply), verdict.type, verdict.sub_type, verdict.suppress, reason, verdict.meaning)


def closed(reply: Reply, said: str, meaning: Meaning | None) -> Bounced:
    """The end: the destination takes no mail at all, and `reply` says so."""
    return Bounced(str(reply), "Permanent", "General", reason=said if meaning is None else meaning.sentence(said), meaning=meaning)


def _too_many(reply: Reply, stage: Stage) -> bool:
    """5321 §4.5.3.1.10: the server takes no more recipients at once; 552 is an old word for 452. A full mailbox says 4.2.2."""
    codes = (452, 552) if stage == "rcpt" else (452,) if stage == "ours" else ()
    return reply.code in codes and reply.enhanced in (None, "4.5.3", "5.5.3")


def _answered(reply: Reply, stage: Stage, leased: Leased, host: str, moment: Moment, tls_failed: bool) -> Outcome:
    verdict = classify(reply, stage, host)
    if verdict.action == "delivered":
        return Delivered(str(reply))
    cured = tls_failed and verdict.meaning is not None and verdict.meaning.kind == "tls"  # TLS may work again by the next attempt
    if verdict.action == "bounced" and not cured:
        return refused(reply, host, stage)
    return deferred(_said(host, reply, stage), leased, moment, greylisted=verdict.greylisted, meaning=verdict.meaning)


def _silent(leased: Leased, host: str, moment: Moment) -> Uncertain:
    """5321 §4.2.5, 1047: to be taken as not delivered; it may have been, which is why the same bytes go out again."""
    reason = f"{host} gave no answer after it had been sent the whole message; it may or may not have been delivered."
    return Uncertain(reason, moment.schedule.after_silence(leased.attempts + 1, moment.now, moment.random))


def _said(host: str, reply: Reply, stage: Stage) -> str:
    """Who said it: the host, or this service where it did not even ask the host."""
    if not host:
        return _short(str(reply))
    return f"Not sent to {host}: {_short(reply.text)}" if stage == "ours" else f"{host} answered {_short(str(reply))}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
