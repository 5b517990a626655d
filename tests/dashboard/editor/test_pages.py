"""The editor without its script: what is saved, kept, refused and shown. In a browser: end_to_end/test_broadcast_editor."""

from __future__ import annotations

import json
from html import unescape
from unittest.mock import AsyncMock
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.dashboard.editor.preview import framed
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig, FakeRequest, Response

SCRIPT = {"Accept": "application/json"}
DOCUMENT = json.dumps({"type": "doc", "content": []})


@attrs.define(eq=False)
class Writer:
    """A draft, and Ann at the editor. `base`: as her page has it."""

    rig: DashboardRig
    account_id: UUID
    id: UUID
    ann: Browser
    base: str = ""

    @classmethod
    async def of(cls, pool: Pool, **content: object) -> Writer:
        rig = DashboardRig(pool)
        account_id = await rig.account()
        await rig.person("ann@example.com", account_id)
        given = {"name": "News", "segment_id": None, "sender": "Acme <news@acme.example>", "subject": "News", **content}
        id_ = await Broadcasts(pool, rig.clock).add(account_id, Content(**given))  # type: ignore[arg-type]
        assert isinstance(id_, UUID)
        writer = cls(rig, account_id, id_, await rig.inside("ann@example.com"))
        await writer.open(writer.ann)
        return writer

    @property
    def path(self) -> str:
        return f"/dashboard/broadcasts/{self.id}/edit"

    async def open(self, browser: Browser, view: str = "") -> Response:
        shown = await browser.get(self.path + view)
        self.base = shown.found('name="base" value="([^"]+)"') if shown.status == 200 else ""
        return shown

    async def save(self, browser: Browser, base: str, **fields: str) -> dict[str, object]:
        answer = await browser.post(f"{self.path}/save", {"base": base, **fields}, SCRIPT)
        found: dict[str, object] = json.loads(answer.text)
        return found

    async def versions(self) -> list[tuple[int, str | None, str]]:
        return [tuple(row) for row in await self.rig.pool.rows("SELECT version, author, editor FROM broadcast_versions ORDER BY version")]  # type: ignore[misc]


@pytest_twisted.ensureDeferred
async def test_what_others_saved_is_kept(pool: Pool) -> None:
    writer = await Writer.of(pool)
    ann, old = writer.ann, writer.base
    first = await writer.save(ann, old, html="<p>One</p>", document=DOCUMENT)
    again = await writer.save(ann, str(first["base"]), html="<p>Two</p>", document=DOCUMENT)
    assert again["overwritten"] is None and await writer.versions() == [(2, "ann@example.com", "react-email/1")]  # one version in a minute
    await writer.rig.person("bob@example.com", writer.account_id)
    bob = await writer.rig.inside("bob@example.com")
    await writer.open(bob)
    late = await writer.save(bob, old, html="<p>Three</p>", document=DOCUMENT)
    assert isinstance(late["overwritten"], dict) and (late["overwritten"]["version"], late["overwritten"]["author"]) == (
        2,
        "ann@example.com",
    )
    assert [author for _, author, _ in await writer.versions()] == ["ann@example.com", "bob@example.com"]
    state = json.loads((await ann.get(f"{writer.path}/state")).text)
    assert state["base"] == late["base"] != again["base"] and state["newest"]["author"] == "bob@example.com"
    of_bob = json.loads((await bob.get(f"{writer.path}/state")).text)
    assert (late["overwritten"]["mine"], state["newest"]["mine"], of_bob["newest"]["mine"]) == (False, False, True)

    await Broadcasts(pool, writer.rig.clock).update(writer.account_id, writer.id, {"html": "<p>API</p>"})
    assert "<p>API</p>" in (await writer.open(ann)).text.replace("&lt;", "<").replace("&gt;", ">")
    await writer.save(ann, writer.base, html="<p>Five</p>", document="")
    assert [(author, editor) for _, author, editor in await writer.versions()][-2:] == [(None, "html"), ("ann@example.com", "html")]

    await writer.open(ann)
    assert (await ann.post(f"{writer.path}/restore", {"version": "3"})).location.endswith("done=restored")
    assert await Broadcasts(pool, writer.rig.clock).bodies(writer.account_id, writer.id) == ("<p>Three</p>", None)
    assert (await writer.open(ann)).found('data-content="([^"]+)"') == DOCUMENT
    sql = "UPDATE broadcasts SET status = 'sent', started_at = now(), text = 'Three' WHERE id = %s"
    await pool.run(sql, (writer.id,))  # its text was made from the HTML
    copied = await ann.post(f"/dashboard/broadcasts/{writer.id}/duplicate")
    assert 'id="editor"' in (await ann.get(f"{copied.location.partition('?')[0]}/edit")).text


