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
import pytest_twisted

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.output import new_file
from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess
from tests.store.fixtures import ACCOUNT
from tests.store.privacy.filling import CANARY, KEYS, MESSAGE, fill, leaks


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    commands = InProcess.of(pool, tmp_path, monkeypatch)
    [(number, key)] = KEYS.keys.by_number.items()
    (tmp_path / "secret.key").write_text(f"{number} {base64.b64encode(key).decode()}\n")
    with commands.config.open("a") as file:
        file.write(f'[privacy]\njournal = "{tmp_path}/erasures"\n')
    return commands


def fill_encrypted(database: str) -> None:
    """With secrets that the command can decrypt, as it checks them."""
    fill(database)
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dkim_keys; DELETE FROM webhooks; DELETE FROM operators; UPDATE users SET totp = NULL")
    connection.close()


@pytest_twisted.ensureDeferred
async def test_nothing_is_stored(mailsvc: InProcess) -> None:
    assert await mailsvc.printed("privacy", "find", "nobody@example.net") == "The address is not stored anywhere."


@pytest_twisted.ensureDeferred
async def test_find_export_and_erase(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    fill_encrypted(database)
    found = json.loads(await mailsvc.printed("privacy", "find", CANARY, "--json"))
    assert found["counts"]["emails.recipients"] == found["counts"]["messages.bytes"] == found["counts"]["contacts.email"] == 1
    assert "recipient: to deliver the email" in await mailsvc.printed("privacy", "find", CANARY)

    archive = tmp_path / "zoe.zip"
    await mailsvc.printed("privacy", "export", CANARY, "--output", str(archive))
    assert archive.stat().st_mode & 0o777 == 0o600
    refused = await mailsvc.refuses("privacy", "export", CANARY, "--output", str(archive))
    assert refused.endswith("already exists. Choose another file with --output.")
    with zipfile.ZipFile(archive) as file:
        [contact] = map(json.loads, file.read("contacts.jsonl").splitlines())
        assert contact["email"] == CANARY and "hash" not in contact
        [user] = map(json.loads, file.read("users.jsonl").splitlines())
        assert "password" not in user and user["email"] == CANARY.lower()
        messages = [file.read(name) for name in file.namelist() if name.startswith("messages/")]
        assert messages == [MESSAGE, MESSAGE]  # the second one is in the development inbox
        assert json.loads(file.read("manifest.json"))["rows"]["emails"] == 1

    done = json.loads(await mailsvc.printed("privacy", "erase", CANARY, "--yes"))
    assert done["state"] == "finished" and done["backups"] == "in the erasure journal"
    assert done["erased"]["emails.recipients"] == 1 and CANARY.lower() not in json.dumps(done).lower()
    assert leaks(database) == [] and (tmp_path / "erasures").exists()
    assert await mailsvc.printed("privacy", "find", CANARY) == "The address is not stored anywhere."
    [listed] = (await mailsvc.printed("privacy", "erasures")).splitlines()
    assert json.loads(listed) == done


@pytest_twisted.ensureDeferred
async def test_a_file_that_cannot_be_written_is_named(mailsvc: InProcess, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none" / "zoe.zip")
    why = await mailsvc.refuses("privacy", "export", CANARY, "--output", nowhere)
    assert why == f"mailsvc: {nowhere} cannot be written: No such file or directory."
    account, key = await mailsvc.printed("account", "create", "Example Ltd"), tmp_path / "file" / "account.key"
    key.parent.write_text("")
    words = ("account", "export", account, "--output", str(tmp_path / "account.zip"), "--key")
    assert "account.key cannot be used: File exists." in await mailsvc.refuses(*words, str(key))
    assert "expected a number from 1 to 255" in await mailsvc.refuses(*words, str(mailsvc.config))
    assert "is not the key file" in await mailsvc.refuses(*words, sys.executable)


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


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_output_needs_a_file_name(path: str) -> None:
    with pytest.raises(Refused, match="already exists"), new_file(Path(path)):
        pass


@pytest_twisted.ensureDeferred
async def test_a_key_that_the_journal_needs_is_listed_as_needed(mailsvc: InProcess, tmp_path: Path) -> None:
    await mailsvc.printed("privacy", "erase", CANARY, "--yes")
    assert await mailsvc.printed("secrets", "rotate") == "Key 2 encrypts; 0 secrets were re-encrypted."
    await mailsvc.printed("privacy", "erase", CANARY, "--yes")
    needed = ["2  encrypts, 0 secrets, 1 entries of the erasure journal", "1  decrypts, 0 secrets, 1 entries of the erasure journal"]
    assert (await mailsvc.printed("secrets", "list")).splitlines() == needed
    (tmp_path / "secret.key").write_text((tmp_path / "secret.key").read_text().splitlines()[1] + "\n")
    assert "Line 1 of the erasure journal" in await mailsvc.refuses("secrets", "list")


@pytest_twisted.ensureDeferred
async def test_the_only_admin_is_not_erased(mailsvc: InProcess, database: str) -> None:
    await mailsvc.printed("account", "create", "Example Ltd")
    await mailsvc.printed("member", "add", "ann@example.com", "--account", "Example Ltd")
    why = await mailsvc.refuses("privacy", "erase", "ann@example.com", "--yes")
    assert why == ("mailsvc: It is the address of the only admin of Example Ltd. Make somebody else an admin first, or close the account.")
    await mailsvc.printed("member", "add", "bob@example.com", "--account", "Example Ltd")
    done = json.loads(await mailsvc.printed("privacy", "erase", "ann@example.com", "--account", "Example Ltd", "--yes"))
    assert done["erased"]["users"] == 1 and done["kept"] == {}


@pytest_twisted.ensureDeferred
async def test_a_deletion_that_was_killed_at_its_end_is_finished_by_the_same_command(
    mailsvc: InProcess, database: str, tmp_path: Path
) -> None:
    fill_encrypted(database)
    words = ("account", "close", str(ACCOUNT), "--days", "0", "--yes")
    first = json.loads(await mailsvc.printed(*words))
    evidence = tmp_path / "evidence.zip"
    await mailsvc.prints("evidence", "--since", "2020-01-01", "--output", str(evidence))
    assert first["state"] == "finished"
    assert "No account is called" in await mailsvc.refuses(*words)
    assert json.loads(await mailsvc.printed("privacy", "erasures", "--account", str(ACCOUNT))) == first
    assert "No account is called" in await mailsvc.refuses("privacy", "erasures", "--account", str(ACCOUNT).replace("a", "b"))
    with zipfile.ZipFile(evidence) as archive:
        assert json.loads(archive.read("erasures.jsonl")) == first
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE erasures SET finished_at = NULL")  # as before the last transaction
    connection.close()
    again = json.loads(await mailsvc.printed(*words))
    assert (again["id"], again["state"], again["erased"]) == (first["id"], "finished", first["erased"])


@pytest_twisted.ensureDeferred
async def test_an_account_whose_deletion_was_interrupted_is_not_reopened(mailsvc: InProcess, database: str) -> None:
    fill_encrypted(database)
    await mailsvc.printed("account", "close", str(ACCOUNT), "--yes")
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:  # what deletes the row of the account, at the end, fails
        cursor.execute("CREATE TABLE needs (account_id uuid REFERENCES accounts); INSERT INTO needs VALUES (%s)", (str(ACCOUNT),))
    await mailsvc.refuses("account", "close", str(ACCOUNT), "--days", "0", "--yes")
    assert "cannot be kept: its data is being deleted" in await mailsvc.refuses("account", "reopen", str(ACCOUNT))
    with connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE needs")
    connection.close()
    assert json.loads(await mailsvc.printed("account", "close", str(ACCOUNT), "--days", "0", "--yes"))["state"] == "finished"


@pytest_twisted.ensureDeferred
async def test_domains_of_a_region_that_does_not_exist_here_are_named_after_an_import(mailsvc: InProcess, tmp_path: Path) -> None:
    account = await mailsvc.printed("account", "create", "Example Ltd")
    await mailsvc.printed("domain", "add", "shop.example.com", "--account", account)
    await mailsvc.printed("domain", "add", "mail.example.com", "--account", account, "--region", "eu-west-1")
    await mailsvc.printed("account", "access", account, "--reason", "it moves")
    archive, key = str(tmp_path / "account.zip"), str(tmp_path / "account.key")
    await mailsvc.printed("account", "export", account, "--output", archive, "--key", key)
    await mailsvc.printed("account", "close", account, "--days", "0", "--yes")
    one = '[regions.us-east-1]\nhost = "out.example.net"\n'
    mailsvc.config.write_text('region = "eu-west-1"\n' + mailsvc.config.read_text().replace(one, ""))
    _, *lines = (await mailsvc.printed("account", "import", archive, "--key", key)).splitlines()
    [line] = [each for each in lines if "region" in each]
    assert line.startswith("shop.example.com is in the region us-east-1, which does not exist here: its mail waits.")
    moved = line.partition("Move it: mailsvc ")[2].replace("REGION", "eu-west-1")
    assert "out.eu.example.net" in await mailsvc.printed(*moved.split())
