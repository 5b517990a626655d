"""Emails of the API whose opens and clicks are tracked, and those that must not be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.incoming import AsReceived, Incoming
from mailsvc.intake import Limits
from mailsvc.mail import mime
from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.tracking import token
from mailsvc.mail.tracking.token import Tracked
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.objections import Objections
from mailsvc.store.mail.messages import Messages
from mailsvc.tracking import outgoing
from mailsvc.tracking.outgoing import OutgoingTracking, Spliced
from tests.http.api_rig import GOOD, ApiRig
from tests.store.encryption.test_secrets import ENCRYPTION

HOST = "track.example.net"
SECRETS = ENCRYPTION.numbered_secrets_for("tracking")
HTML = (
    '<html><body><p>Hello</p><a href="https://shop.example/?a=1&amp;b=2">Shop</a> <a href="mailto:a@example.com">Write</a> '
    '<a href="https://shop.example/terms" ses:no-track>Terms</a> <a href="https://out.example/?u=1">Unsubscribe</a></body></html>'
)
MAIL = {**GOOD, "html": HTML, "headers": {"List-Unsubscribe": "<mailto:u@example.test>, <https://out.example/?u=1>"}}


async def at_once(work: Any) -> Any:
    return work()


@pytest.fixture
def tracking(rig: ApiRig) -> OutgoingTracking:
    objections = Objections(AudienceKeys(rig.pool, ENCRYPTION))
    tracking = OutgoingTracking(HOST, lambda: SECRETS, objections, at_once, frozenset({"private.example"}))
    rig.intake.tracking = tracking
    return tracking


async def switch(rig: ApiRig, **fields: object) -> None:
    assert (await rig.request("PATCH", f"/domains/{rig.domain_id}", fields)).status == 200


async def html_of(rig: ApiRig, **fields: object) -> str:
    sent = await rig.request("POST", "/emails", {**MAIL, **fields})
    assert sent.status == 200, sent.body
    html: str = (await rig.request("GET", f"/emails/{sent.json['id']}")).json["html"]
    return html


@pytest_twisted.ensureDeferred
async def test_links_and_opens_are_tracked_and_nothing_else_changes(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, open_tracking=True, click_tracking=True)
    sent = await rig.request("POST", "/emails", MAIL)
    read = (await rig.request("GET", f"/emails/{sent.json['id']}")).json
    clicks, opens = (re.findall(rf"https://{HOST}/{path}/([A-Za-z0-9_-]+)", read["html"]) for path in "co")
    day = token.day_of(rig.intake.clock())
    email = Tracked(rig.account_id, UUID(sent.json["id"]), day)
    assert [token.read(each, SECRETS) for each in clicks] == [attrs.evolve(email, link=1, url="https://shop.example/?a=1&b=2")]
    assert [token.read(each, SECRETS) for each in opens] == [email]
    pixel = f'<img src="https://{HOST}/o/{opens[0]}" alt="" width="1" height="1" style="display:block;width:1px;height:1px;border:0">'
    expected = HTML.replace("https://shop.example/?a=1&amp;b=2", f"https://{HOST}/c/{clicks[0]}").replace(" ses:no-track", "")
    assert read["html"] == expected.replace("</body>", f"{pixel}</body>")
    assert "shop.example/?a=1&b=2" in read["text"] and HOST not in read["text"]


@pytest_twisted.ensureDeferred
async def test_links_to_the_service_itself_have_its_scheme_and_port_and_are_not_tracked(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, click_tracking=True)
    tracking.base_url = f"http://{HOST}:8025"
    html = await html_of(rig, html=f'<a href="https://x.example/">1</a><a href="http://{HOST}:8025/shared?token=y">2</a>')
    first, second = re.findall('href="([^"]+)"', html)
    assert first.startswith(f"http://{HOST}:8025/c/") and second == f"http://{HOST}:8025/shared?token=y"
    tracking.base_url = "http://localhost:8025"
    assert f'href="https://{HOST}/c/' in await html_of(rig)


@pytest_twisted.ensureDeferred
async def test_each_switch_works_alone_and_is_off_by_default(rig: ApiRig, tracking: OutgoingTracking) -> None:
    assert await html_of(rig) == HTML
    await switch(rig, open_tracking=True)
    html = await html_of(rig)
    assert f"{HOST}/o/" in html and f"{HOST}/c/" not in html
    await switch(rig, open_tracking=False, click_tracking=True)
    html = await html_of(rig)
    assert f"{HOST}/o/" not in html and f"{HOST}/c/" in html
    assert (await rig.request("POST", "/emails", {**GOOD, "html": None, "text": "https://shop.example"})).status == 200


@pytest_twisted.ensureDeferred
async def test_nothing_is_tracked_until_the_tracking_subdomain_is_verified(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, open_tracking=True, click_tracking=True, tracking_subdomain="links")
    assert await html_of(rig) == HTML


@pytest_twisted.ensureDeferred
async def test_one_listed_recipient_is_enough_to_track_nobody(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, click_tracking=True)
    for fields in {"to": "a@private.example"}, {"cc": ["A@Sub.Private.Example"]}, {"bcc": "a@private.example"}:
        assert await html_of(rig, **fields) == HTML
    assert await html_of(rig, to="a@notprivate.example") != HTML


@pytest_twisted.ensureDeferred
async def test_who_objected_is_not_tracked_even_after_the_contact_was_deleted(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, click_tracking=True)
    contact = (await rig.request("POST", "/contacts", {"email": "zoe@example.net"})).json["id"]
    assert await html_of(rig, to="Zoe@example.net") != HTML
    assert (await rig.request("PATCH", f"/contacts/{contact}", {"untracked": True})).status == 200
    assert (await rig.request("GET", f"/contacts/{contact}")).json["untracked"] is True
    assert await html_of(rig, to=["somebody@example.net", "Zoe@example.net"]) == HTML
    assert await html_of(rig, to="somebody@example.net") != HTML

    await rig.request("DELETE", f"/contacts/{contact}")
    assert await html_of(rig, to="zoe@example.net") == HTML
    contact = (await rig.request("POST", "/contacts", {"email": "zoe@example.net", "untracked": False})).json["id"]
    assert (await rig.request("GET", f"/contacts/{contact}")).json["untracked"] is True

    await rig.request("PATCH", f"/contacts/{contact}", {"untracked": False})
    assert await html_of(rig, to="zoe@example.net") != HTML
    await rig.request("DELETE", f"/contacts/{contact}")
    assert await html_of(rig, to="zoe@example.net") != HTML


@pytest_twisted.ensureDeferred
async def test_a_message_that_tracking_would_make_too_large_is_sent_without(rig: ApiRig, tracking: OutgoingTracking) -> None:
    await switch(rig, open_tracking=True)
    rig.intake.limits = Limits(message=1200)
    html = "<p>Hello</p>" + "x" * 300
    assert await html_of(rig, html=html, headers={}) == html
    rig.intake.limits = Limits(message=3000)
    assert await html_of(rig, html=html, headers={}) != html


@pytest_twisted.ensureDeferred
async def test_the_message_is_stored_with_its_tracked_links(rig: ApiRig, tracking: OutgoingTracking) -> None:
    """It is signed and sent as it is stored."""
    await switch(rig, click_tracking=True)
    sent = await rig.request("POST", "/emails", {**MAIL, "html": HTML + "x" * 100_000})
    stored = await Messages(rig.pool, rig.site.reactor).load(rig.account_id, UUID(sent.json["id"]))
    assert stored is not None and f"https://{HOST}/c/".encode() in stored.body.replace(b"=\r\n", b"")


@attrs.frozen
class Large:
    """A message that is not in memory."""

    pieces: tuple[bytes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


def submitted(message: bytes | Large, **changes: Any) -> Incoming:
    sender = parse_mailbox("hello@example.test")
    content = AsReceived(message, ("zoe@example.net",), "<1@example.test>")
    return Incoming(sender, (sender,), "x", content, **{"source": "smtp", **changes})


MESSAGE = (
    b"List-Unsubscribe: <https://out.example/?u=1>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/html\r\n\r\n" + HTML.encode() + b"\r\n--b\r\nContent-Type: x/y\r\n\r\n"
)


@pytest_twisted.ensureDeferred
async def test_submitted_messages_are_tracked(rig: ApiRig, tracking: OutgoingTracking, monkeypatch: pytest.MonkeyPatch) -> None:
    await switch(rig, click_tracking=True, open_tracking=True)
    domain = await rig.intake.domains.find(rig.account_id, "example.test")
    assert domain is not None
    monkeypatch.setattr(outgoing, "BEGINNING", 2000)
    whole = MESSAGE + b"".join(b"%06d\r\n" % n for n in range(20_000)) + b"--b--\r\n"
    large = Large(tuple(whole[at : at + 1500] for at in range(0, len(whole), 1500)))
    created = []
    for message in whole, large:
        email = await tracking.track(submitted(message), domain, UUID(int=9), datetime.now(UTC))
        assert isinstance(email.content, AsReceived)
        got = email.content.message
        created.append(got if isinstance(got, bytes) else b"".join(got))
        assert len(created[-1]) == len(got) and (isinstance(got, Spliced) or message is whole)
    assert created[0] == created[1] and created[0].endswith(whole[len(MESSAGE) :])
    html = mime.parse(created[0]).html or ""
    assert html.count(f"https://{HOST}/c/") == 1 and f"https://{HOST}/o/" in html and "https://out.example/?u=1" in html

    plain, again = submitted(b"Subject: x\r\n\r\nhttps://x\r\n"), submitted(whole, source="again")
    for email in plain, again, submitted(whole, source="system"):
        assert await tracking.track(email, domain, UUID(int=9), datetime.now(UTC)) is email
