"""The operator's own account: its sending domain, its first member, and the zone file with all DNS records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

import attrs

from mailsvc.accounts.onboarding import Customers
from mailsvc.cli.customers.members import people_of, sign_in_link
from mailsvc.cli.domain import checked_now
from mailsvc.cli.setup.answers import Answers
from mailsvc.domains.records import in_zone_file
from mailsvc.net.dns import Records, Resolver
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domain
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.audit import by_operator


@attrs.frozen
class First:
    """What was there or was created. `link`: signs the operator in to the dashboard; None if they are a member already."""

    account: Account
    domain: Domain
    link: str | None


async def prepare(customers: Customers, settings: Settings, answers: Answers, say: Callable[[str], None]) -> First:
    """Creates what is missing, and checks the domain if it is not verified."""
    owner = await _owner(customers, answers.domain) or await _account(customers, answers, say)
    found = await customers.domains.find(owner.id, answers.domain)
    if found is None:
        found = await customers.add_domain(owner.id, answers.domain, settings.region)
        say(f"created the domain {found.name}, with its DKIM keys")
    else:
        say(f"left    the domain {found.name} of {owner.name}")
        found = await _verified(customers, found, say)
    return First(owner, found, await _member(customers, settings, owner, answers.operator.lower(), say))


async def _owner(customers: Customers, name: str) -> Account | None:
    """The account that can send from the domain; or a trusted one that has it, so never that of a customer who only claims it."""
    for domain in await customers.domains.all_named(name):
        owner = await customers.accounts.get(domain.account_id)
        if owner is not None and (domain.missing is None or owner.trusted_at is not None):
            return owner
    return None


async def _account(customers: Customers, answers: Answers, say: Callable[[str], None]) -> Account:
    """The account that is called like the domain."""
    for each in await customers.accounts.list():
        if each.name == answers.domain:
            return each
    name = answers.domain
    new = await customers.accounts.create(
        name, notify=answers.operator, trusted=True, line=lambda id_: by_operator(id_, "account created", name)
    )
    say(f"created the account {name}")
    return new


async def _verified(customers: Customers, domain: Domain, say: Callable[[str], None]) -> Domain:
    """The domain after a check of its DNS, unless it is verified."""
    if domain.missing is None:
        return domain
    await customers.maintenance.verify(domain, [by_operator(domain.account_id, "domain verification requested", domain.name)])
    after = await checked_now(customers, domain) or await customers.domains.own(domain.account_id, domain.id) or domain
    say(f"checked the DNS records of {domain.name}: {after.status.replace('_', ' ')}")
    return after


async def _member(customers: Customers, settings: Settings, owner: Account, operator: str, say: Callable[[str], None]) -> str | None:
    people = people_of(customers)
    if any(each.email == operator for each in await people.users.members(owner.id)):
        say(f"left    the member {operator}")
        return None
    _, secret = await people.admit(owner.id, operator, "admin", timedelta(days=1))
    say(f"created the member {operator}")
    return sign_in_link(settings, secret)


async def zone(customers: Customers, settings: Settings, domain: Domain, resolver: Resolver) -> list[str]:
    """All DNS records, as a zone file: those of this server, then those of the domain."""
    host = settings.delivery.ehlo_name or "localhost"
    addresses = [text.split()[0] for text in settings.delivery.sources] or await _addresses(resolver, host)
    lines = [f"; {host}: this server. Its provider also sets the PTR record of each address to {host}."]
    web = urlsplit(settings.base_url or "").hostname or host
    for name in dict.fromkeys([host, web]):
        lines += [f"{name}. {'AAAA' if ip_address(each).version == 6 else 'A'} {each}" for each in addresses]
        lines += [] if addresses else [f"; {name}. A <the public address of this server>"]
    lines.append(f'{host}. TXT "v=spf1 a -all"')
    publishing, keys = customers.maintenance.publishing, await customers.domains.published_keys(domain.id)
    lines.append(f"; {domain.name}: the domain that mail from the service itself is sent from")
    lines += map(in_zone_file, (*publishing.records(domain, keys), *publishing.advised(domain)))
    return lines


async def _addresses(resolver: Resolver, host: str) -> Sequence[str]:
    answer = await resolver.addresses(host)
    return answer.values if isinstance(answer, Records) else ()
