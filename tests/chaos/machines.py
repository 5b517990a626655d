"""Machines that share cells of a cluster: one joins, one is killed, one loses its network. They need Citus (tests/chaos/citus_nodes)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import attrs

from mailsvc.store.cells import nodes
from tests.chaos.cells import clustered
from tests.chaos.citus_nodes import CellServer
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, Ground, TimedSink, ground, in_background, sink, until
from tests.chaos.networks import LOOPBACK, Host, cut, network
from tests.end_to_end.rig import PROJECT, Answer, Daemon, free_port, toml

GAP = 0.05  # seconds between two batches
AGREED = 60.0  # seconds until machines have agreed, with all that they start and stop


@attrs.define(eq=False)
class Machine:
    """One `twistd mailsvc --share-cells`. `ports`: of the API of each cell."""

    folder: Path
    ports: Mapping[str, int]
    process: subprocess.Popen[bytes]
    host: Host = LOOPBACK

    @classmethod
    def start(
        cls, folder: Path, settings: Mapping[str, Mapping[str, object]], cells: Sequence[str], which: Sequence[str] = ("--share-cells",),
        host: Host = LOOPBACK,
    ) -> Machine:  # fmt: skip
        folder.mkdir()
        ports = {cell: free_port() for cell in cells}
        own: dict[str, dict[str, object]] = {}
        for cell, port in ports.items():
            own[f"cells.{cell}.http"] = {"listen": [f"tcp:{port}:interface={host.address}"], "rate_limit": 100_000}
            own[f"cells.{cell}.control"] = {"socket": f"/tmp/mailsvc-{os.getpid()}-{port}.sock"}
        (folder / "mailsvc.toml").write_text(toml({**settings, **own}))
        inside = host.command(os.geteuid(), os.getegid()) if host.namespace else []
        command = [*inside, str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "mailsvc", *which, "--config"]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, str(folder / "mailsvc.toml")],
                cwd=PROJECT,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
            )
        return cls(folder, ports, process, host)

    @property
    def log(self) -> str:
        return "\n".join(line for line in (self.folder / "log").read_text(errors="replace").splitlines() if "GET /healthz" not in line)

    def has(self, cell: str) -> bool:
        """Whether a process of the cell accepts requests here."""
        try:
            with urllib.request.urlopen(f"http://{self.host.address}:{self.ports[cell]}/healthz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Only this process: those of its cells are told to stop by the system."""
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()
        for port in self.ports.values():
            for left in (f"/tmp/mailsvc-{os.getpid()}-{port}.sock", f"/tmp/mailsvc-{os.getpid()}-{port}.sock.lock"):
                Path(left).unlink(missing_ok=True)


@attrs.define(eq=False)
class Front:
    """What a reverse proxy does: a request goes to the machine that accepts requests for the cell. A daemon, for `Client`."""

    cell: str
    machines: list[Machine]
    folder: Path
    facts: dict[str, Any]
    _daemons: dict[int, Daemon] = attrs.field(factory=dict, init=False)

    @property
    def log(self) -> str:
        return "\n".join(machine.log[-3000:] for machine in self.machines)

    def call(self, method: str, path: str, body: object, headers: Mapping[str, str], key: str) -> Answer:
        for machine in list(self.machines):
            try:
                return self._daemon(machine).call(method, path, body, headers, key)
            except ConnectionError:
                continue
            except OSError as error:
                if not isinstance(getattr(error, "reason", None), ConnectionError):
                    raise
        raise ConnectionRefusedError(self.cell)

    def _daemon(self, machine: Machine) -> Daemon:
        port = machine.ports[self.cell]
        return self._daemons.setdefault(port, Daemon(self.folder, "", port=port, address=machine.host.address))


def named() -> None:
    """A service runs the processes of the cells that it is told, starts one again that is killed, and stops them."""
    with clustered(2) as servers, ground(servers[0]) as here:
        cells = [server.cell for server in servers]
        _front(here, servers[0], {}, [])
        machine = Machine.start(here.folder / "one", _general(here, servers[0], 1), cells, ("--cells", ",".join(cells)))
        try:
            _agreed(lambda: all(machine.has(cell) for cell in cells), [machine])
            pid = int(re.findall(r"started a process for the cell blue, with the ID (\d+)", machine.log)[-1])
            os.kill(pid, signal.SIGKILL)
            until(lambda: machine.log.count("started a process for the cell blue") == 2, AGREED)
            _agreed(lambda: all(machine.has(cell) for cell in cells), [machine])
            assert machine.stop() == 0
            assert not any(machine.has(cell) for cell in cells)
        finally:
            machine.end()


