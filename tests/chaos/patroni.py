"""Postgres servers that Patroni runs, with etcd, all on loopback and in one folder. The settings are those of docs/operations.md.

`supervised_pair`: a primary with its synchronous standby. `supervised_cell`: such a pair as the node of a cell, and a coordinator.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import psycopg2
from psycopg2.extensions import make_dsn

from mailsvc.store.cells import nodes
from mailsvc.store.postgres.system_user import owner_for
from tests.chaos.citus_nodes import (
    BIN,
    CREATE_DATABASE,
    CREATE_ROLE,
    DATABASE,
    ROLE,
    CellServer,
    Cluster,
    Node,
    RunningServer,
    administer,
)
from tests.chaos.cluster import place
from tests.chaos.ground import until
from tests.end_to_end.rig import PROJECT, free_port

ETCD, PATRONI = shutil.which("etcd"), shutil.which("patroni")
INSTALLED = ETCD is not None and PATRONI is not None and BIN.exists()
NAMES = ("one", "two")
_OF_THE_PAGE = re.compile(r"^    bootstrap:\n(?:^    .*\n)+", re.MULTILINE)
_OF_THE_NODE = """\
  initdb:
    - auth: trust
    - encoding: UTF8
    - no-sync
scope: mailsvc
name: {name}
etcd3: {{host: '127.0.0.1:{etcd}'}}
restapi: {{listen: '127.0.0.1:{api}', connect_address: '127.0.0.1:{api}'}}
postgresql:
  listen: '127.0.0.1:{port}'
  connect_address: '127.0.0.1:{port}'
  data_dir: {folder}/data
  basebackup: [checkpoint: fast]
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}
  parameters: {{unix_socket_directories: {folder}, citus.node_conninfo: sslmode=disable, citus.enable_statistics_collection: 'off'}}
