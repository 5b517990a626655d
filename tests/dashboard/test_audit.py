"""The audit log: every change writes an entry, in the same transaction as the change."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import UUID, uuid4

import attrs
import pyotp
import pytest_twisted

from mailsvc.dashboard.account.data import KINDS
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.paging import ALL
from mailsvc.store.people.identities import Identities, Identity
from mailsvc.store.people.passkeys import Passkeys
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.pictures import picture
from tests.dashboard.audience.test_definitions import DEFAULTS
from tests.dashboard.broadcasts.rig import BroadcastPagesRig
from tests.dashboard.fixtures import PASSWORD, Browser, DashboardRig
from tests.dashboard.provider import CLIENT, SECRET, FakeProvider
from tests.dashboard.test_passkeys import OPTIONS, device
from tests.dashboard.test_single_sign_on import DEVELOPMENT, verified

HOME = "/dashboard"
ANN, NEW_ANN, BOB = "ann@example.com", "new-ann@example.com", "bob@example.com"

# Forms that write no audit entry, and why.
SILENT = {
    f"{HOME}/<path:rest>": "nobody is there",
    f"{HOME}/theme": "a cookie of this browser",
    f"{HOME}/audience/page/preview": "only shows what was not saved",
    f"{HOME}/settings/show": "which account this browser shows",
    f"{HOME}/sign-in/with/<name>": "begins at another service; the answer is checked",
    f"{HOME}/sign-in/sso": "begins at the account's provider; the answer is checked",
    f"{HOME}/sign-up": "nobody is there yet",
}


@attrs.define(eq=False)
class Walk:
    """Sends forms with Ann's browser and checks the audit entry of each."""

    rig: DashboardRig
    ann: Browser
    walked: set[str] = attrs.field(factory=set)

    async def sent(
        self, route: str, line: str, form: dict[str, str] | None = None, *names: object, by: Browser | None = None, query: str = ""
    ) -> None:
        """Send a form to a route; `names` replace its parameters."""
        parts, before = iter(names), await lines(self.rig)
        path = "/".join(str(next(parts)) if part.startswith("<") else part for part in route.split("/"))
        shown = await (by or self.ann).post(f"{HOME}{path}{query}", form)
        left = await lines(self.rig) - before
        assert shown.status in (200, 303), (route, shown.status, shown.text)
        assert left[line] == 1, (route, left, shown.location, shown.text)
        self.walked.add(f"{HOME}{route}")


async def lines(rig: DashboardRig) -> Counter[str]:
    """The audit log of all accounts."""
    await rig.settled()
    return Counter(action for (action,) in await rig.pool.rows("SELECT action FROM audit"))


async def before_there_is_a_domain(walk: Walk) -> None:
    operator = await walk.rig.account("Operator")
    await walk.rig.assembly.domains.add(operator, "try.example", "us-east-1", [])
    await walk.rig.assembly.domains.trust(operator, "try.example")
    await walk.sent("/shared-test", "test email sent", {"once": str(uuid4()), "back": "/dashboard"})
    await walk.rig.pool.run("DELETE FROM domains WHERE name = 'try.example'")


