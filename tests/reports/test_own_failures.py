"""The email to the operator when reports say that mail of this service failed DMARC."""

from __future__ import annotations

import pytest_twisted

from mailsvc.accounts.operator_alerts import OperatorAlerts
from mailsvc.store.people.operator_alerts import AlertStore
from tests.accounts.test_usage import Mail as Sent
from tests.domains.rig import Rig
from tests.reports.intake import Mail, dmarc, intake

OPERATOR, DAY = "operator@example.net", 86400


@pytest_twisted.ensureDeferred
async def test_mail_of_this_service_that_fails_dmarc_is_reported_to_the_operator_once(rig: Rig) -> None:
    domain, other, taking, sent = await rig.add(), await rig.add("example.org"), intake(rig), Sent()
    alerts = OperatorAlerts(AlertStore(rig.pool), sent, rig.clock, OPERATOR)

    async def report(number: int, after: int = 0) -> int:
        """Returns the number of emails after another report."""
        rig.clock.advance(after)
        await taking.take(Mail(dmarc(rig, **{"<report_id>17<": f"<report_id>{number}<"}), (domain.id,)))
        await alerts.send_due()
        return len(sent.sent)

    await alerts.send_due()
    assert not sent.sent
    assert await report(1) == 1
    [(to, subject, text)] = sent.sent.values()
    assert (to, subject) == (OPERATOR, "Mail from example.com fails DMARC")
    assert text.startswith("Receiver & Söhne reports that 3 emails sent by this service failed DMARC.\n")
    assert "mailsvc domain check example.com" in text and other.name not in text
    assert await report(2) == 1, "the same day"
    assert [await report(number, DAY) for number in (3, 4, 5)] == [1, 1, 1], "it goes on"
    assert await report(6, 9 * DAY) == 2, "a new event, after a week without"


@pytest_twisted.ensureDeferred
async def test_mail_of_others_that_fails_is_not(rig: Rig) -> None:
    domain, taking, sent = await rig.add(), intake(rig), Sent()
    await taking.take(Mail(dmarc(rig, **{"192.0.2.10": "198.51.100.99"}), (domain.id,)))
    assert dict(taking.counts) == {"dmarc": 1}
    await OperatorAlerts(AlertStore(rig.pool), sent, rig.clock, OPERATOR).send_due()
    assert not sent.sent