"""


@attrs.define(eq=False)
class Member:
    """Postgres, and the Patroni that runs it."""

    name: str
    node: Node
    api: int
    config: Path
    patroni: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert PATRONI is not None
        self.patroni = _start([PATRONI, str(self.config)], self.node.folder)

    def kill(self) -> None:
        """As if the machine had failed: Patroni, then Postgres with all its processes."""
        if self.patroni is not None:
            self.patroni.kill()
            self.patroni.wait()
            self.patroni = None
        if (self.node.folder / "data" / "postmaster.pid").exists():
            self.node.kill()


@attrs.define(eq=False)
class Supervised:
    """`server`: what daemons use, with these `settings`. `others`: servers that stay what they are."""

    members: list[Member]
    others: list[Member] = attrs.field(factory=list)
    settings: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)
    server: RunningServer | CellServer = attrs.field(init=False)

    def roles(self) -> dict[str, str]:
        """The role of each server that runs, as Patroni sees it."""
        for member in self.members:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{member.api}/cluster", timeout=5) as response:
                found: list[Mapping[str, Any]] = json.load(response)["members"]
                return {each["name"]: each["role"] for each in found if each["state"] in ("running", "streaming")}
        return {}

    def synchronous(self) -> bool:
        """Whether one server is the primary and the other its synchronous standby."""
        return sorted(self.roles().values()) == ["leader", "sync_standby"]

    def primary(self) -> Member:
        roles = self.roles()
        return next(member for member in self.members if roles.get(member.name) == "leader")

    def log(self) -> str:
        return "".join((member.node.folder / "log").read_text(errors="replace")[-3000:] for member in [*self.members, *self.others])

    def start(self) -> None:
        for member in self.members:
            member.start()
        until(self.synchronous, 120, lambda: f"a primary with its synchronous standby: {self.roles()}\n{self.log()}")


@contextmanager
def supervised_pair() -> Iterator[Supervised]:
    """With an empty database."""
    with _etcd() as (folder, etcd), ExitStack() as running:
        pair = Supervised([_member(folder, name, etcd, _settings("With Patroni")) for name in NAMES])
        for member in pair.members:
            running.callback(member.kill)
        pair.start()
        administer(make_dsn(pair.primary().node.dsn, dbname="postgres"), *CREATE_ROLE, CREATE_DATABASE)
        ports = ",".join(str(member.node.port) for member in pair.members)
        pair.server = RunningServer(
            make_dsn(host="127.0.0.1,127.0.0.1", port=ports, user=ROLE, dbname=DATABASE, target_session_attrs="read-write")
        )
        yield pair


@contextmanager
def supervised_cell() -> Iterator[Supervised]:
    """With one cell on it. Patroni creates the database, and tells the coordinator where the node is."""
    with _etcd() as (folder, etcd), ExitStack() as running:
        of_citus = [_settings("Patroni for a Citus cluster", group) for group in (0, 1)]
        coordinator = _member(folder, "coordinator", etcd, of_citus[0])
        pair = Supervised([_member(folder, name, etcd, of_citus[1]) for name in NAMES], [coordinator])
        for member in [coordinator, *pair.members]:
            running.callback(member.kill)
        coordinator.start()
        pair.start()
        cluster = Cluster(folder, [member.node for member in (coordinator, *pair.members)])
        for node in (coordinator.node, pair.primary().node):
            until(lambda node=node: _has_citus(node), 60, lambda: f"the extension\n{pair.log()}")
            administer(make_dsn(node.dsn, dbname="postgres"), *CREATE_ROLE, f"ALTER DATABASE {DATABASE} OWNER TO {ROLE}")
        until(lambda: coordinator.node.query("SELECT 1 FROM pg_dist_node WHERE groupid = 1"), 60, lambda: f"the node\n{pair.log()}")
        nodes.Cluster(cluster.url, {}).create("red")
        pair.server = CellServer(cluster, "red")
        pair.settings = pair.server.settings
        yield pair


def _has_citus(node: Node) -> bool:
    with suppress(psycopg2.OperationalError):
        return bool(node.query("SELECT 1 FROM pg_extension WHERE extname = 'citus'"))
    return False


def _settings(section: str, group: int = 0) -> str:
    """Those that the documentation shows there."""
    text = (PROJECT / "docs/operations.md").read_text().partition(f"\n### {section}\n")[2]
    block = _OF_THE_PAGE.search(text)
    assert block is not None
    shown = re.sub("^    ", "", block[0], flags=re.MULTILINE)
    return shown.replace("group: 1", f"group: {group}").replace("database: mailsvc", f"database: {DATABASE}")


def _member(folder: Path, name: str, etcd: int, settings: str) -> Member:
    member = Member(name, Node(folder / name, free_port()), free_port(), folder / f"{name}.yml")
    _owned(member.node.folder)
    own = _OF_THE_NODE.format(name=name, etcd=etcd, api=member.api, port=member.node.port, folder=member.node.folder, bin=BIN)
    member.config.write_text(settings + own)
    return member


@contextmanager
def _etcd() -> Iterator[tuple[Path, int]]:
    """Yields the folder for all servers, and its port."""
    with place() as folder:
        port = free_port()
        process = _start(_etcd_command(folder, port), folder)
        try:
            yield folder, port
        finally:
            process.kill()
            process.wait()


def _etcd_command(folder: Path, port: int) -> list[str]:
    assert ETCD is not None
    own, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    given = {
        "data-dir": str(_owned(folder / "etcd")),
        "listen-client-urls": own,
        "advertise-client-urls": own,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
    }
    return [ETCD, *(f"--{option}={value}" for option, value in given.items())]


def _owned(folder: Path) -> Path:
    """Creates a folder that the server can write to."""
    folder.mkdir(mode=0o700)
    owner = owner_for(folder)
    os.chown(folder, owner.uid, owner.gid)
    return folder


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            start_new_session=True,
            **owner_for(folder).process(),
        )
