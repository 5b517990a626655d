"""What replies mean, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.classify import classify
from mailsvc.mail.reply import Reply

TABLE = [
    # code, enhanced, stage, action, type, sub_type
    (250, "2.0.0", "dot", "delivered", None, None),
    (251, None, "dot", "delivered", None, None),
    (354, None, "dot", "deferred", None, None),
    (250, None, "data", "deferred", None, None),
    (450, None, "rcpt", "deferred", None, None),
    (451, "4.7.1", "dot", "deferred", None, None),
    (452, "4.2.2", "rcpt", "deferred", None, None),
    (499, None, "rcpt", "deferred", None, None),
    (421, "4.7.0", "mail", "deferred", None, None),
    (421, None, "dot", "deferred", None, None),
    (552, None, "rcpt", "deferred", None, None),
    (552, "5.2.2", "rcpt", "deferred", None, None),
    (554, None, "greeting", "deferred", None, None),
    (550, "5.1.1", "rcpt", "bounced", "Permanent", "General"),
    (550, "5.1.1", "dot", "bounced", "Permanent", "General"),
    (550, "5.1.10", "rcpt", "bounced", "Permanent", "General"),
    (550, "5.2.1", "rcpt", "bounced", "Permanent", "General"),
    (550, None, "rcpt", "bounced", "Permanent", "General"),
    (551, None, "rcpt", "bounced", "Permanent", "General"),
    (553, None, "rcpt", "bounced", "Permanent", "General"),
    (552, "5.2.2", "dot", "bounced", "Transient", "MailboxFull"),
    (552, None, "dot", "bounced", "Transient", "MailboxFull"),
    (552, None, "mail", "bounced", "Transient", "MessageTooLarge"),
    (552, "5.3.4", "mail", "bounced", "Transient", "MessageTooLarge"),
    (552, "5.3.4", "ours", "bounced", "Transient", "MessageTooLarge"),
    (550, "5.2.3", "dot", "bounced", "Transient", "MessageTooLarge"),
    (554, "5.6.0", "dot", "bounced", "Transient", "ContentRejected"),
    (550, "5.7.1", "dot", "bounced", "Transient", "ContentRejected"),
    (550, "5.7.1", "rcpt", "bounced", "Transient", "General"),
    (550, "5.7.26", "dot", "bounced", "Transient", "General"),
    (550, "5.7.25", "mail", "bounced", "Transient", "General"),
    (550, "5.1.8", "mail", "bounced", "Transient", "General"),
    (554, "5.4.6", "dot", "bounced", "Transient", "General"),
    (550, None, "mail", "bounced", "Transient", "General"),
    (554, None, "dot", "bounced", "Undetermined", "Undetermined"),
    (599, None, "rcpt", "bounced", "Undetermined", "Undetermined"),
]


@pytest.mark.parametrize(("code", "enhanced", "stage", "action", "kind", "sub"), TABLE)
def test_table(code: int, enhanced: str | None, stage: Any, action: str, kind: str | None, sub: str | None) -> None:
    verdict = classify(Reply(code, "text", enhanced), stage)
    assert verdict.action == action
    if action == "bounced":
        assert (verdict.type, verdict.sub_type) == (kind, sub)


def test_421_closes_and_only_refusals_of_the_mail_look_like_greylisting() -> None:
    assert classify(Reply(421, "bye"), "rcpt").closing
    assert classify(Reply(451, "later"), "rcpt").greylisted
    assert not classify(Reply(452, "full"), "rcpt").greylisted
    assert not classify(Reply(421, "bye"), "rcpt").greylisted


@given(
    st.integers(200, 599),
    st.none() | st.from_regex(r"[245]\.\d{1,3}\.\d{1,3}", fullmatch=True),
    st.sampled_from(["mail", "rcpt", "data", "dot"]),
)
def test_only_a_positive_reply_to_the_dot_delivers_and_only_5yz_bounces(code: int, enhanced: str | None, stage: Any) -> None:
    verdict = classify(Reply(code, "", enhanced), stage)
    assert (verdict.action == "delivered") == (stage == "dot" and code < 300)
    if verdict.action == "bounced":
        assert code >= 500
    # A policy against us or the message never speaks against the address.
    if enhanced and enhanced.startswith("5.7."):
        assert verdict.action != "bounced" or verdict.type == "Transient"


@pytest.mark.parametrize(
    ("code", "enhanced", "suppress"),
    [(550, "5.1.1", True), (550, "5.1.10", True), (550, "5.2.1", True), (550, None, False), (550, "5.1.0", False), (552, "5.2.2", False)],
)
def test_only_what_is_beyond_doubt_suppresses(code: int, enhanced: str | None, suppress: bool) -> None:
    assert classify(Reply(code, "text", enhanced), "rcpt").suppress is suppress
