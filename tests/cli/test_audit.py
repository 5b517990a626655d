"""`mailsvc audit`: verification, export and adoption."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess.of(pool, tmp_path, monkeypatch)


async def printed(mailsvc: InProcess, *words: str) -> str:
    return (await mailsvc.prints(*words)).output.strip()


def ask(database: str, sql: str) -> object:
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        [(found,)] = cursor.fetchall()
    connection.close()
    return found


def run(database: str, sql: str) -> None:
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
    connection.close()


@pytest_twisted.ensureDeferred
async def test_the_log_is_verified_and_exported(mailsvc: InProcess, database: str) -> None:
    account = await printed(mailsvc, "account", "create", "Example")
    await printed(mailsvc, "key", "create", "--account", account, "--name", "Größe")
    await printed(mailsvc, "member", "add", "ann@example.com", "--account", account)
    exported = [json.loads(line) for line in (await printed(mailsvc, "audit", "export", "--account", "Example")).splitlines()]
    assert [line["action"] for line in exported][-4:] == ["key created", "member added", "sign-in link created", "audit log exported"]
    assert {line["kind"] for line in exported} == {"operator"}
    for line in exported:
        assert hashlib.sha256(bytes.fromhex(line["subject_salt"]) + line["subject"].encode()).hexdigest() == line["subject_hash"]
    assert await printed(mailsvc, "audit", "export", "--since", "2100-01-01") == ""
    assert (await mailsvc("audit", "verify")).output == f"{account}  ok  {len(exported) + 1} lines\n"

    run(database, "INSERT INTO audit SELECT account_id, gen_random_uuid(), at, NULL, 'ann', '', 'old', '' FROM audit WHERE seq = 1")
    done = await mailsvc("audit", "verify", "--account", "1")
    assert done.status == 1 and "1 lines are not in the chain" in done.output and "is not intact" in done.messages
    assert await printed(mailsvc, "audit", "adopt") == f"{account}  1 lines"
    assert (await mailsvc("audit", "verify")).output == f"{account}  ok  {len(exported) + 3} lines\n"
    assert "anchors are not checked" in (await mailsvc("audit", "verify")).messages
    run(database, "SET session_replication_role = replica; UPDATE audit SET action = 'x' WHERE seq = 1")
    done = await mailsvc("audit", "verify")
    assert done.status == 1 and "Line 1 was changed" in done.output


@pytest_twisted.ensureDeferred
async def test_anchors_show_that_the_log_was_cut(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    key, file, public = tmp_path / "audit.pem", tmp_path / "anchors.jsonl", tmp_path / "public.pem"
    for command in ("key", "anchor"):
        assert "Set it to a file that mailsvc can write" in await mailsvc.refuses("audit", command)
    file.touch()
    assert "cannot be compared without a key" in await mailsvc.refuses("audit", "verify", "--anchors", str(file))
    mailsvc.config.write_text(mailsvc.config.read_text() + f'[audit]\nsigning_key = "{key}"\nanchor_file = "{file}"\n')
    public.write_text(await printed(mailsvc, "audit", "key") + "\n")
    assert "is not overwritten. To replace the key" in await mailsvc.refuses("audit", "key")
    account = await printed(mailsvc, "account", "create", "Example")
    for name in "abc":
        await printed(mailsvc, "key", "create", "--account", account, "--name", name)
    await printed(mailsvc, "audit", "anchor")
    assert len(file.read_text().splitlines()) == 1
    lines = ask(database, "SELECT count(*) FROM audit")
    assert await printed(mailsvc, "audit", "verify", "--key", str(public)) == f"{account}  ok  {lines} lines, anchored up to line {lines}"

    other = tmp_path / "other.jsonl"
    other.write_text("no anchor\n")
    done = await mailsvc("audit", "verify", "--anchors", str(other))
    assert done.status == 1 and f"{other} has no anchors." in done.output
    assert (await mailsvc("audit", "verify", "--anchors", str(file))).status == 0

    cut = "SET session_replication_role = replica; DELETE FROM audit_details d USING audit a WHERE a.id = d.id AND a.seq > 1; "
    cut += "DELETE FROM audit WHERE seq > 1; UPDATE audit_heads SET seq = 1, hash = (SELECT hash FROM audit)"
    run(database, cut)
    done = await mailsvc("audit", "verify")
    assert done.status == 1 and "The log ends with line 1, but line" in done.output
    run(database, "DELETE FROM audit_anchors")
    done = await mailsvc("audit", "verify")
    assert "is missing in the database" in done.output and "was anchored: the lines after 1 were removed" in done.output
    run(database, "SET session_replication_role = replica; DELETE FROM audit; DELETE FROM audit_heads; DELETE FROM audit_details")
    assert f"{account}  WRONG  0 lines" in (await mailsvc("audit", "verify")).output
    key.write_text("x")
    assert "has no key" in await mailsvc.refuses("audit", "verify")
