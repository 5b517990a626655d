"""The dashboard in Chromium: from signing up to a delivered email, and every page in four views with accessibility checks."""

from __future__ import annotations

import contextlib
import re
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pyotp
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from mailsvc.dashboard.assembly import NAVIGATION
from tests.dashboard.provider import CLIENT, SECRET, FakeProvider, Someone
from tests.end_to_end.chromium import MARKS
from tests.end_to_end.receiver import Receiver
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.screens import look_at_all, look_here
from tests.end_to_end.signing_in import PASSWORD, first_sign_in
from tests.end_to_end.visitor import mailed_link

KEPT: list[Any] = []  # cookies of the first account's admin

pytestmark = MARKS


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    provider = FakeProvider().start()
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, provider: FakeProvider) -> Iterator[Daemon]:
    """With a host name, which passkeys require, and fakes of Google and GitHub."""
    folder: Path = tmp_path_factory.mktemp("browser")
    port, here = free_port(), free_port()
    secret = folder / "client.secret"
    secret.write_text(SECRET)
    changes: dict[str, dict[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "greylist_seconds": 1},
        "sandbox": {"listen": [f"tcp:{port}:interface=127.0.0.1"]},
        "": {"sender": "mailsvc <no-reply@mailsvc.example>", "base_url": f"http://localhost:{here}"},
        "dashboard": {"sign_up": True},
        "sign_in": {
            "google_client": CLIENT, "google_secret": str(secret), "google_issuer": provider.url,
            "github_client": CLIENT, "github_secret": str(secret), "github_url": provider.url, "github_api": provider.url,
        },
        "smtp": {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "fetch": {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8"]},
        "regions.us-east-1": {"host": "localhost"},
        "regions.eu-west-1": {"host": "out.eu.example", "smtp": "smtp.eu.example", "api": "https://api.eu.example"},
    }  # fmt: skip
    daemon = Daemon(folder, module_database, changes, here)
    daemon.start()
    yield daemon
    daemon.stop()


def enter(page: Page, daemon: Daemon, address: str, account: str = "Acme") -> None:
    """Sign up with an emailed link."""
    page.goto("/dashboard/sign-up")
    page.get_by_label("Email").fill(address)
    page.get_by_role("button", name="Send link").click()
    expect(page.get_by_role("heading", name="Check your inbox")).to_be_visible()
    page.goto(mailed_link(daemon, address, "/dashboard/sign-up/finish"))
    page.get_by_label("Your name").fill("Ann Example")
    page.get_by_label("Company or project").fill(account)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="Send your first email")).to_be_visible()


def leave(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_signing_up_to_two_factor_authentication(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "ann@acme.example")
    page.get_by_role("button", name="Create API key").click()
    expect(page.locator("#key")).to_have_text(re.compile("^ms_"))
    assert page.locator("#key").inner_text() in page.locator("#code-1").inner_text()
    page.get_by_role("link", name="Add a domain").click()
    domain = page.get_by_role("textbox", name="Domain")
    domain.fill("acme.invalid")
    page.get_by_role("button", name="Add domain").click()
    expect(page.locator("#d-name")).to_be_visible()  # shown beside the field
    assert domain.input_value() == "acme.invalid"
    expect(domain).to_be_focused()
    domain.fill("mail.acme-example.com")
    page.get_by_role("button", name="Add domain").click()
    expect(page.get_by_role("heading", name="DNS records")).to_be_visible()
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("link", name="Security", exact=True).click()
    page.get_by_role("link", name="Set up an authenticator app").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_label("Code").fill(pyotp.TOTP(secret).now())
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("heading", name="Save your recovery codes")).to_be_visible()
    code = page.locator("#codes li").first.inner_text()
    leave(page)
    page.goto("/dashboard/keys")
    page.get_by_label("Email").fill("ann@acme.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Continue").click()
    expect(page).to_have_url(re.compile("/dashboard/keys$"))  # back on the requested page


