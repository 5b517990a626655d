"""Webhooks, suppressions and the event log over the API and the real store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_twisted

from mailsvc.events import payload
from mailsvc.store.events.ledger import EventLedger
from tests.http.api_rig import GOOD, ApiRig
from tests.http.rig import Response

HOOK = {"endpoint": "https://shop.example/hook", "events": ["email.sent"]}


async def created(rig: ApiRig, **changes: Any) -> str:
    answer = await rig.request("POST", "/webhooks", HOOK | changes)
    assert answer.status == 201
    return str(answer.json["id"])


async def number(rig: ApiRig) -> None:
    await EventLedger(rig.pool).number(1000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoint": None}, "`endpoint`"),
        ({"endpoint": 5}, "`endpoint`"),
        ({"endpoint": "ftp://shop.example/"}, "`endpoint` field must begin with https://"),
        ({"endpoint": "https://10.0.0.1/"}, "10.0.0.1 is private"),
        ({"endpoint": "https://2130706433/"}, "has a numeric host"),
        ({"endpoint": "https://a:b@shop.example/"}, "user name"),
        ({"endpoint": "https://shop.example:25/"}, "ports"),
        ({"events": None}, "`events`"),
        ({"events": []}, "`events`"),
        ({"events": ["email.read"]}, "`events[0]` field must be one of `email.sent`"),
        ({"events": [5]}, "`events[0]`"),
        ({"status": "off"}, "`status`"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_invalid_webhook_is_refused(rig: ApiRig, changes: dict[str, Any], message: str) -> None:
    answer = await rig.request("POST", "/webhooks", HOOK | changes)
    assert answer.status == 422
    assert message in answer.json["message"]
    assert (await rig.request("GET", "/webhooks")).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_webhook_can_be_created_disabled(rig: ApiRig) -> None:
    webhook_id = await created(rig, status="disabled")
    assert (await rig.request("GET", f"/webhooks/{webhook_id}")).json["status"] == "disabled"
    await rig.request("POST", "/emails", GOOD)
    await number(rig)
    assert (await rig.request("GET", f"/webhooks/{webhook_id}/events")).json["data"] == []
    await rig.request("PATCH", f"/webhooks/{webhook_id}", {"status": "enabled"})
    assert (await rig.request("GET", f"/webhooks/{webhook_id}")).json["status"] == "enabled"


@pytest_twisted.ensureDeferred
async def test_webhook_is_created_changed_rotated_and_deleted(rig: ApiRig) -> None:
    webhook_id = await created(rig, endpoint="HTTPS://Shop.Example:443", events=[*payload.TYPES, "email.sent"])
    one = (await rig.request("GET", f"/webhooks/{webhook_id}")).json
    assert (one["endpoint"], one["status"], one["events"]) == ("https://shop.example/", "enabled", list(payload.TYPES))
    assert one["signing_secret"].startswith("whsec_")
    assert set(one) >= {"object", "id", "created_at", "status", "endpoint", "events", "signing_secret"}
    listed = (await rig.request("GET", "/webhooks")).json
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert set(listed["data"][0]) == {"id", "created_at", "status", "endpoint", "events"}
    changed = await rig.request("PATCH", f"/webhooks/{webhook_id}", {"status": "disabled"})
    assert changed.json == {"object": "webhook", "id": webhook_id}
    assert (await rig.request("GET", f"/webhooks/{webhook_id}")).json["status"] == "disabled"
    rotated = (await rig.request("POST", f"/webhooks/{webhook_id}/signing-secret/rotate")).json
    assert rotated["signing_secret"] != one["signing_secret"]
    assert (await rig.request("GET", f"/webhooks/{webhook_id}")).json["signing_secret"] == rotated["signing_secret"]
    for _ in range(2):
        await created(rig)
    assert (await rig.request("POST", "/webhooks", HOOK)).json["message"] == "An account can have at most 3 webhooks."
    removed = await rig.request("DELETE", f"/webhooks/{webhook_id}")
    assert removed.json == {"object": "webhook", "id": webhook_id, "deleted": True}
    assert (await rig.request("DELETE", f"/webhooks/{webhook_id}")).problem == (404, "not_found")
    page = (await rig.request("GET", "/webhooks?limit=1")).json
    assert page["has_more"]
    assert (await rig.request("GET", f"/webhooks?after={page['data'][0]['id']}")).json["has_more"] is False


@pytest_twisted.ensureDeferred
async def test_webhook_events_are_listed_and_replayed(rig: ApiRig) -> None:
    webhook_id = await created(rig)
    for _ in range(3):
        assert (await rig.request("POST", "/emails", GOOD)).status == 200
    await number(rig)
    page = (await rig.request("GET", f"/webhooks/{webhook_id}/events?limit=2")).json
    assert page["has_more"]
    assert [each["status"] for each in page["data"]] == ["pending", "pending"]
    [last] = (await rig.request("GET", f"/webhooks/{webhook_id}/events?after={page['data'][-1]['id']}")).json["data"]
    one = (await rig.request("GET", f"/webhooks/{webhook_id}/events/{last['id']}")).json
    assert (one["object"], one["id"], one["type"]) == ("webhook_event", last["id"], "email.sent")
    assert one["payload"]["data"]["subject"] == "Grüße"
    assert one["next_attempt_at"] is not None
    assert (await rig.request("GET", f"/webhooks/{webhook_id}/events/{last['id']}/attempts")).json["data"] == []
    replayed = await rig.request("POST", f"/webhooks/{webhook_id}/events/{last['id']}/replay")
    assert replayed.json == {"object": "webhook_event", "id": last["id"]}
    tested = (await rig.request("POST", f"/webhooks/{webhook_id}/test", {"type": "email.bounced"})).json
    story = (await rig.request("GET", f"/webhooks/{webhook_id}/events/{tested['id']}")).json["payload"]
    assert (story["type"], story["data"]["bounce"]["type"]) == ("email.bounced", "Permanent")
    assert (await rig.request("POST", f"/webhooks/{webhook_id}/test")).json["type"] == "email.sent"
    since = {"since": datetime(2026, 1, 1, tzinfo=UTC).isoformat()}
    assert (await rig.request("POST", f"/webhooks/{webhook_id}/replay", since)).json["replayed"] == 0  # nothing has failed
    assert (await rig.request("POST", f"/webhooks/{webhook_id}/replay", since | {"status": "all"})).json["replayed"] == 5
    for body, field in (
        ({}, "since"),
        ({"since": "yesterday"}, "since"),
        (since | {"status": "x"}, "status"),
        (since | {"until": "1"}, "until"),
        (since | {"until": since["since"]}, "before `until`"),
    ):
        assert field in (await rig.request("POST", f"/webhooks/{webhook_id}/replay", body)).json["message"]
    for path in ("events/1", "events?after=1", f"events/{last['id']}/attempts?after=x", "events/msg_" + "0" * 31):
        assert (await rig.request("GET", f"/webhooks/{webhook_id}/{path}")).problem == (422, "invalid_parameter")
    assert (await rig.request("GET", f"/webhooks/{webhook_id}/events/msg_{'0' * 32}")).problem == (404, "not_found")


@pytest_twisted.ensureDeferred
async def test_a_disabled_webhook_is_sent_nothing(rig: ApiRig) -> None:
    webhook_id = await created(rig)
    event = (await rig.request("POST", f"/webhooks/{webhook_id}/test")).json["id"]
    await rig.request("PATCH", f"/webhooks/{webhook_id}", {"status": "disabled"})
    period = {"since": "2026-01-01T00:00:00Z"}
    wanted: list[tuple[str, Any]] = [("test", b""), (f"events/{event}/replay", b""), ("replay", period | {"status": "all"})]
    for path, body in wanted:
        answer = await rig.request("POST", f"/webhooks/{webhook_id}/{path}", body)
        assert answer.problem == (422, "validation_error") and "Set its `status` to `enabled`" in answer.json["message"], path
    assert [each["status"] for each in (await rig.request("GET", f"/webhooks/{webhook_id}/events")).json["data"]] == ["failed"]
    await rig.request("PATCH", f"/webhooks/{webhook_id}", {"status": "enabled"})
    assert (await rig.request("POST", f"/webhooks/{webhook_id}/replay", period)).json["replayed"] == 1


@pytest_twisted.ensureDeferred
async def test_webhooks_of_other_accounts_are_not_found(rig: ApiRig) -> None:
    webhook_id = await created(rig)
    await rig.request("POST", "/emails", GOOD)
    suppression = (await rig.request("POST", "/suppressions", {"email": "a@example.net"})).json["id"]
    await number(rig)
    [message] = (await rig.request("GET", f"/webhooks/{webhook_id}/events")).json["data"]
    foreign: list[tuple[str, str, Any]] = [
        ("GET", f"/webhooks/{webhook_id}", b""),
        ("PATCH", f"/webhooks/{webhook_id}", {"status": "disabled"}),
        ("DELETE", f"/webhooks/{webhook_id}", b""),
        ("POST", f"/webhooks/{webhook_id}/signing-secret/rotate", b""),
        ("GET", f"/webhooks/{webhook_id}/events", b""),
        ("GET", f"/webhooks/{webhook_id}/events/{message['id']}", b""),
        ("GET", f"/webhooks/{webhook_id}/events/{message['id']}/attempts", b""),
        ("POST", f"/webhooks/{webhook_id}/events/{message['id']}/replay", b""),
        ("POST", f"/webhooks/{webhook_id}/replay", {"since": "2026-01-01T00:00:00Z"}),
        ("POST", f"/webhooks/{webhook_id}/test", b""),
        ("GET", f"/suppressions/{suppression}", b""),
        ("GET", "/suppressions/a@example.net", b""),
        ("DELETE", f"/suppressions/{suppression}", b""),
        ("DELETE", "/suppressions/a@example.net", b""),
    ]
    for method, path, body in foreign:
        answer = await rig.request(method, path, body, key=rig.foreign_key)
        assert answer.problem == (404, "not_found"), (method, path)
    for path in ("/webhooks", "/suppressions", "/event-log"):
        assert (await rig.request("GET", path, key=rig.foreign_key)).json["data"] == []
    assert (await rig.request("GET", f"/webhooks/{webhook_id}")).json["status"] == "enabled"


@pytest_twisted.ensureDeferred
async def test_event_log_lists_events_in_order(rig: ApiRig) -> None:
    await number(rig)
    before = len((await rig.request("GET", "/event-log")).json["data"])  # of the domain
    for _ in range(3):
        await rig.request("POST", "/emails", GOOD)
    await rig.request("POST", "/suppressions", {"email": "zoe@example.net"})
    await rig.request("POST", "/emails", GOOD)
    assert (await rig.request("GET", f"/event-log?after={before}")).json["data"] == []
    await number(rig)
    first = (await rig.request("GET", f"/event-log?limit=2&after={before}")).json
    assert [each["sequence"] for each in first["data"]] == [before + 1, before + 2]
    assert first["has_more"]
    rest = (await rig.request("GET", f"/event-log?after={before + 2}")).json
    assert [(each["sequence"], each["type"]) for each in rest["data"]] == [
        (before + 3, "email.sent"),
        (before + 4, "suppression.added"),
        (before + 5, "email.suppressed"),
    ]
    assert rest["data"][2]["data"]["suppressed"] == {
        "type": "OnAccountSuppressionList",
        "message": "The address is on the suppression list of the account: it was put there by hand.",
        "diagnosticCode": [],
    }
    assert rest["data"][2]["data"]["to"] == ["zoe@example.net"]
    for query in ("after=x", "after=-1", "limit=0", "limit=101"):
        assert (await rig.request("GET", f"/event-log?{query}")).status == 422


@pytest_twisted.ensureDeferred
async def test_suppressions_are_added_found_and_removed(rig: ApiRig) -> None:
    added = await rig.request("POST", "/suppressions", {"email": "Zoe <Zoe@Example.net>"})
    assert added.status == 201
    one = (await rig.request("GET", "/suppressions/zoe%40example.net")).json
    assert one == {
        "object": "suppression",
        "id": added.json["id"],
        "email": "Zoe@example.net",
        "origin": "manual",
        "source_id": None,
        "reason": None,
        "created_at": one["created_at"],
    }
    assert (await rig.request("GET", "/suppressions?origin=bounce")).json["data"] == []
    many = await rig.request("POST", "/suppressions/batch/add", {"emails": [f"a{n}@example.net" for n in range(100)]})
    assert (many.status, len(many.json["data"])) == (201, 100)
    page = (await rig.request("GET", "/suppressions?limit=100")).json
    assert (len(page["data"]), page["has_more"]) == (100, True)
    ids = [each["id"] for each in page["data"][:50]]
    assert len((await rig.request("POST", "/suppressions/batch/remove", {"ids": ids})).json["data"]) == 50
    plus = (await rig.request("POST", "/suppressions", {"email": "a+b@example.net"})).json["id"]
    for path in ("a+b@example.net", "a%2Bb%40example.net"):  # a plus sign in a path is a plus sign
        assert (await rig.request("GET", f"/suppressions/{path}")).json["id"] == plus
    slash = (await rig.request("POST", "/suppressions", {"email": "a/b@example.net"})).json["id"]
    assert (await rig.request("DELETE", "/suppressions/a%2Fb%40example.net")).json["id"] == slash
    removed = (await rig.request("DELETE", "/suppressions/ZOE@example.net")).json
    assert (removed["deleted"], removed["origin"], removed["id"]) == (True, "manual", added.json["id"])
    wrong: list[tuple[str, Any]] = [
        ("/suppressions", {}),
        ("/suppressions", {"email": "nobody"}),
        ("/suppressions", []),
        ("/suppressions/batch/add", {"emails": []}),
        ("/suppressions/batch/add", {"emails": ["a@example.net"] * 101}),
        ("/suppressions/batch/add", {"emails": ["a@example.net", 5]}),
        ("/suppressions/batch/remove", {}),
        ("/suppressions/batch/remove", {"emails": ["a@example.net"], "ids": ids[:1]}),
        ("/suppressions/batch/remove", {"ids": ["x"]}),
    ]
    answers: list[Response] = [await rig.request("POST", path, body) for path, body in wrong]
    assert {answer.status for answer in answers} == {422}
    for path in ("/suppressions?origin=x", "/suppressions/x"):
        assert (await rig.request("GET", path)).problem == (422, "invalid_parameter")
