"""Contacts over HTTP, with the requests that client libraries send. Every response is checked against its description and the libraries."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_twisted

from mailsvc.http.resources.audience import contacts
from mailsvc.settings.audience import Audience
from mailsvc.store.postgres.pool import Pool
from tests.http.api_rig import ApiRig, build

ADA = {"email": "ada@example.net", "first_name": "Ada", "last_name": None}


async def make(rig: ApiRig, path: str, **body: Any) -> str:
    answer = await rig.request("POST", path, body)
    assert answer.status == 201, answer.any
    return str(answer.json["id"])


@pytest_twisted.ensureDeferred
async def test_contact_is_created_once_for_an_address(rig: ApiRig) -> None:
    first = await rig.request("POST", "/contacts", {**ADA, "unsubscribed": False, "audience_id": None})
    second = await rig.request("POST", "/contacts", {"email": "ADA@example.net", "last_name": "Lovelace", "properties": []})
    assert (first.status, second.status) == (201, 201)
    assert first.json == second.json == {"object": "contact", "id": first.json["id"]}
    found = (await rig.request("GET", f"/contacts/{first.json['id']}")).json
    created_at = found.pop("created_at")
    assert created_at.endswith("+00")
    assert found == {
        "object": "contact", "id": first.json["id"], "email": "ada@example.net", "first_name": "Ada", "last_name": "Lovelace",
        "unsubscribed": False, "untracked": False, "properties": {},
    }  # fmt: skip


@pytest.mark.parametrize("path", ["a+b@example.net", "a%2Bb%40example.net", "A+B@EXAMPLE.net", "a+b@example.net/"])
@pytest_twisted.ensureDeferred
async def test_contact_is_found_by_its_address_however_it_is_written(rig: ApiRig, path: str) -> None:
    id_ = await make(rig, "/contacts", email="a+b@example.net")
    assert (await rig.request("GET", f"/contacts/{path}")).json["id"] == id_


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
@pytest.mark.parametrize("ref", ["nobody@example.net", str(UUID(int=1)), "neither", "not an @address", "@", "x/segments"])
@pytest_twisted.ensureDeferred
async def test_unknown_contact_is_404(rig: ApiRig, method: str, ref: str) -> None:
    answer = await rig.request(method, f"/contacts/{quote(ref, safe='')}", {} if method == "PATCH" else b"")
    assert (answer.status, answer.json) == (404, {"statusCode": 404, "message": "Contact not found", "name": "not_found"})


@pytest_twisted.ensureDeferred
async def test_properties_are_typed_and_defined_beforehand(rig: ApiRig) -> None:
    await make(rig, "/contact-properties", key="company", type="string", fallback_value="your company")
    await make(rig, "/contact-properties", key="seats", type="number", fallback_value=None)
    id_ = await make(rig, "/contacts", email="a@example.net", properties={"company": "Acme", "seats": "12"})
    shown = (await rig.request("GET", f"/contacts/{id_}")).json["properties"]
    assert shown == {"company": {"value": "Acme", "type": "string"}, "seats": {"value": 12, "type": "number"}}
    assert (await rig.request("PATCH", f"/contacts/{id_}", {"properties": {"company": None, "seats": 13.5}})).status == 200
    assert (await rig.request("GET", f"/contacts/{id_}")).json["properties"] == {"seats": {"value": 13.5, "type": "number"}}
    for value, text in (("many", "must be a number"), ("1e999", "must be a number"), ([], "must be a string, a number or null")):
        answer = await rig.request("PATCH", f"/contacts/{id_}", {"properties": {"seats": value}})
        assert (answer.status, answer.json["name"]) == (422, "validation_error")
        assert answer.json["message"] == f"The `properties.seats` field {text}."
    unknown = await rig.request("POST", "/contacts", {"email": "b@example.net", "properties": {"plan": "free"}})
    assert "properties.plan" in unknown.json["message"]
    for method, path in (("POST", "/contacts"), ("PATCH", f"/contacts/{id_}")):
        odd = await rig.request(method, path, {"email": "b@example.net", "properties": {"a\0b": "x"}})
        assert (odd.status, odd.json["name"]) == (422, "validation_error")
    assert (await rig.request("GET", "/contacts/b@example.net")).status == 404, "nothing is half stored"


@pytest_twisted.ensureDeferred
async def test_update_ignores_the_address_and_null_clears_names(rig: ApiRig) -> None:
    id_ = await make(rig, "/contacts", **ADA)
    body = {"email": None, "id": id_, "first_name": None, "unsubscribed": True, "audience_id": None}
    assert (await rig.request("PATCH", "/contacts/ada@example.net", body)).json == {"object": "contact", "id": id_}
    found = (await rig.request("GET", f"/contacts/{id_}")).json
    assert (found["email"], found["first_name"], found["unsubscribed"]) == ("ada@example.net", None, True)
    await rig.request("PATCH", f"/contacts/{id_}", {"email": "other@example.net", "unsubscribed": None})
    found = (await rig.request("GET", f"/contacts/{id_}")).json
    assert (found["email"], found["unsubscribed"]) == ("ada@example.net", True)


@pytest.mark.parametrize(
    ("body", "status", "name", "text"),
    [
        ({}, 422, "missing_required_field", "Missing `email` field."),
        ({"email": "no address"}, 422, "validation_error", "`email`"),
        ({"email": 1}, 422, "validation_error", "The `email` field must be a string."),
        ({"email": "a@b.example", "first_name": "x" * 256}, 422, "validation_error", "first_name"),
        ({"email": "a@b.example", "unsubscribed": "no"}, 422, "validation_error", "The `unsubscribed` field must be true or false."),
        ({"email": "a@b.example", "segments": "all"}, 422, "validation_error", "segments"),
        ({"email": "a@b.example", "segments": [{"id": "x"}]}, 422, "invalid_parameter", "The `segments[0].id` must be a valid UUID."),
        ({"email": "a@b.example", "segments": [str(UUID(int=1))]}, 404, "not_found", "Audience not found"),
        ({"email": "a@b.example", "topics": [{"id": str(UUID(int=1)), "subscription": "opt_in"}]}, 404, "not_found", "Topic not found"),
        ({"email": "a@b.example", "topics": [{"id": str(UUID(int=1))}]}, 422, "missing_required_field", "topics[0].subscription"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_bad_contact_is_refused_with_the_field(rig: ApiRig, body: Any, status: int, name: str, text: str) -> None:
    answer = await rig.request("POST", "/contacts", body)
    assert (answer.status, answer.json["name"]) == (status, name)
    assert text in answer.json["message"]
    assert (await rig.request("GET", "/contacts")).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_delete_has_the_keys_of_all_libraries(rig: ApiRig) -> None:
    id_ = await make(rig, "/contacts", **ADA)
    assert (await rig.request("DELETE", "/contacts/ada@example.net")).json == {
        "object": "contact",
        "id": id_,
        "contact": id_,
        "deleted": True,
    }
    assert (await rig.request("DELETE", f"/contacts/{id_}")).status == 404


@pytest_twisted.ensureDeferred
async def test_lists_are_whole_without_parameters_and_paged_with_them(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = await make(rig, "/segments", name="all")
    ids = [await make(rig, "/contacts", email=f"{n}@example.net", segments=[segment] if n % 2 else []) for n in range(25)][::-1]
    everybody = (await rig.request("GET", "/contacts")).json
    assert [row["id"] for row in everybody["data"]] == ids
    assert (everybody["object"], everybody["has_more"]) == ("list", False)
    assert set(everybody["data"][0]) == {"id", "email", "first_name", "last_name", "created_at", "unsubscribed"}
    page = (await rig.request("GET", f"/contacts?limit=10&after={ids[4]}")).json
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[5:15], True)
    page = (await rig.request("GET", f"/contacts?before={ids[3]}")).json
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[:3], False)
    for path in (f"/contacts?segment_id={segment}", f"/segments/{segment}/contacts", f"/audiences/{segment}/contacts"):
        assert [row["id"] for row in (await rig.request("GET", path)).json["data"]] == ids[1::2]
    page = (await rig.request("GET", f"/segments/{segment}/contacts?limit=3&after={ids[3]}")).json
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[5:10:2], True)
    for path in (f"/contacts?segment_id={uuid4()}", f"/segments/{uuid4()}/contacts", f"/audiences/{uuid4()}/contacts"):
        answer = await rig.request("GET", path)
        assert (answer.status, answer.json["message"]) == (404, "Audience not found")


@pytest_twisted.ensureDeferred
async def test_long_list_is_streamed_in_pieces(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await make(rig, "/contacts", email=f"{n}@example.net") for n in range(7)][::-1]
    monkeypatch.setattr("mailsvc.store.audience.listing.CHUNK", 3)
    found = [each async for each in contacts._everything(context(rig), rig.account_id, contacts.Filter())]
    assert len(found) == 5
    answer = orjson.loads(b"".join(found))
    assert [row["id"] for row in answer["data"]] == ids


def context(rig: ApiRig) -> Any:
    from mailsvc.http.resources.audience.context import AudienceContext
    from mailsvc.settings.audience import Audience
    from tests.store.encryption.test_secrets import ENCRYPTION

    return AudienceContext.of(rig.pool, rig.site.reactor, ENCRYPTION, Audience())


@pytest_twisted.ensureDeferred
async def test_segments_of_a_contact(rig: ApiRig) -> None:
    contact, segment = await make(rig, "/contacts", **ADA), await make(rig, "/segments", name="news")
    joined = {"object": "contact_segment", "id": segment, "contact_id": contact, "segment_id": segment}
    for body in (b"", {}):
        assert (await rig.request("POST", f"/contacts/ada%40example.net/segments/{segment}", body)).json == joined
    [row] = (await rig.request("GET", f"/contacts/{contact}/segments/", {})).json["data"]
    assert (row["id"], row["name"]) == (segment, "news")
    assert (await rig.request("DELETE", f"/contacts/{contact}/segments/{segment}", {})).json == {**joined, "deleted": True}
    assert (await rig.request("GET", f"/contacts/{contact}/segments")).json["data"] == []
    assert (await rig.request("POST", f"/contacts/{contact}/segments/{uuid4()}")).json["message"] == "Audience not found"
    assert (await rig.request("POST", f"/contacts/{uuid4()}/segments/{segment}")).json["message"] == "Contact not found"


@pytest_twisted.ensureDeferred
async def test_topics_of_a_contact_are_an_array_or_an_object(rig: ApiRig) -> None:
    contact = await make(rig, "/contacts", **ADA)
    news = await make(rig, "/topics", name="News", default_subscription="opt_in")
    offers = await make(rig, "/topics", name="Offers", default_subscription="opt_out", description="Once a month")
    chosen = [{"id": news, "subscription": "opt_out"}]
    answer = (await rig.request("PATCH", f"/contacts/{contact}/topics", chosen)).json
    assert answer == {"object": "contact_topics", "id": contact, "contact_id": contact, "topics": chosen}
    body = {"id": contact, "topics": [{"id": offers, "subscription": "opt_in"}]}
    assert (await rig.request("PATCH", f"/contacts/{contact}/topics", body)).status == 200
    listed = (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"]
    assert [(row["id"], row["subscription"], row["description"]) for row in listed] == [
        (offers, "opt_in", "Once a month"), (news, "opt_out", None),
    ]  # fmt: skip
    unknown = await rig.request(
        "PATCH", f"/contacts/{contact}/topics", [{"id": news, "subscription": "opt_in"}, {"id": str(uuid4()), "subscription": "opt_in"}]
    )
    assert (unknown.status, unknown.json["message"]) == (404, "Topic not found")
    assert (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"] == listed
    for bad in ({}, "opt_in", [1], [{"id": news, "subscription": "maybe"}]):
        assert (await rig.request("PATCH", f"/contacts/{contact}/topics", bad)).status == 422


@pytest_twisted.ensureDeferred
async def test_events_reach_the_event_log(rig: ApiRig) -> None:
    topic = await make(rig, "/topics", name="News", default_subscription="opt_in")
    contact = await make(rig, "/contacts", **ADA)
    await rig.request("PATCH", f"/contacts/{contact}/topics", [{"id": topic, "subscription": "opt_out"}])
    await rig.request("DELETE", f"/contacts/{contact}")
    await rig.request("PATCH", f"/topics/{topic}", {"name": "Product news"})
    await rig.request("DELETE", f"/topics/{topic}")
    events = await rig.pool.rows("SELECT type, data FROM events WHERE type ~ '^(contact|topic)' ORDER BY event_id")
    assert [kind for kind, _ in events] == [
        "topic.created", "contact.created", "contact.topics.updated", "contact.deleted", "topic.updated", "topic.deleted",
    ]  # fmt: skip
    for kind, data in events:
        rig.contract.check_event({"type": kind, "created_at": "2026-01-02T03:04:05.678Z", "data": data})


@pytest_twisted.ensureDeferred
async def test_search_finds_parts_of_names_and_addresses(pool: Pool) -> None:
    rig = await build(pool, Audience(searched=3))
    segment = (await rig.request("POST", "/segments", {"name": "x"})).json["id"]
    ids = {}
    for n in range(7):
        body = {"email": f"c{n}@example.net", "first_name": "Ada" if n in (0, 5) else "Bob", "segments": [segment]}
        ids[(await rig.request("POST", "/contacts", body)).json["id"]] = n
    found, after, pages = [], "", 0
    while pages == 0 or after:
        answer = (await rig.request("GET", f"/contacts?search=aDA&limit=5&segment_id={segment}{after}")).json
        found += [ids[row["id"]] for row in answer["data"]]
        assert answer["has_more"] is ("after" in answer)
        after, pages = f"&after={answer['after']}" if "after" in answer else "", pages + 1
    assert found == [5, 0] and pages == 3  # three contacts were read for each page
    whole = (await rig.request("GET", "/contacts?search=C1@example.net%20c2@example.net")).json
    assert [ids[row["id"]] for row in whole["data"]] == [2, 1] and not whole["has_more"]
    await make(rig, "/contacts", email="zoe@bücher.example", first_name="Éva")
    for text in ("zoe@bücher.example", "@bücher.example", "bücher.example", "éva"):
        assert len((await rig.request("GET", f"/contacts?search={quote(text)}")).json["data"]) == 1, text
    assert (await rig.request("GET", "/contacts?search=ada", key=rig.foreign_key)).json["data"] == []
    assert (await rig.request("GET", f"/contacts?search={'x' * 1001}")).status == 422
    assert (await rig.request("GET", f"/contacts?search=x&before={next(iter(ids))}")).status == 422
