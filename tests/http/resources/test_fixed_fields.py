"""Fields that cannot be changed: PATCH refuses other values, and accepts the present ones, which some client libraries repeat."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted

from tests.http.api_rig import GOOD, ApiRig
from tests.http.resources.audience.test_contacts import make

FUTURE = "2099-01-02T03:04:05Z"


async def refused(rig: ApiRig, path: str, body: dict[str, Any], *names: str) -> None:
    before = (await rig.request("GET", path)).json
    for name in names:
        answer = await rig.request("PATCH", path, {**body, name: FIXED[name]})
        assert (answer.status, f"`{name}`" in answer.json["message"]) == (422, True), (path, name, answer.json)
    assert (await rig.request("GET", path)).json == before


FIXED: dict[str, Any] = {
    "name": "other.test",
    "region": "eu-west-1",
    "custom_return_path": "other",
    "default_subscription": "opt_in",
    "key": "other",
    "type": "number",
    "email": "bob@example.net",
    "segments": ["0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"],
    "topics": [{"id": "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e", "subscription": "opt_out"}],
    "send": True,
    "scheduled_at": FUTURE,
    "subject": "Other",
    "to": "bob@example.net",
}


@pytest_twisted.ensureDeferred
async def test_domain_keeps_its_name_region_and_return_path(rig: ApiRig) -> None:
    path = f"/domains/{rig.domain_id}"
    await refused(rig, path, {"tls": "enforced"}, "name", "region", "custom_return_path")
    same = {"id": str(rig.domain_id), "name": "Example.TEST", "region": "us-east-1", "custom_return_path": "Send", "tls": "enforced"}
    assert (await rig.request("PATCH", path, same)).status == 200
    found = (await rig.request("GET", path)).json
    assert (found["tls"], found["name"], found["custom_return_path"]) == ("enforced", "example.test", "send")


@pytest_twisted.ensureDeferred
async def test_topic_keeps_its_default(rig: ApiRig) -> None:
    path = f"/topics/{await make(rig, '/topics', name='News', default_subscription='opt_out')}"
    await refused(rig, path, {"name": "Other"}, "default_subscription")
    for same in ("opt_out", None, ""):
        assert (await rig.request("PATCH", path, {"topic_id": "x", "name": "Other", "default_subscription": same})).status == 200
    assert (await rig.request("GET", path)).json["name"] == "Other"


@pytest_twisted.ensureDeferred
async def test_contact_property_keeps_its_key_and_type(rig: ApiRig) -> None:
    path = f"/contact-properties/{await make(rig, '/contact-properties', key='company', type='string')}"
    await refused(rig, path, {"fallback_value": "x"}, "key", "type")
    assert (await rig.request("PATCH", path, {"key": "company", "type": "string", "fallback_value": "x"})).status == 200


@pytest.mark.parametrize("by_address", [True, False])
@pytest_twisted.ensureDeferred
async def test_contact_keeps_its_address(rig: ApiRig, by_address: bool) -> None:
    id = await make(rig, "/contacts", email="Ada@example.net")
    path = f"/contacts/{'ada@example.net' if by_address else id}"
    await refused(rig, path, {"first_name": "Ada"}, "email", "segments", "topics")
    same = {
        "id": id,
        "email": "ADA@example.net",
        "segment_id": "x",
        "audience_id": "x",
        "segments": [],
        "topics": None,
        "first_name": "Ada",
    }
    assert (await rig.request("PATCH", path, same)).status == 200
    assert (await rig.request("GET", path)).json["first_name"] == "Ada"
    assert (await rig.request("PATCH", "/contacts/bob@example.net", {"email": "bob@example.net"})).problem == (404, "not_found")


@pytest_twisted.ensureDeferred
async def test_broadcast_is_not_sent_by_changing_it(rig: ApiRig) -> None:
    segment = await make(rig, "/segments", name="x")
    made = {"segment_id": segment, "from": "a@example.test", "subject": "x", "html": "<p>x</p>"}
    path = f"/broadcasts/{await make(rig, '/broadcasts', **made)}"
    await refused(rig, path, {"name": "Other"}, "send", "scheduled_at")
    assert (await rig.request("PATCH", path, {"broadcast_id": "x", "name": "Other", "send": None, "scheduled_at": ""})).status == 200


@pytest_twisted.ensureDeferred
async def test_only_the_time_of_an_email_can_be_changed(rig: ApiRig) -> None:
    id = (await rig.request("POST", "/emails", {**GOOD, "scheduled_at": "in 1 hour"})).json["id"]
    await refused(rig, f"/emails/{id}", {"scheduled_at": "in 2 hours"}, "subject", "to")
    assert (await rig.request("PATCH", f"/emails/{id}", {"id": id, "email_id": id, "scheduled_at": "in 2 hours"})).status == 200
