"""Experiments on the database: killed under load, frozen, dropped, full, without power, replaced by its standby; and a wrong key."""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn

from mailsvc.tap import STOP
from tests.chaos.cluster import NAME, Cluster, disk, fill, place
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, Ground, ground, in_background, sink, until
from tests.end_to_end.relay_rig import connect
from tests.end_to_end.rig import Daemon, free_port

BODY = 3_000_000
POOL = 8
COMPILER = shutil.which("cc") or shutil.which("gcc")
ADDRESS = "c{}-{}@example.net"


def _administer(dsn: str, statement: str) -> None:
    """Runs statements in the database `postgres` of the same server."""
    connection = psycopg2.connect(make_dsn(dsn, dbname="postgres"), connect_timeout=10)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


def _checks(daemon: Daemon) -> dict[str, str]:
    """Returns the response of /readyz by check."""
    answer = daemon.call("GET", "/readyz")
    return dict(answer.body["checks"]) if answer.status == 200 else {"not ready": str(answer.body["message"])}


def _whole(daemon: Daemon) -> bool:
    """Waits until the process is ready with all connections."""
    found = _checks(daemon)
    return found.get("database") == "ok" and found.get("connections") == "ok"


def _send(client: Client, groups: int, size: int, text: int = 0, until_set: Event | None = None) -> Any:
    """Sends in the background: batches or, with `text`, single emails of that length.

    With `until_set`, sends further groups, up to 100 times as many, until the event is set.
    """

    def work() -> None:
        for n in range(groups * 100 if until_set else groups):
            if n >= groups and until_set and until_set.is_set():
                return
            if text:
                client.large(ADDRESS.format(n, 0), text)
            else:
                client.batch(ADDRESS.format(n, m) for m in range(size))

    return in_background(work)


def killed_backends(emails: int, kills: int) -> Figures:
    """T15: backends are killed during 3 MB statements, and sometimes the whole server. The pool recovers each time."""
    figures, began = Figures("T15 backends killed under 3 MB statements"), time.monotonic()
    moments, slowest = random.Random(815), 0.0
    with sink() as target, ground() as here:
        daemon = here.daemon({**_all(target.port), "database": {"pool": POOL}})
        clients = [Client(daemon) for _ in range(3)]
        stop = Event()
        sending = [in_background(_until(stop, client, number, emails)) for number, client in enumerate(clients)]
        for turn in range(kills):
            time.sleep(moments.uniform(0.05, 0.5))
            if turn % 10 == 9:
                here.end_postgres()
                here.start_postgres()
            else:
                _end_backends(here, daemon, signal.SIGKILL if turn % 3 == 2 else signal.SIGTERM)
            since = time.monotonic()
            until(lambda: _whole(daemon), 60, lambda: f"the pool to be full again: {_checks(daemon)}; {daemon.log[-2000:]}")
            slowest = max(slowest, time.monotonic() - since)
        stop.set()
        for thread in sending:
            thread.join(300)
            assert not thread.is_alive()
        ids = [each for client in clients for each in client.ids]
        _finish(figures, here, target, ids, 120)
        refused = sum(len(client.refused) for client in clients)
    figures.notes = {"kills": kills, "refused meanwhile": refused, "pool full again after at most": f"{slowest:.1f} s"}
    assert figures.lost == 0
    assert figures.duplicates <= kills * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def _until(stop: Event, client: Client, number: int, emails: int) -> Callable[[], None]:
    def work() -> None:
        for n in range(emails):
            if stop.is_set():
                return
            client.large(ADDRESS.format(number, n), BODY, f"large{number}")

    return work


def _end_backends(here: Ground, daemon: Daemon, how: signal.Signals) -> None:
    """Ends all backends of the daemon with SIGTERM, or one with SIGKILL, after which Postgres restarts all of them."""
    with suppress(psycopg2.Error):
        pids = [pid for (pid,) in here.rows("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'mailsvc%%'")]
        for pid in pids if how == signal.SIGTERM else pids[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, how)


