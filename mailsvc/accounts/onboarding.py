"""Sets up customers: accounts, members, sending domains, API keys. For the command line and the first start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from mailsvc.domains import names, views
from mailsvc.domains.authoritative_dns import Authorities
from mailsvc.domains.checking import Checker
from mailsvc.domains.maintenance import KEY_THREADS, AlreadyAdded, DomainMaintenance
from mailsvc.domains.records import Publishing
from mailsvc.domains.rotation import Rules
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.net import address_guard
from mailsvc.net.dns import Resolver
from mailsvc.runtime.database import Database
from mailsvc.settings import regions
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.domains.values import DomainLimits
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.people.audit import OPERATOR, Line, by_operator
from mailsvc.store.people.residence import RegionRefused
from mailsvc.store.people.roles import Role
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.people.users import User, Users

REPORTS = "reports"  # the purpose of the secrets that sign addresses for reports
LAST_ADMIN = "An account needs at least one admin. Make another member an admin first: `mailsvc member role` or `mailsvc member add`."


class Refused(Exception):
    """The request is not possible. The text is a sentence for the operator; a list of what was meant can follow in lines of its own."""


@attrs.frozen
class People:
    """Members of accounts, and links that sign them in to the dashboard."""

    users: Users
    sessions: Sessions

    async def admit(self, account_id: UUID, email: str, role: Role | None, lives: timedelta, name: str = "") -> tuple[Role, str]:
        """Add a member. Returns their role and the secret of a one-time sign-in link. Raises Refused for the last admin.

        `role` None: members keep theirs, others become admins.
        """
        user = await self.users.create(email, name)
        added = by_operator(account_id, "member added", f"{user.email} as {role or 'admin'}")
        if not await self.users.join(account_id, user.id, role or "admin", [added]):
            role = await self._given(account_id, user, role)
        line = Line(None, user.id, None, OPERATOR, "", "sign-in link created", user.email)  # it opens all their accounts
        return role or "admin", await self.sessions.make_link("sign-in", user.email, lives, lines=[line])

    async def _given(self, account_id: UUID, user: User, role: Role | None) -> Role | None:
        """The role of somebody who is a member already, after a change to `role`, if it is another one."""
        known = {each.account_id: each.role for each in await self.users.accounts(user.id)}
        if role is None or role == known.get(account_id):
            return known.get(account_id)
        line = by_operator(account_id, "role changed", f"{user.email} is {role}")
        if not await self.users.set_role(account_id, user.id, role, [line]):
            raise Refused(LAST_ADMIN)
        return role

    async def reset(self, email: str, lives: timedelta) -> str:
        """Remove a user's second factors. Returns the secret of a one-time sign-in link."""
        user = await self.users.named(email)
        if user is None:
            raise Refused(f"There is no user with the address {email}.")
        line = Line(None, user.id, None, OPERATOR, "", "second factors removed", user.email)
        await self.users.forget_second_factors(user.id, [line])
        return await self.sessions.make_link("sign-in", user.email, lives)


@attrs.frozen
class Customers:
    """Everything the commands need. `people`: None if there is no dashboard."""

    reactor: Any
    accounts: Accounts
    domains: Domains
    keys: Keys
    maintenance: DomainMaintenance
    people: People | None = None

    @classmethod
    def of(cls, database: Database, reactor: Any, settings: Settings) -> Customers:
        """For commands that make a few changes and exit; without notifications."""
        pool = database.pool
        payload = views.payload(publishing_of(settings, database.encryption))
        domains = Domains(pool, reactor, database.encryption, payload=payload, trusting=settings.domains.allow_trust)
        resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
        maintenance, people = (
            domain_maintenance(settings, database, reactor, domains, resolver),
            People(Users(pool, reactor, database.encryption), Sessions(pool, reactor)),
        )
        return cls(reactor, Accounts(pool, reactor), domains, Keys(pool, reactor), maintenance, people)

    async def account(self, text: str) -> Account:
        """Find an account by its ID, number or name."""
        return await find_account(self.accounts, text)

    async def domain(self, account: Account, text: str) -> Domain:
        """Find a domain of the account by name."""
        name = domain_name(text)
        found = await self.domains.find(account.id, name)
        if found is None:
            raise Refused(f"The account {account.name!r} has no domain {name}.")
        return found

    async def any_domain(self, text: str, account: str | None = None) -> Domain:
        """Find a domain by name: of `account`, otherwise the verified one, otherwise the only one."""
        if account is not None:
            return await self.domain(await self.account(account), text)
        name = domain_name(text)
        found = await self.domains.all_named(name)
        if not found:
            raise Refused(f"There is no domain {name}.")
        if len(found) > 1 and not (found[0].trusted or found[0].status == "verified"):
            owners = [await self.accounts.get(domain.account_id) for domain in found]
            listed = [_listed(owner) for owner in owners if owner is not None]
            raise Refused(
                "\n".join([f"{len(found)} accounts have added {name} and none has verified it. Choose one with --account:", *listed])
            )
        return found[0]

    async def region_for(self, account_id: UUID, region: str | None) -> str:
        """The region of a new domain of the account."""
        try:
            return await self.maintenance.region_for(account_id, region)
        except RegionRefused as wrong:
            raise Refused(f"The region {wrong}") from None

    async def move_domain(self, domain: Domain, region: str) -> Domain:
        """Move a domain with its queued mail to another region."""
        try:
            line = by_operator(domain.account_id, "domain moved", f"{domain.name} to {region}")
            moved = await self.maintenance.move(domain, region, [line])
        except RegionRefused as wrong:
            raise Refused(f"The region {wrong}") from None
        if moved is None:
            raise Refused(f"The domain {domain.name} has been deleted.")
        return moved

    async def add_domain(self, account_id: UUID, text: str, region: str | None) -> Domain:
        """Add a sending domain with a DKIM key of each algorithm. Without `region`: in the account's home region."""
        region = await self.region_for(account_id, region)
        try:
            line = by_operator(account_id, "domain added", text)
            return await self.maintenance.add(account_id, text, region, lines=[line], limited=False)
        except names.NotADomain as wrong:
            raise Refused(f"{text!r} is not a valid sending domain. {wrong}") from None
        except AlreadyAdded as taken:
            raise Refused(f"The account already has the domain {taken}.") from None
        except RegionRefused as wrong:  # pinned meanwhile
            raise Refused(f"The region {wrong}") from None


