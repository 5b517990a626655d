"""Two daemons of two regions on one Postgres: mail leaves only from its domain's region, and bounces come back to either."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.test_bounces import DSN
from tests.end_to_end.test_sources import SourceSink

EAST, WEST = "us-east-1", "eu-west-1"
ORIGINS = {EAST: ("127.0.0.2", "out.us.example"), WEST: ("127.0.0.3", "out.eu.example")}


@attrs.define
class RegionalDaemon(Daemon):
    """Has no name of its own: its region has one."""

    def write(self) -> None:
        super().write()
        self.config.write_text(self.config.read_text().replace('ehlo_name = "localhost"\n', "", 1))


@pytest.fixture
def sink() -> Iterator[SourceSink]:
    sink = SourceSink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def daemons(tmp_path: Path, database: str, sink: SourceSink) -> Iterator[dict[str, Daemon]]:
    """One file of settings for both, except for the name of the region and what only one machine can have."""
    regions = {f"regions.{name}": {"host": host, "sources": [f"{address} {host}"]} for name, (address, host) in ORIGINS.items()}
    found: dict[str, Daemon] = {}
    for name in ORIGINS:
        folder = tmp_path / name
        folder.mkdir()
        changes: dict[str, dict[str, object]] = {
            "": {"region": name},
            "smtp": {"listen": {"25": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(tmp_path / "tls")},
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}, "greylist_seconds": 0},
            "secrets": {"key_file": str(tmp_path / "secret.key")},
            **regions,
        }
        found[name] = RegionalDaemon(folder, database, changes)
        found[name].start()
    east = found[EAST]
    for name, domain in ((EAST, "east.example"), (WEST, "west.example")):
        added = east.call("POST", "/domains", {"name": domain, "region": name})
        assert added.status == 201 and added.body["region"] == name, added
        assert [each["value"] for each in added.body["records"] if each["type"] == "MX"] == [ORIGINS[name][1]]
        east.command("domain", "trust", domain, "--account", "1")
    yield found
    for each in found.values():
        if each.process is not None:
            each.stop()


def send(daemon: Daemon, domain: str, to: str) -> str:
    answer = daemon.call("POST", "/emails", {"from": f"shop@{domain}", "to": to, "subject": "Hi", "text": "Hi"})
    assert answer.status == 200, answer
    return str(answer.body["id"])


def origins(sink: SourceSink, count: int, seconds: float = 20) -> list[tuple[str, tuple[str, str | None]]]:
    """Sending domain and origin of all mail, once so much has come."""
    sink.wait_until(lambda received: len(received) >= count, seconds)
    return [(each.sender.rpartition("@")[2], origin) for each, origin in zip(sink.received, sink.origins, strict=True)]


def test_mail_leaves_from_the_region_of_its_domain_whoever_accepts_it(daemons: dict[str, Daemon], sink: SourceSink) -> None:
    expected = {(f"send.{domain}", ORIGINS[name]) for name, domain in ((EAST, "east.example"), (WEST, "west.example"))}
    emails: dict[str, tuple[str, str]] = {}
    for number in range(5):  # the route is known from the second mail on, so that a process could keep it for itself
        for name, daemon in daemons.items():
            for domain in ("east.example", "west.example"):
                to = f"{number}-{name}@{domain.replace('.example', '.test')}"
                emails[to] = (send(daemon, domain, to), name)
        assert set(origins(sink, 4 * number + 4, 5)) == expected
    for number, received in enumerate(sink.received):  # a bounce of either region comes back through either
        to = received.recipients[0]
        through = list(daemons.values())[number % 2]
        with smtplib.SMTP("127.0.0.1", through.facts["smtp"]["25"]) as client:
            client.sendmail("", [received.sender], DSN.format(recipient=to))
        email, accepted_by = emails[to]
        daemons[accepted_by].until(f"/emails/{email}", through.facts["api_key"], lambda body: body["last_event"] == "bounced")


def test_queued_mail_goes_the_new_way_when_its_domain_moves(daemons: dict[str, Daemon], sink: SourceSink, database: str) -> None:
    east, west = daemons[EAST], daemons[WEST]
    sink.refuse["later@example.net"] = "450 4.2.0 Not now"
    deferred = send(west, "west.example", "later@example.net")
    eventually(lambda: rows(database, "SELECT 1 FROM queue WHERE status = 'delayed' AND region = %s", WEST))
    west.stop()
    queued = send(east, "west.example", "soon@example.net")
    waiting = east.until_waiting(queued)
    assert waiting[0]["reason"] == "No process that delivers mail of the region eu-west-1 is running."
    moved = east.command("domain", "region", "west.example", EAST)
    assert "MX 10 out.us.example." in moved and "v=spf1 a:out.us.example ~all" in moved
    sink.refuse.clear()
    assert set(origins(sink, 2)) == {("send.west.example", ORIGINS[EAST])}
    for email in (deferred, queued):
        east.until(f"/emails/{email}", east.facts["api_key"], lambda body: body["last_event"] == "delivered")
    refused = east.call("PATCH", f"/domains/{domain_id(east, 'west.example')}", {"region": WEST})
    assert refused.status == 422 or domain_region(east, "west.example") == EAST


@pytest.mark.slow
def test_mail_that_a_process_holds_in_memory_follows_its_domain(daemons: dict[str, Daemon], sink: SourceSink) -> None:
    """While it waits for a destination that cannot be reached from the old region."""
    port = free_port()  # where nobody listens
    west = daemons[WEST]
    west.stop()
    west.changes["delivery"]["routes"] = {"*": f"smtp://127.0.0.1:{port}"}  # type: ignore[index]
    west.start()
    emails = [send(west, "west.example", f"{number}@example.net") for number in range(5)]
    for email in emails:
        west.until_waiting(email)
    daemons[EAST].command("domain", "region", "west.example", EAST)
    assert set(origins(sink, 5)) == {("send.west.example", ORIGINS[EAST])}


def domain_id(daemon: Daemon, name: str) -> str:
    return next(str(each["id"]) for each in daemon.call("GET", "/domains").body["data"] if each["name"] == name)


def domain_region(daemon: Daemon, name: str) -> str:
    return next(str(each["region"]) for each in daemon.call("GET", "/domains").body["data"] if each["name"] == name)
