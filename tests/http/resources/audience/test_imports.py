"""Imports over HTTP, in the forms that client libraries send. Reading the rows: tests/audience/test_imports."""

from __future__ import annotations

import io
from typing import Any
from uuid import uuid4

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from mailsvc.http import multipart
from mailsvc.http.problem import Problem
from mailsvc.http.resources.audience import context
from mailsvc.settings.audience import Audience
from mailsvc.store.audience.imports import Imports
from mailsvc.store.postgres.pool import Pool
from tests.http.api_rig import ApiRig, build
from tests.http.resources.audience.test_contacts import make
from tests.http.resources.audience.test_definitions import DOUBLE_OPT_IN
from tests.http.rig import Response

FORM = "multipart/form-data; boundary=x-x"
CSV = "Email,Plan,Seats\nada@example.net,free,3\n"


def form(parts: dict[str, str], disposition: str = 'filename="blob"', kind: str = "application/octet-stream") -> bytes:
    found = []
    for name, value in parts.items():
        more = f"; {disposition}\r\nContent-Type: {kind}" if name == "file" and disposition else ""
        found.append(f'--x-x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n')
    return "".join([*found, "--x-x--\r\n"]).encode()


async def upload(rig: ApiRig, body: bytes, content_type: str = FORM) -> Response:
    return await rig.request("POST", "/contacts/imports", body, content_type=content_type)


@pytest.mark.parametrize(
    ("disposition", "kind"), [('filename="blob"', "application/octet-stream"), ('filename="import.csv"', "text/csv"), ("", "")]
)
@pytest_twisted.ensureDeferred
async def test_import_is_queued_whatever_the_file_is_called(rig: ApiRig, disposition: str, kind: str) -> None:
    answer = await upload(rig, form({"file": CSV, "on_conflict": "skip", "column_map": "[]"}, disposition, kind))
    assert (answer.status, answer.json) == (201, {"object": "contact_import", "id": answer.json["id"]})
    found = (await rig.request("GET", f"/contacts/imports/{answer.json['id']}")).json
    assert (found["object"], found["status"], found["completed_at"]) == ("contact_import", "queued", None)
    assert found["counts"] == {"total": 0, "created": 0, "updated": 0, "skipped": 0, "failed": 0}
    assert [row["id"] for row in (await rig.request("GET", "/contacts/imports?status=queued")).json["data"]] == [found["id"]]
    assert (await rig.request("GET", "/contacts/imports?status=completed")).json["data"] == []
    assert (await rig.request("GET", "/contacts/imports?status=no")).status == 422
    [(data,)] = await rig.pool.rows("SELECT data FROM contact_import_chunks")
    assert bytes(data) == CSV.encode()


@pytest_twisted.ensureDeferred
async def test_columns_segments_and_topics_are_checked_at_once(rig: ApiRig) -> None:
    segment, topic = await make(rig, "/segments", name="x"), await make(rig, "/topics", name="x", default_subscription="opt_out")
    asks = await make(rig, "/segments", name="y", double_opt_in=DOUBLE_OPT_IN)
    good = {
        "file": CSV,
        "column_map": '{"email": "Email", "firstName": "Plan", "properties": {"plan": {"column": "Plan"}, '
        '"seats": {"column": "Seats", "type": "number"}}}',
        "segments": f'["{segment}"]',
        "topics": f'[{{"id": "{topic}", "subscription": "opt_in"}}]',
    }  # fmt: skip
    bad: dict[tuple[str, str], tuple[int, str]] = {
        ("file", "name\nAda\n"): (422, "`column_map.email`"),
        ("file", "Email,Plan,Seats\rada@example.net,free,3\r"): (422, "The first line of `file` cannot be read."),
        ("file", f"Email,Plan,Seats,{'x' * 131_073}\n"): (422, "The first line of `file` cannot be read."),
        ("column_map", '{"email": "Mail"}'): (422, "`column_map.email`"),
        ("column_map", '{"email": 1}'): (422, "`column_map.email`"),
        ("column_map", '{"properties": {"a-b": {"column": "Plan"}}}'): (422, "letters, digits or underscores"),
        ("column_map", '{"properties": {"a": {"column": "Plan", "type": "date"}}}'): (422, "column_map.properties.a.type"),
        ("column_map", '{"properties": {"first_name": {"column": "Plan"}}}'): (422, "`column_map.properties.first_name`"),
        ("column_map", '{"properties": {"Email": {"column": "Plan"}}}'): (422, "`column_map.properties.Email`"),
        ("column_map", "{"): (422, "The `column_map` field must be JSON"),
        ("column_map", '{"email": "Email", "email": "Plan"}'): (422, "The `column_map` field must be JSON without duplicate names."),
        ("on_conflict", "replace"): (422, "`on_conflict`"),
        ("segments", f'[{{"id": "{uuid4()}"}}]'): (404, "Audience not found"),
        ("segments", f'[{{"id": "{asks}"}}]'): (422, "double_opt_in"),
        ("topics", f'[{{"id": "{uuid4()}", "subscription": "opt_in"}}]'): (404, "Topic not found"),
        ("topics", "{}"): (422, "`topics`"),
    }
    for (name, value), (status, text) in bad.items():
        answer = await upload(rig, form({**good, name: value}))
        assert answer.status == status and text in answer.json["message"], (name, answer.json)
    assert (await rig.request("GET", "/contacts/imports")).json["data"] == []
    assert (await rig.request("GET", "/contact-properties")).json["data"] == []
    assert (await upload(rig, form(good))).status == 201
    defined = (await rig.request("GET", "/contact-properties")).json["data"]
    assert {row["key"]: row["type"] for row in defined} == {"plan": "string", "seats": "number"}


