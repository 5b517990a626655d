"""The pages of the console: what they show, what they change and write to the audit log, and what they never show."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest_twisted

from mailsvc.clock import utc
from mailsvc.console.cells import CellPages
from mailsvc.console.overview import OverviewPages
from mailsvc.console.serving import ROUTES
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.cells.nodes import Cell, Cluster, Node
from mailsvc.store.people.audit import INSTALLATION, Audit, by_operator
from mailsvc.store.postgres.cells import Address
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import Standbys
from tests.console.rig import ANN, ConsoleRig, FakeMonitoring
from tests.monitoring.test_overview import metrics_text
from tests.store.fixtures import StoreRig, email

NAMED = f"the operator ({ANN})"
# Routes with POST that are no changes of the service, and where they are tested.
ELSEWHERE = {"/console/sign-in", "/console/sign-in/out", "/console/set-up"}


@pytest_twisted.ensureDeferred
async def test_every_change_is_in_the_audit_log_with_the_name_of_the_person(pool: Pool) -> None:
    """The account's log says "the operator", that of the installation who it was."""
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    held = "INSERT INTO destinations (region, name, state, reason, until, failures) VALUES (%s, %s, 'paused', 'x', now(), 0)"
    await pool.run(held, ("us-east-1", "mx.example.net"))
    walked = set(ELSEWHERE)

    async def sent(path: str, action: str, form: dict[str, str], about: UUID | None = account_id, text: object = account_id) -> None:
        before, own = len(await rig.log(INSTALLATION)), len(await rig.log(account_id))
        await browser.get("/console")
        shown = await browser.post(path.replace("<text>", str(text)), form)
        assert shown.status == 303 and "same" not in shown.location, (path, shown.status, shown.text)
        assert [entry[:2] for entry in (await rig.log(INSTALLATION))[before:]] == [(NAMED, action)], path
        added = [entry[:2] for entry in (await rig.log(account_id))[own:]]
        assert added == ([("the operator", action)] if about else []), path
        assert ANN not in str(await rig.log(account_id))
        walked.add(path)

    at = "/console/accounts/<text>"
    await sent(f"{at}/suspend", "account suspended", {"reason": "Phishing."})
    await sent(f"{at}/resume", "account resumed", {})
    await sent(f"{at}/plan", "plan changed", {"plan": "50k"})
    await sent(f"{at}/limits", "limits changed", {"rate_limit": "7", "ramp": ""})
    await sent(f"{at}/trust", "account trusted", {"trusted": "on"})
    await sent(f"{at}/pause", "mail paused", {"reason": "We are looking into it"})
    await sent(f"{at}/release", "mail released", {})
    name = {"name": "mx.example.net"}
    await sent("/console/queue/pause", "destination paused", {**name, "reason": "Their request"}, None)
    await sent("/console/queue/retry", "destination retried", name, None)
    await sent("/console/queue/resume", "destination released", name, None)
    incident = {"title": "Slow", "impact": "degraded", "component:Delivery": "on", "text": "We know."}
    await sent("/console/incidents", "incident added", incident, None)
    [(incident_id,)] = await pool.rows("SELECT id FROM incidents")
    await sent("/console/incidents/<text>/note", "incident ended", {"text": "Fixed.", "end": "on"}, None, incident_id)
    assert walked == {route.path for route in ROUTES if route.method == "POST"}
    await sent(f"{at}/trust", "account no longer trusted", {})
    for form, limits in (({"ramp": "9"}, (7, 9)), ({"rate_limit": ""}, (None, 9)), ({"rate_limit": "7", "ramp": ""}, (7, None))):
        await sent(f"{at}/limits", "limits changed", form)  # a field that is not sent leaves its limit
        changed = await rig.accounts.get(account_id)
        assert changed is not None and (changed.rate_limit, changed.ramp) == limits
    changed = await rig.accounts.get(account_id)
    assert changed is not None and (changed.plan, changed.rate_limit, changed.ramp, changed.suspended_at) == ("50k", 7, None, None)
    page = await browser.get("/console/audit")
    assert "Account suspended" in page.text and "Acme (" in page.text and NAMED in page.text


