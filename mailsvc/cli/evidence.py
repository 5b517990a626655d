"""`mailsvc evidence`: collects what an auditor asks for into an archive. What each file shows: docs/compliance/."""

from __future__ import annotations

import hashlib
import platform
import socket
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import click
import orjson

from mailsvc import __version__
from mailsvc.audit.service import read_key
from mailsvc.cli.audit import read_anchors
from mailsvc.cli.output import new_file
from mailsvc.cli.privacy import certificate
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.mail import csv_file
from mailsvc.monitoring.dependencies import bill_of_materials
from mailsvc.runtime.database import Database
from mailsvc.settings import reader, retention
from mailsvc.settings.schema import Settings
from mailsvc.store.audit import protection, reading, verification
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people import access_review
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import INSTALLATION, Audit, by_operator
from mailsvc.store.people.operator_access import OperatorAccesses
from mailsvc.store.postgres import server_settings
from mailsvc.store.queue import processes

NOT_RECORDED = (
    "mailsvc does not know about backups and tests of restoring them, certificates of the reverse proxy, known vulnerabilities of the "
    "components (check sbom.cdx.json with a current database), or who may log in to the machines."
)


@click.command("evidence")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), required=True, help="The first day (UTC), as YYYY-MM-DD.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The ZIP file to write. It must not exist.")
@click.pass_obj
def evidence(settings: Settings, since: datetime, output: Path) -> None:
    """Collect settings, access, audit verification, retention, erasures and dependencies for an auditor. It contains members' addresses."""

    async def work(database: Database, reactor: Any) -> None:
        now, first = utc(reactor), since.replace(tzinfo=UTC)
        files = await _collect(settings, database, now, first)
        about = {
            "created_at": now, "since": first, "mailsvc": __version__, "python": platform.python_version(), "machine": socket.gethostname(),
            "not_recorded": NOT_RECORDED, "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }  # fmt: skip
        manifest = _json(about)
        signed = {} if settings.audit.signing_key is None else {"manifest.json.sig": read_key(settings.audit).sign(manifest)}
        with new_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**files, "manifest.json": manifest, **signed}.items():
                archive.writestr(name, content)
        await Audit(database.pool, reactor).write(by_operator(INSTALLATION, "evidence exported", f"since {first:%Y-%m-%d}"))
        click.echo(f"{output}: {len(files)} files.")

    run_with_database(settings, work)


async def _collect(settings: Settings, database: Database, now: datetime, since: datetime) -> dict[str, bytes]:
    pool, files = database.pool, dict[str, bytes]()
    files["settings.json"] = _json(without_secrets(settings))
    files["processes.json"] = _json([attrs.asdict(each) for each in await processes.running(pool)])
    files["postgres.json"] = _json(await server_settings.settings(pool))
    for account in await Accounts(pool, None).list():
        found = await access_review.review(pool, account.id, now)
        files[f"access/{account.id}.csv"] = csv_file.lines(access_review.table(found, now))
    opened = await OperatorAccesses(pool, None).since(since)
    files["access/operator.jsonl"] = b"".join(orjson.dumps(attrs.asdict(each, filter=_stored)) + b"\n" for each in opened)
    files["audit/verification.json"] = _json(await _verified(settings, database))
    rows: list[list[object]] = [["account", "kind of actor", "action", "entries"]]
    rows += [list(row) for row in await reading.counts(pool, since)]
    files["audit/entries.csv"] = csv_file.lines(rows)
    files["retention.json"] = _json(await _retention(settings, database))
    files["erasures.jsonl"] = await _erasures(database, since)
    files["sbom.cdx.json"] = _json(bill_of_materials(now))
    return files


def without_secrets(settings: Settings) -> dict[str, object]:
    """All settings by name. Of a secret, only whether it is set."""
    found: dict[str, object] = {}
    for table, key, field in reader.keys(Settings):
        value = getattr(getattr(settings, table) if table else settings, key)
        name = f"{table}.{key}" if table else key
        found[name] = value if not field.metadata["secret"] else "set" if value is not None else None
    return found | {f"regions.{name}": attrs.asdict(region) for name, region in settings.regions.items()}


async def _verified(settings: Settings, database: Database) -> dict[str, object]:
    anchored, hashes = await read_anchors(settings, database, (), None)
    results = [await verification.verify(database.pool, each, hashes[each]) async for each in verification.accounts(database.pool)]
    return {
        "accounts": [attrs.asdict(each) for each in results],
        "anchors": [{"source": each.source, "last": each.number, "problems": each.problems} for each in anchored],
        "the daemon's role can change the log": await protection.weaknesses(database.pool),
    }


async def _retention(settings: Settings, database: Database) -> dict[str, object]:
    stored, days = Retention(database.pool), settings.retention
    return {
        "days": {**retention.days(days), "reports": days.reports, "tls": days.tls},
        "accounts that keep less": {str(account): days for account, days in (await stored.accounts()).items()},
        "stored": {kind: attrs.asdict(size) for kind, size in (await stored.sizes()).items()},
    }


async def _erasures(database: Database, since: datetime) -> bytes:
    """Certificates, of all accounts."""
    erasing = database.erasing
    lines = [
        orjson.dumps(certificate(each, journal=erasing.journal is not None)) + b"\n" async for each in erasing.eraser.erasures.since(since)
    ]
    return b"".join(lines)


def _stored(field: attrs.Attribute[object], _: object) -> bool:
    return field.name != "reads"  # they are in the audit log


def _json(content: object) -> bytes:
    def plain(value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else str(value)

    return orjson.dumps(content, plain, orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
