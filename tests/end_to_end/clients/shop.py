"""A daemon that finds the sink as any other server, and an account with a domain, made by hand as an operator makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Sink

Zones = dict[str, dict[str, list[str]]]


def running(folder: Path, database: str, sink: Sink, names: Names, **settings: Mapping[str, object]) -> Iterator[Daemon]:
    """It looks up MX records, whose hosts are all the sink."""
    delivery = {"nameservers": [names.address], "port": sink.port}
    daemon = Daemon(folder, database, {"delivery": delivery, **settings})
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


def key_of(daemon: Daemon, names: Names, domain: str, *, trusted: bool = False) -> str:
    """The API key of a new account with this domain, whose records are published."""
    account = daemon.command("account", "create", "Shop").strip()
    records = daemon.command("domain", "add", domain, "--account", account)
    daemon.command("domain", "trust", domain, "--account", account)
    zones: Zones = {"example.net": {"MX": ["10 mx.example.net."]}, "mx.example.net": {"A": ["127.0.0.1"]}}
    for line in records.splitlines():
        name, kind, value = line.split(" ", 2)
        zones.setdefault(name.rstrip("."), {}).setdefault(kind, []).append(value)
    names.serve(zones)
    if trusted:
        daemon.command("account", "trust", account)
    return daemon.command("key", "create", "--account", account).strip()
