"""Every field of a send request in all of its forms."""

import base64
import time
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.http.fields import Bounds, Rules, Unsupported
from mailsvc.http.problem import Problem
from mailsvc.http.resources import send_fields
from mailsvc.intake import Incoming
from tests.http.rig import GOOD, NOW

RULES = Rules(NOW, Bounds(), natural=True)


def read(**changes: Any) -> Incoming:
    value = {**GOOD, **changes}
    return send_fields.email({name: item for name, item in value.items() if item is not ...}, RULES)


def refused(**changes: Any) -> Problem:
    with pytest.raises(Problem) as wrong:
        read(**changes)
    return wrong.value


def test_email_with_every_field() -> None:
    email = read(
        to=["b@example.net", "C <c@example.net>"], cc="d@example.net", bcc=["e@example.net"], reply_to="f@example.net", text="x",
        headers={"X-A": "1"}, tags=[{"name": "k", "value": "v"}], scheduled_at="2026-11-22T10:00:00Z", unknown={"a": 1},
    )  # fmt: skip
    assert email.sender.address == "a@example.com"
    assert email.sender.name == "A"
    assert [box.address for box in email.to] == ["b@example.net", "c@example.net"]
    assert [box.address for boxes in (email.cc, email.bcc, email.reply_to) for box in boxes] == [
        "d@example.net", "e@example.net", "f@example.net",
    ]  # fmt: skip
    assert (email.subject, email.content.html, email.content.text) == ("Hi", "<p>x</p>", "x")
    assert (email.headers, email.tags) == ({"X-A": "1"}, (("k", "v"),))
    assert email.scheduled_at == datetime(2026, 11, 22, 10, tzinfo=UTC)


