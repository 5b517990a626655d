"""Broadcasts over the API: the states, what is refused, previews and reviews."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID, uuid4

import attrs
import orjson
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.http.fields import Bounds, Rules
from mailsvc.http.problem import Problem
from mailsvc.http.request import Request
from mailsvc.http.resources.broadcasts import broadcasts, fields
from mailsvc.policy import Limits
from mailsvc.runtime.budget import Turns
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.ids import uuid7
from tests.http.api_rig import ApiRig

HTML = '<p>Hi {{{contact.first_name|there}}} of {{{contact.city}}}, <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">leave</a></p>'


async def segment(rig: ApiRig, name: str = "All") -> str:
    return str((await rig.request("POST", "/segments", {"name": name})).json["id"])


def content(segment_id: str, **changes: Any) -> dict[str, Any]:
    given = {"segment_id": segment_id, "from": "Acme <news@example.test>", "subject": "Hi {{{FIRST_NAME|you}}}", "html": HTML}
    return {**given, **changes}


async def create(rig: ApiRig, segment_id: str, **changes: Any) -> str:
    response = await rig.request("POST", "/broadcasts", content(segment_id, **changes))
    assert response.status == 201, response.json
    return str(response.json["id"])


async def status(rig: ApiRig, id_: str) -> str:
    return str((await rig.request("GET", f"/broadcasts/{id_}")).json["status"])


@pytest_twisted.ensureDeferred
async def test_a_draft_is_created_changed_and_read(rig: ApiRig) -> None:
    news = await segment(rig)
    topic = (await rig.request("POST", "/topics", {"name": "News", "default_subscription": "opt_in"})).json["id"]
    id_ = await create(rig, news, reply_to="a@example.test", preview_text="What's new", topic_id=topic, text="")
    shown = (await rig.request("GET", f"/broadcasts/{id_}")).json
    assert (shown["object"], shown["name"], shown["status"]) == ("broadcast", "Hi {{{FIRST_NAME|you}}}", "draft")
    assert (shown["segment_id"], shown["audience_id"], shown["topic_id"]) == (news, news, topic)
    assert (shown["from"], shown["reply_to"], shown["preview_text"]) == ("Acme <news@example.test>", ["a@example.test"], "What's new")
    assert (shown["html"], shown["text"], shown["counts"]) == (HTML, "", {})
    changes = {"broadcast_id": id_, "name": "November", "topic_id": None, "reply_to": ["b@example.test"]}
    changes |= {"from": None, "subject": None, "segment_id": None, "audience_id": None}
    assert (await rig.request("PATCH", f"/broadcasts/{id_}", changes)).json == {"object": "broadcast", "id": id_}
    shown = (await rig.request("GET", f"/broadcasts/{id_}")).json
    assert (shown["name"], shown["topic_id"], shown["reply_to"], shown["html"]) == ("November", None, ["b@example.test"], HTML)
    assert (shown["from"], shown["subject"], shown["segment_id"]) == ("Acme <news@example.test>", "Hi {{{FIRST_NAME|you}}}", news)
    [row] = (await rig.request("GET", "/broadcasts")).json["data"]
    assert row == {key: shown[key] for key in row}
    assert (await rig.request("DELETE", f"/broadcasts/{id_}")).json == {"object": "broadcast", "id": id_, "deleted": True}
    assert (await rig.request("GET", f"/broadcasts/{id_}")).json["message"] == "Broadcast not found"


@pytest_twisted.ensureDeferred
async def test_a_long_list_is_streamed_in_pieces(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, 10,000 broadcasts take a good part of a second, in which no other request would be answered."""
    news = await segment(rig)
    ids = [await create(rig, news) for _ in range(5)][::-1]
    whole = (await rig.request("GET", "/broadcasts?limit=100")).json
    monkeypatch.setattr(broadcasts, "CHUNK", 2)
    stored = Broadcasts(rig.pool, rig.clock)
    pieces = [piece async for piece in broadcasts._everything(stored, rig.account_id)]
    assert len(pieces) == 5 and orjson.loads(b"".join(pieces)) == whole
    some = orjson.loads(b"".join([piece async for piece in broadcasts._everything(attrs.evolve(stored, listed=3), rig.account_id)]))
    assert ([row["id"] for row in some["data"]], some["has_more"]) == (ids[:3], True)


