"""Attachments and shared emails, by signed links that expire."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.http.problem import Problem
from mailsvc.http.resources.contents import COPIES, IN_THREAD, Contents
from mailsvc.net.signed_links import Opened, SignedLinks
from mailsvc.store.mail.emails import Emails, RecipientView
from mailsvc.store.mail.messages import Messages, _Head
from tests.http.api_rig import GOOD, ApiRig

ONE = Opened(UUID(int=1), UUID(int=2), UUID(int=3))
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\nnot really").decode()


def test_signed_link_opens_its_target_until_it_expires() -> None:
    links = SignedLinks(lambda: (b"secret",))
    token = links.make("share", ONE, 100)
    assert links.read("share", token, 99) == ONE
    assert links.read("share", token, 100) is None
    assert links.read("download", token, 99) is None
    assert SignedLinks(lambda: (b"other",)).read("share", token, 99) is None


def test_changed_signed_link_opens_nothing() -> None:
    links = SignedLinks(lambda: (b"secret",))
    token = links.make("share", ONE, 100)
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        assert links.read("share", base64.urlsafe_b64encode(changed).decode(), 99) is None
    for wrong in ("", "x", "é", token[:-2], token + "AAAA", token * 2, "\0"):
        assert links.read("share", wrong, 99) is None


async def sent(rig: ApiRig, **more: Any) -> str:
    answer = await rig.request("POST", "/emails", {**GOOD, **more})
    assert answer.status == 200, answer.body
    return str(answer.json["id"])


async def shared_page(rig: ApiRig, email: str) -> str:
    url = (await rig.request("POST", f"/emails/{email}/share")).json["url"]
    return (await rig.request("GET", url.removeprefix("https://api.example.com"), key="")).body.decode()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("room", [True, False])
async def test_the_email_of_a_broadcast_waits_for_memory_before_it_is_composed(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Composer:
        async def message(self, account_id: UUID, email_id: UUID, before_large: Any) -> bytes:
            await before_large(IN_THREAD)
            return b"Content-Type: text/plain\r\n\r\nHi"

    class Heads:
        async def submit(self, key: object) -> _Head:
            return _Head(broadcast_id=ONE.email_id)

    class Asked:
        async def turn(self, size: int) -> bool:
            turns.append(size)
            return room

    turns, found, asked = list[int](), Messages(cast(Any, None), None, cast(Any, Composer())), cast(Any, Asked())
    monkeypatch.setattr(found, "_heads", Heads())
    email = cast(Any, SimpleNamespace(account_id=ONE.account_id, email_id=ONE.email_id, source="broadcast", size=0))
    reading = Contents(found, cast(Any, None)).of(asked, email)
    if room:
        assert (await reading).text == "Hi"
    else:
        with pytest.raises(Problem) as refused:
            await reading
        assert refused.value.status == 503
    assert turns == [COPIES * IN_THREAD]


FILES = [
    {"filename": 'Rechnung "€" \u202e.txt', "content": base64.b64encode("Zwölf".encode()).decode()},
    {"filename": "logo.png", "content": PIXEL, "content_type": "image/png", "content_id": "logo"},
    {"filename": "page.html", "content": base64.b64encode(b"<script>alert(1)</script>").decode()},
]


@pytest_twisted.ensureDeferred
async def test_attachments_are_listed_and_downloaded(rig: ApiRig) -> None:
    email = await sent(rig, attachments=FILES)
    listed = (await rig.request("GET", f"/emails/{email}/attachments")).json
    assert listed["has_more"] is False
    by_name = {item["filename"]: item for item in listed["data"]}
    assert set(by_name) == {file["filename"] for file in FILES}
    logo = by_name["logo.png"]
    assert (logo["content_type"], logo["content_id"], logo["content_disposition"]) == ("image/png", "logo", "inline")
    assert logo["size"] == len(base64.b64decode(PIXEL))
    one = (await rig.request("GET", f"/emails/{email}/attachments/{logo['id']}")).json
    assert one["object"] == "attachment" and one["id"] == logo["id"]
    path = one["download_url"].removeprefix("https://api.example.com")
    file = await rig.request("GET", path, key="")
    assert (file.status, file.body, file.headers["content-type"]) == (200, base64.b64decode(PIXEL), "image/png")
    page = await rig.request("GET", by_name["page.html"]["download_url"].removeprefix("https://api.example.com"), key="")
    assert page.headers["content-disposition"].startswith("attachment;") and page.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in page.headers["content-security-policy"]
    euro = await rig.request("GET", by_name[FILES[0]["filename"]]["download_url"].removeprefix("https://api.example.com"), key="")
    assert euro.body.decode().strip() == "Zwölf"
    name = euro.headers["content-disposition"]
    assert name.isascii() and "filename*=UTF-8''Rechnung%20%22%E2%82%AC%22" in name and re.search(r'filename="[^"]*";', name)


@pytest_twisted.ensureDeferred
async def test_download_link_opens_no_other_file(rig: ApiRig) -> None:
    email, other = await sent(rig, attachments=FILES), await sent(rig, attachments=FILES)
    [first, second, *_] = (await rig.request("GET", f"/emails/{email}/attachments")).json["data"]
    token = first["download_url"].partition("token=")[2]
    for path in (f"{email}/attachments/{second['id']}", f"{other}/attachments/{first['id']}"):
        assert (await rig.request("GET", f"/emails/{path}/download?token={token}", key="")).problem == (403, "validation_error")
    assert (await rig.request("GET", f"/emails/{email}/attachments/{first['id']}/download", key="")).status == 403
    assert (await rig.request("GET", f"/shared?token={token}", key="")).status == 403
    right = first["download_url"].removeprefix("https://api.example.com")
    assert (await rig.request("GET", f"{right}&token=theirs", key="")).status == 200
    assert (await rig.request("GET", f"/emails/{email}/attachments/{other}")).problem == (404, "not_found")
    assert (await rig.request("GET", f"/emails/{email}/attachments", key=rig.foreign_key)).problem == (404, "not_found")


@pytest_twisted.ensureDeferred
async def test_attachments_are_paginated(rig: ApiRig) -> None:
    email = await sent(rig, attachments=FILES)
    ids = [item["id"] for item in (await rig.request("GET", f"/emails/{email}/attachments")).json["data"]]
    for query, expected, more in (
        (f"limit=1&after={ids[0]}", ids[1:2], True),
        (f"after={ids[0]}", ids[1:], False),
        (f"limit=1&before={ids[2]}", ids[1:2], True),
        (f"before={ids[0]}", [], False),
        (f"after={email}", [], False),
        ("limit=2", ids[:2], True),
    ):
        page = (await rig.request("GET", f"/emails/{email}/attachments?{query}")).json
        assert ([item["id"] for item in page["data"]], page["has_more"]) == (expected, more), query


@pytest_twisted.ensureDeferred
async def test_shared_email_runs_no_scripts(rig: ApiRig) -> None:
    html = '<p>Hello</p><script>alert(1)</script><img src=x onerror=alert(2)></iframe></body>"'
    email = await sent(rig, html=html, subject="<b>Subject</b>", bcc="secret@example.net")
    for body in (
        b"",
        {},
        {"expires_in": None},
        {"expires_in": "2 hours"},
        {"expires_in": "48h"},
        {"expires_in": "10m"},
        {"expires_in": "1 day"},
        {"expires_in": "1h 30m"},
        {"expires_in": "1 Day 23hours59m"},
    ):
        shared = (await rig.request("POST", f"/emails/{email}/share", body)).json
        assert (shared["object"], shared["id"]) == ("email", email)
    page = await rig.request("GET", shared["url"].removeprefix("https://api.example.com"), key="")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src" not in policy and "frame-ancestors 'none'" in policy
    text = page.body.decode()
    assert "<script" not in text and "<img" not in text and "<b>" not in text and "secret@" not in text
    assert "&lt;script&gt;" in text and 'sandbox="allow-popups allow-popups-to-escape-sandbox"' in text
    plain = await sent(rig, html=None, text="<b>plain</b>")
    assert "&lt;b&gt;plain" in await shared_page(rig, plain)
    assert "@media(prefers-color-scheme:dark){body{" in text and "iframe{height:75vh;color-scheme:light}" in text


@pytest_twisted.ensureDeferred
async def test_shared_email_shows_when_it_is_sent(rig: ApiRig) -> None:
    at = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    scheduled = await sent(rig, scheduled_at=at.isoformat())
    assert f"<dt>Scheduled for</dt><dd>{at:%Y-%m-%d %H:%M} UTC</dd>" in await shared_page(rig, scheduled)
    assert (await rig.request("POST", f"/emails/{scheduled}/cancel")).status == 200
    canceled = await shared_page(rig, scheduled)
    assert "<dt>Status</dt><dd>Canceled before it was sent</dd>" in canceled and "<dt>Sent</dt>" not in canceled


@pytest_twisted.ensureDeferred
async def test_shared_email_shows_whether_it_was_delivered_but_nothing_of_a_bcc(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    email = await sent(rig, to="Zoe <Zoe@example.net>", cc="c@example.net", bcc="b@example.net")
    assert "<dt>Status</dt><dd>Waiting to be sent</dd>" in await shared_page(rig, email)
    for states, text in (
        (("queued", "sending", "bounced"), "Waiting to be sent"),
        (("uncertain", "delayed", "suppressed"), "Not delivered yet: delivery is retried"),
        (("bounced", "failed", "queued"), "Could not be delivered"),
        (("suppressed", "suppressed", "delivered"), "Not sent: the address is suppressed"),
        (("delivered", "queued", "delivered"), "Not delivered to every recipient"),
        (("delivered", "complained", "queued"), None),
        (("history deleted", "delivered", "queued"), None),
    ):
        monkeypatch.setattr(Emails, "recipients", as_if(("Zoe@example.net", "c@example.net", "b@example.net"), states))
        page = await shared_page(rig, email)
        assert ("<dt>Sent</dt>" in page) == (text is None) and (text is None or f"<dt>Status</dt><dd>{text}</dd>" in page), states
    monkeypatch.setattr(Emails, "recipients", as_if(("list-member@example.net",), ("bounced",)))
    assert "Could not be delivered" in await shared_page(rig, email)  # its recipients are in neither To nor Cc


def as_if(addresses: tuple[str, ...], states: tuple[str, ...]) -> Any:
    async def recipients(*_: Any) -> list[RecipientView]:
        return [
            RecipientView(number, address, state, "reason", None, 1, None)
            if state != "history deleted"
            else RecipientView(number, address, "failed", None, None, 0, None)
            for number, (address, state) in enumerate(zip(addresses, states, strict=True))
        ]

    return recipients


@pytest_twisted.ensureDeferred
async def test_shared_email_says_whether_it_has_no_text_or_lost_it(rig: ApiRig) -> None:
    file_only, message = await sent(rig), b"From: a@example.test\r\nContent-Type: application/pdf\r\n\r\nx\r\n"
    await rig.pool.run("UPDATE messages SET bytes = %s", (message,))
    await rig.pool.run("UPDATE emails SET size = %s", (len(message),))
    page = await shared_page(rig, file_only)
    assert "This email has no text." in page and "has been deleted" not in page
    await rig.pool.run("DELETE FROM messages")
    assert "The content of this email has been deleted." in await shared_page(rig, file_only)


@pytest.mark.parametrize("expires_in", ["49h", "3 days", "1 day 25h", "1h 30", "1h, 30m", "0m", "soon", "", "-1h", "1.5h", 5, "999999999d"])
@pytest_twisted.ensureDeferred
async def test_share_refuses_invalid_durations(rig: ApiRig, expires_in: Any) -> None:
    email = await sent(rig)
    assert (await rig.request("POST", f"/emails/{email}/share", {"expires_in": expires_in})).problem == (422, "validation_error")


@pytest_twisted.ensureDeferred
async def test_share_of_another_accounts_email_is_not_found(rig: ApiRig) -> None:
    email = await sent(rig)
    assert (await rig.request("POST", f"/emails/{email}/share", key=rig.foreign_key)).problem == (404, "not_found")
    assert (await rig.request("GET", "/shared?token=x", key="")).problem == (403, "validation_error")
    await rig.flush()
    logs = (await rig.request("GET", "/logs?limit=5")).json["data"]
    bodies = [(await rig.request("GET", f"/logs/{entry['id']}")).json for entry in logs]
    assert not [body for body in bodies if "token=" in str(body["response_body"]) and "token=…" not in str(body["response_body"])]


@pytest_twisted.ensureDeferred
async def test_shared_link_with_other_values_of_its_parameter_works(rig: ApiRig) -> None:
    """Programs that check links on their way to a person may add parameters of their own."""
    url = (await rig.request("POST", f"/emails/{await sent(rig)}/share")).json["url"]
    token = url.partition("=")[2]
    for query in (f"token={token}&token={token}", f"token=theirs&token={token}", f"token={token}&token="):
        page = await rig.request("GET", f"/shared?{query}", key="")
        assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"


@pytest_twisted.ensureDeferred
async def test_people_get_a_page_if_a_shared_link_no_longer_works(rig: ApiRig) -> None:
    email = await sent(rig)
    shared = (await rig.request("POST", f"/emails/{email}/share", {"expires_in": "1h"})).json["url"].removeprefix("https://api.example.com")
    browser = {"key": "", "accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/shared", "/shared?token=x", "/shared?token=x&token=y"):
        page = await rig.request("GET", path, **browser)
        assert (page.status, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert b"This link is not valid or has expired." in page.body and page.headers["cache-control"] == "private, no-store"
        assert (await rig.request("GET", path, key="", accept="*/*")).problem == (403, "validation_error")
    await rig.pool.run("DELETE FROM emails")
    page = await rig.request("GET", shared, **browser)
    assert page.status == 404 and b"This email has been deleted." in page.body and b"Ask whoever sent you" not in page.body
    assert (await rig.request("GET", shared, key="")).problem == (404, "not_found")
    rig.clock.advance(3601)
    assert (await rig.request("GET", shared, **browser)).status == 403


@pytest_twisted.ensureDeferred
async def test_deleted_message_is_reported(rig: ApiRig) -> None:
    email = await sent(rig, attachments=FILES)
    whole = (await rig.request("GET", f"/emails/{email}")).json
    assert whole["html"] and whole["note"] is None
    [file, *_] = (await rig.request("GET", f"/emails/{email}/attachments")).json["data"]
    await rig.pool.run("TRUNCATE messages")
    left = (await rig.request("GET", f"/emails/{email}")).json
    assert (left["html"], left["text"], left["last_event"]) == (None, None, "sent")
    assert left["note"] == "The content of this email has been deleted."
    link = file["download_url"].removeprefix("https://api.example.com")
    for path, key in ((f"/emails/{email}/attachments", None), (f"/emails/{email}/attachments/{file['id']}", None), (link, "")):
        gone = await (rig.request("GET", path) if key is None else rig.request("GET", path, key=key))
        assert (gone.status, gone.json["name"], gone.json["message"]) == (404, "not_found", left["note"])
