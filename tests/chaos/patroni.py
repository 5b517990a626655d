"""Two Postgres servers that Patroni runs, with etcd, all on loopback and in one folder. The settings are those of docs/operations.md."""

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
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.system_user import owner_for
from tests.chaos.citus_nodes import BIN, DATABASE, ROLE, Node, administer
from tests.chaos.cluster import place
from tests.chaos.ground import until
from tests.end_to_end.rig import PROJECT, free_port

ETCD, PATRONI = shutil.which("etcd"), shutil.which("patroni")
INSTALLED = ETCD is not None and PATRONI is not None and BIN.exists()
NAMES = ("one", "two")
_OF_THE_PAGE = re.compile(r"^    bootstrap:\n(?:^      .*\n)+", re.MULTILINE)
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
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}
  parameters: {{unix_socket_directories: {folder}}}
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
class Pair:
    """`url`: the DSN of both, as operators write it."""

    members: list[Member]

    @property
    def url(self) -> str:
        ports = ",".join(str(member.node.port) for member in self.members)
        return str(make_dsn(host="127.0.0.1,127.0.0.1", port=ports, user=ROLE, dbname=DATABASE, target_session_attrs="read-write"))

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
        return "".join((member.node.folder / "log").read_text(errors="replace")[-3000:] for member in self.members)


@contextmanager
def supervised_pair() -> Iterator[Pair]:
    """A primary and its synchronous standby, with an empty database."""
    [settings] = _OF_THE_PAGE.findall((PROJECT / "docs/operations.md").read_text())
    with place() as folder, ExitStack() as running:
        etcd = free_port()
        process = _start(_etcd(folder, etcd), folder)
        running.callback(lambda: (process.kill(), process.wait()))
        pair = Pair([_member(folder, name, settings, etcd) for name in NAMES])
        for member in pair.members:
            running.callback(member.kill)
            member.start()
        until(pair.synchronous, 120, lambda: f"a primary with its synchronous standby: {pair.roles()}\n{pair.log()}")
        primary = pair.primary().node
        administer(make_dsn(primary.dsn, dbname="postgres"), f"CREATE ROLE {ROLE} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        yield pair


def _member(folder: Path, name: str, settings: str, etcd: int) -> Member:
    member = Member(name, Node(folder / name, free_port()), free_port(), folder / f"{name}.yml")
    _owned(member.node.folder)
    own = _OF_THE_NODE.format(name=name, etcd=etcd, api=member.api, port=member.node.port, folder=member.node.folder, bin=BIN)
    member.config.write_text(re.sub("^    ", "", settings, flags=re.MULTILINE) + own)
    return member


def _etcd(folder: Path, port: int) -> list[str]:
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
