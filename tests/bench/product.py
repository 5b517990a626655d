"""mailsvc under load, with a separate Postgres: one process, one that accepts and one that delivers, or two equal ones on shared ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import attrs
import psycopg2

from mailsvc.sandbox.welcome import ACCOUNT
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.end_to_end import shared_sockets
from tests.end_to_end.relay_rig import keys_before_the_start
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.shared_sockets import Shared

DESTINATIONS = 1000  # domains d0.test, d1.test, …, each with an address of its own
# What a Postgres has behind it that has run for a while: its memory was used once, its log has files to write over.
AGE = (
    "CREATE TABLE aged (data bytea)",
    "ALTER TABLE aged ALTER data SET STORAGE EXTERNAL",
    "INSERT INTO aged SELECT convert_to(repeat('x', 1000000), 'UTF8') FROM generate_series(1, 550)",
    "DROP TABLE aged",
    "CHECKPOINT",
)
SPLIT: Sequence[Sequence[str]] = (("http", "smtp", "ledger", "domains"), ("delivery",))
EQUAL: Sequence[Sequence[str]] = ((), ())


@attrs.define
class Product:
    """`roles`: those of each process; all that accept mail share the ports. Signs with RSA only, like the peer, unless `dual`. `encrypted`:
    messages are stored encrypted. `bound`: each process is bound to a core of its own. `make`: the class of its processes."""

    folder: Path
    sink: int
    roles: Sequence[Sequence[str]] = ((),)
    dual: bool = False
    encrypted: bool = False
    bound: bool = False
    make: type[Shared] = Shared
    sockets: Sequence[socket.socket] = attrs.field(factory=lambda: [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in "ab"])
    daemons: list[Daemon] = attrs.field(factory=list)
    key: str = ""  # the ID of the API key for clients without a login
    postgres: EmbeddedPostgres = attrs.field(init=False)

    @property
    def pids(self) -> tuple[int, ...]:
        assert self.postgres.pid is not None
        return (*(daemon.process.pid for daemon in self.daemons if daemon.process is not None), self.postgres.pid)

    @property
    def relay(self) -> int:
        """The SMTP port."""
        return int(self.sockets[1].getsockname()[1])

    @property
    def first(self) -> Daemon:
        return self.daemons[0]

    @property
    def login(self) -> Sequence[str]:
        """The load's options for STARTTLS and AUTH. Without them, loopback is a trusted network."""
        return ("-u", "mailsvc", "-w", str(self.first.facts["api_key"]), "-S")

    @property
    def sender(self) -> str:
        return f"bench@{self.first.facts['domain']}"

    def start(self) -> None:
        self.folder.chmod(0o755)
        self.postgres = EmbeddedPostgres.at(self.folder / "postgres")
        self.postgres.start_blocking()
        self._age()
        for roles in self.roles:
            self.add(roles)
        if not self.dual:
            with psycopg2.connect(self.postgres.dsn()) as link, link.cursor() as cursor:
                cursor.execute("UPDATE domains SET signs_with = '{rsa}'")
            link.close()

    def _age(self) -> None:
        link = psycopg2.connect(self.postgres.dsn())
        link.autocommit = True
        with link.cursor() as cursor:
            for statement in AGE:
                cursor.execute(statement)
        link.close()

    def add(self, roles: Sequence[str]) -> None:
        """Adds a process."""
        number = len(self.daemons)
        folder = self.folder / str(number)
        folder.mkdir()
        accepts = not roles or "smtp" in roles
        changes: dict[str, dict[str, object]] = {
            "delivery": {"routes": self._routes()},
            "http": {"listen": [shared_sockets.API]} if accepts else {},
            "smtp": {
                "listen": {"587": shared_sockets.RELAY} if accepts else {},
                "self_signed": str(self.folder / "tls"),
                "connections_per_key": 1000,
            },
            "secrets": {"key_file": str(self.folder / "secret.key"), "body_keys": str(self.folder / "body-keys")},
        }
        if roles:
            changes[""] = {"roles": list(roles)}
        port, handed = self.sockets[0].getsockname()[1], tuple(each.fileno() for each in self.sockets)
        cores = sorted(os.sched_getaffinity(0))
        core = cores[number % len(cores)] if self.bound else None
        daemon = self.make(folder, self.postgres.dsn(), changes, port=port if accepts else free_port(), sockets=handed, core=core)
        if not number:
            [self.key] = keys_before_the_start(daemon, "of this machine")
        if accepts:
            changes["smtp"]["trusted_networks"] = {"127.0.0.1/32": self.key}
        if not number and self.encrypted:
            daemon.command("account", "encrypt", ACCOUNT)
        daemon.start()
        self.daemons.append(daemon)

    def _routes(self) -> dict[str, str]:
        apart = {f"d{n}.test": f"smtp://127.1.{n // 250}.{n % 250 + 1}:{self.sink}" for n in range(DESTINATIONS)}
        return apart | {"*": f"smtp://127.0.0.1:{self.sink}"}

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            if daemon.process is not None:
                daemon.stop()
        self.daemons.clear()
        for each in self.sockets:
            each.close()
        self.postgres.stop_blocking()