def frozen(emails: int, seconds: float) -> Figures:
    """T16: the server accepts connections but does nothing: SIGSTOP to all processes, SIGCONT later."""
    figures, began = Figures("T16 the database is frozen"), time.monotonic()
    with sink() as target, _cluster() as server, ground(server) as here:
        daemon = here.daemon(_all(target.port))
        client = Client(daemon)
        client.batch(ADDRESS.format("a", n) for n in range(emails))
        server.freeze()
        stopped, slowest = time.monotonic(), 0.0
        while time.monotonic() - stopped < seconds:
            began = time.monotonic()
            answer = daemon.call("POST", "/emails", client.email("x@example.net"), key=client.key, seconds=90)
            slowest = max(slowest, time.monotonic() - began)
            assert answer.status == 503 and int(_header(answer, "retry-after")) > 0, answer
        assert "not ready" in _checks(daemon) or seconds < 45, _checks(daemon)
        alive = time.monotonic()
        assert daemon.call("GET", "/healthz").status == 200
        alive = time.monotonic() - alive
        server.thaw()
        back = time.monotonic()
        until(lambda: _whole(daemon), 60, lambda: f"readiness: {_checks(daemon)}")
        figures.notes = {
            "longest wait for a 503": f"{slowest:.0f} s",
            "/healthz meanwhile": f"{alive * 1000:.0f} ms",
            "ready again after": f"{time.monotonic() - back:.1f} s",
        }
        client.batch(ADDRESS.format("b", n) for n in range(20))
        _finish(figures, here, target, client.ids, 120)
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def dropped(emails: int, away: float) -> Figures:
    """T17: the database disappears and comes back, by renaming it twice."""
    figures, began = Figures("T17 the database is gone from its server"), time.monotonic()
    with sink() as target, _cluster() as server, ground(server) as here:
        daemon = here.daemon(_all(target.port))
        client = Client(daemon)
        sending = _send(client, emails // 20, 20)
        until(lambda: len(client.ids) >= emails // 4, 60, "the first emails")
        ends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{NAME}'"
        while True:
            _administer(server.dsn, ends)
            with suppress(psycopg2.errors.ObjectInUse):
                _administer(server.dsn, f"ALTER DATABASE {NAME} RENAME TO away")
                break
        until(lambda: "not ready" in _checks(daemon), 10, "the process not to be ready")
        time.sleep(away)
        _administer(server.dsn, f"ALTER DATABASE away RENAME TO {NAME}")
        back = time.monotonic()
        until(lambda: _whole(daemon), 60, lambda: f"readiness: {_checks(daemon)}")
        figures.notes = {"refused meanwhile": len(client.refused), "ready again after": f"{time.monotonic() - back:.1f} s"}
        sending.join(300)
        assert not sending.is_alive()
        _finish(figures, here, target, client.ids, 120)
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def full_disk(emails: int) -> Figures:
    """T18: the disk of the tables is full: 503, 452 and not ready, but reading works. Mail is accepted again once there is space."""
    figures, began = Figures("T18 the disk is full"), time.monotonic()
    with sink() as target, place() as folder, disk(folder / "disk", "256m") as small:
        server = Cluster(small, wal=folder / "wal")
        server.own(folder / "wal")
        server.make()
        relay = {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")}
        with ground(server) as here:
            daemon = here.daemon({**_all(target.port), "smtp": relay})
            client = Client(daemon)
            with connect(daemon) as session:
                client.batch(ADDRESS.format("a", n) for n in range(emails))
                filler = fill(small)
                codes = [client.post_once(ADDRESS.format("f", n), 200_000) for n in range(40)]
                refused = codes.count(503)
                assert set(codes) <= {200, 503} and refused, codes
                assert "its disk is full" in _checks(daemon).get("not ready", ""), _checks(daemon)
                code, reply = client.submit(session, "full@example.net", 200_000)
                assert (code, reply[:6]) == (452, b"4.3.1 "), (code, reply)
                assert daemon.call("GET", f"/emails/{client.ids[0]}", key=client.key).status == 200
                filler.unlink()
                back = time.monotonic()
                until(lambda: _whole(daemon), 30, lambda: f"readiness: {_checks(daemon)}")
                figures.notes = {"refused with 503": refused, "ready again after": f"{time.monotonic() - back:.1f} s"}
                assert client.submit(session, "again@example.net")[0] == 250
            client.batch(ADDRESS.format("b", n) for n in range(20))
            _finish(figures, here, target, client.ids, 120)
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def full_wal(emails: int) -> Figures:
    """T19: the disk of the write-ahead log is full: Postgres shuts down, cannot start, and recovers once there is space."""
    figures, began = Figures("T19 the disk of the WAL is full"), time.monotonic()
    with sink() as target, place() as folder, disk(folder / "wal", "48m") as small:
        server = Cluster(folder, {"min_wal_size": "4MB", "max_wal_size": "16MB"}, wal=small / "wal")
        server.own(small / "wal")
        server.make()
        with ground(server) as here:
            daemon = here.daemon(_all(target.port))
            client = Client(daemon)
            client.batch(ADDRESS.format("a", n) for n in range(emails))
            filler = fill(small)
            codes = []
            while server.alive and len(codes) < 400:
                codes.append(client.post_once(ADDRESS.format("f", len(codes)), 200_000))
            assert set(codes) <= {200, 503} and 503 in codes, codes
            until(lambda: "not ready" in _checks(daemon), 10, "the process not to be ready")
            filler.unlink()
            if not server.alive:
                server.start_blocking()
            back = time.monotonic()
            until(lambda: _whole(daemon), 60, lambda: f"readiness: {_checks(daemon)}")
            figures.notes = {"accepted until it was full": codes.count(200), "ready again after": f"{time.monotonic() - back:.1f} s"}
            client.batch(ADDRESS.format("b", n) for n in range(20))
            _finish(figures, here, target, client.ids, 120)
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def wrong_key(emails: int) -> Figures:
    """T20: the key file is replaced: a running process keeps the right keys, and a process does not start with wrong ones."""
    figures, began = Figures("T20 a wrong key"), time.monotonic()
    with sink() as target, ground() as here:
        daemon = here.daemon(_all(target.port))
        client = Client(daemon)
        key = here.folder / "secret.key"
        right = key.read_bytes()
        key.write_text(f"1 {base64.b64encode(os.urandom(32)).decode()}\n")
        until(lambda: _checks(daemon)["keys"] != "ok", 10, "the change to be noticed")
        client.batch((ADDRESS.format("a", n) for n in range(emails)), "a")
        until(lambda: set(client.ids) <= target.ids(), 60, "the mail that is signed with the right key")
        client.batch((ADDRESS.format("b", n) for n in range(emails)), "b")
        daemon.kill()
        with suppress(AssertionError):
            daemon.start(20)
            raise RuntimeError("it started with a wrong key")
        assert "mailsvc cannot start. The setting secrets.key_file" in daemon.log
        key.write_bytes(right)
        daemon.start()
        _finish(figures, here, target, client.ids, 120)
        [(failed,)] = here.rows("SELECT count(*) FROM events WHERE type IN ('email.failed', 'email.bounced')")
    figures.notes = {"failed": failed}
    assert (figures.lost, failed) == (0, 0)
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def stopped_without_database(drain: float) -> Figures:
    """T21: SIGTERM while there is no database, with outcomes that cannot be written; and while it is frozen."""
    figures, began = Figures("T21 SIGTERM without a database"), time.monotonic()
    for name in ("away", "frozen"):
        with sink() as target, _cluster() as server, ground(server) as here:
            daemon = here.daemon(_all(target.port, drain_seconds=drain))
            client = Client(daemon)
            client.batch(ADDRESS.format("a", n) for n in range(200))
            (server.kill if name == "away" else server.freeze)()
            threads = [in_background(partial(_quietly, client)) for _ in range(5)]
            time.sleep(3)
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGTERM)
            stopped_at = time.monotonic()
            assert daemon.process.wait(120) == 0
            took = time.monotonic() - stopped_at
            daemon.process = None
            for thread in threads:
                thread.join(60)
            figures.notes[f"ended, database {name}, after"] = f"{took:.0f} s"
            assert took < drain + STOP + 10, f"{took} s; {daemon.log[-3000:]}"
            server.thaw()
            if name == "away":
                server.start_blocking()
            daemon.start()
            _finish(figures, here, target, client.ids, 120)
    assert figures.lost == 0
    figures.seconds = time.monotonic() - began
    return figures


def _quietly(client: Client) -> None:
    with suppress(OSError, ValueError):
        client.post_once("x@example.net")


def power_cuts(emails: int, cuts: int, **settings: str) -> Figures:
    """T22: the machine of daemon and database loses power. Unsynced writes are lost, or a random half of them."""
    figures, began = Figures("T22 power cuts"), time.monotonic()
    moments, unsynced = random.Random(2606), 0
    with sink() as target, place() as folder:
        server = Cluster(folder, {"wal_sync_method": "fdatasync", "checkpoint_timeout": "30s", "max_wal_size": "16MB", **settings})
        server.make()
        kept = server.own(folder / "kept")
        server.environment = {"LD_PRELOAD": str(shim(folder)), "POWERCUT_DATA": str(server.data), "POWERCUT_KEPT": str(kept)}
        _copy(server.data, kept)
        with ground(server) as here:
            daemon = here.daemon(_all(target.port))
            client = Client(daemon)
            sending = _send(client, emails // 20, 20)
            for cut in range(cuts):
                time.sleep(moments.uniform(0.5, 2.5))
                server.kill()
                daemon.kill()
                unsynced += _lose_power(server.data, kept, moments if cut % 2 else None)
                server.start_blocking()
                daemon.start()
            sending.join(300)
            assert not sending.is_alive()
            _finish(figures, here, target, client.ids, 120)
    figures.notes = {
        "cuts": cuts,
        "lost by the cuts": f"{unsynced >> 10} kB that were not synced",
        "duplicates allowed": cuts * CONNECTIONS,
    }
    assert figures.lost == 0
    assert figures.duplicates <= cuts * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def shim(folder: Path) -> Path:
    """The environment that makes a server lose unsynced writes."""
    assert COMPILER is not None
    library = folder / "powercut.so"
    source = Path(__file__).with_name("powercut.c")
    subprocess.run([COMPILER, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    library.chmod(0o755)
    return library


def _lose_power(data: Path, kept: Path, torn: random.Random | None) -> int:
    """`data` becomes `kept`; with `torn`, a random half of the blocks that differ was written before the end. How many bytes differed."""
    differed = 0
    for lasting in kept.rglob("*"):
        volatile = data / lasting.relative_to(kept)
        if not lasting.is_file() or not volatile.is_file():
            continue
        new, old = volatile.read_bytes(), lasting.read_bytes()
        if new == old:
            continue
        differed += abs(len(new) - len(old))
        with lasting.open("r+b") as file:
            for at in range(0, len(old), 4096):
                if new[at : at + 4096] != old[at : at + 4096]:
                    differed += 4096
                    if torn is not None and torn.random() < 0.5:
                        file.seek(at)
                        file.write(new[at : at + 4096][: len(old) - at])
    shutil.rmtree(data)
    _copy(kept, data)
    return differed


def _copy(source: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", f"{source}/.", str(to)] if to.exists() else ["cp", "-a", str(source), str(to)], check=True, timeout=60)


@contextmanager
def _cluster() -> Iterator[Cluster]:
    with place() as folder:
        server = Cluster(folder)
        server.make()
        try:
            yield server
        finally:
            server.kill()


def _header(answer: Any, name: str) -> str:
    found: Iterable[tuple[str, str]] = answer.headers.items()
    return next(value for key, value in found if key.lower() == name)
