"""Mails about endpoints that fail: what they say, to whom, and that they go once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.intake import Admitted, Busy, Content, Rejected
from mailsvc.mail.address import parse_mailbox
from mailsvc.policy import Refusal
from mailsvc.store.events.webhooks import Webhook
from mailsvc.system_mail import SystemMail
from mailsvc.webhooks.failure_notices import FailureNotices, compose

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILING = Webhook(
    UUID(int=7), UUID(int=1), "https://shop.example/hook", ("email.sent",), "enabled", None, NOW - timedelta(hours=1), NOW, 503, None, NOW
)  # fmt: skip
DISABLED = attrs.evolve(FAILING, status="disabled", disabled_why="It responded with 410 Gone.", failed_with=0)


class Rig:
    """The table, the intake and the domains; `answer` is what the intake says."""

    def __init__(
        self, *webhooks: Webhook, to: Sequence[str] = ("admin@acme.example",), sender: str | None = "Mail <notices@op.example>"
    ) -> None:
        self.waiting, self.to = list(webhooks), to
        self.submitted: list[Any] = []
        self.answer: Any = Admitted((UUID(int=9),))
        self.owned, self.broken = True, "none"
        mail = SystemMail(self, self, None if sender is None else parse_mailbox(sender))  # type: ignore[arg-type]
        self.notices = FailureNotices(self, mail, NOW.timestamp, 1800)

    async def to_notify(self, failing_before: datetime, limit: int = 100) -> Sequence[tuple[Webhook, Sequence[str]]]:
        assert failing_before == NOW - timedelta(minutes=30)
        return [(webhook, self.to) for webhook in self.waiting]

    async def notified(self, webhook: Webhook) -> None:
        self.waiting.remove(webhook)

    async def called(self, name: str) -> Any:
        assert name == "op.example"

        @attrs.frozen
        class Domain:
            account_id = UUID(int=5)
            id = UUID(int=6)

        return Domain() if self.owned else None

    async def submit(self, caller: Any, emails: Any, key: Any = None, *, permissive: bool = False) -> Any:
        if self.broken in key.key:
            raise ValueError(key.key)
        self.submitted.append((caller, emails[0], key))
        return self.answer

    def send_due(self) -> None:
        failures: list[Any] = []
        Deferred.fromCoroutine(self.notices.send_due()).addErrback(failures.append)
        assert not failures


def test_failing_and_disabled_endpoints_get_a_mail() -> None:
    rig = Rig(FAILING, DISABLED)
    rig.send_due()
    (caller, first, key), (_, second, other) = rig.submitted
    assert (caller.account_id, caller.domain_id, caller.key_id) == (UUID(int=5), UUID(int=6), None)
    assert (first.sender.address, first.to[0].address, first.source) == ("notices@op.example", "admin@acme.example", "system")
    assert (first.subject, second.subject) == ("Your webhook endpoint is failing", "Your webhook endpoint was disabled")
    assert isinstance(first.content, Content)
    assert key.key != other.key
    assert rig.waiting == []


def test_a_notice_that_fails_does_not_hold_up_the_others() -> None:
    rig = Rig(FAILING, DISABLED)
    rig.broken = "/enabled/"
    with pytest.raises(AssertionError):
        rig.send_due()
    assert rig.waiting == [FAILING] and len(rig.submitted) == 1


def test_each_recipient_gets_one_mail() -> None:
    rig = Rig(FAILING, to=("a@acme.example", "b@acme.example"))
    rig.send_due()
    assert [[each.address for each in email.to] for _, email, _ in rig.submitted] == [["a@acme.example"], ["b@acme.example"]]
    assert len({key.key for *_, key in rig.submitted}) == 2
    assert rig.waiting == []


def test_the_text_names_the_endpoint_and_its_last_failure() -> None:
    _, text = compose(FAILING)
    for part in ("https://shop.example/hook", "2026-01-02 02:04:05 UTC", "2026-01-02 03:04:05 UTC", "HTTP status 503", str(FAILING.id)):
        assert part in text
    _, text = compose(DISABLED)
    assert "no response" in text
    assert "It responded with 410 Gone." in text


@pytest.mark.parametrize("more", [{"to": ()}, {"sender": None}])
def test_nothing_is_sent_without_recipients_or_a_sender(more: dict[str, Any]) -> None:
    rig = Rig(FAILING, **more)
    rig.send_due()
    assert rig.submitted == rig.waiting == []


def test_a_busy_service_is_retried_and_a_refusal_is_not() -> None:
    rig = Rig(FAILING)
    rig.answer = Busy()
    rig.send_due()
    assert rig.waiting == [FAILING]
    rig.answer = Rejected({0: Refusal("domain", "from", "The domain is not verified.")})
    rig.send_due()
    assert rig.waiting == []
    rig = Rig(FAILING)
    rig.owned = False
    rig.send_due()
    assert rig.submitted == rig.waiting == []
