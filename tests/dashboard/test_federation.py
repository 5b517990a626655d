"""Signing in at other services, against a fake of them on loopback: the protocols, what is not believed, and who is connected to whom."""

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

from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.providers import ProviderError, providers_of
from mailsvc.net.dns import Records
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import Rules
from mailsvc.settings.identity_providers import SignIn
from mailsvc.settings.reader import SettingsError
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, House, Shown, session
from tests.dashboard.provider import CLIENT, SECRET, FakeProvider, Someone

SECURITY = "/dashboard/settings/security"
KEY = jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})


class Loopback:
    """A resolver for addresses alone."""

    async def addresses(self, host: str) -> Records[str]:
        return Records(host, (host,))


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
def house(pool: Pool, fake: FakeProvider, tmp_path: Path) -> House:
    house = House(pool)
    fetcher = Fetcher(pool.reactor, Loopback(), Rules())
    house.providers = providers_of(settings(fake, tmp_path), fetcher, house.clock.seconds)
    house.assembly.providers = house.providers
    house.pages = house.assembly.resource()
    fake.clock = house.clock.seconds
    return house


async def there(browser: Browser, fake: FakeProvider, name: str, why: str = "", next_: str = "/dashboard/keys") -> str:
    """To the provider, which sends the browser back; where to."""
    leaving = await browser.post(f"/dashboard/sign-in/with/{name}", {"why": why, "next": next_})
    to = leaving.found(r'http-equiv="refresh" content="0; url=([^"]+)"')
    query = {name: values[0] for name, values in parse_qs(urlsplit(to).query).items()}
    assert to.startswith(f"{fake.url}/") and query["redirect_uri"] == f"http://localhost:8025/dashboard/sign-in/with/{name}/back"
    assert query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43 and len(query["state"]) > 60
    return fake.answer_to(query).removeprefix("http://localhost:8025")


async def through(browser: Browser, fake: FakeProvider, name: str, why: str = "", next_: str = "/dashboard/keys") -> Shown:
    await browser.get(SECURITY if why else "/dashboard/sign-in")
    return await browser.get(await there(browser, fake, name, why, next_))


async def signed_up(house: House, fake: FakeProvider, name: str) -> Browser:
    browser = house.browser()
    page = await through(browser, fake, name)
    assert (await browser.get(page.location)).status == 200, page.text
    shown = await browser.post("/dashboard/sign-up/finish", {"ticket": page.query["ticket"], "name": "Pat", "account": "Acme"})
    assert shown.location == "/dashboard", shown.text
    return browser


@pytest.mark.parametrize("name", ["google", "github"])
@pytest_twisted.ensureDeferred
async def test_somebody_new_signs_up_and_comes_back_as_the_same(house: House, fake: FakeProvider, name: str) -> None:
    first = await signed_up(house, fake, name)
    page = await first.get("/dashboard/settings")
    assert "pat@gmail.com" in page.text
    fake.person = attrs.evolve(fake.person, email="new@gmail.com", name="Other")  # the subject is what counts
    again = house.browser()
    assert (await through(again, fake, name)).location == "/dashboard/keys"
    assert "pat@gmail.com" in (await again.get("/dashboard/settings")).text
    [form, _] = fake.exchanged
    assert form["client_secret"] == SECRET and 43 <= len(form["code_verifier"]) <= 128
    rows = await house.pool.rows("SELECT provider, subject, used_at IS NOT NULL FROM identities")
    assert rows == [(name, "1111", True)]


@pytest.mark.parametrize("name", ["google", "github"])
@pytest_twisted.ensureDeferred
async def test_an_equal_address_connects_nobody(house: House, fake: FakeProvider, name: str) -> None:
    await house.person("pat@gmail.com")
    browser = house.browser()
    shown = await through(browser, fake, name)
    assert shown.status == 403 and "Sign in as before" in shown.text and session(browser) == ""
    fake.person = attrs.evolve(fake.person, email_verified=False)
    shown = await through(browser, fake, name)
    assert shown.status == 403 and "hasn’t verified your email" in shown.text and "pat@gmail.com" not in shown.text
    assert await house.pool.rows("SELECT count(*) FROM identities") == [(0,)]


@pytest.mark.parametrize(("email", "hd", "sure"), [("a@example.com", None, False), ("a@example.com", "example.com", True)])
@pytest_twisted.ensureDeferred
async def test_google_vouches_for_its_own_mail_and_for_workspaces(
    house: House, fake: FakeProvider, email: str, hd: str | None, sure: bool
) -> None:
    fake.person = Someone(email=email, hd=hd)
    assert (await through(house.browser(), fake, "google")).status == (303 if sure else 403)


