"""A cluster of Citus: one coordinator and workers, each a Postgres of Debian's in a folder of its own, on loopback or a tests' network.

Citus must be installed beside that Postgres; `.ci/run` does so. Tests of a single node: tests/citus.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import psycopg2
from psycopg2.extensions import make_dsn

from mailsvc.store.cells import nodes
from mailsvc.store.cells.views import find
from mailsvc.store.postgres.cells import Address, directly
from mailsvc.store.postgres.system_user import owner_for
from tests.chaos.networks import LOOPBACK, Host
from tests.end_to_end.rig import free_port
from tests.memory import QUICK

BIN = Path("/usr/lib/postgresql/15/bin")
EXTENSION = Path("/usr/share/postgresql/15/extension/citus.control")
DATABASE = "mail"
ROLE = "mailsvc"  # of the daemons and commands: it owns the database, and has no further rights
CREATE_ROLE = (f"CREATE ROLE {ROLE} LOGIN", f"GRANT pg_monitor TO {ROLE}")
CREATE_DATABASE = f"CREATE DATABASE {DATABASE} OWNER {ROLE}"
SETTINGS = {
    "shared_preload_libraries": "citus,pg_stat_statements",
    "pg_stat_statements.track": "top",
    "citus.node_conninfo": "sslmode=disable",
    "citus.enable_unsafe_triggers": "on",
    "citus.enable_statistics_collection": "off",
    "citus.recover_2pc_interval": "1s",  # what a server that was killed left behind is cleared soon
    "citus.defer_shard_delete_interval": "1s",
    "wal_level": "logical",
    "max_prepared_transactions": "100",
    "max_worker_processes": "64",
    "max_connections": "200",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
}


def missing() -> str | None:
    """Why no cluster can be started."""
    return None if EXTENSION.exists() else "Citus is not installed beside Debian's Postgres 15"


@attrs.define(eq=False)
class Node:
    """One server. It is stopped and killed by the ID of its own process."""

    folder: Path
    port: int
    host: Host = LOOPBACK

    @property
    def address(self) -> tuple[str, int]:
        return self.host.address, self.port

    @property
    def dsn(self) -> str:
        return make_dsn(host=self.host.address, port=self.port, user="postgres", dbname=DATABASE, connect_timeout=5)

    @property
    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def start(self, settings: dict[str, str] | None = None) -> None:
        given = {
            **SETTINGS,
            **(QUICK if settings is None else settings),
            "listen_addresses": "*" if self.host.namespace else self.host.address,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in given.items())
        self._ctl("-l", str(self.folder / "log"), "-o", options, "-w", "start")

    def create(self) -> None:
        self._create_folder()
        data = str(self.folder / "data")
        arguments = ["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run(BIN / "initdb", *arguments)
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")

    def copy_of(self, primary: Node) -> None:
        """Makes this server a standby of that one."""
        self._create_folder()
        source = f"{primary.dsn} application_name=standby"
        self._run(BIN / "pg_basebackup", "-D", str(self.folder / "data"), "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def copy_to(self, folder: Path, host: Host) -> Node:
        """Another server with the same data. This one must have been stopped without haste."""
        copied = Node(folder / self.folder.name, free_port(), host)
        subprocess.run(["cp", "--archive", self.folder, copied.folder], check=True)
        return copied

    def stop(self, how: str = "immediate") -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.resume()
            self._ctl("-m", how, "-w", "stop", check=False)

    def kill(self) -> None:
        """As if the machine had failed: the server and all its processes."""
        processes = self._processes()
        self._signal(processes, signal.SIGKILL)
        while any(Path(f"/proc/{pid}").exists() for pid in processes):
            time.sleep(0.01)
        (self.folder / "data" / "postmaster.pid").unlink()

    def pause(self) -> None:
        """As if the machine had stopped, or its network."""
        self._signal(self._processes(), signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(self._processes(), signal.SIGCONT)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return cursor.fetchall() if cursor.description is not None else []
        finally:
            connection.close()

    def _create_folder(self) -> None:
        self.folder.mkdir(mode=0o700)
        owner = owner_for(self.folder)
        os.chown(self.folder, owner.uid, owner.gid)

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [self.pid, *map(int, children.split())]

    def _signal(self, processes: Sequence[int], number: signal.Signals) -> None:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _ctl(self, *arguments: str, check: bool = True) -> None:
        self._run(BIN / "pg_ctl", "-D", str(self.folder / "data"), *arguments, check=check)

    def _run(self, *command: str | Path, check: bool = True) -> None:
        owner = owner_for(self.folder)
        inside, process = ([], owner.process()) if not self.host.namespace else (self.host.command(owner.uid, owner.gid), {})
        subprocess.run([*inside, *command], check=check, cwd="/", stdout=subprocess.DEVNULL, timeout=120, **process)


@attrs.define(eq=False)
class Cluster:
    """`nodes[0]` is the coordinator, which holds no cell."""

    folder: Path
    nodes: list[Node]
    standbys: list[Node] = attrs.field(factory=list)

    @classmethod
    def start(cls, folder: Path) -> Cluster:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        cluster = cls(folder, [Node(folder / f"node{number}", free_port()) for number in range(3)])
        for node in cluster.nodes:
            node.create()
            node.start()
            administer(make_dsn(node.dsn, dbname="postgres"), *CREATE_ROLE, CREATE_DATABASE)
            administer(node.dsn, "CREATE EXTENSION citus", "CREATE EXTENSION pg_stat_statements")
        coordinator, *rest = cluster.nodes
        coordinator.query("SELECT citus_set_coordinator_host(%s, %s)", coordinator.address)
        for node in rest:
            coordinator.query("SELECT citus_add_node(%s, %s)", node.address)
        coordinator.query("SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', false)", coordinator.address)
        return cluster

    def copy_to(self, folder: Path, hosts: Sequence[Host] = (LOOPBACK,) * 3) -> Cluster:
        """Another cluster with the same cells, which is started. The nodes of this one must have been stopped without haste."""
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        copied = Cluster(folder, [node.copy_to(folder, host) for node, host in zip(self.nodes, hosts, strict=True)])
        where = "UPDATE pg_dist_node SET (nodename, nodeport) = (%s, %s) WHERE (nodename, nodeport) = (%s, %s)"
        for node in copied.nodes:
            node.start()
            for before, now in zip(self.nodes, copied.nodes, strict=True):
                node.query(where, (*now.address, *before.address))
        return copied

    @property
    def coordinator(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> list[Node]:
        return self.nodes[1:]

    @property
    def url(self) -> str:
        """All nodes in one DSN, as operators write it."""
        hosts, ports = ",".join(node.address[0] for node in self.nodes), ",".join(str(node.port) for node in self.nodes)
        return f"postgresql://{ROLE}@/{DATABASE}?host={hosts}&port={ports}"

    def add_standby(self, primary: Node) -> Node:
        """Starts a standby of this node."""
        standby = Node(self.folder / f"{primary.folder.name}-standby", free_port(), primary.host)
        standby.copy_of(primary)
        standby.start()
        self.standbys.append(standby)
        return standby

    def promote(self, standby: Node, instead_of: Node) -> None:
        """What an operator does. Citus has to know where the node is now."""
        standby.query("SELECT pg_promote()")
        self.standbys.remove(standby)
        self.nodes[self.nodes.index(instead_of)] = standby
        where = "SELECT citus_update_node(nodeid, %s, %s) FROM pg_dist_node WHERE (nodename, nodeport) = (%s, %s)"
        self.coordinator.query(where, (*standby.address, *instead_of.address))

    def node_at(self, address: Address) -> Node:
        return next(node for node in self.nodes if node.address == (address.host, address.port))

    def stop(self) -> None:
        for node in [*self.nodes, *self.standbys]:
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@attrs.define(eq=False)
class RunningServer:
    """A server that outlives the environment of an experiment."""

    dsn: str
    alive = True

    def start_blocking(self) -> str:
        return self.dsn

    def stop_blocking(self) -> None:
        """Whoever started it stops it."""


@attrs.define(eq=False)
class CellServer:
    """One cell of a cluster, as the environment of experiments sees a server."""

    cluster: Cluster
    cell: str
    alive = True

    @property
    def dsn(self) -> str:
        return directly(self.cluster.url, self.cell)

    @property
    def settings(self) -> dict[str, dict[str, object]]:
        return {"database": {"cell": self.cell}}

    def place(self) -> Address:
        return find(self.cluster.url, self.cell).node

    def node(self) -> Node:
        return self.cluster.node_at(self.place())

    def other(self) -> Address:
        """Another worker."""
        here = self.place()
        return next(Address(*node.address) for node in self.cluster.workers if node.address != (here.host, here.port))

    def move(self) -> None:
        nodes.Cluster(self.cluster.url, {}).move(self.cell, self.other())

    def start_blocking(self) -> str:
        return self.dsn

    def stop_blocking(self) -> None:
        """The cluster ends with `clustered`."""


def administer(dsn: str, *statements: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()
