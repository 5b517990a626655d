"""Experiments with a standby that takes over: a synchronous one, which has everything, one that has fallen behind, and one with Patroni.

Each with one Postgres and with the node of a cell; and with the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Event

from tests.chaos.citus_nodes import Node, administer
from tests.chaos.cluster import Cluster
from tests.chaos.databases import _checks, _send, _whole
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, Ground, ground, sink, until
from tests.chaos.pairs import Pair, coordinator_of_cell, node_of_cell, one_postgres
from tests.chaos.patroni import Supervised, supervised_cell, supervised_pair
from tests.end_to_end.rig import Daemon

HELD = "this database was restored"  # in the log
WAITED_FOR = "it has everything that was acknowledged"  # what doctor says of a synchronous standby
Made = Callable[[], AbstractContextManager[Pair]]
DEFERRED = 20  # emails that are queued when the standby falls behind, and delivered before the primary dies


def standby(emails: int, pair: Made = one_postgres, name: str = "T23 a standby takes over") -> Figures:
    """T23, T39: the primary is killed under load, its synchronous standby is promoted, and the process continues there."""
    figures, began = Figures(name), time.monotonic()
    with sink() as target, pair() as servers, ground(servers.server, servers.dsn) as here:
        administer(servers.primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
        daemon = here.daemon({**_all(target.port), **servers.settings})
        client, taken_over = Client(daemon), Event()
        sending = _send(client, emails // 20, 20, until_set=taken_over)
        until(lambda: len(client.ids) >= emails // 3, 120, "the first emails")
        [(state,)] = here.rows("SELECT sync_state FROM pg_stat_replication")
        assert state == "sync"
        assert WAITED_FOR in _doctor(daemon)
        servers.primary.kill()
        gone, before = time.monotonic(), len(client.ids)
        servers.promote()
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


def of_a_node(emails: int) -> Figures:
    return standby(emails, node_of_cell, "T39 the standby of a cell's node takes over")


def fallen_behind(emails: int, pair: Made = one_postgres, name: str = "T28 an asynchronous standby takes over") -> Figures:
    """T28, T40: an asynchronous standby that has fallen behind is promoted. All mail is held until the operator releases it."""
    figures, began = Figures(name), time.monotonic()
    with sink() as target, pair() as servers, ground(servers.server, servers.dsn) as here:
        daemon = here.daemon({**_all(target.port, greylist_seconds=0), **servers.settings})
        client = Client(daemon)
        addresses = [f"d{number}@example.net" for number in range(DEFERRED)]
        target.refuse.update(dict.fromkeys(addresses, "450 4.2.0 Not now"))
        client.batch(addresses)
        client.batch(f"a{number}@example.net" for number in range(emails))
        deferred = lambda: here.rows("SELECT count(*) FROM queue WHERE status = 'delayed'")[0][0]  # noqa: E731
        until(lambda: len(target.ids()) == emails and deferred() == DEFERRED, 60, "the first emails")
        assert "the last emails may be missing" in _doctor(daemon)
        _stop_replication(here, servers.standby)
        target.refuse.clear()
        client.batch(f"b{number}@example.net" for number in range(emails))  # in the database of the primary only
        until(lambda: len(target.ids()) == DEFERRED + 2 * emails, 60, "the emails that the standby does not know of")
        servers.primary.kill()
        servers.promote()
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


def of_a_node_fallen_behind(emails: int) -> Figures:
    return fallen_behind(emails, node_of_cell, "T40 an asynchronous standby of a cell's node takes over")


def promoted(
    emails: int,
    supervised: Callable[[], AbstractContextManager[Supervised]] = supervised_pair,
    name: str = "T33 Patroni promotes the standby",
) -> Figures:
    """T33, T42: under load, the primary and its Patroni are killed. Patroni promotes the standby; the old primary comes back as one."""
    figures, began = Figures(name), time.monotonic()
    with sink() as target, supervised() as pair, ground(pair.server) as here:
        daemon = here.daemon({**_all(target.port), **pair.settings})
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
        assert WAITED_FOR not in _doctor(daemon)
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


def of_a_node_promoted(emails: int) -> Figures:
    return promoted(emails, supervised_cell, "T42 Patroni promotes the standby of a cell's node")


def of_the_coordinator(emails: int) -> Figures:
    """T41: the coordinator is killed and its synchronous standby promoted. Mail flows throughout, and the cell can be moved afterwards."""
    figures, began = Figures("T41 the coordinator's standby takes over"), time.monotonic()
    with sink() as target, coordinator_of_cell() as servers, ground(servers.server) as here:
        administer(servers.primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
        daemon = here.daemon({**_all(target.port), **servers.settings})
        client = Client(daemon)
        client.batch(f"a{n}@example.net" for n in range(emails // 3))
        servers.primary.kill()
        client.batch(f"b{n}@example.net" for n in range(emails // 3))
        until(lambda: "unable to connect" in _checks(daemon).get("coordinator", ""), 40, lambda: f"the report: {_checks(daemon)}")
        back = time.monotonic()
        servers.promote()
        until(lambda: _checks(daemon).get("coordinator") == "ok", 40, lambda: f"the end of the report: {_checks(daemon)}")
        figures.notes["no longer reported after"] = f"{time.monotonic() - back:.0f} s"
        before = servers.server.place()
        servers.server.move()
        assert servers.server.place() != before
        client.batch(f"c{n}@example.net" for n in range(emails // 3))
        _finish(figures, here, target, client.ids, 120)
    figures.notes["requests refused"] = len(client.refused)
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def _stop_replication(here: Ground, other: Cluster | Node) -> None:
    """From here on, the standby gets nothing; before, it got everything."""
    caught_up = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
    until(lambda: here.rows(caught_up) == [(True,)], 30, "the standby")
    administer(other.dsn, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    until(lambda: here.rows("SELECT count(*) FROM pg_stat_replication") == [(0,)], 30, "the end of the replication")


def _doctor(daemon: Daemon) -> str:
    """What `mailsvc doctor` prints, whatever it finds."""
    return daemon._run(["doctor", "--no-probe"]).stdout
