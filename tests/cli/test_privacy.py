"""`mailsvc privacy`: find, export, erase and its certificate."""

from __future__ import annotations

import base64
import json
import resource
import sys
import zipfile
from pathlib import Path

import psycopg2
import pytest

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.output import new_file
from tests.cli.test_cli import Command
from tests.store.fixtures import ACCOUNT
from tests.store.privacy.filling import CANARY, KEYS, MESSAGE, fill, leaks


@pytest.fixture
def mailsvc(tmp_path: Path, database: str) -> Command:
    command = Command(tmp_path, database)
    [(number, key)] = KEYS.keys.by_number.items()
    (tmp_path / "secret.key").write_text(f"{number} {base64.b64encode(key).decode()}\n")
    with command.config.open("a") as file:
        file.write(f'[privacy]\njournal = "{tmp_path}/erasures"\n')
    return command


def fill_encrypted(database: str) -> None:
    """With secrets that the command can decrypt, as it checks them."""
    fill(database)
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dkim_keys; DELETE FROM webhooks; DELETE FROM operators; UPDATE users SET totp = NULL")
    connection.close()


def test_nothing_is_stored(mailsvc: Command) -> None:
    assert mailsvc.prints("privacy", "find", "nobody@example.net") == "The address is not stored anywhere."


def test_find_export_and_erase(mailsvc: Command, database: str, tmp_path: Path) -> None:
    fill_encrypted(database)
    found = json.loads(mailsvc.prints("privacy", "find", CANARY, "--json"))
    assert found["counts"]["emails.recipients"] == found["counts"]["messages.bytes"] == found["counts"]["contacts.email"] == 1
    assert "recipient: to deliver the email" in mailsvc.prints("privacy", "find", CANARY)

    archive = tmp_path / "zoe.zip"
    mailsvc.prints("privacy", "export", CANARY, "--output", str(archive))
    assert archive.stat().st_mode & 0o777 == 0o600
    refused = mailsvc.refuses("privacy", "export", CANARY, "--output", str(archive))
    assert refused.endswith("already exists. Choose another file with --output.")
    with zipfile.ZipFile(archive) as file:
        [contact] = map(json.loads, file.read("contacts.jsonl").splitlines())
        assert contact["email"] == CANARY and "hash" not in contact
        [user] = map(json.loads, file.read("users.jsonl").splitlines())
        assert "password" not in user and user["email"] == CANARY.lower()
        messages = [file.read(name) for name in file.namelist() if name.startswith("messages/")]
        assert messages == [MESSAGE, MESSAGE]  # the second one is in the development inbox
        assert json.loads(file.read("manifest.json"))["rows"]["emails"] == 1

    done = json.loads(mailsvc.prints("privacy", "erase", CANARY, "--yes"))
    assert done["state"] == "finished" and done["backups"] == "in the erasure journal"
    assert done["erased"]["emails.recipients"] == 1 and CANARY.lower() not in json.dumps(done).lower()
    assert leaks(database) == [] and (tmp_path / "erasures").exists()
    assert mailsvc.prints("privacy", "find", CANARY) == "The address is not stored anywhere."
    [listed] = mailsvc.prints("privacy", "erasures").splitlines()
    assert json.loads(listed) == done


