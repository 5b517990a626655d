"""Webhooks from a running daemon to a local endpoint: what arrives, signed how, and that a bad neighbour delays nobody."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import resend
from standardwebhooks import Webhook

from tests.end_to_end.clients.node import WHY_NOT, Node, installed
from tests.end_to_end.receiver import Received, Receiver
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.sink import Sink

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


def send(daemon: Daemon, to: str | list[str] = "zoe@example.net", **more: object) -> str:
    body = {"from": f"Acme <shop@{daemon.facts['domain']}>", "to": to, "subject": "Hi", "text": "Hello.", **more}
    answer = daemon.call("POST", "/emails", body)
    assert answer.status == 200, answer
    return str(answer.body["id"])


def types(received: list[Received]) -> list[str]:
    return sorted(each.json["type"] for each in received)


def test_webhooks_of_an_email_are_signed(daemon: Daemon, receiver: Receiver) -> None:
    webhook_id, secret = subscribe(daemon, receiver.url + "/", "email.sent", "email.delivered")
    email_id = send(daemon, tags=[{"name": "category", "value": "welcome"}], headers={"X-Order": "7"})
    received = receiver.wait(lambda found: len(found) >= 2)
    assert types(received) == ["email.delivered", "email.sent"]
    for each in received:
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
    assert {each["id"] for each in log} == {each.id for each in received}
    events = daemon.call("GET", f"/webhooks/{webhook_id}/events").body["data"]
    assert {each["id"] for each in events} == {each.id for each in received}


def test_both_node_libraries_verify(daemon: Daemon, receiver: Receiver) -> None:
    """By the new secret and by the one before, and nothing that was changed on the way."""
    if not installed():
        pytest.skip(WHY_NOT)
    webhook_id, former = subscribe(daemon, receiver.url + "/", "email.bounced")
    secret = daemon.call("POST", f"/webhooks/{webhook_id}/signing-secret/rotate").body["signing_secret"]
    daemon.call("POST", f"/webhooks/{webhook_id}/test", {"type": "email.bounced"})
    [received] = receiver.wait(lambda found: len(found) >= 1)
    node = Node(f"http://127.0.0.1:{daemon.port}", daemon.facts["api_key"])

    def official(secret: str, payload: str) -> Any:
        named = {name: received.headers[f"svix-{name}"] for name in ("id", "timestamp", "signature")}
        return node.call("webhooks.verify", {"payload": payload, "headers": named, "webhookSecret": secret})

    def standard(secret: str, payload: str) -> Any:
        return node.tell({"standard": {"secret": secret, "payload": payload, "headers": dict(received.headers)}})["data"]

    try:
        text = received.body.decode()
        for verify in (official, standard):
            assert verify(secret, text) == verify(former, text) == received.json
            for wrong in ((secret, text.replace("Permanent", "Transient")), ("whsec_" + "A" * 44, text)):
                with pytest.raises(AssertionError, match="No matching signature"):
                    verify(*wrong)
    finally:
        node.end()


def test_two_bad_neighbours_and_a_good_one(daemon: Daemon, receiver: Receiver) -> None:
    """The good one has everything at once; what the bad ones did is on record, with the time of the next attempt."""
    receiver.answers = {"/hangs": None, "/fails": 500}
    good, _ = subscribe(daemon, receiver.url + "/good", "email.sent", "email.delivered")
    hangs, _ = subscribe(daemon, receiver.url + "/hangs", "email.sent")
    fails, _ = subscribe(daemon, receiver.url + "/fails", "email.sent")
    ids = {send(daemon) for _ in range(30)}
    received = receiver.wait(lambda found: len({each.id for each in found}) >= 60, "/good", seconds=20)
    assert {each.json["data"]["email_id"] for each in received} == ids
    assert len(receiver.at("/hangs")) <= 5
    receiver.wait(lambda found: len(found) >= 1, "/fails")
    [event, *_] = daemon.call("GET", f"/webhooks/{fails}/events").body["data"][::-1]
    event_id = next(each.id for each in receiver.at("/fails"))
    attempts = wait_for(lambda: daemon.call("GET", f"/webhooks/{fails}/events/{event_id}/attempts").body["data"])
    assert attempts[0]["http_status_code"] == 500
    assert attempts[0]["next_attempt_at"] is not None
    assert event["type"] == "email.sent"
    shown = daemon.call("GET", f"/webhooks/{fails}/events/{event_id}").body
    assert (shown["status"], shown["payload"]["type"]) == ("attempting", "email.sent")
    assert daemon.call("GET", f"/webhooks/{fails}").body["last_failure"]["status"] == 500
    assert daemon.call("GET", f"/webhooks/{good}").body["failing_since"] is None
    assert daemon.call("DELETE", f"/webhooks/{hangs}").body == {"object": "webhook", "id": hangs, "deleted": True}


def wait_for(look: Callable[[], Any], seconds: float = 10) -> Any:
    """What it gives, as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_the_official_library(daemon: Daemon, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "api_url", f"http://127.0.0.1:{daemon.port}")
    monkeypatch.setattr(resend, "api_key", daemon.facts["api_key"])
    created = resend.Webhooks.create({"endpoint": receiver.url + "/a", "events": ["email.sent"]})
    webhook_id = created["id"]
    assert resend.Webhooks.get(webhook_id)["signing_secret"] == created["signing_secret"]
    [listed] = resend.Webhooks.list()["data"]
    assert (listed["id"], listed["status"], listed["events"]) == (webhook_id, "enabled", ["email.sent"])
    resend.Webhooks.update({"webhook_id": webhook_id, "endpoint": receiver.url + "/b", "events": ["email.sent", "suppression.added"]})
    rotated = resend.Webhooks.rotate_signing_secret(webhook_id)["signing_secret"]
    assert resend.Suppressions.add({"email": "Gone@example.net"})["object"] == "suppression"
    [received] = receiver.wait(lambda found: len(found) >= 1, "/b")
    assert received.json["type"] == "suppression.added"
    assert received.json["data"]["email"] == "Gone@example.net"
    for secret in (created["signing_secret"], rotated):
        Webhook(secret).verify(received.body.decode(), dict(received.headers))
    send(daemon, to="gone@example.net")
    event = resend.Webhooks.get_event(webhook_id, received.id)
    assert event["payload"]["data"] == received.json["data"]
    resend.Webhooks.replay_event(webhook_id, received.id)
    receiver.wait(lambda found: len(found) >= 2, "/b")
    attempts = wait_for(lambda: (found := resend.Webhooks.list_event_attempts(webhook_id, received.id)["data"])[1:] and found)
    assert [each["http_status_code"] for each in attempts] == [204, 204]
    [event] = resend.Webhooks.list_events(webhook_id)["data"]
    assert (event["id"], event["status"]) == (received.id, "success")
    [found] = resend.Suppressions.list()["data"]
    assert (found["email"], found["origin"]) == ("Gone@example.net", "manual")
    assert resend.Suppressions.get("gone@example.net")["id"] == found["id"]
    assert len(resend.Suppressions.Batch.add({"emails": ["a@example.net", "b@example.net"]})["data"]) == 2
    assert len(resend.Suppressions.Batch.remove({"emails": ["a@example.net", "b@example.net"]})["data"]) == 2
    assert resend.Suppressions.remove(found["id"])["deleted"] is True
    assert resend.Webhooks.remove(webhook_id)["deleted"] is True
    with pytest.raises(resend.exceptions.ResendError):
        resend.Webhooks.get(webhook_id)


