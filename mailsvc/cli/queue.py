"""`mailsvc queue …`: show and control the queue. All but hold and release talk to the running daemon over its control socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import click
from twisted.internet.task import deferLater

from mailsvc.cli.output import AS_JSON, duration, note
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import unix
from mailsvc.monitoring import control_socket
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.people.audit import INSTALLATION, by_operator, write
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.queue import holds
from mailsvc.units import short_span


def _target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select a destination, an account or an email."""
    for option, text in (
        ("email", "ID of an email."),
        ("account", "ID, number or name of an account."),
        (
            "destination",
            "A destination as shown by `queue list`, a mail server, a recipient's domain, or a provider's name for all of its servers.",
        ),
    ):
        command = click.option(f"--{option}", help=text)(command)
    return command


@click.group()
def queue() -> None:
    """Show and control queued mail."""


@queue.command("list")
@AS_JSON
@click.pass_obj
def queue_list(settings: Settings, as_json: bool) -> None:
    """List destinations with queued mail: how much, since when, delivery rate, reason and next attempt."""
    answer = _send(settings, {"do": "queue"})
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    for each in answer["destinations"]:
        click.echo(
            _line(each) if each["name"] != holds.EVERYTHING else f"All mail is on hold until `mailsvc queue release`: {each['reason']}"
        )
    for each in answer["paused_accounts"]:
        click.echo(f"account {each['account']}  {each['reason']}  until {each['until']}")
    if not answer["destinations"]:
        click.echo("The queue is empty.", err=True)


@queue.command("show")
@click.argument("email")
@AS_JSON
@click.pass_obj
def queue_show(settings: Settings, email: str, as_json: bool) -> None:
    """Show the queued recipients of an email."""
    answer = _send(settings, {"do": "email", "email": email})
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    for each in answer["waiting"]:
        ends = each["next_at"] == each.get("expires_at")  # a daemon of the previous release does not say
        then = f"expires {each['next_at']}" if ends else f"next {each['next_at']}"
        click.echo(f"{each['address']}  {each['status']}, {each['attempts']} attempts, {then}  {each['reason']}")
    if not answer["waiting"]:
        click.echo("None of its recipients is queued.", err=True)


@queue.command("pause")
@_target
@click.option("--for", "seconds", callback=duration, help="How long, such as 30m or 2h. Default: until resumed.")
@click.option("--reason", help="A reason to show for the paused recipients.")
@AS_JSON
@click.pass_obj
def queue_pause(settings: Settings, /, as_json: bool, seconds: float | None, reason: str | None, **target: str | None) -> None:
    """Pause a destination, an account or an email. Deliveries in progress continue.

    Processes read which accounts are paused every `delivery.poll_seconds`, and can start deliveries until then.
    """
    _command(settings, "pause", target, as_json, seconds=seconds, reason=reason)


@queue.command("resume")
@_target
@AS_JSON
@click.pass_obj
def queue_resume(settings: Settings, /, as_json: bool, **target: str | None) -> None:
    """Resume at once what was paused or is backing off."""
    _command(settings, "resume", target, as_json)


@queue.command("retry")
@_target
@AS_JSON
@click.pass_obj
def queue_retry(settings: Settings, /, as_json: bool, **target: str | None) -> None:
    """Retry deferred recipients now. Pauses stay in effect."""
    _command(settings, "retry", target, as_json)


@queue.command("hold")
@click.option("--reason", default="Held by the operator.", show_default=True, help="The reason to show for the held recipients.")
@click.pass_obj
def queue_hold(settings: Settings, reason: str) -> None:
    """Hold all mail in all regions until `mailsvc queue release`. New mail is accepted and queued."""

    async def work(database: Database, reactor: Any) -> None:
        async def hold(tx: Transaction) -> None:
            await holds.hold_everything(tx, reason, settings.region)
            await write(tx, [by_operator(INSTALLATION, "all mail held", reason)], unix(reactor))

        await database.pool.transact(hold)
        await deferLater(reactor, 2 * settings.delivery.poll_seconds)  # until running processes have polled
        click.echo("All mail is held.")

    run_with_database(settings, work)


@queue.command("release")
@click.pass_obj
def queue_release(settings: Settings) -> None:
    """Release mail that was held with `mailsvc queue hold` or after a restore."""

    async def work(database: Database, reactor: Any) -> None:
        released = await holds.release_everything(database.pool, unix(reactor), [by_operator(INSTALLATION, "all mail released")])
        click.echo("Mail is being sent again." if released else "No mail was held.")

    run_with_database(settings, work)


def _command(settings: Settings, action: str, target: dict[str, str | None], as_json: bool, **more: object) -> None:
    given = [(kind, name) for kind, name in target.items() if name is not None]
    if len(given) != 1:
        raise click.UsageError("Give exactly one of --destination, --account and --email.")
    [(kind, name)] = given
    command = {"do": action, "kind": kind, "name": name} | {key: value for key, value in more.items() if value is not None}
    answer = _send(settings, command)
    if as_json:
        click.echo(json.dumps(answer))
        return
    destinations, held = answer.pop("destinations", []), answer.pop("held", [])  # a daemon of the previous release does not say
    click.echo(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in answer.items()))
    if destinations and destinations != [name]:
        note("\n  ".join(["This applies to all mail for these servers, whatever domain it is for:", *destinations]))
    if held:
        note(still_on_hold((each["kind"], each["name"], each["reason"]) for each in held))


def still_on_hold(held: Iterable[tuple[str, str, str]]) -> str:
    """What holds mail, with the command that ends it. `held`: kind, name and reason of each."""
    return "\n  ".join(["Mail is still on hold:", *(_held(*each) for each in held)])


def _held(kind: str, name: str, reason: str) -> str:
    if name == holds.EVERYTHING:
        return f"all mail: {reason} End this with `mailsvc queue release`."
    return f"{kind} {name}: {reason} End this with `mailsvc queue resume --{kind} {name}`."


def _send(settings: Settings, command: dict[str, object]) -> dict[str, Any]:
    if settings.control.socket is None:
        raise click.ClickException("The setting control.socket is missing; it is needed to reach the daemon.")
    try:
        return control_socket.send(settings.control.socket, command)
    except control_socket.ControlError as error:
        raise click.ClickException(str(error)) from None


def _line(each: dict[str, Any]) -> str:
    lane = each["lane"] or {}
    counts = ", ".join(f"{each[name]} {name}" for name in ("queued", "delayed", "uncertain", "sending", "scheduled") if each[name])
    parts = [each["name"], counts or "nothing queued"]
    if each["oldest_seconds"] is not None:
        parts.append(f"oldest {short_span(each['oldest_seconds'])}")
    if lane:
        parts.append(f"{lane['delivered_per_minute']:g}/min, {lane['connections']} connections")
        if lane.get("slowed_to_per_minute") is not None:  # a daemon of the previous release does not say so
            parts.append(f"slowed to {lane['slowed_to_per_minute']:.3g}/min")
    if each["reason"]:
        parts.append(each["reason"])
    if each["until"] or each["next_at"]:
        parts.append(f"until {each['until'] or each['next_at']}")
    return "  ".join(parts)
