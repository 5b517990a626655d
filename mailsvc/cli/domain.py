"""`mailsvc domain …`: manage sending domains."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

import attrs
import click
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mailsvc.accounts.onboarding import Customers, Refused, domain_name
from mailsvc.cli.output import AS_JSON, YES, duration, note, print_json, result
from mailsvc.cli.runner import run
from mailsvc.clock import iso_time
from mailsvc.domains import names, views
from mailsvc.domains.checking import Findings
from mailsvc.domains.maintenance import ALGORITHMS, KeysNotPublished, RotationInProgress
from mailsvc.domains.records import in_zone_file
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import DkimKey, Domain, RecordState
from mailsvc.store.people.audit import by_operator
from mailsvc.store.postgres.errors import Conflict

log = Logger()

_ACCOUNT = click.option("--account", required=True, help="ID, number or name of the account.")
CHECK_AGAIN = 10.0  # seconds between the checks of `verify --wait`
_WHOSE = click.option("--account", help="ID, number or name of the domain's account. Default: the account that has verified it.")


@click.group()
def domain() -> None:
    """Manage sending domains."""


@domain.command("add")
@click.argument("name")
@_ACCOUNT
@click.option("--region", help="The region to send from. Default: the account's home region, otherwise the setting region.")
@AS_JSON
@click.pass_obj
def domain_add(settings: Settings, name: str, account: str, region: str | None, as_json: bool) -> None:
    """Add a sending domain and create its DKIM keys. Prints the DNS records to publish."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        added = await customers.add_domain(owner.id, name, region)
        warning = names.look_alike(added.name)
        if warning is not None:
            note(warning)
        if as_json:
            print_json(await _json(customers, added))
            return
        await _print_records(customers, added)
        for record in customers.maintenance.publishing.advised(added):
            click.echo(in_zone_file(record))

    run(settings, work)


@domain.command("list")
@click.option("--account", help="ID, number or name of the account. Default: all accounts.")
@AS_JSON
@click.pass_obj
def domain_list(settings: Settings, account: str | None, as_json: bool) -> None:
    """List domains: name, status, region, account, and when it is checked next."""

    async def work(customers: Customers) -> None:
        if account is not None:
            owners = [await customers.account(account)]
            found, _ = await customers.domains.list(owners[0].id)
        else:
            owners = await customers.accounts.list()
            found = await customers.domains.every()
        called = {owner.id: owner.name for owner in owners}
        shown: list[dict[str, object]] = []
        for one in found:
            whose = called.get(one.account_id, "-")  # the account was created just now
            if as_json:
                checks = {"trusted": one.trusted, "next_check_at": one.next_check_at}
                shown.append({"account_id": one.account_id, "account": whose, **views.brief(one, iso_time), **checks})
                continue
            click.echo(f"{one.name}\t{one.shown_status}\t{one.region}\t{whose}\t{_time(one.next_check_at)}")
        if as_json:
            print_json(shown)

    run(settings, work)


@domain.command("show")
@click.argument("name")
@_WHOSE
@AS_JSON
@click.pass_obj
def domain_show(settings: Settings, name: str, account: str | None, as_json: bool) -> None:
    """Show a domain as it is stored: status, the result of the last check, the records to publish, and its history. Asks no DNS."""

    async def work(customers: Customers) -> None:
        found = await customers.any_domain(name, account)
        if as_json:
            print_json(await _json(customers, found))
            return
        owner = await customers.accounts.get(found.account_id)
        for line in report(found, Findings(found.records, found.advice), found.shown_status):
            click.echo(line)
        click.echo(f"\naccount     {'-' if owner is None else owner.name}\nregion      {found.region}\nID          {found.id}")
        click.echo(f"signs with  {' and '.join(found.signs_with)}")
        click.echo(f"checked     {_time(found.checked_at)}, next {_time(found.next_check_at)}\n")
        await _print_records(customers, found)
        click.echo("")
        for at, what in await customers.domains.history(found.id):
            click.echo(f"{_time(at)}  {what}")

    run(settings, work)


@domain.command("region")
@click.argument("name")
@click.argument("region")
@_WHOSE
@AS_JSON
@click.pass_obj
def domain_region(settings: Settings, name: str, region: str, account: str | None, as_json: bool) -> None:
    """Move a domain to another region, with its queued mail. Prints the DNS records, which change with it.

    Mail leaves from the new region within two seconds. Until the new SPF record is published, receivers see an SPF failure.
    """

    async def work(customers: Customers) -> None:
        moved = await customers.move_domain(await customers.any_domain(name, account), region)
        if as_json:
            print_json(await _json(customers, moved))
        else:
            await _print_records(customers, moved)

    run(settings, work)


