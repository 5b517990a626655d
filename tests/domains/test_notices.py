"""Admins are mailed once when sending from a domain will stop, when it has stopped, and when another account has the name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest_twisted

from mailsvc.accounts.domain_notices import DomainNotices
from mailsvc.store.domains.notices import DomainNoticeStore
from mailsvc.store.people.users import Users
from tests.accounts.test_usage import Mail
from tests.domains.rig import Rig
from tests.store.encryption.test_secrets import ENCRYPTION
from tests.store.fixtures import together


class Inbox(Mail):
    def take(self) -> Sequence[tuple[str | None, str, str]]:
        taken = list(self.sent.values())
        self.sent.clear()
        return taken


async def notices(rig: Rig) -> tuple[DomainNotices, Inbox]:
    users, mail = Users(rig.pool, rig.clock, ENCRYPTION), Inbox()
    for name, role in (("a", "admin"), ("b", "developer")):
        person = await users.create(f"{name}@acme.example", name)
        await users.join(rig.account.id, person.id, role)  # type: ignore[arg-type]
    return DomainNotices(DomainNoticeStore(rig.pool), mail, rig.clock), mail


@pytest_twisted.ensureDeferred
async def test_admins_are_told_of_missing_records_and_of_the_end(rig: Rig) -> None:
    watch, mail = await notices(rig)
    domain = await rig.verified(await rig.add("bücher.example"))
    await rig.add("example.org", publish=False)  # never verified: nothing stops
    spf = await rig.record(domain, "SPF")
    rig.set(spf.name, spf.type)
    await rig.later(days=1)
    await rig.round()
    await watch.send_due()
    assert mail.take() == [], "it may be back soon"
    await rig.later(hours=6)
    mail.busy = True
    await watch.send_due()
    mail.busy = False
    await together(watch.send_due(), watch.send_due())
    await watch.send_due()
    [(to, subject, text)] = mail.take()
    since = (await rig.now_of(domain)).since
    assert since is not None and (to, subject) == ("a@acme.example", "Sending from bücher.example will stop")
    assert f"since {since:%Y-%m-%d %H:%M} UTC" in text and f"\n\nTXT {spf.name}: There is no TXT record" in text
    await rig.later(hours=67)
    await rig.round()
    for _ in range(2):
        await watch.send_due()
    [(_, subject, text)] = mail.take()
    assert subject == "Sending from bücher.example has stopped" and "incorrect for 72 hours" in text
    await rig.verified(domain)
    await rig.later(hours=80)
    await rig.round()
    await watch.send_due()
    assert mail.take() == [], "it was not verified in the meantime"


@pytest_twisted.ensureDeferred
async def test_nobody_is_told_of_a_domain_that_does_not_send_or_that_the_operator_trusts(rig: Rig) -> None:
    watch, mail = await notices(rig)
    domain = await rig.verified(await rig.add())
    await rig.pool.run("UPDATE domains SET since = %s, sending = false", (rig.now(),))
    await rig.later(hours=6)
    await watch.send_due()
    await rig.pool.run("UPDATE domains SET sending = true, trusted_at = since")
    await watch.send_due()
    assert mail.take() == []
    await rig.domains.trust(rig.account.id, domain.name, trusted=False)
    await watch.send_due()
    assert len(mail.take()) == 1


@pytest_twisted.ensureDeferred
async def test_admins_are_told_of_a_domain_that_another_account_has_now(rig: Rig) -> None:
    watch, mail = await notices(rig)
    await rig.verified(await rig.add())
    lost = "UPDATE domains SET status = 'failed', since = NULL, lost_at = %s"
    await rig.pool.run(lost, (rig.now(),))
    for _ in range(2):
        await watch.send_due()
    [(_, subject, text)] = mail.take()
    assert subject == "example.com now belongs to another account" and "those of one were gone" in text
    await rig.pool.run(lost + ", notified = NULL", (rig.now(),))
    await rig.later(days=1)
    await watch.send_due()
    assert mail.take() == [], "lost long ago"