def test_the_home_page_leads_a_new_account_to_its_first_delivery(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "first@acme.example", "Beginners")
    nothing_yet = {f"empty-{name}": f"/dashboard/{name}" for name in "emails domains keys metrics logs webhooks suppressions".split()}
    look_at_all(page, nothing_yet | {"empty-home": "/dashboard"})
    page.goto("/dashboard/domains")
    page.get_by_role("textbox", name="Domain").fill("first.acme-example.com")
    page.get_by_role("button", name="Add domain").click()
    page.get_by_role("link", name="Home").click()
    page.get_by_role("button", name="Create API key").click()
    key = page.locator("#key").inner_text()
    expect(page.locator("#step-domain")).not_to_have_class("done")
    daemon.command("domain", "trust", "first.acme-example.com", "--account", "Beginners")
    expect(page.locator("#step-domain")).to_have_class("done")  # without a reload
    sent = daemon.call(
        "POST", "/emails", {"from": "a@first.acme-example.com", "to": "x@example.com", "subject": "First", "text": "x"}, key=key
    )
    assert sent.status == 200
    expect(page.locator("#step-arrived")).to_have_class("done")  # without a reload
    expect(page.locator("#key")).to_have_text(key)
    page.get_by_role("link", name="First", exact=True).first.click()
    expect(page.get_by_role("heading", name="First")).to_be_visible()


def sign_in(page: Page, daemon: Daemon) -> None:
    """Sign in as the first account's admin, with the link printed at the start, then with the cookies from it."""
    if not KEPT:
        first_sign_in(page, daemon.facts["sign_in"][len(daemon.facts["http"]) :], lambda page: shown(page, "first-sign-in"))
        KEPT.extend(page.context.cookies())
    page.context.add_cookies(KEPT)


def test_an_email_page_updates_until_it_is_delivered(page: Page, daemon: Daemon) -> None:
    sign_in(page, daemon)
    html = '<html lang="en"><body><p>Hello</p><script>document.title="owned";parent.location="/x"</script>'
    html += f'<img src="http://127.0.0.1:{daemon.port}/healthz?tracked"></body></html>'
    mail = {
        "from": f"Acme <a@{daemon.facts['domain']}>",
        "to": ["delayed@example.com", "ann@example.com"],
        "subject": "Hello",
        "html": html,
    }
    email_id = daemon.call("POST", "/emails", mail).body["id"]
    urls: list[str] = []
    page.on("response", lambda answer: urls.append(answer.url))
    page.goto(f"/dashboard/emails/{email_id}")
    expect(page.locator("#live .badge").filter(has_text="Delivered")).to_have_count(2, timeout=30_000)  # without a reload
    expect(page.locator("#live-head .badge")).to_have_text("Delivered")
    assert page.locator("summary").count() >= 3
    page.locator("summary").first.click()
    expect(page.locator("details pre").first).to_contain_text("MAIL FROM")
    frame = page.frame_locator("iframe.preview")
    expect(frame.get_by_text("Hello")).to_be_visible()
    assert not [url for url in urls if "tracked" in url]
    assert page.title() == "Hello · mailsvc"
    for view in ("Text", "Source", "Insights"):
        page.get_by_role("link", name=view).click()
        expect(page.get_by_role("link", name=view)).to_have_attribute("aria-current", "page")


def first(page: Page, path: str, pattern: str) -> str:
    """The first link on a page that matches `pattern`."""
    found = re.search(rf'href="({pattern})"', page.request.get(path).text())
    assert found, (path, pattern)
    return found[1].replace("&amp;", "&")


def test_a_webhook_event_is_resent(page: Page, daemon: Daemon) -> None:
    """This also prepares data for the screenshots below."""
    sign_in(page, daemon)
    with Receiver() as receiver:
        page.goto("/dashboard/webhooks")
        page.get_by_label("Endpoint URL").fill(f"{receiver.url}/")
        page.get_by_role("button", name="Add endpoint").click()
        page.get_by_role("button", name="Send test event").click()
        expect(page.locator("#live .badge").filter(has_text="Success")).to_have_count(1, timeout=30_000)  # without a reload
        page.locator("#live a.cover").first.click()
        expect(page.locator(".timeline li")).to_have_count(1)
        page.get_by_role("button", name="Resend").click()
        expect(page.locator(".timeline li")).to_have_count(2, timeout=30_000)  # without a reload
        assert len({each.id for each in receiver.received}) == 1 and len(receiver.received) == 2


def test_logs_are_exported(page: Page, daemon: Daemon) -> None:
    sign_in(page, daemon)
    daemon.call("GET", "/domains")
    page.goto("/dashboard/logs")
    page.get_by_role("link", name="Export").click()
    expect(page.get_by_text("Not started")).to_be_visible()
    with page.expect_download() as taken:
        page.get_by_role("button", name="Download").click()
    assert Path(taken.value.path()).read_text().startswith("id,at,source,")
    expect(page.get_by_text("Done", exact=True)).to_be_visible()  # without a reload


