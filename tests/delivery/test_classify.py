"""What replies mean, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.classify import classify
from mailsvc.delivery.reading import refused
from mailsvc.mail.reply import Reply, read

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
def test_only_replies_about_the_address_suppress_it(code: int, enhanced: str | None, suppress: bool) -> None:
    assert classify(Reply(code, "text", enhanced), "rcpt").suppress is suppress


@pytest.mark.parametrize(
    ("host", "reply"),
    [
        ("x.mail.protection.outlook.com", "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. (S3150)"),
        ("mx.example.org", "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org"),
        ("mx.example.org", "550 5.7.1 Relaying denied"),
        ("mta5.am0.yahoodns.net", "553 5.7.1 [BL21] Connections will not be accepted from 192.0.2.1"),
    ],
)
def test_refusals_of_our_address_are_retried(host: str, reply: str) -> None:
    parsed = read(reply)
    assert parsed is not None
    verdict = classify(parsed, "rcpt", host)
    assert (verdict.action, verdict.suppress) == ("deferred", False)
    assert verdict.meaning is not None and verdict.meaning.party in ("address", "provider")


@pytest.mark.parametrize(
    ("reply", "kind", "suppress"),
    [
        ("556 5.1.10 example.org accepts no mail (null MX)", "host_unknown", True),
        ("550 5.1.2 The domain example.org does not exist", "host_unknown", True),
        ("550 5.4.4 mx.example.org has an address that mail is not sent to (10.0.0.5 is private)", "unroutable", False),
        ("554 5.4.6 Mail for example.org would loop back to this server", "loop", False),
        ("It has no code", "undetermined", False),
    ],
)
def test_replies_made_by_this_service_are_classified(reply: str, kind: str, suppress: bool) -> None:
    bounced = refused(reply)
    assert bounced.meaning is not None
    assert (bounced.meaning.kind, bounced.suppress) == (kind, suppress)
    assert bounced.reason.startswith(reply if reply[0] == "5" else "550 ") and bounced.reason.endswith(bounced.meaning.advice)
