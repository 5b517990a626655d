"""Whether Postgres can write, as `mailsvc doctor` finds it."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.logger import capturedLogs

from mailsvc.store.postgres import trial
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import write_problem
from tests.store.postgres.test_pool_faults import FULL


@pytest_twisted.ensureDeferred
async def test_a_full_disk_is_found_and_the_test_leaves_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await write_problem(pool) is None
    assert await pool.rows("SELECT to_regclass('mailsvc_write_probe')") == [(None,)]
    await pool.rows(FULL)
    monkeypatch.setattr(trial, "WRITE", "INSERT INTO room VALUES ('x')")
    with capturedLogs():
        assert await write_problem(pool) == "its disk is full"


@pytest_twisted.ensureDeferred
async def test_a_role_that_may_not_create_tables_is_no_problem(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "WRITE", "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '42501'; END $$")
    assert await write_problem(pool) is None