def publishing_of(settings: Settings, encryption: Encryption) -> Publishing:
    """The operator's settings for the DNS records that customers publish, and what signs the addresses in them."""
    hosts, includes, own = regions.hosts(settings), regions.spf_includes(settings), tracking_host(settings)
    return Publishing(
        hosts, includes, settings.domains.dkim_zone, lambda: encryption.secrets_for(REPORTS)[0], own, settings.tracking.authority
    )


def tracking_host(settings: Settings) -> str | None:
    """The host of tracked links of domains without a tracking subdomain, to which tracking subdomains point."""
    return settings.tracking.host or urlsplit(settings.base_url or "").hostname


def domain_maintenance(
    settings: Settings, database: Database, reactor: Any, domains: Domains, resolver: Resolver, wake: Callable[[], None] = lambda: None
) -> DomainMaintenance:
    """Build DomainMaintenance from the settings."""
    pool, publishing = database.pool, publishing_of(settings, database.encryption)
    allowed = address_guard.networks(settings.delivery.allowed_networks)
    checker = Checker(resolver, Authorities(reactor, resolver, allowed, settings.domains.nameserver_port), publishing, reactor)
    rules = Rules.of(settings.delivery.expire, settings.domains.rotate_days)
    limits = DomainLimits(settings.domains.per_account, settings.domains.unverified, settings.domains.adds_per_hour)
    checks, claims = DomainChecks(pool, domains), DomainClaims(pool, domains)
    return DomainMaintenance(
        domains, checks, claims, checker, publishing, rules, _key_threads(reactor), _own(settings, publishing), wake, limits,
        settings.region,
    )  # fmt: skip


def _key_threads(reactor: Any) -> Callable[[Callable[[], Any]], Deferred[Any]]:
    """Separate threads for key generation, which takes tens of milliseconds, so that other threaded work is not delayed."""
    threads = ThreadPool(0, KEY_THREADS, "DKIM keys")
    reactor.callWhenRunning(threads.start)
    reactor.addSystemEventTrigger("during", "shutdown", threads.stop)
    return partial(deferToThreadPool, reactor, threads)


def _own(settings: Settings, publishing: Publishing) -> frozenset[str]:
    """The operator's own names, which customers cannot use."""
    others = (publishing.dkim_zone, publishing.tracking_host, urlsplit(settings.base_url or "").hostname)
    return regions.service_names(settings) | frozenset(name.lower() for name in others if name)


async def find_account(accounts: Accounts, text: str) -> Account:
    """Find an account by its ID, number or name."""
    known = await accounts.list()
    exact = [account for account in known if text in (str(account.id), str(account.number))]
    found = exact or [account for account in known if account.name == text]
    if not found:
        raise Refused(f"No account is called {text!r}. `mailsvc account list` shows all accounts.")
    if len(found) > 1:
        raise Refused("\n".join([f"{len(found)} accounts are called {text!r}. Use the number or the ID:", *map(_listed, found)]))
    return found[0]


def _listed(account: Account) -> str:
    """An account among several with the same name or the same domain."""
    return f"{account.number}  {account.id}  {account.name}  created {account.created_at:%Y-%m-%d}"


def address(text: str) -> str:
    """Validate an email address."""
    try:
        return parse_mailbox(text).address
    except AddressError as error:
        raise Refused(f"{text!r} is not an email address. {error}") from None


def domain_name(text: str) -> str:
    """Validate a domain name; in lower case with A-labels, as it is stored."""
    try:
        return names.parse(text).ascii
    except names.NotADomain as wrong:
        raise Refused(f"{text!r} is not a domain name. {wrong}") from None
