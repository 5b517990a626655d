"""The embedded Postgres: starting, sharing it between processes, surviving crashes, and its folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from mailsvc.runtime.database import CHECK_EVERY
from mailsvc.runtime.polling import every
from mailsvc.store.postgres import embedded as module
from mailsvc.store.postgres.binaries import Binaries, find_binaries
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.supervisor import Supervisor
from mailsvc.store.postgres.system_user import EmbeddedError, Owner, owner_for, reachable

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
QUICK = {"fsync": "off", "shared_buffers": "16MB"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A stopped cluster to copy: creating one takes half a second."""
    top = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))
    top.chmod(0o711)
    server = EmbeddedPostgres.at(top / "pg", QUICK)
    server.start_blocking()
    server.stop_blocking()
    yield server.folder
    shutil.rmtree(top)


@pytest.fixture
def server(cluster: Path) -> Iterator[EmbeddedPostgres]:
    top = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))
    top.chmod(0o711)
    os.system(f"cp -a {cluster} {top}/pg")
    server = EmbeddedPostgres.at(top / "pg", QUICK)
    yield server
    server.stop_blocking()
    assert server.pid is None
    shutil.rmtree(top)


def query(dsn: str, sql: str) -> Any:
    connection = psycopg2.connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            [(value,)] = cursor.fetchall()
            return value
    finally:
        connection.close()


def test_it_starts_quickly_with_durable_settings(server: EmbeddedPostgres) -> None:
    server.settings = {}
    begun = time.monotonic()
    dsn = server.start_blocking()
    assert time.monotonic() - begun < 3
    shown = {
        name: query(dsn, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "TimeZone")
    }
    assert shown == {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": "", "TimeZone": "UTC"}
    assert query(dsn, "SELECT datcollate || encoding::text FROM pg_database WHERE datname = current_database()") in ("C6", "C.UTF-86")
    assert query(dsn, "SELECT upper('é')") == "É"
    assert int(query(dsn, "SHOW max_connections")) >= 250  # the most that database.pool can be, and some for commands


def test_only_its_user_can_reach_the_socket(server: EmbeddedPostgres) -> None:
    dsn = server.start_blocking()
    folder = Path(psycopg2.extensions.parse_dsn(dsn)["host"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == server.owner.uid
    assert server.folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(dsn, user="postgres")


def test_other_processes_find_it_and_do_not_stop_it(server: EmbeddedPostgres) -> None:
    assert server.dsn() is None
    dsn = server.start_blocking()
    other = EmbeddedPostgres.at(server.folder)
    assert other.dsn() == dsn
    assert other.start_blocking() == dsn
    assert (server.managed, other.managed) == (True, False)
    other.stop_blocking()
    assert query(dsn, "SELECT 1") == 1


def test_a_server_that_outlived_its_daemon_is_taken_over(server: EmbeddedPostgres) -> None:
    dsn = server.start_blocking()
    pid = server.pid
    server._release_lock()  # as when the daemon is killed
    following = EmbeddedPostgres.at(server.folder)
    assert following.start_blocking() == dsn
    assert (following.managed, following.pid) == (True, pid)
    following.stop_blocking()
    assert not following.alive


def test_a_server_that_is_being_stopped_when_a_daemon_starts_is_started_again(server: EmbeddedPostgres) -> None:
    server.start_blocking()
    assert server.pid is not None
    server._release_lock()  # as when the daemon is killed
    os.kill(server.pid, signal.SIGINT)
    following = EmbeddedPostgres.at(server.folder, QUICK)
    assert query(following.start_blocking(5.0), "SELECT 1") == 1
    following.stop_blocking()


def test_committed_data_survives_a_crash(server: EmbeddedPostgres) -> None:
    dsn = server.start_blocking()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    connection.cursor().execute("CREATE TABLE kept AS SELECT 7 AS n")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    while server.alive:
        time.sleep(0.01)
    assert server.dsn() is None
    assert query(server.start_blocking(), "SELECT n FROM kept") == 7


def test_a_stale_pid_file_may_name_another_process(server: EmbeddedPostgres) -> None:
    other = subprocess.Popen(["sleep", "60"], **server.owner.process())
    stale = server.data / "postmaster.pid"
    stale.write_text(f"{other.pid}\n{server.data}\n1700000000\n5432\n/nowhere\n\n  1 2\nready\n")
    try:
        assert server.pid is None
        assert query(server.start_blocking(), "SELECT 1") == 1
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("left", [b"\0" * 90, b"\xff\n"], ids=["zeros", "not text"])
def test_a_pid_file_that_a_power_cut_has_left_does_not_prevent_a_start(server: EmbeddedPostgres, left: bytes) -> None:
    (server.data / "postmaster.pid").write_bytes(left)
    assert query(server.start_blocking(), "SELECT 1") == 1


def test_with_a_long_path_the_socket_is_elsewhere(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    top = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))
    top.chmod(0o711)
    folder = top / ("long-" * 18) / "pg"
    folder.parent.mkdir()
    os.system(f"cp -a {cluster} {folder}")
    server = EmbeddedPostgres.at(folder, QUICK)
    socket = Path(psycopg2.extensions.parse_dsn(server.start_blocking())["host"])
    try:
        assert socket.parent == Path("/tmp")
        assert socket.stat().st_mode & 0o777 == 0o700
        assert EmbeddedPostgres.at(folder).dsn() == server.dsn()
    finally:
        server.stop_blocking()
        shutil.rmtree(socket)
        shutil.rmtree(top)


def test_a_socket_folder_of_another_user_is_refused(server: EmbeddedPostgres, tmp_path: Path) -> None:
    (server.folder / "run").rmdir()
    (server.folder / "run").symlink_to(tmp_path)
    with pytest.raises(EmbeddedError, match="must be a folder owned by the user"):
        server.start_blocking()


def test_a_failed_start_reports_the_servers_output(server: EmbeddedPostgres) -> None:
    server.settings = {"shared_buffers": "nonsense"}
    with pytest.raises(EmbeddedError, match="shared_buffers"):
        server.start_blocking()


def test_data_of_another_version_is_not_touched(server: EmbeddedPostgres) -> None:
    (server.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match="Postgres 12 created"):
        server.start_blocking()


@as_root
def test_as_root_an_unreachable_folder_is_replaced_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    top = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))  # 0700
    elsewhere = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))
    elsewhere.chmod(0o711)
    monkeypatch.setattr(module, "FALLBACK", elsewhere / "lib")
    with capturedLogs() as events:
        server = EmbeddedPostgres.at(top / "var" / "postgres", QUICK)
    assert server.folder.is_relative_to(elsewhere)
    assert [event["folder"] for event in events] == [str(server.folder)]
    server.start_blocking()
    server.stop_blocking()
    assert top.stat().st_mode & 0o777 == 0o700
    top.chmod(0o711)
    assert EmbeddedPostgres.at(top / "var" / "postgres").folder == server.folder  # the data stays where it is
    shutil.rmtree(top)
    shutil.rmtree(elsewhere)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = EmbeddedPostgres(tmp_path / "file" / "pg", owner_for(tmp_path / "file" / "pg" / "data"), {})
    with pytest.raises(EmbeddedError, match="cannot be created"):
        server.start_blocking()


