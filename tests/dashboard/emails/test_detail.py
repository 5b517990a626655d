"""The page of an email: its result and its content come first, and of many recipients the delivered ones are folded."""

from __future__ import annotations

from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.intake import Admitted, Content, Incoming
from mailsvc.mail.address import Mailbox
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.pool import Pool
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
