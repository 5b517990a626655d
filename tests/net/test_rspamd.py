"""Rspamd's protocol: what is asked, over a real port, and how answers are read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.net.fetch import Fetcher
from mailsvc.net.rspamd import RESPONSE_MAX, Envelope, FilterError, Rspamd, Verdict, read
from tests.fake_rspamd import GTUBE, FakeRspamd, answer
from tests.net.test_fetch import LOCAL, Names

ENVELOPE = Envelope("0198", "a@example.com", ("b@example.net", "grün@example.net", "c@example.net"), "account-1", "203.0.113.5")

# Recorded from rspamd 3.4 with its default configuration.
REFUSED = (
    b'{"is_skipped":true,"score":15.0,"required_score":15.0,"action":"reject","symbols":{"GTUBE":{"name":"GTUBE","score":0.0,'
    b'"metric_score":0.0}},"messages":{"smtp_message":"Gtube pattern"},"message-id":"1@example.com","time_real":0.310456}'
)
ACCEPTED = (
    b'{"is_skipped":false,"score":-0.100000,"required_score":15.0,"action":"no action","symbols":{"ARC_NA":{"name":"ARC_NA","score":0.0,'
    b'"metric_score":0.0,"description":"ARC signature absent"},"MIME_GOOD":{"name":"MIME_GOOD","score":-0.100000,"metric_score":-0.100000,'
    b'"description":"Known content-type","options":["text/plain"]}},"messages":{},"message-id":"1@example.com","time_real":0.004081,'
    b'"milter":{"remove_headers":{"X-Spam":0}}}'
)


@pytest.fixture
def fake() -> Iterator[FakeRspamd]:
    with FakeRspamd() as fake:
        yield fake


def client(fake: FakeRspamd) -> Rspamd:
    from twisted.internet import reactor

    return Rspamd(Fetcher(reactor, Names([("127.0.0.1",)]), LOCAL), fake.url, 10.0)


def test_recorded_answers_are_read() -> None:
    assert read(REFUSED) == Verdict("reject", 15.0, 15.0, (), "Gtube pattern")
    assert read(ACCEPTED) == Verdict("no action", -0.1, 15.0)


def test_the_rules_with_the_highest_scores_are_named() -> None:
    symbols = {name: {"score": score} for name, score in (("A", 1), ("B", 3), ("C", -5), ("D", 2), ("E", 0.5), ("\r\nF", 9))}
    found = read(json.dumps({"action": "reject", "score": 16, "symbols": symbols}).encode())
    assert (found.symbols, found.required) == (("F", "B", "D"), 0.0)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{}", b'{"action": 1, "score": 2}', b'{"action": "reject"}', b'{"action": "reject", "score": "x"}',
     b'{"action": "reject", "score": 1, "symbols": []}', b'{"action": "reject", "score": 1, "symbols": {"A": 1}}', b"<html>"],
)  # fmt: skip
def test_other_answers_are_no_verdict(body: bytes) -> None:
    if body == b'{"action": "reject", "score": 1, "symbols": []}':
        assert read(body).symbols == ()  # an empty table, as Lua writes it
        return
    with pytest.raises(FilterError):
        read(body)


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.binary(max_size=200)
    | st.fixed_dictionaries({"action": _json, "score": _json}, optional={"symbols": _json, "messages": _json, "required_score": _json}).map(
        lambda found: json.dumps(found).encode()
    )
)
def test_any_answer_is_a_verdict_or_an_error(body: bytes) -> None:
    try:
        found = read(body)
    except FilterError:
        return
    for text in (*found.symbols, found.message):
        assert text.isascii() and text.isprintable() and len(text) <= 200


@pytest_twisted.ensureDeferred
async def test_the_request_has_the_envelope_and_the_message(fake: FakeRspamd) -> None:
    found = await client(fake).check(ENVELOPE, b"Subject: x\r\n\r\nHello\r\n")
    assert found.action == "no action"
    [(headers, message)] = fake.asked
    assert message == b"Subject: x\r\n\r\nHello\r\n"
    assert (headers["From"], headers["User"], headers["Ip"]) == (["<a@example.com>"], ["account-1"], ["203.0.113.5"])
    assert headers["Queue-Id"] == ["0198"]
    assert headers["Rcpt"] == ["<b@example.net>", "<c@example.net>"]
    assert (await client(fake).check(ENVELOPE, GTUBE.encode())).message == "Gtube pattern"
    assert read(json.dumps(answer(b"")).encode()).score == -0.1


@pytest_twisted.ensureDeferred
async def test_errors_have_a_sentence(fake: FakeRspamd) -> None:
    for status, body, wanted in (
        (500, b'{"error": "x"}', "It responded with status 500."),
        (200, b" " * (RESPONSE_MAX + 1), f"Its response has more than {RESPONSE_MAX} bytes."),
        (200, b"{}", "Its response is not a result of rspamd."),
    ):
        fake.status, fake.body = status, body
        with pytest.raises(FilterError, match=wanted[:20]):
            await client(fake).check(ENVELOPE, b"")
