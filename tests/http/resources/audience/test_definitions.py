"""Segments, audiences, topics and contact properties over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import pytest_twisted

from tests.http.api_rig import ApiRig
from tests.http.resources.audience.test_contacts import make

DOUBLE_OPT_IN = {"from": "Acme <news@example.test>", "subject": "Please confirm", "text": "Confirm: {{{CONFIRM_URL}}}"}


@pytest_twisted.ensureDeferred
async def test_segments_and_audiences_are_the_same(rig: ApiRig) -> None:
    created = await rig.request("POST", "/segments", {"name": "news", "filter": {}, "audience_id": None})
    assert (created.status, created.json) == (201, {"object": "segment", "id": created.json["id"], "name": "news"})
    legacy = await rig.request("POST", "/audiences", {"name": "news"})
    assert (legacy.status, legacy.json) == (201, {"object": "audience", "id": legacy.json["id"], "name": "news"})
    for path in ("/segments", "/audiences"):
        listed = (await rig.request("GET", path)).json
        assert listed["has_more"] is False
        assert [row["id"] for row in listed["data"]] == [legacy.json["id"], created.json["id"]]
    id_ = created.json["id"]
    assert (await rig.request("GET", f"/audiences/{id_}")).json["object"] == "audience"
    assert (await rig.request("PATCH", f"/segments/{id_}", {"name": "older news"})).json == {"object": "segment", "id": id_}
    assert (await rig.request("GET", f"/segments/{id_}")).json["name"] == "older news"
    for _ in range(2):  # also when there is nothing to delete
        assert (await rig.request("DELETE", f"/segments/{id_}")).json == {"object": "segment", "id": id_, "deleted": True}
    assert (await rig.request("DELETE", f"/audiences/{id_}", {})).json == {"object": "audience", "id": id_, "deleted": True}
    for path in (f"/segments/{id_}", f"/audiences/{id_}"):
        gone = await rig.request("GET", path)
        assert (gone.status, gone.json["message"]) == (404, "Audience not found")


@pytest_twisted.ensureDeferred
async def test_contacts_by_the_path_of_an_audience(rig: ApiRig) -> None:
    segment, other = await make(rig, "/segments", name="one"), await make(rig, "/segments", name="other")
    path = f"/audiences/{segment}/contacts"
    body = {"email": "ada@example.net", "first_name": "Ada", "audience_id": segment}
    created = await rig.request("POST", path, body)
    assert (created.status, created.json["object"]) == (201, "contact")
    id_ = created.json["id"]
    assert (await rig.request("POST", f"/audiences/{other}/contacts", body)).json["id"] == id_
    assert (await rig.request("GET", f"{path}/{id_}")).json["first_name"] == "Ada"
    assert (await rig.request("PATCH", f"{path}/ada@example.net", {"first_name": "Augusta"})).json == {"object": "contact", "id": id_}
    removed = {"object": "contact", "contact": "ada@example.net", "deleted": True}
    for _ in range(2):
        assert (await rig.request("DELETE", f"{path}/ada@example.net", {})).json == removed
    assert (await rig.request("DELETE", f"{path}/neither", {})).json == {**removed, "contact": "neither"}
    for method in ("GET", "PATCH"):
        answer = await rig.request(method, f"{path}/{id_}", {})
        assert (answer.status, answer.json["message"]) == (404, "Contact not found")
    assert (await rig.request("GET", f"/contacts/{id_}")).json["first_name"] == "Augusta"
    answer = await rig.request("POST", f"/audiences/{uuid4()}/contacts", body)
    assert (answer.status, answer.json["message"]) == (404, "Audience not found")


@pytest_twisted.ensureDeferred
async def test_topics(rig: ApiRig) -> None:
    created = await rig.request("POST", "/topics", {"name": "News", "default_subscription": "opt_in"})
    id_ = created.json["id"]
    assert (created.status, created.json) == (201, {"object": "topic", "id": id_})
    found = (await rig.request("GET", f"/topics/{id_}")).json
    del found["created_at"]
    assert found == {
        "object": "topic", "id": id_, "name": "News", "description": None, "default_subscription": "opt_in", "visibility": "private",
        "double_opt_in": None,
    }  # fmt: skip
    change = {"id": id_, "name": None, "description": "About us", "visibility": "public", "default_subscription": "opt_in"}
    assert (await rig.request("PATCH", f"/topics/{id_}", change)).json == {"object": "topic", "id": id_}
    [row] = (await rig.request("GET", "/topics")).json["data"]
    assert "object" not in row
    assert (row["name"], row["description"], row["default_subscription"], row["visibility"]) == ("News", "About us", "opt_in", "public")
    assert (await rig.request("DELETE", f"/topics/{id_}")).json == {"object": "topic", "id": id_, "deleted": True}
    for method in ("GET", "PATCH", "DELETE"):
        gone = await rig.request(method, f"/topics/{id_}", {})
        assert (gone.status, gone.json["message"]) == (404, "Topic not found")


@pytest.mark.parametrize(
    ("path", "body", "name", "text"),
    [
        ("/segments", {}, "missing_required_field", "Missing `name` field."),
        ("/segments", {"name": "x" * 101}, "validation_error", "The `name` field must have 1 to 100 characters."),
        ("/audiences", {"name": 1}, "validation_error", "The `name` field must be a string."),
        ("/topics", {"name": "x"}, "missing_required_field", "Missing `default_subscription` field."),
        ("/topics", {"name": "x" * 51, "default_subscription": "opt_in"}, "validation_error", "`name`"),
        ("/topics", {"name": "x", "default_subscription": "maybe"}, "validation_error", "`default_subscription`"),
        ("/topics", {"name": "x", "default_subscription": "opt_in", "description": "x" * 201}, "validation_error", "`description`"),
        ("/topics", {"name": "x", "default_subscription": "opt_in", "visibility": "secret"}, "validation_error", "`visibility`"),
        ("/topics", {"name": "x", "default_subscription": "opt_in", "double_opt_in": DOUBLE_OPT_IN}, "validation_error", "opt_out"),
        ("/segments", {"name": "x", "double_opt_in": {**DOUBLE_OPT_IN, "text": "no link"}}, "validation_error", "CONFIRM_URL"),
        ("/segments", {"name": "x", "double_opt_in": {"subject": "x"}}, "missing_required_field", "double_opt_in.from"),
        ("/segments", {"name": "x", "double_opt_in": {**DOUBLE_OPT_IN, "subject": "a\nb"}}, "validation_error", "double_opt_in.subject"),
        ("/contact-properties", {"key": "a-b", "type": "string"}, "validation_error", "`key`"),
        ("/contact-properties", {"key": "x" * 51, "type": "string"}, "validation_error", "`key`"),
        ("/contact-properties", {"key": "email", "type": "string"}, "validation_error", "`key`"),
        ("/contact-properties", {"key": "a", "type": "boolean"}, "validation_error", "`type`"),
        ("/contact-properties", {"key": "a", "type": "number", "fallback_value": "3"}, "validation_error", "must be a number"),
        ("/contact-properties", {"key": "a", "type": "string", "fallback_value": 3}, "validation_error", "must be a string"),
        ("/contact-properties", {"key": "a", "type": "string", "fallback_value": True}, "validation_error", "`fallback_value`"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_bad_definition_is_refused_with_the_field(rig: ApiRig, path: str, body: Any, name: str, text: str) -> None:
    answer = await rig.request("POST", path, body)
    assert (answer.status, answer.json["name"]) == (422, name)
    assert text in answer.json["message"]
    assert (await rig.request("GET", path)).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_contact_properties(rig: ApiRig) -> None:
    id_ = await make(rig, "/contact-properties", key="Company_2", type="string", fallback_value="you")
    found = (await rig.request("GET", f"/contact-properties/{id_}")).json
    assert (found["key"], found["type"], found["fallback_value"]) == ("Company_2", "string", "you")
    assert (await rig.request("GET", "/contact-properties")).json["data"] == [found]
    again = await rig.request("POST", "/contact-properties", {"key": "Company_2", "type": "number"})
    assert (again.status, again.json["name"]) == (422, "validation_error")
    assert (await rig.request("PATCH", f"/contact-properties/{id_}", {"key": "other"})).status == 422
    assert (await rig.request("GET", f"/contact-properties/{id_}")).json == found
    assert (await rig.request("PATCH", f"/contact-properties/{id_}", {"fallback_value": 3})).status == 422
    assert (await rig.request("PATCH", f"/contact-properties/{id_}", {"fallback_value": None})).status == 200
    assert (await rig.request("GET", f"/contact-properties/{id_}")).json["fallback_value"] is None
    gone = await rig.request("DELETE", f"/contact-properties/{id_}")
    assert gone.json == {"object": "contact_property", "id": id_, "deleted": True}
    assert (await rig.request("GET", f"/contact-properties/{id_}")).json["message"] == "Contact property not found"


@pytest_twisted.ensureDeferred
async def test_account_has_a_limit_of_each(rig: ApiRig) -> None:
    for n in range(20):
        await make(rig, "/segments", name="x")
        await make(rig, "/topics", name="x", default_subscription="opt_in")
        await make(rig, "/contact-properties", key=f"x{n}", type="number")
    bodies: dict[str, Any] = {
        "/segments": {"name": "x"}, "/audiences": {"name": "x"}, "/topics": {"name": "x", "default_subscription": "opt_in"},
        "/contact-properties": {"key": "y", "type": "string"},
    }  # fmt: skip
    for path, body in bodies.items():
        answer = await rig.request("POST", path, body)
        assert (answer.status, answer.json["name"]) == (422, "validation_error")
        assert "20" in answer.json["message"]


@pytest_twisted.ensureDeferred
async def test_double_opt_in_is_shown_and_turned_off(rig: ApiRig) -> None:
    id_ = await make(rig, "/segments", name="x", double_opt_in=DOUBLE_OPT_IN)
    shown = (await rig.request("GET", f"/segments/{id_}")).json["double_opt_in"]
    assert {name: shown[name] for name in DOUBLE_OPT_IN} == DOUBLE_OPT_IN
    contact = await make(rig, "/contacts", email="ada@example.net", segments=[id_])
    assert (await rig.request("GET", f"/contacts/{contact}/segments")).json["data"] == []
    await rig.request("PATCH", f"/segments/{id_}", {"name": "y"})
    assert (await rig.request("GET", f"/segments/{id_}")).json["double_opt_in"] == shown
    await rig.request("PATCH", f"/segments/{id_}", {"double_opt_in": None})
    assert (await rig.request("GET", f"/segments/{id_}")).json["double_opt_in"] is None
    await rig.request("POST", f"/contacts/{contact}/segments/{id_}")
    assert len((await rig.request("GET", f"/contacts/{contact}/segments")).json["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/segments", {"name": "a\0"}, "name"),
        ("/audiences", {"name": "\0"}, "name"),
        ("/segments", {"name": "a", "double_opt_in": {**DOUBLE_OPT_IN, "text": "\0{{{CONFIRM_URL}}}"}}, "double_opt_in.text"),
        ("/topics", {"name": "\0", "default_subscription": "opt_in"}, "name"),
        ("/contacts", {"email": "ada@example.net", "last_name": "\0"}, "last_name"),
        ("/contacts", {"email": "ada@example.net", "properties": {"company": "\0"}}, "properties.company"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_nul_is_refused_because_it_cannot_be_stored(rig: ApiRig, path: str, body: dict[str, Any], field: str) -> None:
    answer = await rig.request("POST", path, body)
    assert (answer.status, answer.json["message"]) == (422, f"The `{field}` field must not have a NUL character.")
