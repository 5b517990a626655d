"""What the doctor says of an installation, step by step."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.monitoring.installation import Facts, Process, encrypted, findings, outside, pages, trusted
from mailsvc.net.dns import NxDomain, Records
from mailsvc.settings.schema import ROLES, Control, Database, Secrets, Settings, Smtp
from mailsvc.store.people.api_keys import Caller

WELL = Facts([Process("7 on out", "1.0", ROLES)], None, 1, 1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    key = tmp_path / "secret.key"
    key.touch(0o600)
    database, control = Database(restore_marker=tmp_path / "witness"), Control(socket=tmp_path / "control.sock")
    return Settings(secrets=Secrets(key_file=key), database=database, control=control, base_url="https://api.example.com")


def wrong(settings: Settings, facts: Facts) -> list[tuple[str, str]]:
    found = findings(settings, facts, "1.0")
    assert all(each.remedy for each in found if each.state != "good")
    return [(each.check, each.state) for each in found if each.state != "good"]


def test_a_whole_installation_is_well(settings: Settings) -> None:
    assert wrong(settings, WELL) == []


def test_each_step_that_is_missing_is_told(settings: Settings) -> None:
    settings.secrets.key_file.chmod(0o640)
    assert wrong(settings, WELL) == [("encryption key", "bad")]
    settings.secrets.key_file.chmod(0o600)
    bare = attrs.evolve(settings, control=Control(), database=Database())
    assert wrong(bare, WELL) == [("control socket", "doubtful"), ("witness", "doubtful")]
    assert wrong(settings, attrs.evolve(WELL, processes=[])) == [("processes", "bad")]
    old = attrs.evolve(WELL, processes=[Process("7 on out", "0.9", ["http"])], held="Held.")
    assert wrong(settings, old) == [("roles", "doubtful"), ("releases", "doubtful"), ("hold", "doubtful")]
    assert wrong(settings, attrs.evolve(WELL, accounts=0, sending=0)) == [("customers", "doubtful")]
    assert wrong(settings, attrs.evolve(WELL, sending=0)) == [("customers", "doubtful")]


def test_encryption_keys_that_do_not_fit_the_database_are_told() -> None:
    assert encrypted(None).state == "good"
    told = encrypted("The setting secrets.key_file is /etc/secret.key: its key 1 does not open the DKIM keys in this database.")
    assert told.state == "bad" and "secrets.key_file" in told.found and told.remedy


def test_files_of_pages_that_did_not_come_along_are_told() -> None:
    assert [each.state for each in pages([])] == ["good"]
    [told] = pages(["htmx.min.js", "uPlot.min.css"])
    assert told.state == "doubtful" and "no htmx.min.js and no uPlot.min.css" in told.found and told.remedy


@pytest_twisted.ensureDeferred
async def test_each_trusted_network_is_told_with_its_key(settings: Settings) -> None:
    good, suspended = (Caller(UUID(int=1), UUID(int=n), "full_access", None, None, suspended=n == 3) for n in (2, 3))
    known = {each.key_id: each for each in (good, suspended)}

    async def find(key_id: UUID) -> Caller | None:
        return known.get(key_id)

    networks = {"127.0.0.1/32": 2, "100.64.0.0/10": 2, "8.8.8.0/24": 2, "10.0.0.0/8": 3, "fd00::/32": 4}
    smtp = Smtp(trusted_networks={network: str(UUID(int=n)) for network, n in networks.items()})
    found = await trusted(attrs.evolve(settings, smtp=smtp), find)
    assert [(each.check, each.state) for each in found] == [
        ("trusted network 127.0.0.1/32", "good"),
        ("trusted network 100.64.0.0/10", "good"),
        ("trusted network 8.8.8.0/24", "doubtful"),
        ("trusted network 10.0.0.0/8", "bad"),
        ("trusted network fd00::/32", "bad"),
    ]
    assert str(good.key_id) in found[0].found and all(each.remedy for each in found[2:])
    assert await trusted(settings, find) == []


@pytest_twisted.ensureDeferred
async def test_names_and_ports_are_asked_for(settings: Settings) -> None:
    knocked: list[int] = []

    async def there(name: str) -> Records[str] | NxDomain:
        return Records(name, ("192.0.2.1",)) if name == "api.example.com" else NxDomain(name)

    async def knock(address: str, port: int) -> str | None:
        knocked.append(port)
        return "cannot be connected to" if port == 587 else None

    shared = attrs.evolve(settings, smtp=Smtp(listen={"25": "systemd:domain=INET:name=smtp-25", "587": "tcp:587", "2587": "tcp:9"}))
    assert [(each.check, each.state) for each in await outside(shared, there, knock)] == [
        ("base_url", "good"),
        ("port 25", "good"),
        ("port 587", "bad"),
    ]
    assert knocked == [25, 587]
    nowhere = attrs.evolve(settings, base_url="https://nowhere.example", smtp=Smtp(listen={}))
    assert [(each.check, each.state) for each in await outside(nowhere, there, knock)] == [("base_url", "bad")]
