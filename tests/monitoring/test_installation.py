"""The doctor's checks of an installation, step by step."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.monitoring import control_socket
from mailsvc.monitoring.installation import (
    Facts,
    Process,
    audit_log,
    audit_sent,
    encrypted,
    findings,
    migrations,
    outside,
    pages,
    sender,
    trusted,
    writes,
)
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.settings.privacy import Privacy
from mailsvc.settings.schema import ROLES, Control, Database, Secrets, Settings, Smtp
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres import upgrade_check
from mailsvc.store.postgres.pool import Pool

COMPLETE = Facts([Process("7 on out", "1.0", ROLES)], None, 1, 1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    key = tmp_path / "secret.key"
    key.touch(0o600)
    database, control = Database(restore_marker=tmp_path / "witness"), Control(socket=tmp_path / "control.sock")
    privacy = Privacy(journal=tmp_path / "erasures")
    return Settings(secrets=Secrets(key_file=key), database=database, control=control, privacy=privacy, base_url="https://api.example.com")


def wrong(settings: Settings, facts: Facts) -> list[tuple[str, str]]:
    found = findings(settings, facts, "1.0")
    assert all(each.remedy for each in found if each.state != "ok")
    return [(each.check, each.state) for each in found if each.state != "ok"]


def test_a_complete_installation_is_ok(settings: Settings) -> None:
    assert wrong(settings, COMPLETE) == []


def test_each_missing_step_is_reported(settings: Settings) -> None:
    settings.secrets.key_file.chmod(0o640)
    assert wrong(settings, COMPLETE) == [("encryption key", "error")]
    settings.secrets.key_file.chmod(0o600)
    bare = attrs.evolve(settings, control=Control(), database=Database(), privacy=Privacy())
    assert wrong(bare, COMPLETE) == [(each, "warning") for each in ("control socket", "restore marker", "erasure journal")]
    assert wrong(settings, attrs.evolve(COMPLETE, processes=[])) == [("processes", "error")]
    missing = control_socket.problem(Path("/nowhere/control.sock"))
    assert wrong(settings, attrs.evolve(COMPLETE, control=missing)) == [("control socket", "warning")]
    silent = attrs.evolve(COMPLETE, processes=[Process("7 on out", "1.0", ROLES, 31.4), Process("8 on out", "1.0", ROLES, 9.0)])
    assert wrong(settings, silent) == [("processes", "warning")]
    assert "2 registered. Silent: 7 on out, last seen 31 s ago." in [each.found for each in findings(settings, silent, "1.0")][4]
    old = attrs.evolve(COMPLETE, processes=[Process("7 on out", "0.9", ["http"])], held="Held.")
    assert wrong(settings, old) == [("roles", "warning"), ("releases", "warning"), ("hold", "warning")]
    assert wrong(settings, attrs.evolve(COMPLETE, accounts=0, sending=0)) == [("customers", "warning")]
    assert wrong(settings, attrs.evolve(COMPLETE, sending=0)) == [("customers", "warning")]


def test_a_control_socket_of_another_user_says_who_can_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(control_socket.socket.socket, "connect", connect)
    with pytest.raises(control_socket.ControlError, match="Run this command as the user of the daemon"):
        control_socket.send(Path("/run/mailsvc/control.sock"), {})


def test_wrong_encryption_keys_are_reported() -> None:
    assert encrypted(None).state == "ok"
    finding = encrypted("The setting secrets.key_file is /etc/secret.key: its key 1 does not open the DKIM keys in this database.")
    assert finding.state == "error" and "secrets.key_file" in finding.found and finding.remedy


@attrs.frozen
class OfDomain:
    """What the check of the setting `sender` reads of a domain."""

    missing: str | None
    account_id: UUID = UUID(int=1)


def test_the_sender_of_the_services_own_emails_is_checked() -> None:
    unset = sender(None, None)
    assert unset.state == "warning" and "invitations, password resets and warnings are not sent" in unset.found and unset.remedy
    unknown = sender("Example <no-reply@example.com>", None)
    assert unknown.state == "error" and "no account has the domain example.com" in unknown.found
    assert unknown.remedy.startswith("Run `mailsvc domain add example.com")
    unverified = sender("no-reply@example.com", OfDomain("Its DNS records have not been checked yet."))  # type: ignore[arg-type]
    assert unverified.state == "error" and unverified.found.endswith("Its DNS records have not been checked yet.")
    assert unverified.remedy == "Run `mailsvc domain check example.com`."
    assert sender("no-reply@example.com", OfDomain(None)).state == "ok"  # type: ignore[arg-type]


def test_missing_static_files_are_reported() -> None:
    assert [each.state for each in pages([])] == ["ok"]
    [finding] = pages(["htmx.min.js", "uPlot.min.css"])
    assert finding.state == "warning" and "Missing: htmx.min.js, uPlot.min.css." in finding.found and finding.remedy


@pytest_twisted.ensureDeferred
async def test_each_trusted_network_is_checked_with_its_key(settings: Settings) -> None:
    active, suspended = (Caller(UUID(int=1), UUID(int=n), "full_access", None, None, suspended=n == 3) for n in (2, 3))
    known = {each.key_id: each for each in (active, suspended)}

    async def find(key_id: UUID) -> Caller | None:
        return known.get(key_id)

    networks = {"127.0.0.1/32": 2, "100.64.0.0/10": 2, "8.8.8.0/24": 2, "10.0.0.0/8": 3, "fd00::/32": 4}
    smtp = Smtp(trusted_networks={network: str(UUID(int=n)) for network, n in networks.items()})
    found = await trusted(attrs.evolve(settings, smtp=smtp), find)
    assert [(each.check, each.state) for each in found] == [
        ("trusted network 127.0.0.1/32", "ok"),
        ("trusted network 100.64.0.0/10", "ok"),
        ("trusted network 8.8.8.0/24", "warning"),
        ("trusted network 10.0.0.0/8", "error"),
        ("trusted network fd00::/32", "error"),
    ]
    assert str(active.key_id) in found[0].found and all(each.remedy for each in found[2:])
    assert await trusted(settings, find) == []


@pytest_twisted.ensureDeferred
async def test_the_api_name_and_the_smtp_ports_are_checked(settings: Settings) -> None:
    connected: list[int] = []

    async def addresses(name: str) -> Records[str] | NxDomain | Temporary:
        if name == "slow.example":
            return Temporary("no answer")
        return Records(name, ("192.0.2.1",)) if name == "api.example.com" else NxDomain(name)

    async def greet(address: str, port: int) -> str | None:
        connected.append(port)
        return "cannot be reached" if port == 587 else None

    shared = attrs.evolve(settings, smtp=Smtp(listen={"25": "systemd:domain=INET:name=smtp-25", "587": "tcp:587", "2587": "tcp:9"}))
    assert [(each.check, each.state) for each in await outside(shared, addresses, greet)] == [
        ("base_url", "ok"),
        ("port 25", "ok"),
        ("port 587", "error"),
    ]
    assert connected == [25, 587]
    for name, state in (("nowhere.example", "error"), ("slow.example", "warning")):
        elsewhere = attrs.evolve(settings, base_url=f"https://{name}", smtp=Smtp(listen={}))
        assert [(each.check, each.state) for each in await outside(elsewhere, addresses, greet)] == [("base_url", state)]


@pytest.mark.parametrize(
    ("endpoints", "tested"),
    [
        ("tcp:25", True),
        ("tcp6:25", True),
        ("tcp6:port=25:backlog=100", True),
        ("systemd:domain=INET6:name=smtp-25", True),
        ("haproxy:tcp:9025 tcp6:25", True),
        ("tcp:2525", False),
        ("tcp:25:interface=192.0.2.1", False),
        ("haproxy:tcp:25", False),
    ],
)
@pytest_twisted.ensureDeferred
async def test_ports_that_listen_on_all_addresses_are_checked(settings: Settings, endpoints: str, tested: bool) -> None:
    async def addresses(name: str) -> NxDomain:
        return NxDomain(name)

    async def greet(address: str, port: int) -> str | None:
        return None

    listening = attrs.evolve(settings, base_url=None, smtp=Smtp(listen={"25": endpoints}))
    assert [each.check for each in await outside(listening, addresses, greet)] == (["port 25"] if tested else [])


@pytest_twisted.ensureDeferred
async def test_missing_migrations_are_reported_and_not_applied(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert migrations(await upgrade_check.plan(pool)) == []
    known = upgrade_check.migrations()
    monkeypatch.setattr(upgrade_check, "migrations", lambda: {**known, "9999_future": "-- Later."})
    [found] = migrations(await upgrade_check.plan(pool))
    assert (found.state, found.found) == ("error", "It lacks 1 migration of this release.") and "mailsvc upgrade" in found.remedy
    monkeypatch.setattr(upgrade_check, "migrations", lambda: {"9999_future": "-- Later."})
    monkeypatch.setattr(upgrade_check, "APPLIED", "SELECT '' WHERE false")
    assert migrations(await upgrade_check.plan(pool)) == [], "a new database gets its tables from whichever process is first"


def test_a_database_that_cannot_write_is_an_error() -> None:
    assert writes(None).state == "ok"
    full = writes("its disk is full")
    assert (full.state, full.found) == ("error", "It cannot write: its disk is full.") and full.remedy


def test_the_audit_log_is_protected_and_sent() -> None:
    assert audit_log([]).state == "ok"
    weak = audit_log(["it is a superuser"])
    assert weak.state == "warning" and "it is a superuser" in weak.found
    assert [audit_sent("syslog", count).state for count in (0, 1000, 1001)] == ["ok", "ok", "warning"]