@pytest_twisted.ensureDeferred
async def test_states(rig: ApiRig) -> None:
    id_ = await create(rig, await segment(rig), name="n" * 80)
    assert (await rig.request("POST", f"/broadcasts/{id_}/send", {"scheduled_at": "in 1 hour"})).json == {"object": "broadcast", "id": id_}
    assert await status(rig, id_) == "scheduled"
    assert (await rig.request("PATCH", f"/broadcasts/{id_}", {"subject": "Later"})).status == 200
    for wrong in ({"html": None, "text": None}, {"html": None}, {"subject": " "}, {"from": "a@unverified.test"}):
        refused = await rig.request("PATCH", f"/broadcasts/{id_}", wrong)
        assert refused.status in (403, 422), wrong
    shown = (await rig.request("GET", f"/broadcasts/{id_}")).json
    assert (shown["subject"], shown["html"], shown["from"]) == ("Later", HTML, "Acme <news@example.test>")
    assert (await rig.request("POST", f"/broadcasts/{id_}/send")).json["message"] == "Only draft broadcasts can be sent"
    assert (await rig.request("POST", f"/broadcasts/{id_}/cancel")).json == {"object": "broadcast", "id": id_}
    assert await status(rig, id_) == "draft"
    refused = await rig.request("POST", f"/broadcasts/{id_}/cancel")
    assert (refused.status, refused.json["message"]) == (403, "Only queued or scheduled broadcasts can be canceled")
    assert (await rig.request("POST", f"/broadcasts/{id_}/send", {"scheduled_at": "", "broadcast_id": id_})).status == 200
    assert await status(rig, id_) == "queued"
    assert (await rig.request("PATCH", f"/broadcasts/{id_}", {"subject": "Too late"})).status == 403
    assert (await rig.request("PATCH", f"/broadcasts/{id_}", {"name": "Still possible"})).status == 200
    refused = await rig.request("DELETE", f"/broadcasts/{id_}")
    assert (refused.status, refused.json["message"]) == (403, "Only draft or scheduled broadcasts can be deleted")
    assert (await rig.request("POST", f"/broadcasts/{id_}/continue")).status == 403
    assert (await rig.request("POST", f"/broadcasts/{id_}/cancel")).status == 200
    assert await status(rig, id_) == "canceled"
    await rig.request("PATCH", f"/broadcasts/{id_}", {"name": "n" * 80})
    copy = await rig.request("POST", f"/broadcasts/{id_}/duplicate")
    shown = (await rig.request("GET", f"/broadcasts/{copy.json['id']}")).json
    assert (copy.status, shown["name"], shown["status"], shown["html"]) == (201, "n" * 63 + " (copy)", "draft", HTML)


@pytest_twisted.ensureDeferred
async def test_create_and_send_at_once(rig: ApiRig) -> None:
    news = await segment(rig)
    assert await status(rig, await create(rig, news, send=True)) == "queued"
    assert await status(rig, await create(rig, news, send=True, scheduled_at="tomorrow at 9am")) == "scheduled"
    only_old_name = content(news)
    only_old_name["audience_id"] = only_old_name.pop("segment_id")
    assert (await rig.request("POST", "/broadcasts", only_old_name)).status == 201
    assert await create(rig, news, audience_id=news)
    assert await create(rig, news, audience_id="")


UNVERIFIED = "The `other.test` domain is not verified. Please, add and verify your domain."
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"segment_id": None}, 422, "Missing `segment_id` field."),
    ({"from": None}, 422, "Missing `from` field."),
    ({"subject": ""}, 422, "Missing `subject` field."),
    ({"segment_id": str(uuid4())}, 404, "Audience not found"),
    ({"audience_id": str(uuid4())}, 422, "The `audience_id` field is the former name of `segment_id` and has another value. Leave it out."),
    ({"topic_id": str(uuid4())}, 404, "Topic not found"),
    ({"scheduled_at": "in 1 hour"}, 422, "The `scheduled_at` field can only be given together with `send`."),
    ({"send": True, "html": ""}, 422, "The broadcast has no content: set the `html` or the `text` field."),
    ({"send": True, "from": "a@other.test"}, 403, f"The `from` field: {UNVERIFIED}"),
    ({"html": "a\0b"}, 422, "The `html` field must not have a NUL character."),
    ({"send": "yes"}, 422, "The `send` field must be true or false."),
    ({"hourly_rate": 0}, 422, "The `hourly_rate` field must be a whole number from 1 to 1000000000."),
]


