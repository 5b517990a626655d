"""People who leave after a broadcast was queued for them and before it is handed over get no mail."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

from tests.end_to_end.rig import Daemon, free_port, rows
from tests.end_to_end.sink import Sink

PEOPLE = ("stays", "leaves-topic", "leaves-everything", "is-unsubscribed", "is-opted-out")


def press(daemon: Daemon, email: str, body: bytes) -> int:
    """The status of a POST to the link of somebody's email."""
    html = daemon.call("GET", f"/emails/{email}").body["html"]
    [link] = re.findall(r'href="([^"]+/unsubscribe\?token=[^"]+)"', html)
    with urllib.request.urlopen(urllib.request.Request(link, body, method="POST")) as response:
        return int(response.status)


def test_who_leaves_before_the_hand_over_gets_no_mail(tmp_path: Path, database: str) -> None:
    sink = Sink(free_port())
    sink.start()
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.start()
    try:
        call = daemon.call
        topic = call("POST", "/topics", {"name": "News", "default_subscription": "opt_in"}).body["id"]
        segment = call("POST", "/segments", {"name": "All"}).body["id"]
        for name in PEOPLE:
            assert call("POST", "/contacts", {"email": f"{name}@example.net", "segments": [segment]}).status == 201
        daemon.command("queue", "hold")
        content = {"segment_id": segment, "topic_id": topic, "from": f"news@{daemon.facts['domain']}", "subject": "News", "send": True}
        html = '<p>Hi <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>'
        broadcast = call("POST", "/broadcasts", {**content, "html": html}).body["id"]
        daemon.until(f"/broadcasts/{broadcast}", daemon.facts["api_key"], lambda body: body["progress"]["emails"] == len(PEOPLE))
        queued = "SELECT split_part(recipients[1], '@', 1), email_id::text FROM emails WHERE broadcast_id = %s"
        emails: dict[str, Any] = dict(rows(database, queued, broadcast))
        assert set(emails) == set(PEOPLE)

        assert press(daemon, emails["leaves-topic"], b"List-Unsubscribe=One-Click") == 204
        assert press(daemon, emails["leaves-everything"], b"save=nothing") == 200
        call("PATCH", "/contacts/is-unsubscribed@example.net", {"unsubscribed": True})
        call("PATCH", "/contacts/is-opted-out@example.net/topics", [{"id": topic, "subscription": "opt_out"}])
        daemon.command("queue", "release")
        reasons = {
            "leaves-topic": "The recipient is not subscribed to the topic of this email.",
            "leaves-everything": "The recipient has unsubscribed from all broadcasts.",
            "is-unsubscribed": "The recipient has unsubscribed from all broadcasts.",
            "is-opted-out": "The recipient is not subscribed to the topic of this email.",
        }
        for name, reason in reasons.items():
            ended = daemon.until(f"/emails/{emails[name]}", daemon.facts["api_key"], lambda body: body["last_event"] == "failed")
            assert ended["recipients"][0]["reason"] == reason
        sink.wait_until(lambda mails: len(mails) == 1, 20)
        daemon.until(f"/broadcasts/{broadcast}", daemon.facts["api_key"], lambda body: body["counts"]["delivered"] == 1)
        assert [mail.recipients for mail in sink.received] == [("stays@example.net",)]
    finally:
        daemon.stop()
        sink.stop()
