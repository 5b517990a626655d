"""The request log: written after the response, without secrets and files, in batches, within limits."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.http.request_log import TEXT_MAX, Cut, Recorder
from mailsvc.store.logs.requests import NewLog
from tests.http.rig import ACCOUNT, GOOD, Rig, request

ENTRY = NewLog(ACCOUNT, UUID(int=1), UUID(int=11), "GET", "/emails", 200, None, 1.0, None, None)


def test_request_is_logged_after_its_response() -> None:
    rig = Rig(recorded=True)
    rig.request("POST", "/emails?x=1", GOOD, User_Agent="me/1")
    assert rig.logged == []
    rig.clock.advance(1)
    [entry] = rig.logged
    assert (entry.account_id, entry.key_id, entry.method, entry.path, entry.status) == (ACCOUNT, UUID(int=11), "POST", "/emails", 200)
    assert entry.user_agent == "me/1"
    assert json.loads(entry.request_body or b"") == GOOD
    assert list(json.loads(entry.response_body or b"")) == ["id"]


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [("GET", "/nothing", "ms_full", 404), ("GET", "/emails", "ms_send", 401), ("PUT", "/emails", "ms_full", 405)],
)
def test_refusals_of_a_known_key_are_logged(method: str, path: str, key: str, status: int) -> None:
    rig = Rig(recorded=True)
    rig.request(method, path, key=key)
    rig.clock.advance(1)
    assert [(entry.status, json.loads(entry.response_body or b"")["statusCode"]) for entry in rig.logged] == [(status, status)]


def test_request_without_a_key_is_not_logged() -> None:
    rig = Rig(recorded=True)
    for key in (None, "ms_unknown", "nonsense"):
        rig.request("GET", "/emails", key=key)
    rig.request("GET", "/healthz")
    rig.request("GET", "/sandbox/emails")
    rig.clock.advance(1)
    assert rig.logged == []


def test_client_that_hangs_up_is_logged_once() -> None:
    rig = Rig(recorded=True)
    waiting: Deferred[Any] = Deferred()
    rig.intake.answer = lambda _: waiting
    connection = rig.connect()
    connection.send(request("POST", "/emails", GOOD))
    connection.hang_up()
    rig.clock.advance(1)
    assert [entry.status for entry in rig.logged] == [499]


def test_secrets_and_files_are_omitted() -> None:
    body = {
        "token": "ms_secret",
        "signing_secret": "whsec_secret",
        "html": "<p>kept</p>",
        "content": "kept as well",
        "url": "https://api.example.com/shared?token=ms_secret&x=1",
        "attachments": [{"filename": "a.pdf", "content": "c2VjcmV0"}, {"content": list(b"secret" * 100)}, {"content": b"secret"}],
        "more": [{"data": list(range(200))}],
        "nothing": None,
    }
    text = (Recorder(lambda _: Deferred(), Clock()).body(body) or b"").decode()
    assert "secret" not in text.replace("signing_secret", "") and "c2Vj" not in text
    read = json.loads(text)
    assert read["html"] == "<p>kept</p>" and read["content"] == "kept as well" and read["nothing"] is None
    assert read["attachments"][0] == {"filename": "a.pdf", "content": "(omitted: 8 characters)"}
    assert read["url"] == "https://api.example.com/shared?token=…&x=1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5000) | st.binary(max_size=50),
    lambda child: st.lists(child, max_size=30) | st.dictionaries(st.text(max_size=20), child, max_size=30),
    max_leaves=60,
)


@settings(max_examples=100, deadline=None)
@given(JSON, st.integers(100, 3000))
def test_logged_body_is_json_of_limited_size(value: Any, most: int) -> None:
    text = Recorder(lambda _: Deferred(), Clock(), body_max=most).body(value)
    if text is not None:
        json.loads(text)
        # A last text may go beyond, and an escaped character may take six bytes.
        assert len(text) <= (most + TEXT_MAX + 100) * 6


def test_bodies_can_be_omitted() -> None:
    assert Recorder(lambda _: Deferred(), Clock(), body_max=0).body({"a": 1}) is None
    assert Cut(10).of("x" * 50) == "x" * 50


class Slow:
    """A store whose writes end when the test says so."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.waiting: list[Deferred[None]] = []

    async def write(self, entries: Any) -> None:
        self.batches.append(len(entries))
        self.waiting.append(Deferred())
        await self.waiting[-1]


def test_batches_grow_within_limits() -> None:
    clock, slow = Clock(), Slow()
    recorder = Recorder(slow.write, clock, batch=5, most=12)
    recorder.add(ENTRY)
    clock.advance(0.5)
    for _ in range(20):
        recorder.add(ENTRY)
    assert recorder.dropped == 8
    for _ in range(4):
        slow.waiting[-1].callback(None)
    assert slow.batches == [1, 5, 5, 2]
    assert clock.getDelayedCalls() == []
    recorder.add(ENTRY)
    stopped = Deferred.fromCoroutine(recorder.stop())
    assert slow.batches[-1] == 1 and not stopped.called
    slow.waiting[-1].callback(None)
    assert stopped.called


def test_failed_write_is_counted_and_logging_continues() -> None:
    clock, written = Clock(), []

    async def write(entries: Any) -> None:
        if not written:
            written.append(0)
            raise RuntimeError("no store")
        written.append(len(entries))

    recorder = Recorder(write, clock, batch=2)
    for _ in range(3):
        recorder.add(ENTRY)
    clock.advance(1)
    assert written == [0, 1]
