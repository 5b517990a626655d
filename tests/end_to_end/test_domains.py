"""The life of a sending domain through the official Python client and the `mailsvc` command, against a daemon and a DNS server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import resend

from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon

pytestmark = pytest.mark.contract

NAME = "shop.example"
ZONES: dict[str, dict[str, list[str]]] = {NAME: {"NS": [f"ns.{NAME}."]}, f"ns.{NAME}": {"A": ["127.0.0.1"]}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, names: Names) -> Iterator[Daemon]:
    settings: dict[str, dict[str, object]] = {
        "delivery": {"nameservers": [names.address], "ehlo_name": "out.example.net"},
        "domains": {"nameserver_port": names.port},
    }
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, settings)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(autouse=True)
def client(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "api_url", f"http://127.0.0.1:{daemon.port}")
    monkeypatch.setattr(resend, "api_key", daemon.facts["api_key"])


def zones(domain: Any) -> dict[str, dict[str, list[str]]]:
    """What its owner makes of the records that the API shows."""
    found = {name: dict(kinds) for name, kinds in ZONES.items()}
    for record in domain["records"]:
        value = f"{record['priority']} {record['value']}." if record["type"] == "MX" else record["value"]
        text = value if record["type"] == "MX" or value.startswith('"') else f'"{value}"'
        found.setdefault(f"{record['name']}.{NAME}", {})[record["type"]] = [text]
    return found


def until(status: str, domain_id: str) -> Any:
    deadline = time.monotonic() + 20
    while True:
        domain: Any = resend.Domains.get(domain_id)
        if domain["status"] == status and domain["checked_at"]:
            return domain
        assert time.monotonic() < deadline, domain
        time.sleep(0.05)


def test_create_get_verify_list_update_delete(daemon: Daemon, names: Names) -> None:
    names.serve(ZONES)
    created: Any = resend.Domains.create({"name": NAME, "region": "us-east-1", "custom_return_path": "bounce"})
    assert created["status"] == "not_started" and "object" not in created
    assert [(r["record"], r["type"], r["status"]) for r in created["records"]] == [
        ("SPF", "MX", "not_started"),
        ("SPF", "TXT", "not_started"),
        ("DKIM", "TXT", "not_started"),
        ("DKIM", "TXT", "not_started"),
    ]
    mail: Any = {"from": f"a@{NAME}", "to": "b@example.net", "subject": "x", "html": "x"}
    with pytest.raises(resend.exceptions.ResendError, match=rf"`{NAME}` domain is not verified.*not been checked"):
        resend.Emails.send(mail)
    with pytest.raises(resend.exceptions.ResendError, match="registered already"):
        resend.Domains.create({"name": NAME.upper()})

    names.serve(zones(created))
    assert resend.Domains.verify(created["id"])["id"] == created["id"]
    verified = until("verified", created["id"])
    assert {r["status"] for r in verified["records"]} == {"verified"}
    assert verified["advice"][0]["check"]["problem"] == "missing"
    assert [line["message"] for line in verified["history"]] == ["Verified.", "Verification requested.", "Domain added."]
    listed: Any = resend.Domains.list()
    assert [d["name"] for d in listed["data"]] == [NAME, daemon.facts["domain"]] and listed["has_more"] is False

    assert resend.Domains.update({"id": created["id"], "tls": "enforced"})["id"] == created["id"]
    resend.Domains.update({"id": created["id"], "open_tracking": True})
    changed: Any = resend.Domains.get(created["id"])
    assert (changed["tls"], changed["open_tracking"], changed["click_tracking"]) == ("enforced", True, False)

    sent = resend.Emails.send({**mail, "scheduled_at": "in 2 hours"})
    assert resend.Domains.remove(created["id"])["deleted"] is True
    email = daemon.call("GET", f"/emails/{sent['id']}").body
    assert email["last_event"] == "failed"
    assert email["recipients"][0]["last_reply"] == f"The sending domain {NAME} was deleted."
    with pytest.raises(resend.exceptions.ResendError, match="Domain not found"):
        resend.Domains.get(created["id"])


def test_the_command_says_what_the_api_says(daemon: Daemon, names: Names) -> None:
    names.serve(ZONES)
    created: Any = resend.Domains.create({"name": NAME})
    published = zones(created)
    published[f"send.{NAME}"]["MX"] = ["10 mail.example.org."]
    names.serve(published)
    assert "not_started" in daemon.command("domain", "list")
    status, printed = daemon.command_fails("domain", "check", NAME)
    assert status == 1
    resend.Domains.verify(created["id"])
    domain = until("pending", created["id"])
    for record in domain["records"]:
        assert record["check"]["problem"] in (None, "other")
        assert (record["check"]["message"] or "") in printed
    assert "It points to mail.example.org. Change it to out.example.net, or add the MX record" in printed
    published[f"send.{NAME}"]["MX"] = ["10 out.example.net."]
    names.serve(published)
    assert f"{NAME}: verified" in daemon.command("domain", "verify", NAME)
    rotated = daemon.command("domain", "rotate", NAME).splitlines()
    assert len(rotated) == 2 and all("_domainkey" in line and "DKIM1" in line for line in rotated)
    assert daemon.command_fails("domain", "rotate", NAME)[0] == 1
    assert "DKIM" not in daemon.command_fails("domain", "check", "nobody.example")[1].split("without DKIM")[1]
