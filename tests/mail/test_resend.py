"""Resending a message: its contents are kept, its trace, date and ID are not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.resend import compose
from mailsvc.mail.submission import Unfit

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FIRST = (
    b"Received: by relay.example\r\n with ESMTPSA; Thu, 1 Jan 2026 00:00:00 +0000\r\n"
    b"DKIM-Signature: v=1; d=example.com;\r\n b=AAAA\r\n"
    b"date: Thu, 1 Jan 2026 00:00:00 +0000\r\n"
    b"MESSAGE-ID: <first@example.com>\r\n"
    b"From: Shop <hello@example.com>\r\n"
    b"To: ann@example.org,\r\n bob@example.org\r\n"
    b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    b"X-Date: stays\r\n"
    b"\r\n"
)


def test_trace_date_and_message_id_are_removed_and_the_rest_is_kept():
    result = compose(FIRST + b"Date: this is the body\r\n\xff\x00", "second", THEN)
    assert result.message_id == "<second@example.com>"
    assert result.message == (
        b"Message-ID: <second@example.com>\r\n"
        b"Date: Fri, 02 Jan 2026 03:04:05 +0000\r\n"
        b"From: Shop <hello@example.com>\r\n"
        b"To: ann@example.org,\r\n bob@example.org\r\n"
        b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
        b"X-Date: stays\r\n"
        b"\r\n"
        b"Date: this is the body\r\n\xff\x00"
    )
    assert [box.address for box in result.mail.to] == ["ann@example.org", "bob@example.org"]


def test_a_message_without_a_body_is_resent():
    assert compose(b"From: a@example.com\r\n", "x", THEN).message.endswith(b"From: a@example.com\r\n")


@given(st.binary(max_size=300))
def test_the_body_is_unchanged(body):
    assert compose(FIRST + body, "second", THEN).message.partition(b"\r\n\r\n")[2] == body


def test_a_message_without_an_author_is_refused():
    with pytest.raises(Unfit):
        compose(b"To: a@example.com\r\n\r\nx", "x", THEN)
