"""The collections besides emails, over the real store. Every response is checked against its description."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.http.openapi import endpoints
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.people import api_keys
from tests.http.api_rig import GOOD, ApiRig
from tests.http.rig import Rig

SOME_ID, EVENT = UUID(int=1), f"msg_{1:032x}"


def test_every_endpoint_is_described() -> None:
    assert [f"{one.method} {one.path}" for one in endpoints(Rig().api.collections()) if one.operation is None] == []


def test_operation_ids_are_unique() -> None:
    document = Rig().contract.document
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "path",
    "templates automations events inboxes oauth/grants emails/receiving emails/receiving/x emails/receiving/x/attachments".split(),
)
def test_unavailable_collections_are_not_found(path: str) -> None:
    response = Rig().request("GET", f"/{path}")
    assert response.problem == (404, "not_found") and response.json["message"] == "The requested endpoint does not exist."
    assert Rig().request("POST", f"/{path}").status in (404, 405)


@pytest.mark.parametrize(
    "path", ["/event-log", "/privacy/erasures", f"/webhooks/{SOME_ID}/events", f"/webhooks/{SOME_ID}/events/{EVENT}/attempts"]
)
def test_lists_that_are_read_forwards_refuse_before(path: str) -> None:
    """Ignored, it would return the first page again and again."""
    id_ = {"webhooks": EVENT}.get(path.split("/")[1], SOME_ID)
    refused = Rig().request("GET", f"{path}?before={id_}")
    assert refused.problem == (422, "validation_error") and "`before`" in refused.json["message"]


async def make(rig: ApiRig, **body: Any) -> Any:
    response = await rig.request("POST", "/api-keys", {"name": "new", **body})
    assert response.status == 201
    return response.json


@pytest_twisted.ensureDeferred
async def test_key_is_created_used_renamed_and_deleted(rig: ApiRig) -> None:
    created = await make(rig)
    assert (await rig.request("GET", "/emails", key=created["token"])).status == 200
    await rig.flush()
    listed = (await rig.request("GET", "/api-keys")).json
    assert [key["name"] for key in listed["data"]] == ["new", "a key"] and listed["has_more"] is False
    assert listed["data"][0]["last_used_at"] is not None
    assert listed["data"][0]["hint"] == created["token"][:9]
    renamed = await rig.request("PATCH", f"/api-keys/{created['id']}", {"name": "other", "id": created["id"]})
    assert renamed.json == {"object": "api_key", "id": created["id"]}
    assert (await rig.request("GET", "/api-keys")).json["data"][0]["name"] == "other"
    assert (await rig.request("DELETE", f"/api-keys/{created['id']}")).json == {"object": "api_key", "id": created["id"], "deleted": True}
    assert (await rig.request("GET", "/emails", key=created["token"])).problem == (403, "invalid_api_key")
    assert (await rig.request("DELETE", f"/api-keys/{created['id']}")).problem == (404, "not_found")


@pytest.mark.parametrize("field", ["permission", "domain_id", "networks", "expires_at"])
@pytest_twisted.ensureDeferred
async def test_a_key_cannot_be_restricted_later(rig: ApiRig, field: str) -> None:
    """Ignoring the field would leave a key that its owner takes for restricted."""
    created = await make(rig)
    refused = await rig.request("PATCH", f"/api-keys/{created['id']}", {"name": "other", field: "sending_access"})
    assert refused.problem == (422, "validation_error") and f"`{field}`" in refused.json["message"]
    assert (await rig.request("GET", "/api-keys")).json["data"][0]["name"] == "new"


@pytest_twisted.ensureDeferred
async def test_key_expires_in_the_future(rig: ApiRig) -> None:
    await make(rig, expires_at="2999-01-02T03:04:05+01:00")
    assert (await rig.request("GET", "/api-keys")).json["data"][0]["expires_at"].startswith("2999-01-02")
    await make(rig, expires_at="2999-01-02T03:04:05+23:59")  # more than Postgres stores
    assert (await rig.request("GET", "/api-keys")).json["data"][0]["expires_at"].startswith("2999-01-01")
    for at in ("2020-01-01T00:00:00Z", "tomorrow", "2999-01-01T00:00:00", "9999-12-31T23:59:59-01:00"):
        assert (await rig.request("POST", "/api-keys", {"name": "new", "expires_at": at})).status == 422


@pytest_twisted.ensureDeferred
async def test_sending_key_can_be_limited_to_a_domain(rig: ApiRig) -> None:
    created = await make(rig, permission="sending_access", domain_id=str(rig.domain_id))
    assert (await rig.request("POST", "/emails", GOOD, key=created["token"])).status == 200
    assert (await rig.request("GET", "/api-keys", key=created["token"])).problem == (401, "restricted_api_key")
    [stored, _] = (await rig.request("GET", "/api-keys")).json["data"]
    assert (stored["permission"], stored["domain_id"]) == ("sending_access", str(rig.domain_id))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, (422, "missing_required_field")),
        ({"name": None}, (422, "missing_required_field")),
        ({"name": 5}, (422, "validation_error")),
        ({"name": "x" * 51}, (422, "validation_error")),
        ({"name": "a\0b"}, (422, "validation_error")),
        ({"name": "x", "permission": "all"}, (422, "invalid_access")),
        ({"name": "x", "permission": ["full_access"]}, (422, "invalid_access")),
        ({"name": "x", "domain_id": "x"}, (422, "invalid_parameter")),
        ({"name": "x", "domain_id": str(UUID(int=5))}, (422, "validation_error")),
        ({"name": "x", "permission": "sending_access", "domain_id": str(UUID(int=5))}, (404, "not_found")),
        ([], (422, "validation_error")),
        (b"{", (400, "validation_error")),
    ],
)
@pytest_twisted.ensureDeferred
async def test_invalid_key_is_refused(rig: ApiRig, body: Any, problem: tuple[int, str]) -> None:
    assert (await rig.request("POST", "/api-keys", body)).problem == problem


@pytest_twisted.ensureDeferred
async def test_list_of_keys_is_complete_without_parameters(rig: ApiRig) -> None:
    ids = [(await make(rig, name=f"{n}"))["id"] for n in range(25)][::-1]
    everything = (await rig.request("GET", "/api-keys")).json
    assert [key["id"] for key in everything["data"]][:25] == ids and len(everything["data"]) == 26
    page = (await rig.request("GET", f"/api-keys?limit=3&after={ids[2]}")).json
    assert ([key["id"] for key in page["data"]], page["has_more"]) == (ids[3:6], True)
    before = (await rig.request("GET", f"/api-keys?limit=2&before={ids[5]}")).json
    assert ([key["id"] for key in before["data"]], before["has_more"]) == (ids[3:5], True)
    assert len((await rig.request("GET", f"/api-keys?after={ids[0]}")).json["data"]) == 20
    for wrong in (f"after={ids[0]}&before={ids[1]}", "limit=0", "limit=101", "limit=x", "after=x", "limit=1&limit=2"):
        assert (await rig.request("GET", f"/api-keys?{wrong}")).status == 422


@pytest_twisted.ensureDeferred
async def test_logs_show_requests(rig: ApiRig) -> None:
    sent = (await rig.request("POST", "/emails", GOOD, User_Agent="me/1")).json
    await rig.request("POST", "/emails", {**GOOD, "to": "nobody"})
    created = await make(rig)
    await rig.request("GET", f"/emails/{uuid4()}")
    await rig.flush()
    page = (await rig.request("GET", "/logs?limit=10")).json["data"]
    assert [(entry["method"], entry["response_status"]) for entry in page] == [("GET", 404), ("POST", 201), ("POST", 422), ("POST", 200)]
    one = (await rig.request("GET", f"/logs/{page[3]['id']}")).json
    assert one["request_body"] == GOOD and one["response_body"] == sent
    assert (one["user_agent"], one["endpoint"]) == ("me/1", "/emails") and one["api_key_id"] is not None
    secret = (await rig.request("GET", f"/logs/{page[1]['id']}")).json
    assert created["token"] not in str(secret) and secret["response_body"]["id"] == created["id"]
    wrong = (await rig.request("GET", f"/logs/{page[2]['id']}")).json
    assert wrong["response_body"]["name"] == "validation_error"
    for status, count in (("422", 1), ("4xx", 2), ("2xx", 2), ("201", 1), ("5xx", 0)):
        assert len((await rig.request("GET", f"/logs?status={status}")).json["data"]) == count, status
    assert (await rig.request("GET", "/logs?status=9")).problem == (422, "validation_error")
    assert (await rig.request("GET", f"/logs?after={page[0]['id']}&before={page[1]['id']}")).status == 422
    assert (await rig.request("GET", f"/logs/{page[0]['id']}", key=rig.foreign_key)).problem == (404, "not_found")
    assert (await rig.request("GET", "/logs", key=rig.foreign_key)).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_logs_show_smtp_sessions(rig: ApiRig) -> None:
    now = datetime.now(UTC)
    receipts = SmtpSessions(rig.pool, rig.site.reactor)
    key = uuid4()
    good, bad = (SmtpSession(uuid7(now.timestamp()), key, now, now + timedelta(seconds=2), 587, "TLSv1.3", 2, n, "S: 220") for n in (0, 1))
    await gatherResults([Deferred.fromCoroutine(receipts.add(rig.account_id, one)) for one in (good, bad)])
    page = (await rig.request("GET", "/logs?source=smtp")).json["data"]
    assert [(entry["id"], entry["response_status"], entry["duration_ms"]) for entry in page] == [
        (str(bad.receipt_id), 550, 2000.0),
        (str(good.receipt_id), 250, 2000.0),
    ]
    assert page[0]["smtp"] == {"port": 587, "tls": "TLSv1.3", "mails": 2, "refusals": 1}
    one = (await rig.request("GET", f"/logs/{good.receipt_id}")).json
    assert one["smtp"]["transcript"] == "S: 220" and one["object"] == "log"
    older = (await rig.request("GET", f"/logs?source=smtp&limit=1&after={bad.receipt_id}")).json
    assert [entry["id"] for entry in older["data"]] == [str(good.receipt_id)] and older["has_more"] is False
    assert (await rig.request("GET", f"/logs/{good.receipt_id}", key=rig.foreign_key)).problem == (404, "not_found")
    assert (await rig.request("GET", "/logs?source=smtp", key=rig.foreign_key)).json["data"] == []
    for wrong in ("source=fax", "source=smtp&status=550"):
        assert (await rig.request("GET", f"/logs?{wrong}")).problem == (422, "validation_error")


@pytest_twisted.ensureDeferred
async def test_description_is_public(rig: ApiRig) -> None:
    response = await rig.request("GET", "/openapi.json", key="")
    assert response.status == 200 and response.json == rig.contract.document
    assert response.json["openapi"].startswith("3.1")


@pytest_twisted.ensureDeferred
async def test_key_is_limited_to_networks(rig: ApiRig) -> None:
    near = await make(rig, networks=["0.0.0.0/0", "192.0.2.7"])
    far = await make(rig, networks="203.0.113.0/24")
    assert (await rig.request("GET", "/emails", key=near["token"])).status == 200
    assert (await rig.request("GET", "/emails", key=far["token"])).problem == (401, "restricted_api_key")
    listed = {key["id"]: key["networks"] for key in (await rig.request("GET", "/api-keys")).json["data"]}
    assert (listed[near["id"]], listed[far["id"]]) == (["0.0.0.0/0", "192.0.2.7/32"], ["203.0.113.0/24"])
    for networks in (["192.0.2.1/24"], ["x"], ["192.0.2.1"] * 21, ["2001:db8::1"]):
        assert (await rig.request("POST", "/api-keys", {"name": "new", "networks": networks})).status == 422


@pytest_twisted.ensureDeferred
async def test_an_account_has_a_largest_number_of_keys(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are in lists, which would stop the process for everybody."""
    [(count,)] = await rig.pool.rows("SELECT count(*) FROM api_keys WHERE account_id = %s", (rig.account_id,))
    monkeypatch.setattr(api_keys, "MOST", count + 1)
    last = await make(rig)
    refused = await rig.request("POST", "/api-keys", {"name": "one more"})
    assert refused.problem == (422, "validation_error") and f"at most {count + 1} API keys" in refused.json["message"]
    assert (await rig.request("DELETE", f"/api-keys/{last['id']}")).status == 200
    both = [rig.request("POST", "/api-keys", {"name": f"at once {number}"}) for number in range(2)]
    assert sorted(answer.status for answer in await gatherResults(both)) == [201, 422]
