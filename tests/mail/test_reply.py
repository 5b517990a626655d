"""SMTP replies: parsing and formatting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.reply import Reply, read, split_enhanced


@pytest.mark.parametrize(
    ("code", "text", "enhanced", "rest"),
    [
        (550, "5.1.1 no such user", "5.1.1", "no such user"),
        (250, "2.0.0", "2.0.0", ""),
        (550, "4.1.1 of another class", None, "4.1.1 of another class"),
        (550, "5.1.1no space", None, "5.1.1no space"),
        (550, "5.7.1234 too long", None, "5.7.1234 too long"),
        (354, "go on", None, "go on"),
        (250, "", None, ""),
    ],
)
def test_enhanced_codes_are_parsed(code: int, text: str, enhanced: str | None, rest: str) -> None:
    assert split_enhanced(code, text) == (enhanced, rest)


@pytest.mark.parametrize(
    ("code", "kind"), [(220, "positive"), (354, "positive"), (421, "transient"), (499, "transient"), (500, "permanent"), (599, "permanent")]
)
def test_each_reply_has_one_kind(code: int, kind: str) -> None:
    reply = Reply(code, "")
    assert [name for name in ("positive", "transient", "permanent") if getattr(reply, name)] == [kind]


def test_replies_are_formatted_for_people() -> None:
    assert str(Reply(550, "no such user", "5.1.1")) == "550 5.1.1 no such user"
    assert str(Reply(250, "")) == "250"


def test_a_formatted_reply_is_parsed() -> None:
    assert read("550 5.1.1 no such user") == Reply(550, "no such user", "5.1.1")
    assert read("550-5.1.1 no such\n550 5.1.1 user") == Reply(550, "no such\nuser", "5.1.1")
    assert read("250") == Reply(250, "")
    assert read("552 4.2.2 x") == Reply(552, "4.2.2 x")
    for text in ("", "no", "5500 x", "150 x", "55"):
        assert read(text) is None


@given(st.integers(200, 599), st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=40))
def test_any_formatted_reply_is_parsed_back(code: int, text: str) -> None:
    enhanced, rest = split_enhanced(code, text.strip())
    reply = Reply(code, rest, enhanced)
    found = read(str(reply))
    assert found is not None and str(found) == str(reply)
