"""Signing in to the console: always a password and a code, with the link of `mailsvc operator add` first."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.console.serving import ROUTES, SESSION
from mailsvc.store.console.operators import IDLE, LONGEST, sweep_sessions
from mailsvc.store.people.audit import INSTALLATION
from mailsvc.store.postgres.pool import Pool
from tests.console.rig import ANN, ConsoleRig
from tests.dashboard.fixtures import PASSWORD


@pytest_twisted.ensureDeferred
async def test_the_link_sets_up_both_factors_once(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    path, browser = await rig.invited(), rig.browser()
    page = await browser.get(path)
    assert page.status == 200 and ANN in page.text and "<svg" in page.text
    form = {"link": path.partition("link=")[2], "password": PASSWORD, "code": "000000"}
    assert (await browser.post("/console/set-up", form)).status == 422
    assert (await browser.post("/console/set-up", {**form, "code": rig.code(), "password": "short"})).status == 422
    assert (await browser.post("/console/set-up", {**form, "code": rig.code()})).location == "/console"
    assert (await browser.get("/console")).status == 200
    assert (await rig.browser().get(path)).status == 410
    assert [entry[:2] for entry in await rig.log(INSTALLATION)] == [
        (f"the operator ({ANN})", "operator set up"), (f"the operator ({ANN})", "console opened"),
    ]  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_a_link_expires_after_a_day_and_ends_what_was_there(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    former = await rig.set_up()
    path = await rig.invited()
    assert (await former.get("/console")).location == "/console/sign-in"
    assert (await rig.sign_in(rig.browser())).status == 422  # the former password
    rig.clock.advance(86401)
    assert (await rig.browser().get(path)).status == 410


@pytest.mark.parametrize(
    ("password", "code"), [("wrong password", None), (PASSWORD, "000000"), (PASSWORD, ""), ("", None), (PASSWORD, "x" * 99)]
)
@pytest_twisted.ensureDeferred
async def test_neither_factor_is_enough(pool: Pool, password: str, code: str | None) -> None:
    rig = ConsoleRig(pool)
    await rig.set_up()
    browser = rig.browser()
    refused = await rig.sign_in(browser, password=password, code=code)
    assert refused.status == 422 and "Incorrect email, password or code." in refused.text
    assert (await browser.get("/console")).location == "/console/sign-in"
    assert (await rig.log(INSTALLATION))[-1] == (ANN, "console sign-in failed", "")


@pytest_twisted.ensureDeferred
async def test_a_code_works_once_and_attempts_slow_down(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    await rig.set_up()
    code = rig.code()
    assert (await rig.sign_in(rig.browser(), code=code)).location == "/console"
    assert (await rig.sign_in(rig.browser(), code=code)).status == 422
    answers = [(await rig.sign_in(rig.browser(), password="wrong")).status for _ in range(12)]
    assert 429 in answers
    assert (await rig.sign_in(rig.browser(), email="nobody@operator.example")).status == 422


@pytest_twisted.ensureDeferred
async def test_sessions_end(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser = await rig.set_up()
    await browser.get("/console")
    assert (await browser.post("/console/sign-in/out")).location == "/console/sign-in"
    assert (await browser.get("/console")).location == "/console/sign-in"
    for pause, number in ((IDLE.total_seconds() + 1, 1), (IDLE.total_seconds() - 1, int(LONGEST / IDLE) + 1)):
        rig.clock.advance(3600)
        browser = rig.browser()
        assert (await rig.sign_in(browser)).location == "/console"
        for _ in range(number):
            rig.clock.advance(pause)
            shown = await browser.get("/console")
        assert shown.location == "/console/sign-in", number
    assert await pool.rows("SELECT count(*) FROM operator_sessions") != [(0,)]
    await sweep_sessions(pool, utc(rig.clock))
    assert await pool.rows("SELECT count(*) FROM operator_sessions") == [(0,)]
    browser = rig.browser()
    await rig.sign_in(browser)
    assert await rig.operators.remove(ANN, [])
    assert (await browser.get("/console")).location == "/console/sign-in"


@pytest_twisted.ensureDeferred
async def test_without_a_session_only_signing_in_answers(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    await rig.account()
    browser = rig.browser()
    await browser.get("/console/sign-in")
    for route in ROUTES:
        if route.access == "operator":
            path = route.path.replace("<text>", "00000000-0000-0000-0000-000000000009")
            shown = await (browser.get(path) if route.method == "GET" else browser.post(path))
            assert shown.location == "/console/sign-in", route
    browser.cookies[SESSION] = "guessed"
    assert (await browser.get("/console/accounts")).location == "/console/sign-in"


@pytest_twisted.ensureDeferred
async def test_forms_need_the_token_of_their_session(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    assert (await browser.post(f"/console/accounts/{account_id}/suspend", {"reason": "x", "token": "0"})).status == 403
    await browser.get("/console")
    foreign = await browser.post(f"/console/accounts/{account_id}/suspend", {"reason": "x"}, {"Sec-Fetch-Site": "same-site"})
    assert foreign.status == 403
    page = await browser.get("/console")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"] and page.headers["cache-control"] == "no-store"
