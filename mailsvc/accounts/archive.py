"""The archive of an account: a ZIP file with a manifest and the rows of each table as JSON lines. Another installation can import it.

Secrets in it (DKIM keys, webhook secrets, the key of unsubscribe links) are encrypted with a key of its own, which is written into another
file. Which tables: store/account_data/tables.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import IO, Any
from uuid import UUID

import attrs
import orjson

from mailsvc.store.account_data.copying import BATCH, LARGE, Copying, Rows
from mailsvc.store.account_data.inserting import Inserting, Unsuitable
from mailsvc.store.account_data.tables import ARCHIVED
from mailsvc.store.people.audit import by_operator

FORMAT = 1
MANIFEST = "manifest.json"
TABLES = ("accounts", "members", *ARCHIVED)


@attrs.frozen
class Manifest:
    """`rows`: by table. `hash_keys`: fingerprints of the keys with which erased addresses are hashed, by number."""

    format: int
    id: UUID
    account_id: UUID
    name: str
    exported_at: datetime
    version: str
    hash_keys: Mapping[int, str]
    rows: Mapping[str, int]

    def write(self, archive: zipfile.ZipFile) -> None:
        archive.writestr(MANIFEST, orjson.dumps(attrs.asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))

    @classmethod
    def read(cls, archive: zipfile.ZipFile) -> Manifest:
        """Raises Unsuitable."""
        try:
            found = orjson.loads(archive.read(MANIFEST))
            if found["format"] != FORMAT:
                raise Unsuitable(f"The archive has format {found['format']}; this release reads format {FORMAT}.")
            keys = {int(number): str(key) for number, key in found["hash_keys"].items()}
            return cls(
                FORMAT, UUID(found["id"]), UUID(found["account_id"]), str(found["name"]), datetime.fromisoformat(found["exported_at"]),
                str(found["version"]), keys, {str(table): int(count) for table, count in found["rows"].items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unsuitable(f"The archive has no valid {MANIFEST} ({error}).") from None


async def write(copying: Copying, archive: zipfile.ZipFile) -> Mapping[str, int]:
    """Write all tables, in their order. Returns the number of rows of each."""
    rows = dict.fromkeys(TABLES, 0)
    with ExitStack() as open_file:
        current, file = "", None
        async for table, batch in copying.batches():
            if table != current:
                open_file.close()
                current, file = table, open_file.enter_context(archive.open(_name(table), "w", force_zip64=True))
            assert file is not None
            rows[table] += len(batch)
            file.write(b"".join(orjson.dumps(row) + b"\n" for row in batch))
    return rows


async def read(archive: zipfile.ZipFile, manifest: Manifest, inserting: Inserting) -> None:
    """Import everything. If it was interrupted, do it again. Raises Unsuitable."""
    accounts = [row for rows in batches(archive, "accounts") for row in rows]
    if len(accounts) != 1:
        raise Unsuitable(f"The archive has {len(accounts)} accounts; expected one.")
    [account] = accounts
    await inserting.begin(account, [row["name"] for rows in batches(archive, "domains") for row in rows])
    for rows in batches(archive, "members"):
        await inserting.members(rows)
    for table in ARCHIVED:
        for rows in batches(archive, table):
            await inserting.insert(table, rows)
    line = by_operator(manifest.account_id, "account imported", f"exported {manifest.exported_at:%Y-%m-%d %H:%M} UTC")
    suspended = account["suspended_at"]
    await inserting.finish(None if suspended == account["closed_at"] else suspended, [line])


def batches(archive: zipfile.ZipFile, table: str) -> Iterator[Rows]:
    """The rows of a table. Raises Unsuitable."""
    try:
        file: IO[bytes] = archive.open(_name(table))
    except KeyError:
        return
    size, batch = LARGE.get(table, BATCH), []
    with file:
        for number, line in enumerate(file, 1):
            batch.append(_row(table, number, line))
            if len(batch) == size:
                yield batch
                batch = []
    if batch:
        yield batch


def _row(table: str, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = orjson.loads(line)
    except ValueError as error:
        raise Unsuitable(f"Line {number} of {_name(table)} is not JSON: {error}.") from None
    if not isinstance(row, dict):
        raise Unsuitable(f"Line {number} of {_name(table)} is not an object.")
    return row


def _name(table: str) -> str:
    return f"tables/{table}.jsonl"
