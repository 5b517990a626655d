"""A daemon with the five ports of the relay on loopback, and what speaks SMTP to them."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mailsvc.sandbox.welcome import ACCOUNT
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.sink import Sink

NUMBERS = ("25", "587", "2587", "465", "2465")
IMPLICIT = frozenset({"465", "2465"})


def daemon_with_relay(folder: Path, database: str, next_hop: int, **smtp: object) -> Daemon:
    """Mail to any domain goes to the port `next_hop`; `smtp` are further settings of that table."""
    listen = {number: f"tcp:{free_port()}:interface=127.0.0.1" for number in NUMBERS}
    changes: dict[str, Mapping[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{next_hop}"}},
        "smtp": {"listen": listen, "self_signed": str(folder / "tls"), "login_failures": 100, "tarpit": 0, **smtp},
    }
    return Daemon(folder, database, changes)


def keys_before_the_start(daemon: Daemon, *names: str) -> list[str]:
    """The ids of new API keys of the account that the daemon will have, for its settings."""
    daemon.write()
    daemon.command("account", "create", ACCOUNT, "--trusted")
    for name in names:
        daemon.command("key", "create", "--account", ACCOUNT, "--name", name)
    keys = [line.split(maxsplit=3) for line in daemon.command("key", "list", "--account", ACCOUNT).splitlines()]
    return [next(key_id for key_id, _, _, called in keys if called == name) for name in names]


def relaying(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink) -> Iterator[Daemon]:
    """A fixture: the relay in front of the module's sink."""
    daemon = daemon_with_relay(tmp_path_factory.mktemp("daemon"), module_database, sink.port)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


def context() -> ssl.SSLContext:
    """Trusts the daemon's self-signed certificate, whatever it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def connect(daemon: Daemon, number: str = "587", *, login: bool = True) -> smtplib.SMTP:
    """A session at a standard port, secured as that port wants it."""
    port = daemon.facts["smtp"][number]
    if number in IMPLICIT:
        client: smtplib.SMTP = smtplib.SMTP_SSL("127.0.0.1", port, context=context(), timeout=30)
    else:
        client = smtplib.SMTP("127.0.0.1", port, timeout=30)
        client.starttls(context=context())
    client.ehlo()
    if login:
        client.login(daemon.facts["smtp_username"], daemon.facts["api_key"])
    return client


def email_id(reply: bytes) -> str:
    """Out of `2.0.0 Ok: queued as <id>`."""
    return reply.decode().rpartition(" ")[2]
