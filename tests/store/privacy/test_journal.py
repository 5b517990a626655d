"""The erasure journal: an erasure is applied again to a database that does not have it."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.runtime.privacy import EVERY, ErasureService
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.journal import Entry, Journal, JournalError, Recorded, apply
from tests.store.fixtures import NOW
from tests.store.privacy.filling import ACCOUNT, CANARY, KEYS, fill, leaks, traces
from tests.store.privacy.test_eraser import eraser


def entry(number: int, day: date) -> Entry:
    return Entry(UUID(int=number), day, None, f"{number}@example.net", suppress=number == 2)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "erasures", KEYS, 10)


def test_entries_are_read_back_and_do_not_show_the_address(journal: Journal) -> None:
    assert journal.entries() == [] and journal.expire(NOW) == 0
    given = [entry(1, date(2026, 1, 1)), entry(2, date(2026, 1, 2)), Entry(UUID(int=3), date(2026, 1, 3), ACCOUNT, CANARY)]
    for each in given:
        journal.add(each)
    assert journal.entries() == given
    assert not [trace for trace in traces() if trace in journal.file.read_bytes()]
    assert journal.file.stat().st_mode & 0o777 == 0o600


def test_entries_expire_with_the_oldest_backup(journal: Journal) -> None:
    for number in (1, 2, 3):
        journal.add(entry(number, date(2026, 1, number)))
    assert journal.expire(datetime(2026, 1, 12, 12)) == 1
    assert [each.id.int for each in journal.entries()] == [2, 3]


@pytest.mark.parametrize("line", ["", "damaged", "x 2026-x1-01 AAAA"])
def test_a_damaged_line_stays_and_is_an_error(journal: Journal, line: str) -> None:
    journal.add(entry(1, date(2026, 1, 1)))
    with journal.file.open("a") as file:
        file.write(f"{line}\n")
    assert journal.expire(datetime(2026, 1, 12, 12)) == 1 and journal.file.read_text() == f"{line}\n"
    with pytest.raises(JournalError, match=r"Line 1 of the erasure journal .* cannot be read: it is damaged\. Restore the file"):
        journal.entries()


def test_what_a_crash_cut_off_was_never_begun(journal: Journal) -> None:
    journal.add(entry(1, date(2026, 1, 1)))
    with journal.file.open("ab") as file:
        file.write(b"00000000-0000-0000-0000-00000000")
    assert [each.id.int for each in journal.entries()] == [1]


def test_an_entry_after_a_crash_is_read_back(journal: Journal) -> None:
    given = [entry(1, date(2026, 1, 1)), entry(2, date(2026, 1, 2)), entry(3, date(2026, 1, 3))]
    journal.add(given[0])
    for following in given[1:]:
        with journal.file.open("ab") as file:
            file.write(b"00000000-0000-0000-0000-000000000009 2026-01-01 AAAA")  # without its end
        journal.add(following)
    assert journal.entries() == given


def test_an_entry_that_does_not_fit_on_the_disk_leaves_the_others(journal: Journal) -> None:
    journal.add(entry(1, date(2026, 1, 1)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.file.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(JournalError, match=r"erasures cannot be written: File too large\."):
            journal.add(entry(2, date(2026, 1, 2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.add(entry(3, date(2026, 1, 3)))
    assert [each.id.int for each in journal.entries()] == [1, 3]


def test_entries_that_expire_on_a_full_disk_stay_until_there_is_room(journal: Journal) -> None:
    for number, day in enumerate((1, 5, 9), 1):
        journal.add(entry(number, date(2026, 1, day)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(JournalError, match=r"erasures cannot be used: File too large\."):
            journal.expire(datetime(2026, 1, 12, 12))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(journal.entries()) == 3 and list(journal.file.parent.iterdir()) == [journal.file]
    assert journal.expire(datetime(2026, 1, 12, 12)) == 1


@pytest_twisted.ensureDeferred
async def test_a_journal_that_cannot_be_used_is_logged_without_a_traceback(
    pool: Pool, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.file.mkdir()

    async def in_thread(call: Callable[[], Any]) -> Any:
        return call()

    clock, stops = Clock(), list[Callable[[], Any]]()
    monkeypatch.setattr(ErasureService, "continue_all", lambda self: self._expire(NOW))
    service = ErasureService(clock, Recorded(Eraser(pool, pool.reactor, KEYS, in_thread), journal))
    service.start(Mock(add=lambda _, stop: stops.append(stop)))
    with capturedLogs() as logged:
        clock.advance(EVERY)
    await stops[0]()
    assert [event["log_format"] for event in logged] == ["{what} failed, retrying in {pause:g} s: {error}"]
    assert "erasures, which cannot be written: Is a directory." in logged[0]["error"]


@pytest_twisted.ensureDeferred
async def test_a_process_that_was_stopped_with_the_lock_stops_no_other(pool: Pool, journal: Journal) -> None:
    waits = Journal(journal.file, KEYS, 10, patience=0.0)
    journal.add(entry(1, date(2026, 1, 1)))
    called: list[str] = []

    async def in_thread(call: Callable[[], Any]) -> Any:
        called.append(getattr(call, "func", call).__name__)
        return call()

    erasing = Recorded(Eraser(pool, pool.reactor, KEYS, in_thread), waits)
    with journal.file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for use in (
            lambda: erasing.begin(None, CANARY, False, "command"),
            lambda: apply(erasing.eraser, waits, restored=False),
            lambda: ErasureService(pool.reactor, erasing)._expire(NOW),
        ):
            with pytest.raises(JournalError, match=r"erasures is locked by another process, which may have been stopped\."):
                await use()
    assert called == ["add", "entries", "expire"]


def test_a_journal_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = Journal(tmp_path / "none" / "erasures", KEYS, 10)
    for use in (missing.entries, partial(missing.add, entry(1, date(2026, 1, 1)))):
        with pytest.raises(JournalError, match=r"The setting privacy\.journal is .*/none/erasures, which cannot be written: No such file"):
            use()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_journal_that_root_creates_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 1234)
    journal = Journal(tmp_path / "erasures", KEYS, 10)
    assert journal.entries() == []
    assert (journal.file.stat().st_uid, journal.file.stat().st_gid, journal.file.stat().st_mode & 0o777) == (4321, 1234, 0o600)


def test_an_unreadable_entry_is_an_error(journal: Journal) -> None:
    journal.add(entry(1, date(2026, 1, 1)))
    with pytest.raises(JournalError, match=r"Line 1 of the erasure journal .* cannot be read"):
        Journal(journal.file, Encryption.read("2 " + "A" * 43 + "=", "the test"), 10).entries()


@pytest_twisted.ensureDeferred
async def test_a_restored_database_is_erased_again(pool: Pool, database: str, journal: Journal) -> None:
    recorded = Recorded(eraser(pool), journal)
    both = [recorded, Recorded(eraser(pool), journal)]  # of two processes at the same time, such as for an account whose time has come
    begun, same = await gatherResults([Deferred.fromCoroutine(each.begin(None, CANARY, False, "command")) for each in both])
    assert begun == same and len(journal.entries()) == 1
    assert await recorded.begin(None, CANARY, False, "command") == begun  # it is continued
    assert [each.email for each in journal.entries()] == [CANARY]
    await recorded.eraser.run(begun, CANARY)
    assert await apply(recorded.eraser, journal, restored=False) == 0
    await pool.run("DELETE FROM erasures")  # yesterday's backup has no record of it, but the data
    fill(database)
    assert leaks(database)
    assert await apply(recorded.eraser, journal, restored=True) == 1
    assert leaks(database) == []
    [(id_, origin, finished)] = await pool.rows("SELECT id, origin, finished_at IS NOT NULL FROM erasures")
    assert (id_, origin, finished) == (begun.id, "journal", True)
    assert await apply(recorded.eraser, journal, restored=True) == 0


@pytest_twisted.ensureDeferred
async def test_one_that_was_killed_after_the_restore_is_finished_before_anything_else(pool: Pool, database: str, journal: Journal) -> None:
    fill(database)
    erase = eraser(pool)
    journal.add(Entry(UUID(int=7), date(2026, 1, 1), None, CANARY))
    erase.stopped = True
    assert await apply(erase, journal, restored=True) == 1 and leaks(database)
    erase.stopped = False
    assert await apply(erase, journal, restored=False) == 1
    assert leaks(database) == []