@pytest_twisted.ensureDeferred
async def test_who_is_signed_in_connects_disconnects_and_is_told(house: House, fake: FakeProvider) -> None:
    fake.person = Someone(email="private@example.net", email_verified=False)
    await house.person("ann@example.com")
    await house.person("bob@example.com")
    ann, bob = await house.inside("ann@example.com"), await house.inside("bob@example.com")
    assert (await through(ann, fake, "github", "connect")).location == f"{SECURITY}?done=connected"
    assert house.mailer.subjects("ann@example.com") == ["Your sign-in with GitHub as pat was connected"]
    assert (await through(bob, fake, "github", "connect")).location == f"{SECURITY}?done=taken"
    assert (await through(house.browser(), fake, "github")).location == "/dashboard/keys"
    identity = (await ann.get(SECURITY)).found(r"/dashboard/settings/identities/([0-9a-f-]{36})/remove")
    await bob.get(SECURITY)
    assert (await bob.post(f"/dashboard/settings/identities/{identity}/remove")).status == 404
    assert (await ann.post(f"/dashboard/settings/identities/{identity}/remove")).location == f"{SECURITY}?done=disconnected"
    assert (await through(house.browser(), fake, "github")).status == 403
    house.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    await ann.get(SECURITY)
    shown = await ann.post("/dashboard/sign-in/with/github", {"why": "connect"})
    assert shown.location.startswith("/dashboard/sign-in/again")


@pytest_twisted.ensureDeferred
async def test_it_proves_again_who_one_is_and_the_only_way_in_stays(house: House, fake: FakeProvider) -> None:
    pat = await signed_up(house, fake, "google")
    house.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
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
    assert await house.pool.rows("SELECT count(*) FROM identities") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_second_factor_is_asked_for_after_it(house: House, fake: FakeProvider) -> None:
    await signed_up(house, fake, "google")
    await house.pool.run("UPDATE users SET totp_at = now()")
    assert (await through(house.browser(), fake, "google")).location == "/dashboard/sign-in/code?next=%2Fdashboard%2Fkeys"


@pytest_twisted.ensureDeferred
async def test_an_invitation_is_accepted_with_it(house: House, fake: FakeProvider) -> None:
    fake.person = Someone(email="private@example.net", email_verified=False)
    account_id = await house.account()
    await house.person("ann@example.com", account_id)
    ann = await house.inside("ann@example.com")
    await ann.get("/dashboard/settings")
    await ann.post("/dashboard/settings/invite", {"email": "new@example.com", "role": "member"})
    path = house.mailer.link("new@example.com")
    new = house.browser()
    page = await new.get(path)
    assert "Continue with GitHub" in page.text
    back = await new.get(await there(new, fake, "github", "", path))
    assert back.location.startswith("/dashboard/invitation?link=") and back.query["ticket"]
    page = await new.get(back.location)
    assert 'name="password"' not in page.text and "new@example.com" in page.text
    thief = house.browser()
    assert (await thief.get(back.location)).status == 410  # a ticket of another browser
    await new.get(back.location)
    assert (await new.post("/dashboard/invitation", {**back.query, "name": "New"})).location == "/dashboard"
    assert ("invitation accepted", "member") in await house.audit(account_id)
    assert (await through(house.browser(), fake, "github")).location == "/dashboard/keys"
    # Whoever has a way in already is not given another by it.
    await ann.get("/dashboard/settings")
    other = await house.account("Other")
    await house.assembly.sessions.make_link("invite", "ann@example.com", REAUTHENTICATION_LIFETIME, other, "member")
    assert (await new.get(back.location)).status == 410


@pytest_twisted.ensureDeferred
async def test_nobody_signs_up_where_that_is_closed(house: House, fake: FakeProvider) -> None:
    house.assembly.sign_up = False
    house.pages = house.assembly.resource()
    shown = await through(house.browser(), fake, "google")
    assert shown.status == 403 and "AuthorizationRequest an account admin" in shown.text


