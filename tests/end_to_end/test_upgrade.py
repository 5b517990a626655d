"""A database as an earlier release left it, with mail that waits in it, is upgraded, and the mail goes out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psycopg2
import pytest
from psycopg2.extras import register_uuid

from mailsvc import __version__
from mailsvc.mail.authentication import dkim
from mailsvc.store.encryption import key_file
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres import upgrade_check
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.partitions import days
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.sink import Sink

LAST = "0010_dashboard"  # of the earlier release


@pytest.fixture
def earlier(create_database: Callable[[str], str], tmp_path: Path, administer: Callable[..., None]) -> str:
    """A database with the tables of the earlier release."""
    dsn, files = create_database("earlier"), tmp_path / "migrations"
    files.mkdir()
    for path in (PROJECT / "mailsvc/store/migrations").glob("*.sql"):
        if path.stem <= LAST:
            shutil.copy(path, files)
    assert migrate(dsn, str(files))[-1] == LAST
    partitions = {name: both for day in days(datetime.now(UTC), days_ahead=1) for name, both in day.items()}
    # "hits" is a table of a later release.
    administer(dsn, *(sql for name, both in partitions.items() if not name.startswith("hits_") for sql in both))
    return dsn


def leave_mail(dsn: str, encryption: Encryption) -> UUID:
    """What the earlier release would have left: an email that waits, and one that a process was sending when it ended."""
    now = datetime.now(UTC)
    account, domain, email, key = (uuid7(now.timestamp()) for _ in range(4))
    message = b"From: a@shop.example\r\nTo: b@example.net\r\nSubject: waits\r\nMessage-ID: <1@shop.example>\r\n\r\nHello.\r\n"
    der, public = dkim.generate("ed25519")
    statements: list[tuple[str, tuple[object, ...]]] = [
        ("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Shop', %s)", (account, now)),
        (
            "INSERT INTO domains (id, account_id, name, region, trusted_at, created_at)"
            " VALUES (%s, %s, 'shop.example', 'us-east-1', %s, %s)",
            (domain, account, now, now),
        ),
        (
            "INSERT INTO dkim_keys (id, domain_id, selector, algorithm, public_key, sealed_key, created_at)"
            " VALUES (%s, %s, 's1', 'ed25519', %s, %s, %s)",
            (key, domain, public, encryption.encrypt(der, key), now),
        ),
        (
            "INSERT INTO emails (account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to,"
            " recipients, subject, size, bulk) VALUES (%s, %s, %s, 'api', %s, '<1@shop.example>', 'a@shop.example', %s, '{}', '{}',"
            " '{}', %s, 'waits', %s, false)",
            (account, email, now, domain, ["b@example.net", "c@example.net"], ["b@example.net", "c@example.net"], len(message)),
        ),
        ("INSERT INTO messages (account_id, email_id, piece, bytes) VALUES (%s, %s, 0, %s)", (account, email, message)),
        (
            "INSERT INTO processes (host, pid, region, roles, heartbeat_at) VALUES ('gone', 1, 'us-east-1', '{delivery}', %s) RETURNING id",
            (now - timedelta(minutes=5),),
        ),
    ]
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        register_uuid(conn_or_curs=connection)
        for statement, values in statements:
            cursor.execute(statement, values)
        [(process,)] = cursor.fetchall()
        for number, (address, lease) in enumerate((("b@example.net", None), ("c@example.net", process))):
            cursor.execute(
                "INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at,"
                " expires_at, lease) VALUES (%s, %s, %s, %s, 'us-east-1', %s, 'example.net', 'queued', false, %s, %s, %s)",
                (email, number, account, domain, address, now, now + timedelta(days=2), lease),
            )
    connection.close()
    return email


@pytest.mark.slow
def test_mail_that_an_earlier_release_left_goes_out(tmp_path: Path, earlier: str) -> None:
    sink = Sink(free_port())
    sink.start()
    key_file.make(tmp_path / "secret.key")
    leave_mail(earlier, Encryption.load(tmp_path / "secret.key"))
    daemon = Daemon(tmp_path, earlier, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.write()
    try:
        output = daemon.command("upgrade", "--check")
        assert "0017_operate: What an operator has to know" in output and "    alters processes (" in output
        assert "): blocks reads and writes for a moment" in output and "This takes less than a minute, estimated" in output
        assert "2 recipients are queued" in output
        assert LAST not in output
        _, output = daemon.command_fails("doctor", "--no-probe")
        assert "migrations of this release. Run `mailsvc upgrade --check`" in output
        before, _, after = daemon.command("upgrade").partition("The database has the schema of ")
        assert "0017_operate: " in before and after.rstrip().endswith(" seconds.")
        daemon.start()
        sink.wait_until(lambda received: sum(len(mail.recipients) for mail in received) == 2, 30)
        assert all(b"DKIM-Signature:" in mail.raw for mail in sink.received)
        output = daemon.command("upgrade", "--check")
        assert "0 migrations to apply" in output and f"runs {__version__} (" in output
    finally:
        if daemon.process is not None:
            daemon.stop()
        sink.stop()


def test_a_newer_database_is_used_as_long_as_it_was_only_added_to(tmp_path: Path, database: str, administer: Callable[..., None]) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.write()
    key_file.make(tmp_path / "secret.key")
    administer(
        database,
        "INSERT INTO _yoyo_migration (migration_hash, migration_id, applied_at_utc) VALUES ('x', '9999_future', now())",
    )
    assert "Its changes are compatible: this release can run." in daemon.command("upgrade", "--check")
    daemon.command("account", "create", "still works")
    administer(database, "UPDATE house SET needs = '9999_future'")
    status, output = daemon.command_fails("upgrade", "--check")
    assert status == 1 and "This release is too old for it: it lacks 9999_future." in output
    status, output = daemon.command_fails("account", "create", "x")
    assert status == 1 and "A newer release has changed it: this one lacks 9999_future" in output


def test_what_a_migration_locks_is_read_from_it() -> None:
    text = """-- Says it.