def polled(page: Page) -> Request:
    """The next request of a page that updates itself."""
    with page.expect_request(lambda request: request.headers.get("hx-target") == "refresh") as awaited:
        page.clock.run_for(3100)
    assert awaited.value.headers["hx-request"] == "true"
    return awaited.value


def test_a_page_update_keeps_focus_and_stops_in_the_background(page: Page, daemon: Daemon) -> None:
    sign_in(page, daemon)
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "later@example.com", "subject": "Follow", "text": "x"}
    email_id = daemon.call("POST", "/emails", mail | {"scheduled_at": "in 2 hours"}).body["id"]
    page.clock.install()
    page.goto(f"/dashboard/emails/{email_id}?view=text")
    page.evaluate("document.querySelectorAll('#live .body, #live-head h1').forEach((one) => one.append('Mine'))")
    page.locator("summary", has_text="Cancel sending").focus()
    assert urlsplit(polled(page).url).query == "view=text"
    expect(page.get_by_text("Mine")).to_have_count(0)  # htmx replaced the part
    expect(page.locator("summary", has_text="Cancel sending")).to_be_focused()
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
    page.evaluate("addEventListener('htmx:beforeRequest', (event) => { window.requested = !event.defaultPrevented }, { once: true })")
    page.clock.run_for(3100)
    assert page.evaluate("window.requested") is False  # no requests from a page in the background
    page.evaluate("delete document.hidden")
    daemon.call("POST", f"/emails/{email_id}/cancel")
    polled(page)
    expect(page.locator("#live-head .badge")).to_have_text("Canceled")
    expect(page.locator("#refresh[hx-get]")).to_have_count(0)  # no more updates


def test_a_session_that_ends_during_page_updates_returns_to_the_page(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "gone@acme.example")
    page.clock.install()
    page.get_by_role("button", name="Create API key").click()
    expect(page.locator("#refresh[hx-get]")).to_have_count(1)
    page.context.clear_cookies()
    polled(page)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Email").fill("gone@acme.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).to_have_url(re.compile(r"/dashboard\?steps=1$"))


def test_a_filter_applies_without_reloading_the_page(page: Page, daemon: Daemon) -> None:
    sign_in(page, daemon)
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "ann@example.com", "subject": "Filtered", "text": "x"}
    email_id = daemon.call("POST", "/emails", mail | {"scheduled_at": "in 2 hours"}).body["id"]
    page.goto("/dashboard/emails")
    page.evaluate("window.same = true")
    expect(page.get_by_role("link", name="Filtered")).to_be_visible()
    page.get_by_label("Status").focus()
    page.get_by_label("Status").select_option("complained")
    expect(page.get_by_role("heading", name="No results")).to_be_visible()
    announced = page.locator("main > p[aria-live=polite]")  # for screen readers
    expect(announced).to_have_text("No results")
    page.get_by_label("Status").select_option("")
    expect(announced).to_have_text(re.compile(r"^\d+ results? on this page$"))
    page.get_by_label("Status").select_option("complained")
    expect(page.get_by_role("heading", name="No results")).to_be_visible()
    expect(page.get_by_label("Status")).to_be_focused()
    expect(page.locator("#export")).to_have_attribute("href", re.compile("status=complained"))
    assert "status=complained" in page.url and page.evaluate("window.same")
    page.go_back()
    expect(page.get_by_role("link", name="Filtered")).to_be_visible()
    page.get_by_label("Search").fill(email_id)
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile(f"/dashboard/emails/{email_id}$"))  # the email's page


COUNTED = """
INSERT INTO rollups (account_id, hour, domain_id, type, count)
SELECT d.account_id, date_trunc('hour', at), d.id, type, (base * (1.2 + sin(extract(epoch FROM at) / 200000)))::int
FROM domains d, generate_series(now() - interval '29 days', now() - interval '1 day', '6 hours') AS at,
     (VALUES ('email.sent', 1000), ('email.delivered', 960), ('email.bounced.permanent', 30), ('email.bounced.transient', 8),
             ('email.complained', 1), ('email.suppressed', 60)) AS counted (type, base)
WHERE d.name = %s ON CONFLICT DO NOTHING
"""
# How many pixels of each canvas have this colour of the stylesheet.
PAINTED = """(name) => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  return [...document.querySelectorAll(".plot canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) count += wanted.every((part, place) => part === data[at + place]) && data[at + 3] === 255;
    return count;
  });
}"""


def count(daemon: Daemon, database: str) -> None:
    """Insert thirty days of counts for the first account."""
    with contextlib.closing(psycopg2.connect(database)) as link, link, link.cursor() as cursor:
        cursor.execute(COUNTED, (daemon.facts["domain"],))