def changed(**claims: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda told: {name: value for name, value in (told | claims).items() if value is not None}


# What proves who somebody is just now

PASSKEYS_NEW = "/dashboard/settings/passkeys/new"


@pytest_twisted.ensureDeferred
async def test_a_session_at_another_service_is_no_proof_of_who_is_there_now(house: House, fake: FakeProvider) -> None:
    """Not even by signing out and in again: the other service asks for nothing when it knows the browser."""
    for name in ("google", "github"):
        fake.person = Someone(subject={"google": "1", "github": "2"}[name], email=f"{name}@gmail.com")
        assert (await (await signed_up(house, fake, name)).get(PASSKEYS_NEW)).status == 200  # who is new has nothing to lose
        again = house.browser()
        assert (await through(again, fake, name)).location == "/dashboard/keys"
        assert (await again.get(PASSKEYS_NEW)).location.startswith("/dashboard/sign-in/again")


@pytest_twisted.ensureDeferred
async def test_proving_again_asks_for_the_password_there_and_looks_at_when_it_was_given(house: House, fake: FakeProvider) -> None:
    await signed_up(house, fake, "google")
    pat = house.browser()
    await through(pat, fake, "google")
    fake.asks_again = False  # it ignores max_age, as Google does
    for signed_in_at, status in (
        (0, 403),
        (house.clock.seconds() - REAUTHENTICATION_LIFETIME.total_seconds() - 5, 403),
        (house.clock.seconds() - 60, 303),
    ):
        fake.signed_in_at = int(signed_in_at)
        await pat.get(f"/dashboard/sign-in/again?next={PASSKEYS_NEW}")
        assert (await pat.get(await there(pat, fake, "google", "again", PASSKEYS_NEW))).status == status
    assert (await pat.get(PASSKEYS_NEW)).status == 200
    house.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() - 30)  # counted from when they signed in there
    assert (await pat.get(PASSKEYS_NEW)).location.startswith("/dashboard/sign-in/again")
    for lie in (changed(auth_time=None), changed(auth_time="now"), changed(auth_time=int(house.clock.seconds()) + 3600)):
        fake.lie = lie
        await pat.get("/dashboard/sign-in/again")
        shown = await pat.get(await there(pat, fake, "google", "again"))
        assert shown.status == 403 and "didn’t confirm that you just signed in there" in shown.text


@pytest.mark.parametrize("supported", [[], ["login", "consent"]])
@pytest_twisted.ensureDeferred
async def test_what_the_provider_is_asked_for_when_somebody_proves_again(house: House, fake: FakeProvider, supported: list[str]) -> None:
    fake.discovery = {"prompt_values_supported": supported}
    pat = await signed_up(house, fake, "google")
    await pat.get("/dashboard/sign-in/again")
    leaving = await pat.post("/dashboard/sign-in/with/google", {"why": "again"})
    asked = parse_qs(urlsplit(leaving.found(r'http-equiv="refresh" content="0; url=([^"]+)"')).query)
    assert asked["max_age"] == ["0"] and asked["claims"] == ['{"id_token":{"auth_time":{"essential":true}}}']
    assert asked["prompt"] == ["login" if supported else "select_account"]  # an unknown value is an error at Google


@pytest_twisted.ensureDeferred
async def test_github_proves_nothing_again(house: House, fake: FakeProvider) -> None:
    await signed_up(house, fake, "github")
    pat = house.browser()
    await through(pat, fake, "github")
    page = await pat.get("/dashboard/sign-in/again")
    assert "Continue with GitHub" not in page.text and "Set a password" in page.text
    assert (await pat.post("/dashboard/sign-in/with/github", {"why": "again"})).status == 403
    # A password, by a link to their address, is a proof.
    await pat.get("/dashboard/reset")
    await pat.post("/dashboard/reset", {"email": "pat@gmail.com"})
    await house.settled()
    link = house.mailer.link("pat@gmail.com")
    await pat.get(link)
    await pat.post("/dashboard/reset/finish", {"link": link.partition("link=")[2], "password": "four quite unrelated words"})
    assert (await pat.get(PASSKEYS_NEW)).status == 200


# What is not believed


@pytest_twisted.ensureDeferred
async def test_a_state_counts_once_in_its_browser_for_its_provider_and_ten_minutes(house: House, fake: FakeProvider) -> None:
    browser, thief = house.browser(), house.browser()
    await browser.get("/dashboard/sign-in")
    await thief.get("/dashboard/sign-in")
    back = await there(browser, fake, "google")
    assert (await thief.get(back)).status == 400  # somebody else's sign-in is not forced on a browser
    assert (await browser.get(back.replace("/with/google/", "/with/github/"))).status == 400
    assert (await browser.get(back.replace("state=", "state=x"))).status == 400
    assert (await browser.get(back)).status == 303
    assert (await browser.get(back)).status == 400
    late = await there(browser, fake, "google")
    house.clock.advance(601)
    assert (await browser.get(late)).status == 400
    assert (await browser.get("/dashboard/sign-in/with/google/back")).status == 400
    assert (await browser.get("/dashboard/sign-in/with/nobody/back?state=x")).status == 404
    assert len(fake.exchanged) == 1