@pytest.mark.slow
def test_no_event_is_lost_when_the_daemon_is_killed(tmp_path: Path, database: str, sink: Sink, receiver: Receiver) -> None:
    changes = FETCH | {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}, "webhooks": {"timeout": 1}}
    receiver.answers = {"/hangs": None, "/fails": 503}
    daemon = Daemon(tmp_path, database, changes)
    daemon.start()
    try:
        for path in ("/good", "/hangs", "/fails"):
            subscribe(daemon, receiver.url + path, "email.sent", "email.delivered")
        ids = set()
        moments = random.Random(6)
        for _ in range(4):
            ids |= {send(daemon) for _ in range(25)}
            time.sleep(moments.uniform(0, 0.3))
            daemon.kill()
            daemon.start()
        wanted = {(email_id, kind) for email_id in ids for kind in ("email.sent", "email.delivered")}
        received = receiver.wait(lambda found: {(t.json["data"]["email_id"], t.json["type"]) for t in found} >= wanted, "/good", seconds=90)
        log: list[Any] = []
        while page := daemon.call("GET", f"/event-log?limit=100&after={log[-1]['sequence'] if log else 0}").body["data"]:
            log += page
        assert [each["sequence"] for each in log] == list(range(1, len(log) + 1))
        assert {each["id"] for each in log if each["type"] in ("email.sent", "email.delivered")} == {each.id for each in received}
        assert receiver.at("/hangs")
        assert receiver.at("/fails")
    finally:
        daemon.stop()


