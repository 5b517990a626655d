"""mailsvc under load: one process, or one that accepts and one that delivers, with a separate Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import psycopg2

from mailsvc.sandbox.welcome import ACCOUNT
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.end_to_end.relay_rig import keys_before_the_start
from tests.end_to_end.rig import Daemon, free_port

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


@attrs.define
class Product:
    """`roles`: those of each process. Signs with RSA only, like the peer, unless `dual`. `encrypted`: messages are stored encrypted."""

    folder: Path
    sink: int
    roles: Sequence[Sequence[str]] = ((),)
    dual: bool = False
    encrypted: bool = False
    make: type[Daemon] = Daemon
    relay: int = attrs.field(factory=free_port)
    daemons: list[Daemon] = attrs.field(factory=list)
    postgres: EmbeddedPostgres = attrs.field(init=False)

    @property
    def pids(self) -> tuple[int, ...]:
        assert self.postgres.pid is not None
        return (*(daemon.process.pid for daemon in self.daemons if daemon.process is not None), self.postgres.pid)

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
        """Adds a process. The first one accepts mail."""
        number = len(self.daemons)
        folder = self.folder / str(number)
        folder.mkdir()
        listen = {"587": f"tcp:{self.relay}:interface=127.0.0.1"} if not number else {}
        changes: dict[str, dict[str, object]] = {
            "delivery": {"routes": self._routes()},
            "smtp": {"listen": listen, "self_signed": str(self.folder / "tls"), "connections_per_key": 1000},
            "secrets": {"key_file": str(self.folder / "secret.key"), "body_keys": str(self.folder / "body-keys")},
        }
        if roles:
            changes[""] = {"roles": list(roles)}
        daemon = self.make(folder, self.postgres.dsn(), changes)
        if not number:
            [key] = keys_before_the_start(daemon, "of this machine")
            changes["smtp"]["trusted_networks"] = {"127.0.0.1/32": key}
            if self.encrypted:
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
        self.postgres.stop_blocking()
