"""Admins are mailed once when the operator opens an access to their account's content."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.operator_access import AccessNotices
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.operator_access import OperatorAccesses
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool
from tests.accounts.test_usage import NOW, Mail
from tests.store.encryption.test_secrets import ENCRYPTION
from tests.store.fixtures import together


@pytest_twisted.ensureDeferred
async def test_all_admins_are_mailed_once(pool: Pool) -> None:
    clock, mail = Clock(), Mail()
    clock.advance(NOW.timestamp())
    account = await Accounts(pool, clock).create("Acme", notify="office@acme.example")
    lonely = await Accounts(pool, clock).create("Lonely", notify="lonely@acme.example")
    nobody = await Accounts(pool, clock).create("Nobody")
    users = Users(pool, clock, ENCRYPTION)
    for name, role in (("a", "admin"), ("b", "admin"), ("c", "member")):
        person = await users.create(f"{name}@acme.example", name)
        await users.join(account.id, person.id, role)  # type: ignore[arg-type]
    first, second = (AccessNotices.of(pool, clock, mail) for _ in range(2))
    await first.send_due()
    accesses = OperatorAccesses(pool, clock)
    for each in (account, lonely, nobody):
        await accesses.open(each.id, "ann", "Ticket 7: mail without a body", timedelta(hours=2))
    mail.busy = True
    await first.send_due()
    mail.busy, mail.broken = False, "a@acme.example"
    with pytest.raises(ValueError, match=mail.broken):
        await first.send_due()
    assert {to for to, _, _ in mail.sent.values()} == {"b@acme.example", "lonely@acme.example"}, "one that fails holds up no others"
    mail.broken = None
    await accesses.end(account.id, "ann")  # they are told all the same
    await together(first.send_due(), second.send_due())
    assert sorted(str(to) for to, _, _ in mail.sent.values()) == ["a@acme.example", "b@acme.example", "lonely@acme.example"]
    [(subject, text)] = {(subject, text) for to, subject, text in mail.sent.values() if to != "lonely@acme.example"}
    assert subject == "The operator has access to the content of Acme"
    assert "at 2026-11-21 12:00 UTC. It ends automatically at 2026-11-21 14:00 UTC" in text
    assert "\n\nReason: Ticket 7: mail without a body\n\n" in text
    mail.sent.clear()
    await first.send_due()
    assert mail.sent == {} and await pool.rows("SELECT DISTINCT announced FROM operator_access") == [(True,)]
    await accesses.open(account.id, "ann", "again", timedelta(hours=1))
    await second.send_due()
    assert len(mail.sent) == 2
