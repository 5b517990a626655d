"""`mailsvc cell …`: the cells of a Citus cluster."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import click

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.output import AS_JSON
from mailsvc.cli.runner import run_with_database, start, with_database
from mailsvc.clock import unix
from mailsvc.runtime.database import Database, in_thread
from mailsvc.settings import checks
from mailsvc.settings.schema import Settings
from mailsvc.store.cells import account_place, nodes
from mailsvc.store.cells.account_place import Found
from mailsvc.store.cells.nodes import Cluster
from mailsvc.store.cells.views import NotHere
from mailsvc.store.people.audit import INSTALLATION, by_operator, write
from mailsvc.store.postgres.cells import Address
from mailsvc.store.postgres.server_settings import Standbys
from mailsvc.units import size


@click.group()
def cell() -> None:
    """Create, list and move cells: parts of the service with a database schema of their own, on a Citus cluster."""


@cell.command("list")
@AS_JSON
@click.pass_obj
def cell_list(settings: Settings, as_json: bool) -> None:
    """List cells and nodes: region, size, the node of each cell, and how far the standbys of a node are behind.

    If machines share the cells, also the machine that runs each.
    """
    cluster = _cluster(settings)

    async def work(reactor: Any) -> None:
        found, servers = await _in_thread(reactor, cluster.cells), await _in_thread(reactor, cluster.nodes)
        if as_json:
            views = {"cells": [_view(each) for each in found], "nodes": [_view(each) for each in servers]}
            click.echo(json.dumps(views, indent=2))
            return
        for each in found:
            machine = "" if each.machine is None else f"  {each.machine}"
            click.echo(f"{each.name}  {each.region or 'no region'}  {each.node or 'no tables yet'}  {_bytes(each.bytes)}{machine}")
        for server in servers:
            what = "coordinator" if server.coordinator else "worker"
            takes = "takes cells" if server.takes_cells else "takes no cells"
            sizes = f"{_bytes(server.bytes)}{_standbys(server.standbys)}"
            click.echo(f"node {server.address}  {server.region or 'no region'}  {what}, {takes}  {sizes}")
        if not found:
            click.echo("There are no cells.", err=True)

    start(settings, work)


@cell.command("create")
@click.argument("name")
@click.option("--region", help="The region of the node. Default: any node.")
@click.pass_obj
def cell_create(settings: Settings, name: str, region: str | None) -> None:
    """Create a cell on the emptiest node. If that was interrupted, run the command again."""
    cluster, within = _cluster(settings), _in_cell(settings, name)

    async def work(reactor: Any) -> None:
        node = await _in_thread(reactor, partial(cluster.create, name, region))

        async def record(database: Database, reactor: Any) -> None:
            await _audit(database, reactor, "cell created", f"{name} on {node}")

        await with_database(reactor, within, record)
        click.echo(f"Created {name} on {node}. Set database.cell to {name} for the processes that serve it.")

    start(settings, work)


@cell.command("move")
@click.argument("name")
@click.option("--to", "to", required=True, help="Host and port of the node, as `mailsvc cell list` shows them.")
@click.pass_obj
def cell_move(settings: Settings, name: str, to: str) -> None:
    """Move a cell to another node of its region. Mail flows meanwhile; at the end, the processes wait for a moment, then follow."""
    cluster = _cluster(settings)
    host, _, port = to.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter("expected HOST:PORT, such as db-2.example.com:5432.", param_hint="--to")

    async def work(database: Database, reactor: Any) -> None:
        target = Address(host, int(port))
        before = await _in_thread(reactor, partial(cluster.check_move, name, target))
        await _audit(database, reactor, "cell moving", f"{name} from {before} to {to}")
        await _in_thread(reactor, partial(cluster.move, name, target))
        await _audit(database, reactor, "cell moved", f"{name} from {before} to {to}")
        click.echo(f"Moved {name} from {before} to {to}.")

    run_with_database(_in_cell(settings, name), work)


@cell.command("account-move")
@click.argument("account")
@click.argument("name", metavar="CELL")
@click.option("--undo", is_flag=True, help="Undo a move that was interrupted, as long as the account has not left its cell.")
@click.pass_obj
def cell_account_move(settings: Settings, account: str, name: str, undo: bool) -> None:
    """Move one account to another cell. Its mail is accepted meanwhile. If that was interrupted, run the command again.

    ACCOUNT is its ID or name. Its mail waits while the last rows are copied; at the end, the processes of its present cell stand still for
    a moment.
    """
    cluster = _cluster(settings)
    _in_cell(settings, name)

    async def work(reactor: Any) -> None:
        found = await _in_thread(reactor, partial(account_place.locate, cluster, account, name))

        async def change(database: Database, reactor: Any) -> None:
            await (_undo if undo else _move)(database, reactor, cluster, found)

        async def record(database: Database, reactor: Any) -> None:
            await _audit(database, reactor, "account moved", f"from {found.source} to {name}", found.account)

        await with_database(reactor, _in_cell(settings, name), _opened)  # its keys have to fit
        await with_database(reactor, _in_cell(settings, found.source), change)
        if not undo:
            await with_database(reactor, _in_cell(settings, name), record)

    start(settings, work)


async def _opened(database: Database, reactor: Any) -> None:
    """Opening it was enough."""


async def _move(database: Database, reactor: Any, cluster: Cluster, found: Found) -> None:
    if found.name is not None:
        click.echo(f"Moving {found.name}, {found}.")
    await _audit(database, reactor, "account moving", str(found))
    moved = await _in_thread(reactor, partial(account_place.move, cluster, found, click.echo))
    await _audit(database, reactor, "account moved", str(found))
    stood = "" if moved.seconds is None else f" The processes of {found.source} stood still for {moved.seconds:.1f} s."
    number = "" if moved.number is None else f" Its number is {moved.number} there."
    click.echo(f"Moved {found}.{stood}{number}")


async def _undo(database: Database, reactor: Any, cluster: Cluster, found: Found) -> None:
    if not await _in_thread(reactor, partial(account_place.undo, cluster, found)):
        raise Refused(f"No move of {found.name} from {found.source} to {found.target} was interrupted.")
    await _audit(database, reactor, "account move undone", str(found))
    click.echo(f"{found.name} stays in {found.source}.")


def _cluster(settings: Settings) -> Cluster:
    if settings.database.url is None:
        raise click.UsageError("Cells need database.url, with nodes of a Citus cluster.")
    return Cluster(settings.database.url, settings.database.node_regions)


def _in_cell(settings: Settings, name: str) -> Settings:
    if (wrong := checks.cell(name)) is not None:
        raise click.BadParameter(wrong, param_hint="NAME")
    return attrs.evolve(settings, database=attrs.evolve(settings.database, cell=name))


async def _in_thread(reactor: Any, call: Any) -> Any:
    try:
        return await in_thread(reactor, call)
    except (nodes.Refused, nodes.Unreachable, NotHere) as error:
        raise Refused(str(error)) from None


async def _audit(database: Database, reactor: Any, action: str, subject: str, account_id: UUID = INSTALLATION) -> None:
    async def record(tx: Any) -> None:
        await write(tx, [by_operator(account_id, action, subject)], unix(reactor))

    await database.pool.transact(record)


def _view(each: Any) -> dict[str, Any]:
    view = attrs.asdict(each, recurse=False)
    for key, value in view.items():
        if isinstance(value, Address):
            view[key] = str(value)
        elif isinstance(value, Standbys):
            view[key] = attrs.asdict(value)
    return view


def _bytes(count: int | None) -> str:
    return "unreachable" if count is None else size(count)


def _standbys(found: Standbys | None) -> str:
    """Nothing without standbys."""
    if found is None or not found.connected:
        return ""
    count = "1 standby" if found.connected == 1 else f"{found.connected} standbys"
    return f"  {count}" if found.lag is None else f"  {count}, {size(found.lag)} behind"
