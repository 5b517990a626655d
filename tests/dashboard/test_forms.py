"""Forms keep what was entered when something in them is wrong."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig, Response

ANN, SETTINGS = "ann@example.com", "/dashboard/settings"


async def inside(pool: Pool, page: str = SETTINGS) -> tuple[DashboardRig, Browser]:
    rig = DashboardRig(pool)
    await rig.person(ANN, await rig.account())
    ann = await rig.inside(ANN)
    await ann.get(page)
    return rig, ann


def wrong(shown: Response, *entered: str) -> None:
    assert shown.status == 422
    assert [part for part in entered if part not in shown.text] == []


@pytest_twisted.ensureDeferred
async def test_an_invitation_keeps_its_role(pool: Pool) -> None:
    """Otherwise the corrected form would invite somebody with more rights."""
    _, ann = await inside(pool)
    shown = await ann.post(f"{SETTINGS}/invite", {"email": "bob@", "role": "billing"})
    form = shown.text.partition('action="/dashboard/settings/invite"')[2]
    wrong(shown, 'value="bob@"')
    assert 'value="billing" selected' in form and form.count(" selected") == 1
    assert '<a href="/dashboard/settings" aria-current="page">Team</a>' in shown.text  # as on the page of the form
    assert "Emails, domains, API keys, webhooks" in shown.text


@pytest_twisted.ensureDeferred
async def test_the_account_keeps_name_networks_and_second_factor(pool: Pool) -> None:
    _, ann = await inside(pool)
    form = {"name": "New name", "mfa": "on", "networks": "192.0.2.0/24\nnowhere"}
    shown = await ann.post(f"{SETTINGS}/account", form)
    wrong(shown, 'value="New name"', 'name="mfa" value="on" checked', "192.0.2.0/24\nnowhere</textarea>", "two-factor authentication for")
    shown = await ann.post(f"{SETTINGS}/account", {**form, "name": " ", "mfa": "", "networks": "192.0.2.0/24"})
    wrong(shown, "Enter an account name.", "192.0.2.0/24</textarea>")
    assert 'value="on" checked' not in shown.text


@pytest_twisted.ensureDeferred
async def test_a_new_domain_keeps_its_region(pool: Pool) -> None:
    _, ann = await inside(pool, "/dashboard/domains")
    wrong(await ann.post("/dashboard/domains", {"name": "acme", "region": "eu-west-1"}), "<option selected>eu-west-1</option>")


@pytest_twisted.ensureDeferred
async def test_tracking_keeps_its_boxes(pool: Pool) -> None:
    rig, ann = await inside(pool)
    [(account_id,)] = await pool.rows("SELECT id FROM accounts")
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    form = {"open_tracking": "on", "tracking_subdomain": "not a name"}
    shown = await ann.post(f"/dashboard/domains/{domain.id}/track", form)
    wrong(shown, 'name="open_tracking" value="on" checked', 'value="not a name"')
    assert 'name="click_tracking" value="on" checked' not in shown.text


@pytest_twisted.ensureDeferred
async def test_an_endpoint_keeps_its_events_and_its_state(pool: Pool) -> None:
    rig, ann = await inside(pool, "/dashboard/webhooks")
    [(account_id,)] = await pool.rows("SELECT id FROM accounts")
    shown = await ann.post("/dashboard/webhooks", {"url": "https://acme.example/"})
    wrong(shown, "Choose at least one event.", 'value="https://acme.example/"')
    assert " checked" not in shown.text
    webhook = await rig.assembly.webhooks.add(account_id, "https://acme.example/", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    shown = await ann.post(f"/dashboard/webhooks/{webhook.id}/change", {"url": "nowhere", "on:email.sent": "1"})
    wrong(shown, 'value="nowhere"')
    assert 'name="enabled" value="on" checked' not in shown.text


@pytest_twisted.ensureDeferred
async def test_a_form_that_comes_after_the_session_leads_to_signing_in(pool: Pool) -> None:
    _, ann = await inside(pool)
    ann.cookies.clear()
    sent = await ann.post(f"{SETTINGS}/invite", {"email": "bob@example.com", "role": "billing"})
    assert (sent.status, sent.location) == (303, "/dashboard/sign-in?next=%2Fdashboard%2Fsettings&form=1")
    assert "form=1" not in (await ann.post("/dashboard/sign-in/out")).location
    assert "You were signed out before the form was sent." in (await ann.get(sent.location)).text
