"""Experiments with a standby that takes over: a synchronous one, which has everything, one that has fallen behind, and one with Patroni."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from psycopg2.extensions import make_dsn

from tests.chaos.citus_nodes import RunningServer
from tests.chaos.cluster import NAME, Cluster, place
from tests.chaos.databases import _administer, _checks, _send, _whole
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, Ground, ground, sink, until
from tests.chaos.patroni import supervised_pair
from tests.end_to_end.rig import Daemon

HELD = "this database was restored"  # in the log
WAITED_FOR = "it has everything that was acknowledged"  # what doctor says of a synchronous standby
DEFERRED = 20  # emails that are queued when the standby falls behind, and delivered before the primary dies


def standby(emails: int) -> Figures:
    """T23: the primary is killed under load, its synchronous standby is promoted, and the process continues there."""
    figures, began = Figures("T23 a standby takes over"), time.monotonic()
    with sink() as target, _pair() as (primary, other, hosts), ground(other, hosts) as here:
        _administer(primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        _administer(primary.dsn, "SELECT pg_reload_conf()")
        daemon = here.daemon(_all(target.port))
        client, taken_over = Client(daemon), Event()
        sending = _send(client, emails // 20, 20, until_set=taken_over)
        until(lambda: len(client.ids) >= emails // 3, 120, "the first emails")
        [(state,)] = here.rows("SELECT sync_state FROM pg_stat_replication")
        assert state == "sync"
        assert WAITED_FOR in _doctor(daemon)
        primary.kill()
        gone, before = time.monotonic(), len(client.ids)
        _administer(other.dsn, "SELECT pg_promote()")
        until(lambda: len(client.ids) > before, 60, lambda: f"the acceptance after the takeover: {_checks(daemon)}")
        taken_over.set()
        figures.notes["accepts again after"] = f"{time.monotonic() - gone:.1f} s"
        sending.join(300)
        assert not sending.is_alive()
        _finish(figures, here, target, client.ids, 120)
        until(lambda: _whole(daemon), 30, lambda: f"readiness: {_checks(daemon)}")
        assert HELD not in daemon.log
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def fallen_behind(emails: int) -> Figures:
    """T28: an asynchronous standby that has fallen behind is promoted. All mail is held until the operator releases it."""
    figures, began = Figures("T28 an asynchronous standby takes over"), time.monotonic()
    with sink() as target, _pair() as (primary, other, hosts), ground(other, hosts) as here:
        daemon = here.daemon(_all(target.port, greylist_seconds=0))
        client = Client(daemon)
        addresses = [f"d{number}@example.net" for number in range(DEFERRED)]
        target.refuse.update(dict.fromkeys(addresses, "450 4.2.0 Not now"))
        client.batch(addresses)
        client.batch(f"a{number}@example.net" for number in range(emails))
        deferred = lambda: here.rows("SELECT count(*) FROM queue WHERE status = 'delayed'")[0][0]  # noqa: E731
        until(lambda: len(target.ids()) == emails and deferred() == DEFERRED, 60, "the first emails")
        assert "the last emails may be missing" in _doctor(daemon)
        _stop_replication(here, other)
        target.refuse.clear()
        client.batch(f"b{number}@example.net" for number in range(emails))  # in the database of the primary only
        until(lambda: len(target.ids()) == DEFERRED + 2 * emails, 60, "the emails that the standby does not know of")
        primary.kill()
        _administer(other.dsn, "SELECT pg_promote()")
        until(lambda: HELD in daemon.log, 60, "the restore guard")
        until(lambda: _whole(daemon), 60, lambda: f"readiness: {_checks(daemon)}")
        client.batch(f"c{number}@example.net" for number in range(emails))  # accepted, and held
        figures.notes["unknown to the standby"] = missing = len(client.ids) - here.rows("SELECT count(*) FROM emails")[0][0]
        assert missing == emails
        time.sleep(3)  # in which mail that is not held would be sent
        assert (here.waiting(), target.duplicates()) == (DEFERRED + emails, 0)
        daemon.command("queue", "release")
        until(lambda: not here.waiting(), 60, "an empty queue")
        figures.accepted, figures.delivered = len(client.ids), len(set(client.ids) & target.ids())
        figures.lost, figures.duplicates = figures.accepted - figures.delivered, target.duplicates()
    assert figures.duplicates == DEFERRED, "what was sent after the standby fell behind"
    figures.seconds = time.monotonic() - began
    return figures


def promoted(emails: int) -> Figures:
    """T33: under load, the primary and its Patroni are killed. Patroni promotes the standby, and the old primary comes back as one."""
    figures, began = Figures("T33 Patroni promotes the standby"), time.monotonic()
    with sink() as target, supervised_pair() as pair, ground(RunningServer(pair.url)) as here:
        daemon = here.daemon(_all(target.port))
        client, taken_over = Client(daemon), Event()
        sending = _send(client, emails // 20, 20, until_set=taken_over)
        until(lambda: len(client.ids) >= emails // 3, 120, "the first emails")
        assert WAITED_FOR in _doctor(daemon)
        old = pair.primary()
        old.kill()
        gone, before = time.monotonic(), len(client.ids)
        until(lambda: len(client.ids) > before, 120, lambda: f"the acceptance after the takeover: {_checks(daemon)}\n{pair.log()}")
        figures.notes["accepts again after"] = f"{time.monotonic() - gone:.1f} s"
        taken_over.set()
        sending.join(300)
        assert not sending.is_alive()
        assert pair.primary() is not old
        assert "no standby is connected" in _doctor(daemon)
        back = time.monotonic()
        old.start()
        until(pair.synchronous, 120, lambda: f"the old primary as a standby: {pair.roles()}\n{pair.log()}")
        figures.notes["a standby again after"] = f"{time.monotonic() - back:.1f} s"
        assert WAITED_FOR in _doctor(daemon)
        _finish(figures, here, target, client.ids, 120)
        until(lambda: _whole(daemon), 30, lambda: f"readiness: {_checks(daemon)}")
        assert HELD not in daemon.log
    assert figures.lost == 0
    assert figures.duplicates <= CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


@contextmanager
def _pair() -> Iterator[tuple[Cluster, Cluster, str]]:
    """A primary, its standby, and the DSN of both."""
    with place() as folder:
        settings = {"wal_level": "replica", "hot_standby": "on"}
        primary, other = Cluster(folder / "primary", settings), Cluster(folder / "standby", settings)
        primary.make()
        try:
            primary.start_blocking()
            other.copy_of(primary)
            other.start_blocking()
            ports = f"{primary.port},{other.port}"
            yield (
                primary,
                other,
                make_dsn(host="127.0.0.1,127.0.0.1", port=ports, user=NAME, dbname=NAME, target_session_attrs="read-write"),
            )
        finally:
            primary.kill()
            other.kill()


def _stop_replication(here: Ground, other: Cluster) -> None:
    """From here on, the standby gets nothing; before, it got everything."""
    caught_up = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
    until(lambda: here.rows(caught_up) == [(True,)], 30, "the standby")
    _administer(other.dsn, "ALTER SYSTEM SET primary_conninfo = ''")
    _administer(other.dsn, "SELECT pg_reload_conf()")
    until(lambda: here.rows("SELECT count(*) FROM pg_stat_replication") == [(0,)], 30, "the end of the replication")


def _doctor(daemon: Daemon) -> str:
    """What `mailsvc doctor` prints, whatever it finds."""
    return daemon._run(["doctor", "--no-probe"]).stdout
