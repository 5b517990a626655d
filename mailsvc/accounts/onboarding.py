"""What is done for a new customer: an account, a sending domain with its keys, an API key. For the command and the first run."""

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
from mailsvc.domains.maintenance import KEY_THREADS, Care, Taken
from mailsvc.domains.records import Publishing
from mailsvc.domains.rotation import Rules
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.net import address_guard
from mailsvc.net.dns import Resolver
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.domains.values import DomainLimits
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.people.audit import Line
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.people.users import Role, Users
from mailsvc.store.postgres.pool import Pool

OPERATOR = "the operator"  # in audit logs


class Refused(Exception):
    """A sentence for the operator."""


@attrs.frozen
class People:
    """Who may look at an account's dashboard, and the links that let them in."""

    users: Users
    sessions: Sessions

    async def admit(self, account_id: UUID, email: str, role: Role, lives: timedelta, name: str = "") -> str:
        """Make somebody a member; the secret of a link that signs them in once."""
        user = await self.users.create(email, name)
        line = Line(account_id, None, None, OPERATOR, "", "member admitted", f"{user.email} as {role}")
        if not await self.users.join(account_id, user.id, role, [line]):
            await self.users.set_role(account_id, user.id, role, [line])
        return await self.sessions.make_link("sign-in", user.email, lives)

    async def reset(self, email: str, lives: timedelta) -> str:
        """Take the second factors of somebody who has lost them; the secret of a link that signs them in once."""
        user = await self.users.named(email)
        if user is None:
            raise Refused(f"Nobody here has the address {email}.")
        line = Line(None, user.id, None, OPERATOR, "", "second factors removed", user.email)
        await self.users.forget_second_factors(user.id, [line])
        return await self.sessions.make_link("sign-in", user.email, lives)


@attrs.frozen
class Customers:
    """The tables that belong to customers. `people` None: no process shows a dashboard."""

    reactor: Any
    accounts: Accounts
    domains: Domains
    keys: Keys
    care: Care
    people: People | None = None

    @classmethod
    def of(cls, database: Database, reactor: Any, settings: Settings) -> Customers:
        """Without notifications: for commands that make a few changes and exit."""
        pool = database.pool
        payload = views.payload(publishing_of(settings))
        domains = Domains(pool, reactor, database.encryption, payload=payload, trusting=settings.domains.allow_trust)
        resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
        care, people = (
            care_of(settings, reactor, pool, domains, resolver),
            People(Users(pool, reactor, database.encryption), Sessions(pool, reactor)),
        )
        return cls(reactor, Accounts(pool, reactor), domains, Keys(pool, reactor), care, people)

    async def account(self, text: str) -> Account:
        """An account by its id, its number or its name."""
        return await find_account(self.accounts, text)

    async def domain(self, account: Account, text: str) -> Domain:
        """A domain of the account by its name."""
        name = domain_name(text)
        found = await self.domains.find(account.id, name)
        if found is None:
            raise Refused(f"The account {account.name!r} has no domain {name}.")
        return found

    async def any_domain(self, text: str, account: str | None = None) -> Domain:
        """A domain by its name: of `account`, else of the account that has it verified, else the only one."""
        if account is not None:
            return await self.domain(await self.account(account), text)
        name = domain_name(text)
        found = await self.domains.claimants(name)
        if not found:
            raise Refused(f"There is no domain {name}.")
        if len(found) > 1 and not (found[0].trusted or found[0].status == "verified"):
            raise Refused(f"{len(found)} accounts have added {name} and none has it verified; choose one with --account.")
        return found[0]

    async def add_domain(self, account_id: UUID, text: str, region: str) -> Domain:
        """A new sending domain with a DKIM key pair of each algorithm."""
        try:
            return await self.care.add(account_id, text, region, limited=False)
        except names.NotADomain as wrong:
            raise Refused(f"{text!r} is no domain to send from. {wrong}") from None
        except Taken as taken:
            raise Refused(f"The account has the domain {taken} already.") from None


def publishing_of(settings: Settings) -> Publishing:
    """The operator's side of the records that customers publish."""
    domains = settings.domains
    hosts = domains.hosts or {settings.region: settings.delivery.ehlo_name or "localhost"}
    return Publishing(hosts, domains.spf_include, domains.dkim_zone)


def care_of(
    settings: Settings, reactor: Any, pool: Pool, domains: Domains, resolver: Resolver, wake: Callable[[], None] = lambda: None
) -> Care:
    """What makes, checks and rotates domains, by these settings."""
    publishing, allowed = publishing_of(settings), address_guard.networks(settings.delivery.allowed_networks)
    checker = Checker(resolver, Authorities(reactor, resolver, allowed, settings.domains.nameserver_port), publishing, reactor)
    rules = Rules.of(settings.delivery.expire, settings.domains.rotate_days)
    limits = DomainLimits(settings.domains.per_account, settings.domains.unverified, settings.domains.adds_per_hour)
    checks, claims = DomainChecks(pool, domains), DomainClaims(pool, domains)
    return Care(domains, checks, claims, checker, publishing, rules, _key_threads(reactor), _own(settings), wake, limits)


def _key_threads(reactor: Any) -> Callable[[Callable[[], Any]], Deferred[Any]]:
    """Threads of their own for making keys, which takes tens of milliseconds each: they delay nothing else that needs a thread."""
    threads = ThreadPool(0, KEY_THREADS, "DKIM keys")
    reactor.callWhenRunning(threads.start)
    reactor.addSystemEventTrigger("during", "shutdown", threads.stop)
    return partial(deferToThreadPool, reactor, threads)


def _own(settings: Settings) -> frozenset[str]:
    """The operator's names, from which no customer sends."""
    publishing = publishing_of(settings)
    given = (*publishing.hosts.values(), publishing.spf_include, publishing.dkim_zone, urlsplit(settings.base_url or "").hostname)
    return frozenset(name.lower() for name in given if name)


async def find_account(accounts: Accounts, text: str) -> Account:
    """By its id, its number or its name."""
    known = await accounts.list()
    exact = [account for account in known if text in (str(account.id), str(account.number))]
    found = exact or [account for account in known if account.name == text]
    if len(found) != 1:
        raise Refused(f"{'No account is' if not found else f'{len(found)} accounts are'} called {text!r}; name one by its id.")
    return found[0]


def address(text: str) -> str:
    """An email address."""
    try:
        return parse_mailbox(text).address
    except AddressError as error:
        raise Refused(f"{text!r} is no email address. {error}") from None


def domain_name(text: str) -> str:
    """A domain as it is kept: lower case, A-labels."""
    try:
        return names.parse(text).ascii
    except names.NotADomain as wrong:
        raise Refused(f"{text!r} is no domain name. {wrong}") from None
