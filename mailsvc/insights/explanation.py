"""Explains one email in plain sentences: who sent it, what was tried, what it means, and what happens next and when. Pure.

The facts: store/mail/facts. The command: cli/explain. Text from strangers (replies, subjects, addresses) is shown without control
characters and shortened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from urllib.parse import urlsplit

import attrs

from mailsvc.bounces import diagnosis
from mailsvc.outcome import WAITING
from mailsvc.store.mail.emails import AttemptView, RecipientView
from mailsvc.store.mail.facts import Facts, WaitingRecipient, WebhookState
from mailsvc.store.mail.history import EventView
from mailsvc.units import span

QUOTED_MAX = 300  # characters of one quoted text
ATTEMPTS_MAX = 20  # of a recipient: the first and the latest ones
IN_FULL = 20  # an email with more recipients has one sentence for each, unless one is asked for

_SOURCES = {
    "api": "over the API",
    "smtp": "over SMTP",
    "system": "as system mail",
    "shared-test": "as a test email from the shared test sender",
    "again": "when someone resent an earlier email",
    "broadcast": "as part of a broadcast",
    "test": "as a test email from the dashboard",
    "dashboard": "as an email of the dashboard to one of its users",
}
_COUNTED = {
    "scheduled": "scheduled", "queued": "queued", "sending": "being sent", "delayed": "deferred", "uncertain": "uncertain",
    "delivered": "delivered", "bounced": "bounced", "failed": "failed", "canceled": "canceled", "suppressed": "suppressed",
    "complained": "complained about",
}  # fmt: skip
_PARTIES = {
    "recipient": "the recipient", "content": "the sender, about the content", "address": "the operator, for the source addresses",
    "dns": "the owner of the sending domain", "provider": "the recipient's provider", "network": "the operators of the networks",
}  # fmt: skip


@attrs.frozen
class RecipientStory:
    """`id`: the email's ID, a slash and the number of the recipient, from 1.

    `next`: what happens next, with a time; `next_at` and `expires_at` are set while it is in the queue.
    """

    id: str
    address: str
    status: str
    sentences: tuple[str, ...]
    next: str
    next_at: datetime | None = None
    expires_at: datetime | None = None


@attrs.frozen
class Story:
    """Sentences about the email, about each recipient, and about its webhooks."""

    id: str
    email: tuple[str, ...]
    recipients: tuple[RecipientStory, ...]
    webhooks: tuple[str, ...]

    def text(self) -> str:
        """The story for a terminal."""
        parts = ["\n".join(self.email)]
        for each in self.recipients:
            parts.append("\n".join([f"{each.address} ({each.id})", *(f"  {line}" for line in (*each.sentences, each.next))]))
        if self.webhooks:
            parts.append("\n".join(["Webhooks", *(f"  {line}" for line in self.webhooks)]))
        return "\n\n".join(parts)


def explain(facts: Facts, only: int | None = None, not_tracked: str | None = None, *, subject: bool = True) -> Story:
    """The story of an email; with `only`, of just that recipient (from 0). `not_tracked`: why the domain's switches have no effect now.

    Without `subject`, it has no content of the email.
    """
    chosen = [each for each in facts.recipients if only is None or each.recipient == only]
    in_full = len(chosen) <= IN_FULL
    stories = tuple(_recipient(facts, each, in_full) for each in chosen)
    about = (*_email(facts, subject), *([] if not_tracked is None else [f"Its domain has tracking switched on. {not_tracked}"]))
    return Story(str(facts.email.email_id), about, stories, tuple(_webhook(each, facts.now) for each in facts.webhooks))


def _email(facts: Facts, subject: bool) -> Iterator[str]:
    email, sender = facts.email, facts.sender
    with_key = f" with the API key {_plain(sender.key)}" if sender.key else ""
    how = _SOURCES.get(email.source, f"from {_plain(email.source)}")
    account = f"the account {_plain(sender.account)} (number {sender.number})"
    yield f"Email {email.email_id} was accepted {_when(email.created_at, facts.now)} {how}{with_key} for {account}."
    domain = f" Its sending domain is {sender.domain}." if sender.domain else " Its sending domain was deleted."
    about = f" with the subject {_quoted(email.subject)}" if subject else ""
    size = f", {email.size:,} bytes" if email.size else ""  # of a broadcast, each is made when it is sent
    yield f"It is from {_quoted(email.sender)}{about}{size}.{domain}"
    yield f"Its Message-ID is {_plain(email.message_id)}."
    if email.scheduled_at is not None:
        yield f"It was scheduled for {_time(email.scheduled_at, facts.now)}."
    if email.bulk:
        yield "It is bulk mail, so transactional mail goes first."
    counts = Counter(_COUNTED.get(each.status, each.status) for each in facts.recipients)
    count = len(facts.recipients)
    yield f"It has {count} recipient{'' if count == 1 else 's'}: {', '.join(f'{n} {status}' for status, n in counts.items())}."


def _recipient(facts: Facts, recipient: RecipientView, in_full: bool) -> RecipientStory:
    number = recipient.recipient
    waiting = next((each for each in facts.waiting if each.recipient == number), None)
    lines: list[str] = []
    if in_full:
        lines += _attempts(facts, number)
        lines += _meaning(recipient)
        lines += _limits(waiting, recipient, facts.now)
    name = f"{facts.email.email_id}/{number + 1}"
    expires = None if waiting is None else waiting.expires_at
    next_ = _next(facts, recipient, waiting)
    return RecipientStory(name, _plain(recipient.address), recipient.status, tuple(lines), next_, recipient.next_at, expires)


def _attempts(facts: Facts, number: int) -> Iterator[str]:
    tried = [(n, each) for n, each in enumerate((a for a in facts.attempts if number in a.recipients), 1)]
    half = ATTEMPTS_MAX // 2
    for n, attempt in tried if len(tried) <= ATTEMPTS_MAX else tried[:half]:
        yield _attempt(n, attempt, number, facts.now)
    if len(tried) > ATTEMPTS_MAX:
        yield f"{len(tried) - ATTEMPTS_MAX} more attempts are not shown."
        for n, attempt in tried[-half:]:
            yield _attempt(n, attempt, number, facts.now)
    if not tried:
        yield "No attempt to deliver it was recorded."


def _attempt(n: int, attempt: AttemptView, number: int, now: datetime) -> str:
    place = attempt.recipients.index(number)
    outcome, reply = attempt.outcomes[place], attempt.replies[place]
    source = f" from {attempt.source}" if attempt.source else ""
    begin = f"Attempt {n}, {_when(attempt.started_at, now)}{source}"
    if attempt.host is None:
        return f"{begin}: no server could be used. {_sentence(reply)}"
    at = f" at {_plain(attempt.address)}" if attempt.address else ""
    tls = f"with {_plain(attempt.tls)}" if attempt.tls else "without TLS"
    answer = f"The result was {_quoted(reply)}." if reply else "There was no reply."
    return f"{begin} to {_plain(attempt.host)}{at}, {tls}, took {attempt.seconds:.1f} s: {_plain(outcome)}. {answer}"


def _meaning(recipient: RecipientView) -> Iterator[str]:
    """What the latest problem means."""
    if recipient.kind is None or recipient.status in ("delivered", "complained"):
        return
    found = diagnosis.known(recipient.kind, retried=recipient.status in WAITING)
    if found is not None:
        rule = f", rule {_plain(recipient.rule)}" if recipient.rule else ""
        yield f"This means: {found.says} ({found.kind.replace('_', ' ')}{rule})"
        yield f"Who can fix it: {_PARTIES[found.party]}. {found.advice}"


def _limits(waiting: WaitingRecipient | None, recipient: RecipientView, now: datetime) -> Iterator[str]:
    """Pauses, holds and slowdowns in force, except the one that is the reason anyway."""
    if waiting is None or recipient.status == "sending":
        return
    destination = _plain(waiting.destination)
    for what, reason, until in (
        ("Its account's mail is held", waiting.account_reason, waiting.account_until),
        (f"Mail to {destination} is held", waiting.held, waiting.held_until),
        (f"Mail to {destination} is limited to {waiting.per_minute or 0:g} emails per minute", waiting.slow, waiting.slow_until),
    ):
        if reason is not None and until is not None:
            because = "" if reason == recipient.reason else f" {_sentence(reason)}"
            yield f"{what} {_until(until, now)}.{because}"
    if waiting.failures:
        last = "connection" if waiting.failures == 1 else f"{waiting.failures} connections"
        yield f"The last {last} to {destination} failed."


def _next(facts: Facts, recipient: RecipientView, waiting: WaitingRecipient | None) -> str:
    """What happens next and when; for a recipient in a final state, what happened and when."""
    now = facts.now
    if recipient.status not in WAITING or waiting is None:
        return _final(recipient, [each for each in facts.events if each.recipient == recipient.recipient], now)
    due, expires = recipient.next_at or waiting.due_at, waiting.expires_at
    if recipient.status == "scheduled":
        return f"It is not delivered yet because it is scheduled for {_time(due, now)}."
    if recipient.status == "sending" and due <= now:
        ended = "The process that was sending it has ended or does not respond"
        return f"It is not delivered yet. {ended}. From {_time(due, now)} on, another one takes it over."
    if recipient.status == "sending":
        return f"It is not delivered yet because it is being sent now. If its process stops, another one takes over {_when(due, now)}."
    why = f"It is not delivered yet. {_sentence(recipient.reason or 'It waits for its turn.')}"
    end = "fails" if recipient.status == "queued" else "bounces"  # a bounce needs an attempt
    if any(until is not None and until.year == 9999 for until in (waiting.due_at, waiting.account_until, waiting.held_until)):
        return f"{why} It waits until the operator releases it. If it is still waiting {_when(expires, now)}, it expires and {end}."
    if due <= now:
        next_ = f"It has been due since {_time(waiting.due_at, now)} and is sent as soon as this has ended"
    elif due >= expires:
        return f"{why} There is no further attempt before it expires {_when(expires, now)} and {end}."
    else:
        next_ = f"The next attempt is {_when(due, now)}"
    return f"{why} {next_}. If it cannot be delivered before {_stamp(expires)}, it expires and {end}."


def _final(recipient: RecipientView, events: Sequence[EventView], now: datetime) -> str:
    """What ended it."""
    happened = events[-1] if events else None
    at = f" {_when(happened.at, now)}" if happened is not None else ""
    reason = f" {_sentence(recipient.reason or recipient.last_reply or '')}".rstrip()
    match recipient.status:
        case "delivered":
            return f"It was delivered{at}: the recipient's server accepted it. Nothing more happens."
        case "complained":
            return f"It was delivered, and the recipient reported it as spam{at}. The address is suppressed."
        case "bounced":
            return f"It bounced{at} and is not retried.{reason}"
        case "suppressed":
            return f"It was not sent{at}.{reason}"
        case "canceled":
            return f"It was canceled{at} before it was sent."
    return f"It failed{at} and is not retried.{reason}"


def _webhook(state: WebhookState, now: datetime) -> str:
    where = f"{state.type} to {_endpoint(state.url)}"
    last = ""
    if state.attempted_at is not None:
        answer = f"got status {state.response_status}" if state.response_status else f"failed ({_plain(state.response or 'no response')})"
        last = f" Attempt {state.attempts}, {_when(state.attempted_at, now)}, {answer}."
    if state.status == "success":
        return f"{where}: sent.{last}"
    disabled = "" if state.enabled else f" The endpoint is disabled. {_sentence(state.disabled_why or '')}".rstrip()
    failing = f" The endpoint has failed since {_time(state.failing_since, now)}." if state.failing_since is not None else ""
    if state.next_at is None:
        return f"{where}: not sent, and not tried again.{last}{failing}{disabled}"
    next_ = f" The next attempt is {_when(state.next_at, now)}." if state.enabled else ""
    return f"{where}: not sent yet.{last}{next_}{failing}{disabled}"


def _endpoint(url: str) -> str:
    """Without user name, password and query, which may contain secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return _plain(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def _when(moment: datetime, now: datetime) -> str:
    """For example: at 2026-03-01 12:00:05 UTC (in 5 minutes)."""
    return f"at {_time(moment, now)}"


def _time(moment: datetime, now: datetime) -> str:
    return f"{_stamp(moment)} ({_distance((moment - now).total_seconds())})"


def _until(moment: datetime, now: datetime) -> str:
    return "until the operator ends it" if moment.year == 9999 else f"until {_time(moment, now)}"


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _distance(seconds: float) -> str:
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def _sentence(text: str) -> str:
    plain = _plain(text)
    return plain if not plain or plain.endswith((".", "!", "?", "…")) else f"{plain}."


def _quoted(text: str) -> str:
    return f"“{_plain(text)}”"


def _plain(text: str | None) -> str:
    """On one line, without control characters, shortened."""
    kept = "".join(character if character.isprintable() else " " for character in (text or "")[: 4 * QUOTED_MAX])
    line = " ".join(kept.split())
    return line if len(line) <= QUOTED_MAX else f"{line[:QUOTED_MAX]}…"
