"""5321 §4.1.1.1: parsing replies to EHLO."""

from __future__ import annotations

import pytest

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.capabilities import Capabilities, from_ehlo, from_helo


def capabilities(*lines: str) -> Capabilities:
    return from_ehlo(Reply(250, "\n".join(["mx.example.org at your service", *lines])))


def test_keywords_in_any_case() -> None:
    found = capabilities("starttls", "PipeLining", "8bitmime", "smtputf8", "dsn", "size 1000")
    assert found.starttls and found.pipelining and found.eight_bit and found.smtputf8 and found.dsn and found.size
    assert found.size_limit == 1000


def test_the_first_line_is_not_a_keyword() -> None:
    found = from_ehlo(Reply(250, "PIPELINING STARTTLS\n8BITMIME"))
    assert found.name == "PIPELINING"
    assert not found.pipelining and not found.starttls and found.eight_bit
    assert set(found.keywords) == {"8BITMIME"}


@pytest.mark.parametrize(
    ("line", "limit"), [("SIZE", 0), ("SIZE 0", 0), ("SIZE abc", 0), ("SIZE -5", 0), ("SIZE ²", 0), (f"SIZE {'9' * 21}", 0), ("SIZE 9", 9)]
)
def test_size(line: str, limit: int) -> None:
    found = capabilities(line)
    assert found.size and found.size_limit == limit


def test_auth_in_both_syntaxes() -> None:
    assert capabilities("AUTH LOGIN plain").mechanisms == {"LOGIN", "PLAIN"}
    assert capabilities("AUTH=LOGIN PLAIN").mechanisms == {"LOGIN", "PLAIN"}


def test_limits() -> None:
    found = capabilities("LIMITS RCPTMAX=20 MAILMAX=5 RCPTDOMAINMAX=1 X=y")
    assert (found.rcpt_max, found.mail_max) == (20, 5)


def test_helo_announces_nothing() -> None:
    found = from_helo(Reply(250, "mx.example.org PIPELINING"))
    assert found == Capabilities(name="mx.example.org")
    assert not found.extended


def test_an_empty_reply() -> None:
    assert from_ehlo(Reply(250, "")).name == ""
