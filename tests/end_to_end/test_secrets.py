"""The encryption key is rotated while two processes accept, sign and tell: none of them is restarted, nothing is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.rig import Daemon, free_port, rows
from tests.end_to_end.sink import Sink

ENCRYPTED = "SELECT get_byte(sealed_key, 0) FROM dkim_keys UNION ALL SELECT get_byte(secret, 0) FROM webhooks"


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def pair(tmp_path: Path, database: str, sink: Sink) -> Iterator[tuple[Daemon, Daemon]]:
    """Two processes on one database with one key file."""
    changes = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}},
        "secrets": {"key_file": str(tmp_path / "secret.key")},
    }
    folders = [tmp_path / "one", tmp_path / "two"]
    daemons = []
    for folder in folders:
        folder.mkdir()
        daemons.append(Daemon(folder, database, changes))
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons[0], daemons[1]
    finally:
        for daemon in daemons:
            if daemon.process is not None:
                daemon.stop()


def send(daemon: Daemon, text: str) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "b@example.net", "subject": text, "text": text}
    answer = daemon.call("POST", "/emails", mail)
    assert answer.status == 200, answer


def test_a_rotation_needs_no_restart(pair: tuple[Daemon, Daemon], sink: Sink, tmp_path: Path, database: str) -> None:
    one, two = pair
    created = one.call("POST", "/webhooks", {"endpoint": "https://example.com/hook", "events": ["email.bounced"]})
    assert created.status == 201
    send(one, "before")
    sink.wait_until(lambda received: len(received) == 1, 20)
    assert {number for (number,) in rows(database, ENCRYPTED)} == {1}

    assert one.command("secrets", "rotate").startswith("Key 2 encrypts; 3 secrets")
    assert {number for (number,) in rows(database, ENCRYPTED)} == {2}
    assert [line.split()[0] for line in (tmp_path / "secret.key").read_text().splitlines()] == ["1", "2"]
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    assert two.command("secrets", "list").splitlines() == ["2  encrypts, 3 secrets", "1  decrypts, 0 secrets"]

    for daemon in pair:  # both sign with a key that is opened, and make new ones
        send(daemon, "after")
        domain = daemon.call("POST", "/domains", {"name": f"{daemon.folder.name}.example"})
        assert domain.status == 201
    assert {number for (number,) in rows(database, ENCRYPTED)} == {2}
    sink.wait_until(lambda received: len(received) == 3, 20)
    assert all(count == 1 for count in sink.counts().values())


@pytest.mark.slow
def test_rotation_waits_for_a_process_that_lacks_the_key(pair: tuple[Daemon, Daemon], tmp_path: Path, database: str) -> None:
    one, two = pair
    lone = tmp_path / "copy.key"
    lone.write_bytes((tmp_path / "secret.key").read_bytes())
    two.stop()
    two.changes = {**two.changes, "secrets": {"key_file": str(lone)}}
    two.start()
    status, output = one.command_fails("secrets", "rotate", "--wait", "0")
    assert status == 1 and f"{two.process.pid} on " in output and "Copy the file to their machines" in output  # type: ignore[union-attr]
    assert [line.split()[0] for line in (tmp_path / "secret.key").read_text().splitlines()] == ["2", "1"]
    assert {number for (number,) in rows(database, ENCRYPTED)} == {1}
    send(one, "goes on")

    lone.write_bytes((tmp_path / "secret.key").read_bytes())  # by the operator, to the other machine
    status, output = one.command_fails("secrets", "rotate", "--wait", "4")
    assert f"{two.process.pid} on " in output  # type: ignore[union-attr]  # it opens with the new one, its file says that the old one encrypts
    lone.write_bytes((tmp_path / "secret.key").read_bytes())
    assert one.command("secrets", "rotate").startswith("Key 2 encrypts; ")
    assert {number for (number,) in rows(database, ENCRYPTED)} == {2}


def test_a_production_process_creates_no_key(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.write()
    settings = daemon.config.read_text().replace("dev_file", "# dev_file")
    daemon.config.write_text(settings)
    status, output = daemon.command_fails("account", "create", "x")
    assert status == 1 and "mailsvc secrets create" in output
    assert not (tmp_path / "secret.key").exists()
    assert daemon.command("secrets", "create").startswith("Created ")
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "secret.key").read_bytes()
    assert "To add a key, run `mailsvc secrets rotate`." in daemon.command_fails("secrets", "create")[1]
    assert (tmp_path / "secret.key").read_bytes() == before
    daemon.command("account", "create", "x")


@pytest.mark.slow
def test_a_wrong_key_file_is_refused_at_the_start_and_by_commands(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.start()
    daemon.stop()
    key = tmp_path / "secret.key"
    right = key.read_bytes()
    key.write_text(f"1 {base64.b64encode(bytes(32)).decode()}\n")
    with pytest.raises(AssertionError, match="the daemon ended"):
        daemon.start()
    sentence = f"mailsvc cannot start. The setting secrets.key_file is {key}: its key 1 does not decrypt the DKIM keys in this database."
    assert sentence in daemon.log
    assert daemon.process is not None and daemon.process.wait(10) == 1
    status, output = daemon.command_fails("account", "create", "x")
    assert status == 1 and "secrets.key_file" in output
    _, output = daemon.command_fails("doctor", "--probe", "name.invalid")
    assert "error   encrypted secrets: The setting secrets.key_file" in output
    key.write_bytes(right)
    daemon.start()
    assert "ok      encrypted secrets: " in daemon.command_fails("doctor", "--probe", "name.invalid")[1]
    daemon.stop()


@pytest.mark.slow
def test_a_key_file_that_becomes_wrong_while_it_runs_is_not_used(tmp_path: Path, database: str, sink: Sink) -> None:
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.start()
    key = tmp_path / "secret.key"
    right = key.read_bytes()
    key.write_text(f"1 {base64.b64encode(bytes(32)).decode()}\n")
    checks = daemon.until("/readyz", "", lambda ready: ready["checks"]["keys"] != "ok")["checks"]
    assert checks["keys"].startswith("the key file now contains keys that do not fit this database")
    send(daemon, "signed with what was there before")
    sink.wait_until(lambda received: len(received) == 1, 20)
    assert b"DKIM-Signature" in sink.received[0].raw
    assert daemon.call("POST", "/domains", {"name": "new.example"}).status == 201
    key.write_bytes(right)
    daemon.until("/readyz", "", lambda ready: ready["checks"]["keys"] == "ok")
    daemon.stop()
    daemon.start()  # what was made meanwhile opens with the right key
    daemon.stop()
