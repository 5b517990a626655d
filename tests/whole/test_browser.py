"""The dashboard in a browser: the way from signing up to a delivered mail, every page in light, dark and on a phone, and axe on each.

Needs Chromium (`apt-get install chromium`); without it these tests are skipped, but never where
MAILSVC_TEST_CHROMIUM is "required", as it is in .ci/run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyotp
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.dashboard.provider import CLIENT, SECRET, FakeProvider
from tests.whole.rig import PROJECT, Daemon, free_port
from tests.whole.visitor import mailed_link

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    " --disable-sync"
)
SCREENS = PROJECT / "var/screens"
PASSWORD = "seven quiet green lamps"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("MAILSVC_TEST_CHROMIUM") != "required",
        reason="There is no Chromium here; Debian has a package of that name.",
    ),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    provider = FakeProvider().start()
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, provider: FakeProvider) -> Iterator[Daemon]:
    """At a name, as passkeys need one, and with a Google and a GitHub to sign in at."""
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
    }  # fmt: skip
    daemon = Daemon(folder, module_database, changes, here)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI has no Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, daemon: Daemon) -> Iterator[Page]:
    """A browser of its own; what goes wrong in a page fails the test."""
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(10_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.on("response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None)
    yield page
    context.close()
    assert not wrong


def enter(page: Page, daemon: Daemon, address: str) -> None:
    """Sign up with a link from a mail."""
    page.goto("/dashboard/sign-up")
    page.get_by_label("Email").fill(address)
    page.get_by_role("button", name="Send the link").click()
    expect(page.get_by_role("heading", name="Look into your inbox")).to_be_visible()
    page.goto(mailed_link(daemon, address, "/dashboard/sign-up/finish"))
    page.get_by_label("Your name").fill("Ann Example")
    page.get_by_label("Company or project").fill("Acme")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="Send your first email")).to_be_visible()


def test_from_signing_up_to_a_second_factor(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "ann@acme.example")
    page.get_by_role("button", name="Create a key").click()
    expect(page.locator("#key")).to_have_text(re.compile("^ms_"))
    assert page.locator("#key").inner_text() in page.locator("#code-1").inner_text()
    page.get_by_role("link", name="Add a domain").click()
    domain = page.get_by_role("textbox", name="Domain")
    domain.fill("acme.invalid")
    page.get_by_role("button", name="Add domain").click()
    expect(page.locator("#d-name")).to_be_visible()  # said beside the field
    assert domain.input_value() == "acme.invalid"
    domain.fill("mail.acme-example.com")
    page.get_by_role("button", name="Add domain").click()
    expect(page.get_by_role("heading", name="Records to publish")).to_be_visible()
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("link", name="Your sign-in").click()
    page.get_by_role("link", name="Set up an authenticator app").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_label("Code").fill(pyotp.TOTP(secret).now())
    page.get_by_role("button", name="Switch on").click()
    code = page.locator("#codes li").first.inner_text()
    page.get_by_role("button", name="Sign out").click()
    page.goto("/dashboard/keys")
    page.get_by_label("Email").fill("ann@acme.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Go on").click()
    expect(page).to_have_url(re.compile("/dashboard/keys$"))  # back where they wanted to be


def test_a_mail_is_followed_until_it_is_delivered(page: Page, daemon: Daemon) -> None:
    page.goto(daemon.facts["sign_in"][len(daemon.facts["http"]) :])
    page.get_by_role("button", name="Sign in").click()
    html = '<html lang="en"><body><p>Hello</p><script>document.title="owned";parent.location="/x"</script>'
    html += f'<img src="http://127.0.0.1:{daemon.port}/healthz?tracked"></body></html>'
    mail = {
        "from": f"Acme <a@{daemon.facts['domain']}>",
        "to": ["delayed@example.com", "ann@example.com"],
        "subject": "Hello",
        "html": html,
    }
    email_id = daemon.call("POST", "/emails", mail).body["id"]
    asked: list[str] = []
    page.on("response", lambda answer: asked.append(answer.url))
    page.goto(f"/dashboard/emails/{email_id}")
    expect(page.locator("#live .badge").filter(has_text="Delivered")).to_have_count(3, timeout=30_000)  # by itself
    assert page.locator("summary").count() >= 4
    page.locator("summary").first.click()
    expect(page.locator("details pre").first).to_contain_text("MAIL FROM")
    frame = page.frame_locator("iframe.preview")
    expect(frame.get_by_text("Hello")).to_be_visible()
    assert not [url for url in asked if "tracked" in url]
    assert page.title() == "Hello · mailsvc"
    for view in ("Text", "Source", "Insights"):
        page.get_by_role("link", name=view).click()
        expect(page.get_by_role("link", name=view)).to_have_attribute("aria-current", "page")
    screens(page, daemon, email_id)


PAGES = ("", *"emails domains keys metrics logs webhooks suppressions sandbox settings settings/security settings/audit nothing".split())


def screens(page: Page, daemon: Daemon, email_id: str) -> None:
    """Every page in light, dark and on a phone: a picture, axe, nothing wider than the screen, and not too heavy."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    domain = page.request.get("/dashboard/domains").text().partition("/dashboard/domains/")[2][:36]
    shown = [*PAGES, f"emails/{email_id}", f"emails/{email_id}?view=insights", f"domains/{domain}", "settings/security/totp"]
    for kind, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 390)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 844})
        for path in shown:
            answer: Any = page.goto(f"/dashboard/{path}" if path else "/dashboard")
            assert len(answer.body()) < 100_000, path
            name = path.replace(email_id, "one").replace(domain, "one").replace("/", "-").replace("?view=", "-") or "home"
            page.screenshot(path=SCREENS / f"{name}-{kind}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, kind)
            if kind == "phone":
                continue  # the same elements
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            serious = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
            assert not serious, (path, kind, serious)


def test_the_gate_is_accessible_too(page: Page) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    for path in ("sign-in", "sign-up", "reset"):
        page.goto(f"/dashboard/{path}")
        page.screenshot(path=SCREENS / f"{path}.png")
        found = Axe().run(page).response["violations"]
        assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")], path


def test_pages_work_without_javascript(browser: Browser, daemon: Daemon) -> None:
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}", java_script_enabled=False)
    page = context.new_page()
    enter(page, daemon, "plain@acme.example")
    page.get_by_role("button", name="Create a key").click()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator(".copy").first).to_be_hidden()
    page.get_by_role("button", name="Dark colours").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    context.close()