@pytest.mark.parametrize("name", ["file", "on_conflict"])
@pytest_twisted.ensureDeferred
async def test_part_that_is_given_twice_is_refused(rig: ApiRig, name: str) -> None:
    """One of two files would be ignored."""
    more = form({name: {"file": "email\nzoe@example.net\n"}.get(name, "upsert")})
    answer = await upload(rig, form({"file": CSV, "on_conflict": "skip"}).removesuffix(b"--x-x--\r\n") + more)
    assert answer.problem == (422, "validation_error") and f"`{name}` field is given twice" in answer.json["message"]
    assert (await rig.request("GET", "/contacts/imports")).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_form_has_to_be_a_form_with_a_file(rig: ApiRig) -> None:
    missing = await upload(rig, form({"on_conflict": "skip"}))
    assert (missing.status, missing.json["name"], missing.json["message"]) == (422, "missing_required_field", "Missing `file` field.")
    unnamed = await upload(rig, form({"file": "name\nAda\n"}))
    assert (unnamed.status, "no column for the email address" in unnamed.json["message"]) == (422, True)
    assert (await upload(rig, b"{}", "application/json")).status == 415
    assert (await upload(rig, form({"file": CSV}), "multipart/form-data")).status == 415
    assert (await upload(rig, form({"file": CSV}), "multipart/form-data; boundary*=utf-8''%E2%82%AC")).status == 415
    assert (await upload(rig, b"nothing of the sort")).status == 400
    assert (await upload(rig, b"--x-x\r\nno end of a header\r\n--x-x--")).status == 400
    many = await upload(rig, form({str(n): "x" for n in range(30)}))
    assert (many.status, many.json["message"]) == (422, "The request body can have at most 20 parts.")


@pytest_twisted.ensureDeferred
async def test_unknown_import_is_404(rig: ApiRig) -> None:
    for path in (f"/contacts/imports/{uuid4()}", f"/contacts/imports/{uuid4()}/errors"):
        answer = await rig.request("GET", path)
        assert (answer.status, answer.json["message"]) == (404, "Contact import not found")


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.binary(max_size=40), max_size=5), st.integers(1, 64), st.booleans())
def test_parts_are_found_wherever_blocks_are_cut(given_parts: dict[str, bytes], block: int, preamble: bool) -> None:
    edge = b"\r\n--limit"
    given_parts = {name: value.replace(edge, b"") for name, value in given_parts.items()}
    if any(edge in value for value in given_parts.values()):
        return
    chunks = [b'--limit\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), v) for n, v in given_parts.items()]
    body = (b"before\r\n" if preamble else b"") + b"".join([*chunks, b"--limit--\r\n"])
    whole, multipart.BLOCK = multipart.BLOCK, block
    try:
        file = io.BytesIO(body)
        found = multipart.parts(file, b"limit")
        assert {name: part.read(file, 1000) for name, part in found.items()} == given_parts
    finally:
        multipart.BLOCK = whole


@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        multipart.parts(io.BytesIO(b"--b\r\n" + body), b"b")
    except Problem as wrong:
        assert wrong.status in (400, 422)


def test_part_whose_name_cannot_be_read_is_ignored() -> None:
    body = b"--b\r\nContent-Disposition: form-data; name*%s=x\r\n\r\nx\r\n--b--" % (b"9" * 5000)
    assert multipart.parts(io.BytesIO(body), b"b") == {}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'multipart/form-data; boundary="a b"', b"a b"),
        (b"Multipart/Form-Data;boundary=x", b"x"),
        (b"text/csv; boundary=x", None),
        (b"multipart/form-data; boundary*=utf-8''%E2%82%AC", None),
        (b"multipart/form-data; boundary*=idna''x-x", None),
        (b"multipart/form-data; boundary*%s=x" % (b"9" * 5000), None),
    ],
)
def test_boundary(header: bytes, expected: Any) -> None:
    if expected is None:
        with pytest.raises(Problem):
            multipart.boundary(header)
    else:
        assert multipart.boundary(header) == expected


@pytest_twisted.ensureDeferred
async def test_file_that_does_not_get_its_turn_in_time_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await build(pool, Audience(uploads=1))
    monkeypatch.setattr(context, "TURN_SECONDS", 0.0)
    going_on: Deferred[None] = Deferred()
    add = Imports.add

    async def slowly(*given: Any) -> Any:
        await going_on
        return await add(*given)

    monkeypatch.setattr(Imports, "add", slowly)
    first = rig.request("POST", "/contacts/imports", form({"file": CSV}), content_type=FORM)
    refused = await upload(rig, form({"file": CSV}))
    assert refused.problem == (503, "service_unavailable") and refused.headers["retry-after"] == "30"
    going_on.callback(None)
    assert (await first).status == 201
    assert (await upload(rig, form({"file": CSV}))).status == 201  # the turn was not lost
    assert len((await rig.request("GET", "/contacts/imports")).json["data"]) == 2
