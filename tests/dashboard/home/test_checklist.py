"""The steps of a new account: which are done, and who sees them."""

from __future__ import annotations

import pytest_twisted

from mailsvc.clock import utc
from mailsvc.dashboard.home.checklist import Checklist
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

ANN, BOB = "ann@example.com", "bob@example.com"
NOTHING = dict.fromkeys(("domain", "key", "sent", "delivered", "webhook", "teammate", "second_factor"), False)


def test_it_stays_until_everything_is_done_or_it_is_hidden() -> None:
    done = dict(NOTHING)
    for number, name in enumerate(NOTHING):
        assert Checklist.of(**done, hidden=False).shown and not Checklist.of(**done, hidden=True).shown
        assert Checklist.of(**done, hidden=False).done == number
        done[name] = True
    complete = Checklist.of(**done, hidden=False)
    assert complete.done == complete.steps == len(NOTHING) and not complete.shown


@pytest_twisted.ensureDeferred
async def test_after_the_first_delivery_only_the_other_steps_are_listed(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    ann = await rig.inside(ANN)
    shown = (await ann.get("/dashboard")).text
    assert "0 of 7 done" in shown and "Set up two-factor authentication" in shown
    await ann.post("/dashboard/start")
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    email_id = await rig.mail(account, domain.name)
    event = NewEvent(account, email_id, domain.id, 0, "email.delivered", utc(rig.clock), {"reply": "250 OK"})
    await pool.transact(lambda tx: events.write(tx, [event]))
    shown = (await ann.get("/dashboard")).text
    assert "Finish setting up" in shown and "4 of 7 done" in shown and "Create an API key" not in shown
    await ann.post("/dashboard/settings/invite", {"email": BOB, "role": "admin"})
    await pool.run("UPDATE users SET totp_at = created_at")
    assert "6 of 7 done" in (await ann.get("/dashboard")).text


@pytest_twisted.ensureDeferred
async def test_hiding_the_steps_hides_them_from_oneself_and_can_be_undone(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    await rig.person(BOB, account)
    ann, bob = await rig.inside(ANN), await rig.inside(BOB)
    await ann.get("/dashboard")
    hidden = await ann.post("/dashboard/steps")
    shown = (await ann.get(hidden.location)).text
    assert "Steps hidden." in shown and "Create an API key" not in shown
    assert "Create an API key" in (await bob.get("/dashboard")).text
    await ann.post("/dashboard/steps", {"show": "1"})
    assert "Create an API key" in (await ann.get("/dashboard")).text
    assert [action for action, _ in await rig.audit(account) if "steps" in action] == ["setup steps hidden", "setup steps shown"]