def once(page: Page, condition: str) -> None:
    """Wait for a frame in which the condition holds. Playwright's own way needs eval, which the pages' policy forbids."""
    page.evaluate(f"new Promise((done) => {{ const look = () => ({condition}) ? done() : requestAnimationFrame(look); look(); }})")


def test_charts_are_drawn_from_the_table(page: Page, daemon: Daemon, module_database: str) -> None:
    sign_in(page, daemon)
    count(daemon, module_database)
    page.goto("/dashboard/metrics")
    page.get_by_label("Time", exact=True).select_option("30")
    expect(page.locator("#numbers tbody tr")).to_have_count(30)
    shown(page, "metrics-30-days")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        once(page, f"({PAINTED})('good')[0] > 500")  # the bars of delivered emails
        assert page.evaluate(PAINTED, "bad")[0] > 50 and page.evaluate(PAINTED, "info")[0] > 50
        accent, danger = page.evaluate(PAINTED, "accent"), page.evaluate(PAINTED, "bad")
        assert [drawn > 50 for drawn in accent] == [False, True, True, True], accent  # the lines of the three rates
        assert [drawn > 50 for drawn in danger] == [True, False, True, True], danger  # the thresholds of two of them
    canvas, over = page.locator(".plot canvas").first, page.locator(".plot .u-over").first
    before, box = canvas.screenshot(), over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
    expect(page.locator(".plot .tip").first).to_contain_text("Delivered")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50)
    page.mouse.up()
    page.mouse.move(0, 0)
    assert canvas.screenshot() != before  # zoomed in
    over.dblclick()
    page.mouse.move(0, 0)
    assert canvas.screenshot() == before  # zoomed out
    page.set_viewport_size({"width": 390, "height": 844})
    once(page, "document.querySelector('.plot canvas').clientWidth < 390")
    table = page.locator("#numbers")
    expect(table.locator("table")).to_be_hidden()
    table.locator("summary").click()
    expect(table.get_by_role("columnheader", name="Bounce rate")).to_be_visible()


READ = """
WITH counted AS (
    INSERT INTO broadcast_counts (account_id, broadcast_id, hour, type, count)
    SELECT account_id, id, date_trunc('hour', now(), 'UTC') + hours * interval '1 hour', type, count + hours
    FROM broadcasts, generate_series(-1, 0) AS hours, (VALUES ('email.opened', 5), ('email.opened.unique', 2), ('email.clicked', 2),
        ('email.clicked.unique', 1), ('email.unsubscribed', 1)) AS counted (type, count) WHERE id = %(id)s
), links AS (
    INSERT INTO broadcast_links (account_id, broadcast_id, target, url, clicks, unique_clicks, people_clicks, unique_people)
    SELECT account_id, id, gen_random_uuid(), 'https://example.com/news/' || n, 4 - n, 1, 1, 1
    FROM broadcasts, generate_series(1, 3) AS n WHERE id = %(id)s
)
UPDATE broadcast_recipients SET marks = marks | 48 WHERE broadcast_id = %(id)s AND marks = 0
"""


def audience(daemon: Daemon) -> str:
    """A segment with three readers, an address that bounces and somebody who unsubscribed."""
    segment: str = daemon.call("POST", "/segments", {"name": "Newsletter"}).body["id"]
    for name in ("reader-1", "reader-2", "reader-3", "bounced", "gone"):
        contact = {"email": f"{name}@example.com", "segments": [segment], "unsubscribed": name == "gone"}
        assert daemon.call("POST", "/contacts", contact | ({"first_name": "Ann"} if name != "reader-3" else {})).status == 201
    return segment