def test_a_file_that_cannot_be_written_is_named(mailsvc: Command, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none" / "zoe.zip")
    why = mailsvc.refuses("privacy", "export", CANARY, "--output", nowhere)
    assert why == f"mailsvc: {nowhere} cannot be written: No such file or directory."
    account, key = mailsvc.prints("account", "create", "Example Ltd"), tmp_path / "file" / "account.key"
    key.parent.write_text("")
    words = ("account", "export", account, "--output", str(tmp_path / "account.zip"), "--key")
    assert "account.key cannot be used: File exists." in mailsvc.refuses(*words, str(key))
    assert "expected a number from 1 to 255" in mailsvc.refuses(*words, str(mailsvc.config))
    assert "is not the key file" in mailsvc.refuses(*words, sys.executable)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "zoe.zip"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(Refused, match=r"zoe\.zip cannot be written: File too large"), new_file(output) as file:
            file.write(bytes(1000))
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    with new_file(output) as file:
        file.write(b"whole")
    assert (output.read_bytes(), output.stat().st_mode & 0o777) == (b"whole", 0o600)


def test_a_key_that_the_journal_needs_is_listed_as_needed(mailsvc: Command, tmp_path: Path) -> None:
    mailsvc.prints("privacy", "erase", CANARY, "--yes")
    assert mailsvc.prints("secrets", "rotate") == "Key 2 encrypts; 0 secrets were re-encrypted."
    mailsvc.prints("privacy", "erase", CANARY, "--yes")
    needed = ["2  encrypts, 0 secrets, 1 entries of the erasure journal", "1  decrypts, 0 secrets, 1 entries of the erasure journal"]
    assert mailsvc.prints("secrets", "list").splitlines() == needed
    (tmp_path / "secret.key").write_text((tmp_path / "secret.key").read_text().splitlines()[1] + "\n")
    assert "Line 1 of the erasure journal" in mailsvc.refuses("secrets", "list")


def test_the_only_admin_is_not_erased(mailsvc: Command, database: str) -> None:
    mailsvc.prints("account", "create", "Example Ltd")
    mailsvc.prints("member", "add", "ann@example.com", "--account", "Example Ltd")
    why = mailsvc.refuses("privacy", "erase", "ann@example.com", "--yes")
    assert why == ("mailsvc: It is the address of the only admin of Example Ltd. Make somebody else an admin first, or close the account.")
    mailsvc.prints("member", "add", "bob@example.com", "--account", "Example Ltd")
    done = json.loads(mailsvc.prints("privacy", "erase", "ann@example.com", "--account", "Example Ltd", "--yes"))
    assert done["erased"]["users"] == 1 and done["kept"] == {}


def test_a_deletion_that_was_killed_at_its_end_is_finished_by_the_same_command(mailsvc: Command, database: str, tmp_path: Path) -> None:
    fill_encrypted(database)
    words = ("account", "close", str(ACCOUNT), "--days", "0", "--yes")
    first = json.loads(mailsvc.prints(*words))
    evidence = tmp_path / "evidence.zip"
    mailsvc("evidence", "--since", "2020-01-01", "--output", str(evidence))
    assert first["state"] == "finished"
    assert "No account is called" in mailsvc.refuses(*words)
    assert json.loads(mailsvc.prints("privacy", "erasures", "--account", str(ACCOUNT))) == first
    assert "No account is called" in mailsvc.refuses("privacy", "erasures", "--account", str(ACCOUNT).replace("a", "b"))
    with zipfile.ZipFile(evidence) as archive:
        assert json.loads(archive.read("erasures.jsonl")) == first
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE erasures SET finished_at = NULL")  # as before the last transaction
    connection.close()
    again = json.loads(mailsvc.prints(*words))
    assert (again["id"], again["state"], again["erased"]) == (first["id"], "finished", first["erased"])


def test_an_account_whose_deletion_was_interrupted_is_not_reopened(mailsvc: Command, database: str) -> None:
    fill_encrypted(database)
    mailsvc.prints("account", "close", str(ACCOUNT), "--yes")
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:  # what deletes the row of the account, at the end, fails
        cursor.execute("CREATE TABLE needs (account_id uuid REFERENCES accounts); INSERT INTO needs VALUES (%s)", (str(ACCOUNT),))
    mailsvc.refuses("account", "close", str(ACCOUNT), "--days", "0", "--yes")
    assert "cannot be kept: its data is being deleted" in mailsvc.refuses("account", "reopen", str(ACCOUNT))
    with connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE needs")
    connection.close()
    assert json.loads(mailsvc.prints("account", "close", str(ACCOUNT), "--days", "0", "--yes"))["state"] == "finished"


def test_domains_of_a_region_that_does_not_exist_here_are_named_after_an_import(mailsvc: Command, tmp_path: Path) -> None:
    account = mailsvc.prints("account", "create", "Example Ltd")
    mailsvc.prints("domain", "add", "shop.example.com", "--account", account)
    mailsvc.prints("domain", "add", "mail.example.com", "--account", account, "--region", "eu-west-1")
    mailsvc.prints("account", "access", account, "--reason", "it moves")
    archive, key = str(tmp_path / "account.zip"), str(tmp_path / "account.key")
    mailsvc.prints("account", "export", account, "--output", archive, "--key", key)
    mailsvc.prints("account", "close", account, "--days", "0", "--yes")
    one = '[regions.us-east-1]\nhost = "out.example.net"\n'
    mailsvc.config.write_text('region = "eu-west-1"\n' + mailsvc.config.read_text().replace(one, ""))
    _, *lines = mailsvc.prints("account", "import", archive, "--key", key).splitlines()
    [line] = [each for each in lines if "region" in each]
    assert line.startswith("shop.example.com is in the region us-east-1, which does not exist here: its mail waits.")
    moved = line.partition("Move it: mailsvc ")[2].replace("REGION", "eu-west-1")
    assert "out.eu.example.net" in mailsvc.prints(*moved.split())