@pytest_twisted.ensureDeferred
async def test_wrong_fields_are_named_and_nothing_is_saved(pool: Pool) -> None:
    writer = await Writer.of(pool, html="<p>Hi</p>")
    wrong = {"subject": "x" * 999, "reply_to": "nobody", "segment": str(UUID(int=1)), "from_local": "a b", "document": "[]"}
    for name in ("subject", "reply_to", "from_local", "document", "segment"):
        more = {"from_domain": "acme.example"} if name == "from_local" else {}
        found = await writer.save(writer.ann, writer.base, **{name: wrong[name], **more})
        assert list(found["errors"]) == [name], found  # type: ignore[call-overload]
    assert await writer.versions() == []
    shown = await writer.ann.post(f"{writer.path}/save", {"subject": wrong["subject"]})  # without scripts
    assert shown.status == 422 and "at most 998 characters" in shown.text and wrong["subject"] in shown.text


@pytest_twisted.ensureDeferred
async def test_reply_addresses_whose_names_have_commas(pool: Pool) -> None:
    jane = r'"Doe; Jane, \"JD, Inc.\"" <jane@acme.example>'
    writer = await Writer.of(pool, html="<p>Hi</p>", reply_to=(jane,))
    typed = unescape((await writer.open(writer.ann)).found('name="reply_to" type="text" value="([^"]*)"'))
    assert typed == jane
    for given, stored in ((typed, [jane]), (f"{typed}; bob@acme.example,", [jane, "bob@acme.example"])):
        found = await writer.save(writer.ann, writer.base, reply_to=given)
        assert "errors" not in found
        assert list((await Broadcasts(pool, writer.rig.clock).list(writer.account_id, Page(1)))[0][0].reply_to) == stored


@pytest_twisted.ensureDeferred
async def test_the_preview_has_the_values_of_the_contact_and_a_policy_of_its_own(pool: Pool) -> None:
    writer = await Writer.of(
        pool, html="<html><head></head><body>{{{contact.first_name|you}}} <a href='{{{UNSUBSCRIBE_URL}}}'>x</a></body></html>"
    )
    shown = await writer.ann.get(f"{writer.path}/preview")
    assert '<base target="_blank">' in shown.text and "you <a href='http://localhost:8025/unsubscribe'>" in shown.text
    policy = shown.headers["content-security-policy"]
    assert policy.startswith("sandbox") and "default-src 'none'" in policy and "script-src" not in policy
    assert "color-scheme:dark" in (await writer.ann.get(f"{writer.path}/preview?view=dark")).text
    assert (await writer.ann.get(f"{writer.path}/preview?view=text")).headers["content-type"].startswith("text/plain")
    missing = await writer.ann.get(f"{writer.path}/preview?contact=nobody@example.net")
    assert missing.status == 422 and "no contact with this address" in missing.text
    assert "frame-ancestors 'self'" in missing.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("html", "begins"),
    [
        ("<p>x", "*<p>x"),
        ("<!-- <head> --><html lang='a>b'>\n<head class=x><meta>", "<!-- <head> --><html lang='a>b'>\n<head class=x>*<meta>"),
        ("<!--[if mso]><head><![endif]--><!doctype html><HEAD><b>", "<!--[if mso]><head><![endif]--><!doctype html><HEAD>*<b>"),
        ("<!doctype html><header>x</header>", "<!doctype html>*<header>x</header>"),
        ("<!-- not ended <head>", "*<!-- not ended <head>"),
        ("<!--><head>-->", "<!--><head>*-->"),
    ],
)  # fmt: skip
def test_the_preview_adds_to_the_head_and_to_no_comment(html: str, begins: str) -> None:
    """Nothing precedes the document type, without which browsers show a page as those of the nineties."""
    assert framed(html, dark=False) == begins.replace("*", '<base target="_blank">')