def test_a_broadcast_is_reviewed_sent_and_its_result_read(page: Page, daemon: Daemon, module_database: str) -> None:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    sign_in(page, daemon)
    page.goto("/dashboard/settings/profile")
    page.get_by_label("Time zone").select_option("Asia/Tokyo")
    page.locator("#shortcuts").locator("xpath=ancestor::form").get_by_role("button", name="Save").click()
    content = {"name": "November news", "subject": "News for {{{contact.first_name}}}", "html": "<p>Hello</p><a href='#'>More</a>"}
    mail = {"segment_id": audience(daemon), "from": f"Acme <news@{daemon.facts['domain']}>"}
    draft = daemon.call("POST", "/broadcasts", mail | content).body["id"]
    page.goto("/dashboard/broadcasts")
    page.get_by_role("link", name="November news").click()
    expect(page.locator("#recipients")).to_have_text("4")
    expect(page.get_by_text("Unsubscribed from everything")).to_be_visible()
    expect(page.get_by_text("1 recipient has no first_name")).to_be_visible()
    page.get_by_text("Send now", exact=True).click()
    expect(page.get_by_text("Send this broadcast to 4 recipients now?")).to_be_visible()
    shown(page, "broadcasts-review")
    page.keyboard.press("Escape")
    expect(page.get_by_text("Send this broadcast to 4 recipients now?")).to_be_hidden()

    page.get_by_text("Schedule", exact=True).click()
    page.get_by_label("Date and time (Asia/Tokyo)").fill("2020-01-01T10:00")
    page.get_by_role("button", name="Schedule for 4 recipients").click()
    expect(page.get_by_text("This time has passed in Asia/Tokyo")).to_be_visible()
    errors.clear()  # Chromium reports the status 422
    tomorrow = page.evaluate("new Date(Date.now() + 86400000 + 9 * 3600000).toISOString().slice(0, 10)")  # in Tokyo
    page.get_by_label("Date and time (Asia/Tokyo)").fill(f"{tomorrow}T09:30")
    page.get_by_role("button", name="Schedule for 4 recipients").click()
    expect(page.get_by_text(f"{tomorrow} 09:30:00 JST")).to_be_visible()
    assert daemon.call("GET", f"/broadcasts/{draft}").body["scheduled_at"].startswith(f"{tomorrow} 00:30:00")
    shown(page, "broadcasts-scheduled")
    page.get_by_role("button", name="Unschedule").click()

    page.get_by_text("Send now", exact=True).click()
    page.get_by_role("button", name="Send to 4 recipients").click()
    expect(page.get_by_text("Sending has started.")).to_be_visible()
    expect(page.locator("#live-head .badge")).to_have_text("Sent", timeout=30_000)  # without a reload
    expect(page.locator(".figure").nth(0)).to_have_text("Delivered375.0% of sent", timeout=30_000)
    expect(page.locator(".figure").nth(3)).to_have_text("Bounced125.0% of sent", timeout=30_000)
    expect(page.locator(".plot canvas")).to_have_count(1)  # drawn by the update
    once(page, f"({PAINTED})('good')[0] > 50")
    with contextlib.closing(psycopg2.connect(module_database)) as link, link, link.cursor() as cursor:
        cursor.execute(READ, {"id": draft})
    page.goto(f"/dashboard/broadcasts/{draft}")
    expect(page.locator(".plot canvas")).to_have_count(2)
    once(page, f"({PAINTED})('info')[1] > 50 && ({PAINTED})('accent')[1] > 50")
    expect(page.get_by_role("cell", name="https://example.com/news/1")).to_be_visible()
    shown(page, "broadcasts-result")
    page.get_by_role("link", name="Recipients").click()
    expect(page.locator("#list tbody tr")).to_have_count(4)
    page.get_by_label("Outcome").select_option("bounced")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    shown(page, "broadcasts-recipients")
    page.get_by_role("link", name="bounced@example.com").click()
    expect(page.locator("#live-head .badge")).to_have_text("Bounced")
    page.goto(f"/dashboard/broadcasts/{draft}/providers")
    expect(page.get_by_role("row", name="example.com 4")).to_be_visible()
    shown(page, "broadcasts-providers")

    page.get_by_role("button", name="Duplicate").click()
    expect(page.get_by_role("heading", name="November news (copy)")).to_be_visible()
    page.goto("/dashboard/broadcasts")
    shown(page, "broadcasts-list")
    page.get_by_label("Status").select_option("draft")
    expect(page.locator("#list tbody tr")).to_have_count(1)  # without a reload
    page.get_by_role("link", name="November news (copy)").click()
    page.get_by_text("Delete", exact=True).click()
    shown(page, "broadcasts-delete")
    page.get_by_role("button", name="Delete broadcast").click()
    expect(page.get_by_role("status")).to_have_text("Broadcast deleted.")
    assert not errors


