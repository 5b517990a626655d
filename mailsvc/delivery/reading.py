"""From the result of one SMTP transaction to the outcome of each recipient, and whether the host failed. Pure.

What a reply means: classify. When the next attempt is: retry. The sentences here are the reasons that people read on a recipient.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from mailsvc.bounces.diagnosis import known
from mailsvc.delivery.classify import Stage, classify
from mailsvc.delivery.retry import Random, Schedule, before_expiry
from mailsvc.mail.reply import Reply
from mailsvc.mail.reply import read as parse_reply
from mailsvc.outcome import Bounced, Canceled, Deferred, Delivered, Failed, Meaning, Outcome, Uncertain
from mailsvc.smtp.client.client import Result
from mailsvc.store.queue.claims import Leased
from mailsvc.store.queue.settle import RecipientOutcome

_CANCELED_LATE = "The broadcast was canceled. An earlier attempt may have delivered this email: the server had not replied."
_LONGEST = 500  # characters of a server's text in a sentence
_MESSAGE = ("data", "dot")  # stages in which a reply is about the message
_LOCAL = frozenset("!#$%&*+-./=?^_{|}~")  # may come before `bob` in another local part, such as `not-bob`


@attrs.frozen
class Reading:
    """`trouble`: why the host, rather than the mail, failed; None if it did its work, whatever it replied.

    `left_out`: recipients that did not fit into a transaction that delivered to others. They go into the next one. `host_failed`: another
    host of the destination may do better.
    """

    outcomes: tuple[RecipientOutcome, ...]
    trouble: str | None = None
    left_out: tuple[Leased, ...] = ()
    host_failed: bool = False

    @property
    def retried(self) -> bool:
        """Whether there will be another attempt."""
        return any(isinstance(each.outcome, Deferred | Uncertain) for each in self.outcomes)


@attrs.frozen
class Moment:
    """The time of an attempt, and what the next one is scheduled with."""

    now: datetime
    schedule: Schedule
    random: Random


def read(result: Result, recipients: Sequence[Leased], host: str, moment: Moment, *, tls_failed: bool = False) -> Reading:
    """The outcome of each recipient, in their order. `tls_failed`: the connection has no TLS although the host offers it."""
    outcomes = []
    left_out = []
    trouble = None
    failed = False
    accepted = result.final is not None and result.final.code < 300
    for number, leased in enumerate(recipients):
        reply, stage = result.recipients[number], result.stages[number]
        if reply is not None and stage is not None:
            if accepted and _too_many(reply, stage):
                left_out.append(leased)
                continue
            outcome = _replied(reply, stage, leased, host, moment, tls_failed)
            if isinstance(outcome, Bounced) and outcome.suppress and not _about(leased, reply, stage, result):
                outcome = attrs.evolve(outcome, suppress=False)
            if reply.code == 421:
                trouble = _reason(host, reply, stage)
            failed = failed or _is_host_problem(reply, stage, outcome)
        elif result.sent_dot and result.final is None:
            outcome, trouble = _uncertain(leased, host, moment), f"{host} did not answer the message."
            failed = True
        else:
            trouble = f"The connection to {host} failed: {_short(result.lost or 'it ended').rstrip('.')}."
            outcome = deferred(trouble, leased, moment, meaning=known("network"))
            failed = True
        outcomes.append(RecipientOutcome(leased.recipient, outcome))
    return Reading(tuple(outcomes), trouble, tuple(left_out), failed and not accepted)


def _is_host_problem(reply: Reply, stage: Stage, outcome: Outcome) -> bool:
    """Whether a temporary refusal is neither about this recipient nor about us, such as a rate limit."""
    if reply.code != 421 and stage not in ("mail", "data", "dot"):
        return False
    return isinstance(outcome, Deferred) and outcome.meaning is not None and outcome.meaning.kind == "system"


def deferred(
    reason: str, leased: Leased, moment: Moment, *, greylisted: bool = False, meaning: Meaning | None = None
) -> Deferred | Bounced:
    """Another attempt by the schedule, or a bounce if the recipient expires before that. `reason` is what happened."""
    attempts = leased.attempts + 1
    wanted = moment.schedule.next_attempt(attempts, moment.now, moment.random, greylisted=greylisted)
    when = before_expiry(wanted, moment.now, leased.expires_at)
    if when is not None:
        meaning = None if meaning is None else meaning.while_retried()
        return Deferred(reason if meaning is None else meaning.sentence(reason), when, meaning)
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    why = reason if meaning is None else meaning.explain(reason)  # without the advice, which is for mail that is retried
    return Bounced(f"Expired after {times}. {why}", "Transient", "General", meaning=known("expired"))


def refused(reply: Reply | str, host: str = "", stage: Stage = "ours") -> Bounced:
    """A bounce, by a reply of `host` or by one that this service makes."""
    if isinstance(reply, str):
        reply = parse_reply(reply) or Reply(550, reply)
    verdict = classify(reply, stage, host)
    description = _reason(host, reply, stage)
    reason = description if verdict.meaning is None else verdict.meaning.sentence(description)
    return Bounced(str(reply), verdict.type, verdict.sub_type, verdict.suppress, reason, verdict.meaning)


def closed(reply: Reply, reason: str, meaning: Meaning | None) -> Bounced:
    """A bounce because the destination accepts no mail at all, as `reply` says."""
    return Bounced(str(reply), "Permanent", "General", reason=reason if meaning is None else meaning.sentence(reason), meaning=meaning)


def withdrawn(leased: Leased, why: str) -> Outcome:
    """As if it had been in the queue when its domain was deleted (store/queue/claims)."""
    return Failed(why) if _untried(leased) else Bounced(why, "Transient", "General")


def canceled(leased: Leased) -> Outcome:
    """Its broadcast was canceled. What may have been delivered already is not called canceled."""
    return Failed(_CANCELED_LATE) if leased.status == "uncertain" else Canceled()


def _untried(leased: Leased) -> bool:
    return leased.attempts == 0 and leased.status == "queued"


def lapsed(leased: Leased) -> Outcome:
    """It expired while it waited in memory."""
    if _untried(leased):
        return Failed("It could not be sent before it expired.")
    return Bounced("It could not be delivered before it expired.", "Transient", "General", meaning=known("expired"))


def _too_many(reply: Reply, stage: Stage) -> bool:
    """Too many recipients: 452, or 552 from old servers (5321 §4.5.3.1.10), or any code with the enhanced one for it (3463 §3.6).

    A full mailbox has the enhanced code 4.2.2, and 421 ends the session.
    """
    if stage == "ours":
        return reply.code == 452 and reply.enhanced in (None, "4.5.3", "5.5.3")
    if stage != "rcpt" or reply.code == 421:
        return False
    return reply.enhanced in ("4.5.3", "5.5.3") or (reply.code in (452, 552) and reply.enhanced is None)


def refused_as_too_many(result: Result) -> int:
    """How many recipients the host accepted before it refused the message because they are too many: it may be divided (3463 §3.6)."""
    replies = [reply for reply, stage in zip(result.recipients, result.stages, strict=True) if stage in _MESSAGE]
    too_many = all(reply is not None and reply.code != 421 and reply.enhanced in ("4.5.3", "5.5.3") for reply in replies)
    return len(replies) if too_many and len(replies) > 1 else 0


def _about(leased: Leased, reply: Reply, stage: Stage, result: Result) -> bool:
    """Whether a reply is about this recipient. A reply to the message must name the address, unless no other recipient was accepted."""
    if stage not in _MESSAGE or sum(each in _MESSAGE for each in result.stages) == 1:
        return True
    return _names(reply.text.lower(), leased.address.lower())


def _names(text: str, address: str) -> bool:
    """Whether `text` contains this address, and not only as a part of another one."""
    start = text.find(address)
    while start >= 0:
        end = start + len(address)
        before, after = text[max(0, start - 1) : start], text[end : end + 2]
        longer = after[:1].isalnum() or after[:1] in ("-", "_") or (after[:1] == "." and after[1:].isalnum())
        if not (longer or before.isalnum() or before in _LOCAL):
            return True
        start = text.find(address, end)
    return False


def _replied(reply: Reply, stage: Stage, leased: Leased, host: str, moment: Moment, tls_failed: bool) -> Outcome:
    verdict = classify(reply, stage, host)
    if verdict.action == "delivered":
        return Delivered(str(reply))
    curable = tls_failed and verdict.meaning is not None and verdict.meaning.kind == "tls"  # TLS may work at the next attempt
    if verdict.action == "bounced" and not curable:
        return refused(reply, host, stage)
    return deferred(_reason(host, reply, stage), leased, moment, greylisted=verdict.greylisted, meaning=verdict.meaning)


def _uncertain(leased: Leased, host: str, moment: Moment) -> Uncertain:
    """To be treated as not delivered (5321 §4.2.5, 1047). It may have been delivered, so the same bytes are sent again."""
    reason = f"{host} did not reply after the whole message was sent. It may or may not have been delivered."
    return Uncertain(reason, moment.schedule.after_silence(leased.attempts + 1, moment.now, moment.random))


def _reason(host: str, reply: Reply, stage: Stage) -> str:
    """What the host answered, or why this service did not send."""
    if not host:
        return _short(str(reply))
    return f"Not sent to {host}: {_short(reply.text)}" if stage == "ours" else f"{host} answered {_short(str(reply))}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