async def around_the_account(walk: Walk, account_id: UUID, bob: UUID) -> None:
    """Ordered so that each form finds what it needs."""
    rig, ann, sent, pool = walk.rig, walk.ann, walk.sent, walk.rig.pool
    await sent("/domains", "domain added", {"name": "acme.example", "region": "us-east-1"})
    [(domain,)] = await pool.rows("SELECT id FROM domains")
    await sent("/domains/<text>/verify", "domain verification requested", {}, domain)
    await sent("/domains/<text>/rotate", "domain keys rotated", {}, domain)
    await rig.assembly.domains.trust(account_id, "acme.example")
    one, later = await rig.mail(account_id, "acme.example"), rig.assembly.domains.now() + timedelta(days=1)
    scheduled = await rig.mail(account_id, "acme.example", later)
    await sent("/steps", "setup steps hidden")
    await sent("/test", "test email sent", {"domain": str(domain), "back": "/dashboard"})
    await sent("/emails/<text>/again", "email resent", {"once": "1"}, one)
    await sent("/emails/<text>/share", "email shared", {"hours": "1"}, one)
    await sent("/emails/<text>/cancel", "email canceled", {}, one)
    await sent("/emails/<text>/reschedule", "email rescheduled", {"at": later.strftime("%Y-%m-%dT%H:%M")}, scheduled)
    await sent("/emails/export", "emails exported", {}, query=f"?id={uuid4()}")
    await sent("/logs/export", "logs exported", {}, query=f"?id={uuid4()}")
    await sent("/domains/<text>/mail", "DNS records mailed", {"email": "admin@acme.example"}, domain)
    await broadcasts(walk, account_id)
    await sent("/domains/<text>/change", "domain changed", {"tls": "enforced"}, domain)
    await sent("/domains/<text>/region", "domain moved", {"region": "eu-west-1"}, domain)
    await sent("/domains/<text>/track", "domain changed", {"tracking_subdomain": "links"}, domain)
    await sent("/domains/<text>/delete", "domain deleted", {"name": "acme.example"}, domain)

    await around_broadcasts(walk)
    await sent("/webhooks", "webhook added", {"url": "https://old.example/", "on:email.sent": "1"})
    [(webhook,)] = await pool.rows("SELECT id FROM webhooks")
    await sent("/webhooks/<text>/test", "webhook tested", {}, webhook)
    [message] = (await WebhookLog(pool).list(account_id, webhook, 9))[0]
    await sent("/webhooks/<text>/events/<event>/replay", "webhook event resent", {}, webhook, message.event_id)
    await pool.run("DELETE FROM webhook_outbox")
    rig.clock.advance(1)
    await sent("/webhooks/<text>/replay", "webhook events resent", {"hours": "24"}, webhook)
    await sent("/webhooks/<text>/enable", "webhook enabled", {}, webhook)
    await sent("/webhooks/<text>/change", "webhook changed", {"url": "https://new.example/", "on:email.sent": "1"}, webhook)
    await sent("/webhooks/<text>/delete", "webhook deleted", {}, webhook)

    await sent("/suppressions", "suppressions added", {"emails": "gone@example.net"})
    [(suppression,)] = await pool.rows("SELECT id FROM suppressions")
    await sent("/suppressions/<text>/remove", "suppression removed", {}, suppression)
    await sent("/suppressions/restore", "suppression restored")
    await sent("/start", "key created")
    await sent("/settings/smtp", "key created")
    await sent("/keys", "key created", {"name": "New", "permission": "full_access"})
    [(key,)] = await pool.rows("SELECT id FROM api_keys WHERE name = 'New'")
    await sent("/keys/<text>/revoke", "key revoked", {}, key)

    await sent("/settings/access/keep", "access kept", {"subject": f"member {bob}"})
    await sent("/settings/invite", "member invited", {"email": "cat@example.com", "role": "developer"})
    [(invited,)] = await pool.rows("SELECT id FROM links WHERE purpose = 'invite'")
    await sent("/settings/invitations/<text>/withdraw", "invitation revoked", {}, invited)
    await ann.post(f"{HOME}/settings/invite", {"email": "cat@example.com", "role": "developer"})
    cat, link = rig.browser(), rig.mailer.link("cat@example.com")
    await cat.get(link)
    form = {"link": link.partition("link=")[2], "name": "Cat", "password": "four quite unrelated words"}
    await sent("/invitation", "invitation accepted", form, by=cat)
    await sent("/settings/members/<text>/role", "role changed", {"role": "admin"}, bob)
    await sent("/settings/members/<text>/remove", "member removed", {}, bob)
    await sent("/settings/account", "account changed", {"name": "Other"})
    await single_sign_on(walk, account_id)
    await sent("/settings/data/retention", "retention changed", dict.fromkeys(KINDS, "7"))
    await sent("/settings/data/minimize", "data minimization changed", {"tracking": "on"})
    await sent("/settings/data/close", "account closed", {"name": "Other"})
    await sent("/settings/data/reopen", "account reopened")
    await sent("/settings/privacy/find", "address searched", {"email": "cat@example.net"})
    await sent("/settings/privacy/export", "personal data exported", {"email": "cat@example.net"})
    await sent("/settings/privacy/erase", "address erased", {"email": "cat@example.net"})