def test_every_page_in_light_and_dark_narrow_and_on_a_phone(page: Page, daemon: Daemon) -> None:
    sign_in(page, daemon)
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["587"]) as relay:
        relay.starttls()
        relay.login("mailsvc", daemon.facts["api_key"])
        relay.sendmail("a@x.example", ["ann@example.com"], f"From: a@{daemon.facts['domain']}\r\nSubject: By SMTP\r\n\r\nHi\r\n")
    daemon.until("/logs?source=smtp", daemon.facts["api_key"], lambda body: bool(body["data"]))
    mail = {"from": f"Acme <a@{daemon.facts['domain']}>", "to": "later@example.com", "subject": "Later", "html": "<p>Hi</p>"}
    later = daemon.call("POST", "/emails", mail | {"scheduled_at": "in 5 hours"}).body["id"]
    bounced = daemon.call("POST", "/emails", mail | {"to": ["bounced@example.com", "ann@example.com"]}).body["id"]
    daemon.until(f"/emails/{bounced}", daemon.facts["api_key"], lambda body: body["last_event"] in ("bounced", "delivered"))
    dashboard, one = "/dashboard", "[0-9a-f-]{36}"
    endpoint = daemon.call("POST", "/webhooks", {"endpoint": f"http://127.0.0.1:9/{'long' * 60}", "events": ["email.sent"]}).body["id"]
    daemon.call("POST", "/domains", {"name": f"{'long' * 15}.{'name' * 15}.example.com"})
    daemon.call("POST", f"/webhooks/{endpoint}/test", {"type": "email.sent"})
    webhook = f"{dashboard}/webhooks/{endpoint}"
    names = [*(path for path, _, _ in NAVIGATION if path), "nothing"]
    settings = [f"settings/{name}" for name in "plan usage smtp profile security security/totp sso data privacy access audit".split()]
    paths = {"home": dashboard} | {name.replace("/", "-"): f"{dashboard}/{name}" for name in (*names, *settings)}
    look_at_all(page, paths | {
        "emails-nothing": f"{dashboard}/emails?q=nothing+of+this",
        "emails-one": f"{dashboard}/emails/{bounced}",
        "emails-one-scheduled": f"{dashboard}/emails/{later}?view=text",
        "emails-one-source": f"{dashboard}/emails/{bounced}?view=source",
        "emails-one-insights": f"{dashboard}/emails/{bounced}?view=insights",
        "emails-export": f"{dashboard}/emails/export",
        "domains-one": first(page, f"{dashboard}/domains", f"{dashboard}/domains/{one}"),
        "logs-one": first(page, f"{dashboard}/logs?source=api", f"{dashboard}/logs/{one}"),
        "logs-session": first(page, f"{dashboard}/logs?source=smtp", f"{dashboard}/logs/{one}"),
        "webhooks-one": webhook,
        "webhooks-event": first(page, webhook, f"{webhook}/events/{one}"),
        "sandbox-one": first(page, f"{dashboard}/sandbox", f"{dashboard}/sandbox/{one}"),
    })  # fmt: skip


def test_the_pages_behind_links_in_emails_are_accessible(page: Page, daemon: Daemon) -> None:
    mail = {"from": f"Acme <a@{daemon.facts['domain']}>", "subject": "News", "text": "Confirm: {{{CONFIRM_URL}}}"}
    topic = {"name": "News", "description": "Once a month.", "default_subscription": "opt_in"}
    about = {"topic_id": daemon.call("POST", "/topics", topic).body["id"], "to": "ann@example.com"}
    unsubscribe = daemon.call("POST", "/emails", mail | about).body["id"]
    segment = daemon.call("POST", "/segments", {"name": "Readers", "double_opt_in": mail | {"subject": "Please confirm"}}).body["id"]
    daemon.call("POST", "/contacts", {"email": "reader@example.com", "segments": [segment]})
    key = daemon.facts["api_key"]
    emails = daemon.until("/emails", key, lambda found: found["data"][0]["subject"] == "Please confirm")["data"]
    sign_in(page, daemon)
    source = page.request.get(f"/dashboard/emails/{unsubscribe}?view=source").text()
    paths = {
        "unsubscribe": re.search(r"/unsubscribe\?token=[\w-]+", source),
        "confirm": re.search(r"/confirm\?token=[\w-]+", daemon.call("GET", f"/emails/{emails[0]['id']}").body["text"]),
    }
    found = {name: path[0] for name, path in paths.items() if path}
    assert len(found) == 2
    look_at_all(page, found | {f"{name}-wrong": f"/{name}?token=x" for name in found})
    daemon.call("PATCH", "/preference-page", {"background_color": "#102030", "accent_color": "#ffcc00"})
    look_at_all(page, {"unsubscribe-dark-background": found["unsubscribe"]})
    page.get_by_role("checkbox", name="News").uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_have_text("Your choice has been saved.")
    page.get_by_role("button", name="Unsubscribe from everything").click()
    shown(page, "unsubscribed")
    page.get_by_role("button", name="Subscribe again").click()
    expect(page.get_by_role("status")).to_have_text("You are subscribed again.")


