"""The story of an email: by example for each state of a recipient, and as properties over any facts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.insights.explanation import IN_FULL, QUOTED_MAX, explain
from mailsvc.outcome import MOVES, WAITING
from mailsvc.store.events.event_data import Empty
from mailsvc.store.mail.emails import AttemptView, EmailView, RecipientView
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.facts import Facts, Sender, WaitingRecipient, WebhookState
from mailsvc.store.mail.history import EventView
from mailsvc.store.queue.holds import FOREVER

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ID = UUID("0198a000-0000-7000-8000-000000000001")


def recipient(status: str = "delayed", number: int = 0, **changes: Any) -> RecipientView:
    return attrs.evolve(RecipientView(number, f"r{number}@example.net", status, None, NOW + 5 * MINUTE, 0, None), **changes)


def waiting(**changes: Any) -> WaitingRecipient:
    return attrs.evolve(WaitingRecipient(0, "r1", "mx.example.net", NOW + 5 * MINUTE, NOW + 2 * DAY), **changes)


def attempt(**changes: Any) -> AttemptView:
    view = AttemptView(
        ID, (0,), ("deferred",), ("451 4.7.1 Greylisted",), ("greylisted",), ("text-greylist",), "mx.example.net", "192.0.2.9:25",
        "TLSv1.3 TLS_AES_256_GCM_SHA384", NOW - 2 * MINUTE, 1.25, "", "198.51.100.7",
    )  # fmt: skip
    return attrs.evolve(view, **changes)


def webhook(**changes: Any) -> WebhookState:
    state = WebhookState(
        "https://user:secret@example.com/hook?token=secret", "email.bounced", None, 3, NOW + HOUR, 3, 500, "oops", NOW - MINUTE, True,
        None, NOW - HOUR,
    )  # fmt: skip
    return attrs.evolve(state, **changes)


def facts(*recipients: RecipientView, **changes: Any) -> Facts:
    view = EmailView(
        UUID(int=1), ID, NOW - HOUR, "api", UUID(int=2), UUID(int=3), "<1@example.com>", "Shop <shop@example.com>", ("r0@example.net",),
        (), (), (), tuple(each.address for each in recipients), "Your order", (), {}, EMPTY, 1234, False, None, "email.sent",
    )  # fmt: skip
    created = Facts(NOW, view, Sender(7, "Example Ltd", "production (ms_abc…)", "example.com"), recipients)
    return attrs.evolve(created, **changes)


def next_of(one: RecipientView, queued: WaitingRecipient | None = None, **changes: Any) -> str:
    story = explain(facts(one, waiting=() if queued is None else (queued,), **changes))
    return story.recipients[0].next


def test_the_email_is_introduced_by_who_sent_it_and_how() -> None:
    story = explain(facts(recipient("delivered"), recipient("bounced", 1)))
    assert story.email == (
        f"Email {ID} was accepted at 2026-03-01 11:00:00 UTC (1 hour ago) over the API with the API key production (ms_abc…) "
        "for the account Example Ltd (number 7).",
        "It is from “Shop <shop@example.com>” with the subject “Your order”, 1,234 bytes. Its sending domain is example.com.",
        "Its Message-ID is <1@example.com>.",
        "It has 2 recipients: 1 delivered, 1 bounced.",
    )
    made_later = facts(recipient("delivered"))
    made_later = attrs.evolve(made_later, email=attrs.evolve(made_later.email, size=0))
    assert explain(made_later).email[1].startswith("It is from “Shop <shop@example.com>” with the subject “Your order”. Its")


def test_an_attempt_is_explained_with_host_source_tls_reply_and_meaning() -> None:
    one = recipient(kind="greylisted", rule="text-greylist", reason="mx.example.net replied 451 4.7.1 Greylisted")
    [found] = explain(facts(one, attempts=(attempt(),), waiting=(waiting(failures=2, held="Down.", held_until=NOW + HOUR),))).recipients
    assert found.sentences[0] == (
        "Attempt 1, at 2026-03-01 11:58:00 UTC (2 minutes ago) from 198.51.100.7 to mx.example.net at 192.0.2.9:25, "
        "with TLSv1.3 TLS_AES_256_GCM_SHA384, took 1.2 s: deferred. The result was “451 4.7.1 Greylisted”."
    )
    assert found.sentences[1].startswith("This means: ") and found.sentences[1].endswith("(greylisted, rule text-greylist)")
    assert found.sentences[2].startswith("Who can fix it: ")
    assert found.sentences[3:] == (
        "Mail to mx.example.net is held until 2026-03-01 13:00:00 UTC (in 1 hour). Down.",
        "The last 2 connections to mx.example.net failed.",
    )
    assert found.next == (
        "It is not delivered yet. mx.example.net replied 451 4.7.1 Greylisted. The next attempt is at 2026-03-01 12:05:00 UTC "
        "(in 5 minutes). If it cannot be delivered before 2026-03-03 12:00:00 UTC, it expires and bounces."
    )


def test_an_attempt_that_reached_no_server_gives_the_reason() -> None:
    tried = attempt(host=None, address=None, tls=None, source=None, replies=("No server of example.net answered",))
    [found] = explain(facts(recipient(), attempts=(tried,), waiting=(waiting(),))).recipients
    assert found.sentences[0].endswith("(2 minutes ago): no server could be used. No server of example.net answered.")


@pytest.mark.parametrize(("failures", "said"), [(1, "The last connection to"), (2, "The last 2 connections to")])
def test_failed_connections_are_counted(failures: int, said: str) -> None:
    [found] = explain(facts(recipient(), waiting=(waiting(failures=failures),))).recipients
    assert f"{said} mx.example.net failed." in found.sentences


@pytest.mark.parametrize(("source", "how"), [("test", "as a test email from the dashboard"), ("dashboard", "as an email of the dashboard")])
def test_emails_of_the_dashboard_are_called_so(source: str, how: str) -> None:
    given = facts(recipient("delivered"))
    assert f"{how} " in explain(attrs.evolve(given, email=attrs.evolve(given.email, source=source))).email[0]


@pytest.mark.parametrize(
    ("one", "queued", "sentence"),
    [
        (recipient("scheduled", next_at=NOW + HOUR), waiting(), "because it is scheduled for 2026-03-01 13:00:00 UTC (in 1 hour)."),
        (recipient("sending", next_at=NOW + MINUTE), waiting(), "another one takes over at 2026-03-01 12:01:00 UTC (in 1 minute)."),
        (recipient("sending", next_at=NOW), waiting(), "The process that was sending it has ended or does not respond"),
        (
            recipient("queued", next_at=NOW, reason="Waiting for a free connection to mx.example.net."), waiting(due_at=NOW - MINUTE),
            "It has been due since 2026-03-01 11:59:00 UTC (1 minute ago)",
        ),
        (
            recipient("queued", next_at=NOW + 2 * DAY, reason="Held: too many bounces."),
            waiting(account_reason="Held: too many bounces.", account_until=FOREVER),
            "Held: too many bounces. It waits until the operator releases it. "
            "If it is still waiting at 2026-03-03 12:00:00 UTC (in 2 days), it expires and fails.",
        ),
        (
            recipient(next_at=NOW + 2 * DAY), waiting(due_at=NOW + 3 * DAY),
            "There is no further attempt before it expires at 2026-03-03 12:00:00 UTC (in 2 days) and bounces.",
        ),
    ],
)  # fmt: skip
def test_why_it_is_not_delivered_yet(one: RecipientView, queued: WaitingRecipient, sentence: str) -> None:
    assert sentence in next_of(one, queued)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("delivered", "It was delivered at 2026-03-01 11:59:00 UTC (1 minute ago): the recipient's server accepted it."),
        ("bounced", "It bounced at 2026-03-01 11:59:00 UTC (1 minute ago) and is not retried. No such user."),
        ("complained", "reported it as spam at 2026-03-01 11:59:00 UTC (1 minute ago)."),
        ("suppressed", "It was not sent at 2026-03-01 11:59:00 UTC (1 minute ago). No such user."),
        ("canceled", "It was canceled at 2026-03-01 11:59:00 UTC (1 minute ago) before it was sent."),
        ("failed", "It failed at 2026-03-01 11:59:00 UTC (1 minute ago) and is not retried. No such user."),
    ],
)
def test_a_final_state_is_explained_with_its_time(status: str, sentence: str) -> None:
    happened = EventView(ID, 0, f"email.{status}", NOW - MINUTE, Empty())
    assert sentence in next_of(recipient(status, reason="No such user", next_at=None), events=(happened,))


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            webhook(status="success", next_at=None, response_status=200, failing_since=None),
            "email.bounced to https://example.com/hook: sent.",
        ),
        (webhook(), "not sent yet. Attempt 3, at 2026-03-01 11:59:00 UTC (1 minute ago), got status 500. The next attempt is at 2026"),
        (webhook(next_at=None, status="failed"), "not sent, and not tried again."),
        (webhook(enabled=False, disabled_why="It failed for 5 days"), "The endpoint is disabled. It failed for 5 days."),
        (webhook(response_status=0, response="The connection was refused."), "failed (The connection was refused.)."),
    ],
)
def test_webhooks_are_explained_without_secrets(state: WebhookState, sentence: str) -> None:
    [found] = explain(facts(recipient("delivered"), webhooks=(state,))).webhooks
    assert sentence in found
    assert "secret" not in found


def test_one_recipient_can_be_chosen_and_many_are_short() -> None:
    many = [recipient("delivered", n) for n in range(IN_FULL + 1)]
    story = explain(facts(*many, attempts=(attempt(),)))
    assert len(story.recipients) == IN_FULL + 1 and not any(each.sentences for each in story.recipients)
    [one] = explain(facts(*many, attempts=(attempt(),)), only=0).recipients
    assert one.id == f"{ID}/1" and one.sentences


_moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC)) | st.just(FOREVER)
_texts = st.text(max_size=2 * QUOTED_MAX)
_some = st.none() | _texts


@given(
    st.sampled_from(sorted(MOVES)), _some, st.none() | _moments, _moments, _moments, _texts, st.none() | _moments,
    st.sampled_from(["greylisted", "user_unknown", "no such class", None]), _texts, st.booleans(),
)  # fmt: skip
def test_any_facts_make_printable_lines_and_waiting_mail_has_a_time(
    status: str, reason: str | None, next_at: datetime | None, due: datetime, expires: datetime, other: str, until: datetime | None,
    kind: str | None, reply: str, with_host: bool,
) -> None:  # fmt: skip
    one = recipient(status, reason=reason, next_at=next_at, kind=kind, rule=other, last_reply=reply)
    tried = attempt(replies=(reply,), host=other if with_host else None, tls=other)
    queued = waiting(due_at=due, expires_at=expires, account_reason=other, account_until=until, held=other, held_until=until, slow=other)
    given_facts = facts(
        one, attempts=(tried,) * 30, waiting=(queued,) if status in WAITING else (), webhooks=(webhook(response=reply, url=f"https://{other}"),),
    )  # fmt: skip
    story = explain(attrs.evolve(given_facts, email=attrs.evolve(given_facts.email, subject=other, sender=reply)))
    for line in story.text().splitlines():
        assert line.isprintable()
        assert len(line) < 6 * QUOTED_MAX
    if status in WAITING:
        assert story.recipients[0].next.startswith("It is not delivered yet")
        assert " UTC" in story.recipients[0].next


def test_tracking_that_has_no_effect_is_explained() -> None:
    said = "Opens and clicks are not tracked yet, because the CNAME record of links.example.com is not verified."
    assert explain(facts(), None, said).email[-1] == f"Its domain has tracking switched on. {said}"
    assert not any("track" in sentence for sentence in explain(facts()).email)
