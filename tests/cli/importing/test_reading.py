"""Exports of other services, in the shapes that their documentation gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.cli.importing.formats import FORMATS
from mailsvc.cli.importing.reading import NotRead, read
from mailsvc.cli.importing.records import Export


def export(service: str, *files: object) -> Export:
    """What the files have: bytes are CSV, anything else an answer in JSON."""
    found = Export()
    for number, file in enumerate(files, 1):
        read(found, service, f"file{number}", file if isinstance(file, bytes) else orjson.dumps(file))
    return found


def suppressed(found: Export) -> dict[str, str]:
    return {each.email: each.origin for each in found.suppressed.values()}


def people(found: Export) -> dict[str, tuple[Any, ...]]:
    segments = {(who.email, name) for who, name in found.memberships()}
    return {
        each.email: (each.first_name, each.last_name, each.unsubscribed, *sorted(name for email, name in segments if email == each.email))
        for each in found.people.values()
    }


def test_resend() -> None:
    found = export(
        "resend",
        {"object": "list", "data": [{"id": "1", "email": "a@x.example", "origin": "bounce"}, {"email": "b@x.example", "origin": "manual"}]},
        {"object": "list", "data": [{"email": "c@x.example", "first_name": "Ann", "last_name": None, "unsubscribed": True}]},
        {"object": "list", "data": [{"id": "s1", "name": "Friends", "created_at": "2026-01-01"}]},
        {"object": "list", "has_more": False, "data": [{"name": "Shop.Example", "region": "eu-west-1", "status": "verified"}]},
        b"id,email,first_name,last_name,unsubscribed,created_at\n7,d@x.example,Dan,Doe,false,2026-01-01\n",
    )
    assert suppressed(found) == {"a@x.example": "bounce", "b@x.example": "manual"}
    assert people(found) == {"c@x.example": ("Ann", "", True), "d@x.example": ("Dan", "Doe", False)}
    assert (found.segments, list(found.domains)) == ({"s1": "Friends"}, ["shop.example"])


def test_postmark() -> None:
    dump = {
        "Suppressions": [
            {"EmailAddress": "a@x.example", "SuppressionReason": "HardBounce", "Origin": "Recipient", "CreatedAt": "2026-01-01"},
            {"EmailAddress": "b@x.example", "SuppressionReason": "SpamComplaint", "Origin": "Recipient"},
            {"EmailAddress": "c@x.example", "SuppressionReason": "ManualSuppression", "Origin": "Customer"},
            {"EmailAddress": "e@x.example", "SuppressionReason": "ManualSuppression", "Origin": "Recipient"},
        ]
    }
    table = b"EmailAddress,SuppressionReason,Origin,CreatedAt\r\nd@x.example,HardBounce,Recipient,2026-01-01\r\n"
    table += b"f@x.example,ManualSuppression,Recipient,2026-01-01\r\ng@x.example,ManualSuppression,Admin,2026-01-01\r\n"
    found = export("postmark", dump, table, {"TotalCount": 1, "Domains": [{"Name": "x.example", "ID": 3}]})
    kinds = {"a@x.example": "bounce", "b@x.example": "complaint", "c@x.example": "manual", "d@x.example": "bounce", "g@x.example": "manual"}
    assert (suppressed(found), list(found.domains)) == (kinds, ["x.example"])
    assert people(found) == {"e@x.example": ("", "", True), "f@x.example": ("", "", True)}, "who left a stream of broadcasts"


def test_ses() -> None:
    found = export(
        "ses",
        {"SuppressedDestinationSummaries": [{"EmailAddress": "a@x.example", "Reason": "COMPLAINT", "LastUpdateTime": "2026-01-01"}]},
        {"Contacts": [{"EmailAddress": "b@x.example", "UnsubscribeAll": True}, {"EmailAddress": "c@x.example", "UnsubscribeAll": False}]},
        {"ContactLists": [{"ContactListName": "News"}]},
        {
            "EmailIdentities": [
                {"IdentityType": "DOMAIN", "IdentityName": "x.example"},
                {"IdentityType": "EMAIL_ADDRESS", "IdentityName": "a@x.example"},
            ]
        },
    )
    assert suppressed(found) == {"a@x.example": "complaint"}
    assert people(found) == {"b@x.example": ("", "", True), "c@x.example": ("", "", False)}
    assert (list(found.segments.values()), list(found.domains)) == (["News"], ["x.example"])


def test_sendgrid() -> None:
    found = export(
        "sendgrid",
        [{"created": 1, "email": "a@x.example", "reason": "550 no", "status": "5.1.1"}],
        [{"created": 1, "email": "b@x.example", "ip": "192.0.2.1"}],
        [{"created": 1, "email": "c@x.example"}],
        b"status,reason,email,created\n5.1.1,550 no,d@x.example,1\n",
        {"result": [{"email": "e@x.example", "first_name": "Eve", "last_name": "Adams", "list_ids": ["l1", "l9"], "custom_fields": {}}]},
        {"result": [{"id": "l1", "name": "News", "contact_count": 1}], "_metadata": {}},
        [{"id": 1, "domain": "x.example", "subdomain": "em1", "valid": True}],
        b"EMAIL,FIRST_NAME,LAST_NAME,CREATED_AT\nf@x.example,Fay,,2026\n",
        [],
    )
    kinds = {"a@x.example": "bounce", "b@x.example": "complaint", "c@x.example": "manual", "d@x.example": "bounce"}
    assert suppressed(found) == kinds
    assert people(found) == {"e@x.example": ("Eve", "Adams", False, "News"), "f@x.example": ("Fay", "", False)}
    assert list(found.domains) == ["x.example"]


def test_mailgun() -> None:
    found = export(
        "mailgun",
        {"items": [{"address": "a@x.example", "code": "550", "error": "no", "created_at": "Fri"}], "paging": {"next": "…"}},
        {"items": [{"address": "b@x.example", "created_at": "Fri"}]},
        {
            "items": [
                {"address": "c@x.example", "tags": ["*"], "created_at": "Fri"},
                {"address": "g@x.example", "tags": ["news"], "created_at": "Fri"},  # receipts still have to arrive
                {"address": "h@x.example", "tags": [], "created_at": "Fri"},
            ]
        },
        b'address,tags,created_at\ni@x.example,"news, ads",Fri\nj@x.example,*,Fri\nk@x.example,"[""news"", ""*""]",Fri\nl@x.example,,Fri\n',
        {
            "items": [
                {"address": "d@x.example", "name": "Dan van Doe", "subscribed": False, "vars": {}},
                {"address": "e@x.example", "name": "", "subscribed": True},
            ]
        },
        {"items": [{"address": "news@x.example", "name": "News", "members_count": 2}]},
        {"total_count": 1, "items": [{"name": "mg.x.example", "state": "active"}]},
        b"address,code,error,created_at\nf@x.example,550,no,Fri\n",
    )
    kinds = {"a@x.example": "bounce", "b@x.example": "complaint", "f@x.example": "bounce"}
    assert suppressed(found) == kinds | {f"{name}@x.example": "manual" for name in "chjkl"}
    left = {f"{name}@x.example": ("", "", True) for name in "gi"}
    assert people(found) == left | {"d@x.example": ("Dan", "van Doe", True), "e@x.example": ("", "", False)}
    assert (list(found.segments.values()), list(found.domains)) == (["News"], ["mg.x.example"])


def member(name: str, status: str, tags: Sequence[str] = (), first: str = "", last: str = "") -> dict[str, object]:
    fields = {"FNAME": first, "LNAME": last}
    return {"email_address": f"{name}@x.example", "status": status, "merge_fields": fields, "tags": [{"name": tag} for tag in tags]}


def test_mailchimp() -> None:
    head = "Email Address,First Name,Last Name,Address,MEMBER_RATING,OPTIN_TIME,{}LEID,TAGS\n"
    found = export(
        "mailchimp",
        (head.format("") + 'a@x.example,Ann,Ott,"1 Street",2,2026,1,"""News"",""Big, red"""\n').encode("utf-8-sig"),
        (head.format("UNSUB_TIME,") + "b@x.example,,,,2,2026,2026,1,\n").encode(),
        (head.format("CLEAN_TIME,") + "c@x.example,,,,2,2026,2026,1,\n").encode(),
        {"list_id": "1", "members": [member("d", "subscribed", ["News"], "Dan", "D"), member("e", "cleaned"), member("f", "pending")]},
        {"segments": [{"id": 1, "name": "Old friends"}]},
        {"domains": [{"domain": "x.example", "verified": True}]},
    )
    assert suppressed(found) == {"c@x.example": "bounce", "e@x.example": "bounce"}
    assert people(found) == {
        "a@x.example": ("Ann", "Ott", False, "Big, red", "News"),
        "b@x.example": ("", "", True),
        "d@x.example": ("Dan", "D", False, "News"),
        "f@x.example": ("", "", True),
    }
    assert sorted(found.segments.values()) == ["Big, red", "News", "Old friends"] and list(found.domains) == ["x.example"]


def test_tags_that_cannot_be_read_are_an_error_of_their_row() -> None:
    found = export("mailchimp", {"members": [{**member("a", "subscribed"), "tags": "x\ny"}, member("b", "subscribed")]})
    assert [each.number for each in found.wrong] == [1] and list(people(found)) == ["b@x.example"]


def test_somebody_in_two_files_who_unsubscribed_once_has_unsubscribed() -> None:
    rows = [{"email": "a@x.example", "unsubscribed": False, "first_name": "Ann"}, {"email": "A@X.example", "unsubscribed": True}]
    found = export("resend", [{"data": rows[:1]}, {"data": rows[1:]}])  # as two pages in one file
    assert people(found) == {"a@x.example": ("Ann", "", True)}


def test_wrong_rows_are_named_and_the_others_read() -> None:
    found = export("resend", b"email,unsubscribed\nnobody,no\nb@x.example,no\n,no\n", {"data": [{"name": "localhost", "region": "r"}]})
    assert [str(each) for each in found.wrong] == [
        "file1, row 1: 'nobody' is not an email address. An email address must have an @-sign.",
        "file1, row 3: the email address is missing",
        "file2, row 1: 'localhost' is not a sending domain. The domain name must have at least two labels, such as example.com.",
    ]
    assert list(found.people) == ["b@x.example"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "file1 is not valid JSON: unexpected end of data: line 1 column 2 (char 1)."),
        (b'{"a": []}', "file1 has no list that `mailsvc import` knows. Known are: data."),
        (b"[1]", "file1 is a list of something else than objects."),
        (b'{"data": [{"x": 1}]}', "file1, row 1: these fields are in no export of resend that `mailsvc import` knows."),
        (b'{"data": ["a@x.example"]}', "file1 is a list of something else than objects."),
        (b"Name\nx\n", "file1: these columns are in no export of resend that `mailsvc import` knows."),
        (
            "email,unsubscribed,first_name\na@x.example,no,José\n".encode("cp1252"),
            "file1, row 1: this is not UTF-8. Save the file as CSV in UTF-8, and import that.",
        ),
        (b"\xff\xfe{", "file1 begins as UTF-16, but is not valid UTF-16."),
    ],
)  # fmt: skip
def test_other_files_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(NotRead) as refused:
        export("resend", data)
    assert str(refused.value) == reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_windows_programs_are_read(encoding: str) -> None:
    table = "EmailAddress;SuppressionReason;Origin\r\na@x.example;HardBounce;José\r\n"
    answer = '{"Suppressions": [{"EmailAddress": "b@x.example", "SuppressionReason": "SpamComplaint"}]}'
    found = Export()
    for text in (table, answer):
        read(found, "postmark", "file", text.encode(encoding))
    assert suppressed(found) == {"a@x.example": "bounce", "b@x.example": "complaint"}


def test_line_breaks_in_a_field_end_no_row() -> None:
    rows = 'email,first_name,last_name,unsubscribed\na@x.example,Ann\u2028,"Ott\r\nthe second",yes\nb@x.example,B\x0cb,,yes\n'
    found = export("resend", rows.encode())
    assert people(found) == {"a@x.example": ("Ann", "Ott  the second", True), "b@x.example": ("B b", "", True)} and not found.wrong
    assert list(people(export("resend", b"email,unsubscribed\ra@x.example,yes\r"))) == ["a@x.example"]


def test_rows_that_do_not_fit_the_header_are_left_out_and_the_others_read() -> None:
    rows = (
        b'email,first_name,unsubscribed,last_name\na@x.example,"Ann,yes,\nb@x.example,Bob,yes\nc@x.example,Cy, Jr,yes,\n'
        b"d@x.example,Dan\n\ne@x.example,Eve,yes\n"
    )
    found = export("resend", rows)
    assert people(found) == {"b@x.example": ("Bob", "", True), "e@x.example": ("Eve", "", True)}
    assert [(each.number, each.reason) for each in found.wrong] == [
        (1, "the row has a quotation mark that is not closed, or is too long"),
        (3, "the row has more fields than the header; see whether one has to be in quotation marks"),
        (4, "the row ends before the column unsubscribed"),
    ]


def test_a_column_without_a_name_means_nothing_and_of_two_columns_the_first_counts() -> None:
    found = export("sendgrid", b",EMAIL,FIRST_NAME,LAST_NAME,EMAIL\n1,a@x.example,Ann,Ott,\n")  # as a data frame is written
    assert people(found) == {"a@x.example": ("Ann", "Ott", False)} and not found.segments


def test_control_characters_become_spaces() -> None:
    found = export("mailchimp", {"members": [member("a", "subscribed", ["Ne\0ws"], "An\0n")]})
    assert people(found) == {"a@x.example": ("An n", "", False, "Ne ws")}


@given(st.sampled_from(sorted(FORMATS)), st.one_of(st.binary(max_size=200), st.text('{}[]",:ab@.\n', max_size=80).map(str.encode)))
def test_any_bytes_are_read_or_refused(service: str, data: bytes) -> None:
    try:
        read(Export(), service, "file", data)
    except NotRead as refused:
        assert str(refused).startswith("file")