@pytest_twisted.ensureDeferred
async def test_a_preview_and_a_test_email_need_memory_for_long_content(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await Writer.of(pool, html=f"<p>{'x' * 70_000}</p>")
    assert (await writer.ann.get(f"{writer.path}/preview")).status == 200
    monkeypatch.setattr(FakeRequest, "turn", AsyncMock(return_value=False))
    shown = await writer.ann.get(f"{writer.path}/preview")
    assert shown.status == 503 and "Try again in a few seconds" in shown.text
    assert "frame-ancestors 'self'" in shown.headers["content-security-policy"]
    tested = await writer.ann.post(f"{writer.path}/test")
    assert tested.status == 422 and "Try again in a few seconds" in tested.text


@pytest_twisted.ensureDeferred
async def test_the_policy_has_a_new_nonce_and_nothing_unsafe(pool: Pool) -> None:
    writer = await Writer.of(pool)
    shown = [await writer.ann.get(writer.path) for _ in range(2)]
    policies = [each.headers["content-security-policy"] for each in shown]
    assert policies[0] != policies[1] and all("unsafe" not in each and "script-src 'self'" in each for each in policies)
    assert shown[0].found('data-nonce="([^"]+)"') in policies[0]


@pytest_twisted.ensureDeferred
async def test_only_drafts_of_the_account_are_edited(pool: Pool) -> None:
    writer = await Writer.of(pool, html="<p>Hi</p>")
    await writer.rig.person("eve@example.com")
    eve = await writer.rig.inside("eve@example.com")
    paths = ("", "/state", "/versions", "/preview")
    assert [(await eve.get(writer.path + each)).status for each in paths] == [404] * len(paths)
    assert (await eve.post(f"{writer.path}/save", {"subject": "Mine"})).status == 404
    await pool.run("UPDATE broadcasts SET status = 'sent'")
    assert (await writer.ann.get(writer.path)).location == f"/dashboard/broadcasts/{writer.id}?done=not-draft"
    assert (await writer.ann.post(f"{writer.path}/save", {"subject": "Late"}, SCRIPT)).status == 409


@pytest_twisted.ensureDeferred
async def test_a_test_leads_to_its_email_only_for_those_who_can_read_emails(pool: Pool) -> None:
    writer = await Writer.of(pool, html="<p>Hi</p>")
    await writer.rig.assembly.domains.add(writer.account_id, "acme.example", "us-east-1", [])
    await writer.rig.assembly.domains.trust(writer.account_id, "acme.example")
    for email, role, sees in (("dan@example.com", "developer", True), ("mia@example.com", "marketing", False)):
        await writer.rig.person(email, writer.account_id, role)  # type: ignore[arg-type]
        browser = await writer.rig.inside(email)
        await browser.get(writer.path)
        answer = json.loads((await browser.post(f"{writer.path}/test", {}, SCRIPT)).text)
        assert (answer["to"], "id" in answer) == (email, sees)
        shown = await browser.post(f"{writer.path}/test")  # without scripts
        assert shown.location.startswith("/dashboard/emails/" if sees else f"{writer.path}?done=tested")
    assert "The test email was sent." in (await browser.get(shown.location)).text


@pytest_twisted.ensureDeferred
async def test_the_state_has_the_token_of_a_new_session(pool: Pool) -> None:
    writer = await Writer.of(pool)
    again = await writer.rig.inside("ann@example.com")
    again.token = writer.ann.token
    assert (await again.post(f"{writer.path}/save", {"subject": "More"}, SCRIPT)).status == 403
    again.token = json.loads((await again.get(f"{writer.path}/state")).text)["token"]
    assert (await again.post(f"{writer.path}/save", {"subject": "More"}, SCRIPT)).status == 200
