"""What client libraries and mailbox providers rely on, point by point; each test names its point. Points with tests elsewhere:

- Every method of the Node and Python libraries: tests/end_to_end/clients. Answers that Rust, .NET and Go can read: every answer of every
  test, here too, against tests/http/strict_audience.
- Placeholders: values escaped in HTML, fallbacks verbatim, capitals in text, no line break in a header: tests/mail/test_merge.
- Both List-Unsubscribe fields are signed by DKIM, and a signature verifies: tests/end_to_end/clients/test_broadcasts.
- Forged links: test_unsubscribe. All combinations of consent: tests/broadcasts/test_consent. Tracking: the tests of tracking.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
import pytest_twisted

from tests.http.api_rig import ApiRig
from tests.http.resources.audience.test_contacts import make
from tests.http.resources.broadcasts.test_broadcasts import HTML, content
from tests.http.resources.broadcasts.test_unsubscribe import CLICK, call, link, post, unsubscribed


@pytest_twisted.ensureDeferred
async def test_the_same_address_twice_is_the_same_contact_and_leaving_an_audience_keeps_it(rig: ApiRig) -> None:
    audience = await make(rig, "/audiences", name="old")
    first = await make(rig, f"/audiences/{audience}/contacts", email="ada@example.net")
    assert await make(rig, "/contacts", email="ADA@example.net") == first
    removed = await rig.request("DELETE", f"/audiences/{audience}/contacts/ada@example.net")
    assert (removed.status, removed.json["deleted"]) == (200, True)
    assert (await rig.request("GET", f"/audiences/{audience}/contacts")).json["data"] == []
    assert (await rig.request("GET", f"/contacts/{first}")).status == 200


@pytest.mark.parametrize("wrapped", [False, True])
@pytest_twisted.ensureDeferred
async def test_topics_as_an_array_or_an_object_and_segments_as_ids_or_objects(rig: ApiRig, wrapped: bool) -> None:
    segment, topic = await make(rig, "/segments", name="x"), await make(rig, "/topics", name="x", default_subscription="opt_in")
    contact = await make(rig, "/contacts", email="ada@example.net", segments=[{"id": segment} if wrapped else segment])
    assert [row["id"] for row in (await rig.request("GET", f"/contacts/{contact}/segments/")).json["data"]] == [segment]
    chosen = [{"id": topic, "subscription": "opt_out"}]
    assert (await rig.request("PATCH", f"/contacts/{contact}/topics", {"topics": chosen} if wrapped else chosen)).status == 200
    [row] = (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"]
    assert row["subscription"] == "opt_out"


FILE = b'--b\r\nContent-Disposition: form-data; name="file"%s\r\n%s\r\nemail\na@example.net\r\n--b--\r\n'


@pytest.mark.parametrize("name", [b'; filename="blob"', b'; filename="import.csv"', b""])
@pytest.mark.parametrize("kind", [b"", b"Content-Type: application/octet-stream\r\n", b"Content-Type: text/csv\r\n"])
@pytest_twisted.ensureDeferred
async def test_an_import_whatever_the_file_is_called(rig: ApiRig, name: bytes, kind: bytes) -> None:
    answer = await rig.request("POST", "/contacts/imports", FILE % (name, kind), content_type="multipart/form-data; boundary=b")
    assert answer.status == 201


@pytest.mark.parametrize("ref", ["a+b@example.net", "a%2Bb%40example.net", "a%2bb@example.net", "a%2Fb@example.net", "a%252Fb@example.net"])
@pytest.mark.parametrize("slash", ["", "/"])
@pytest_twisted.ensureDeferred
async def test_an_address_in_a_path_raw_or_encoded_with_and_without_a_slash(rig: ApiRig, ref: str, slash: str) -> None:
    contact, segment = await make(rig, "/contacts", email=unquote(ref)), await make(rig, "/segments", name="x")
    assert (await rig.request("PATCH", f"/contacts/{ref}{slash}", {"first_name": "A"})).json["id"] == contact
    assert (await rig.request("POST", f"/contacts/{ref}/segments/{segment}{slash}")).status == 200
    assert (await rig.request("GET", f"/contacts/{ref}/segments{slash}")).json["data"][0]["id"] == segment
    assert (await rig.request("GET", f"/audiences/{segment}/contacts/{ref}{slash}")).json["id"] == contact
    assert (await rig.request("DELETE", f"/contacts/{ref}{slash}")).json["deleted"] is True


@pytest_twisted.ensureDeferred
async def test_a_broadcast_is_sent_scheduled_and_canceled_and_its_deletion_refused_in_the_words_that_libraries_know(rig: ApiRig) -> None:
    news = await make(rig, "/segments", name="x")
    ids = [await make(rig, "/broadcasts", **content(news, name="n" * 70)) for _ in range(2)]

    async def act(id_: str, action: str, **body: Any) -> str:
        await rig.request("POST", f"/broadcasts/{id_}/{action}", body)
        return str((await rig.request("GET", f"/broadcasts/{id_}")).json["status"])

    assert await act(ids[0], "send", scheduled_at="in 1 hour") == "scheduled"
    assert await act(ids[0], "cancel") == "draft"
    assert await act(ids[1], "send", scheduled_at="") == "queued"
    refused = await rig.request("DELETE", f"/broadcasts/{ids[1]}")
    assert (refused.status, refused.json["message"]) == (403, "Only draft or scheduled broadcasts can be deleted")
    assert await act(ids[1], "cancel") == "canceled"
    assert (await rig.request("DELETE", f"/broadcasts/{ids[0]}")).json == {"object": "broadcast", "id": ids[0], "deleted": True}
    copy = (await rig.request("POST", f"/broadcasts/{ids[1]}/duplicate")).json["id"]
    shown = (await rig.request("GET", f"/broadcasts/{copy}")).json
    assert (shown["name"], len(shown["name"]), shown["status"], shown["html"]) == ("n" * 63 + " (copy)", 70, "draft", HTML)
    assert shown["segment_id"] == shown["audience_id"] == news


@pytest_twisted.ensureDeferred
async def test_one_click_twice_is_204_and_opening_the_link_changes_nothing(rig: ApiRig) -> None:
    contact, path = await make(rig, "/contacts", email="ada@example.net"), await link(rig, broadcast_id=UUID(int=5))
    assert (await call(rig, "GET", path)).status == 200 and not await unsubscribed(rig, contact)
    assert (await post(rig, f"{path}x", CLICK)).status == 404 and not await unsubscribed(rig, contact)
    for _ in range(2):
        answer = await post(rig, path, CLICK)
        assert (answer.status, answer.body) == (204, b"") and "location" not in answer.headers and "set-cookie" not in answer.headers
    assert await unsubscribed(rig, contact)


@pytest_twisted.ensureDeferred
async def test_what_libraries_send_besides_the_documented_fields(rig: ApiRig) -> None:
    """Rust: `audience_id` null, or alone. Go: an empty `scheduled_at`, a null `fallback_value`. .NET: a null `email`, the
    `default_subscription` that a topic has. IDs of the path. Java: `segment_id` of a new contact."""
    contact = await make(rig, "/contacts", email="ada@example.net", audience_id=None)
    assert (await rig.request("PATCH", f"/contacts/{contact}", {"email": None, "id": contact, "unsubscribed": True})).status == 200
    found = (await rig.request("GET", f"/contacts/{contact}", {})).json
    assert (found["email"], found["unsubscribed"]) == ("ada@example.net", True)
    topic = await make(rig, "/topics", name="x", default_subscription="opt_out")
    assert (await rig.request("PATCH", f"/topics/{topic}", {"id": topic, "name": None, "default_subscription": "opt_out"})).status == 200
    found = (await rig.request("GET", f"/topics/{topic}")).json
    assert (found["name"], found["default_subscription"], found["visibility"]) == ("x", "opt_out", "private")
    await make(rig, "/contact-properties", key="plan", type="string", fallback_value=None)
    news = await make(rig, "/segments", name="x", filter={}, audience_id=str(uuid4()))
    joined = await make(rig, "/contacts", email="bea@example.net", segment_id=news, audience_id=news)
    assert [row["id"] for row in (await rig.request("GET", f"/segments/{news}/contacts")).json["data"]] == [joined]
    assert (await rig.request("POST", "/contacts", {"email": "a@b.example", "segment_id": str(uuid4())})).status == 404
    only_old_name = content(news)
    only_old_name["audience_id"] = only_old_name.pop("segment_id")
    broadcast = await make(rig, "/broadcasts", **only_old_name)
    sent = await rig.request("POST", f"/broadcasts/{broadcast}/send", {"scheduled_at": "", "broadcast_id": broadcast})
    assert (sent.status, sent.json["id"]) == (200, broadcast)
