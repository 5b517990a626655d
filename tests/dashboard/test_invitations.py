"""What invitations say, and how many of them an address gets."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.dashboard.signin import mails
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

ANN, EVE, CAT = "ann@example.com", "eve@example.com", "cat@example.net"


@pytest.mark.parametrize("name", ["Acme Inc.", "Acme A. & Co", "Crème 24", "Büro №5"])
def test_an_invitation_names_the_account(name: str) -> None:
    email = mails.invitation(name, ANN, "https://mail.example/x")
    assert name in email.subject
    assert name in email.paragraphs[0]


@pytest.mark.parametrize(
    "name",
    [
        "You won, see https://evil.example/x", "Claim at evil.example", "evil。example", "evil\uff0eexample", "Write to me@evil",
        "Refund: call +1 (555) 010-9999", "Acme\u202egro.live", "Ac\u200bme", "Acme\nBcc: x",
    ],
)  # fmt: skip
def test_a_name_that_could_be_a_message_is_left_out(name: str) -> None:
    email = mails.invitation(name, ANN, "https://mail.example/x")
    assert email.subject == "Join an account on mailsvc"
    assert email.paragraphs == (f"{ANN} invited you to join their account on mailsvc.",)


@pytest_twisted.ensureDeferred
async def test_invitations_of_one_address_from_several_accounts_are_limited_together(pool: Pool) -> None:
    rig = DashboardRig(pool)
    found = []
    for admin in (ANN, EVE):
        await rig.person(admin, await rig.account())
        browser = await rig.inside(admin)
        await browser.get("/dashboard/settings")
        for _ in range(3):
            found.append((await browser.post("/dashboard/settings/invite", {"email": CAT, "role": "developer"})).status)
    assert found == [303, 303, 303, 303, 303, 429]