async def around_the_audience(walk: Walk, account_id: UUID) -> None:
    sent, pool = walk.sent, walk.rig.pool
    await sent("/audience/new", "contact saved", {"email": "cat@example.net"})
    [(contact,)] = await pool.rows("SELECT id FROM contacts WHERE email = 'cat@example.net'")
    segment = (await walk.rig.assembly.audience.segments.add(account_id, "Friends")).id
    one = "/audience/contacts/<text>"
    await sent(f"{one}/change", "contact changed", {"first_name": "Cat"}, contact)
    await sent(f"{one}/join", "contact added to a segment", {"segment": str(segment)}, contact)
    await sent(f"{one}/leave", "contact removed from a segment", {"segment": str(segment)}, contact)
    await sent(f"{one}/topics", "topics of a contact changed", {}, contact)
    await sent(f"{one}/subscription", "contact unsubscribed", {"action": "unsubscribe"}, contact)
    await sent(f"{one}/delete", "contact deleted", {}, contact)


async def around_the_definitions(walk: Walk, account_id: UUID) -> None:
    sent, audience = walk.sent, walk.rig.assembly.audience
    for kind, name, form in (
        ("segments", "segment", {"name": "New"}),
        ("topics", "topic", {"name": "New", "visibility": "public", "default_subscription": "opt_out"}),
        ("properties", "contact property", {"key": "new", "type": "string"}),
    ):
        at = f"/audience/{kind}"
        await sent(at, f"{name} created", form)
        [one, *_], _ = await getattr(audience, kind).list(account_id, ALL)
        await sent(f"{at}/<text>/change", f"{name} changed", form, one.id)
        await sent(f"{at}/<text>/delete", f"{name} deleted", {}, one.id)
        await sent(f"{at}/<text>/restore", f"{name} restored", {}, one.id)
    await sent("/audience/page", "preference page changed", {"title": "News", **DEFAULTS})


async def around_the_imports(walk: Walk) -> None:
    """A file is sent as a form of another kind, which `sent` cannot do."""
    ann, before = walk.ann, await lines(walk.rig)
    for action in ("start", "discard"):
        location = (await ann.upload(f"{HOME}/audience/imports", b"email\ncat@example.net\n")).location
        form = {"column:0": "email", "consent": "on"} if action == "start" else {}
        line = "contacts imported" if action == "start" else "uploaded contacts discarded"
        await walk.sent(f"/audience/imports/<text>/{action}", line, form, location.rpartition("/")[2])
    assert (await lines(walk.rig) - before)["contacts uploaded"] == 2
    assert (await ann.upload(f"{HOME}/images", picture())).location == f"{HOME}/images"
    assert (await lines(walk.rig) - before)["image uploaded"] == 1
    [(image,)] = await walk.rig.pool.rows("SELECT id FROM images")
    await walk.sent("/images/<text>/delete", "image deleted", {}, image)
    walk.walked |= {f"{HOME}/audience/imports", f"{HOME}/images"}


async def broadcasts(walk: Walk, account_id: UUID) -> None:
    content = Content(name="News", segment_id=None, sender="news@acme.example", subject="News", html="<p>Hi</p>")
    broadcast = await Broadcasts(walk.rig.pool, walk.rig.clock).add(account_id, content)
    await walk.sent("/broadcasts/<text>/edit/save", "broadcast changed", {"subject": "Other"}, broadcast)
    await walk.sent("/broadcasts/<text>/edit/restore", "broadcast changed", {"version": "1"}, broadcast)
    await walk.sent("/broadcasts/<text>/edit/test", "broadcast tested", {}, broadcast)
    assert await walk.rig.pool.rows("SELECT source FROM emails WHERE subject LIKE 'Test: %%'") == [("test",)]  # it counts towards the plan