ALTER TABLE queue ADD COLUMN x text; -- ALTER TABLE not_this
CREATE INDEX CONCURRENTLY a ON slow (b); CREATE UNIQUE INDEX c ON events (d);
UPDATE queue SET x = ''; CREATE TABLE fresh (a text); ALTER TABLE queue ADD COLUMN y text;
"""
    assert upgrade_check.summary(text) == "Says it."
    assert upgrade_check.touched(text) == [("alters", "queue"), ("indexes", "events"), ("rewrites rows of", "queue")]
    text = "ALTER TABLE users ADD COLUMN a text; ALTER TABLE emails\n  DROP CONSTRAINT x, ADD CONSTRAINT x CHECK (y);"
    assert upgrade_check.touched(text) == [("alters", "users"), ("alters", "emails"), ("checks all rows of", "emails")]


def test_large_tables_are_shown_with_their_partitions_and_a_time(tmp_path: Path, earlier: str, administer: Callable[..., None]) -> None:
    key_file.make(tmp_path / "secret.key")
    daemon = Daemon(tmp_path, earlier)
    daemon.write()
    ids = [uuid7(datetime.now(UTC).timestamp()) for _ in range(3)]
    administer(
        earlier,
        "ALTER TABLE events ALTER COLUMN data SET STORAGE PLAIN",
        "INSERT INTO events (account_id, email_id, event_id, type, at, data)"
        f" SELECT '{ids[0]}', '{ids[1]}', uuid7_before('{ids[2]}', n), 'email.sent', now(), to_jsonb(repeat('x', 1000))"
        " FROM generate_series(1, 60000) AS n",
    )
    [(size, seconds)] = re.findall(
        r"    indexes events \(([0-9.]+) MB\): blocks writes for about (\d+) seconds\n", daemon.command("upgrade", "--check")
    )
    assert float(size) > 50 and int(seconds) >= 1


def test_former_names_of_settings_are_reported(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database, {"smtp": {"listen": {}, "stranger_seconds": 30}})
    daemon.write()
    key_file.make(tmp_path / "secret.key")
    daemon.variables = {"MAILSVC_DATABASE__WITNESS": str(tmp_path / "marker")}
    output = daemon.command("upgrade", "--check")
    assert "The setting smtp.stranger_seconds is now called smtp.unauthenticated_seconds." in output
    assert "The setting MAILSVC_DATABASE__WITNESS is now called MAILSVC_DATABASE__RESTORE_MARKER." in output