@pytest_twisted.ensureDeferred
async def test_a_reason_is_required_and_reaches_the_account(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    at = f"/console/accounts/{account_id}"
    await browser.get(at)
    for action in ("suspend", "pause"):
        assert (await browser.post(f"{at}/{action}", {"reason": " "})).status == 422
    assert (await rig.log(account_id)) == []
    await browser.post(f"{at}/suspend", {"reason": "Phishing."})
    assert await rig.log(account_id) == [("the operator", "account suspended", "Phishing")]
    page = await browser.get(at)
    assert "Suspended" in page.text and "Resume account" in page.text
    assert (await browser.post(f"{at}/suspend", {"reason": "again"})).location.endswith("done=same")
    for form in ({"rate_limit": "-1"}, {"ramp": "1e9"}, {"ramp": "9" * 30}, {"ramp": "00000000000" + "9" * 11}, {"rate_limit": "٣"}):
        assert (await browser.post(f"{at}/limits", form)).status == 422, form
    assert (await browser.post(f"{at}/plan", {"plan": "nothing"})).status == 422
    assert (await browser.post(f"/console/accounts/{uuid4()}/suspend", {"reason": "x"})).status == 404


@pytest_twisted.ensureDeferred
async def test_accounts_are_found_and_show_their_rates(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser, account_id, other = await rig.set_up(), await rig.account("Acme Ltd"), await rig.account("Other")
    hour = utc(rig.clock).replace(minute=0, second=0, microsecond=0)
    for kind, count, at in (("email.sent", 1000, hour), ("email.delivered", 900, hour), ("email.bounced.permanent", 100, hour),
                            ("email.complained", 9, hour), ("email.complained", 500, hour - timedelta(days=8))):  # fmt: skip
        sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
        await pool.run(sql, (account_id, at, UUID(int=0), kind, count))
    await pool.run("INSERT INTO users (id, email, created_at) VALUES (%s, 'bo@acme.example', now())", (other,))
    await pool.run("INSERT INTO members (account_id, user_id, role, created_at) VALUES (%s, %s, 'admin', now())", (other, other))
    page = await browser.get("/console/accounts")
    assert "Acme Ltd" in page.text and "Other" in page.text and "10.00%" in page.text and "1.00%" in page.text
    for query, found in (("acme", "Acme Ltd"), (str(account_id), "Acme Ltd"), ("BO@acme.example", "Other"), ("%", ""), ("o'", "")):
        text = (await browser.get(f"/console/accounts?q={query.replace('%', '%25')}")).text
        assert [name for name in ("Acme Ltd", "Other") if f">{name}</a>" in text] == ([found] if found else []), query
    one = await browser.get(f"/console/accounts/{account_id}")
    assert "1,000" in one.text and "10.00%" in one.text


@pytest_twisted.ensureDeferred
async def test_no_page_shows_subjects_or_recipients(pool: Pool) -> None:
    """The mail is queued and its only recipient is suppressed in the audit log."""
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    mail = email("zoe@recipient.example", account=account_id, subject="Secret subject", region="us-east-1")
    await StoreRig(pool, pool.reactor).accept(mail)
    audit = Audit(pool, rig.clock)
    await audit.write(by_operator(account_id, "suppressions added", "zoe@recipient.example"))
    for path in ("", "/accounts", f"/accounts/{account_id}", "/queue", "/sources", "/incidents", "/audit"):
        page = await browser.get(f"/console{path}")
        assert page.status == 200, (path, page.text)
        assert "Secret subject" not in page.text and "zoe@" not in page.text, path
    assert "recipient.example" in (await browser.get("/console/queue")).text  # the destination
    assert "Suppressions added" in (await browser.get(f"/console/accounts/{account_id}")).text


@pytest_twisted.ensureDeferred
async def test_the_first_page_lists_problems_and_escapes_names(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser = await rig.set_up()
    page = (await browser.get("/console")).text
    assert "All systems normal" in page and "&lt;day&gt;" in page and "<day>" not in page and "<script>" not in page
    [pages] = [section for section in rig.pages.sections if isinstance(section, OverviewPages)]
    pages.monitoring = FakeMonitoring(metrics_text(restored=1, listed=2))  # type: ignore[assignment]
    page = (await browser.get("/console")).text
    assert (
        "<title>Problems: 2" in page and "<code>mailsvc queue release</code>." in page and "<code>mailsvc sources list</code> names" in page
    )
    assert (await browser.get("/console/nothing")).status == 404
    assert (await browser.post("/console/accounts")).status == 405


@pytest_twisted.ensureDeferred
async def test_a_destination_that_cannot_be_paused_is_entered_again(pool: Pool) -> None:
    browser = await ConsoleRig(pool).set_up()
    await browser.get("/console/queue")
    wrong = await browser.post("/console/queue/pause", {"name": "no domain", "reason": "Their request"})
    assert wrong.status == 422 and 'value="no domain" aria-invalid="true"' in wrong.text and 'value="Their request"' in wrong.text
    assert "There is no destination" in wrong.text and "<code>mailsvc queue list</code>" in wrong.text
    assert (await browser.post("/console/queue/retry", {"name": "no domain"})).status == 422


class Listed:
    """A cluster of which two nodes answer. The real one: end_to_end/test_cells."""

    def cells(self) -> list[Cell]:
        return [
            Cell("eu_1", Address("db-1.example.com", 5432), "eu-west-1", 3 << 30, "web-1"),
            Cell("us_1", Address("db-2.example.com", 5432), None, None),
        ]

    def nodes(self) -> list[Node]:
        away = Node(Address("db-2.example.com", 5432), None, False, True, None)
        return [Node(Address("db-0.example.com", 5432), None, True, False, 5 << 20, Standbys(2, True, 3 << 20)), away]


@pytest_twisted.ensureDeferred
async def test_cells_and_nodes_are_listed(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser = await rig.set_up()
    assert "One database" in (await browser.get("/console/cells")).text
    [pages] = [section for section in rig.pages.sections if isinstance(section, CellPages)]
    pages.cluster, pages.cell = Listed(), "eu_1"  # type: ignore[assignment]
    text = (await browser.get("/console/cells")).text
    assert "db-1.example.com:5432" in text and "eu-west-1" in text and "this process" in text and "Coordinator" in text and "web-1" in text
    assert text.count("Unreachable") == 2 and "2 standbys, synchronous, 3.0 MB behind" in text and "3.0 GB" in text
    pages.cluster = Cluster("postgresql:///nowhere?host=/nonexistent", {})
    page = await browser.get("/console/cells")
    assert page.status == 503 and "Cluster unreachable" in page.text


@pytest_twisted.ensureDeferred
async def test_a_form_with_a_mistake_keeps_what_was_entered(pool: Pool) -> None:
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    await browser.get("/console/incidents")
    incident = {"title": "Slow & late", "impact": "down", "text": "We know.\nMore at 10:00."}
    shown = await browser.post("/console/incidents", incident)
    assert shown.status == 422 and "Choose at least one component." in shown.text
    for kept in ('value="Slow &amp; late"', 'value="down" selected', "We know.\nMore at 10:00.</textarea>"):
        assert kept in shown.text
    assert "component:API" in shown.text and "component:Webhooks" not in shown.text, "the status page does not list it"
    unlisted = await browser.post("/console/incidents", {**incident, "component:Webhooks": "on"})
    assert unlisted.status == 422 and "Choose at least one component." in unlisted.text
    assert 'aria-describedby="e-components"' in shown.text and 'id="e-components"' in shown.text and "aria-invalid" not in shown.text
    shown = await browser.post("/console/incidents", {"impact": "odd", "component:API": "on"})
    assert shown.text.count('aria-invalid="true"') == 3 and "Choose an impact." in shown.text
    for name, described in (("title", "e-title"), ("impact", "e-impact"), ("text", "d-text e-text")):
        assert f'aria-describedby="{described}"' in shown.text and f'id="e-{name}"' in shown.text
    shown = await browser.post("/console/incidents", {**incident, "title": "", "component:API": "on"})
    assert shown.status == 422 and "Enter a title." in shown.text and 'name="component:API" value="on" checked' in shown.text
    assert await pool.rows("SELECT count(*) FROM incidents") == [(0,)]
    at = f"/console/accounts/{account_id}"
    shown = await browser.post(f"{at}/limits", {"rate_limit": "many", "ramp": "7"})
    assert shown.status == 422 and "Enter a whole number" in shown.text and 'value="many"' in shown.text and 'value="7"' in shown.text
    shown = await browser.post(f"{at}/pause", {"reason": " "})
    assert shown.status == 422 and "Say why." in shown.text and shown.text.count('class="confirm" open') == 1
    await browser.post(f"{at}/trust", {"trusted": "on"})
    shown = await browser.post(f"{at}/limits", {"rate_limit": "", "ramp": "7"})
    assert shown.status == 422 and "The account is trusted, so it has no such limit." in shown.text


@pytest_twisted.ensureDeferred
async def test_a_closed_account_is_shown_as_such_and_not_resumed(pool: Pool) -> None:
    """Resuming it would change nothing, as its data is going to be deleted."""
    rig = ConsoleRig(pool)
    browser, account_id = await rig.set_up(), await rig.account()
    closing = Closing(pool, rig.clock)
    await closing.close(account_id, utc(rig.clock) + timedelta(days=30), [])
    assert ">Closed<" in (await browser.get("/console/accounts")).text
    shown = await browser.get(f"/console/accounts/{account_id}")
    assert "all its data will be deleted" in shown.text and ">Closed<" in shown.text
    assert "Resume account" not in shown.text and "Its admins can reopen it. Then it can’t send" in shown.text
    rig.clock.advance(1)
    assert (await browser.post(f"/console/accounts/{account_id}/suspend", {"reason": "Spam"})).location.endswith("done=suspended")
    assert "Resume account" not in (await browser.get(f"/console/accounts/{account_id}")).text
    await closing.reopen(account_id, [])
    assert "Resume account" in (await browser.get(f"/console/accounts/{account_id}")).text
