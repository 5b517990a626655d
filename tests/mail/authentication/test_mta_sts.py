"""MTA-STS: the TXT record and the policy (RFC 8461 §3, §4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.authentication import mta_sts
from mailsvc.mail.authentication.mta_sts import BadPolicy, Policy, parse, policy_id

GOOD = b"version: STSv1\r\nmode: enforce\r\nmx: mail.example.com\r\nmx: *.example.net\r\nmax_age: 604800\r\n"


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (["v=STSv1; id=20260101T0000;"], "20260101T0000"),
        (["v=STSv1;id=a"], "a"),
        (["v=STSv1 ; id = a1 ;"], "a1"),
        (["v=spf1 -all", "v=STSv1; id=a;"], "a"),
        (["v=STSv1; id=a; id=b;"], "a"),
        (["v=STSv1; more=x; id=a;"], "a"),
        ([], None),
        (["v=STSv1; id=a;", "v=STSv1; id=b;"], None),
        (["v=STSv1;"], None),
        (["v=STSv1; id=;"], None),
        (["v=STSv1; id=not-alnum;"], None),
        (["v=STSv1; id=" + "a" * 33], None),
        (["v=STSv2; id=a;"], None),
        (["v=STSv10; id=a;"], None),
        ([" v=STSv1; id=a;"], None),
        (["v=STSv1; nonsense; id=a;"], None),
    ],
)
def test_exactly_one_valid_record_announces_a_policy(records: list[str], found: str | None) -> None:
    assert policy_id(records) == found


def test_a_policy_is_parsed() -> None:
    assert parse(GOOD) == Policy("enforce", 604800, ("mail.example.com", "*.example.net"))
    assert parse(GOOD.replace(b"\r\n", b"\n")) == parse(GOOD)
    assert parse(GOOD + b"new_key: what it may be\r\n") == parse(GOOD)
    assert parse(GOOD + b"mode: none\r\n").mode == "enforce"
    assert parse(b"version: STSv1\nmode: none\nmax_age: 1\n") == Policy("none", 1)
    assert parse(GOOD.replace(b"mail.example.com", b"mail.example.com.").replace(b"example.net", b"example.net.")) == parse(GOOD)
    assert parse(GOOD.replace(b"604800", b"9999999999")).max_age == mta_sts.LONGEST


@pytest.mark.parametrize(
    "body",
    [
        b"",
        GOOD.replace(b"STSv1", b"STSv2"),
        GOOD.replace(b"enforce", b"maybe"),
        GOOD.replace(b"max_age: 604800\r\n", b""),
        GOOD.replace(b"604800", b"-1"),
        GOOD.replace(b"604800", b"1e9"),
        b"version: STSv1\nmode: enforce\nmax_age: 1\n",
        GOOD.replace(b"mail.example.com", b"mail.*.com"),
        GOOD.replace(b"mail.example.com", b"*"),
        GOOD.replace(b"mail.example.com", b"."),
        GOOD.replace(b"mail.example.com", b"mail.example.com.."),
        GOOD.replace(b"mail.example.com", b""),
        GOOD + b"no colon here\r\n",
        GOOD + b"key: \xff\r\n",
        GOOD + b"x: " + b"a" * mta_sts.MAX_SIZE,
        b"<html>not found</html>",
    ],
)
def test_invalid_policies_are_refused(body: bytes) -> None:
    with pytest.raises(BadPolicy):
        parse(body)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("mail.example.com", True),
        ("MAIL.example.COM.", True),
        ("a.example.net", True),
        ("a.b.example.net", False),
        ("example.net", False),
        ("mail.example.com.evil.org", False),
        ("xmail.example.com", False),
    ],
)
def test_a_wildcard_matches_one_label(host: str, allowed: bool) -> None:
    assert parse(GOOD).allows(host) is allowed


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        parse(body)
    except BadPolicy as error:
        assert str(error)


@given(st.lists(st.text(max_size=40), max_size=4))
def test_any_records_are_parsed_or_ignored(records: list[str]) -> None:
    found = policy_id(records)
    assert found is None or found.isalnum()