class Used(dict[str, Any]):
    """Remembers the names that were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def test_every_accepted_field_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Used] = []

    def remember(given: dict[str, Any], place: str) -> Used:
        used.append(Used(given))
        return used[-1]

    monkeypatch.setattr(send_fields, "EMAIL", attrs.evolve(send_fields.EMAIL, make=remember))
    read()
    accepted = {name for name, field in send_fields.EMAIL.fields.items() if not isinstance(field, Unsupported)}
    assert used[0].names == accepted


def test_absent_text_differs_from_empty_text() -> None:
    assert read().content.text is None
    assert read(text=None).content.text is None
    assert read(text="").content.text == ""


def test_values_of_unset_fields_are_absent() -> None:
    email = read(cc=None, bcc=[], reply_to="", headers=None, attachments=None, tags=None, scheduled_at="", template=None, topic_id="")
    assert (email.cc, email.bcc, email.reply_to, email.headers, email.tags, email.scheduled_at) == ((), (), (), {}, (), None)
    assert read(headers=[]).headers == {}  # how PHP writes an empty object


def test_header_fields_can_be_a_list_of_names_and_values() -> None:
    """As Swoosh (Elixir) sends them."""
    assert read(headers=[{"name": "X-A", "value": "1"}, {"name": "X-B", "value": 2}]).headers == {"X-A": "1", "X-B": "2"}


def test_header_fields_that_the_service_writes_are_left_out() -> None:
    """Mail libraries pass them on."""
    given = {"Message-ID": "<a@b.example>", "date": "Mon, 1 Jan 2024 00:00:00 +0000", "Return-Path": "<a@b.example>\r\nBcc: c@d.example"}
    assert read(headers={**given, "In-Reply-To": "<a@b.example>"}).headers == {"In-Reply-To": "<a@b.example>"}
    for sender, left in (("Ada <ADA@example.com>", False), ("eve@example.com", True), ("nobody", True)):
        assert ("Sender" in read(**{"from": "ada@example.com"}, headers={"Sender": sender}).headers) is left


def test_header_fields_can_be_folded() -> None:
    folded = {"X-Note": "=?utf-8?Q?Gr=C3=BC=C3=9Fe?=\r\n =?utf-8?Q?aus?=\r\n\tBern", "X-Bad": "a\r\nBcc: b@example.net"}
    assert read(headers=folded).headers == {"X-Note": "=?utf-8?Q?Gr=C3=BC=C3=9Fe?= =?utf-8?Q?aus?=\tBern", "X-Bad": folded["X-Bad"]}


def test_numbers_and_booleans_are_header_values_as_json_writes_them() -> None:
    given = {"X-Priority": 1, "X-Score": -0.5, "X-Whole": 2.0, "X-Id": 2**64 - 1, "X-Auto": True, "X-Unset": None, "X-Empty": ""}
    texts = {"X-Priority": "1", "X-Score": "-0.5", "X-Whole": "2.0", "X-Id": "18446744073709551615", "X-Auto": "true", "X-Empty": ""}
    assert read(headers=given).headers == texts


@pytest.mark.parametrize("field", ["from", "to", "subject"])
@pytest.mark.parametrize("value", [..., None, ""])
def test_missing_required_field_is_named(field: str, value: Any) -> None:
    wrong = refused(**{field: value})
    assert (wrong.status, wrong.name, wrong.message) == (422, "missing_required_field", f"Missing `{field}` field.")


def test_email_needs_html_or_text() -> None:
    assert refused(html=...).message == "Missing `html` or `text` field."
    assert refused(html="", text="").name == "missing_required_field"


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("from", "no address", "invalid_from_address", "`from`"),
        ("from", 5, "validation_error", "`from`"),
        ("from", ["a@example.com"], "validation_error", "`from`"),
        ("from", "A\r\nBcc: x@example.com <a@example.com>", "invalid_from_address", "`from`"),
        ("to", 5, "validation_error", "`to`"),
        ("to", {"a": 1}, "validation_error", "`to`"),
        ("to", ["b@example.net", 5], "validation_error", "`to[1]`"),
        ("to", ["b@example.net", "x"], "validation_error", "`to[1]`"),
        ("to", ["b@example.net", ""], "validation_error", "`to[1]`"),
        ("to", "b@example.net, c@example.net", "validation_error", "`to`"),
        ("to", [f"u{i}@example.net" for i in range(51)], "validation_error", "`to`"),
        ("cc", [f"u{i}@example.net" for i in range(51)], "validation_error", "`cc`"),
        ("reply_to", [f"u{i}@example.net" for i in range(51)], "validation_error", "`reply_to`"),
        ("bcc", "x", "validation_error", "`bcc`"),
        ("reply_to", True, "validation_error", "`reply_to`"),
        ("subject", 5, "validation_error", "`subject`"),
        ("html", ["x"], "validation_error", "`html`"),
        ("text", {}, "validation_error", "`text`"),
        ("headers", ["x"], "validation_error", "`headers`"),
        ("headers", "", "validation_error", "`headers`"),
        ("headers", [{"name": "X-A", "value": "5"}, {"name": "X-A", "value": "6"}], "validation_error", "`headers`"),
        ("headers", [{"name": ["X-A"], "value": "5"}], "validation_error", "`headers`"),
        ("headers", [{"name": "X-A", "value": ["5"]}], "validation_error", "`headers.X-A`"),
        ("headers", [{"name": "X-A"}], "validation_error", "`headers`"),
        ("headers", {"X-A": ["5"]}, "validation_error", "`headers.X-A`"),
        ("headers", {"X-A": {}}, "validation_error", "`headers.X-A`"),
        ("tags", {"k": "v"}, "validation_error", "`tags`"),
        ("tags", ["x"], "validation_error", "`tags[0]`"),
        ("tags", [{"name": "k"}], "missing_required_field", "`tags[0].value`"),
        ("tags", [{"name": "ä", "value": "v"}], "validation_error", "`tags[0].name`"),
        ("tags", [{"name": "k", "value": "v" * 257}], "validation_error", "`tags[0].value`"),
        ("tags", [{"name": "k", "value": 5}], "validation_error", "`tags[0].value`"),
        ("tags", [{"name": "k", "value": "v\n"}], "validation_error", "`tags[0].value`"),
        ("tags", [{"name": "k", "value": "v"}] * 76, "validation_error", "`tags`"),
        ("template", {"id": "x"}, "validation_error", "`template`"),
        ("topic_id", "x", "invalid_parameter", "`topic_id`"),
        ("attachments", {"content": "eA=="}, "validation_error", "`attachments`"),
        ("attachments", [5], "validation_error", "`attachments[0]`"),
        ("attachments", [{"filename": "x"}], "invalid_attachment", "`attachments[0]`"),
        ("attachments", [{"path": 5}], "validation_error", "`attachments[0].path`"),
        ("attachments", [{"content": "eA=="}, {"content": "?"}], "validation_error", "`attachments[1].content`"),
        ("attachments", [{"content": "eA==x"}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": 5}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": [256]}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": [1.0]}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": {"type": "Blob", "data": [1]}}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": {"type": "Buffer"}}], "validation_error", "`attachments[0].content`"),
        ("attachments", [{"content": "eA==", "filename": 5}], "validation_error", "`attachments[0].filename`"),
        ("attachments", [{"content": "eA==", "contentType": 5}], "validation_error", "`attachments[0].contentType`"),
        ("scheduled_at", 5, "validation_error", "`scheduled_at`"),
        ("scheduled_at", "whenever", "validation_error", "`scheduled_at`"),
        ("scheduled_at", "2027-11-22T10:00:00Z", "validation_error", "`scheduled_at`"),
    ],
)
def test_invalid_field_is_named(field: str, value: Any, name: str, expected: str) -> None:
    wrong = refused(**{field: value})
    assert (wrong.status, wrong.name) == (422, name)
    assert expected in wrong.message


DATA = bytes(range(256)) * 3
PLAIN = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "content",
    [
        PLAIN, PLAIN.rstrip("="), base64.encodebytes(DATA).decode(), base64.encodebytes(DATA).decode().replace("\n", "\r\n"),
        list(DATA), {"type": "Buffer", "data": list(DATA)}, DATA,
    ],
)  # fmt: skip
def test_attachment_content_has_several_forms(content: Any) -> None:
    [file] = read(attachments=[{"content": content, "filename": "a.bin", "path": None}]).content.attachments
    assert (file.content, file.filename) == (DATA, "a.bin")


@pytest.mark.parametrize("space", [" ", "\n"])
def test_base64_with_white_space_everywhere_takes_little_time(space: str) -> None:
    began = time.process_time()
    [file] = read(attachments=[{"content": f"Q{space}" * (1 << 24)}]).content.attachments
    assert time.process_time() - began < 0.8 and len(file.content) == 3 << 22


def test_base64_beyond_ascii_is_refused() -> None:
    with pytest.raises(Problem, match=r"`attachments\[0\].content` field must be base64"):
        read(attachments=[{"content": "QUJD\u00a0"}])


def test_base64_longer_than_a_slice_is_decoded() -> None:
    data = bytes(range(251)) * 9000
    [file] = read(attachments=[{"content": base64.b64encode(data).decode()}]).content.attachments
    assert file.content == data


@pytest.mark.parametrize("start", ["", "\n  "])
def test_calendar_can_be_sent_as_text(start: str) -> None:
    """The Laravel drivers do that for text/calendar, and encode every other attachment."""
    text = f"{start}BEGIN:VCALENDAR\r\nSUMMARY:Frühstück\r\nEND:VCALENDAR\r\n"
    [file] = read(attachments=[{"content": text, "content_type": "text/calendar"}]).content.attachments
    assert file.content.decode() == text


def test_empty_attachment_is_an_attachment() -> None:
    assert [a.content for a in read(attachments=[{"content": ""}, {"content": []}]).content.attachments] == [b"", b""]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"content_type": "text/x", "content_id": "i"}, ("text/x", "i")),
        ({"contentType": "text/x", "inline_content_id": "i"}, ("text/x", "i")),
        ({"content_type": "", "contentType": "text/x", "content_id": "", "inline_content_id": "i"}, ("text/x", "i")),
        ({}, (None, None)),
    ],
)
def test_attachment_keys_have_older_names(keys: Any, expected: tuple[str | None, str | None]) -> None:
    [file] = read(attachments=[{"content": "eA==", **keys}]).content.attachments
    assert (file.content_type, file.content_id) == expected


# Fingerprints


def test_fingerprint_depends_on_meaning_only() -> None:
    one = {**GOOD, "attachments": [{"content": "eA==", "filename": "a"}]}
    same = {"attachments": [{"filename": "a", "content": [120]}], **dict(reversed(GOOD.items()))}
    lifted = {**GOOD, "attachments": [{"content": b"x", "filename": "a"}]}
    assert send_fields.fingerprint(one) == send_fields.fingerprint(same) == send_fields.fingerprint(lifted)
    for other in (
        {**one, "subject": "Ho"},
        {**one, "extra": 1},
        {**one, "attachments": [{"content": "eQ==", "filename": "a"}]},
        [one, one],
    ):
        assert send_fields.fingerprint(one) != send_fields.fingerprint(other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3),
    max_leaves=8,
)
FIELDS = [*send_fields.EMAIL.fields]
files = st.lists(
    st.dictionaries(st.sampled_from(["content", "filename", "path", "content_type", "content_id"]), json_values, max_size=4), max_size=2
)
tags = st.lists(st.dictionaries(st.sampled_from(["name", "value"]), json_values), max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values | files | tags, max_size=4))
def test_any_value_gives_an_email_or_names_its_field(changes: dict[str, Any]) -> None:
    try:
        read(**changes)
    except Problem as wrong:
        assert wrong.status == 422
        assert any(f"`{field}" in wrong.message for field in changes), (wrong.message, changes)


@settings(max_examples=100, deadline=None)
@given(json_values)
def test_any_document_gives_a_problem(value: Any) -> None:
    with pytest.raises(Problem):
        send_fields.email(value, RULES)
    assert len(send_fields.fingerprint(value)) == 32