async def around_broadcasts(walk: Walk) -> None:
    """Drafts that are sent, scheduled and deleted."""
    sent, made = walk.sent, await BroadcastPagesRig.beside(walk.rig, walk.ann)
    await made.contacts(["reader@example.net"])
    await sent("/broadcasts", "broadcast created")
    one, two = await made.draft(), await made.draft()
    tomorrow = walk.rig.assembly.domains.now() + timedelta(days=1)
    await sent("/broadcasts/<text>/schedule", "broadcast scheduled", {"at": f"{tomorrow:%Y-%m-%dT%H:%M}", "zone": "UTC"}, one)
    await sent("/broadcasts/<text>/unschedule", "broadcast unscheduled", {}, one)
    await sent("/broadcasts/<text>/send", "broadcast sent", {}, one)
    await walk.rig.pool.run("UPDATE broadcasts SET paused_at = now() WHERE id = %s", (one,))
    await sent("/broadcasts/<text>/continue", "broadcast continued", {}, one)
    await sent("/broadcasts/<text>/cancel", "broadcast canceled", {}, one)
    await sent("/broadcasts/<text>/duplicate", "broadcast created", {}, one)
    await sent("/broadcasts/<text>/delete", "broadcast deleted", {}, two)


async def single_sign_on(walk: Walk, account_id: UUID) -> None:
    """Setting it up needs a provider; signing in with it is in test_single_sign_on."""
    fake = FakeProvider().start()
    walk.rig.assembly.fetcher.rules = DEVELOPMENT
    await verified(walk.rig, account_id, "sso.example")
    form = {"issuer": fake.url, "client": CLIENT, "secret": SECRET, "domains": "sso.example"}
    await walk.sent("/settings/sso", "single sign-on set up", form)
    await walk.sent("/settings/sso", "single sign-on changed", form)
    fake.stop()
    await walk.rig.pool.run("UPDATE single_sign_on SET required = true")
    await walk.sent("/settings/sso/require", "single sign-on made optional", {"required": "off"})
    await walk.sent("/settings/sso/remove", "single sign-on removed")


