"""The word to admins at 80 and 100 %, once for each period, and the figures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.usage import Accounting
from mailsvc.monitoring import metrics
from mailsvc.monitoring.metrics import Exposition
from mailsvc.settings.abuse import Abuse
from mailsvc.settings.plans import Plans
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.quota import Near
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool
from tests.store.encryption.test_secrets import ENCRYPTION
from tests.store.fixtures import together

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Mail:
    """What system_mail does with its keys: the first one counts; `busy` as long as another process sends the same."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[str | None, str, str]] = {}
        self.busy = False
        self.broken: str | None = None  # an address with which it always fails

    async def send(self, to: str | None, subject: str, text: str, key: str) -> bool:
        if to is not None and to == self.broken:
            raise ValueError(to)
        if not self.busy:
            self.sent.setdefault(key, (to, subject, text))
        return not self.busy

    async def account(self) -> UUID | None:
        return None


@pytest_twisted.ensureDeferred
async def test_admins_are_notified_once_for_each_level_and_period(pool: Pool) -> None:
    clock, mail = Clock(), Mail()
    clock.advance(NOW.timestamp())
    account = await Accounts(pool, clock).create("Acme", notify="office@acme.example")
    lonely = await Accounts(pool, clock).create("Lonely", notify="lonely@acme.example")
    users = Users(pool, clock, ENCRYPTION)
    for name, role in (("a", "admin"), ("b", "admin"), ("c", "developer")):
        person = await users.create(f"{name}@acme.example", name)
        await users.join(account.id, person.id, role)  # type: ignore[arg-type]
    first, second = (Accounting.of(pool, clock, Plans(default="free"), mail, Abuse()) for _ in range(2))

    async def round_of_both() -> None:
        await together(first.warnings.send_due(), second.warnings.send_due(), first.warnings.send_due())

    await first.quotas.take(account.id, None, 79)
    await first.quotas.give_back(idle=0.0)
    await round_of_both()
    assert mail.sent == {}
    await first.quotas.take(account.id, None, 1)
    await second.quotas.take(lonely.id, None, 95)
    for process in (first, second):
        await process.quotas.give_back(idle=0.0)
    mail.busy = True
    await round_of_both()
    mail.busy, mail.broken = False, "a@acme.example"
    with pytest.raises(ValueError, match=mail.broken):
        await first.warnings.send_due()
    assert {to for to, _, _ in mail.sent.values()} == {"b@acme.example", "lonely@acme.example"}, "one that fails holds up no others"
    mail.broken = None
    await round_of_both()
    await round_of_both()
    mails = sorted((to, subject) for to, subject, _ in mail.sent.values())
    eighty = "80 % of your daily email quota is used"
    assert mails == [("a@acme.example", eighty), ("b@acme.example", eighty), ("lonely@acme.example", eighty)]
    [text, *_] = [text for to, _, text in mail.sent.values() if to == "a@acme.example"]
    assert "Acme has used 80 of the 100 recipients of its daily quota" in text and "2026-11-22 00:00 UTC" in text

    await first.quotas.take(account.id, None, 20)
    await round_of_both()
    assert sum("is used up" in subject for _, subject, _ in mail.sent.values()) == 2 and len(mail.sent) == 5
    exposition = Exposition()
    metrics.quotas(first)(exposition)
    values = {(sample.name, *sample.labels.values()): sample.value for family in exposition.collect() for sample in family.samples}
    assert values["mailsvc_quota_accounts", "80"] == 1 and values["mailsvc_quota_accounts", "100"] == 1
    assert values["mailsvc_quota_left", str(lonely.number), "day"] == 5

    clock.advance(86400)  # the next day starts at zero and warns again
    await first.quotas.take(account.id, None, 100)
    await round_of_both()
    assert len(mail.sent) == 7 and await _warned(pool, account.id) == 100


@pytest_twisted.ensureDeferred
async def test_admins_are_notified_again_about_the_quota_of_a_larger_plan(pool: Pool) -> None:
    clock, mail = Clock(), Mail()
    clock.advance(NOW.timestamp())
    account = await Accounts(pool, clock).create("Acme", notify="office@acme.example")
    accounting = Accounting.of(pool, clock, Plans(), mail, Abuse())

    async def used(plan: str, count: int) -> None:
        await accounting.warnings.store.plan(account.id, plan)
        await accounting.quotas.take(account.id, plan, count)
        await accounting.quotas.give_back(idle=0.0)
        await accounting.warnings.send_due()

    await used("free", 100)
    await used("50k", 1)  # the limit is 50,000 a month, of which 101 are used
    await used("50k", 41_000)
    await used("100k", 1)
    await used("100k", 40_000)
    subjects = [subject for _, subject, _ in mail.sent.values()]
    eighty = "80 % of your monthly email quota is used"
    assert subjects == ["Your daily email quota is used up", eighty, eighty]
    assert ["of the 50,000" in text for _, _, text in mail.sent.values()] == [False, True, False]


@pytest_twisted.ensureDeferred
async def test_a_limit_that_the_account_no_longer_has_is_not_warned_about(pool: Pool) -> None:
    clock, mail = Clock(), Mail()
    clock.advance(NOW.timestamp())
    account = await Accounts(pool, clock).create("Acme", notify="office@acme.example")
    accounting = Accounting.of(pool, clock, Plans(default="free"), mail, Abuse())
    await accounting.quotas.take(account.id, None, 90)
    await accounting.warnings.store.plan(account.id, "50k")  # without a daily limit
    await accounting.warnings.send_due()
    assert mail.sent == {} and accounting.warnings.near == []
    await accounting.warnings.store.plan(account.id, None)
    await accounting.warnings.send_due()
    assert len(mail.sent) == 1


async def _warned(pool: Pool, account_id: UUID) -> Any:
    [(warned,)] = await pool.rows("SELECT warned FROM quota WHERE account_id = %s AND period = 'day'", (account_id,))
    return warned


def test_a_near_account_has_its_admins_as_they_are() -> None:
    assert Near(UUID(int=1), 1, "x", "day", NOW.date(), 1, 2, 0, ["a"], None, None).admins == ("a",)  # type: ignore[arg-type]
