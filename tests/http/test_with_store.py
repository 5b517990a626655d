"""What goes into the API comes back out, over the real intake and the real store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest_twisted
from twisted.internet.defer import gatherResults
from twisted.logger import capturedLogs

from mailsvc.clock import utc
from mailsvc.store.postgres.partitions import ensure_day
from tests.http.api_rig import GOOD, ApiRig


@pytest_twisted.ensureDeferred
async def test_sent_email_can_be_read_back(rig: ApiRig) -> None:
    sent = await rig.request("POST", "/emails", {**GOOD, "cc": "c@example.net", "tags": [{"name": "k", "value": "v"}]})
    assert sent.status == 200
    read = (await rig.request("GET", f"/emails/{sent.json['id']}")).json
    assert (read["object"], read["id"], read["last_event"], read["scheduled_at"]) == ("email", sent.json["id"], "sent", None)
    assert (read["from"], read["to"], read["cc"], read["bcc"]) == ("Acme <hello@example.test>", ["zoe@example.net"], ["c@example.net"], [])
    assert (read["subject"], read["html"], read["tags"]) == ("Grüße", "<p>Hello</p>", [{"name": "k", "value": "v"}])
    assert read["text"].strip() == "Hello"
    assert read["message_id"] == f"<{sent.json['id']}@example.test>"
    assert [(r["address"], r["status"], r["attempts"]) for r in read["recipients"]] == [
        ("zoe@example.net", "queued", 0),
        ("c@example.net", "queued", 0),
    ]
    assert all(r["reason"] and r["next_attempt_at"] for r in read["recipients"])
    assert (await rig.request("GET", f"/emails/{sent.json['id']}", key=rig.foreign_key)).status == 404
    assert (await rig.request("GET", "/emails", key=rig.foreign_key)).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_pages_are_newest_first(rig: ApiRig) -> None:
    ids = [(await rig.request("POST", "/emails", GOOD)).json["id"] for _ in range(3)][::-1]
    first = (await rig.request("GET", "/emails?limit=2")).json
    assert ([item["id"] for item in first["data"]], first["has_more"]) == (ids[:2], True)
    second = (await rig.request("GET", f"/emails?limit=2&after={ids[1]}")).json
    assert ([item["id"] for item in second["data"]], second["has_more"]) == (ids[2:], False)


@pytest_twisted.ensureDeferred
async def test_scheduled_email_can_be_rescheduled_and_canceled(rig: ApiRig) -> None:
    sent = await rig.request("POST", "/emails", {**GOOD, "scheduled_at": "in 1 hour"})
    path = f"/emails/{sent.json['id']}"
    read = (await rig.request("GET", path)).json
    assert read["last_event"] == "scheduled"
    assert read["recipients"][0]["status"] == "scheduled"
    later = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    assert (await rig.request("PATCH", path, {"scheduled_at": later.isoformat()})).json == {"object": "email", "id": sent.json["id"]}
    assert (await rig.request("GET", path)).json["scheduled_at"] == f"{later:%Y-%m-%d %H:%M:%S}+00"
    assert (await rig.request("POST", f"{path}/cancel")).status == 200
    assert (await rig.request("GET", path)).json["last_event"] == "canceled"
    assert (await rig.request("PATCH", path, {"scheduled_at": later.isoformat()})).status == 422
    assert (await rig.request("POST", f"/emails/{UUID(int=5)}/cancel")).status == 404


@pytest_twisted.ensureDeferred
async def test_hundred_requests_with_one_idempotency_key_send_one_email(rig: ApiRig) -> None:
    responses = await gatherResults([rig.request("POST", "/emails", GOOD, Idempotency_Key="once/1") for _ in range(100)])
    again = await rig.request("POST", "/emails", dict(reversed(GOOD.items())), Idempotency_Key="once/1")
    assert {response.json.get("id", again.json["id"]) for response in responses} == {again.json["id"]}
    assert {response.json.get("name", "") for response in responses} <= {"", "concurrent_idempotent_requests"}
    assert len((await rig.request("GET", "/emails")).json["data"]) == 1
    other = await rig.request("POST", "/emails", {**GOOD, "subject": "Other"}, Idempotency_Key="once/1")
    assert other.problem == (409, "invalid_idempotent_request")
    batch = await rig.request("POST", "/emails/batch", [GOOD], Idempotency_Key="once/1")
    assert batch.status == 200


@pytest_twisted.ensureDeferred
async def test_refused_request_releases_its_idempotency_key(rig: ApiRig) -> None:
    refused = await rig.request("POST", "/emails", {**GOOD, "from": "a@elsewhere.test"}, Idempotency_Key="k")
    assert refused.problem == (403, "validation_error")
    assert (await rig.request("POST", "/emails", GOOD, Idempotency_Key="k")).status == 200


@pytest_twisted.ensureDeferred
async def test_permissive_batch_is_replayed_with_its_errors(rig: ApiRig) -> None:
    items = [{**GOOD, "to": "nobody"}, GOOD, {**GOOD, "from": "a@elsewhere.test"}, GOOD]
    headers = {"x_batch_validation": "permissive", "Idempotency_Key": "k"}
    first = await rig.request("POST", "/emails/batch", items, **headers)
    assert [error["index"] for error in first.json["errors"]] == [0, 2]
    assert len(first.json["data"]) == 2
    assert (await rig.request("POST", "/emails/batch", items, **headers)).json == first.json
    assert len((await rig.request("GET", "/emails")).json["data"]) == 2


# A repeated request whose email would be refused now


async def repeated(rig: ApiRig, path: str, body: object, **headers: str) -> object:
    """The response of a request that is sent twice, ten minutes apart. Both must be the same."""
    first = await rig.request("POST", path, body, Idempotency_Key="k", **headers)
    rig.clock.advance(600)
    again = await rig.request("POST", path, body, Idempotency_Key="k", **headers)
    assert (again.status, again.json) == (first.status, first.json)
    assert again.status == 200
    return first.json


def due(rig: ApiRig, seconds: float) -> dict[str, Any]:
    return {**GOOD, "scheduled_at": datetime.fromtimestamp(rig.clock.seconds() + seconds, UTC).isoformat()}


@pytest_twisted.ensureDeferred
async def test_repeated_email_is_not_refused_because_its_time_has_passed(rig: ApiRig) -> None:
    email = due(rig, 60)
    await repeated(rig, "/emails", email)
    assert (await rig.request("POST", "/emails", email, Idempotency_Key="new")).status == 422
    other = await rig.request("POST", "/emails", {**email, "subject": "Other"}, Idempotency_Key="k")
    assert other.problem == (409, "invalid_idempotent_request")
    await repeated(rig, "/emails/batch", [GOOD, due(rig, 60)])


@pytest_twisted.ensureDeferred
async def test_repeated_permissive_batch_is_answered_by_place(rig: ApiRig) -> None:
    month = timedelta(days=30).total_seconds()
    result: Any = await repeated(rig, "/emails/batch", [GOOD, due(rig, 60)], x_batch_validation="permissive")
    assert len(result["data"]) == 2
    rig.clock.advance(timedelta(hours=25).total_seconds())  # the key can be used again
    await ensure_day(rig.pool, utc(rig.clock))  # late in the evening, this is the day after tomorrow
    items = [due(rig, 60), {**GOOD, "subject": "x\0"}, due(rig, month + 300), GOOD, {**GOOD, "from": "a@elsewhere.test"}]
    result = await repeated(rig, "/emails/batch", items, x_batch_validation="permissive")
    assert [each["index"] for each in result["errors"]] == [1, 2, 4]
    headers = {"x_batch_validation": "permissive", "Idempotency_Key": "none"}
    none = await rig.request("POST", "/emails/batch", [items[1], items[4]], **headers)  # nothing is stored
    assert (none.status, none.json["data"], len(none.json["errors"])) == (200, [], 2)


@pytest_twisted.ensureDeferred
async def test_repeated_email_is_not_refused_because_its_domain_or_a_linked_file_is_gone(rig: ApiRig) -> None:
    rig.web.pages["https://example.com/a"] = (200, b"x", "text/plain")
    linked = {**GOOD, "attachments": [{"path": "https://example.com/a"}]}
    sent = await rig.request("POST", "/emails", linked, Idempotency_Key="linked")
    plain = await rig.request("POST", "/emails", GOOD, Idempotency_Key="plain")
    del rig.web.pages["https://example.com/a"]
    assert (await rig.request("POST", "/emails", linked, Idempotency_Key="linked")).json == sent.json
    assert rig.web.requests == ["https://example.com/a"]
    assert (await rig.request("DELETE", f"/domains/{rig.domain_id}")).status == 200
    assert (await rig.request("POST", "/emails", GOOD, Idempotency_Key="plain")).json == plain.json
    assert (await rig.request("POST", "/emails", GOOD, Idempotency_Key="other")).status == 403


@pytest_twisted.ensureDeferred
async def test_batches_that_the_previous_release_stored_are_answered_with_their_ids(rig: ApiRig) -> None:
    headers = {"x_batch_validation": "permissive", "Idempotency_Key": "k"}
    items = [due(rig, 60), {**GOOD, "to": "nobody"}, due(rig, 60), GOOD]
    first = await rig.request("POST", "/emails/batch", items, **headers)
    # It stored the results of valid emails only.
    await rig.pool.run(
        "UPDATE idempotency SET answer = (SELECT json_agg(r) FROM json_array_elements(answer) r WHERE json_typeof(r) = 'string')"
    )
    rig.clock.advance(600)
    again = await rig.request("POST", "/emails/batch", items, **headers)
    assert (again.status, again.json["data"]) == (200, first.json["data"])


@pytest_twisted.ensureDeferred
async def test_revoked_or_foreign_key_sends_nothing(rig: ApiRig) -> None:
    assert (await rig.request("POST", "/emails", GOOD, key=rig.foreign_key)).problem == (403, "validation_error")
    assert (await rig.request("POST", "/emails", GOOD, key=rig.key[:-1] + "!")).problem == (403, "invalid_api_key")


@pytest_twisted.ensureDeferred
async def test_log_line_names_the_emails_of_the_request(rig: ApiRig) -> None:
    with capturedLogs() as events:
        one = (await rig.request("POST", "/emails", GOOD)).json["id"]
        two = [item["id"] for item in (await rig.request("POST", "/emails/batch", [GOOD, GOOD])).json["data"]]
        await rig.request("GET", "/emails")
    named = [event.get("email_id") for event in events if event["log_namespace"] == "mailsvc.http.request"]
    assert named == [one, " ".join(two), None]
