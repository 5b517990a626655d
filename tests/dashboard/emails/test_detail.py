"""The page of an email: its result and its content come first, and of many recipients the delivered ones are folded."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.intake import Admitted, Content, Incoming
from mailsvc.mail.address import Mailbox
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.holds import FOREVER
from mailsvc.store.queue.operator import Operating
from tests.dashboard.fixtures import DashboardRig

BOUNCE = {"type": "Permanent", "sub_type": "General", "reply": "550 no such user", "reason": "There is no such mailbox."}


async def sent(rig: DashboardRig, account_id: UUID, names: list[str], bounced: int) -> UUID:
    """An email to these people, delivered except to the one with this number."""
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, domain.name)
    to = tuple(Mailbox("", name, "example.net") for name in names)
    caller = Caller(account_id, None, "full_access", None, None)
    match await rig.intake.submit(caller, [Incoming(Mailbox("", "shop", domain.name), to, "Hello", Content(text="Hello."))]):
        case Admitted((UUID() as email_id,)):
            pass
        case other:
            raise AssertionError(other)
    await rig.pool.run("DELETE FROM queue")
    now = utc(rig.clock)
    happened = [
        NewEvent(account_id, email_id, domain.id, number, "email.bounced", now, BOUNCE)
        if number == bounced
        else NewEvent(account_id, email_id, domain.id, number, "email.delivered", now, {"reply": "250 OK"})
        for number in range(len(names))
    ]
    await rig.pool.transact(lambda tx: events.write(tx, happened))
    return email_id


@pytest.mark.parametrize(("count", "folded"), [(7, "6 delivered recipients"), (5, "")])
@pytest_twisted.ensureDeferred
async def test_result_content_and_problems_come_first(pool: Pool, count: int, folded: str) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    email_id = await sent(rig, account_id, [f"r{n}" for n in range(count)], bounced=count - 1)
    text = (await (await rig.inside("ann@example.com")).get(f"/dashboard/emails/{email_id}")).text
    order = [f"{count - 1} of {count} delivered, 1 bounced", "There is no such mailbox.", 'id="content"', 'id="live"']
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert (folded in text) and ('class="folded"' in text) is bool(folded)
    assert text.count("<article>") == (1 if folded else count)


@pytest_twisted.ensureDeferred
async def test_mail_that_is_not_tried_before_it_expires_says_so(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, "acme.example")
    email_id, ann = await rig.mail(account_id, "acme.example"), await rig.inside("ann@example.com")
    now = utc(rig.clock)
    await rig.pool.run("UPDATE queue SET expires_at = %s", (now + timedelta(days=5),))
    for until, said in ((now + timedelta(hours=2), "Next attempt in 2 hours"), (FOREVER, "Expires in 5 days")):
        await Operating(pool).pause_account(account_id, "Paused.", until, now)
        assert f"<strong>{said}</strong>" in (await ann.get(f"/dashboard/emails/{email_id}")).text


@pytest_twisted.ensureDeferred
async def test_an_email_is_rescheduled_to_the_time_that_was_entered_or_not_at_all(pool: Pool) -> None:
    """A time in the past would send it at once, one that is too far away would silently become another one."""
    rig = DashboardRig(pool)
    rig.assembly.settings = attrs.evolve(rig.assembly.settings, limits=attrs.evolve(rig.assembly.settings.limits, schedule_ahead=60))
    rig.pages = rig.assembly.resource()
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, "acme.example")
    now = utc(rig.clock)
    before = now + timedelta(days=1, seconds=30)
    email_id = await rig.mail(account_id, "acme.example", before)
    ann, path = await rig.inside("ann@example.com"), f"/dashboard/emails/{email_id}"
    unchanged = (await ann.get(path)).found('name="at" required value="([^"]+)"')
    assert (await ann.post(f"{path}/reschedule", {"at": unchanged})).query["done"] == "rescheduled"
    assert await pool.rows("SELECT next_at FROM queue") == [(before,)]
    for wrong, message in (
        (now - timedelta(days=1), "This time has passed in UTC."),
        (now + timedelta(days=61), "within the next 60 days."),
    ):
        typed = f"{wrong:%Y-%m-%dT%H:%M}"
        shown = await ann.post(f"{path}/reschedule", {"at": typed})
        assert shown.status == 422 and message in shown.text and f'value="{typed}"' in shown.text
    at = now.replace(second=0, microsecond=0) + timedelta(days=59)
    assert (await ann.post(f"{path}/reschedule", {"at": f"{at:%Y-%m-%dT%H:%M}"})).query["done"] == "rescheduled"
    assert await pool.rows("SELECT next_at FROM queue") == [(at,)]