async def around_the_sign_in(walk: Walk) -> None:
    """Forms about signing in."""
    rig, ann, sent = walk.rig, walk.ann, walk.sent
    pool, users, sessions = rig.pool, rig.assembly.users, rig.assembly.sessions
    me = await users.named(ANN)
    assert me is not None
    await sent("/sign-in/again", "identity confirmed", {"password": PASSWORD})
    await sent("/settings/profile/name", "name changed", {"name": "Ann"})
    await sent("/settings/profile/preferences", "preferences changed", {"time_zone": "UTC"})
    await sent("/settings/profile/address", "address change requested", {"email": "other@example.com", "password": PASSWORD})
    await sent("/settings/profile/address/withdraw", "address change canceled")
    await ann.post(f"{HOME}/settings/profile/address", {"email": NEW_ANN, "password": PASSWORD})
    await rig.settled()
    link = rig.mailer.link(NEW_ANN).partition("link=")[2]
    await sent("/settings/profile/address/confirm", "address changed", {"link": link})
    await sent("/settings/security/password", "password changed", {"old": PASSWORD, "password": "another four good words"})
    await rig.inside(NEW_ANN, "another four good words")
    await sent("/settings/security/sessions/<text>/end", "all other sessions ended", {}, "others")

    new, phone = "/settings/passkeys/new", device()
    page = await ann.get(f"{HOME}{new}")
    await sent(new, "passkey added", {"name": "Phone", "answer": phone.make(page.found(OPTIONS))})
    [passkey] = await Passkeys(pool, rig.clock).of(me.id)
    await sent("/settings/passkeys/<text>/name", "passkey renamed", {"name": "Watch"}, passkey.id)
    other = rig.browser()
    page = await other.get(f"{HOME}/sign-in")
    await sent("/sign-in/passkey", "signed in", {"answer": phone.prove(page.found(OPTIONS))}, by=other)
    await ann.get(f"{HOME}/settings/security")
    await sent("/settings/passkeys/<text>/remove", "passkey removed", {}, passkey.id)
    await Identities(pool, rig.clock).add(me.id, Identity("https://issuer.example", "7", "google", NEW_ANN))
    [identity] = await Identities(pool, rig.clock).of(me.id)
    await sent("/settings/identities/<text>/remove", "identity disconnected", {}, identity.id)

    page = await ann.get(f"{HOME}/settings/security/totp")
    codes = pyotp.TOTP(page.found(r'id="secret">([A-Z2-7]+)<'))
    await sent("/settings/security/totp", "second factor added", {"code": codes.at(rig.clock.seconds())})
    await sent("/settings/security/codes", "recovery codes replaced")
    half = rig.browser()
    await half.sign_in(NEW_ANN, "another four good words")
    await half.get(f"{HOME}/sign-in/code")
    rig.clock.advance(30)
    await sent("/sign-in/code", "signed in", {"code": codes.at(rig.clock.seconds())}, by=half)
    await sent("/settings/security/totp/off", "second factor removed")

    outsider = rig.browser()
    await outsider.get(f"{HOME}/sign-in")
    await sent("/sign-in", "signed in", {"email": NEW_ANN, "password": "another four good words"}, by=outsider)
    secret = await sessions.make_link("sign-in", NEW_ANN, timedelta(hours=1))
    await outsider.get(f"{HOME}/sign-in/link?link={secret}")
    await sent("/sign-in/link", "signed in", {"link": secret}, by=outsider)
    await pool.run("UPDATE users SET password = NULL WHERE id = %s", (me.id,))
    await outsider.get(f"{HOME}/sign-in/first")
    await sent("/sign-in/first", "password changed", {"password": "another four good words"}, by=outsider)
    await outsider.get(f"{HOME}/settings")
    await sent("/sign-in/out", "signed out", by=outsider)
    lost = rig.browser()
    await lost.get(f"{HOME}/reset")
    await sent("/reset", "password reset requested", {"email": NEW_ANN}, by=lost)
    await rig.settled()
    link = rig.mailer.link(NEW_ANN)
    await lost.get(link)
    form = {"link": link.partition("link=")[2], "password": "the third of four words"}
    await sent("/reset/finish", "password changed", form, by=lost)
    fresh = rig.browser()
    await fresh.get(f"{HOME}/sign-up")
    await fresh.post(f"{HOME}/sign-up", {"email": "eve@example.com"})
    await rig.settled()
    link = rig.mailer.link("eve@example.com")
    await fresh.get(link)
    form = {"link": link.partition("link=")[2], "name": "Eve", "account": "Eve's", "password": "a fourth set of words"}
    await sent("/sign-up/finish", "account created", form, by=fresh)


def taking_forms(rig: DashboardRig) -> set[str]:
    """All routes that take a form."""
    resources = [*rig.pages._sections.values(), rig.pages._others]
    return {rule.rule for one in resources for rule in one._app.url_map.iter_rules() if "POST" in rule.methods}


@pytest_twisted.ensureDeferred
async def test_every_form_that_changes_something_writes_an_audit_entry(pool: Pool) -> None:
    rig = DashboardRig(pool, test_sender="test@try.example")
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    bob = await rig.person(BOB, account_id, "developer")
    ann = await rig.inside(ANN)
    await ann.get(f"{HOME}/settings")
    walk = Walk(rig, ann)
    await before_there_is_a_domain(walk)
    await around_the_account(walk, account_id, bob.id)
    await around_the_audience(walk, account_id)
    await around_the_imports(walk)
    await around_the_definitions(walk, account_id)
    await around_the_sign_in(walk)
    assert walk.walked | set(SILENT) == taking_forms(rig)
    assert not walk.walked & set(SILENT)


