"""Single sign-on of accounts, against a fake provider: setting it up, signing in, requiring it, rejected tokens."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import attrs
import pyotp
import pytest
import pytest_twisted
from joserfc import jwk

from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.providers import providers_of, usable_keys
from mailsvc.net.urls import Rules
from mailsvc.store.people.identities import Identities, Identity
from mailsvc.store.people.single_sign_on import SingleSignOns
from mailsvc.store.postgres.pool import Pool
from tests.dashboard import test_federation as federation
from tests.dashboard.fixtures import ENCRYPTION, HASHED, PASSWORD, Browser, DashboardRig, Response, session
from tests.dashboard.provider import CLIENT, SECRET, FakeProvider, Someone
from tests.dashboard.test_passkeys import OPTIONS, device

SSO = "/dashboard/settings/sso"
PROFILE = "/dashboard/settings/profile"
ANN, BOB, NEW = "ann@acme.example", "bob@acme.example", "new@acme.example"
RSA = jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})
DEVELOPMENT = Rules(ports=frozenset(), clear=True, allowed=(ip_network("127.0.0.0/8"),))
UNVERIFIABLE = "couldn’t be verified. Try again."


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    fake = FakeProvider(signs_with=RSA, person=Someone(subject="1", email=ANN, name="Ann")).start()
    yield fake
    fake.stop()


@attrs.define(eq=False)
class Account:
    """An account with a verified domain, Ann as its admin and Bob as a member."""

    rig: DashboardRig
    fake: FakeProvider
    id: UUID
    ann: Browser

    @property
    def settings(self) -> dict[str, str]:
        return {"issuer": self.fake.url, "client": CLIENT, "secret": SECRET, "domains": "acme.example"}

    async def set_up(self, **changes: str) -> Response:
        await self.ann.get(SSO)
        shown = await self.ann.post(SSO, self.settings | changes)
        self.rig.clock.advance(1)
        return shown

    async def through(self, browser: Browser, email: str = ANN, **form: str) -> Response:
        await browser.get("/dashboard/sign-in")
        return await browser.get(await self.there(browser, email, **form))

    async def there(self, browser: Browser, email: str = ANN, **form: str) -> str:
        """Go to the provider; returns the callback path."""
        leaving = await browser.post("/dashboard/sign-in/sso", {"email": email, "next": "/dashboard/keys", **form})
        return self.fake.answer_to(asked(leaving)).removeprefix(self.rig.base_url)

    async def require(self) -> None:
        """Ann signs in with the provider, and requires it."""
        await self.ann.get(SSO)
        assert (await self.through(self.ann, why="fresh")).status == 303
        await self.ann.get(SSO)
        shown = await self.ann.post(f"{SSO}/require", {"required": "on"})
        assert shown.location == f"{SSO}?done=on", shown.text

    async def log(self) -> list[str]:
        return [action for action, _ in await self.rig.audit(self.id)]


def asked(leaving: Response) -> dict[str, str]:
    """What the browser brings to the provider."""
    to = leaving.found(r'http-equiv="refresh" content="0; url=([^"]+)"')
    return {name: values[0] for name, values in parse_qs(urlsplit(to).query).items()}


@pytest_twisted.async_yield_fixture
async def account(pool: Pool, fake: FakeProvider) -> Any:
    rig = DashboardRig(pool, rules=DEVELOPMENT)
    fake.clock = rig.clock.seconds
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    await rig.person(BOB, account_id, "developer")
    await verified(rig, account_id, "acme.example")
    yield Account(rig, fake, account_id, await rig.inside(ANN))


async def verified(rig: DashboardRig, account_id: UUID, name: str) -> None:
    await rig.assembly.domains.add(account_id, name, "us-east-1", [])
    await rig.assembly.domains.trust(account_id, name)


# Signing in


@pytest_twisted.ensureDeferred
async def test_a_member_signs_in_by_the_domain_of_their_address(account: Account) -> None:
    rig, fake = account.rig, account.fake
    assert "single sign-on" not in (await rig.browser().get("/dashboard/sign-in")).text
    assert (await account.set_up()).location == f"{SSO}?done=saved"
    browser = rig.browser()
    page = await browser.get("/dashboard/sign-in")
    assert 'formaction="/dashboard/sign-in/sso" formnovalidate' in page.text  # works without scripts
    leaving = await browser.post("/dashboard/sign-in/sso", {"email": ANN.upper(), "password": "", "next": "/dashboard/keys"})
    query = asked(leaving)
    assert query["redirect_uri"] == f"{rig.base_url}/dashboard/sign-in/sso/{account.id}/back" and query["login_hint"] == ANN
    assert query["code_challenge_method"] == "S256" and len(query["nonce"]) == 43 and "prompt" not in query and "max_age" not in query
    back = await browser.get(fake.answer_to(query).removeprefix(rig.base_url))
    assert back.location == "/dashboard/keys"
    assert ANN in (await browser.get("/dashboard/settings")).text
    # From now on, the subject identifies her, whatever her address there.
    fake.person = Someone(subject="1", email="other@elsewhere.example", email_verified=False)
    assert (await account.through(rig.browser())).location == "/dashboard/keys"
    assert rig.mailer.subjects(ANN) == [f"Your sign-in with {urlsplit(fake.url).netloc} was connected"]
    assert (await account.log())[-3:] == ["single sign-on connected", "signed in", "signed in"]
    [form, _] = fake.exchanged
    assert form["client_secret"] == SECRET and len(form["code_verifier"]) == 43


@pytest_twisted.ensureDeferred
async def test_the_secret_is_stored_encrypted_and_never_shown(account: Account) -> None:
    await account.set_up()
    [(secret,)] = await account.rig.pool.rows("SELECT secret FROM single_sign_on")
    assert SECRET.encode() not in bytes(secret) and ENCRYPTION.decrypt(bytes(secret), account.id) == SECRET.encode()
    page = await account.ann.get(SSO)
    assert SECRET not in page.text and CLIENT in page.text and f"/sign-in/sso/{account.id}/back" in page.text
    assert SECRET not in str(await account.rig.audit(account.id))
    # Keeping the secret is possible only with the same issuer and client, since it could be sent elsewhere otherwise.
    assert (await account.set_up(secret="")).location == f"{SSO}?done=changed"
    for changes in ({"client": "other"}, {"issuer": f"{account.fake.url}/other"}):
        shown = await account.set_up(secret="", **changes)
        assert shown.status == 422 and "Enter the client secret again" in shown.text


@pytest_twisted.ensureDeferred
async def test_who_is_no_member_does_not_come_in(account: Account) -> None:
    rig, fake = account.rig, account.fake
    await account.set_up()
    outsider = await rig.person("eve@acme.example")  # of another account
    for person, message in (
        (Someone("2", NEW), "not a member of the account"),
        (Someone("3", "eve@acme.example"), "not a member of the account"),
        (Someone("4", ANN, email_verified=False), "didn’t confirm that your email address is verified"),
        (Someone("7", "", name="the operator"), "didn’t confirm that your email address is verified"),
    ):
        fake.person, browser = person, rig.browser()
        shown = await account.through(browser, person.email or NEW)
        assert shown.status == 403 and message in shown.text, (person, shown.text)
        assert session(browser) == ""
    for email in ("ann@elsewhere.example", "ann@sub.acme.example"):
        fake.person = Someone("5", email)
        shown = await account.through(rig.browser(), ANN)
        assert shown.status == 403 and "only for addresses at acme.example" in shown.text
    assert await rig.pool.rows("SELECT FROM single_sign_on_members") == []
    assert await rig.assembly.users.named(NEW) is None and len(await rig.assembly.users.accounts(outsider.id)) == 1
    refused = "SELECT kind, actor FROM audit_entries WHERE action = 'sign-in refused'"
    assert sorted(await rig.pool.rows(refused)) == [
        ("visitor", who) for who in (ANN, "ann@elsewhere.example", "ann@sub.acme.example", "eve@acme.example", NEW, NEW)
    ]
    # Another person at the provider with Bob's address, which he is known by there.
    fake.person = Someone("8", BOB)
    assert (await account.through(rig.browser(), BOB)).status == 303
    fake.person = Someone("9", BOB)
    shown = await account.through(rig.browser(), BOB)
    assert shown.status == 403 and "belongs to a different user at" in shown.text
    # A removed member is nobody there any more, and can be invited again.
    bob = await rig.assembly.users.named(BOB)
    assert bob is not None
    await rig.assembly.users.remove(account.id, bob.id)
    assert (await account.through(rig.browser(), BOB)).status == 403
    await rig.assembly.users.join(account.id, bob.id, "developer")
    assert (await account.through(rig.browser(), BOB)).status == 303


@pytest_twisted.ensureDeferred
async def test_new_people_become_members_if_the_account_wants_it(account: Account) -> None:
    rig, fake = account.rig, account.fake
    await account.set_up(new_members="on")
    fake.person = Someone("2", NEW, name="New Person")
    browser = rig.browser()
    assert (await account.through(browser, NEW)).location == "/dashboard/keys"
    assert [(m.email, m.name, m.role) for m in await rig.assembly.users.members(account.id)][-1] == (NEW, "New Person", "read-only")
    assert ("member added", "read-only, by single sign-on") in await rig.audit(account.id)
    fake.person = Someone("7", "new..person.@acme.example")  # providers give it without the quotes that it is stored with
    assert (await account.through(rig.browser(), fake.person.email)).location == "/dashboard/keys"
    assert await rig.assembly.users.named('"new..person."@acme.example') is not None
    # Users of other accounts do not: their own admins and they themselves decide.
    await rig.person("eve@acme.example")
    fake.person = Someone("3", "eve@acme.example")
    assert (await account.through(rig.browser(), "eve@acme.example")).status == 403


@pytest_twisted.ensureDeferred
async def test_an_address_that_was_changed_here_no_longer_counts(account: Account) -> None:
    await account.set_up()
    assert (await account.through(account.rig.browser())).status == 303
    await account.rig.pool.run("UPDATE users SET email = 'ann@private.example' WHERE email = %s", (ANN,))
    shown = await account.through(account.rig.browser())
    assert shown.status == 403 and "only for addresses at acme.example" in shown.text


@pytest_twisted.ensureDeferred
async def test_a_member_who_must_use_it_keeps_an_address_at_its_domains(account: Account) -> None:
    """With another address, whoever is removed at the provider could still sign in here."""
    rig, form = account.rig, {"email": "bob@private.example", "password": PASSWORD}
    await account.set_up()
    bob = await rig.inside(BOB)
    await bob.get(PROFILE)
    assert (await bob.post(f"{PROFILE}/address", form)).location == PROFILE  # it is not required yet
    await rig.settled()
    link = rig.mailer.link("bob@private.example")
    await account.require()
    account.fake.person = Someone("2", BOB)
    assert (await account.through(bob, BOB)).status == 303
    for shown in (await bob.get(link), await bob.post(f"{PROFILE}/address/confirm", {"link": link.partition("link=")[2]})):
        assert shown.status == 403 and "so your address must be at acme.example" in shown.text
    await bob.get(PROFILE)
    shown = await bob.post(f"{PROFILE}/address", form)
    assert shown.status == 422 and "so your address must be at acme.example" in shown.text
    assert (await bob.post(f"{PROFILE}/address", form | {"email": "rob@acme.example"})).location == PROFILE


@pytest_twisted.ensureDeferred
async def test_an_address_at_an_unknown_domain_leads_nowhere(account: Account) -> None:
    await account.set_up()
    browser = account.rig.browser()
    await browser.get("/dashboard/sign-in")
    for email, message in (("a@else.example", "No account uses single sign-on"), ("", "Enter your email address"), ("x@", "Enter your")):
        shown = await browser.post("/dashboard/sign-in/sso", {"email": email})
        assert shown.status == 422 and message in shown.text
    # The answer for a domain is the same whether or not an address at it is known.
    pages = [await browser.post("/dashboard/sign-in/sso", {"email": email}) for email in (ANN, "nobody@acme.example")]
    assert [page.status for page in pages] == [200, 200]
    queries = [asked(page).keys() for page in pages]
    assert queries[0] == queries[1]


@pytest_twisted.ensureDeferred
async def test_the_provider_answers_for_the_second_factor_of_its_own_account_only(account: Account) -> None:
    rig = account.rig
    await account.set_up()
    await rig.pool.run("UPDATE users SET totp_at = now(), totp = NULL WHERE email = %s", (BOB,))
    await rig.pool.run("UPDATE accounts SET mfa_since = now()")
    account.fake.person = Someone("1", ANN)
    ann = rig.browser()
    assert (await account.through(ann)).location == "/dashboard/keys"
    assert (await ann.get("/dashboard/keys")).status == 200  # the account requires a second factor, and the provider saw to it
    account.fake.person = Someone("2", BOB)
    bob = rig.browser()
    assert (await account.through(bob, BOB)).location == "/dashboard/keys"
    other = await rig.account("Other")
    user = await rig.assembly.users.named(BOB)
    assert user is not None
    await rig.assembly.users.join(other, user.id, "developer")
    assert (await account.through(rig.browser(), BOB)).location == "/dashboard/sign-in/code?next=%2Fdashboard%2Fkeys"
    # Ann has no second factor: the other account sends her to set one up.
    await rig.pool.run("UPDATE accounts SET mfa_since = now()")
    user = await rig.assembly.users.named(ANN)
    assert user is not None
    await rig.assembly.users.join(other, user.id, "developer")
    await ann.get("/dashboard/settings")
    await ann.post("/dashboard/settings/show", {"account": str(other)})
    assert (await ann.get("/dashboard/keys")).location == "/dashboard/settings/security"


# Requiring it


@pytest_twisted.ensureDeferred
async def test_it_can_be_required_only_by_an_admin_who_has_just_signed_in_with_it(account: Account) -> None:
    rig, ann = account.rig, account.ann
    await account.set_up()
    await ann.get(SSO)
    shown = await ann.post(f"{SSO}/require", {"required": "on"})
    assert shown.status == 422 and "Sign in with your provider first" in shown.text
    by_password = await rig.inside(ANN)
    await by_password.get(SSO)
    assert (await by_password.post(f"{SSO}/require", {"required": "on"})).status == 422
    assert (await account.through(ann)).status == 303
    assert "Require single sign-on" in (await ann.get(SSO)).text
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    await ann.get(f"/dashboard/sign-in/again?next={SSO}")
    assert (await ann.post("/dashboard/sign-in/again", {"password": PASSWORD, "next": SSO})).location == SSO
    assert (await ann.post(f"{SSO}/require", {"required": "on"})).status == 422  # the password proves nothing about the provider
    assert (await account.through(ann)).status == 303
    await ann.get(SSO)
    account.fake.signed_in_at = int(rig.clock.seconds())
    # Signing in does not say when, so the change itself needs a proof.
    again = await ann.post(f"{SSO}/require", {"required": "on"})
    assert again.location.startswith("/dashboard/sign-in/again")
    await ann.get(again.location)
    assert (await ann.get(await account.there(ann, why="again", next=SSO))).location == SSO
    await ann.get(SSO)
    assert (await ann.post(f"{SSO}/require", {"required": "on"})).location == f"{SSO}?done=on"
    assert "single sign-on required" in await account.log()
    # A provider that is changed has to be proven again.
    assert (await account.set_up(secret="another")).location == f"{SSO}?done=optional"
    assert await rig.pool.rows("SELECT required FROM single_sign_on") == [(False,)]
    assert (await ann.post(f"{SSO}/require", {"required": "on"})).status == 422
    # Bob is no admin.
    bob = await rig.inside(BOB)
    for path in ("", "/require", "/remove"):
        await bob.get("/dashboard/settings")
        assert (await bob.post(f"{SSO}{path}", account.settings)).status == 403


@pytest_twisted.ensureDeferred
async def test_other_sessions_of_affected_members_end_when_it_is_required(account: Account) -> None:
    rig = account.rig
    await rig.person("guest@else.example", account.id, "developer")
    guest, bob, elsewhere = await rig.inside("guest@else.example"), await rig.inside(BOB), await rig.inside(ANN)
    user = await rig.assembly.users.named(BOB)
    assert user is not None
    former = await rig.assembly.sessions.begin(user, account.id, "whole", "", "", single_sign_on=account.id)  # with another provider
    await account.set_up()
    account.ann = rig.browser()
    await account.ann.sign_in(ANN)
    await account.require()
    assert (await bob.get("/dashboard/keys")).location.startswith("/dashboard/sign-in?")
    assert (await elsewhere.get("/dashboard/keys")).location.startswith("/dashboard/sign-in?")
    assert former is not None and await rig.assembly.sessions.find(former) is None
    assert (await guest.get("/dashboard/keys")).status == 200 and (await account.ann.get("/dashboard/keys")).status == 200
    assert (await rig.inside("guest@else.example")).cookies  # still with a password
    await account.ann.get(SSO)
    assert (await account.ann.post(f"{SSO}/require", {"required": "off"})).location == f"{SSO}?done=off"
    await rig.inside(BOB)


@pytest_twisted.ensureDeferred
async def test_other_ways_to_sign_in_are_refused(account: Account) -> None:
    rig = account.rig
    phone, bob = device(), await rig.inside(BOB)
    user = await rig.assembly.users.named(BOB)
    assert user is not None
    page = await bob.get("/dashboard/settings/passkeys/new")
    await bob.post("/dashboard/settings/passkeys/new", {"name": "Phone", "answer": phone.make(page.found(OPTIONS))})
    await account.set_up()
    await account.require()
    sessions = rig.assembly.sessions

    async def by_password(browser: Browser) -> Response:
        return await browser.sign_in(BOB)

    async def by_passkey(browser: Browser) -> Response:
        page = await browser.get("/dashboard/sign-in")
        return await browser.post("/dashboard/sign-in/passkey", {"answer": phone.prove(page.found(OPTIONS))})

    async def by_link(browser: Browser) -> Response:
        secret = await sessions.make_link("sign-in", BOB, timedelta(hours=1))
        await browser.get(f"/dashboard/sign-in/link?link={secret}")
        return await browser.post("/dashboard/sign-in/link", {"link": secret})

    async def by_reset(browser: Browser) -> Response:
        secret = await sessions.make_link("reset", BOB, timedelta(hours=1))
        await browser.get(f"/dashboard/reset/finish?link={secret}")
        return await browser.post("/dashboard/reset/finish", {"link": secret, "password": PASSWORD})

    for way in (by_password, by_passkey, by_link, by_reset):
        browser = rig.browser()
        shown = await way(browser)
        assert shown.status == 403 and f"Your account requires single sign-on for {BOB}" in shown.text, (way, shown.text)
        assert session(browser) == "" and 'action="/dashboard/sign-in/sso"' in shown.text
    refused = [subject for action, subject in await rig.audit(account.id) if action == "sign-in refused"]
    assert refused == [f"{way}: single sign-on is required" for way in ("password", "passkey", "sign-in link", "reset link")]
    # The page that refuses leads to the provider.
    account.fake.person = Someone("2", BOB)
    browser = rig.browser()
    await by_password(browser)
    assert (await browser.get(await account.there(browser, BOB))).location == "/dashboard/keys"


@pytest.mark.parametrize("name", ["google", "github"])
@pytest_twisted.ensureDeferred
async def test_the_operators_providers_are_refused(account: Account, name: str, tmp_path: Path) -> None:
    rig, fake = account.rig, account.fake
    providers = providers_of(federation.settings(fake, tmp_path), rig.assembly.fetcher, rig.clock.seconds)
    rig.assembly.providers = providers
    rig.pages = rig.assembly.resource()
    user = await rig.assembly.users.named(BOB)
    assert user is not None
    await Identities(rig.pool, rig.clock).add(user.id, Identity(fake.url, "2", name, BOB))
    fake.person = Someone("2", "bob@private.example")
    browser = rig.browser()
    assert (await federation.through(browser, fake, name)).location == "/dashboard/keys"
    fake.person = Someone("1", ANN)
    await account.set_up()
    await account.require()
    fake.person, browser = Someone("2", "bob@private.example"), rig.browser()
    shown = await federation.through(browser, fake, name)
    assert shown.status == 403 and f"requires single sign-on for {BOB}" in shown.text and session(browser) == ""
    assert ("sign-in refused", f"{name}: single sign-on is required") in await rig.audit(account.id)


@pytest_twisted.ensureDeferred
async def test_a_wrong_password_says_the_same_for_every_address_at_a_domain_that_requires_it(account: Account) -> None:
    await account.set_up()
    await account.require()
    pages = []
    for email in (BOB, "nobody@acme.example"):
        shown = await account.rig.browser().sign_in(email, "wrong")
        assert shown.status == 422 and "acme.example uses single sign-on" in shown.text and "Incorrect email or password" in shown.text
        pages.append(shown.text.count("\n"))
    assert pages[0] == pages[1]


@pytest_twisted.ensureDeferred
async def test_a_session_that_began_in_another_way_cannot_open_the_account(account: Account) -> None:
    """Somebody who becomes a member later, or whose domain is added later."""
    rig = account.rig
    await account.set_up()
    await account.require()
    eve = await rig.person("eve@acme.example")
    browser = await rig.inside("eve@acme.example")
    await rig.assembly.users.join(account.id, eve.id, "developer")
    await browser.get("/dashboard/settings")
    await browser.post("/dashboard/settings/show", {"account": str(account.id)})
    shown = await browser.get("/dashboard/keys")
    assert shown.status == 403 and "Use single sign-on" in shown.text and 'value="/dashboard/keys"' in shown.text
    assert (await browser.post("/dashboard/keys", {"name": "x"})).status == 403
    account.fake.person = Someone("5", "eve@acme.example")
    assert (await browser.get(await account.there(browser, "eve@acme.example"))).location == "/dashboard/keys"
    assert (await browser.get("/dashboard/keys")).status == 200


@pytest_twisted.ensureDeferred
async def test_the_second_factor_of_a_member_of_two_accounts_keeps_what_began(account: Account) -> None:
    rig = account.rig
    await account.set_up()
    await account.require()
    user = await rig.assembly.users.named(BOB)
    assert user is not None
    await rig.assembly.users.join(await rig.account("Other"), user.id, "developer")
    await rig.assembly.users.propose_totp(user.id, b"s" * 20)
    codes = pyotp.TOTP(base64.b32encode(b"s" * 20).decode())
    await rig.pool.run("UPDATE users SET totp_at = now() WHERE email = %s", (BOB,))
    account.fake.person = Someone("2", BOB)
    browser = rig.browser()
    assert (await account.through(browser, BOB)).location.startswith("/dashboard/sign-in/code")
    await browser.get("/dashboard/sign-in/code?next=/dashboard/keys")
    shown = await browser.post("/dashboard/sign-in/code", {"code": codes.at(rig.clock.seconds()), "next": "/dashboard/keys"})
    assert shown.location == "/dashboard/keys" and (await browser.get("/dashboard/keys")).status == 200


@pytest_twisted.ensureDeferred
async def test_the_operator_and_removing_it_let_everybody_in_again(account: Account) -> None:
    rig = account.rig
    await account.set_up()
    await account.require()
    stored = SingleSignOns(rig.pool, rig.clock, ENCRYPTION)
    assert await stored.require(account.id, False, []) and not await stored.require(account.id, False, [])
    await rig.inside(BOB)
    await account.ann.get(SSO)
    assert (await account.ann.post(f"{SSO}/remove")).location == f"{SSO}?done=removed"
    await rig.inside(BOB)
    for table in ("single_sign_on", "single_sign_on_domains", "single_sign_on_members"):
        assert await rig.pool.rows(f"SELECT FROM {table}") == []
    assert (await account.log())[-2:] != [] and "single sign-on removed" in await account.log()
    assert await rig.pool.rows("SELECT FROM sessions WHERE single_sign_on IS NOT NULL") == []


# Setting it up


@pytest_twisted.ensureDeferred
async def test_a_domain_has_to_be_verified_and_belongs_to_one_account(account: Account) -> None:
    rig = account.rig
    for domains, message in (
        ("other.example", "is not a verified domain of this account"),
        ("example", "at least two labels"),
        ("", "Enter at least one domain."),
        ("co.uk", "public suffix"),
        ("not-acme.example", "is not a verified domain of this account"),
    ):
        shown = await account.set_up(domains=domains)
        assert shown.status == 422 and message in shown.text, (domains, shown.text)
    assert await rig.pool.rows("SELECT FROM single_sign_on") == []
    assert (await account.set_up(domains="acme.example\nteam.acme.example ACME.example")).status == 303
    assert "single sign-on set up" in await account.log()
    # Another account that has a subdomain verified can use it, unless it is used already.
    other = await rig.account("Other")
    await rig.person("admin@other.example", other)
    admin = await rig.inside("admin@other.example")
    await verified(rig, other, "team.acme.example")
    await verified(rig, other, "shop.acme.example")
    await admin.get(SSO)
    shown = await admin.post(SSO, account.settings | {"domains": "team.acme.example"})
    assert shown.status == 422 and "used for single sign-on by another account" in shown.text
    assert (await admin.post(SSO, account.settings | {"domains": "shop.acme.example"})).status == 303
    shown = await account.set_up(domains="acme.example shop.acme.example")  # its nearest verified domain is the other account's
    assert shown.status == 422 and "shop.acme.example is not a verified domain of this account" in shown.text


@pytest_twisted.ensureDeferred
async def test_a_domain_is_lost_to_the_account_that_verifies_it_later(account: Account) -> None:
    rig = account.rig
    await account.set_up()
    await account.require()
    [(domain,)] = await rig.pool.rows("SELECT id FROM domains")
    await rig.assembly.domains.delete(account.id, domain)
    assert (await account.through(rig.browser())).status == 303  # a member who deletes the domain does not end what admins decided
    assert (await rig.browser().sign_in(BOB)).status == 403
    other = await rig.account("Other")
    await rig.person("admin@other.example", other)
    await verified(rig, other, "acme.example")
    browser = rig.browser()
    await browser.get("/dashboard/sign-in")
    assert (await browser.post("/dashboard/sign-in/sso", {"email": ANN})).status == 422
    await rig.inside(BOB)
    assert "Another account has verified acme.example" in (await account.ann.get(SSO)).text
    admin = await rig.inside("admin@other.example")
    await admin.get(SSO)
    assert (await admin.post(SSO, account.settings)).status == 303
    assert ("single sign-on domain lost", "acme.example") in await rig.audit(account.id)


@pytest.mark.parametrize(
    ("issuer", "message"),
    [
        ("http://login.example.com", "must begin with https://"),
        ("https://127.0.0.1", "127.0.0.1 is loopback"),
        ("https://169.254.169.254", "169.254.169.254 is link-local"),
        ("https://[::1]", "::1 is loopback"),
        ("https://localhost", "127.0.0.1 is loopback"),
        ("https://10.1.2.3/realms/a", "10.1.2.3 is private"),
        ("https://login.example.com?x=1", "must not have a query"),
        ("https://login.example.com#x", "must not have a fragment"),
        ("https://ann@login.example.com", "must not have a user name or password"),
        ("javascript:alert(1)", "must begin with https://"),
        ("", "Enter the issuer URL."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_issuer_has_a_public_https_address(pool: Pool, issuer: str, message: str) -> None:
    rig = DashboardRig(pool)  # with the rules of production
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    await verified(rig, account_id, "acme.example")
    ann = await rig.inside(ANN)
    await ann.get(SSO)
    shown = await ann.post(SSO, {"issuer": issuer, "client": CLIENT, "secret": SECRET, "domains": "acme.example"})
    assert shown.status == 422 and message in shown.text, shown.text
    assert await pool.rows("SELECT FROM single_sign_on") == []


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest_twisted.ensureDeferred
async def test_an_endpoint_has_an_address_that_may_be_used(account: Account, name: str) -> None:
    for url in ("https://169.254.169.254/latest", "http://login.example.com/x", "javascript:alert(1)", "https://10.0.0.1/", 7):
        account.fake.discovery = {name: url}
        shown = await account.set_up()
        assert shown.status == 422 and name in shown.text, url
    assert len(account.fake.requests) == 0 and await account.rig.pool.rows("SELECT FROM single_sign_on") == []


@pytest_twisted.ensureDeferred
async def test_a_host_that_resolves_to_an_internal_address_is_not_connected_to(account: Account) -> None:
    rig = account.rig
    rig.assembly.fetcher.resolver = Resolving("169.254.169.254")
    shown = await account.set_up(issuer="https://login.example.com")
    assert shown.status == 422 and "169.254.169.254 is link-local" in shown.text


@attrs.frozen
class Resolving:
    """A resolver with one answer."""

    address: str

    async def addresses(self, host: str) -> Any:
        from mailsvc.net.dns import Records

        return Records(host, (self.address,))


@pytest_twisted.ensureDeferred
async def test_a_provider_that_cannot_be_read_is_not_stored(account: Account) -> None:
    for discovery, message in (
        ({"issuer": "https://evil.example"}, "Its issuer is https://evil.example."),
        ({"token_endpoint": None}, "It has no token_endpoint."),
    ):
        account.fake.discovery = discovery
        shown = await account.set_up()
        assert shown.status == 422 and message in shown.text
    account.fake.discovery = {}
    shown = await account.set_up(issuer=f"{account.fake.url}/nothing")
    assert shown.status == 422 and "can’t be used" in shown.text
    assert await account.rig.pool.rows("SELECT FROM single_sign_on") == []
    for field in ("client", "secret"):
        shown = await account.set_up(**{field: ""})
        assert shown.status == 422 and f"Enter the client {'ID' if field == 'client' else 'secret'}." in shown.text


# What the provider answers


def claims(**changed: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda token: {name: value for name, value in (token | changed).items() if value is not None}


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another issuer": claims(iss="https://evil.example"),
    "another client": claims(aud="another-client"),
    "several clients": lambda token: token | {"aud": [token["aud"], "another"]},
    "made for another": claims(azp="another-client"),
    "expired": lambda token: token | {"exp": token["iat"] - 61},
    "no expiry": claims(exp=None),
    "another sign-in": claims(nonce="x" * 43),
    "no nonce": claims(nonce=None),
    "of the future": lambda token: token | {"iat": token["iat"] + 3600},
    "nobody": claims(sub=None),
    "a NUL": claims(sub="1\0"),
}


@pytest_twisted.ensureDeferred
async def test_an_id_token_with_a_wrong_claim_is_rejected(account: Account) -> None:
    await account.set_up()
    for what, lie in LIES.items():
        account.fake.lie, browser = lie, account.rig.browser()
        shown = await account.through(browser)
        assert shown.status == 502 and UNVERIFIABLE in shown.text and 'name="password"' in shown.text, what
        assert session(browser) == "", what
        account.rig.clock.advance(900)  # failures slow down attempts
    failed = [subject for action, subject in await account.rig.audit(account.id) if action == "sign-in failed"]
    assert len(failed) == len(LIES) and all(subject.startswith("single sign-on: ID token: ") for subject in failed)
    account.fake.lie = claims()
    assert (await account.through(account.rig.browser())).status == 303


def unsigned(header: dict[str, Any], body: dict[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in (header | {"alg": "none"}, body))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])


def with_the_public_key(header: dict[str, Any], body: dict[str, Any]) -> str:
    text = unsigned(header, body).split(".")[1]
    head = base64.urlsafe_b64encode(json.dumps(header | {"alg": "HS256"}).encode()).decode().rstrip("=")
    made = hmac.digest(RSA.as_pem(private=False), f"{head}.{text}".encode(), "sha256")
    return f"{head}.{text}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"


@pytest_twisted.ensureDeferred
async def test_a_signature_must_be_made_with_a_published_key(account: Account) -> None:
    await account.set_up()
    other = jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
    for change in (
        {"sign": unsigned},
        {"sign": with_the_public_key},
        {"header": {"kid": "unknown"}},
        {"signs_with": other},
    ):
        before = {name: getattr(account.fake, name) for name in change}
        for name, value in change.items():
            setattr(account.fake, name, value)
        browser = account.rig.browser()
        shown = await account.through(browser)
        assert shown.status == 502 and UNVERIFIABLE in shown.text and session(browser) == "", change
        for name, value in before.items():
            setattr(account.fake, name, value)
        account.rig.clock.advance(900)
    assert (await account.through(account.rig.browser())).status == 303


@pytest_twisted.ensureDeferred
async def test_id_tokens_are_signed_with_rsa_or_an_elliptic_curve(account: Account) -> None:
    account.fake.publishes = [RSA, EC]
    await account.set_up()
    assert (await account.through(account.rig.browser())).status == 303
    account.fake.signs_with, account.fake.algorithm = EC, "ES256"
    assert (await account.through(account.rig.browser())).status == 303
    # Keys change: an unknown one is looked up, at most once a minute.
    account.fake.signs_with = jwk.ECKey.generate_key("P-256", {"kid": "next", "use": "sig"})
    account.fake.publishes = [account.fake.signs_with]
    assert (await account.through(account.rig.browser())).status == 502
    account.rig.clock.advance(61)
    assert (await account.through(account.rig.browser())).status == 303


@pytest.mark.filterwarnings("ignore:Key size")
def test_keys_that_cannot_verify_are_ignored() -> None:
    short = jwk.RSAKey.generate_key(1024, {"kid": "short"}).as_dict(private=False)
    others: list[Any] = [
        short,
        {"kty": "oct", "k": "AAAA"},
        {"kty": "new"},
        {"kty": "RSA"},
        "key",
        EC.as_dict(private=False) | {"use": "enc"},
    ]
    [key] = usable_keys({"keys": [*others, RSA.as_dict(private=False)]})
    assert key.kid == "first"
    for bad in ({"keys": others}, {"keys": 1}, [], None):
        with pytest.raises(ValueError, match="no usable key"):
            usable_keys(bad)


@pytest_twisted.ensureDeferred
async def test_an_address_counts_if_the_provider_or_the_account_vouches_for_it(account: Account) -> None:
    await account.set_up()
    account.fake.lie = claims(email_verified=None)
    assert (await account.through(account.rig.browser())).status == 403
    account.fake.lie = claims(email_verified="true")
    assert (await account.through(account.rig.browser())).status == 403
    await account.set_up(vouches="on")
    account.fake.lie = claims(email_verified=False)
    assert (await account.through(account.rig.browser())).status == 403
    account.fake.lie = claims(email_verified=None)
    assert (await account.through(account.rig.browser())).status == 303


@pytest_twisted.ensureDeferred
async def test_the_address_is_read_from_the_userinfo_endpoint_if_it_is_not_in_the_token(account: Account) -> None:
    account.fake.tells_at_user_info = True
    await account.set_up()
    account.fake.user_info = {"sub": "somebody else"}
    shown = await account.through(account.rig.browser())
    assert shown.status == 502 and UNVERIFIABLE in shown.text
    account.fake.user_info = {"name": "\ud800"}  # half a character
    shown = await account.through(account.rig.browser())
    assert shown.status == 502 and "sent an unexpected response" in shown.text
    account.fake.user_info = {}
    assert (await account.through(account.rig.browser())).status == 303


@pytest.mark.parametrize("methods", [["client_secret_basic"], None])
@pytest_twisted.ensureDeferred
async def test_the_secret_is_sent_as_the_provider_wants_it(account: Account, methods: list[str] | None) -> None:
    account.fake.discovery = {"token_endpoint_auth_methods_supported": methods}  # none: 8414 §2 says basic
    await account.set_up()
    assert (await account.through(account.rig.browser())).status == 303
    assert account.fake.exchanged[0]["basic"] == "yes"


@pytest_twisted.ensureDeferred
async def test_a_code_is_accepted_once_in_its_browser_from_its_own_provider(account: Account) -> None:
    rig = account.rig
    await account.set_up()
    other = await rig.account("Other")
    await rig.person("admin@other.example", other)
    await verified(rig, other, "other.example")
    admin = await rig.inside("admin@other.example")
    await admin.get(SSO)
    assert (await admin.post(SSO, account.settings | {"domains": "other.example"})).status == 303
    browser, thief = rig.browser(), rig.browser()
    await browser.get("/dashboard/sign-in")
    await thief.get("/dashboard/sign-in")
    back = await account.there(browser)
    assert (await thief.get(back)).status == 400
    assert (await browser.get(back.replace(str(account.id), str(other)))).status == 400  # one provider cannot get the code of another
    assert (await browser.get(back.replace("state=", "state=x"))).status == 400
    assert (await browser.get(f"{back}&iss=https%3A%2F%2Fevil.example")).status == 502
    assert account.fake.exchanged == []
    back = await account.there(browser)
    assert (await browser.get(back)).status == 303
    assert (await browser.get(back)).status == 400
    late = await account.there(browser)
    rig.clock.advance(601)
    assert (await browser.get(late)).status == 400
    for path in (f"/dashboard/sign-in/sso/{account.id}/back", "/dashboard/sign-in/sso/x/back?state=1"):
        assert (await rig.browser().get(path)).status in (400, 404)


@pytest_twisted.ensureDeferred
async def test_a_provider_that_refuses_or_is_gone_shows_a_sentence_on_the_sign_in_page(account: Account) -> None:
    rig, fake = account.rig, account.fake
    await account.set_up()
    fake.denies = True
    browser = rig.browser()
    shown = await account.through(browser)
    assert shown.status == 502 and "didn’t confirm who you are. Try again" in shown.text and 'name="password"' in shown.text
    fake.denies = False
    back = await account.there(browser)
    fake.stop()
    shown = await browser.get(back)
    assert shown.status == 502 and "isn’t responding. Try again in a moment." in shown.text and session(browser) == ""
    rig.clock.advance(3601)
    shown = await browser.post("/dashboard/sign-in/sso", {"email": ANN})
    assert shown.status == 502 and "isn’t responding. Try again in a moment." in shown.text
    assert (await account.log()).count("sign-in failed") == 3
    fake.start()


@pytest_twisted.ensureDeferred
async def test_attempts_are_limited_like_others(account: Account) -> None:
    await account.set_up()
    browser = account.rig.browser()
    await browser.get("/dashboard/sign-in")
    answers = [(await browser.post("/dashboard/sign-in/sso", {"email": NEW})).status for _ in range(6)]
    assert answers == [200] * 5 + [429]
    account.fake.person = Someone("2", ANN)
    assert (await account.through(account.rig.browser(), ANN)).status == 303  # other addresses are counted separately


# Confirming one's identity


@pytest_twisted.ensureDeferred
async def test_a_member_without_a_password_confirms_their_identity_at_the_provider(account: Account) -> None:
    rig, fake = account.rig, account.fake
    await account.set_up(new_members="on")
    fake.person = Someone("2", NEW)
    browser, new = rig.browser(), "/dashboard/settings/passkeys/new"
    await account.through(browser, NEW)
    again = await browser.get(new)
    assert again.location.startswith("/dashboard/sign-in/again")  # the provider did not say when they signed in there
    page = await browser.get(again.location)
    assert "Continue with single sign-on" in page.text and "Set a password" not in page.text
    leaving = await browser.post("/dashboard/sign-in/sso", {"why": "again", "next": new})
    query = asked(leaving)
    assert query["max_age"] == "0" and query["login_hint"] == NEW
    fake.person = Someone("1", ANN)
    assert (await browser.get(fake.answer_to(query).removeprefix(rig.base_url))).status == 403
    fake.person, fake.lie = Someone("2", NEW), claims(auth_time=None)
    assert (await browser.get(await account.there(browser, why="again"))).status == 403
    fake.lie = claims()
    assert (await browser.get(await account.there(browser, why="again", next=new))).location == new
    assert (await browser.get(new)).status == 200
    outsider = rig.browser()
    await outsider.get("/dashboard/sign-in")
    assert (await outsider.post("/dashboard/sign-in/sso", {"why": "again"})).location == "/dashboard/sign-in"


@pytest_twisted.ensureDeferred
async def test_an_identity_belongs_to_one_member_of_an_account(account: Account) -> None:
    stored, users = SingleSignOns(account.rig.pool, account.rig.clock, ENCRYPTION), account.rig.assembly.users
    await account.set_up()
    ann, bob = await users.named(ANN), await users.named(BOB)
    assert ann is not None and bob is not None
    identity = partial(Identity, account.fake.url, provider="single sign-on", label="")
    assert await stored.bind(account.id, ann.id, identity(subject="1"), [])
    assert not await stored.bind(account.id, bob.id, identity(subject="1"), [])
    assert not await stored.bind(account.id, ann.id, identity(subject="2"), [])
    outsider = await users.create("eve@acme.example", "", HASHED)
    assert not await stored.bind(account.id, outsider.id, identity(subject="3"), [])
    assert await stored.add_member(account.id, NEW, "", identity(subject="1"), "192.0.2.1") is None  # half of it would be a user
    assert await users.named(NEW) is None
    # Another issuer: nobody is known there.
    await account.rig.pool.run("UPDATE single_sign_on SET issuer = 'https://former.example'")
    await account.set_up()
    assert await stored.member(account.id, identity(subject="1")) == ann.id
