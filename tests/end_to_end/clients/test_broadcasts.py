"""Broadcasts with the official Python library against a daemon, and the mail that reaches another server; the examples of the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dkim
import dns.resolver
import pytest
import resend

from tests.end_to_end.clients.node import LIBRARIES, WHY_NOT, Node, environment, installed
from tests.end_to_end.clients.shop import key_of, running
from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Received, Sink

pytestmark = pytest.mark.usefixtures("library")

DOMAIN = "news.example.org"
SENDER = f"Acme <news@{DOMAIN}>"
MERGE = Path(__file__).parents[3] / "docs" / "mail-merge.md"
COUNT = 30
PEOPLE = int(os.environ.get("PEOPLE", "250"))  # of a batch; 10000 takes minutes
HTML = '<p>Hi {{{contact.first_name|there}}} <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">leave</a></p>'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink, names: Names) -> Iterator[Daemon]:
    more: dict[str, Any] = {"": {"base_url": "https://mail.example.org"}, "limits": {"batch": 100}}
    yield from running(tmp_path_factory.mktemp("daemon"), module_database, sink, names, **more)


@pytest.fixture(scope="module")
def key(daemon: Daemon, names: Names) -> str:
    return key_of(daemon, names, DOMAIN, trusted=True)


def segment(prefix: str, count: int = COUNT) -> str:
    """A segment with so many contacts; every second one has a name."""
    id_ = resend.Segments.create({"name": prefix})["id"]
    for n in range(count):
        contact: Any = {"email": f"{prefix}{n}@example.net", "segments": [{"id": id_}]}
        resend.Contacts.create({**contact, **({"first_name": f"Ada {n}"} if n % 2 else {})})
    return id_


def arrived(sink: Sink, prefix: str, count: int) -> list[Received]:
    def found(mails: list[Received]) -> list[Received]:
        return [mail for mail in mails if mail.recipients[0].startswith(prefix)]

    sink.wait_until(lambda mails: len(found(mails)) >= count, 60 + count / 50)
    return found(sink.received)


def test_every_contact_gets_one_personal_mail_whose_signature_covers_the_unsubscribe_fields(
    daemon: Daemon, key: str, sink: Sink, names: Names
) -> None:
    readers = segment("reader")
    content: Any = {"segment_id": readers, "from": SENDER, "subject": "Hi {{{FIRST_NAME|you}}}", "html": HTML, "name": "News"}
    created = resend.Broadcasts.create(content)
    assert resend.Broadcasts.get(created["id"])["status"] == "draft"
    assert resend.Broadcasts.send({"broadcast_id": created["id"]})["id"] == created["id"]
    mails = arrived(sink, "reader", COUNT)
    assert sorted(mail.recipients[0] for mail in mails) == sorted(f"reader{n}@example.net" for n in range(COUNT))
    [third] = [mail for mail in mails if mail.recipients[0] == "reader3@example.net"]
    assert third.message["Subject"] == "Hi Ada 3" and third.message["To"] == "reader3@example.net"
    assert third.message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    resolver = dns.resolver.Resolver(configure=False)
    host, port = names.address.rsplit(":", 1)
    resolver.nameservers, resolver.port = [host], int(port)

    def txt(name: bytes, timeout: int = 5) -> bytes:
        return b"".join(resolver.resolve(name.decode().rstrip("."), "TXT")[0].strings)

    assert dkim.verify(third.raw, dnsfunc=txt)
    signed = re.findall(rb"\bh=([^;]+);", third.raw)
    assert signed and all(b"list-unsubscribe:" in each.lower() and b"list-unsubscribe-post" in each.lower() for each in signed)

    done = lambda body: body["status"] == "sent" and body["counts"].get("delivered") == COUNT  # noqa: E731
    found = daemon.until(f"/broadcasts/{created['id']}", key, done)
    assert (found["progress"]["processed"], found["progress"]["emails"], found["counts"]["sent"]) == (COUNT, COUNT, COUNT)
    listed: Any = resend.Broadcasts.recipients(created["id"], {"type": "delivered", "limit": 100})
    assert len(listed["data"]) == COUNT and listed["data"][0]["contact_id"]
    [shown] = [mail for mail in resend.Emails.list({"limit": 100})["data"] if mail["to"] == ["reader3@example.net"]]
    assert resend.Emails.get(shown["id"])["html"].startswith("<p>Hi Ada 3 ")

    link = "".join(third.message["List-Unsubscribe"].split())[1:-1].replace("https://mail.example.org", f"http://127.0.0.1:{daemon.port}")
    request = urllib.request.Request(link, b"List-Unsubscribe=One-Click", method="POST")
    with urllib.request.urlopen(request) as response:
        assert response.status == 204
    assert resend.Contacts.get(email="reader3@example.net")["unsubscribed"] is True
    unsubscribed: Any = resend.Broadcasts.recipients(created["id"], {"type": "unsubscribed"})
    assert [row["email"] for row in unsubscribed["data"]] == ["reader3@example.net"]
    links: Any = resend.Broadcasts.clicked_links(created["id"])
    assert links["data"] == []


def test_the_other_methods() -> None:
    some = segment("other", 1)
    content: Any = {"segment_id": some, "from": SENDER, "subject": "S", "text": "T", "send": True, "scheduled_at": "in 1 hour"}
    id_ = resend.Broadcasts.create(content)["id"]
    assert resend.Broadcasts.get(id_)["status"] == "scheduled"
    assert resend.Broadcasts.cancel(id_)["id"] == id_
    assert resend.Broadcasts.update({"broadcast_id": id_, "name": "Renamed"})["id"] == id_
    copy = resend.Broadcasts.duplicate(id_)["id"]
    assert resend.Broadcasts.get(copy)["name"] == "Renamed (copy)"
    assert {each["id"] for each in resend.Broadcasts.list()["data"]} >= {id_, copy}
    assert resend.Broadcasts.remove(copy)["deleted"] is True


def example(language: str, folder: Path, daemon: Daemon, key: str, people: str, segment_id: str) -> tuple[str, Mapping[str, str]]:
    """A program as it is in docs/mail-merge.md; and its environment. `people` is what the addresses of the batch begin with."""
    [code] = re.findall(rf"```{language}\n(.*?)```", MERGE.read_text("utf-8"), re.DOTALL)
    rows = [{"email": f"{people}{n}@example.net", "name": f"Zoë & {n}"} for n in range(PEOPLE)]
    (folder / "people.json").write_text(json.dumps(rows))
    return code, {"API_KEY": key, "BASE_URL": f"http://127.0.0.1:{daemon.port}", "SENDER": SENDER, "SEGMENT": segment_id}


def check_example(sink: Sink, people: str, readers: str) -> None:
    """Everybody in the batch got a personal email, and so did the two contacts of the broadcast, with a link to leave."""
    mails = arrived(sink, people, PEOPLE)
    assert {mail.message["Subject"] for mail in mails} == {f"Hi Zoë & {n}" for n in range(PEOPLE)} and len(mails) == PEOPLE
    first = mails[0].message.get_body(("html",))
    assert first is not None and "Zoë &amp; " in first.get_content() and "unsubscribe" not in first.get_content().lower()
    broadcast = {mail.recipients[0]: mail.message for mail in arrived(sink, readers, 2)}
    assert broadcast[f"{readers}0@example.net"]["Subject"] == "Hi there"
    named = broadcast[f"{readers}1@example.net"]
    html = named.get_body(("html",))
    assert named["Subject"] == "Hi Ada 1" and html is not None
    assert re.search(r"Hi (<!-- -->)?Ada 1", html.get_content()) and "/unsubscribe?token=" in html.get_content()


def test_the_example_for_python(daemon: Daemon, key: str, sink: Sink, tmp_path: Path) -> None:
    code, values = example("python", tmp_path, daemon, key, "merge", segment("jinja", 2))
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **values}, cwd=tmp_path, timeout=600)
    check_example(sink, "merge", "jinja")


def test_the_node_library(daemon: Daemon, key: str, sink: Sink) -> None:
    if not installed():
        pytest.skip(WHY_NOT)
    node = Node(f"http://127.0.0.1:{daemon.port}", key)
    try:
        react = {"$react": ["p", {}, "Hi ", "{{{contact.first_name|there}}}"]}
        content = {"segmentId": segment("node", 2), "from": SENDER, "subject": "Hi", "react": react, "previewText": "News"}
        id_ = node.call("broadcasts.create", content)["id"]
        assert node.call("broadcasts.update", id_, {"name": "From Node"})["id"] == id_
        assert node.call("broadcasts.get", id_)["name"] == "From Node"
        assert node.call("broadcasts.send", id_, {"scheduledAt": "in 1 hour"})["id"] == id_
        assert node.call("broadcasts.cancel", id_)["id"] == id_
        assert node.call("broadcasts.clickedLinks", id_)["data"] == []
        copy = node.call("broadcasts.duplicate", id_)["id"]
        assert {copy, id_} <= {each["id"] for each in node.call("broadcasts.list")["data"]}
        assert node.call("broadcasts.remove", copy)["deleted"] is True
        assert node.call("broadcasts.send", id_)["id"] == id_
        [named] = [mail for mail in arrived(sink, "node", 2) if mail.recipients[0] == "node1@example.net"]
        html = named.message.get_body(("html",))
        assert html is not None and "Ada 1" in html.get_content()
        assert len(node.call("broadcasts.recipients", id_, {"type": "sent"})["data"]) == 2
    finally:
        node.end()


def test_the_example_for_node(daemon: Daemon, key: str, sink: Sink, tmp_path: Path) -> None:
    if not installed():
        pytest.skip(WHY_NOT)
    code, values = example("js", tmp_path, daemon, key, "parcel", segment("react", 2))
    (tmp_path / "merge.mjs").write_text(code)
    (tmp_path / "node_modules").symlink_to(LIBRARIES / "node_modules")
    subprocess.run(["node", "merge.mjs"], check=True, env={**environment(), **values}, cwd=tmp_path, timeout=600)
    check_example(sink, "parcel", "react")