@pytest_twisted.ensureDeferred
async def test_who_says_no_there_is_told_so_here(house: House, fake: FakeProvider) -> None:
    fake.denies = True
    shown = await through(house.browser(), fake, "google")
    assert shown.status == 403 and "didn’t confirm" in shown.text and not fake.exchanged


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another issuer": changed(iss="https://evil.example"),
    "another client": changed(aud="another-client"),
    "several clients": lambda told: told | {"aud": [told["aud"], "another"]},
    "made for another": changed(azp="another-client"),
    "too old": lambda told: told | {"exp": told["iat"] - 61},
    "no end": changed(exp=None),
    "another sign-in": changed(nonce="x" * 43),
    "no nonce": changed(nonce=None),
    "of the future": lambda told: told | {"iat": told["iat"] + 3600},
    "nobody": changed(sub=None),
}


@pytest_twisted.ensureDeferred
async def test_an_id_token_that_does_not_say_what_it_must_is_not_believed(house: House, fake: FakeProvider) -> None:
    for what, lie in LIES.items():
        fake.lie = lie
        browser = house.browser()
        shown = await through(browser, fake, "google")
        assert shown.status == 502 and "couldn’t be verified" in shown.text, what
        assert session(browser) == ""


@pytest_twisted.ensureDeferred
async def test_an_id_token_is_verified_with_the_keys_of_the_issuer_which_may_change(house: House, fake: FakeProvider) -> None:
    assert (await through(house.browser(), fake, "google")).status == 303
    fake.signs_with = jwk.RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    assert (await through(house.browser(), fake, "google")).status == 502  # not among those that are published
    fake.publishes = [fake.signs_with]
    assert (await through(house.browser(), fake, "google")).status == 502  # and not asked for each time
    house.clock.advance(61)
    assert (await through(house.browser(), fake, "google")).status == 303
    fake.signs_with = jwk.RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    assert (await through(house.browser(), fake, "google")).status == 502  # the right name, the wrong key


@pytest_twisted.ensureDeferred
async def test_an_answer_of_another_issuer_is_no_answer(house: House, fake: FakeProvider) -> None:
    browser = house.browser()
    await browser.get("/dashboard/sign-in")
    back = await there(browser, fake, "google")
    assert (await browser.get(f"{back}&iss=https%3A%2F%2Fevil.example")).status == 502
    assert not fake.exchanged
    fake.discovery = {"authorization_response_iss_parameter_supported": True}
    house.clock.advance(3601)
    await browser.get("/dashboard/sign-in")
    assert (await browser.get(await there(browser, fake, "google"))).status == 502
    await browser.get("/dashboard/sign-in")
    assert (await browser.get(f"{await there(browser, fake, 'google')}&iss={fake.url}")).status == 303


@pytest_twisted.ensureDeferred
async def test_a_provider_that_is_another_or_away_is_said_so(house: House, fake: FakeProvider) -> None:
    browser = house.browser()
    await browser.get("/dashboard/sign-in")
    fake.discovery = {"issuer": "https://evil.example"}
    assert (await browser.post("/dashboard/sign-in/with/google")).status == 502
    fake.discovery = {}
    back = await there(browser, fake, "google")
    fake.stop()
    shown = await browser.get(back)
    assert shown.status == 502 and "isn’t responding" in shown.text
    fake.start()


def test_a_client_id_needs_its_secret(tmp_path: Path) -> None:
    fetcher = Fetcher(None, Loopback(), Rules())
    (tmp_path / "empty").write_text("\n")
    for path, said in ((None, "is missing"), (tmp_path / "none", "cannot be read"), (tmp_path / "empty", "is empty")):
        with pytest.raises(SettingsError, match=said):
            providers_of(SignIn(github_client="x", github_secret=path), fetcher, time.time)
    assert providers_of(SignIn(), fetcher, time.time) == {}


def test_what_a_person_reads_has_no_details() -> None:
    error = ProviderError("Sentence.", "detail")
    assert str(error) == "Sentence." and error.detail == "detail"