def test_what_an_interrupted_initdb_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data.abc.initdb/base", "data.old_copy"):
        (tmp_path / name).mkdir(parents=True)
    binaries = find_binaries()
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    EmbeddedPostgres(tmp_path, owner_for(tmp_path / "data"), {})._create_cluster(binaries, time.monotonic() + 60)
    assert {each.name for each in tmp_path.iterdir()} == {"data", "data.old_copy"}


def test_a_program_that_takes_too_long_is_reported(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = find_binaries()
    monkeypatch.setattr(module, "find_binaries", lambda major=None: binaries)

    def slow(command: list[str], **options: float) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(module.subprocess, "run", slow)
    with pytest.raises(EmbeddedError, match=r"^(initdb|postgres) did not finish within \d+ s: "):
        server.start_blocking()
    server._release_lock()


@as_root
def test_programs_in_an_unreachable_folder_are_copied(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_binaries()
    closed = Path(tempfile.mkdtemp(prefix="mailsvc-embedded-", dir="/tmp"))
    package = found.bin.parent.parent
    shutil.copytree(found.bin.parent, closed / package.name / found.bin.parent.name, symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs", symlinks=True)
    hidden = Binaries(closed / package.name / found.bin.parent.name / "bin", found.version)
    monkeypatch.setattr(module, "find_binaries", lambda major=None: hidden)
    (server.folder / f".postgres-{found.version}.{os.getpid()}" / package.name / found.bin.parent.name).mkdir(parents=True)  # interrupted
    assert query(server.start_blocking(), "SELECT 1") == 1
    assert closed.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(closed)


@as_root
def test_a_folder_is_reachable_if_its_user_may_enter_all_parents(tmp_path: Path) -> None:
    owner = Owner("somebody", 4711, 4712, frozenset({4712}))
    path = tmp_path / "a" / "b"
    path.mkdir(parents=True)
    top = Path(tempfile.mkdtemp(dir="/tmp"))
    (top / "a").mkdir()
    assert not reachable(top / "a", owner)
    os.chown(top, 4711, 0)
    assert reachable(top / "a", owner)
    assert reachable(top / "a" / "not" / "there" / "yet", owner)
    shutil.rmtree(top)


@pytest_twisted.ensureDeferred
async def test_the_supervisor_restarts_a_server_that_died(server: EmbeddedPostgres) -> None:
    from twisted.internet import reactor

    supervisor = Supervisor(server, reactor)
    dsn = await supervisor.start()
    stop_checks = every(reactor, CHECK_EVERY, "restarting Postgres", supervisor.check)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    for _ in range(500):
        if supervisor.restarts:
            break
        await deferLater(reactor, 0.02)  # type: ignore[arg-type]
    assert query(dsn, "SELECT 1") == 1
    await stop_checks()
    await supervisor.stop()
    assert not server.alive
