"""The archive of an account: every row of every table comes out of one database and into another, however often it is interrupted."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_twisted

from mailsvc.accounts import archive as archives
from mailsvc.accounts.archive import FORMAT, MANIFEST, Manifest
from mailsvc.store.account_data import tables
from mailsvc.store.account_data.copying import Copying, Rows
from mailsvc.store.account_data.inserting import Inserting, Unsuitable
from mailsvc.store.audit.verification import verify
from mailsvc.store.encryption.body_key_files import BodyKeyFiles
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption, EncryptionError, fingerprint
from mailsvc.store.people.audit import Audit, by_operator
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import inventory
from tests.store.fixtures import ACCOUNT
from tests.store.privacy.filling import KEYS, SECRET, USER, fill

OTHER = Encryption.read("3 " + "QkJC" * 10 + "QkI=", "the other installation")
TRANSFER = Encryption.read("1 " + "Q0ND" * 10 + "Q0M=", "the archive's key")
ROWS = "SELECT to_jsonb(t) FROM {table} t ORDER BY to_jsonb(t)::text"


@pytest_twisted.async_yield_fixture
async def elsewhere(module_database: str) -> Any:
    """A pool of another installation."""
    from twisted.internet import reactor

    pool = Pool(module_database, reactor, size=4, name="mailsvc tests")
    await pool.start()
    await pool.run("TRUNCATE accounts, domains, users CASCADE")
    for table in (*tables.ARCHIVED, *tables.LEFT_OUT):
        await pool.run(f"ALTER TABLE {table} DISABLE TRIGGER USER; TRUNCATE {table} CASCADE")
    yield pool
    await pool.stop()


def bodies(pool: Any, folder: Path, encryption: Encryption) -> BodyKeys:
    from twisted.internet import reactor

    return BodyKeys(pool, reactor, encryption, BodyKeyFiles(folder))


async def exported(pool: Pool, database: str, folder: Path) -> bytes:
    fill(database)
    await pool.run("DELETE FROM body_keys")
    await bodies(pool, folder / "here", KEYS).turn_on(ACCOUNT, [])
    await pool.run(
        "INSERT INTO dkim_keys (id, domain_id, selector, algorithm, public_key, sealed_key, state, created_at)"
        " SELECT %s, domain_id, 'former', algorithm, public_key, '', 'retired', created_at FROM dkim_keys", (UUID(int=0xE2),)
    )  # fmt: skip
    await pool.run("UPDATE erased_suppressions SET key = 1")
    await pool.run("UPDATE broadcasts SET next_at = NULL")
    await pool.run("UPDATE audit_heads SET anchored = 0")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        copying = Copying(pool, ACCOUNT, KEYS, TRANSFER, bodies(pool, folder / "here", KEYS))
        await copying.begin(datetime.now(UTC) + timedelta(days=30))  # before all of the rows' dates
        rows = await archives.write(copying, archive)
        keys = {number: fingerprint(number, key) for number, key in KEYS.keys.by_number.items()}
        Manifest(FORMAT, uuid4(), ACCOUNT, "Acme", datetime.now(UTC), "0", keys, rows).write(archive)
    return file.getvalue()


async def imported(
    pool: Any, content: bytes, folder: Path, encryption: Encryption = OTHER, transfer: Encryption = TRANSFER, days: int = 30
) -> Inserting:
    from twisted.internet import reactor

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        manifest = Manifest.read(archive)
        inserting = Inserting(
            pool, reactor, manifest.account_id, manifest.id, encryption, transfer, manifest.hash_keys, ["text"], days,
            bodies(pool, folder / "there", encryption),
        )  # fmt: skip
        await archives.read(archive, manifest, inserting)
    return inserting


def test_every_table_is_archived_or_left_out() -> None:
    cell = {name for name, table in inventory.tables().items() if table.where == "cell"}
    assert sorted([*tables.ARCHIVED, *tables.LEFT_OUT, "erasures"]) == sorted(cell)


@pytest_twisted.ensureDeferred
async def test_every_row_arrives_as_it_was(pool: Pool, database: str, elsewhere: Pool, tmp_path: Path) -> None:
    inserting = await imported(elsewhere, await exported(pool, database, tmp_path), tmp_path)
    for table in tables.ARCHIVED:
        before, after = [await each.rows(ROWS.format(table=table)) for each in (pool, elsewhere)]
        assert before or table in ("audit",), table
        if table in ("audit_details", "audit"):
            after = [row for row in after if row in before]  # the import itself is a line
        changed = {"sealed_key", "secret", "key"} if table in ("dkim_keys", "webhooks", "audience_keys", "body_keys") else set()
        changed |= {"pool"} if table == "domains" else {"created_by"} if table == "api_keys" else set()
        changed |= {"seq", "hash"} if table == "audit_heads" else {"claim", "claimed_until"} if table == "contact_imports" else set()
        if table == "erased_suppressions":
            assert after == [] and inserting.left_out == {table: 1}  # the other installation cannot compute these hashes
            continue
        assert [without(row, changed) for row in before] == [without(row, changed) for row in after], table
    here, there = bodies(pool, tmp_path / "here", KEYS), bodies(elsewhere, tmp_path / "there", OTHER)
    assert await here.of(ACCOUNT) == await there.of(ACCOUNT)
    assert (tmp_path / "here" / str(ACCOUNT)).read_bytes() != (tmp_path / "there" / str(ACCOUNT)).read_bytes()
    [(sealed,)] = await elsewhere.rows("SELECT sealed_key FROM dkim_keys WHERE state <> 'retired'")
    assert OTHER.decrypt(bytes(sealed), USER) == SECRET
    [(suspended, archive, number)] = await elsewhere.rows("SELECT suspended_at, archive, number FROM accounts")
    assert archive is None and suspended == (await pool.rows("SELECT suspended_at FROM accounts"))[0][0] and number is not None
    assert await elsewhere.rows("SELECT u.email, m.role FROM members m JOIN users u ON u.id = m.user_id") == await pool.rows(
        "SELECT u.email, m.role FROM members m JOIN users u ON u.id = m.user_id"
    )


def without(row: Any, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row[0].items() if name not in names}


# What happens while the archive is written, after the rows of a table were read.
MEANWHILE = {
    "domains": (
        "INSERT INTO domains (id, account_id, name, region, created_at) VALUES ('{new}', '{account}', '{name}', 'r1', now())",
        "INSERT INTO api_keys (id, account_id, name, hash, hint, permission, domain_id, created_at)"
        " VALUES ('{new}', '{account}', 'new', 'new', 'new', 'sending_access', '{new}', now())",
    ),
    "broadcasts": (
        "INSERT INTO broadcasts (account_id, id, name, sender, reply_to, subject, preview_text, status, created_at)"
        " VALUES ('{account}', '{new}', 'new', '', '{{}}', '', '', 'draft', now())",
        "INSERT INTO broadcast_versions (account_id, broadcast_id, version, begun_at, saved_at, editor, settings)"
        " VALUES ('{account}', '{new}', 1, now(), now(), 'html', '{{}}')",
    ),
}


class WhileUsed(Copying):
    """An account that is used while its archive is written: each table has a new line in the audit log."""

    async def batches(self) -> AsyncIterator[tuple[str, Rows]]:
        async for table, rows in super().batches():
            yield table, rows
            for statement in MEANWHILE.get(table, ()):
                await self.pool.run(statement.format(new=UUID(int=0xF1), account=ACCOUNT, name="new"))
            await Audit(self.pool, self.pool.reactor).write(by_operator(ACCOUNT, table))


@pytest_twisted.ensureDeferred
async def test_an_account_that_is_used_meanwhile_can_be_imported(pool: Pool, elsewhere: Pool, tmp_path: Path) -> None:
    await pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Acme', now())", (ACCOUNT,))
    for table, (before, *_) in MEANWHILE.items():
        await pool.run(before.format(new=UUID(int=0xF0), account=ACCOUNT, name=f"old {table}"))
    await Audit(pool, pool.reactor).write(by_operator(ACCOUNT, "account exported"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        copying = WhileUsed(pool, ACCOUNT, KEYS, TRANSFER, bodies(pool, tmp_path / "here", KEYS))
        await copying.begin(datetime.now(UTC))
        rows = await archives.write(copying, archive)
        Manifest(FORMAT, uuid4(), ACCOUNT, "Acme", datetime.now(UTC), "0", {}, rows).write(archive)
    await imported(elsewhere, file.getvalue(), tmp_path)
    assert await elsewhere.rows("SELECT action FROM audit ORDER BY seq") == [("account exported",), ("account imported",)]
    assert (await verify(elsewhere, ACCOUNT, {})).problems == ()
    for table in ("domains", "broadcasts"):
        assert await elsewhere.rows(f"SELECT id FROM {table}") == [(UUID(int=0xF0),)]


@pytest_twisted.ensureDeferred
async def test_hashes_of_erased_addresses_arrive_where_the_keys_are_the_same(
    pool: Pool, database: str, elsewhere: Pool, tmp_path: Path
) -> None:
    inserting = await imported(elsewhere, await exported(pool, database, tmp_path), tmp_path, encryption=KEYS)
    assert inserting.left_out == {} and len(await elsewhere.rows("SELECT 1 FROM erased_suppressions")) == 1


@pytest_twisted.ensureDeferred
async def test_what_is_older_than_the_retention_there_is_left_out_and_counted(
    pool: Pool, database: str, elsewhere: Pool, tmp_path: Path
) -> None:
    content = await exported(pool, database, tmp_path)
    await pool.run("UPDATE accounts SET name = 'x'")
    old = rewritten(content, "emails", lambda row: row | {"email_id": "00000000-0000-7000-8000-000000000000"})
    inserting = await imported(elsewhere, old, tmp_path)
    assert inserting.left_out["emails"] == 1 and await elsewhere.rows("SELECT 1 FROM emails") == []


@pytest_twisted.ensureDeferred
async def test_it_is_interrupted_after_each_transaction(pool: Pool, database: str, elsewhere: Pool, tmp_path: Path) -> None:
    content, kills = await exported(pool, database, tmp_path), 0

    class Killed(Exception):
        pass

    class Mortal:
        """A pool whose process dies at its n-th transaction: before it, or right after its commit."""

        def __init__(self, lives: int, committed: bool) -> None:
            self.lives, self.committed = lives, committed

        async def rows(self, *given: Any) -> Any:
            return await elsewhere.rows(*given)

        async def run(self, *given: Any) -> Any:
            return await self._live(lambda: elsewhere.run(*given))

        async def transact(self, work: Any) -> Any:
            return await self._live(lambda: elsewhere.transact(work))

        async def _live(self, work: Any) -> Any:
            self.lives -= 1
            if self.lives < 0 and not self.committed:
                raise Killed
            result = await work()
            if self.lives < 0:
                raise Killed
            return result

    while True:
        try:
            await imported(Mortal(kills // 2, committed=kills % 2 == 1), content, tmp_path)
            break
        except Killed:
            kills += 1
            found = await elsewhere.rows("SELECT suspended_at IS NOT NULL, archive IS NOT NULL FROM accounts")
            if found and not found[0][1]:
                break  # after the last transaction
            assert found in ([], [(True, True)])  # nobody uses half an account
    assert kills >= 50
    for table in tables.ARCHIVED:
        if table not in ("erased_suppressions", "audit", "audit_details"):
            assert await pool.rows(f"SELECT count(*) FROM {table}") == await elsewhere.rows(f"SELECT count(*) FROM {table}"), table
    assert len(await elsewhere.rows("SELECT 1 FROM audit WHERE action = 'account imported'")) == 1


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_imported_is_refused_with_a_reason(pool: Pool, database: str, elsewhere: Pool, tmp_path: Path) -> None:
    content = await exported(pool, database, tmp_path)
    for changed, says in (
        (rewritten(content, "emails", lambda row: row | {"new": 1}), "emails has no column new here: the archive is from a newer release"),
        (rewritten(content, "accounts", lambda row: row | {"id": str(UUID(int=5))}), "another account than its manifest says"),
        (rewritten(content, MANIFEST, lambda row: row | {"format": 9}), "has format 9; this release reads format 1"),
        (rewritten(content, MANIFEST, lambda row: {}), "no valid manifest.json"),
        (rewritten(content, "topics", lambda row: [1]), "Line 1 of tables/topics.jsonl is not an object"),
    ):
        with pytest.raises(Unsuitable, match=says):
            await imported(elsewhere, changed, tmp_path)
    with pytest.raises(EncryptionError):
        await imported(elsewhere, content, tmp_path, transfer=OTHER)


@pytest_twisted.ensureDeferred
async def test_an_account_or_domain_that_exists_is_not_touched(pool: Pool, database: str, elsewhere: Pool, tmp_path: Path) -> None:
    content = await exported(pool, database, tmp_path)
    await imported(elsewhere, content, tmp_path)
    with pytest.raises(Unsuitable, match=f"The account {ACCOUNT} exists here"):
        await imported(elsewhere, content, tmp_path)
    other = rewritten(content, MANIFEST, lambda row: row | {"account_id": str(UUID(int=9))})
    other = rewritten(other, "accounts", lambda row: row | {"id": str(UUID(int=9))})
    with pytest.raises(Unsuitable, match="Another account here has the domain"):
        await imported(elsewhere, other, tmp_path)
    assert len(await elsewhere.rows("SELECT 1 FROM accounts")) == 1


def rewritten(content: bytes, name: str, change: Any) -> bytes:
    """The archive with each row of a table, or its manifest, changed."""
    file, target = io.BytesIO(), name if name == MANIFEST else f"tables/{name}.jsonl"
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            if member == MANIFEST == target:
                data = orjson.dumps(change(orjson.loads(data)))
            elif member == target:
                data = b"".join(orjson.dumps(change(orjson.loads(line))) + b"\n" for line in data.splitlines())
            new.writestr(member, data)
    return file.getvalue()
