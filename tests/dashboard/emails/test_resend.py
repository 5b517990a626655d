"""Resending counts against the plan like sending, and says why it was refused."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.dashboard.emails.resend import NotSent, Resend
from mailsvc.intake import COUNTED, Admitted
from mailsvc.settings.plans import Exhausted
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.people.accounts import Account

MESSAGE = b"From: a@example.com\r\nTo: b@example.net\r\nSubject: Hi\r\nMessage-ID: <1@example.com>\r\n\r\nHello\r\n"
USED_UP = Exhausted("day", 1, 100, 100, datetime(2026, 11, 22, tzinfo=UTC))


@pytest.mark.parametrize("answer", [Admitted((UUID(int=9),)), USED_UP])
def test_a_resent_email_counts_against_the_quota(answer: Any) -> None:
    submitted: list[Any] = []

    class Rig:
        async def submit(self, caller: Any, emails: Any, key: Any = None, *, permissive: bool = False, lines: Any = ()) -> Any:
            submitted.append((caller, *emails))
            assert [*lines] == [f"sent as {emails[0].content.email_id}"]
            return answer

        async def get(self, account_id: UUID) -> Any:
            return Account(account_id, 1, "Acme", None, None, USED_UP.resets_at, "free", 2)

    rig: Any = Rig()
    email: Any = SimpleNamespace(
        account_id=UUID(int=1), email_id=UUID(int=2), domain_id=UUID(int=3), envelope=EMPTY, headers={}, tags=(), bulk=False
    )  # fmt: skip
    results: list[Any] = []
    again = Resend(rig, rig, rig.get, Clock())
    Deferred.fromCoroutine(again.send(email, MESSAGE, ["b@example.net"], "once", lambda sent: cast(Any, f"sent as {sent}"))).addBoth(
        results.append
    )
    [(caller, sent)] = submitted
    assert (caller.plan, caller.ramp) == ("free", 2) and sent.source in COUNTED
    if isinstance(answer, Exhausted):
        assert isinstance(results[0].value, NotSent) and results[0].value.message == USED_UP.message
    else:
        assert results == [UUID(int=9)]