@domain.command("delete")
@click.argument("name")
@_WHOSE
@YES
@AS_JSON
@click.pass_obj
def domain_delete(settings: Settings, name: str, account: str | None, yes: bool, as_json: bool) -> None:
    """Delete a domain with its DKIM keys. Its queued emails fail."""
    if not yes:
        click.confirm(f"The domain {name} and its keys will be deleted, and its queued emails fail. Continue?", abort=True, err=True)

    async def work(customers: Customers) -> None:
        found = await customers.any_domain(name, account)
        line = by_operator(found.account_id, "domain deleted", found.name)
        if await customers.domains.delete(found.account_id, found.id, [line]) is None:
            raise Refused(f"The domain {found.name} has been deleted already.")
        result(as_json, f"The domain {found.name} is deleted.", id=found.id, name=found.name, deleted=True)

    run(settings, work)


@domain.command("check")
@click.argument("name")
@_WHOSE
@AS_JSON
@click.pass_obj
def domain_check(settings: Settings, name: str, account: str | None, as_json: bool) -> None:
    """Check the DNS of any domain and print the result without storing it. Exits with 1 if a required record is missing."""

    async def work(customers: Customers) -> None:
        known = account is not None or await customers.domains.all_named(domain_name(name))
        found = await customers.any_domain(name, account) if known else None
        keys = await customers.domains.published_keys(found.id) if found is not None else []
        looked = found or _unknown(domain_name(name), settings.region)
        findings = await customers.maintenance.checker.check(looked, keys)
        if found is None:
            note(f"No account has the domain {looked.name}. These are the records it would need, without DKIM.")
        if as_json:
            records, advice = ([attrs.asdict(each) for each in states] for states in (findings.records, findings.advice))
            print_json({"name": looked.name, "account_id": found and found.account_id, "records": records, "advice": advice})
        else:
            for line in report(looked, findings):
                click.echo(line)
        if any(record.status != "verified" for record in findings.records if record.required):
            raise SystemExit(1)

    run(settings, work)


@domain.command("verify")
@click.argument("name")
@_WHOSE
@click.option("--wait", callback=duration, help="Check again until the domain is verified, for at most so long, such as 90s or 10m.")
@AS_JSON
@click.pass_obj
def domain_verify(settings: Settings, name: str, account: str | None, wait: float | None, as_json: bool) -> None:
    """Check a domain now and store the result. Prints its status and the records. Exits with 1 if it is not verified."""

    async def work(customers: Customers) -> None:
        found = await customers.any_domain(name, account)
        await customers.maintenance.verify(found, [by_operator(found.account_id, "domain verification requested", found.name)])
        until = customers.reactor.seconds() + (wait or 0)
        checked = await checked_now(customers, found)
        while wait is not None and (checked is None or checked.status != "verified"):
            left = until - customers.reactor.seconds()
            if left <= 0:
                break
            await deferLater(customers.reactor, min(left, CHECK_AGAIN))
            # None: another process checked it at the same time and stored the result.
            checked = await checked_now(customers, found) or await customers.domains.own(found.account_id, found.id)
        if checked is None:
            raise Refused(f"The domain {found.name} was changed during the check. Try again.")
        if as_json:
            print_json(await _json(customers, checked))
        else:
            for line in report(checked, Findings(checked.records, checked.advice)):
                click.echo(line)
        if checked.status != "verified":
            raise SystemExit(1)

    run(settings, work)


async def checked_now(customers: Customers, found: Domain) -> Domain | None:
    """The domain after a check. None if it was changed during the check."""
    taken = await customers.maintenance.checks.take(found)
    if taken is None:
        raise Refused(f"The domain {found.name} has been deleted.")
    return await customers.maintenance.check(taken)


@domain.command("rotate")
@click.argument("name")
@_WHOSE
@AS_JSON
@click.pass_obj
def domain_rotate(settings: Settings, name: str, account: str | None, as_json: bool) -> None:
    """Rotate DKIM keys: the new ones sign once they are live in DNS. Prints the records to publish."""

    async def work(customers: Customers) -> None:
        found = await customers.any_domain(name, account)
        try:
            rotated = await customers.maintenance.rotate(found, [by_operator(found.account_id, "domain keys rotated", found.name)])
        except RotationInProgress:
            raise Refused(f"The keys of {found.name} are already being rotated. Wait until the previous ones are retired.") from None
        if rotated is None:
            raise Refused(f"The domain {found.name} has been deleted.")
        new = [key for key in await customers.domains.published_keys(found.id) if key.state == "published"]
        if as_json:
            keys = [{"selector": key.selector, "algorithm": key.algorithm} for key in new]
            print_json({**await _json(customers, rotated), "delegated": rotated.delegated, "new_keys": keys})
        elif rotated.delegated:
            click.echo("\n".join(customers.maintenance.publishing.zone([(rotated.id, key) for key in new])))
        else:
            await _print_records(customers, rotated, new)

    run(settings, work)


