"""Experiments on a cluster of Citus with links that are cut: packets are dropped, and connections hang (tests/chaos/networks)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event

from tests.chaos.cells import clustered
from tests.chaos.databases import _checks, _send, _whole
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, ground, sink, until
from tests.chaos.networks import cut, network
from tests.end_to_end.rig import Daemon


def without_coordinator(emails: int, seconds: float) -> Figures:
    """T34: a worker and its daemon lose the coordinator. Everything in the cell goes on, and a daemon can start. Later it can be moved.

    During the cut, /readyz succeeds and reports the coordinator.
    """
    figures, began = Figures("T34 the link to the coordinator is cut"), time.monotonic()
    with sink() as target, network(3) as hosts, clustered(1, hosts.hosts) as [server], ground(server) as here:
        settings = {**_all(target.port), **server.settings}
        daemon = here.daemon(settings)
        client = Client(daemon)
        client.batch(f"a{n}@example.net" for n in range(emails // 3))
        coordinator = server.cluster.coordinator.host
        assert _coordinator(daemon) == "ok"
        with cut(server.node().host, coordinator), cut(hosts.here, coordinator):
            since = time.monotonic()
            client.batch(f"b{n}@example.net" for n in range(emails // 3))
            until(lambda: "unable to connect" in _coordinator(daemon), 40, lambda: f"the report: {_checks(daemon)}")
            figures.notes["reported within"] = f"{time.monotonic() - since:.0f} s"
            _keys_and_domains(daemon)
            starting = time.monotonic()
            second = here.daemon(settings)
            figures.notes["a daemon starts within"] = f"{time.monotonic() - starting:.0f} s"
            until(lambda: "unable to connect" in _coordinator(second), 40, lambda: f"the report: {_checks(second)}")
            while time.monotonic() - since < seconds:
                assert _whole(daemon) and _coordinator(daemon) != "ok", _checks(daemon)
                time.sleep(1)
            client.batch(f"c{n}@example.net" for n in range(emails // 3))
            until(lambda: set(client.ids) <= target.ids(), 60, "delivery without the coordinator")
        before, back = server.place(), time.monotonic()
        server.move()
        assert server.place() != before
        figures.notes["moved afterwards within"] = f"{time.monotonic() - back:.0f} s"
        until(lambda: _coordinator(daemon) == _coordinator(second) == "ok", 60, lambda: f"the end of the report: {_checks(daemon)}")
        figures.notes["no longer reported after"] = f"{time.monotonic() - back:.0f} s"
        client.batch(["moved@example.net"])
        _finish(figures, here, target, client.ids, 120)
    figures.notes["refused"] = len(client.refused)
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def without_node(emails: int, cuts: Sequence[float]) -> Figures:
    """T35: under load, the daemon loses the node of its cell for some seconds, several times."""
    figures, began = Figures("T35 the link to the node of the cell is cut"), time.monotonic()
    waits, resumed = [], []
    with sink() as target, network(3) as hosts, clustered(1, hosts.hosts) as [server], ground(server) as here:
        daemon = here.daemon({**_all(target.port), **server.settings})
        client, enough = Client(daemon), Event()
        sending = _send(client, emails // 20, 20, until_set=enough)
        node = server.node().host
        for number, seconds in enumerate(cuts):
            wanted = len(client.ids) + emails // (len(cuts) + 1)
            until(lambda wanted=wanted: len(client.ids) >= wanted, 120, lambda: f"more emails: {_checks(daemon)}")
            with cut(hosts.here, node):
                since = time.monotonic()
                while (started := time.monotonic()) - since < seconds:
                    assert client.post_once(f"p{number}@example.net") in (200, 503)
                    waits.append(time.monotonic() - started)
            back, before = time.monotonic(), len(client.ids)
            until(lambda before=before: len(client.ids) > before, 30, lambda: f"acceptance: {_checks(daemon)}")
            resumed.append(time.monotonic() - back)
            until(lambda: _whole(daemon), 60, lambda: f"readiness: {_checks(daemon)}")
        enough.set()
        sending.join(300)
        assert not sending.is_alive()
        _finish(figures, here, target, client.ids, 120)
    figures.notes = {
        "cuts": " and ".join(f"{seconds:g} s" for seconds in cuts),
        "longest wait for a response": f"{max(waits):.0f} s",
        "accepts again after at most": f"{max(resumed):.1f} s",
        "duplicates allowed": len(cuts) * CONNECTIONS,
    }
    assert figures.lost == 0
    assert figures.duplicates <= len(cuts) * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def _coordinator(daemon: Daemon) -> str:
    """What /readyz reports about the coordinator. Empty if the process is not ready."""
    return _checks(daemon).get("coordinator", "")


def _keys_and_domains(daemon: Daemon) -> None:
    """A key is created, used and revoked over the API, and a domain added by a command."""
    key = daemon.call("POST", "/api-keys", {"name": "Meanwhile"}).body
    assert daemon.call("GET", "/domains", key=key["token"]).status == 200
    assert daemon.call("DELETE", f"/api-keys/{key['id']}").status == 200
    until(lambda: daemon.call("GET", "/domains", key=key["token"]).status in (401, 403), 10, "the refusal of the revoked key")
    assert "meanwhile.example" in daemon.command("domain", "add", "meanwhile.example", "--account", "Development")
