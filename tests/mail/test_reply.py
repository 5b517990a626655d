"""SMTP replies as values."""

from __future__ import annotations

import pytest

from mailsvc.mail.reply import Reply, split_enhanced


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
def test_enhanced_codes(code: int, text: str, enhanced: str | None, rest: str) -> None:
    assert split_enhanced(code, text) == (enhanced, rest)


@pytest.mark.parametrize(
    ("code", "kind"), [(220, "positive"), (354, "positive"), (421, "transient"), (499, "transient"), (500, "permanent"), (599, "permanent")]
)
def test_each_reply_is_of_one_kind(code: int, kind: str) -> None:
    reply = Reply(code, "")
    assert [name for name in ("positive", "transient", "permanent") if getattr(reply, name)] == [kind]


def test_for_people() -> None:
    assert str(Reply(550, "no such user", "5.1.1")) == "550 5.1.1 no such user"
    assert str(Reply(250, "")) == "250"
