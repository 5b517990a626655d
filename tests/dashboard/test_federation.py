"""Signing in with identity providers, against a fake one: protocols, rejected responses, connecting identities to users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest
import pytest_twisted
from joserfc import jwk

from mailsvc.clock import utc
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.providers import ProviderError, providers_of
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import Rules
from mailsvc.settings.identity_providers import SignIn
from mailsvc.settings.reader import SettingsError
from mailsvc.store.people.users import NewUser
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig, Loopback, Response, session
from tests.dashboard.provider import CLIENT, SECRET, FakeProvider, Someone

SECURITY = "/dashboard/settings/security"
KEY = jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    fake = FakeProvider(signs_with=KEY).start()
    yield fake
    fake.stop()


def settings(fake: FakeProvider, folder: Path) -> SignIn:
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    return SignIn(
        google_client=CLIENT, google_secret=secret, google_issuer=fake.url,
        github_client=CLIENT, github_secret=secret, github_url=fake.url, github_api=fake.url,
    )  # fmt: skip


@pytest.fixture
def rig(pool: Pool, fake: FakeProvider, tmp_path: Path) -> DashboardRig:
    rig = DashboardRig(pool)
    fetcher = Fetcher(pool.reactor, Loopback(), Rules())
    rig.providers = providers_of(settings(fake, tmp_path), fetcher, rig.clock.seconds)
    rig.assembly.providers = rig.providers
    rig.pages = rig.assembly.resource()
    fake.clock = rig.clock.seconds
    return rig


async def there(browser: Browser, fake: FakeProvider, name: str, why: str = "", next_: str = "/dashboard/keys") -> str:
    """Go to the provider; returns the callback path."""
    leaving = await browser.post(f"/dashboard/sign-in/with/{name}", {"why": why, "next": next_})
    to = leaving.found(r'http-equiv="refresh" content="0; url=([^"]+)"')
    query = {name: values[0] for name, values in parse_qs(urlsplit(to).query).items()}
    assert to.startswith(f"{fake.url}/") and query["redirect_uri"] == f"http://localhost:8025/dashboard/sign-in/with/{name}/back"
    assert query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43 and len(query["state"]) > 60
    return fake.answer_to(query).removeprefix("http://localhost:8025")


async def through(browser: Browser, fake: FakeProvider, name: str, why: str = "", next_: str = "/dashboard/keys") -> Response:
    await browser.get(SECURITY if why else "/dashboard/sign-in")
    return await browser.get(await there(browser, fake, name, why, next_))


async def signed_up(rig: DashboardRig, fake: FakeProvider, name: str) -> Browser:
    browser = rig.browser()
    page = await through(browser, fake, name)
    assert (await browser.get(page.location)).status == 200, page.text
    shown = await browser.post("/dashboard/sign-up/finish", {"ticket": page.query["ticket"], "name": "Pat", "account": "Acme"})
    assert shown.location == "/dashboard", shown.text
    return browser


@pytest.mark.parametrize("name", ["google", "github"])
@pytest_twisted.ensureDeferred
async def test_a_new_user_signs_up_and_signs_in_again(rig: DashboardRig, fake: FakeProvider, name: str) -> None:
    first = await signed_up(rig, fake, name)
    page = await first.get("/dashboard/settings")
    assert "pat@gmail.com" in page.text
    fake.person = attrs.evolve(fake.person, email="new@gmail.com", name="Other")  # the subject identifies the user
    again = rig.browser()
    assert (await through(again, fake, name)).location == "/dashboard/keys"
    assert "pat@gmail.com" in (await again.get("/dashboard/settings")).text
    assert await rig.pool.rows("SELECT ramp, trusted_at FROM accounts WHERE name = 'Acme'") == [(10_000, None)]  # a new account's limit
    [form, _] = fake.exchanged
    assert form["client_secret"] == SECRET and 43 <= len(form["code_verifier"]) <= 128
    rows = await rig.pool.rows("SELECT provider, subject, used_at IS NOT NULL FROM identities")
    assert rows == [(name, "1111", True)]


@pytest_twisted.ensureDeferred
async def test_a_ticket_creates_one_user_and_stays_valid_while_it_has_not(rig: DashboardRig, fake: FakeProvider) -> None:
    browser = rig.browser()
    page = await through(browser, fake, "google")
    await browser.get(page.location)
    form = {"ticket": page.query["ticket"], "name": "Pat", "account": "Acme"}
    await rig.pool.run("ALTER TABLE accounts RENAME TO away")
    assert (await browser.post("/dashboard/sign-up/finish", form)).status >= 500
    await rig.pool.run("ALTER TABLE away RENAME TO accounts")
    assert (await browser.post("/dashboard/sign-up/finish", form)).location == "/dashboard"
    other = NewUser("Other", None, None, ticket=(page.query["ticket"], utc(rig.clock)))
    assert await rig.assembly.sessions.sign_up(None, "other@example.com", other, "Other", None, lambda *_: pytest.fail("two users")) is None
    assert await rig.pool.rows("SELECT count(*) FROM accounts") == [(1,)]


@pytest.mark.parametrize("name", ["google", "github"])
@pytest_twisted.ensureDeferred
async def test_an_equal_email_address_connects_no_identity(rig: DashboardRig, fake: FakeProvider, name: str) -> None:
    await rig.person("pat@gmail.com")
    browser = rig.browser()
    shown = await through(browser, fake, name)
    assert shown.status == 403 and "Sign in as before" in shown.text and session(browser) == ""
    fake.person = attrs.evolve(fake.person, email_verified=False)
    shown = await through(browser, fake, name)
    assert shown.status == 403 and "hasn’t verified your email" in shown.text and "pat@gmail.com" not in shown.text
    assert await rig.pool.rows("SELECT count(*) FROM identities") == [(0,)]


@pytest.mark.parametrize(("email", "hd", "sure"), [("a@example.com", None, False), ("a@example.com", "example.com", True)])
@pytest_twisted.ensureDeferred
async def test_google_addresses_are_verified_for_gmail_and_workspaces_only(
    rig: DashboardRig, fake: FakeProvider, email: str, hd: str | None, sure: bool
) -> None:
    fake.person = Someone(email=email, hd=hd)
    assert (await through(rig.browser(), fake, "google")).status == (303 if sure else 403)


@pytest_twisted.ensureDeferred
async def test_a_signed_in_user_connects_and_disconnects_with_a_notice(rig: DashboardRig, fake: FakeProvider) -> None:
    fake.person = Someone(email="private@example.net", email_verified=False)
    await rig.person("ann@example.com")
    await rig.person("bob@example.com")
    ann, bob = await rig.inside("ann@example.com"), await rig.inside("bob@example.com")
    assert (await through(ann, fake, "github", "connect")).location == f"{SECURITY}?done=connected"
    assert rig.mailer.subjects("ann@example.com") == ["Your sign-in with GitHub as pat was connected"]
    assert (await through(bob, fake, "github", "connect")).location == f"{SECURITY}?done=taken"
    assert (await through(rig.browser(), fake, "github")).location == "/dashboard/keys"
    identity = (await ann.get(SECURITY)).found(r"/dashboard/settings/identities/([0-9a-f-]{36})/remove")
    await bob.get(SECURITY)
    assert (await bob.post(f"/dashboard/settings/identities/{identity}/remove")).status == 404
    assert (await ann.post(f"/dashboard/settings/identities/{identity}/remove")).location == f"{SECURITY}?done=disconnected"
    assert (await through(rig.browser(), fake, "github")).status == 403
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    await ann.get(SECURITY)
    shown = await ann.post("/dashboard/sign-in/with/github", {"why": "connect"})
    assert shown.location.startswith("/dashboard/sign-in/again")


@pytest_twisted.ensureDeferred
async def test_a_provider_reauthenticates_and_the_only_way_to_sign_in_cannot_be_removed(rig: DashboardRig, fake: FakeProvider) -> None:
    pat = await signed_up(rig, fake, "google")
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    new = "/dashboard/settings/passkeys/new"
    assert (await pat.get(new)).location.startswith("/dashboard/sign-in/again")
    page = await pat.get(f"/dashboard/sign-in/again?next={new}")
    assert "Continue with Google" in page.text and "password" not in page.text.lower().replace("no password", "")
    person, fake.person = fake.person, Someone(subject="2222")
    assert (await pat.get(await there(pat, fake, "google", "again", new))).status == 403
    fake.person = person
    await pat.get(f"/dashboard/sign-in/again?next={new}")
    assert (await pat.get(await there(pat, fake, "google", "again", new))).location == new
    assert (await pat.get(new)).status == 200
    identity = (await pat.get(SECURITY)).found(r"/dashboard/settings/identities/([0-9a-f-]{36})/remove")
    assert (await pat.post(f"/dashboard/settings/identities/{identity}/remove")).location.endswith("done=only")
    assert await rig.pool.rows("SELECT count(*) FROM identities") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_provider_sign_in_still_requires_the_second_factor(rig: DashboardRig, fake: FakeProvider) -> None:
    await signed_up(rig, fake, "google")
    await rig.pool.run("UPDATE users SET totp_at = now()")
    assert (await through(rig.browser(), fake, "google")).location == "/dashboard/sign-in/code?next=%2Fdashboard%2Fkeys"


@pytest_twisted.ensureDeferred
async def test_an_invitation_is_accepted_with_a_provider(rig: DashboardRig, fake: FakeProvider) -> None:
    fake.person = Someone(email="private@example.net", email_verified=False)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/settings")
    await ann.post("/dashboard/settings/invite", {"email": "new@example.com", "role": "developer"})
    path = rig.mailer.link("new@example.com")
    new = rig.browser()
    page = await new.get(path)
    assert "Continue with GitHub" in page.text
    back = await new.get(await there(new, fake, "github", "", path))
    assert back.location.startswith("/dashboard/invitation?link=") and back.query["ticket"]
    page = await new.get(back.location)
    assert 'name="password"' not in page.text and "new@example.com" in page.text
    thief = rig.browser()
    assert (await thief.get(back.location)).status == 410  # a ticket belongs to one browser
    await new.get(back.location)
    assert (await new.post("/dashboard/invitation", {**back.query, "name": "New"})).location == "/dashboard"
    assert ("invitation accepted", "developer") in await rig.audit(account_id)
    assert (await through(rig.browser(), fake, "github")).location == "/dashboard/keys"
    # An existing user gets no second way to sign in from it.
    await ann.get("/dashboard/settings")
    other = await rig.account("Other")
    await rig.assembly.sessions.make_link("invite", "ann@example.com", REAUTHENTICATION_LIFETIME, other, "developer")
    assert (await new.get(back.location)).status == 410


@pytest_twisted.ensureDeferred
async def test_a_provider_does_not_sign_up_users_where_sign_up_is_off(rig: DashboardRig, fake: FakeProvider) -> None:
    rig.assembly.sign_up = False
    rig.pages = rig.assembly.resource()
    shown = await through(rig.browser(), fake, "google")
    assert shown.status == 403 and "Ask an account admin" in shown.text


def changed(**claims: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda token: {name: value for name, value in (token | claims).items() if value is not None}


# Reauthentication

PASSKEYS_NEW = "/dashboard/settings/passkeys/new"


@pytest_twisted.ensureDeferred
async def test_an_old_session_at_the_provider_does_not_reauthenticate(rig: DashboardRig, fake: FakeProvider) -> None:
    """Neither does signing out and in again, since the provider asks nothing of a known browser."""
    for name in ("google", "github"):
        fake.person = Someone(subject={"google": "1", "github": "2"}[name], email=f"{name}@gmail.com")
        assert (await (await signed_up(rig, fake, name)).get(PASSKEYS_NEW)).status == 200  # a new user has just proved their identity
        again = rig.browser()
        assert (await through(again, fake, name)).location == "/dashboard/keys"
        assert (await again.get(PASSKEYS_NEW)).location.startswith("/dashboard/sign-in/again")


@pytest_twisted.ensureDeferred
async def test_reauthentication_checks_when_the_user_signed_in_at_the_provider(rig: DashboardRig, fake: FakeProvider) -> None:
    await signed_up(rig, fake, "google")
    pat = rig.browser()
    await through(pat, fake, "google")
    fake.asks_again = False  # it ignores max_age, as Google does
    for signed_in_at, status in (
        (0, 403),
        (rig.clock.seconds() - REAUTHENTICATION_LIFETIME.total_seconds() - 5, 403),
        (rig.clock.seconds() - 60, 303),
    ):
        fake.signed_in_at = int(signed_in_at)
        await pat.get(f"/dashboard/sign-in/again?next={PASSKEYS_NEW}")
        assert (await pat.get(await there(pat, fake, "google", "again", PASSKEYS_NEW))).status == status
    assert (await pat.get(PASSKEYS_NEW)).status == 200
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() - 30)  # counted from the sign-in at the provider
    assert (await pat.get(PASSKEYS_NEW)).location.startswith("/dashboard/sign-in/again")
    for lie in (changed(auth_time=None), changed(auth_time="now"), changed(auth_time=int(rig.clock.seconds()) + 3600)):
        fake.lie = lie
        await pat.get("/dashboard/sign-in/again")
        shown = await pat.get(await there(pat, fake, "google", "again"))
        assert shown.status == 403 and "didn’t confirm that you just signed in there" in shown.text


@pytest.mark.parametrize("supported", [[], ["login", "consent"]])
@pytest_twisted.ensureDeferred
async def test_reauthentication_requests_a_new_sign_in_from_the_provider(
    rig: DashboardRig, fake: FakeProvider, supported: list[str]
) -> None:
    fake.discovery = {"prompt_values_supported": supported}
    pat = await signed_up(rig, fake, "google")
    await pat.get("/dashboard/sign-in/again")
    leaving = await pat.post("/dashboard/sign-in/with/google", {"why": "again"})
    query = parse_qs(urlsplit(leaving.found(r'http-equiv="refresh" content="0; url=([^"]+)"')).query)
    assert query["max_age"] == ["0"] and query["claims"] == ['{"id_token":{"auth_time":{"essential":true}}}']
    assert query["prompt"] == ["login" if supported else "select_account"]  # an unknown value is an error at Google


@pytest_twisted.ensureDeferred
async def test_github_does_not_reauthenticate(rig: DashboardRig, fake: FakeProvider) -> None:
    await signed_up(rig, fake, "github")
    pat = rig.browser()
    await through(pat, fake, "github")
    page = await pat.get("/dashboard/sign-in/again")
    assert "Continue with GitHub" not in page.text and "Set a password" in page.text
    assert (await pat.post("/dashboard/sign-in/with/github", {"why": "again"})).status == 403
    # A password set with an emailed link reauthenticates.
    await pat.get("/dashboard/reset")
    await pat.post("/dashboard/reset", {"email": "pat@gmail.com"})
    await rig.settled()
    link = rig.mailer.link("pat@gmail.com")
    await pat.get(link)
    await pat.post("/dashboard/reset/finish", {"link": link.partition("link=")[2], "password": "four quite unrelated words"})
    assert (await pat.get(PASSKEYS_NEW)).status == 200


# Rejected responses


@pytest_twisted.ensureDeferred
async def test_a_state_is_valid_once_in_its_browser_for_its_provider_for_ten_minutes(rig: DashboardRig, fake: FakeProvider) -> None:
    browser, thief = rig.browser(), rig.browser()
    await browser.get("/dashboard/sign-in")
    await thief.get("/dashboard/sign-in")
    back = await there(browser, fake, "google")
    assert (await thief.get(back)).status == 400  # a sign-in cannot be forced on another browser
    assert (await browser.get(back.replace("/with/google/", "/with/github/"))).status == 400
    assert (await browser.get(back.replace("state=", "state=x"))).status == 400
    assert (await browser.get(back)).status == 303
    assert (await browser.get(back)).status == 400
    late = await there(browser, fake, "google")
    rig.clock.advance(601)
    assert (await browser.get(late)).status == 400
    assert (await browser.get("/dashboard/sign-in/with/google/back")).status == 400
    assert (await browser.get("/dashboard/sign-in/with/nobody/back?state=x")).status == 404
    assert len(fake.exchanged) == 1


@pytest_twisted.ensureDeferred
async def test_a_refusal_at_the_provider_is_shown(rig: DashboardRig, fake: FakeProvider) -> None:
    fake.denies = True
    shown = await through(rig.browser(), fake, "google")
    assert shown.status == 403 and "didn’t confirm" in shown.text and not fake.exchanged


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another issuer": changed(iss="https://evil.example"),
    "another client": changed(aud="another-client"),
    "several clients": lambda token: token | {"aud": [token["aud"], "another"]},
    "made for another": changed(azp="another-client"),
    "too old": lambda token: token | {"exp": token["iat"] - 61},
    "no end": changed(exp=None),
    "another sign-in": changed(nonce="x" * 43),
    "no nonce": changed(nonce=None),
    "of the future": lambda token: token | {"iat": token["iat"] + 3600},
    "nobody": changed(sub=None),
}


@pytest_twisted.ensureDeferred
async def test_an_id_token_with_a_wrong_claim_is_rejected(rig: DashboardRig, fake: FakeProvider) -> None:
    for what, lie in LIES.items():
        fake.lie = lie
        browser = rig.browser()
        shown = await through(browser, fake, "google")
        assert shown.status == 502 and "couldn’t be verified" in shown.text, what
        assert session(browser) == ""


@pytest_twisted.ensureDeferred
async def test_id_tokens_are_verified_with_the_issuers_current_keys(rig: DashboardRig, fake: FakeProvider) -> None:
    assert (await through(rig.browser(), fake, "google")).status == 303
    fake.signs_with = jwk.RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    assert (await through(rig.browser(), fake, "google")).status == 502  # not published
    fake.publishes = [fake.signs_with]
    assert (await through(rig.browser(), fake, "google")).status == 502  # and not fetched each time
    rig.clock.advance(61)
    assert (await through(rig.browser(), fake, "google")).status == 303
    fake.signs_with = jwk.RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    assert (await through(rig.browser(), fake, "google")).status == 502  # the right name, the wrong key


@pytest_twisted.ensureDeferred
async def test_a_response_from_another_issuer_is_rejected(rig: DashboardRig, fake: FakeProvider) -> None:
    browser = rig.browser()
    await browser.get("/dashboard/sign-in")
    back = await there(browser, fake, "google")
    assert (await browser.get(f"{back}&iss=https%3A%2F%2Fevil.example")).status == 502
    assert not fake.exchanged
    fake.discovery = {"authorization_response_iss_parameter_supported": True}
    rig.clock.advance(3601)
    await browser.get("/dashboard/sign-in")
    assert (await browser.get(await there(browser, fake, "google"))).status == 502
    await browser.get("/dashboard/sign-in")
    assert (await browser.get(f"{await there(browser, fake, 'google')}&iss={fake.url}")).status == 303


@pytest_twisted.ensureDeferred
async def test_an_unreachable_or_wrong_provider_shows_an_error(rig: DashboardRig, fake: FakeProvider) -> None:
    browser = rig.browser()
    await browser.get("/dashboard/sign-in")
    fake.discovery = {"issuer": "https://evil.example"}
    assert (await browser.post("/dashboard/sign-in/with/google")).status == 502
    fake.discovery = {}
    back = await there(browser, fake, "google")
    fake.stop()
    shown = await browser.get(back)
    assert shown.status == 502 and "isn’t responding" in shown.text
    fake.start()


def test_a_client_id_requires_a_client_secret(tmp_path: Path) -> None:
    fetcher = Fetcher(None, Loopback(), Rules())
    (tmp_path / "empty").write_text("\n")
    for path, message in ((None, "is missing"), (tmp_path / "none", "cannot be read"), (tmp_path / "empty", "is empty")):
        with pytest.raises(SettingsError, match=message):
            providers_of(SignIn(github_client="x", github_secret=path), fetcher, time.time)
    assert providers_of(SignIn(), fetcher, time.time) == {}


def test_a_provider_error_keeps_details_out_of_its_message() -> None:
    error = ProviderError("Sentence.", "detail")
    assert str(error) == "Sentence." and error.detail == "detail"
