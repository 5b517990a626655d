"""`mailsvc domain verify`: its exit status, and waiting for DNS, against a real DNS server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted

from mailsvc.cli import domain as command
from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess
from tests.dnsserver import DnsServer

NAME = "shop.example"
EMPTY: dict[str, dict[str, list[str]]] = {NAME: {"NS": [f"ns.{NAME}."]}, f"ns.{NAME}": {"A": ["127.0.0.1"]}}


@pytest_twisted.async_yield_fixture
async def dns() -> AsyncIterator[DnsServer]:
    from twisted.internet import reactor

    server = DnsServer(EMPTY)
    await server.start(reactor)
    yield server
    await server.stop()


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dns: DnsServer) -> InProcess:
    found = InProcess.of(pool, tmp_path, monkeypatch)
    delivery = f'[delivery]\nnameservers = ["{dns.address}"]\nallowed_networks = ["127.0.0.0/8"]\n'
    text = found.config.read_text().replace("[delivery]\n", delivery).replace("[domains]\n", f"[domains]\nnameserver_port = {dns.port}\n")
    found.config.write_text(text)
    return found


def published(shown: Any) -> dict[str, dict[str, list[str]]]:
    """The zones once the customer has published the records."""
    zones = {name: dict(kinds) for name, kinds in EMPTY.items()}
    for record in shown["records"]:
        text = record["value"] if record["value"].startswith('"') else f'"{record["value"]}"'
        value = f"{record['priority']} {record['value']}." if record["type"] == "MX" else text
        zones.setdefault(f"{record['name']}.{NAME}", {})[record["type"]] = [value]
    return zones


@pytest_twisted.ensureDeferred
async def test_it_waits_until_the_records_are_published(mailsvc: InProcess, dns: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await mailsvc.prints("account", "create", "One")
    await mailsvc.prints("domain", "add", NAME, "--account", "One")
    shown = (await mailsvc.prints("domain", "show", NAME, "--json")).json
    waits: list[float] = []

    async def pause(reactor: Any, seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 5, "the records are published, and still it waits"
        if len(waits) == 2:
            dns.zones = dict(published(shown))

    monkeypatch.setattr(command, "deferLater", pause)
    for words in ((), ("--wait", "0s")):
        done = await mailsvc("domain", "verify", NAME, *words)
        assert (done.status, done.lines[0]) == (1, f"{NAME}: pending"), done
    assert waits == []
    done = await mailsvc.prints("domain", "verify", NAME, "--wait", "10m", "--json")
    assert (done.json["status"], len(waits)) == ("verified", 2)
    assert all(0 < seconds <= command.CHECK_AGAIN for seconds in waits)
    assert (await mailsvc.prints("domain", "verify", NAME)).lines[0] == f"{NAME}: verified"
    assert "expected a duration" in await mailsvc.refuses("domain", "verify", NAME, "--wait", "soon", status=2)


@pytest_twisted.ensureDeferred
async def test_what_commands_print_can_be_read_by_programs(mailsvc: InProcess, dns: DnsServer) -> None:
    account = (await mailsvc.prints("account", "create", "One", "--json")).json
    assert account == {"id": account["id"], "number": 1, "name": "One", "trusted": True}
    added = (await mailsvc.prints("domain", "add", NAME, "--account", account["id"], "--json")).json
    assert (added["name"], added["status"], added["account_id"]) == (NAME, "not_started", account["id"])
    missing = await mailsvc("domain", "check", NAME, "--json")
    assert missing.status == 1 and {each["status"] for each in missing.json["records"]} == {"pending"}, missing
    dns.zones = dict(published(added))
    checked = (await mailsvc.prints("domain", "check", NAME, "--json")).json
    assert (checked["name"], checked["account_id"]) == (NAME, account["id"])
    assert [(each["purpose"], each["status"]) for each in checked["records"]] == [(each["record"], "verified") for each in added["records"]]
    unknown = await mailsvc("domain", "check", "other.example", "--json")
    assert (unknown.status, unknown.json["account_id"]) == (1, None) and "No account has the domain other.example" in unknown.messages
    signs = (await mailsvc.prints("domain", "signs", NAME, "rsa", "--json")).json
    assert signs == {"id": added["id"], "name": NAME, "signs_with": ["rsa"]}
    rotated = (await mailsvc.prints("domain", "rotate", NAME, "--json")).json
    assert rotated["delegated"] is False and [key["algorithm"] for key in rotated["new_keys"]] == ["rsa"]
    await mailsvc.prints("member", "add", "ann@example.com", "--account", "One")
    reset = (await mailsvc.prints("member", "reset", "ann@example.com", "--json")).json
    assert reset == {"email": "ann@example.com", "link": reset["link"]} and "/dashboard/sign-in/link?link=" in reset["link"]