@domain.command("signs")
@click.argument("name")
@click.argument("algorithms", type=click.Choice([*ALGORITHMS, "both"]))
@_WHOSE
@AS_JSON
@click.pass_obj
def domain_signs(settings: Settings, name: str, algorithms: str, account: str | None, as_json: bool) -> None:
    """Choose which DKIM keys sign a domain's mail. The records of the others are then not required."""

    async def work(customers: Customers) -> None:
        found = await customers.any_domain(name, account)
        try:
            signing = [each for each in ALGORITHMS if algorithms in (each, "both")]
            line = by_operator(found.account_id, "domain changed", f"{found.name}: signs with {' and '.join(signing)}")
            chosen = await customers.maintenance.sign_with(found, signing, [line])
        except KeysNotPublished as missing:
            raise Refused(f"These DKIM keys of {found.name} are not in DNS: {missing}. Publish them first.") from None
        if chosen is None:
            raise Refused(f"The domain {found.name} has been deleted.")
        sentence = f"{chosen.name} signs with {' and '.join(chosen.signs_with)}."
        result(as_json, sentence, id=chosen.id, name=chosen.name, signs_with=list(chosen.signs_with))

    run(settings, work)


@domain.command("zone")
@click.pass_obj
def domain_zone(settings: Settings) -> None:
    """Print the DKIM records of the zone domains.dkim_zone, as a zone file."""
    if settings.domains.dkim_zone is None:
        raise click.ClickException("The setting domains.dkim_zone is missing; without it, customers publish their own keys.")

    async def work(customers: Customers) -> None:
        for line in customers.maintenance.publishing.zone(await customers.domains.delegated_keys()):
            click.echo(line)

    run(settings, work)


@domain.command("trust")
@click.argument("name")
@_ACCOUNT
@click.pass_obj
def domain_trust(settings: Settings, name: str, account: str) -> None:
    """Allow a domain to send without DNS records. Needs domains.allow_trust."""
    if not settings.domains.allow_trust:
        raise click.ClickException("The setting domains.allow_trust is false; domains must be verified by DNS records.")

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        trusted = await customers.domain(owner, name)
        try:
            await customers.domains.trust(owner.id, trusted.name, lines=[by_operator(owner.id, "domain trusted", trusted.name)])
        except Conflict:
            raise Refused(f"{trusted.name} is already verified or trusted for another account.") from None
        log.warn("{domain} is trusted without DNS records, by {who}", domain=trusted.name, who=f"user {os.getuid()}")
        click.echo(f"{trusted.name} can send.")

    run(settings, work)


async def _json(customers: Customers, domain: Domain) -> dict[str, object]:
    """As the API shows it, with the account."""
    publishing, keys = customers.maintenance.publishing, await customers.domains.published_keys(domain.id)
    return {
        "account_id": domain.account_id,
        **views.full(domain, keys, publishing, iso_time),
        "trusted": domain.trusted,
        "checked_at": domain.checked_at,
        "next_check_at": domain.next_check_at,
        "history": [{"created_at": at, "message": message} for at, message in await customers.domains.history(domain.id)],
    }


async def _print_records(customers: Customers, domain: Domain, only: Sequence[DkimKey] | None = None) -> None:
    keys = await customers.domains.published_keys(domain.id)
    records = customers.maintenance.publishing.records(domain, keys)
    selectors = None if only is None else {f"{key.selector}._domainkey.{domain.name}" for key in only}
    for record in records:
        if selectors is None or record.name in selectors:
            click.echo(in_zone_file(record))


def report(domain: Domain, findings: Findings, status: str | None = None) -> Iterator[str]:
    """Formats the result of a check. `status`: instead of that of the checks."""
    shown = names.shown(domain.name)
    yield f"{shown}: {status or domain.status}" if domain.account_id.int else shown
    warning = names.look_alike(domain.name)
    if warning is not None:
        yield f"  {warning}"
    for state in (*findings.records, *findings.advice):
        yield f"  {state.purpose:<5} {state.type:<5} {state.name}: {_status(state)}"
        if state.problem is not None:
            yield f"        expected  {state.expected}"
            yield from (f"        found     {value}" for value in state.found or ("nothing",))
        if state.where is not None:
            yield f"        where     {state.where}"
        if state.message is not None:
            yield f"        {state.message}"


def _status(state: RecordState) -> str:
    if state.purpose == "DMARC":
        return "good" if state.problem is None else f"recommended ({state.problem})"
    return "verified" if state.problem is None else f"{state.problem.replace('_', ' ')}{'' if state.required else ' (not required)'}"


def _unknown(name: str, region: str) -> Domain:
    """A domain that no account has, with what its records depend on."""
    return Domain(UUID(int=0), UUID(int=0), name, region, "not_started", False, "send", (), "opportunistic", datetime.min)


def _time(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"
