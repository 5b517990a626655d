"""Webhooks from a running daemon to a local endpoint: what arrives, signed how, and that a bad neighbour delays nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import resend
from standardwebhooks import Webhook

from tests.whole.receiver import Receiver, Told
from tests.whole.rig import Daemon, free_port
from tests.whole.sink import Sink

FETCH = {"fetch": {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8"]}}


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def daemon(tmp_path: Path, database: str, sink: Sink) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, database, FETCH | {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.start()
    yield daemon
    daemon.stop()


def subscribe(daemon: Daemon, url: str, *events: str) -> tuple[str, str]:
    """Id and secret of a new endpoint."""
    answer = daemon.call("POST", "/webhooks", {"endpoint": url, "events": list(events)})
    assert answer.status == 201, answer
    return answer.body["id"], answer.body["signing_secret"]


def send(daemon: Daemon, to: str = "zoe@example.net", **more: object) -> str:
    body = {"from": f"Acme <shop@{daemon.facts['domain']}>", "to": to, "subject": "Hi", "text": "Hello.", **more}
    answer = daemon.call("POST", "/emails", body)
    assert answer.status == 200, answer
    return str(answer.body["id"])


def types(told: list[Told]) -> list[str]:
    return sorted(each.json["type"] for each in told)


def test_an_email_is_told_of_signed(daemon: Daemon, receiver: Receiver) -> None:
    webhook_id, secret = subscribe(daemon, receiver.url + "/", "email.sent", "email.delivered")
    email_id = send(daemon, tags=[{"name": "category", "value": "welcome"}], headers={"X-Order": "7"})
    told = receiver.wait(lambda found: len(found) >= 2)
    assert types(told) == ["email.delivered", "email.sent"]
    for each in told:
        Webhook(secret).verify(each.body.decode(), dict(each.headers))
        named = {"id": each.headers["svix-id"], "timestamp": each.headers["svix-timestamp"], "signature": each.headers["svix-signature"]}
        resend.Webhooks.verify({"payload": each.body.decode(), "headers": named, "webhook_secret": secret})
        assert each.headers["content-type"] == "application/json"
        assert each.json["data"] == {
            "email_id": email_id,
            "created_at": each.json["data"]["created_at"],
            "message_id": f"<{email_id}@{daemon.facts['domain']}>",
            "from": f"Acme <shop@{daemon.facts['domain']}>",
            "to": ["zoe@example.net"],
            "subject": "Hi",
            "tags": {"category": "welcome"},
            "headers": [{"name": "X-Order", "value": "7"}],
        }
    log = daemon.call("GET", "/event-log?after=0").body["data"]
    assert [each["sequence"] for each in log] == list(range(1, len(log) + 1))
    log = [each for each in log if each["type"].startswith("email.")]
    assert [each["type"] for each in log] == ["email.sent", "email.delivered"]
    assert {each["id"] for each in log} == {each.id for each in told}
    events = daemon.call("GET", f"/webhooks/{webhook_id}/events").body["data"]
    assert {each["id"] for each in events} == {each.id for each in told}
