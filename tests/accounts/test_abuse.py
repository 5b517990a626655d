"""Rates of accounts: when mail is held, who is notified, what a release and trust do, and how the limits of new accounts grow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mailsvc.accounts.abuse import FEW, AbuseWatch, excess, next_step
from mailsvc.monitoring import metrics
from mailsvc.monitoring.metrics import Exposition
from mailsvc.settings.abuse import Abuse
from mailsvc.store.people.abuse import AbuseStore, Counts
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.audit import Audit, Line
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.operator import Operating
from tests.store.encryption.test_secrets import ENCRYPTION
from tests.store.fixtures import together

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RULES = Abuse(ramp=(200, 500, 1000, 2500, 5000, 10000, 25000, 50000))
OPERATOR = "operator@example.net"


def counts(delivered: int, permanent: int = 0, complained: int = 0, transient: int = 0, **changes: Any) -> Counts:
    return attrs.evolve(Counts(UUID(int=1), 1, None, delivered, permanent + transient, permanent, complained), **changes)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (counts(2, permanent=1), None),  # a third, of three
        (counts(0, permanent=199), None),
        (counts(180, permanent=20), "10.0 % of this account's recipients bounced permanently in the last 7 days; the limit is 10 %."),
        (counts(181, permanent=20), None),  # just below
        (counts(100, permanent=10, transient=90), None),  # deferred too long is no sign of a bad list
        (counts(1000, complained=5), "0.50 % of the recipients of this account's mail complained in the last 7 days; the limit is 0.5 %."),
        (counts(200, complained=4), None),  # 2 %, but few
        (counts(1001, complained=5), None),
    ],
)
def test_rates_count_from_a_minimum_volume(found: Counts, sentence: str | None) -> None:
    why = excess(found, RULES)
    assert (why is None) if sentence is None else (why is not None and why.startswith(sentence))


_numbers = st.integers(0, 100_000)


@given(_numbers, _numbers, _numbers, _numbers)
def test_more_problems_never_end_an_excess_and_few_never_begin_one(delivered: int, permanent: int, complained: int, more: int) -> None:
    found = counts(delivered, permanent, complained)
    if excess(found, RULES) is not None:
        assert excess(counts(delivered, permanent + more, complained + more), RULES) is not None
    assert excess(counts(delivered, min(permanent, FEW - 1), min(complained, FEW - 1)), RULES) is None
    assert excess(found, Abuse(bounce_rate=0, complaint_rate=0)) is None


@given(st.integers(1, 100_000), _numbers, _numbers, _numbers)
def test_a_limit_never_falls_and_grows_only_with_good_mail(ramp: int, delivered: int, permanent: int, complained: int) -> None:
    found = counts(delivered, permanent, complained, ramp=ramp, lately=delivered)
    step = next_step(found, RULES)
    assert step is None or step >= ramp
    if delivered < ramp / 10 or excess(found, RULES) is not None:
        assert step == ramp


def test_the_steps_of_a_new_account() -> None:
    good = counts(5000, lately=50_000, ramp=200)
    assert next_step(good, RULES) == 500
    assert next_step(attrs.evolve(good, ramp=50_000), RULES) is None
    assert next_step(attrs.evolve(good, lately=19), RULES) == 200  # too little was sent to judge
    assert next_step(counts(5000, permanent=270, lately=5000, ramp=200), RULES) == 200  # half of the rate that holds mail
    assert next_step(good, Abuse(ramp=())) is None


class Mail:
    """What system_mail does with its keys: the first one counts."""

    def __init__(self, own: UUID | None = None) -> None:
        self.sent: dict[str, tuple[str | None, str, str]] = {}
        self.own, self.busy = own, False

    async def send(self, to: str | None, subject: str, text: str, key: str) -> bool:
        if not self.busy:
            self.sent.setdefault(key, (to, subject, text))
        return not self.busy

    async def account(self) -> UUID | None:
        return self.own


class Rig:
    def __init__(self, pool: Pool) -> None:
        self.pool, self.clock, self.mail = pool, Clock(), Mail()
        self.clock.advance(NOW.timestamp())
        self.accounts, self.store, self.operating = Accounts(pool, self.clock), AbuseStore(pool), Operating(pool)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    def watch(self, rules: Abuse = RULES) -> AbuseWatch:
        return AbuseWatch(self.store, self.mail, self.clock, rules, OPERATOR)

    async def add(self, account: Account, delivered: int, permanent: int = 0, complained: int = 0, ago: timedelta = HOUR) -> None:
        """Counts of the hour of that time ago."""
        hour = (self.now - ago).replace(minute=0)
        for kind, count in (("delivered", delivered), ("bounced.permanent", permanent), ("complained", complained)):
            await self.pool.run(
                "INSERT INTO rollups AS r VALUES (%s, %s, %s, %s, %s) "
                "ON CONFLICT (account_id, hour, domain_id, type) DO UPDATE SET count = r.count + excluded.count",
                (account.id, hour, UUID(int=0xD), f"email.{kind}", count),
            )

    async def reason(self, account: Account) -> str | None:
        return await self.operating.pause_of(account.id, self.now)

    async def ramp(self, account: Account) -> int | None:
        found = await self.accounts.get(account.id)
        assert found is not None
        return found.ramp


@pytest_twisted.ensureDeferred
async def test_an_account_with_many_bounces_is_held_and_people_are_notified_once(pool: Pool) -> None:
    rig = Rig(pool)
    bad, good, trusted = [await rig.accounts.create(name, trusted=name == "trusted") for name in ("bad", "good", "trusted")]
    person = await Users(pool, rig.clock, ENCRYPTION).create("admin@bad.example", "Ann")
    await Users(pool, rig.clock, ENCRYPTION).join(bad.id, person.id, "admin")
    for account, bounces in ((bad, 50), (good, 10), (trusted, 50)):
        await rig.add(account, 300, bounces)
    await rig.add(good, 10, 1000, ago=8 * DAY)  # before the window
    first, second = rig.watch(), rig.watch()
    rig.mail.busy = True
    await together(first.check(), second.check())
    rig.mail.busy = False
    await together(first.check(), second.check(), first.check())

    reason = await rig.reason(bad)
    assert reason is not None and reason.startswith("The account's mail is on hold. 14.3 % of this account's recipients bounced")
    assert await rig.reason(good) is None and await rig.reason(trusted) is None
    sent = sorted((to, subject) for to, subject, _ in rig.mail.sent.values())
    assert sent == [("admin@bad.example", "Your email is on hold"), (OPERATOR, f"Account {bad.number} is on hold")]
    assert all(reason in text for _, _, text in rig.mail.sent.values())
    assert [(each.actor, each.action) for each in (await Audit(pool, rig.clock).list(bad.id, 9))[0]] == [("mailsvc", "mail held")]
    exposition = Exposition()
    metrics.abuse(first)(exposition)
    values = {sample.name: sample.value for family in exposition.collect() for sample in family.samples}
    assert values == {"mailsvc_accounts_held": 1, "mailsvc_accounts_ramped": 0}


@pytest_twisted.ensureDeferred
async def test_an_account_that_fails_does_not_hold_up_the_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(pool)
    broken, bad = [await rig.accounts.create(name) for name in ("broken", "bad")]
    for account in (broken, bad):
        await rig.add(account, 300, 50)
    hold = AbuseStore.hold

    async def fail(self: AbuseStore, account_id: UUID, *more: Any) -> bool:
        if account_id == broken.id:
            raise ValueError(account_id)
        return await hold(self, account_id, *more)

    monkeypatch.setattr(AbuseStore, "hold", fail)
    with pytest.raises(ValueError, match=str(broken.id)):
        await rig.watch().check()
    assert await rig.reason(bad) is not None
    assert [subject for to, subject, _ in rig.mail.sent.values() if to == OPERATOR] == [f"Account {bad.number} is on hold"]


@pytest_twisted.ensureDeferred
async def test_after_a_release_only_new_bounces_count(pool: Pool) -> None:
    rig = Rig(pool)
    account = await rig.accounts.create("Acme")
    await rig.add(account, 300, 50)
    await rig.watch().check()
    assert await rig.reason(account) is not None
    await rig.operating.resume_account(account.id, rig.now, [Line(account.id, None, None, "the operator", "", "mail released")])
    await rig.watch().check()
    assert await rig.reason(account) is None
    rig.clock.advance(7200)
    await rig.add(account, 150, 50)
    await rig.watch().check()
    assert await rig.reason(account) is not None
    actions = [each.action for each in (await Audit(pool, rig.clock).list(account.id, 9))[0]]
    assert actions == ["mail held", "mail released", "mail held"]


@pytest_twisted.ensureDeferred
async def test_a_pause_by_the_operator_stays_and_the_account_of_system_mail_is_never_held(pool: Pool) -> None:
    rig = Rig(pool)
    paused, own = await rig.accounts.create("paused"), await rig.accounts.create("own")
    rig.mail.own = own.id
    await rig.operating.pause_account(paused.id, "Paused by the operator.", NOW + DAY, NOW)
    for account in (paused, own):
        await rig.add(account, 300, 50)
    watch = rig.watch()
    await watch.check()
    assert await rig.reason(paused) == "Paused by the operator." and await rig.reason(own) is None
    assert watch.held == [] and rig.mail.sent == {}
    assert not await rig.store.hold(paused.id, "Again.", rig.now, Line(paused.id, None, None, "mailsvc", "", "mail held"))
    assert await rig.reason(paused) == "Paused by the operator."
    rig.clock.advance(DAY.total_seconds() + 1)
    await rig.add(paused, 0, 1)
    await watch.check()
    assert [each.number for each in watch.held] == [paused.number]


@pytest_twisted.ensureDeferred
async def test_the_limit_of_a_new_account_grows_daily_until_it_ends(pool: Pool) -> None:
    rig = Rig(pool)
    new, idle, bad = [await rig.accounts.create(name, ramp=200) for name in ("new", "idle", "bad")]
    old = await rig.accounts.create("old")
    steps = [200]
    for _ in range(9):
        for _ in range(3):  # three times a day, it changes at most once
            rig.clock.advance(8 * 3600)
            await rig.add(new, 5000)
            await rig.add(bad, 5000, 300)
            await rig.watch().check()
        steps.append(await rig.ramp(new) or 0)
    assert steps == [200, 500, 1000, 2500, 5000, 10000, 25000, 50000, 0, 0]
    assert (await rig.ramp(idle), await rig.ramp(bad), await rig.ramp(old)) == (200, 200, None)
    watch = rig.watch()
    await watch.check()
    await rig.add(idle, 20)
    await watch.check()
    assert await rig.ramp(idle) == 200, "limits are looked at every ten minutes"
    rig.clock.advance(600)
    await watch.check()
    assert await rig.ramp(idle) == 500
    await rig.store.trust(idle.id, True, rig.now, [Line(idle.id, None, None, "the operator", "", "account trusted")])
    assert await rig.ramp(idle) is None
    await rig.store.trust(idle.id, False, rig.now, [Line(idle.id, None, None, "the operator", "", "account no longer trusted")])
    found = await rig.accounts.get(idle.id)
    assert found is not None and (found.ramp, found.trusted_at) == (None, None)