def shared(emails: int) -> Figures:
    """T38: two machines share two cells under load. The second joins, and the first is killed."""
    figures, began = Figures("T38 machines share cells"), time.monotonic()
    with sink() as target, clustered(2) as servers, ground(servers[0]) as here:
        settings = _all(target.port)
        machines: list[Machine] = []
        clients = [Client(_front(here, server, settings, machines)) for server in servers]
        cells = [server.cell for server in servers]
        given = _general(here, servers[0], target.port)
        try:
            machines.append(Machine.start(here.folder / "one", given, cells))
            _agreed(lambda: all(machines[0].has(cell) for cell in cells), machines)
            loads = [in_background(lambda client=client: _send(client, emails // 2)) for client in clients]
            machines.append(Machine.start(here.folder / "two", given, cells))
            joined = _agreed(lambda: [sum(map(each.has, cells)) for each in machines] == [1, 1], machines)
            assert all(each.machine == socket.gethostname() for each in nodes.Cluster(servers[0].cluster.url, {}).cells())
            machines[0].kill()
            killed = _agreed(lambda: all(machines[1].has(cell) for cell in cells), machines)
            _agreed(lambda: not any(machines[0].has(cell) for cell in cells), machines)
            _end(figures, loads, here, servers, target, clients)
            assert machines[1].stop() == 0
        finally:
            for machine in machines:
                machine.end()
    figures.notes = {"shared after": f"{joined:.0f} s", "taken over after": f"{killed:.0f} s", "duplicates allowed": 2 * CONNECTIONS}
    figures.seconds = time.monotonic() - began
    return figures


def cut_off(emails: int) -> Figures:
    """T43: of two machines that share two cells under load, one loses its network. The other takes its cell, until the network is back."""
    figures, began = Figures("T43 a machine loses its network"), time.monotonic()
    with network(4) as net, sink(address=net.here.address) as target, clustered(2, net.hosts[:3]) as servers, ground(servers[0]) as here:
        far, machines = net.hosts[3], list[Machine]()
        given = _general(here, servers[0], target.port, net.here.address)
        clients = [Client(_front(here, server, {}, machines)) for server in servers]
        cells = [server.cell for server in servers]
        counts = lambda: [sum(map(each.has, cells)) for each in machines]  # noqa: E731
        try:
            machines.append(Machine.start(here.folder / "near", given, cells))
            machines.append(Machine.start(here.folder / "far", given, cells, host=far))
            _agreed(lambda: counts() == [1, 1], machines)
            loads = [in_background(lambda client=client: _send(client, emails // 2)) for client in clients]
            until(lambda: all(len(client.ids) >= emails // 20 for client in clients), 60, "the first emails")
            with ExitStack() as links:
                for host in [net.here, *net.hosts[:3]]:
                    links.enter_context(cut(far, host))
                taken = _agreed(lambda: all(machines[0].has(cell) for cell in cells), machines)
            back = _agreed(lambda: counts() == [1, 1], machines)
            _end(figures, loads, here, servers, target, clients)
            assert [machine.stop() for machine in machines] == [0, 0]
        finally:
            for machine in machines:
                machine.end()
    figures.notes = {"taken over after": f"{taken:.0f} s", "shared again after": f"{back:.0f} s", "duplicates allowed": 2 * CONNECTIONS}
    figures.seconds = time.monotonic() - began
    return figures


def _end(
    figures: Figures, loads: Sequence[Thread], here: Ground, servers: Sequence[CellServer], target: TimedSink, clients: Sequence[Client]
) -> None:
    """Wait for the loads and for their mail, and count."""
    for load in loads:
        load.join(600)
        assert not load.is_alive(), clients[0].daemon.log[-6000:]
    _finish(figures, _Both(here, servers), target, [each for client in clients for each in client.ids], 120)
    assert figures.lost == 0
    assert figures.duplicates <= 2 * CONNECTIONS


@attrs.define
class _Both:
    """The cells as one, for counting."""

    here: Ground
    servers: Sequence[CellServer]

    def _grounds(self) -> list[Ground]:
        return [Ground(self.here.folder, server, server.dsn) for server in self.servers]

    def ended(self, ids: Sequence[str]) -> set[str]:
        return set().union(*(each.ended(ids) for each in self._grounds()))

    def waiting(self) -> int:
        return sum(each.waiting() for each in self._grounds())

    def summary(self) -> list[Any]:
        return [each.summary() for each in self._grounds()]


def _general(here: Ground, server: CellServer, port: int, address: str = "127.0.0.1") -> dict[str, dict[str, object]]:
    """The settings of all cells. `address`, `port`: where their mail goes."""
    delivery = {"ehlo_name": "localhost", "allowed_networks": [f"{address}/32"], "retry": [1, 2, 5], **_all(port)["delivery"]}
    delivery["routes"] = {"*": f"smtp://{address}:{port}"}
    return {
        "": {"base_url": "http://127.0.0.1"},
        "database": {"url": server.cluster.url},
        "smtp": {"listen": {}},
        "delivery": delivery,
        "secrets": {"key_file": str(here.folder / "secret.key")},
        "domains": {"allow_trust": True},
        "log": {"format": "text"},
    }


def _front(here: Ground, server: CellServer, settings: Mapping[str, Mapping[str, object]], machines: list[Machine]) -> Front:
    """With an account in the cell, which a first daemon creates."""
    first = here.daemon({**settings, "database": {"url": server.dsn, "cell": server.cell}})
    facts = first.facts
    first.stop()
    (first.folder / "dev.json").write_text(json.dumps(facts))  # which it deletes at its end
    return Front(server.cell, machines, first.folder, facts)


def _send(client: Client, emails: int) -> None:
    for number in range(emails // 5):
        client.batch(f"{client.daemon.facts['domain']}{number}-{each}@example.net" for each in range(5))
        time.sleep(GAP)


def _agreed(true: Any, machines: Sequence[Machine]) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    until(true, AGREED, lambda: "\n---\n".join(machine.log[-3000:] for machine in machines))
    return time.monotonic() - began