@pytest_twisted.ensureDeferred
async def test_refused(rig: ApiRig) -> None:
    given = content(await segment(rig))
    for change, status, message in REFUSED:
        response = await rig.request("POST", "/broadcasts", {**given, **change})
        assert (response.status, response.json["message"]) == (status, message)
    assert (await rig.request("GET", "/broadcasts")).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_a_preview_that_long_values_make_large_waits_for_memory(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    news = await segment(rig)
    for email, name in (("ada@example.net", "é" * 200), ("bob@example.net", "Bob")):
        assert (await rig.request("POST", "/contacts", {"email": email, "first_name": name})).status == 201
    path = f"/broadcasts/{await create(rig, news, html=HTML + '{{{FIRST_NAME}}}' * 200)}/preview"
    assert (await rig.request("GET", f"{path}?contact=ada@example.net")).json["html"].endswith("é" * 40_000)
    monkeypatch.setattr(Request, "turn", AsyncMock(return_value=False))
    assert (await rig.request("GET", f"{path}?contact=ada@example.net")).status == 503
    assert (await rig.request("GET", f"{path}?contact=bob@example.net")).status == 200


@pytest_twisted.ensureDeferred
async def test_preview_and_review(rig: ApiRig) -> None:
    news = await segment(rig)
    await rig.request("POST", "/contact-properties", {"key": "city", "type": "string"})
    for email, more in (("ada@example.net", {"first_name": "Ada & Co", "properties": {"city": "London"}}), ("bob@example.net", {})):
        assert (await rig.request("POST", "/contacts", {"email": email, "segments": [{"id": news}], **more})).status == 201
    id_ = await create(rig, news)
    shown = (await rig.request("GET", f"/broadcasts/{id_}/preview?contact=ada@example.net")).json
    assert shown["subject"] == "Hi Ada & Co"
    assert shown["html"] == '<p>Hi Ada &amp; Co of London, <a href="https://example.com/unsubscribe">leave</a></p>'
    assert shown["text"] == "Hi Ada & Co of London, leave (https://example.com/unsubscribe)"
    for nobody in ("nobody@example.net", "a%00@example.net", "x"):
        assert (await rig.request("GET", f"/broadcasts/{id_}/preview?contact={nobody}")).status == 404
    review = (await rig.request("GET", f"/broadcasts/{id_}/review")).json
    assert (review["contacts"], review["problems"], review["missing"]) == (2, [], [{"key": "city", "contacts": 1}])
    await rig.request("PATCH", f"/broadcasts/{id_}", {"html": "Hi {{{contact.nothing}}}", "from": "a@other.test"})
    problems = (await rig.request("GET", f"/broadcasts/{id_}/review")).json["problems"]
    assert [problem.split(" ")[0:3] for problem in problems] == [
        ["The", "`from`", "field:"], ["The", "placeholder", "`contact.nothing`"], ["The", "content", "has"]
    ]  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_a_draft_whose_topic_was_deleted_is_not_sent(rig: ApiRig) -> None:
    topic = (await rig.request("POST", "/topics", {"name": "News", "default_subscription": "opt_in"})).json["id"]
    id_ = await create(rig, await segment(rig), topic_id=topic)
    await rig.request("DELETE", f"/topics/{topic}")
    refused = await rig.request("POST", f"/broadcasts/{id_}/send")
    assert (refused.status, refused.json["message"], await status(rig, id_)) == (404, "Topic not found", "draft")
    assert "The topic was deleted." in (await rig.request("GET", f"/broadcasts/{id_}/review")).json["problems"]
    await rig.request("PATCH", f"/broadcasts/{id_}", {"topic_id": None})
    assert (await rig.request("POST", f"/broadcasts/{id_}/send")).status == 200


@pytest_twisted.ensureDeferred
async def test_the_review_says_that_the_segment_was_deleted(rig: ApiRig) -> None:
    news = await segment(rig)
    await rig.request("POST", "/contacts", {"email": "ada@example.net", "segments": [{"id": news}]})
    id_ = await create(rig, news, html='<a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>')
    await rig.request("DELETE", f"/segments/{news}")
    review = (await rig.request("GET", f"/broadcasts/{id_}/review")).json
    assert (review["contacts"], review["problems"], review["missing"]) == (0, ["The segment was deleted."], [])


@pytest_twisted.ensureDeferred
async def test_recipients(rig: ApiRig) -> None:
    news = await segment(rig)
    id_ = await create(rig, news, send=True)
    people = {}
    for number, domain in enumerate(("xn--bcher-kva.example", "example.net", "example.net")):
        email = f"c{number}@{domain}"
        people[email] = (await rig.request("POST", "/contacts", {"email": email})).json["id"]
        email_id = uuid7(rig.site.reactor.seconds())
        row = (rig.account_id, UUID(id_), UUID(people[email]), email_id, number)
        await rig.pool.run("INSERT INTO broadcast_recipients VALUES (%s, %s, %s, %s, %s)", row)
        sql = "INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data) VALUES (%s, %s, %s, 0, %s, now(), %s)"
        data = {"type": "Permanent"}
        kind = "email.bounced" if number == 1 else "email.delivered"
        await rig.pool.run(sql, (rig.account_id, email_id, uuid7(rig.site.reactor.seconds()), kind, data))

    async def listed(query: str) -> list[Any]:
        response = await rig.request("GET", f"/broadcasts/{id_}/recipients?{query}")
        assert response.status == 200, response.json
        return [(row["email"], row.get("bounce_type")) for row in response.json["data"]]

    assert await listed("type=sent") == [(email, None) for email in reversed(people)]
    assert await listed("type=delivered") == [("c2@example.net", None), ("c0@xn--bcher-kva.example", None)]
    assert await listed("type=bounced") == [("c1@example.net", "permanent")]
    assert await listed("type=bounced&bounce_type=transient") == []
    assert await listed("type=complained") == [("c2@example.net", None)]
    assert await listed("type=sent&email=%00") != []
    assert await listed("type=sent&email=C2@") == [("c2@example.net", None)]
    assert await listed("type=bounced&email=C1@Example.net") == [("c1@example.net", "permanent")]
    assert await listed("type=bounced&email=c2@example.net") == []
    for written in ("c0@b%C3%BCcher.example", "@b%C3%BCcher.example"):
        assert await listed(f"type=sent&email={written}") == [("c0@xn--bcher-kva.example", None)]
    first = (await rig.request("GET", f"/broadcasts/{id_}/recipients?type=sent&limit=1")).json
    assert first["has_more"] and first["data"][0]["contact_id"] == people["c2@example.net"]
    assert await listed(f"type=sent&after={first['data'][0]['id']}") == [("c1@example.net", None), ("c0@xn--bcher-kva.example", None)]
    assert (await rig.request("GET", f"/broadcasts/{id_}/recipients")).json["name"] == "missing_required_field"
    assert (await rig.request("GET", f"/broadcasts/{id_}/recipients?type=sent&bounce_type=transient")).status == 422


@pytest_twisted.ensureDeferred
async def test_the_preference_page_is_changed_field_by_field(rig: ApiRig) -> None:
    assert (await rig.request("GET", "/preference-page")).json["title"] is None
    changed = await rig.request("PATCH", "/preference-page", {"title": "News", "accent_color": "#00ff00", "hourly_rate": 100})
    assert (changed.json["title"], changed.json["accent_color"], changed.json["hourly_rate"]) == ("News", "#00ff00", 100)
    changed = await rig.request("PATCH", "/preference-page", {"accent_color": None, "logo": "https://example.com/logo.png"})
    assert (changed.json["title"], changed.json["accent_color"], changed.json["logo"]) == ("News", None, "https://example.com/logo.png")
    for wrong in ({"logo": "http://example.com/x"}, {"text_color": "red;}"}, {"title": "\0"}):
        assert (await rig.request("PATCH", "/preference-page", wrong)).status == 422


@pytest_twisted.ensureDeferred
async def test_an_email_about_a_topic_has_a_link_to_unsubscribe(rig: ApiRig) -> None:
    topic = (await rig.request("POST", "/topics", {"name": "Digest", "default_subscription": "opt_in"})).json["id"]
    sent = {"from": "a@example.test", "to": "ada@example.net", "subject": "Hi", "text": "Hi", "topic_id": topic}
    one = (await rig.request("POST", "/emails", sent)).json["id"]
    shown = (await rig.request("GET", f"/emails/{one}")).json
    assert shown["topic_id"] == topic and "broadcast_id" not in shown
    [(headers, queued)] = await rig.pool.rows("SELECT headers, (SELECT lease FROM queue) FROM emails")
    assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click" and queued is None
    assert headers["List-Unsubscribe"].startswith("<https://api.example.com/unsubscribe?token=")
    own = {**sent, "headers": {"List-Unsubscribe": "<mailto:leave@example.test>"}}
    two = (await rig.request("POST", "/emails", own)).json["id"]
    sql = "SELECT headers FROM emails WHERE email_id = %s"
    assert await rig.pool.rows(sql, (UUID(two),)) == [({"List-Unsubscribe": "<mailto:leave@example.test>"},)]
    both = (await rig.request("POST", "/emails", {**sent, "to": ["ada@example.net", "bob@example.net"]})).json["id"]
    assert await rig.pool.rows(sql, (UUID(both),)) == [(None,)]
    refused = await rig.request("POST", "/emails", {**sent, "topic_id": str(uuid4())})
    assert (refused.status, refused.json["message"]) == (422, "The `topic_id` field: There is no such topic.")


@pytest_twisted.ensureDeferred
async def test_metrics_by_broadcast(rig: ApiRig) -> None:
    news = await segment(rig)
    ids = [await create(rig, news, name=name) for name in ("One", "Two")]
    await rig.pool.run("UPDATE broadcasts SET domain_id = %s", (rig.domain_id,))
    for id_, delivered, unsubscribed in zip(ids, (8, 4), (2, 0), strict=True):
        for kind, count in (("email.sent", 10), ("email.delivered", delivered), ("email.unsubscribed", unsubscribed)):
            row = (rig.account_id, UUID(id_), kind, count)
            sql = "INSERT INTO broadcast_counts VALUES (%s, %s, date_trunc('hour', now()), %s, %s)"
            await rig.pool.run(sql, row)
    some = "metrics=delivered,unsubscribed,unsubscribe_rate"
    found = (await rig.request("GET", f"/emails/metrics?{some}&dimensions=broadcast")).json
    assert found["totals"] == {"delivered": 12, "unsubscribed": 2, "unsubscribe_rate": 16.67}
    assert [(row["broadcast_id"], row["broadcast_name"], row["delivered"]) for row in found["data"]] == [
        (ids[0], "One", 8), (ids[1], "Two", 4)
    ]  # fmt: skip
    only = (await rig.request("GET", f"/emails/metrics?{some}&broadcast_id={ids[1]}")).json
    assert only["totals"] == {"delivered": 4, "unsubscribed": 0, "unsubscribe_rate": 0.0}


def test_the_content_is_not_longer_than_a_message() -> None:
    rules = Rules(datetime.now(UTC), Bounds(email=Limits(message=20)), natural=False)
    usual = {"from": "a@example.test", "subject": "Hi", "html": "<p>Twenty letters</p>"[:20], "text": "Hi"}
    assert fields.CREATE.read(usual, "", rules)["html"] == usual["html"]
    for name in ("html", "text"):
        for record in (fields.CREATE, fields.UPDATE):
            with pytest.raises(Problem, match=f"The `{name}` field can have at most 20 characters"):
                record.read({**usual, name: "x" * 21}, "", rules)


@pytest_twisted.ensureDeferred
async def test_few_segments_are_counted_at_a_time(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/broadcasts/{await create(rig, await segment(rig))}/review"
    running: list[Deferred[None]] = []

    async def missing(*_: Any) -> tuple[int, dict[str, int]]:
        running.append(Deferred())
        await running[-1]
        return 7, {}

    monkeypatch.setattr(Recipients, "missing", missing)
    reviews = [rig.request("GET", path) for _ in range(4)]
    while len(running) < 2:
        await rig.request("GET", "/domains")
    for _ in range(3):
        await rig.request("GET", "/domains", key=rig.foreign_key)
    assert len(running) == 2
    for place in range(4):
        running[place].callback(None)
    assert [(await review).json["contacts"] for review in reviews] == [7] * 4
    monkeypatch.setattr(Turns, "take", AsyncMock(return_value=False))
    late = await rig.request("GET", path)
    assert late.problem == (503, "service_unavailable") and late.headers["retry-after"] == "30"
