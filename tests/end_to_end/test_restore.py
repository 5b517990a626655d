"""After a restore, nothing that was sent before is sent again unless the operator releases it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mailsvc.store.postgres.binaries import find_binaries
from tests.end_to_end.rig import Daemon, rows
from tests.end_to_end.sink import Sink

WAITING = "SELECT count(*) FROM queue"


def program(name: str, database: str) -> str:
    """The one that fits the server."""
    [(version,)] = rows(database, "SELECT current_setting('server_version_num')::integer / 10000")
    debian = Path(f"/usr/lib/postgresql/{version}/bin/{name}")
    return str(debian) if debian.exists() else find_binaries(int(str(version))).program(name)


def run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def send(daemon: Daemon, text: str) -> str:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "b@example.net", "subject": text, "text": text}
    answer = daemon.call("POST", "/emails", mail)
    assert answer.status == 200, answer
    return str(answer.body["id"])


@pytest.mark.slow
def test_a_restored_dump_sends_nothing_until_it_is_released(tmp_path: Path, database: str, second_database: str, sink: Sink) -> None:
    routes = {"*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": routes}})
    daemon.write()
    assert daemon.command("queue", "hold", "--reason", "Held for the backup.") == "All mail is held.\n"
    daemon.start()
    first = send(daemon, "waits when the backup is made")
    [waiting] = daemon.until_waiting(first)
    assert waiting["reason"] == "Held for the backup."
    dump = tmp_path / "mailsvc.dump"
    run(program("pg_dump", database), "--format=custom", f"--file={dump}", database)
    assert daemon.command("queue", "release") == "Mail is being sent again.\n"
    sink.wait_until(lambda received: len(received) == 1, 20)
    send(daemon, "after the backup")
    sink.wait_until(lambda received: len(received) == 2, 20)
    assert daemon.stop() == 0

    run(program("pg_restore", database), "--exit-on-error", f"--dbname={second_database}", "--no-owner", str(dump))
    assert rows(second_database, WAITING) == [(1,)]
    rows(second_database, "DELETE FROM destinations RETURNING 1")  # what was held for the backup is no matter here
    daemon.database = second_database
    daemon.start()
    try:
        second = send(daemon, "accepted after the restore")
        for email in (first, second):
            [waiting] = daemon.until_waiting(email)
            assert waiting["reason"].startswith("On hold because the database was restored") and waiting["status"] == "queued"
        # Orders are carried out at once: what could leave has been looked for by the time that the next one is answered.
        daemon.stop()
        daemon.start()  # it stays held
        daemon.control(do="retry", kind="email", name=first)
        daemon.control(do="queue")
        assert rows(second_database, WAITING) == [(2,)] and len(sink.received) == 2
        assert daemon.command("queue", "release") == "Mail is being sent again.\n"
        sink.wait_until(lambda received: len(received) == 4, 20)
        assert daemon.command("queue", "release") == "No mail was held.\n"
    finally:
        daemon.stop()
