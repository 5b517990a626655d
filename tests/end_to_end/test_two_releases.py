"""A rolling upgrade under load, from one release to the next and back: both run side by side, and no mail is lost or sent twice.

`make try-upgrade EARLIER=COMMIT` tries it from any commit.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.end_to_end import releases
from tests.end_to_end.receiver import Receiver
from tests.end_to_end.releases import Release
from tests.end_to_end.rig import check_invariants, rows
from tests.end_to_end.sink import Sink
from tests.end_to_end.test_rolling import API, RELAY, Load, Shared, listeners, wait  # noqa: F401
from tests.end_to_end.webhooks.test_webhooks import FETCH, subscribe

EACH = 40  # emails that are accepted, at least, between one step and the next


class Rolling:
    """Processes of two releases on the same sockets and database, under load."""

    def __init__(self, folder: Path, database: str, ports: list[socket.socket], sink: Sink) -> None:
        self.folder, self.database, self.ports = folder, database, ports
        self.api, self.relay = (port.getsockname()[1] for port in ports)
        self.changes = {
            **FETCH,
            "http": {"listen": ["systemd:domain=INET:name=api"], "rate_limit": 100_000},
            "smtp": {"listen": {"587": "systemd:domain=INET:name=relay"}, "self_signed": str(folder / "tls"), "connections_per_key": 1000},
            "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}, "drain_seconds": 10},
            "secrets": {"key_file": str(folder / "secret.key")},
        }
        self.running: list[Shared] = []
        self.load: Load | None = None

    def daemon(self, release: Release) -> Shared:
        folder = self.folder / f"process-{len(list(self.folder.glob('process-*')))}"
        folder.mkdir()
        numbers = tuple(port.fileno() for port in self.ports)
        return Shared(
            folder, self.database, self.changes, port=self.api, sockets=numbers, python=release.python, source=None, home=folder,
            compress=False,
        )  # fmt: skip

    def start(self, release: Release) -> Shared:
        self.running.append(self.daemon(release))
        self.running[-1].start()
        return self.running[-1]

    def stop(self, daemon: Shared) -> None:
        self.running.remove(daemon)
        assert daemon._end(signal.SIGTERM) == 0, daemon.log[-2000:]

    def accept_more(self) -> None:
        load = self.load
        assert load is not None
        before = len(load.sent)
        wait(lambda: len(load.sent) >= before + EACH or load.failed)

    def replace(self, release: Release) -> None:
        """One process after the other: the next one starts beside those that run, then the first of them stops."""
        for daemon in [*self.running]:
            self.start(release)
            self.accept_more()
            self.stop(daemon)
            self.accept_more()

    def end(self) -> None:
        if self.load is not None:
            self.load.stop()
        for daemon in [*self.running]:
            self.stop(daemon)


def last_migration(database: str) -> str:
    [(name,)] = rows(database, "SELECT max(migration_id) FROM _yoyo_migration")
    return str(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rolling_upgrade_and_back_loses_nothing(
    tmp_path: Path, second_database: str, listeners: list[socket.socket], sink: Sink  # noqa: F811
) -> None:  # fmt: skip
    commit = releases.earlier()
    if commit is None:
        pytest.skip("needs the history of the repository, to build the earlier release: git fetch --unshallow")
    old, new = releases.build(tmp_path, commit)
    rolling = Rolling(tmp_path, second_database, listeners, sink)
    with Receiver() as receiver:
        try:
            said = upgrade_and_back(rolling, old, new, receiver)
            load = rolling.load
            assert load is not None and load.failed == []
            sink.wait_until(lambda received: len(received) >= len(load.sent), 60)
            receiver.wait(lambda found: len({each.json["data"]["email_id"] for each in found}) >= len(load.sent), seconds=60)
        finally:
            rolling.end()
    subjects = sorted(str(mail.message["Subject"]) for mail in sink.received)
    assert subjects == sorted(load.sent)  # nothing is lost, nothing came twice
    check_invariants(second_database)
    print(f"{old.migration} → {new.migration} → {old.migration}: {len(load.sent)} emails.\n{said}")


def upgrade_and_back(rolling: Rolling, old: Release, new: Release, receiver: Receiver) -> str:
    """Under load from the first process to the last. Returns what `mailsvc upgrade` printed."""
    first = rolling.start(old)
    rolling.start(old)
    assert last_migration(rolling.database) == old.migration
    subscribe(first, f"{receiver.url}/", "email.delivered")
    rolling.load = Load(first.facts["api_key"], first.facts["domain"], {API: rolling.api, RELAY: rolling.relay})
    rolling.load.start()
    rolling.accept_more()

    installed = rolling.daemon(new)
    installed.write()
    said = installed.command("upgrade")
    assert f"{new.migration}: " in said or old.migration == new.migration
    assert "This takes less than a minute" in said and "The database has the schema of" in said
    rolling.accept_more()  # by the earlier release, in the new schema
    rolling.replace(new)

    before = rolling.daemon(old)
    before.write()
    check = before.command("upgrade", "--check")
    assert "newer release" in check and "too old" not in check  # 0.1.0 has other words than today
    rolling.replace(old)
    rolling.load.stop()
    return said
