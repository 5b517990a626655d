"""`mailsvc account access` and what needs it: `email show`, `account export`, `privacy export --account`."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from click.testing import CliRunner

from mailsvc.cli import access
from mailsvc.cli.access import operator
from mailsvc.cli.main import main
from tests.cli.in_process import InProcess
from tests.cli.test_cli import Command
from tests.cli.test_privacy import fill_encrypted, mailsvc
from tests.store.fixtures import ACCOUNT
from tests.store.privacy.filling import CANARY, MESSAGE

__all__ = ["mailsvc"]


def rows(database: str, sql: str) -> list[Any]:
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        found = cursor.fetchall() if cursor.description else []
    connection.close()
    return found


def actions(database: str) -> list[Any]:
    sql = f"SELECT action, subject FROM audit_entries WHERE account_id = '{ACCOUNT}' AND kind = 'operator' ORDER BY id"
    return rows(database, sql)


def filled(database: str) -> str:
    """The ID of an email with a message."""
    fill_encrypted(database)
    for table in ("operator_access", "body_keys", "queue", "events", "attempts"):
        rows(database, f"DELETE FROM {table}")
    rows(database, "UPDATE broadcasts SET status = 'sent'")
    rows(database, "UPDATE messages SET email_id = (SELECT email_id FROM emails); UPDATE emails SET broadcast_id = NULL")
    [(email_id,)] = rows(database, "SELECT email_id::text FROM emails")
    return str(email_id)


@pytest_twisted.ensureDeferred
async def test_content_is_shown_during_an_access_only(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    email_id = filled(database)
    archive = tmp_path / "zoe.zip"
    commands = (
        ("email", "show", email_id),
        ("account", "export", str(ACCOUNT), "--output", str(tmp_path / "account.zip"), "--key", str(tmp_path / "account.key")),
        ("privacy", "export", CANARY, "--account", str(ACCOUNT), "--output", str(archive)),
    )
    for words in commands:
        assert f"Open one: mailsvc account access {ACCOUNT} --reason TEXT" in await mailsvc.refuses(*words), words
    assert actions(database) == [] and not archive.exists()

    opened = await mailsvc.printed("account", "access", str(ACCOUNT), "--reason", " Ticket 7:\nno body ", "--as", "Ann")
    assert opened.startswith("You have access to the content of ")
    assert "There is an open access" in await mailsvc.refuses("account", "access", str(ACCOUNT), "--reason", "more")
    assert await mailsvc.printed("email", "show", email_id) == MESSAGE.decode().strip()
    for words in commands[1:]:
        await mailsvc.printed(*words)
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("manifest.json"))["account_id"] == str(ACCOUNT)

    listed = (await mailsvc.printed("account", "access", str(ACCOUNT), "--list")).splitlines()
    assert "  open until " in listed[0] and listed[0].endswith("Ticket 7: no body") and "Ann (" in listed[0]
    assert [line.split("  ")[-1] for line in listed[1:]] == ["address exported", "account exported", f"email read {email_id}"]
    await mailsvc.printed("account", "access", str(ACCOUNT), "--end")
    assert "no open access" in await mailsvc.refuses("account", "access", str(ACCOUNT), "--end")
    written = [action for action, _ in actions(database)]
    assert written == ["access to content opened", "email read", "account exported", "address exported", "access to content ended"]
    assert rows(database, f"SELECT 1 FROM audit_entries WHERE subject = '{email_id}' AND action = 'email read'")


@pytest_twisted.ensureDeferred
async def test_content_that_is_gone_is_not_recorded_as_read(mailsvc: InProcess, database: str) -> None:
    email_id = filled(database)
    rows(database, "DELETE FROM messages")
    await mailsvc.printed("account", "access", str(ACCOUNT), "--reason", "Ticket 7")
    assert await mailsvc.refuses("email", "show", email_id) == f"mailsvc: The content of the email {email_id} is no longer stored."
    assert [action for action, _ in actions(database)][-1] == "access to content opened"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "exactly one of --reason, --end and --list"),
        (("--reason", "x", "--end"), "exactly one of --reason, --end and --list"),
        (("--reason", " \n "), "--reason needs 1 to 500 characters, not 0"),
        (("--reason", "x" * 501), "--reason needs 1 to 500 characters, not 501"),
        (("--reason", "x", "--hours", "25"), "25 is not in the range 1<=x<=24"),
        (("--end", "--hours", "2"), "--hours needs --reason"),
        (("--reason", "x", "--as", "y" * 61), "--as can have at most 60 characters"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    config = str(Command(tmp_path, "postgresql:///unused").config)
    done = CliRunner().invoke(main, ["--config", config, "account", "access", "Acme", *words])
    assert done.exit_code == 2 and says in done.output


def test_who_ran_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(access, "LOGIN", login := tmp_path / "loginuid")
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "ann")
    assert (operator(None), operator(" Ann\x1b ")) == ("ann as root", "Ann (ann as root)")
    monkeypatch.delenv("SUDO_USER")
    assert operator(None) == "root"
    monkeypatch.setattr("os.getuid", lambda: 3_000_000)
    monkeypatch.setenv("SUDO_USER", "ann")  # only root's is believed
    assert operator(None) == "user 3000000"
    login.write_text("4294967295")  # nobody signed in
    assert operator(None) == "user 3000000"
    login.write_text("3000001")  # and then became the user of the daemon, as the documentation says
    assert operator("Ann") == "Ann (user 3000001 as user 3000000)"
    login.write_text("3000000")
    assert operator(None) == "user 3000000"
