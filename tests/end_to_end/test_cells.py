"""Cells on a cluster of three nodes: the experiments of `make scale`, small, and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import cells
from tests.chaos.citus_nodes import CellServer, Cluster, missing
from tests.chaos.cluster import place
from tests.citus import is_citus
from tests.end_to_end.rig import PROJECT, toml

pytestmark = pytest.mark.cells


@pytest.fixture(autouse=True)
def citus(postgres: str) -> None:
    if not is_citus(postgres):
        pytest.skip("The server of the tests does not have Citus. See .ci/run.")
    assert missing() is None


def test_a_cell_is_moved_under_load() -> None:
    figures = cells.moved_cell(50, 1)
    assert (figures.lost, figures.duplicates) == (0, 0)


def test_servers_and_the_daemon_are_killed_while_a_cell_is_moved() -> None:
    assert cells.killed_while_moving(150, 4).lost == 0


def test_mail_flows_without_the_coordinator() -> None:
    assert cells.without_coordinator(30).lost == 0


def test_a_stopped_node_delays_its_own_cells_alone() -> None:
    assert cells.stopped_worker(20).lost == 0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with place() as folder:
        created = Cluster.start(folder / "cluster")
        try:
            yield created
        finally:
            created.stop()


def test_commands_create_list_and_move_cells(cluster: Cluster, tmp_path: Path) -> None:
    first, second = (f"127.0.0.1:{node.port}" for node in cluster.workers)
    regions = {first: "us-east-1", second: "eu-west-1"}
    config = tmp_path / "mailsvc.toml"
    settings = {"": {"base_url": "http://127.0.0.1"}, "database": {"url": cluster.url, "node_regions": regions}}
    secrets = {"secrets": {"key_file": str(tmp_path / "secret.key")}, "delivery": {"ehlo_name": "localhost"}, "smtp": {"listen": {}}}
    config.write_text(toml(settings | secrets))

    def mailsvc(*arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-c", "from mailsvc.cli.main import main; main()", "--config", str(config), *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    mailsvc("secrets", "create")
    assert second in mailsvc("cell", "create", "eu_1", "--region", "eu-west-1")
    assert "There is a cell eu_1 already." in mailsvc("cell", "create", "eu_1", status=1)
    assert "No node of the region sa-east-1 takes cells." in mailsvc("cell", "create", "sa_1", "--region", "sa-east-1", status=1)
    assert "expected a name" in mailsvc("cell", "create", "Eu-1", status=2)
    assert "is not in eu-west-1" in mailsvc("cell", "move", "eu_1", "--to", first, status=1)
    assert "The cluster has no node 127.0.0.1:1." in mailsvc("cell", "move", "eu_1", "--to", "127.0.0.1:1", status=1)

    config.write_text(toml(settings | secrets | {"database": {"url": cluster.url, "node_regions": dict.fromkeys(regions, "eu-west-1")}}))
    assert f"from {second} to {first}" in mailsvc("cell", "move", "eu_1", "--to", first)
    listed = json.loads(mailsvc("cell", "list", "--json"))
    assert [(each["name"], each["node"], each["region"]) for each in listed["cells"]] == [("eu_1", first, "eu-west-1")]
    assert [each["takes_cells"] for each in listed["nodes"]] == [False, True, True]
    entries = CellServer(cluster, "eu_1").node().query("SELECT action FROM eu_1.audit_entries ORDER BY at, id")
    assert [action for (action,) in entries] == ["cell created", "cell moving", "cell moved"]
