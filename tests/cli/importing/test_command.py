"""`mailsvc import` against a real database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess

NO_AT = "'nobody' is not an email address. An email address must have an @-sign."
MEMBERS = [
    {"email_address": "a@x.example", "status": "subscribed", "merge_fields": {"FNAME": "Ann", "LNAME": ""}, "tags": [{"name": "News"}]},
    {"email_address": "gone@x.example", "status": "unsubscribed", "merge_fields": {}, "tags": [{"name": "News"}]},
    {"email_address": "dead@x.example", "status": "cleaned", "merge_fields": {}, "tags": []},
    {"email_address": "nobody", "status": "subscribed", "merge_fields": {}, "tags": []},
]


def rows(dsn: str, sql: str) -> list[Any]:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@pytest_twisted.async_fixture
async def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    mailsvc = InProcess.of(pool, tmp_path, monkeypatch)
    await mailsvc.prints("account", "create", "Shop")
    return mailsvc


@pytest_twisted.ensureDeferred
async def test_everything_is_imported_once_and_nobody_is_subscribed_again(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    file, domains = tmp_path / "members.json", tmp_path / "domains.json"
    file.write_text(json.dumps({"members": MEMBERS}))
    domains.write_text(json.dumps({"domains": [{"domain": name, "verified": True} for name in ("x.example", "out.example.net")]}))
    words = ("import", str(file), str(domains), "--account", "Shop", "--from", "mailchimp")
    tried = await mailsvc(*words, "--dry-run", "--json")
    assert json.loads(tried.output) == {
        "dry_run": True,
        "suppressions": {"given": 1, "new": 1}, "contacts": {"given": 2, "new": 2},
        "segments": {"given": 1, "new": 1}, "domains": {"given": 2, "new": 2},
        "wrong": [{"file": "members.json", "number": 4, "reason": NO_AT}],
    }  # fmt: skip
    for table in ("contacts", "suppressions", "segments", "domains"):
        assert rows(database, f"SELECT 1 FROM {table}") == []

    done = await mailsvc(*words)
    assert done.status == 0
    assert done.output.splitlines() == [
        "suppressions  1 in the files, 1 new, 0 there already",
        "contacts      2 in the files, 2 new, 0 there already",
        "segments      1 in the files, 1 new, 0 there already",
        "domains       2 in the files, 2 new, 0 there already",
    ]
    assert "members.json, row 4" in done.messages and "out.example.net is reserved for this service" in done.messages
    contacts = "SELECT email, first_name, unsubscribed FROM contacts ORDER BY email"
    assert rows(database, contacts) == [("a@x.example", "Ann", False), ("gone@x.example", None, True)]
    assert rows(database, "SELECT email, origin, reason FROM suppressions") == [("dead@x.example", "bounce", "Imported from mailchimp.")]
    members = "SELECT s.name, c.email FROM contact_segments m JOIN segments s ON s.id = m.segment_id JOIN contacts c ON c.id = m.contact_id"
    assert sorted(rows(database, members)) == [("News", "a@x.example"), ("News", "gone@x.example")]
    assert rows(database, "SELECT name FROM domains") == [("x.example",)]
    assert [row[0] for row in rows(database, "SELECT action FROM audit WHERE action LIKE 'data of%'")] == [
        "data of another service imported"
    ]

    before = [rows(database, sql) for sql in (contacts, members, "SELECT id FROM segments")]
    assert "2 in the files, 0 new, 2 there already" in (await mailsvc(*words)).output
    assert [rows(database, sql) for sql in (contacts, members, "SELECT id FROM segments")] == before

    # Who subscribed there is not subscribed again here; who left there is unsubscribed here. Names are overwritten only if asked for.
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE contacts SET unsubscribed = true WHERE email LIKE 'a@%'")
    MEMBERS[0]["merge_fields"] = {"FNAME": "Anna"}
    file.write_text(json.dumps({"members": MEMBERS}))
    await mailsvc(*words)
    assert rows(database, contacts)[0] == ("a@x.example", "Ann", True)
    await mailsvc(*words, "--update")
    assert rows(database, contacts)[0] == ("a@x.example", "Anna", True)
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE contacts SET unsubscribed = false WHERE email LIKE 'gone@%'")
    await mailsvc(*words)
    assert rows(database, contacts)[1] == ("gone@x.example", None, True)

    # A file is no confirmation.
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        wording = dict.fromkeys(("sender", "subject", "html", "text", "title", "message", "button", "done"), "x")
        cursor.execute("UPDATE segments SET confirmation = %s", (json.dumps(wording),))
        cursor.execute("DELETE FROM contact_segments")
    assert "The segment News has a double opt-in" in (await mailsvc(*words)).messages
    assert rows(database, members) == []


@pytest_twisted.ensureDeferred
async def test_who_unsubscribed_there_keeps_the_name_that_is_here(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    words = ("import", str(file), "--account", "Shop", "--from", "mailchimp")
    member = {"email_address": "a@x.example", "status": "subscribed", "merge_fields": {"FNAME": "Ann"}, "tags": []}
    file.write_text(json.dumps({"members": [member]}))
    await mailsvc.printed(*words)
    member |= {"status": "unsubscribed", "merge_fields": {"FNAME": "Anna"}}
    file.write_text(json.dumps({"members": [member]}))
    await mailsvc.printed(*words)
    contacts = "SELECT first_name, unsubscribed FROM contacts"
    assert rows(database, contacts) == [("Ann", True)]
    await mailsvc.printed(*words, "--update")
    assert rows(database, contacts) == [("Anna", True)]


@pytest_twisted.ensureDeferred
async def test_the_limits_of_the_settings_apply(mailsvc: InProcess, database: str, tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    words = ("import", str(file), "--account", "Shop", "--from", "mailchimp")
    tags = [{"name": "News"}, {"name": "Offers"}]
    member = {"email_address": "a@x.example", "status": "unsubscribed", "merge_fields": {"FNAME": "Annabella"}, "tags": tags}
    file.write_text(json.dumps({"members": [member]}))
    mailsvc.config.write_text(f"{mailsvc.config.read_text()}[audience]\nsegments = 1\nname = 4\n")
    assert "An account can have at most 1 segments." in (await mailsvc(*words)).messages
    assert rows(database, "SELECT first_name, unsubscribed FROM contacts") == [("Anna", True)]


@pytest_twisted.ensureDeferred
async def test_what_is_no_export_is_refused(mailsvc: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    file.write_text("{}")
    assert "members.json has no list" in await mailsvc.refuses("import", str(file), "--account", "Shop", "--from", "ses")
    file.write_text('{"contacts": []}')
    assert "The region must be one of" in await mailsvc.refuses(
        "import", str(file), "--account", "1", "--from", "ses", "--region", "nowhere"
    )
