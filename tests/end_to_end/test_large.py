"""Forty megabytes, and one more."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.sink import Sink

LARGEST = 41_943_040  # bytes of a message as it goes out


@pytest.mark.slow
def test_forty_megabytes_arrive_and_more_is_refused(tmp_path: Path, database: str) -> None:
    sink = Sink(free_port())
    sink.start()
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.start()
    try:
        facts = daemon.facts
        content = os.urandom(int((LARGEST - 20_000) * 57 / 78))  # a line of base64 is 57 bytes in 78
        email = {
            "from": f"a@{facts['domain']}",
            "to": ["b@example.net", "c@example.net"],
            "subject": "Large",
            "text": "See the attachment.",
            "attachments": [{"filename": "large.bin", "content": base64.b64encode(content).decode()}],
        }
        sent = daemon.call("POST", "/emails", email)
        assert sent.status == 200, sent.body
        sink.wait_until(lambda mails: len(mails) == 1, 120)
        (mail,) = sink.received
        assert len(mail.raw) > 41_900_000 and len(mail.recipients) == 2
        assert next(mail.message.iter_attachments()).get_payload(decode=True) == content

        email["attachments"] = [{"filename": "larger.bin", "content": base64.b64encode(content + bytes(30_000)).decode()}]
        refused = daemon.call("POST", "/emails", email)
        assert (refused.status, refused.body["name"]) == (413, "validation_error"), refused.body
        assert str(LARGEST) in refused.body["message"]
        assert len(daemon.call("GET", "/emails").body["data"]) == 1
    finally:
        assert daemon.stop() == 0
        sink.stop()