# Passkeys, and other services to sign in at


def device(page: Page) -> Any:
    """A device with a passkey reader, as Chromium plays it; always its owner's finger."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True, "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }  # fmt: skip
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    return session


def shown(page: Page, name: str) -> None:
    """A picture of this page in light, dark and on a phone, and axe on it."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    for kind, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 390)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 844})
        page.screenshot(path=SCREENS / f"{name}-{kind}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, kind)
        if kind != "phone":
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            serious = [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
            assert not serious, (name, kind, serious)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_passkey_is_a_second_factor_a_way_in_and_a_proof(page: Page, daemon: Daemon) -> None:
    device(page)
    enter(page, daemon, "key@acme.example")
    page.goto("/dashboard/settings/security")
    page.get_by_role("link", name="Add a passkey").click()
    shown(page, "settings-passkeys-new")
    page.get_by_label("Name").fill("Laptop")
    page.get_by_role("button", name="Add passkey").click()
    expect(page.get_by_role("heading", name="Your recovery codes")).to_be_visible()
    page.get_by_role("link", name="I have kept them").click()
    expect(page.get_by_role("textbox", name="Name of the passkey Laptop")).to_be_visible()
    shown(page, "settings-security-passkey")
    page.goto("/dashboard/settings/passkeys/new")
    page.get_by_role("button", name="Add passkey").click()
    expect(page.get_by_role("alert")).to_contain_text("has a passkey of yours already")
    page.get_by_role("button", name="Sign out").click()
    page.goto("/dashboard/keys")
    shown(page, "sign-in-with")
    page.get_by_role("button", name="Sign in with a passkey").click()  # alone
    expect(page).to_have_url(re.compile("/dashboard/keys$"))
    page.goto("/dashboard/sign-in/again?next=/dashboard/metrics")
    shown(page, "sign-in-again")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page).to_have_url(re.compile("/dashboard/metrics$"))
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Email").fill("key@acme.example")  # after a password
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    shown(page, "sign-in-code")
    page.get_by_role("button", name="Use a passkey").click()
    page.goto("/dashboard/settings/security")
    page.get_by_role("button", name="Remove Laptop").click()
    expect(page.get_by_role("status")).to_contain_text("The passkey is removed")


@pytest.mark.parametrize("name", ["Google", "GitHub"])
def test_somebody_signs_up_and_in_at_another_service(page: Page, provider: FakeProvider, name: str) -> None:
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
    expect(page.get_by_role("button", name="Disconnect")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.goto("/dashboard/metrics")
    page.get_by_role("button", name=f"Continue with {name}").click()
    page.get_by_role("link", name="Continue as Pat Example").click()
    expect(page).to_have_url(re.compile("/dashboard/metrics$"))
    page.goto("/dashboard/settings/security")
    page.get_by_role("button", name="Connect GitHub" if name == "Google" else "Connect Google").click()
    page.get_by_role("link", name="Continue as Pat Example").click()
    expect(page.get_by_role("status")).to_contain_text("Connected")
    page.get_by_role("button", name="Sign out").click()
