"""`mailsvc explain`: the story of an email."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted

from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess.of(pool, tmp_path, monkeypatch)


@pytest_twisted.ensureDeferred
async def test_an_email_is_explained_by_any_of_its_ids(mailsvc: InProcess, database: str) -> None:
    account, email = await mailsvc.printed("account", "create", "Example Ltd"), str(uuid7(time.time()))
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO emails (account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to,"
            " recipients, subject, size, bulk) VALUES (%s, %s, now(), 'smtp', %s, '<1@example.com>', 'a@example.com',"
            " '{b@example.net}', '{}', '{}', '{}', '{b@example.net}', 'Hello', 100, false)",
            (account, email, account),
        )
        cursor.execute(
            "INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at,"
            " expires_at, reason) VALUES (%s, 0, %s, %s, 'r', 'b@example.net', 'mx.example.net', 'delayed', false,"
            " now() + interval '1 hour', now() + interval '1 day', '451 Later')",
            (email, account, account),
        )
    story = await mailsvc.printed("explain", f"{email}/1")
    assert "over SMTP for the account Example Ltd (number 1)." in story
    assert "It is from “a@example.com”, 100 bytes." in story
    await mailsvc.printed("account", "access", account, "--reason", "Ticket 7")
    assert "It is from “a@example.com” with the subject “Hello”, 100 bytes." in await mailsvc.printed("explain", email)
    assert f"b@example.net ({email}/1)" in story
    assert re.search(
        r"  It is not delivered yet\. 451 Later\. The next attempt is at \d{4}-\S+ \S+ UTC \(in (1 hour|59 minutes)\)\. ", story
    )
    story = json.loads(await mailsvc.printed("explain", "<1@example.com>", "--json"))
    assert (story["id"], [(each["id"], each["status"]) for each in story["recipients"]]) == (email, [(f"{email}/1", "delayed")])
    assert await mailsvc.refuses("explain", f"{email}/2") == f"mailsvc: The email {email} has no recipient 2."
    assert "is neither an email's ID" in await mailsvc.refuses("explain", "nonsense")
