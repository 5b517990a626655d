"""The commands that create and move cells and accounts, on a cluster of three nodes, and where the data of a cell is."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import attrs
import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from mailsvc.store.cells.account_place import Found
from mailsvc.store.cells.nodes import Cluster as Cells
from tests.chaos import account_moves
from tests.chaos.cells import cluster_with
from tests.chaos.citus_nodes import CellServer, Cluster, Node
from tests.chaos.experiments import _all
from tests.chaos.ground import ground, sink
from tests.end_to_end.rig import PROJECT, toml

pytestmark = [pytest.mark.cells, pytest.mark.usefixtures("citus")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with cluster_with(0) as created:
        yield created


@attrs.frozen
class Command:
    """The command `mailsvc` with settings in a folder."""

    folder: Path

    def configure(self, database: Mapping[str, object]) -> None:
        settings = {"": {"base_url": "http://127.0.0.1"}, "database": database}
        secrets = {"secrets": {"key_file": str(self.folder / "secret.key")}, "delivery": {"ehlo_name": "localhost"}, "smtp": {"listen": {}}}
        (self.folder / "mailsvc.toml").write_text(toml(settings | secrets))

    def __call__(self, *arguments: str, status: int = 0, **variables: str) -> str:
        config = str(self.folder / "mailsvc.toml")
        command = [sys.executable, "-c", "from mailsvc.cli.main import main; main()", "--config", config, *arguments]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr


def test_commands_create_list_and_move_cells(cluster: Cluster, tmp_path: Path) -> None:
    first, second = (f"127.0.0.1:{node.port}" for node in cluster.workers)
    regions = {first: "us-east-1", second: "eu-west-1"}
    mailsvc = Command(tmp_path)
    database = {"url": cluster.url, "node_regions": regions}
    mailsvc.configure(database)
    mailsvc("secrets", "create")
    assert second in mailsvc("cell", "create", "eu_1", "--region", "eu-west-1")
    assert "There is a cell eu_1 already." in mailsvc("cell", "create", "eu_1", status=1)
    assert "No node of the region sa-east-1 takes cells." in mailsvc("cell", "create", "sa_1", "--region", "sa-east-1", status=1)
    assert "expected a name" in mailsvc("cell", "create", "Eu-1", status=2)
    assert "is not in eu-west-1" in mailsvc("cell", "move", "eu_1", "--to", first, status=1)
    assert "The cluster has no node 127.0.0.1:1." in mailsvc("cell", "move", "eu_1", "--to", "127.0.0.1:1", status=1)

    mailsvc.configure({**database, "node_regions": dict.fromkeys(regions, "eu-west-1")})
    assert f"from {second} to {first}" in mailsvc("cell", "move", "eu_1", "--to", first)
    listed = json.loads(mailsvc("cell", "list", "--json"))
    assert [(each["name"], each["node"], each["region"]) for each in listed["cells"]] == [("eu_1", first, "eu-west-1")]
    assert [each["takes_cells"] for each in listed["nodes"]] == [False, True, True]
    entries = CellServer(cluster, "eu_1").node().query("SELECT action FROM eu_1.audit_entries ORDER BY at, id")
    assert [action for (action,) in entries] == ["cell created", "cell moving", "cell moved"]


def test_a_command_moves_an_account_and_undoes_a_move(cluster: Cluster, tmp_path: Path) -> None:
    mailsvc = Command(tmp_path)
    mailsvc.configure({"url": cluster.url})
    mailsvc("secrets", "create")
    for cell in ("red", "blue"):
        mailsvc("cell", "create", cell)
    account = json.loads(mailsvc("account", "create", "Shop", "--json", MAILSVC_DATABASE__CELL="red"))["id"]
    assert "There is no cell green." in mailsvc("cell", "account-move", "Shop", "green", status=1)
    assert "is called 'Nobody'" in mailsvc("cell", "account-move", "Nobody", "blue", status=1)
    assert "Shop is in red already." in mailsvc("cell", "account-move", account, "red", status=1)
    assert "No move of Shop from red to blue was interrupted." in mailsvc("cell", "account-move", "Shop", "blue", "--undo", status=1)

    account_moves.interrupt(CellServer(cluster, "red"), Found(UUID(account), "Shop", "red", "blue"), "staged")
    other = next(f"127.0.0.1:{node.port}" for node in cluster.workers if node is not CellServer(cluster, "red").node())
    assert f"Accounts are being moved from or to red: {account}." in mailsvc("cell", "move", "red", "--to", other, status=1)
    assert mailsvc("cell", "account-move", "Shop", "blue", "--undo") == "Shop stays in red.\n"

    account_moves.interrupt(CellServer(cluster, "red"), Found(UUID(account), "Shop", "red", "blue"), "left")
    assert f"Moved {account} from red to blue. Its number is " in mailsvc("cell", "account-move", account, "blue")
    assert "Shop is in blue already." in mailsvc("cell", "account-move", "Shop", "blue", status=1)
    assert "The processes of blue stood still for" in mailsvc("cell", "account-move", "Shop", "red")

    entries = CellServer(cluster, "red").node().query("SELECT action FROM red.audit_entries WHERE account_id = %s ORDER BY seq", [account])
    assert [action for (action,) in entries][-2:] == ["account moved", "account moved"]
    log = CellServer(cluster, "red").node().query("SELECT action FROM red.audit_entries WHERE account_id <> %s ORDER BY seq", [account])
    assert [action for (action,) in log if action.startswith("account mov")] == ["account move undone", "account moving", "account moved"]


TABLES = """
SELECT c.oid, n.nspname, c.relname, pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm')
"""


def tables_with(node: Node, words: Collection[str]) -> set[str]:
    """The tables of all databases and schemas of this node that have a row with one of the words, as text or as bytes."""
    texts = [f"%{form}%" for word in words for form in (word, word.encode().hex())]
    found = set()
    for (database,) in node.query("SELECT datname FROM pg_database WHERE datallowconn"):
        connection = psycopg2.connect(make_dsn(node.dsn, dbname=database, options="-c citus.override_table_visibility=off"))
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
                cursor.execute("SELECT logicalrelid::oid FROM pg_dist_partition" if cursor.fetchone()[0] else "SELECT 0")
                distributed = {oid for (oid,) in cursor.fetchall()}
                cursor.execute(TABLES)
                for oid, schema, name, size in cursor.fetchall():
                    if oid in distributed:  # Citus would read its rows from the node that has them; they are in a table `NAME_NUMBER` there
                        assert size == 0, f"{schema}.{name} on {node.address}"
                        continue
                    counting = sql.SQL("SELECT count(*) FROM {} t WHERE t::text ILIKE ANY (%s)").format(sql.Identifier(schema, name))
                    cursor.execute(counting, (texts,))
                    if cursor.fetchone()[0]:
                        found.add(f"{schema}.{name}")
        finally:
            connection.close()
    return found


def test_the_data_of_a_pinned_account_is_on_the_nodes_of_its_region_alone(cluster: Cluster) -> None:
    ours, other = cluster.workers
    regions = {f"127.0.0.1:{ours.port}": "eu-west-1", f"127.0.0.1:{other.port}": "us-east-1"}
    for cell, region in (("eu_1", "eu-west-1"), ("us_1", "us-east-1")):
        Cells(cluster.url, regions).create(cell, region)
    word = f"word{secrets.token_hex(8)}"
    with sink() as target, ground(CellServer(cluster, "eu_1")) as here:
        daemon = here.daemon({**_all(target.port), "": {"region": "eu-west-1"}, "database": {"cell": "eu_1", "node_regions": regions}})
        daemon.command("account", "region", "Development", "eu-west-1")
        daemon.command("account", "region", "Development", "--pin")
        email = {"from": f"shop@{daemon.facts['domain']}", "subject": f"Order {word}", "text": f"Thanks, {word}."}
        ids = [daemon.call("POST", "/emails", {**email, "to": f"{word}-{number}@example.net"}).body["id"] for number in range(3)]
        contact = daemon.call("POST", "/contacts", {"email": f"{word}@example.net", "first_name": word})
        assert contact.status == 201, contact
        for each in ids:
            daemon.until(f"/emails/{each}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivered")
        status, printed = daemon.command_fails("cell", "move", "eu_1", "--to", f"127.0.0.1:{other.port}")
        assert status == 1
        assert "is not in eu-west-1" in printed
    words = [word, *ids, contact.body["id"]]
    for away in (cluster.coordinator, other):
        assert tables_with(away, words) == set()
    kept = {re.sub(r"(_\d+)+\Z", "", name) for name in tables_with(ours, words)}  # without the day and the number
    assert {"eu_1.emails", "eu_1.contacts"} <= kept, kept
