"""The limits that the operator sets in [audience] and [broadcasts], and those of plans."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest_twisted

from mailsvc.settings.audience import Audience, Broadcasts
from mailsvc.store.postgres.pool import Pool
from tests.http.api_rig import ApiRig, build

LOW = Audience(name=3, value=4, choices=1, confirm_days=2, imports=1, import_part=1024, wording=1000, page_text=9, topics=20)
ID = "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"
WORDING = {"from": "a@example.test", "subject": "S", "text": "{{{CONFIRM_URL}}}"}
CONTENT = {"from": "a@example.test", "subject": "S", "html": "<p>H</p>"}
REFUSED: list[tuple[str, str, Any, str]] = [
    ("POST", "/contacts", {"email": "a@example.net", "first_name": "Adas"}, "The `first_name` field can have at most 3 characters."),
    (
        "POST", "/contacts", {"email": "a@example.net", "properties": {"k": "12345"}},
        "The `properties.k` field can have at most 4 characters.",
    ),
    ("POST", "/contacts", {"email": "a@example.net", "segments": [ID, ID]}, "The `segments` field must be an array of at most 1 segments."),
    (
        "POST", "/contacts", {"email": "a@example.net", "topics": [{"id": ID, "subscription": "opt_in"}] * 2},
        "The `topics` field can have at most 1 items.",
    ),
    ("PATCH", "/preference-page", {"message": "0123456789"}, "The `message` field can have at most 9 characters."),
    (
        "POST", "/segments", {"name": "x", "double_opt_in": {**WORDING, "html": "x" * 1001}},
        "The `double_opt_in.html` field can have at most 1000 characters.",
    ),
    (
        "POST", "/contact-properties", {"key": "x", "type": "string", "fallback_value": "12345"},
        "The `fallback_value` field can have at most 4 characters.",
    ),
    ("POST", "/broadcasts", {**CONTENT, "name": "n" * 71}, "The `name` field can have at most 70 characters."),
    ("POST", "/broadcasts", {**CONTENT, "subject": "ten chars."}, "The `subject` field can have at most 9 characters."),
    ("POST", "/broadcasts", {**CONTENT, "preview_text": "12345"}, "The `preview_text` field can have at most 4 characters."),
    ("POST", "/broadcasts", {**CONTENT, "reply_to": ["a@example.net"] * 2}, "The `reply_to` field can have at most 1 addresses."),
]  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_limits_of_fields_are_those_of_the_settings(pool: Pool) -> None:
    rig = await build(pool, LOW, Broadcasts(name=70, subject=9, preview=4, reply_to=1))
    await rig.request("POST", "/contact-properties", {"key": "k", "type": "string"})
    for method, path, body, message in REFUSED:
        answer = await rig.request(method, path, body)
        assert (answer.status, answer.json["message"]) == (422, message)
    good = {"email": "a@example.net", "first_name": "Ada", "properties": {"k": "1234"}}
    assert (await rig.request("POST", "/contacts", good)).status == 201


@pytest_twisted.ensureDeferred
async def test_the_description_has_the_limits_of_the_settings(pool: Pool) -> None:
    schemas = (await (await build(pool, LOW)).request("GET", "/openapi.json")).json["components"]["schemas"]
    assert schemas["CreateContact"]["properties"]["first_name"]["anyOf"][0]["maxLength"] == 3
    assert schemas["CreateContact"]["properties"]["segments"]["anyOf"][0]["maxItems"] == 1


@pytest_twisted.ensureDeferred
async def test_a_double_opt_in_can_be_confirmed_for_so_many_days(pool: Pool) -> None:
    rig = await build(pool, LOW)
    segment = (await rig.request("POST", "/segments", {"name": "x", "double_opt_in": WORDING})).json["id"]
    await rig.request("POST", "/contacts", {"email": "a@example.net", "segments": [segment]})
    assert await pool.rows("SELECT expires_at - requested_at FROM confirmations") == [(timedelta(days=2),)]


@pytest_twisted.ensureDeferred
async def test_imports_and_their_parts_are_limited(pool: Pool) -> None:
    rig = await build(pool, LOW)
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="blob"\r\n\r\nemail\na@example.net\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b"
    assert (await rig.request("POST", "/contacts/imports", form, content_type=kind)).status == 201
    refused = await rig.request("POST", "/contacts/imports", form, content_type=kind)
    assert refused.status == 422 and refused.json["message"].startswith("The account has 1 imports in progress, which is the maximum.")


@pytest_twisted.ensureDeferred
async def test_with_more_contacts_than_the_plan_has_no_broadcast_is_sent(rig: ApiRig) -> None:
    await rig.pool.run("UPDATE accounts SET plan = 'few' WHERE id = %s", (rig.account_id,))
    segment = (await rig.request("POST", "/segments", {"name": "x"})).json["id"]
    content = {**CONTENT, "segment_id": segment}
    for n in range(2):
        assert (await rig.request("POST", "/contacts", {"email": f"a{n}@example.net", "segments": [segment]})).status == 201
    assert (await rig.request("POST", "/broadcasts", {**content, "send": True})).status == 201
    draft = (await rig.request("POST", "/broadcasts", content)).json["id"]
    assert (await rig.request("POST", "/contacts", {"email": "a3@example.net"})).status == 201  # adding is allowed
    message = "You have reached your contacts quota. Please upgrade your plan to send more emails."
    for path, body in (("/broadcasts", {**content, "send": True}), (f"/broadcasts/{draft}/send", {})):
        refused = await rig.request("POST", path, body)
        assert (refused.problem, refused.json["message"]) == ((403, "validation_error"), message)
    assert message in (await rig.request("GET", f"/broadcasts/{draft}/review")).json["problems"]
    usage = (await rig.request("GET", "/usage")).json
    assert (usage["contacts"], usage["segments"]) == ({"used": 3, "limit": 2}, {"used": 1, "limit": 20})
    assert usage["broadcasts"] == {"used": 1, "limit": None}
    assert (await rig.request("GET", "/usage", key=rig.foreign_key)).json["contacts"] == {"used": 0, "limit": None}
