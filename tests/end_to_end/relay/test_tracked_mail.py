"""Submitted emails and broadcasts with tracked links, on real ports: signed as they are sent, and nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import EmailMessage

import dkim
import pytest

from tests.end_to_end.relay_rig import connect, relaying
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Received, Sink
from tests.end_to_end.test_tracking import get

HTML = '<p>Grüße</p><a href="https://shop.example/?a=1&amp;b=2">Shop</a> <a href="mailto:a@example.com">Write</a>'
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink) -> Iterator[Daemon]:
    for daemon in relaying(tmp_path_factory, module_database, sink):
        [domain] = daemon.call("GET", "/domains").body["data"]
        daemon.call("PATCH", f"/domains/{domain['id']}", {"open_tracking": True, "click_tracking": True})
        yield daemon


def html_of(mail: Received) -> str:
    part = mail.message.get_body(("html",))
    assert part is not None
    return str(part.get_content()).strip()


def is_signed(daemon: Daemon, mail: Received) -> bool:
    [domain] = daemon.call("GET", "/domains").body["data"]
    records = daemon.call("GET", f"/domains/{domain['id']}").body["records"]
    keys = {f"{each['name']}.".encode(): each["value"].replace('" "', "").strip('"') for each in records if each["record"] == "DKIM"}
    found: bool = dkim.verify(mail.raw, dnsfunc=lambda name, timeout=5: next((keys[each] for each in keys if name.startswith(each)), None))
    return found


def targets(daemon: Daemon, html: str) -> list[str | None]:
    """Where its tracked links lead."""
    return [get(daemon, f"/c/{token}", HOST)[1] for token in re.findall(rf'href="http://{HOST}:\d+/c/([A-Za-z0-9_-]+)"', html)]


def test_a_submitted_email_is_tracked(daemon: Daemon, sink: Sink) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = f"hello@{daemon.facts['domain']}", "ada@example.net", "Tracked"
    mail.set_content("Grüße https://shop.example/\n")
    mail.add_alternative(HTML, "html")
    mail.add_attachment(HTML.encode(), "text", "html", filename="page.html")
    with connect(daemon) as client:
        client.send_message(mail)
    [arrived] = sink.having("Subject: Tracked")
    html = html_of(arrived)
    assert is_signed(daemon, arrived) and targets(daemon, html) == ["https://shop.example/?a=1&b=2"]
    assert re.sub(r"http://127[^\"]+", "https://shop.example/?a=1&amp;b=2", html.partition("<img ")[0]).strip() == HTML
    text = arrived.message.get_body(("plain",))
    assert text is not None and text.get_content().strip() == "Grüße https://shop.example/"
    [file] = arrived.message.iter_attachments()
    assert file.get_payload(decode=True) == HTML.encode()


def test_the_contacts_of_a_broadcast_are_tracked_unless_they_objected(daemon: Daemon, sink: Sink) -> None:
    segment = daemon.call("POST", "/segments", {"name": "All"}).body["id"]
    for name, untracked in ("eve", False), ("bob", True):
        contact = {"email": f"{name}@example.net", "first_name": name, "untracked": untracked, "segments": [segment]}
        assert daemon.call("POST", "/contacts", contact).status == 201
    html = HTML.replace("a=1", "who={{{contact.first_name}}}") + '<a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>'
    content = {"segment_id": segment, "from": f"news@{daemon.facts['domain']}", "subject": "Tracked news", "html": html, "send": True}
    broadcast = daemon.call("POST", "/broadcasts", content).body["id"]
    mails = {mail.recipients[0]: mail for mail in sink.having("Subject: Tracked news", 2)}
    assert all(is_signed(daemon, mail) for mail in mails.values())
    eve, bob = (html_of(mails[f"{name}@example.net"]) for name in ("eve", "bob"))
    assert targets(daemon, eve) == ["https://shop.example/?who=eve&b=2"] and "/unsubscribe?token=" in eve and "/o/" in eve
    assert "https://shop.example/?who=bob&amp;b=2" in bob and "/c/" not in bob and "/o/" not in bob
    counted = daemon.until(f"/broadcasts/{broadcast}", daemon.facts["api_key"], lambda body: body["counts"].get("clicked") == 1)
    assert counted["counts"]["unique_clicked"] == 1