async def started(rig: DashboardRig) -> tuple[UUID, Browser, UUID]:
    """An account, Ann's browser, and a queued email from a verified domain."""
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    await ann.get(f"{HOME}/domains")
    await ann.post(f"{HOME}/domains", {"name": "acme.example", "region": "us-east-1"})
    await rig.assembly.domains.trust(account_id, "acme.example")
    return account_id, ann, await rig.mail(account_id, "acme.example")


@pytest_twisted.ensureDeferred
async def test_a_change_fails_if_its_audit_entry_cannot_be_written(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id, ann, one = await started(rig)
    [(domain,)] = await pool.rows("SELECT id FROM domains")
    later = rig.assembly.domains.now() + timedelta(days=1)
    scheduled = await rig.mail(account_id, "acme.example", later)
    webhook = await rig.assembly.webhooks.add(account_id, "https://old.example/", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    await ann.get(f"{HOME}/webhooks/{webhook.id}")
    await ann.post(f"{HOME}/webhooks/{webhook.id}/test")
    [message] = (await WebhookLog(pool).list(account_id, webhook.id, 9))[0]
    await pool.run("DELETE FROM webhook_outbox")
    tables = (
        "emails", "messages", "queue", "events", "domains", "dkim_keys", "domain_history", "webhook_messages", "webhook_outbox", "exports",
        "idempotency", "audit",
    )  # fmt: skip

    async def everything() -> list[list[object]]:
        return [sorted(map(repr, await pool.rows(f"SELECT t FROM {table} t"))) for table in tables]

    before = await everything()
    await pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    changes: dict[str, dict[str, str]] = {
        "domains": {"name": "other.example", "region": "us-east-1"},
        f"domains/{domain}/verify": {},
        f"domains/{domain}/rotate": {},
        f"emails/{one}/cancel": {},
        f"emails/{one}/again": {"once": "1"},
        f"emails/{one}/share": {"hours": "1"},
        f"emails/{scheduled}/reschedule": {"at": later.strftime("%Y-%m-%dT%H:%M")},
        f"emails/export?id={uuid4()}": {},
        f"logs/export?id={uuid4()}": {},
        f"webhooks/{webhook.id}/test": {},
        f"webhooks/{webhook.id}/events/{message.event_id}/replay": {},
    }
    for path, form in changes.items():
        shown = await ann.post(f"{HOME}/{path}", form)
        assert shown.status in (500, 503), (path, shown.status, shown.text)
    assert await everything() == before
    await pool.run("ALTER TABLE audit DROP CONSTRAINT full_disk")
    for path, form in changes.items():
        shown = await ann.post(f"{HOME}/{path}", form)
        assert shown.status in (200, 303), (path, shown.status, shown.text)


@pytest_twisted.ensureDeferred
async def test_a_change_that_did_not_happen_writes_no_audit_entry(pool: Pool) -> None:
    """Forms that come too late or are sent twice."""
    rig = DashboardRig(pool)
    _, ann, one = await started(rig)
    first = await ann.post(f"{HOME}/emails/{one}/again", {"once": "1"})
    assert (await ann.post(f"{HOME}/emails/{one}/again", {"once": "1"})).location == first.location
    await ann.post(f"{HOME}/emails/{one}/cancel")
    assert (await ann.post(f"{HOME}/emails/{one}/cancel")).query["done"] == "too_late"
    soon = (rig.assembly.domains.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert (await ann.post(f"{HOME}/emails/{one}/reschedule", {"at": soon})).query["done"] == "too_late"
    assert (await ann.post(f"{HOME}/domains", {"name": "acme.example", "region": "us-east-1"})).status == 422
    counts = await lines(rig)
    assert (counts["email resent"], counts["email canceled"], counts["email rescheduled"], counts["domain added"]) == (1, 1, 0, 1)