def test_the_sign_in_pages_are_accessible(page: Page) -> None:
    look_at_all(page, {name: f"/dashboard/{name}" for name in ("sign-in", "sign-up", "reset")})


def test_pages_work_without_javascript(browser: Browser, daemon: Daemon, module_database: str) -> None:
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}", java_script_enabled=False)
    page = context.new_page()
    enter(page, daemon, "plain@acme.example")
    page.get_by_role("button", name="Create API key").click()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator(".copy").first).to_be_hidden()
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    leave(page)
    count(daemon, module_database)
    sign_in(page, daemon)
    page.goto("/dashboard/metrics?days=30")
    expect(page.locator("#numbers tbody tr")).to_have_count(30)
    expect(page.locator("#numbers").get_by_role("columnheader", name="Bounce rate")).to_be_visible()
    expect(page.locator(".plot").first).to_be_hidden()
    context.close()


# Passkeys and identity providers


def device(page: Page) -> Any:
    """Chromium's virtual authenticator, which always verifies the user."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True, "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }  # fmt: skip
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    return session


def shown(page: Page, name: str) -> None:
    """Take screenshots and check accessibility."""
    assert not look_here(page, name)
    page.set_viewport_size({"width": 1280, "height": 900})


def test_an_address_is_changed_by_a_link_to_the_new_one(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "old@acme.example")
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("link", name="Profile", exact=True).click()
    page.get_by_label("New email address").fill("new@acme.example")
    page.get_by_label("Current password").fill("not this one")
    page.get_by_role("button", name="Send confirmation link").click()
    expect(page.locator("#d-password")).to_be_visible()  # shown beside the field
    assert page.get_by_label("New email address").input_value() == "new@acme.example"
    shown(page, "settings-profile-wrong")
    page.get_by_label("Current password").fill(PASSWORD)
    page.get_by_role("button", name="Send confirmation link").click()
    expect(page.get_by_text("We sent a confirmation link to")).to_be_visible()
    shown(page, "settings-profile-requested")
    page.goto(mailed_link(daemon, "new@acme.example", "/dashboard/settings/profile/address/confirm"))
    shown(page, "settings-profile-confirm")
    page.get_by_role("button", name="Change address").click()
    expect(page.get_by_role("status")).to_contain_text("Email address changed.")
    leave(page)
    page.get_by_label("Email").fill("new@acme.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).to_have_url(re.compile("/dashboard$"))


def test_a_passkey_signs_in_is_a_second_factor_and_reauthenticates(page: Page, daemon: Daemon) -> None:
    device(page)
    enter(page, daemon, "key@acme.example")
    page.goto("/dashboard/settings/security")
    page.get_by_role("link", name="Add a passkey").click()
    shown(page, "settings-passkeys-new")
    page.get_by_label("Name").fill("Laptop")
    page.get_by_role("button", name="Add passkey").click()
    expect(page.get_by_role("heading", name="Save your recovery codes")).to_be_visible()
    page.get_by_role("link", name="I’ve saved these codes").click()
    expect(page.get_by_role("textbox", name="Name of passkey Laptop")).to_be_visible()
    shown(page, "settings-security-passkey")
    page.goto("/dashboard/settings/passkeys/new")
    page.get_by_role("button", name="Add passkey").click()
    expect(page.get_by_role("alert")).to_contain_text("already has one of your passkeys")
    leave(page)
    page.goto("/dashboard/keys")
    shown(page, "sign-in-with")
    page.get_by_role("button", name="Sign in with a passkey").click()  # without a password
    expect(page).to_have_url(re.compile("/dashboard/keys$"))
    page.goto("/dashboard/sign-in/again?next=/dashboard/metrics")
    shown(page, "sign-in-again")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page).to_have_url(re.compile("/dashboard/metrics$"))
    leave(page)
    page.get_by_label("Email").fill("key@acme.example")  # after a password
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    shown(page, "sign-in-code")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("navigation", name="Dashboard")).to_be_visible()
    page.goto("/dashboard/settings/security")
    page.locator("summary", has_text="Remove Laptop").click()
    shown(page, "settings-security-question")
    page.get_by_role("button", name="Remove Laptop").click()
    expect(page.get_by_role("status")).to_contain_text("Passkey removed")


@pytest.mark.parametrize("name", ["Google", "GitHub"])
def test_signing_up_and_in_with_a_provider(page: Page, provider: FakeProvider, name: str) -> None:
    provider.person.subject, provider.person.email = ("77", "pat77@gmail.com") if name == "Google" else ("78", "pat78@gmail.com")
    page.goto("/dashboard/sign-in")
    page.get_by_role("button", name=f"Continue with {name}").click()
    page.get_by_role("link", name="Continue as Pat Example").click()
    expect(page.get_by_role("heading", name="Create your account")).to_be_visible()
    assert page.get_by_label("Your name").input_value() == "Pat Example"
    if name == "Google":
        shown(page, "sign-up-finish-with")
    page.get_by_label("Company or project").fill("Acme")
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="Send your first email")).to_be_visible()
    page.goto("/dashboard/settings/security")
    expect(page.locator("summary", has_text="Disconnect")).to_be_visible()
    leave(page)
    page.goto("/dashboard/metrics")
    page.get_by_role("button", name=f"Continue with {name}").click()
    page.get_by_role("link", name="Continue as Pat Example").click()
    expect(page).to_have_url(re.compile("/dashboard/metrics$"))
    page.goto("/dashboard/settings/security")
    page.get_by_role("button", name="Connect GitHub" if name == "Google" else "Connect Google").click()
    if name == "GitHub":  # which does not report when the user signed in
        expect(page.get_by_role("link", name="Set a password")).to_be_visible()
        page.goto("/dashboard/settings/security")
    else:
        page.get_by_role("button", name="Continue with Google").click()
        page.get_by_role("link", name="Continue as Pat Example").click()
        page.get_by_role("button", name="Connect GitHub").click()
        page.get_by_role("link", name="Continue as Pat Example").click()
        expect(page.get_by_role("status")).to_contain_text("Connected")
    leave(page)


def test_single_sign_on_is_set_up_required_and_used(page: Page, daemon: Daemon, provider: FakeProvider) -> None:
    ann, domain = "ann@sso.acme-example.com", "sso.acme-example.com"
    enter(page, daemon, ann, "Single")
    page.goto("/dashboard/domains")
    page.get_by_role("textbox", name="Domain").fill(domain)
    page.get_by_role("button", name="Add domain").click()
    expect(page.get_by_role("heading", name="DNS records")).to_be_visible()
    daemon.command("domain", "trust", domain, "--account", "Single")
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("link", name="Single sign-on").click()
    shown(page, "sso-off")
    page.get_by_label("Issuer URL").fill("https://127.0.0.1:1")
    page.get_by_label("Client ID").fill(CLIENT)
    page.get_by_label("Client secret").fill(SECRET)
    page.get_by_label("Email domains").fill("elsewhere.example")
    page.get_by_role("button", name="Set up single sign-on").click()
    expect(page.locator("#d-issuer")).to_contain_text("can’t be used")
    page.get_by_label("Issuer URL").fill(provider.url)
    page.get_by_label("Client secret").fill(SECRET)
    page.get_by_role("button", name="Set up single sign-on").click()
    expect(page.locator("#d-domains")).to_contain_text("is not a verified domain of this account")
    shown(page, "sso-wrong")
    page.get_by_label("Email domains").fill(domain)
    page.get_by_label("Client secret").fill(SECRET)
    page.get_by_role("button", name="Set up single sign-on").click()
    expect(page.get_by_role("status")).to_contain_text("Sign in with your provider")
    shown(page, "sso-optional")
    provider.person = Someone("900", ann, name="Ann Example")
    page.get_by_role("button", name="Sign in with single sign-on").click()
    page.get_by_role("link", name="Continue as Ann Example").click()
    expect(page.get_by_role("button", name="Require single sign-on")).to_be_visible()
    shown(page, "sso-ready")
    page.get_by_role("button", name="Require single sign-on").click()
    expect(page.get_by_text("Required", exact=True)).to_be_visible()
    shown(page, "sso-required")
    leave(page)
    page.get_by_label("Email").fill(ann)
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("uses single sign-on")
    shown(page, "sso-sign-in")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("heading", name="Use single sign-on")).to_be_visible()
    shown(page, "sso-refused")
    page.get_by_role("link", name="Sign in as a different user").click()
    page.get_by_label("Email").fill(ann)
    page.get_by_role("button", name="Continue with single sign-on").click()  # without a password
    page.get_by_role("link", name="Continue as Ann Example").click()
    expect(page.get_by_role("heading", name="Send your first email")).to_be_visible()
    provider.person, found = Someone(), daemon.command("account", "sso", "Single", "--off")
    assert "optional for sso.acme-example.com" in found