def test_a_bounce_suppresses_and_says_so(daemon: Daemon, receiver: Receiver, sink: Sink) -> None:
    sink.refuse["gone@example.net"] = "550 5.1.1 no such user"
    subscribe(daemon, receiver.url + "/", "email.bounced", "email.suppressed", "suppression.added", "suppression.removed")
    first = send(daemon, to="gone@example.net")
    by_type = {each.json["type"]: each.json["data"] for each in receiver.wait(lambda found: len(found) >= 2)}
    bounce = by_type["email.bounced"]["bounce"]
    assert (bounce["type"], bounce["subType"], bounce["diagnosticCode"]) == ("Permanent", "General", ["smtp; 550 5.1.1 no such user"])
    assert (by_type["suppression.added"]["email"], by_type["suppression.added"]["source_id"]) == ("gone@example.net", first)
    second = send(daemon, to=["gone@example.net", "zoe@example.net"])
    sink.wait_until(lambda mails: len(mails) >= 1, 20)
    assert [mail.recipients for mail in sink.received] == [("zoe@example.net",)]
    [suppressed] = [each for each in receiver.wait(lambda found: len(found) >= 3) if each.json["type"] == "email.suppressed"]
    assert (suppressed.json["data"]["email_id"], suppressed.json["data"]["to"]) == (second, ["gone@example.net"])
    assert suppressed.json["data"]["suppressed"]["reason"] == "previous_bounce"
    shown = wait_for(lambda: (e := daemon.call("GET", f"/emails/{second}").body)["last_event"] == "delivered" and e)
    assert [each["status"] for each in shown["recipients"]] == ["suppressed", "delivered"]
    removed = daemon.call("DELETE", "/suppressions/gone@example.net").body
    assert (removed["origin"], removed["source_id"], removed["reason"]) == ("bounce", first, "550 5.1.1 no such user")
    receiver.wait(lambda found: any(each.json["type"] == "suppression.removed" for each in found))


def test_links_are_fetched_and_dead_ends_named(daemon: Daemon, receiver: Receiver, sink: Sink) -> None:
    email = {"from": f"shop@{daemon.facts['domain']}", "to": "a@example.net", "subject": "s", "text": "t"}
    refused = daemon.call("POST", "/emails", email | {"attachments": [{"path": receiver.url}]})
    assert (refused.status, refused.body["name"]) == (422, "invalid_attachment")
    assert "The response was 501." in refused.body["message"]
    receiver.pages["/bill.pdf"] = b"%PDF-1.7 " + bytes(range(256)) * 4000
    send(daemon, attachments=[{"path": receiver.url + "/bill.pdf"}])
    sink.wait_until(lambda mails: len(mails) >= 1, 20)
    [mail] = sink.received
    [file] = mail.message.iter_attachments()
    assert (file.get_filename(), file.get_content_type()) == ("bill.pdf", "application/pdf")
    assert file.get_content() == receiver.pages["/bill.pdf"]


def test_an_account_is_notified_of_an_endpoint_that_fails(tmp_path: Path, database: str, sink: Sink, receiver: Receiver) -> None:
    changes: dict[str, dict[str, Any]] = FETCH | {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}}
    changes |= {"": {"sender": "Notices <notices@mailsvc.example>"}, "webhooks": {"warn_after": 1, "schedule": [1, 1, 1, 1, 60]}}
    daemon = Daemon(tmp_path, database, changes)
    daemon.start()
    try:
        command = [sys.executable, "-c", "from mailsvc.cli.main import main; main()", "--config", str(daemon.config)]
        done = subprocess.run(
            [*command, "account", "notify", "1", "Admin@acme.example"], cwd=PROJECT, check=True, capture_output=True, text=True
        )
        assert "Admin@acme.example" in done.stdout
        receiver.answers["/"] = 500
        subscribe(daemon, receiver.url + "/", "email.sent")
        send(daemon)
        sink.wait_until(lambda mails: any(mail.recipients == ("Admin@acme.example",) for mail in mails), 30)
        [notice] = [mail for mail in sink.received if mail.recipients == ("Admin@acme.example",)]
        assert notice.message["subject"] == "Your webhook endpoint is failing"
        assert receiver.url in notice.message.get_content()
        assert "HTTP status 500" in notice.message.get_content()
        receiver.answers["/"] = 410
        sink.wait_until(lambda mails: any("was disabled" in mail.message["subject"] for mail in mails), 30)
    finally:
        daemon.stop()
