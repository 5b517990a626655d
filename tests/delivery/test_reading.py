"""What the result of a transaction means for each recipient: whose address a refusal suppresses. What a reply means: test_classify."""

from __future__ import annotations

from typing import Any

import pytest

from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.reading import Moment, read
from mailsvc.delivery.retry import Schedule
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced
from mailsvc.smtp.client.envelope import Envelope
from mailsvc.store.queue.claims import Leased
from tests.delivery.fakes import each, number
from tests.store.fixtures import NOW

ADDRESSES = ("bob@example.com", "Carol@Example.com", "dave@example.com")
UNKNOWN = Reply(550, "no such user", "5.1.1")


def suppressed(*replies: tuple[Reply, Any]) -> list[bool]:
    """Whether the address of each recipient is suppressed. All of them bounce."""
    recipients = [
        Leased(number(1), number(1), n, number(9), "eu", address, "mx.example.com", 0, "queued", NOW, False)
        for n, address in enumerate(ADDRESSES[: len(replies)])
    ]
    result = each(Envelope("a@sender.example", ADDRESSES[: len(replies)], 1), replies)
    outcomes = [each.outcome for each in read(result, recipients, "mx.example.com", MOMENT).outcomes]
    assert all(isinstance(outcome, Bounced) for outcome in outcomes)
    return [isinstance(outcome, Bounced) and outcome.suppress for outcome in outcomes]


MOMENT = Moment(NOW, Schedule.of(DeliveryLimits()), lambda: 0.5)


@pytest.mark.parametrize("stage", ["data", "dot"])
def test_a_reply_to_the_message_suppresses_the_only_recipient(stage: str) -> None:
    assert suppressed((UNKNOWN, stage)) == [True]


@pytest.mark.parametrize("stage", ["data", "dot"])
def test_a_reply_to_the_message_of_several_suppresses_none(stage: str) -> None:
    """It does not say whose address is wrong."""
    assert suppressed(*[(UNKNOWN, stage)] * 3) == [False] * 3


@pytest.mark.parametrize("stage", ["data", "dot"])
def test_recipients_that_were_refused_before_do_not_count(stage: str) -> None:
    assert suppressed((UNKNOWN, "rcpt"), (UNKNOWN, stage), (UNKNOWN, "rcpt")) == [True] * 3


@pytest.mark.parametrize("stage", ["data", "dot"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<bob@example.com>: no such user", 0),
        ("No such user: BOB@EXAMPLE.COM.", 0),
        ("carol@example.com no such user", 1),
        ("no such user bob@example.com.invalid dave@example.com", 2),
        ("no such user bob@example.com-1, not-bob@example.com, x.bob@example.com", None),
        ("no such user abob@example.com, bob@example.co", None),
    ],
)
def test_a_reply_to_the_message_suppresses_the_address_that_it_names(stage: str, text: str, named: int | None) -> None:
    assert suppressed(*[(Reply(550, text, "5.1.1"), stage)] * 3) == [n == named for n in range(3)]


def test_a_reply_to_each_recipient_suppresses_its_address() -> None:
    assert suppressed((UNKNOWN, "rcpt"), (UNKNOWN, "rcpt")) == [True] * 2
