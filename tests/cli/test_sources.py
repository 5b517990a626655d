"""`mailsvc sources`: pools of accounts and domains, and what sources sent."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess


@pytest.fixture
def mailsvc(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess.of(pool, tmp_path, monkeypatch)


@pytest_twisted.ensureDeferred
async def test_pools_of_accounts_and_domains_and_what_sources_sent(mailsvc: InProcess, database: str) -> None:
    await mailsvc.prints("account", "create", "Shop Ltd")
    await mailsvc.prints("domain", "add", "shop.example.com", "--account", "Shop Ltd")
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sources (region, address, pool, since, seen_at, listed, listed_at) VALUES"
            " ('us-east-1', '192.0.2.1', '', NULL, now(), '{}', NULL),"
            " ('us-east-1', '192.0.2.2', 'shop', (now() AT TIME ZONE 'UTC')::date - 1, now(), '{}', NULL),"
            " ('us-east-1', '192.0.2.3', 'shop', '2020-01-01', now() - interval '1 hour', '{list.example}', now())"
        )
        cursor.execute(
            "INSERT INTO source_days VALUES ('us-east-1', '192.0.2.2', 'google', (now() AT TIME ZONE 'UTC')::date, 30, 5),"
            " ('us-east-1', '192.0.2.1', 'google', (now() AT TIME ZONE 'UTC')::date - 1, 40, 5)"
        )
    done = await mailsvc.prints("sources", "assign", "shop", "--account", "Shop Ltd")
    assert (done.output, done.messages) == ("Mail of Shop Ltd is sent from the pool shop.\n", "")
    assigned = await mailsvc("sources", "assign", "letters", "--domain", "shop.example.com")
    assert (assigned.status, assigned.output) == (0, "Mail from shop.example.com is sent from the pool letters.\n")
    assert "has a source address of the pool letters, so this mail waits" in assigned.messages
    assert "is not the name of a pool" in await mailsvc.refuses("sources", "assign", "Shop!", "--account", "Shop Ltd", status=2)
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT action, subject FROM audit_entries WHERE action LIKE 'pool%' ORDER BY id")
        assert cursor.fetchall() == [("pool assigned", "shop"), ("pool assigned", "letters for shop.example.com")]
    shown = (await mailsvc.prints("sources", "list")).lines
    assert shown[:2] == ["192.0.2.1  pool default", "192.0.2.2  pool shop  day 2 of its warm-up  google 30 of 206"]
    assert re.fullmatch(r"192\.0\.2\.3  pool shop  sends no mail since \S+: on list\.example  no process has it", shown[2])
    assert shown[3:] == ["pool letters: domain shop.example.com of Shop Ltd", "pool shop: account Shop Ltd"]
    await mailsvc.prints("sources", "unassign", "--account", "Shop Ltd")
    found = (await mailsvc.prints("sources", "list", "--json")).json
    assert found["sources"][1]["today"] == [{"provider": "google", "emails": 30, "limit": 206}]
    assert found["pools"] == [{"pool": "letters", "kind": "domain", "name": "shop.example.com", "account": "Shop Ltd"}]
