"""A double opt-in with a running daemon: the email is accepted, its link opens the page, and the button adds the contact."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from tests.end_to_end.rig import Daemon, free_port


def test_double_opt_in(tmp_path: Path, database: str) -> None:
    routes = {"*": f"smtp://127.0.0.1:{free_port()}"}  # where nobody answers
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": routes}})
    daemon.start()
    key = daemon.facts["api_key"]
    wording = {"from": f"News <news@{daemon.facts['domain']}>", "subject": "Please confirm", "text": "Confirm: {{{CONFIRM_URL}}}"}
    segment = daemon.call("POST", "/segments", {"name": "Newsletter", "double_opt_in": wording}).body["id"]
    daemon.call("POST", "/contacts", {"email": "ada@example.net", "segments": [segment]})
    [email] = daemon.until("/emails", key, lambda found: found["data"])["data"]
    text = daemon.call("GET", f"/emails/{email['id']}").body["text"]
    link = urlsplit(re.findall(r"http\S+", text)[0])
    url = f"http://127.0.0.1:{daemon.port}{link.path}?{link.query}"
    with urllib.request.urlopen(url, timeout=30) as page:
        assert b">Confirm</button>" in page.read()
    members = f"/segments/{segment}/contacts"
    assert daemon.call("GET", members).body["data"] == []
    with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=30) as page:
        assert b"Your subscription is confirmed." in page.read()
    assert [contact["email"] for contact in daemon.call("GET", members).body["data"]] == ["ada@example.net"]
    assert daemon.stop() == 0
